"""The report of a soak: as a document with a schema, and for a terminal."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvgate.domain.reasons import REASONS
from kvgate.domain.soak import Soak, SoakRound
from kvgate.domain.verdict import Verdict

_STYLE = {Verdict.PASS: "bold green", Verdict.FAIL: "bold red", Verdict.INCONCLUSIVE: "bold yellow"}
# Rounds that are shown one by one, where all passed.
SHOWN = 5


@dataclass(frozen=True, slots=True)
class SoakReport:
    """Everything a reader of a soak may want; ``format`` is versioned. ``ended`` says why it ended."""

    soak_id: str
    deployment: str
    summary: Soak
    rounds: tuple[SoakRound, ...]
    ended: str
    format: Literal["kvgate.soak/1"] = "kvgate.soak/1"


_REPORT: TypeAdapter[SoakReport] = TypeAdapter(SoakReport)


def soak_json(report: SoakReport) -> str:
    """The JSON report."""
    return _REPORT.dump_json(report, indent=1).decode() + "\n"


def soak_schema() -> dict[str, Any]:
    """The JSON Schema of the JSON report."""
    schema = _REPORT.json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def print_soak(report: SoakReport, console: Console) -> None:
    """Verdict, why, the rounds that matter, what all of them exclude, and what moved."""
    summary = report.summary
    console.print(Text.assemble(("\n" + summary.verdict.value, _STYLE[summary.verdict]), f"  {report.deployment}"))
    counts = ", ".join(f"{count} {verdict.value}" for verdict, count in summary.by_verdict)
    minutes = f"{summary.seconds / 60:.1f} minutes"
    console.print(f"{summary.rounds} rounds in {minutes}: {counts}; {report.ended}", markup=False, soft_wrap=True)
    for problem in summary.reasons:
        console.print(Text.assemble((problem.reason.value, "bold"), f"  {REASONS[problem.reason].meaning}"))
        console.print(f"    seen: {problem.detail}", markup=False, soft_wrap=True)
    console.print(_rounds(report))
    console.print("What a PASS of all these groups excludes at 95 %:")
    for each in summary.excluded:
        share = (
            f"random faults that change more than {100 * each.excluded_fault_rate:.2g}% of answers (n = {each.groups})"
        )
        told = share if each.groups else "nothing (no clean exercised group)"
        console.print(f"  tier {each.tier}, {each.arm.value}: {told}", markup=False, soft_wrap=True)
    for trend in summary.trends:
        console.print(
            f"Note: tier {trend.tier}, {trend.path.value}: the first token came after {trend.first_s:.3f} s at first, "
            f"after {trend.last_s:.3f} s at last (p = {trend.p_value:.2g})",
            markup=False,
            soft_wrap=True,
        )


def _rounds(report: SoakReport) -> Table:
    """The rounds that did not pass, and the last ones."""
    table = Table(title="Rounds that did not pass, and the last ones", title_justify="left")
    for name in ("round", "run", "verdict", "reasons", "seconds", "kept"):
        table.add_column(name, justify="right" if name in ("round", "seconds") else "left", overflow="fold")
    last = report.rounds[-SHOWN:]
    for each in report.rounds:
        if each.verdict is Verdict.PASS and each not in last:
            continue
        reasons = " ".join(dict.fromkeys(problem.reason.value for problem in each.reasons))
        cells = (escape(each.run_id), f"[{_STYLE[each.verdict]}]{each.verdict.value}[/]", reasons)
        table.add_row(str(each.number), *cells, f"{each.seconds:.1f}", "yes" if each.kept else "dropped")
    return table
