"""How much KV engines hold: as a document with a schema, and for a terminal."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvgate.domain.preflight.capacity import EngineCapacity, TierCost


@dataclass(frozen=True, slots=True)
class LogCapacity:
    """What one log tells: each data-parallel engine in it, and what prompts of some lengths take."""

    file: str
    engines: tuple[EngineCapacity, ...]
    costs: tuple[TierCost, ...]
    unlike: str | None


@dataclass(frozen=True, slots=True)
class CapacityReport:
    """Everything that logs tell of capacity; ``format`` is versioned."""

    logs: tuple[LogCapacity, ...]
    format: Literal["kvgate.capacity/1"] = "kvgate.capacity/1"


_REPORT: TypeAdapter[CapacityReport] = TypeAdapter(CapacityReport)
MEANING = (
    "A figure of tokens is room in the local cache, not in the pool, and no promise of speed: it is what the engine "
    "reckoned at its start, before any request. That a request of the longest length would take so many GiB is a "
    "reservation, not use."
)
COLUMNS = ("engine", "version", "GiB by rank", "tokens", "longest", "of these at once", "bytes a token", "granule")


def capacity_json(report: CapacityReport) -> str:
    """The JSON report."""
    return _REPORT.dump_json(report, indent=1).decode() + "\n"


def capacity_schema() -> dict[str, Any]:
    """The JSON Schema of the JSON report."""
    schema = _REPORT.json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def print_capacity(report: CapacityReport, console: Console) -> None:
    """Each engine of each log, what prompts take, and what the figures do not mean."""
    for log in report.logs:
        table = Table(title=escape(log.file), title_justify="left")
        for name in COLUMNS:
            table.add_column(name, justify="left" if name in ("engine", "version") else "right", overflow="fold")
        for each in log.engines:
            memory = sorted({f"{gib:.2f}" for _, gib in each.memory})
            shown = " to ".join(dict.fromkeys((memory[0], memory[-1]))) if memory else "?"
            table.add_row(
                str(each.engine),
                escape(each.version or "?"),
                f"{shown} ({len(each.memory)})" if memory else "?",
                _told(each.tokens),
                _told(each.longest),
                "?" if each.concurrency is None else f"{each.concurrency:g}",
                "?" if each.per_token is None else f"{each.per_token:,.0f}",
                _told(each.granule),
            )
        console.print(table)
        costs = Table(title="What prompts take of one engine", title_justify="left")
        for name in ("engine", "prompt tokens", "GiB of a rank", "held at once", "prefill steps"):
            costs.add_column(name, justify="right")
        for cost in log.costs:
            gib = "?" if cost.gib is None else f"{cost.gib:.3f}"
            steps = "?" if cost.steps is None else str(cost.steps)
            costs.add_row(str(cost.engine), f"{cost.tier:,}", gib, f"{cost.at_once:.1f}", steps)
        if log.costs:
            console.print(costs)
        for each in log.engines:
            for note in each.notes:
                console.print(f"engine {each.engine}: {note}", markup=False, soft_wrap=True)
        if log.unlike is not None:
            console.print(log.unlike, markup=False, soft_wrap=True)
    console.print(MEANING, markup=False, soft_wrap=True)


def _told(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"
