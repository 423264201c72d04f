"""What commands say of stored runs, for a terminal."""

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvgate.domain.fingerprint import UNKNOWN
from kvgate.domain.kept import LedgerRow, State, Unreadable
from kvgate.domain.soak import Excluded
from kvgate.domain.verdict import Verdict
from kvgate.report.ledger_document import (
    CheckReport,
    HistoryReport,
    ImportReport,
    MatrixReport,
    MergeReport,
    PruneReport,
)
from kvgate.report.matrix_pages import cell_text, heading

_STYLE = {Verdict.PASS: "bold green", Verdict.FAIL: "bold red", Verdict.INCONCLUSIVE: "bold yellow"}


def print_history(report: HistoryReport, console: Console) -> None:
    """One line a run."""
    console.print(_runs(report.runs))
    console.print(f"{_count(len(report.runs))} in {report.folder}", markup=False, soft_wrap=True)
    for row in report.runs:
        if row.state is not State.KEPT:
            console.print(f"{row.state.value}: run {row.run.run_id}: {row.why}", markup=False, soft_wrap=True)
    _broken(report.broken, console)


def _runs(rows: Iterable[LedgerRow]) -> Table:
    table = Table()
    for name in ("run", "began", "verdict", "policy", "deployment", "model", "version", "tiers", "excludes", "state"):
        table.add_column(name, justify="right" if name == "excludes" else "left", overflow="fold")
    for row in rows:
        run, known = row.run, row.run.fingerprint.value
        table.add_row(
            escape(run.run_id),
            escape(run.origin.started_at),
            _styled(run.verdict),
            run.policy.name.value,
            *(escape(known(name) or UNKNOWN) for name in ("deployment.name", "deployment.model", "server.version")),
            " ".join(map(str, run.tiers)),
            f"> {100 * run.excluded_fault_rate:.2g}%" if run.verdict is Verdict.PASS else "-",
            row.state.value,
        )
    return table


def _count(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


def _styled(verdict: Verdict) -> str:
    return f"[{_STYLE.get(verdict, 'dim')}]{verdict.value}[/]"


def _broken(broken: Iterable[Unreadable], console: Console) -> None:
    for each in broken:
        console.print(f"not counted: {each.place}: {each.why}", markup=False, soft_wrap=True)


def print_matrix(report: MatrixReport, console: Console) -> None:
    """The matrix; an empty cell was never gated."""
    table, shown = report.matrix, Table(title=escape(heading(report)), title_justify="left", show_lines=True)
    cells = {(cell.row, cell.column): cell for cell in table.cells}
    shown.add_column("", overflow="fold")
    for column in table.columns:
        shown.add_column(escape(column or UNKNOWN), overflow="fold")
    for row in table.rows:
        found = [cells.get((row, column)) for column in table.columns]
        texts = [f"{_styled(cell.verdict)}\n{escape(cell_text(cell)[1])}" if cell else "" for cell in found]
        shown.add_row(escape(row or UNKNOWN), *texts)
    console.print(shown)
    if not table.rows:
        console.print("no run is in it")
    _broken(report.broken, console)


def print_imports(report: ImportReport, console: Console) -> None:
    """What was taken in, what was known, and what is broken."""
    imports = report.imports
    for each in imports.taken:
        console.print(f"taken in: run {each.run_id} from {each.source}, now {each.place}", markup=False, soft_wrap=True)
    for each in imports.known:
        console.print(f"known already: run {each.run_id} from {each.source}", markup=False, soft_wrap=True)
    for broken in imports.broken:
        console.print(f"skipped: {broken.place}: {broken.why}", markup=False, soft_wrap=True)
    counts = f"{len(imports.taken)} taken in, {len(imports.known)} known already, {len(imports.broken)} skipped"
    console.print(counts, markup=False)


def print_pruned(report: PruneReport, console: Console) -> None:
    """What was deleted, or would be."""
    verb = "would be deleted" if report.dry_run else "deleted"
    for row in report.runs:
        told = f"{verb}: run {row.run.run_id} ({row.run.verdict.value}, {row.run.origin.started_at}) in {row.place}"
        console.print(told, markup=False, soft_wrap=True)
    console.print(f"{_count(len(report.runs))} {verb}", markup=False)
    _broken(report.broken, console)


def print_check(report: CheckReport, console: Console) -> None:
    """Cleared or not, one line for each thing that is missing, and what to do."""
    found = report.clearance
    name = found.deployment.value("deployment.name") or UNKNOWN
    head = ("CLEARED", "bold green") if found.cleared else ("REFUSED", "bold red")
    console.print(Text.assemble(head, f"  {name}  (fingerprint {report.fingerprint_sha256[:16]})"))
    for each in found.lacking:
        console.print(Text.assemble((each.lack.value, "bold"), f"  {each.detail}"), soft_wrap=True)
    if found.cleared:
        console.print(f"by {', '.join(f'run {run}' for run in found.runs)}", markup=False, soft_wrap=True)
        _excluded(found.excluded, console)
    if found.cleared and found.not_compared:
        told = f"Note: told by no engine, so not compared: {', '.join(found.not_compared)}"
        console.print(told, markup=False, soft_wrap=True)
    if not report.live:
        told = "Note: the deployment was not asked; what its engines tell is as its newest run saw it (--live asks)"
        console.print(told, markup=False, soft_wrap=True)
    _broken(report.broken, console)
    if report.remedy:
        console.print(f"To get it: {report.remedy}", markup=False, soft_wrap=True)


def print_merged(report: MergeReport, console: Console) -> None:
    """The worst verdict, each run, and what all exclude together."""
    found = report.merged
    name = found.deployment.value("deployment.name") or UNKNOWN
    console.print(Text.assemble((found.verdict.value, _STYLE.get(found.verdict, "bold")), f"  {name}"))
    table = Table()
    for column in ("run", "began", "verdict", "policy", "tiers", "groups", "reasons"):
        table.add_column(column, justify="right" if column == "groups" else "left", overflow="fold")
    for each in found.shards:
        cells = (escape(each.run_id), escape(each.started_at), _styled(each.verdict), each.policy.value)
        table.add_row(*cells, " ".join(map(str, each.tiers)), str(each.groups), " ".join(each.reasons))
    console.print(table)
    console.print(f"{found.groups} groups in {_count(len(found.shards))}, tiers {' '.join(map(str, found.tiers))}")
    _excluded(found.excluded, console)
    if found.open_tiers:
        console.print(f"without a PASS: tiers {' '.join(map(str, found.open_tiers))}", markup=False)
    if found.not_applicable:
        console.print(f"NOT_APPLICABLE: tiers {' '.join(map(str, found.not_applicable))}", markup=False)
    for note in (*found.notes, *report.doubts):
        console.print(f"Note: {note}", markup=False, soft_wrap=True)


def _excluded(excluded: Iterable[Excluded], console: Console) -> None:
    console.print("What a PASS of all these groups excludes at 95 %:")
    for each in excluded:
        share = (
            f"random faults that change more than {100 * each.excluded_fault_rate:.2g}% of answers (n = {each.groups})"
        )
        told = share if each.groups else "nothing (no clean exercised group)"
        console.print(f"  tier {each.tier}, {each.arm.value}: {told}", markup=False, soft_wrap=True)
