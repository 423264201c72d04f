"""The report of a narrowing: as a document with a schema, and for a terminal."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvgate.domain.narrow_result import NarrowResult
from kvgate.domain.verdict import Verdict

_STYLE = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.INCONCLUSIVE: "yellow"}


@dataclass(frozen=True, slots=True)
class NarrowReport:
    """Everything a reader of a narrowing may want; ``format`` is versioned. ``of_run`` is the run that failed."""

    run_id: str
    of_run: str
    kvgate_version: str
    result: NarrowResult
    format: Literal["kvgate.narrow/1"] = "kvgate.narrow/1"


_REPORT: TypeAdapter[NarrowReport] = TypeAdapter(NarrowReport)


def narrow_json(report: NarrowReport) -> str:
    """The JSON report."""
    return _REPORT.dump_json(report, indent=1).decode() + "\n"


def narrow_schema() -> dict[str, Any]:
    """The JSON Schema of the JSON report."""
    schema = _REPORT.json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def print_narrow(report: NarrowReport, console: Console) -> None:
    """What failed, at which length it begins, which block is wrong, and every group that was sent for it."""
    result = report.result
    said = f"{result.kind.value} of run {report.of_run}, narrowed down in run {report.run_id}"
    console.print(f"\n{said}", markup=False, soft_wrap=True)
    if result.attribution:
        console.print(f"    speaks against the {result.attribution}", markup=False, soft_wrap=True)
    for name, found, sentence in (
        ("length", result.length.found.value, result.length.said),
        ("block", result.block.found.value, result.block.said),
    ):
        console.print(Text.assemble((f"{name}  {found}", "bold"), f"  {sentence}"), soft_wrap=True)
    table = Table(title="Groups that were sent", title_justify="left")
    for column in ("group", "tokens", "granules", "what was tried", "showed", "why"):
        table.add_column(column, justify="right" if column in ("tokens", "granules") else "left", overflow="fold")
    for step in result.steps:
        tried = "this much loaded" if step.by_load else "this length"
        mark = "replaced" if step.replaced else f"[{_STYLE[step.shown]}]{_SHOWED[step.shown]}[/]"
        table.add_row(escape(step.group), str(step.length), str(step.granules), tried, mark, escape(step.why))
    console.print(table)


_SHOWED = {Verdict.PASS: "right", Verdict.FAIL: "the failure", Verdict.INCONCLUSIVE: "neither"}
