"""The report as a document: what the JSON report holds and every other rendering is made from."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from kvgate.domain.deployment import AnswerGrade, Capabilities, Deployment
from kvgate.domain.geometry import Geometry
from kvgate.domain.plan import Forcing, Plan
from kvgate.domain.reasons import REASONS, Reason
from kvgate.domain.ruling import RunVerdict


@dataclass(frozen=True, slots=True)
class Explanation:
    """A reason's code with its meaning and advice."""

    reason: Reason
    meaning: str
    advice: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a reader of the report may want; ``format`` is versioned."""

    run_id: str
    kvgate_version: str
    started_at: str
    deployment: Deployment
    geometry: Geometry
    capabilities: tuple[Capabilities, ...]
    answer_grade: AnswerGrade
    forcing: Forcing
    salts_honoured: bool
    ruling: RunVerdict
    explanations: tuple[Explanation, ...]
    format: Literal["kvgate.report/1"] = "kvgate.report/1"


_REPORT: TypeAdapter[Report] = TypeAdapter(Report)


def make_report(run_id: str, version: str, started_at: str, plan: Plan, ruling: RunVerdict) -> Report:
    """The document of one run."""
    named = dict.fromkeys(problem.reason for result in ruling.results for problem in result.reasons)
    for group in ruling.groups:
        named |= dict.fromkeys(each.reason for pair in group.pairs for each in pair.annotations)
    grades = [each.answer_grade for each in plan.capabilities] or [AnswerGrade.C]
    return Report(
        run_id=run_id,
        kvgate_version=version,
        started_at=started_at,
        deployment=plan.deployment,
        geometry=plan.geometry,
        capabilities=plan.capabilities,
        answer_grade=max(grades, key=lambda grade: grade.value),
        forcing=plan.forcing,
        salts_honoured=plan.salts_honoured,
        ruling=ruling,
        explanations=tuple(Explanation(reason, REASONS[reason].meaning, REASONS[reason].advice) for reason in named),
    )


def report_json(report: Report) -> str:
    """The JSON report."""
    return _REPORT.dump_json(report, indent=1).decode() + "\n"


def report_schema() -> dict[str, Any]:
    """The JSON Schema of the JSON report."""
    schema = _REPORT.json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
