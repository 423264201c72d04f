"""The report of a ladder: as a document with a schema, and for a terminal."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvgate.domain.rungs import Climb
from kvgate.domain.verdict import Verdict

_STYLE = {Verdict.PASS: "bold green", Verdict.FAIL: "bold red", Verdict.INCONCLUSIVE: "bold yellow"}


@dataclass(frozen=True, slots=True)
class LadderReport:
    """Everything a reader of a ladder may want; ``format`` is versioned. ``ended`` says why it ended early, if so."""

    ladder_id: str
    ladder: str
    climb: Climb
    ended: str
    format: Literal["kvgate.ladder/1"] = "kvgate.ladder/1"


_REPORT: TypeAdapter[LadderReport] = TypeAdapter(LadderReport)


def ladder_json(report: LadderReport) -> str:
    """The JSON report."""
    return _REPORT.dump_json(report, indent=1).decode() + "\n"


def ladder_report_schema() -> dict[str, Any]:
    """The JSON Schema of the JSON report."""
    schema = _REPORT.json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def print_ladder(report: LadderReport, console: Console) -> None:
    """What was found, then every rung that was tried, and those that could not be."""
    climb = report.climb
    console.print(Text.assemble(("\n" + climb.verdict.value, _STYLE[climb.verdict]), f"  {report.ladder}"))
    for claim in climb.claims:
        console.print(f"  {claim}", markup=False, soft_wrap=True)
    if report.ended:
        console.print(f"  {report.ended}", markup=False, soft_wrap=True)
    table = Table(title="Rungs, in the order they were tried", title_justify="left")
    for name in ("rung", "verdict", "reasons", "block", "up", "gate", "run"):
        table.add_column(name, justify="right" if name in ("block", "up", "gate") else "left", overflow="fold")
    for each in climb.tried:
        reasons = " ".join(dict.fromkeys(problem.reason.value for problem in each.reasons))
        verdict = f"[{_STYLE[each.verdict]}]{each.verdict.value}[/]"
        block = str(each.block) if each.block is not None else "?"
        seconds = f"{each.up_s:.0f} s", f"{each.gate_s:.0f} s"
        table.add_row(escape(each.name), verdict, reasons, block, *seconds, escape(each.run_id or "-"))
    console.print(table)
    for each in climb.tried:
        for problem in each.reasons if each.verdict is not Verdict.PASS else ():
            console.print(f"  {each.name}: {problem.reason.value}: {problem.detail}", markup=False, soft_wrap=True)
    for each in climb.tried:
        for figure in each.figures:
            told = f"{_told(figure.before)} before, {_told(figure.after)} after{figure.unit and ' ' + figure.unit}"
            why = f" ({figure.detail})" if figure.detail else ""
            console.print(f"  {each.name}: {figure.name}: {told}{why}", markup=False, soft_wrap=True)
    for invalid in climb.invalid:
        console.print(f"  {invalid.name}: INVALID_RUNG: {invalid.rule}", markup=False, soft_wrap=True)


def _told(value: float | None) -> str:
    return "absent" if value is None else f"{value:g}"
