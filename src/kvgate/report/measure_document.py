"""The report of a measurement as a document: what the JSON report holds and the table is made from."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from kvgate.domain.figures import PartFigures, figures_of
from kvgate.domain.hindrances import Hindrance, hindrances_of, notes_of
from kvgate.domain.measured import MeasuredDeployment, MeasureEntry, MeasurePlan, put_in_order
from kvgate.domain.savings import Saving, savings_of
from kvgate.domain.trace import Trace

NO_VERDICT = (
    "This measures time. It is no verdict on whether reused KV gives the same answers: `kvgate run` gives that."
)


@dataclass(frozen=True, slots=True)
class MeasureReport:
    """Everything a reader of the figures may want; ``format`` is versioned.

    ``savings`` hold every deployment but the first against the first. ``hindrances`` are what could not be measured.
    """

    run_id: str
    kvgate_version: str
    started_at: str
    trace: Trace
    deployments: tuple[MeasuredDeployment, ...]
    figures: tuple[PartFigures, ...]
    savings: tuple[Saving, ...]
    hindrances: tuple[Hindrance, ...]
    notes: tuple[str, ...]
    no_verdict: str = NO_VERDICT
    format: Literal["kvgate.measure-report/1"] = "kvgate.measure-report/1"


_REPORT: TypeAdapter[MeasureReport] = TypeAdapter(MeasureReport)


def make_measure_report(
    run_id: str, version: str, started_at: str, plan: MeasurePlan, entries: Iterable[MeasureEntry]
) -> MeasureReport:
    """The document of one measurement, from its record alone."""
    record = put_in_order(entries)
    figures = figures_of(plan, record)
    return MeasureReport(
        run_id=run_id,
        kvgate_version=version,
        started_at=started_at,
        trace=plan.trace,
        deployments=plan.deployments,
        figures=figures,
        savings=savings_of(plan, record),
        hindrances=hindrances_of(plan, record, figures),
        notes=notes_of(plan, figures),
    )


def measure_json(report: MeasureReport) -> str:
    """The JSON report."""
    return _REPORT.dump_json(report, indent=1).decode() + "\n"


def measure_schema() -> dict[str, Any]:
    """The JSON Schema of the JSON report."""
    schema = _REPORT.json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
