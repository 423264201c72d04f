"""``kvgate plan`` and ``kvgate doctor``: what would be done, and what this deployment can prove."""

import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.markup import escape
from rich.table import Table

from kvgate.cli.event_loop import run_async
from kvgate.cli.exit_codes import ExitCode
from kvgate.cli.exploring import Explored, draw_seed, explore, plan_for
from kvgate.cli.output import ListFormat, out
from kvgate.cli.wiring import connect
from kvgate.config.load import load_config
from kvgate.domain.deployment import AnswerGrade, Capabilities
from kvgate.domain.plan import GroupPlan, Plan, Purpose, computed_tokens
from kvgate.domain.policy import Grade
from kvgate.domain.power import excluded_fault_rate
from kvgate.domain.reasons import Problem, Reason

_PLAN: TypeAdapter[Plan] = TypeAdapter(Plan)


def show_plan(path: Path, form: ListFormat) -> ExitCode:
    """Print the plan. Asks the server for what it says of itself and for token IDs; sends no completion."""
    plan, _ = run_async(_plan, path, False)
    if form is ListFormat.JSON:
        sys.stdout.write(_PLAN.dump_json(plan, indent=1).decode() + "\n")
        return ExitCode.PASS
    console = out()
    head = f"{plan.deployment.name}: {len(plan.groups)} groups, forcing {plan.forcing.value}, not sent yet"
    console.print(head, markup=False)
    table = Table("group", "tokens", "aligned", "expected hit", "arms", "computes", title_justify="left")
    for group in plan.groups:
        table.add_row(*map(escape, _row(group)))
    console.print(table)
    for tier in plan.not_applicable:
        console.print(f"NOT_APPLICABLE tier {tier.tier}: {tier.detail}")
    for note in plan.notes:
        console.print(f"Note: {note}", markup=False)
    console.print(f"Cost: {plan.computed_tokens()} prompt tokens computed, {plan.sent_tokens()} sent")
    for tier_length in plan.tiers():
        count = sum(1 for group in plan.groups if (group.tier, group.purpose) == (tier_length, Purpose.TIER))
        rate = excluded_fault_rate(count)
        console.print(f"A PASS of tier {tier_length} excludes random faults in more than {rate:.0%} of requests")
    return ExitCode.PASS


def show_doctor(path: Path, form: ListFormat) -> ExitCode:
    """Ask the deployment, print what it can prove, and say what is missing."""
    plan, explored = run_async(_plan, path, True)
    lacking = _lacking(plan)
    if form is ListFormat.JSON:
        sys.stdout.write(_DOCTOR.dump_json(_findings(plan, explored, lacking), indent=1).decode() + "\n")
    else:
        _print_doctor(plan, explored, lacking)
    return ExitCode.INCONCLUSIVE if lacking else ExitCode.PASS


_DOCTOR: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


async def _plan(path: Path, active: bool) -> tuple[Plan, Explored]:
    config = load_config(path)
    async with connect(config, "plan") as connection:
        explored = await explore(connection, draw_seed(config), active)
        return plan_for(connection, explored, None), explored


def _row(group: GroupPlan) -> tuple[str, ...]:
    arms = " ".join(step.arm.value for step in group.steps)
    computes = sum(computed_tokens(group, step) for step in group.steps)
    aligned = "yes" if group.aligned else "no"
    return group.id, str(group.length), aligned, str(group.expected_external), arms, str(computes)


def _lacking(plan: Plan) -> list[Problem]:
    """What the configuration asks for and this deployment cannot show."""
    found = list(plan.obstacles)
    used = {step.endpoint for group in plan.groups for step in group.steps}
    for each in plan.capabilities:
        if each.endpoint in used:
            found += _lacks(each, plan)
    if not plan.tiers():
        found.append(Problem(Reason.BELOW_HIT_FLOOR, f"every tier is below {plan.geometry.hit_floor} tokens"))
    if plan.policy.evidence is Grade.ARRIVED and plan.by_source_grade is not Grade.ARRIVED:
        found.append(Problem(Reason.EVIDENCE_TOO_WEAK, "the engine's counters show scheduling, not arrival"))
    return found


def _lacks(each: Capabilities, plan: Plan) -> list[Problem]:
    found: list[Problem] = []
    if not each.counters:
        found.append(Problem(Reason.COUNTERS_UNREADABLE, f"{each.endpoint}: {'; '.join(each.details)}"))
    if each.answer_grade is AnswerGrade.C and not plan.policy.accept_text_only:
        found.append(Problem(Reason.TEXT_ONLY, f"{each.endpoint} returns no token IDs"))
    elif each.answer_grade is AnswerGrade.B and not plan.policy.accept_ids_only:
        found.append(Problem(Reason.LOGPROBS_UNUSABLE, f"{each.endpoint} returns no usable logprobs"))
    return found


def _findings(plan: Plan, explored: Explored, lacking: list[Problem]) -> dict[str, Any]:
    return {
        "format": "kvgate.doctor/1",
        "deployment": plan.deployment,
        "geometry": plan.geometry,
        "hit_floor": plan.geometry.hit_floor,
        "facts": explored.facts,
        "capabilities": plan.capabilities,
        "forcing": plan.forcing,
        "lacking": lacking,
        "notes": plan.notes,
    }


def _print_doctor(plan: Plan, explored: Explored, lacking: list[Problem]) -> None:
    console, geometry = out(), plan.geometry
    version = explored.facts.version or "unknown"
    head = f"{plan.deployment.name}: {plan.deployment.engine} {version}, model {plan.deployment.model}"
    console.print(head, markup=False)
    where = dict(geometry.sources)
    for name in ("block_size", "granule", "chunk", "max_model_len", "retention_interval", "prefill_drops"):
        console.print(f"  {name:20} {getattr(geometry, name):>8}   from {where.get(name, 'default')}", markup=False)
    console.print(f"  {'hit floor':20} {geometry.hit_floor:>8}   tokens; shorter prompts cannot be external hits")
    table = Table("endpoint", "answers", "salts", "drop cache", "counters", "by source", "cached tokens", "details")
    for each in plan.capabilities:
        flags = (each.salt, each.reset_local, each.counters, each.tokens_by_source, each.cached_tokens)
        shown = ["?" if flag is None else "yes" if flag else "no" for flag in flags]
        table.add_row(escape(each.endpoint), each.answer_grade.value, *shown, escape("; ".join(each.details)))
    console.print(table)
    console.print(f"external hits are forced by {plan.forcing.value}")
    for note in plan.notes:
        console.print(f"Note: {note}", markup=False)
    for problem in lacking:
        console.print(f"cannot prove: {problem.reason.value}: {problem.detail}", markup=False)
    console.print("this deployment can prove what the configuration asks for" if not lacking else "", end="\n")
