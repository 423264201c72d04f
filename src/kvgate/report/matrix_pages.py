"""A matrix of runs as a page: Markdown, or HTML that stands alone. Everything that came from elsewhere is escaped."""

from html import escape

from kvgate.domain.fingerprint import UNKNOWN
from kvgate.domain.matrix import Cell
from kvgate.domain.verdict import Verdict
from kvgate.report.ledger_document import MatrixReport

_COLOURS = {Verdict.PASS: "#d7f0d7", Verdict.FAIL: "#f6cfcf", Verdict.INCONCLUSIVE: "#f6ecc5"}
_STYLE = (
    "body{font:14px/1.4 sans-serif;margin:2em}table{border-collapse:collapse}"
    "th,td{border:1px solid #999;padding:.3em .6em;text-align:left;vertical-align:top}th{background:#eee}"
    "small{color:#444}"
)
# Characters that mean something in Markdown, so that a name is shown as it is.
_MARKS = "\\`*_{}[]<>()#+!|~"


def cell_text(cell: Cell) -> tuple[str, str]:
    """What a cell says: its verdict, and the runs behind it."""
    counts = ", ".join(f"{count} {verdict.value}" for verdict, count in cell.by_verdict)
    return cell.verdict.value, f"{counts}; last {cell.newest_at[:10] or UNKNOWN}"


def heading(report: MatrixReport) -> str:
    """What the table shows, in a line."""
    table = report.matrix
    where = "".join(f", {name} = {value}" for name, value in table.where)
    return f"{table.row_dimension} by {table.column_dimension}{where}"


def matrix_markdown(report: MatrixReport) -> str:
    """The matrix as a Markdown table."""
    table = report.matrix
    cells = {(cell.row, cell.column): cell for cell in table.cells}
    lines = [f"**{_plain(heading(report))}**", ""]
    lines.append("| " + " | ".join(["", *(_plain(label or UNKNOWN) for label in table.columns)]) + " |")
    lines.append("|" + "---|" * (len(table.columns) + 1))
    for row in table.rows:
        shown = [_plain(row or UNKNOWN)]
        for column in table.columns:
            cell = cells.get((row, column))
            shown.append(f"**{cell_text(cell)[0]}** {_plain(cell_text(cell)[1])}" if cell else "")
        lines.append("| " + " | ".join(shown) + " |")
    lines += ["", *(f"Not counted: {_plain(each.place)}: {_plain(each.why)}" for each in report.broken)]
    return "\n".join(lines).rstrip() + "\n"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, in one line."""
    one_line = " ".join(text.split())
    return "".join(f"\\{each}" if each in _MARKS else each for each in one_line)


def matrix_html(report: MatrixReport) -> str:
    """The matrix as a page of its own, without scripts or anything from elsewhere."""
    table, title = report.matrix, escape(heading(report))
    cells = {(cell.row, cell.column): cell for cell in table.cells}
    head = "".join(f"<th>{escape(label or UNKNOWN)}</th>" for label in table.columns)
    lines = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>kvgate: {title}</title><style>{_STYLE}</style></head>',
        f"<body><h1>{title}</h1>",
        f"<table><thead><tr><th></th>{head}</tr></thead><tbody>",
    ]
    for row in table.rows:
        shown = "".join(_html_cell(cells.get((row, column))) for column in table.columns)
        lines.append(f"<tr><th>{escape(row or UNKNOWN)}</th>{shown}</tr>")
    lines.append("</tbody></table>")
    lines += [f"<p>Not counted: {escape(each.place)}: {escape(each.why)}</p>" for each in report.broken]
    return "\n".join([*lines, "</body></html>"]) + "\n"


def _html_cell(cell: Cell | None) -> str:
    if cell is None:
        return "<td></td>"
    verdict, behind = cell_text(cell)
    colour = _COLOURS.get(cell.verdict, "#fff")
    run = escape(cell.newest_run, quote=True)
    text = f"<b>{escape(verdict)}</b><br><small>{escape(behind)}</small>"
    return f'<td style="background:{colour}" title="{run}">{text}</td>'
