"""The report of two runs side by side: as a document with a schema, and for a terminal."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvgate.domain.comparing import Change, ComparedPath, RunComparison, Side
from kvgate.domain.ruling import Spread
from kvgate.domain.verdict import Verdict

_STYLE = {Change.REGRESSED: "bold red", Change.UNPROVEN: "bold yellow", Change.IMPROVED: "green", Change.SAME: ""}
_WORDS = {
    Verdict.PASS: ("NO REGRESSION", "bold green"),
    Verdict.FAIL: ("REGRESSION", "bold red"),
    Verdict.INCONCLUSIVE: ("NOT COMPARABLE", "bold yellow"),
}


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the runs. ``versions`` are (component, version or None, why unknown) triples."""

    run_id: str
    kvgate_version: str
    started_at: str
    deployment: str
    versions: tuple[tuple[str, str | None, str], ...]


@dataclass(frozen=True, slots=True)
class CompareReport:
    """Everything a reader of a comparison may want; ``format`` is versioned. ``verdict`` is PASS where nothing
    regressed, FAIL where something did, INCONCLUSIVE where that cannot be told."""

    before: ComparedRun
    after: ComparedRun
    verdict: Verdict
    comparison: RunComparison
    notes: tuple[str, ...]
    format: Literal["kvgate.compare/1"] = "kvgate.compare/1"


_REPORT: TypeAdapter[CompareReport] = TypeAdapter(CompareReport)


def compare_json(report: CompareReport) -> str:
    """The JSON report."""
    return _REPORT.dump_json(report, indent=1).decode() + "\n"


def compare_schema() -> dict[str, Any]:
    """The JSON Schema of the JSON report."""
    schema = _REPORT.json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def print_compare(report: CompareReport, console: Console) -> None:
    """Whether anything regressed, every comparison of both runs, their times, and what could not be compared."""
    word, style = _WORDS[report.verdict]
    compared = report.comparison
    one, other = (verdict.value for verdict in compared.verdicts)
    told = f"  {report.before.run_id} ({one}) and {report.after.run_id} ({other})"
    console.print(Text.assemble((f"\n{word}", style), told), soft_wrap=True)
    for note in (*compared.differences, *report.notes):
        console.print(f"    {note}", markup=False, soft_wrap=True)
    if compared.pairs:
        console.print(_pairs(compared))
    if compared.paths:
        console.print(_paths(compared.paths))
    for each in compared.not_compared:
        console.print(f"not compared: {each.what}: {each.why}", markup=False, soft_wrap=True)


def _pairs(compared: RunComparison) -> Table:
    table = Table(title="What was compared in both", title_justify="left")
    for name in ("tier", "pair", "before", "after", "", "drift nat", "", "note"):
        table.add_column(name, justify="right" if name == "tier" else "left", overflow="fold")
    for pair in compared.pairs:
        style = _STYLE[pair.change]
        change = f"[{style}]{pair.change.value}[/]" if style else pair.change.value
        name = f"{pair.subject.value}, {pair.kind.value}"
        table.add_row(
            str(pair.tier),
            name,
            _verdict(pair.before),
            _verdict(pair.after),
            change,
            f"{_nat(pair.before)} to {_nat(pair.after)}",
            pair.drift.value,
            escape(pair.why),
        )
    return table


def _verdict(side: Side) -> str:
    return " ".join((side.verdict.value, *(side.reasons if side.verdict is not Verdict.PASS else ())))


def _nat(side: Side) -> str:
    return "?" if side.max_drift is None else f"{side.max_drift:.3g}"


def _paths(paths: tuple[ComparedPath, ...]) -> Table:
    table = Table(title="Times (medians, 90th percentile in brackets; no verdict)", title_justify="left")
    for name in ("tier", "path", "requests", "first token", "between two tokens", "whole answer", "times as long"):
        table.add_column(name, justify="right" if name == "tier" else "left", overflow="fold")
    for each in paths:
        one, other = each.before, each.after
        ratios = (each.first_token_ratio, each.between_tokens_ratio, each.total_ratio)
        table.add_row(
            str(each.tier),
            each.path.value,
            f"{one.probes} and {other.probes}",
            f"{_seconds(one.first_token)} to {_seconds(other.first_token)}",
            f"{_seconds(one.between_tokens)} to {_seconds(other.between_tokens)}",
            f"{_seconds(one.total)} to {_seconds(other.total)}",
            " / ".join("?" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        )
    return table


def _seconds(spread: Spread | None) -> str:
    return "?" if spread is None else f"{spread.p50:.3g} s ({spread.p90:.3g})"
