"""From plan and history to a ruling: pure, offline, the same every time."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvgate.domain.advice import advice_for
from kvgate.domain.attribution import laid_at_one_door, laid_at_the_engine, path_named, shows_a_fault
from kvgate.domain.canaries import leaked, stands_beside, unanswered
from kvgate.domain.divergence import Comparison
from kvgate.domain.doubts import doubts
from kvgate.domain.excess import beyond_chance, run_tests
from kvgate.domain.group_view import GroupView, answer, view_group
from kvgate.domain.leaks import with_leaks
from kvgate.domain.noise import (
    COLD_LOCAL,
    COLD_REPEAT,
    DIRECT_LOCAL,
    LOCAL_REPEAT,
    TWO_LEG_REPEAT,
    NoiseFloor,
    noise_floor,
)
from kvgate.domain.notes import notes_on
from kvgate.domain.pair_view import PairView
from kvgate.domain.pairing import alike_but_for_the_bytes, build_view, proves_alignment, strays_of
from kvgate.domain.plan import ArmStep, PairPlan, Plan, Purpose, length_of
from kvgate.domain.policy import PolicyName
from kvgate.domain.power import power_of, too_weak
from kvgate.domain.pressure import unpressed
from kvgate.domain.probe import Arm, Path
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.record import RunRecord
from kvgate.domain.rows import Ruling, decide, is_odd
from kvgate.domain.ruling import (
    ArmSummary,
    GroupVerdict,
    PairVerdict,
    PolicyResult,
    RunVerdict,
)
from kvgate.domain.sentinels import changed, onset, unsteady
from kvgate.domain.signals import summaries, unreleased
from kvgate.domain.standing import Standing
from kvgate.domain.timing import timing_of
from kvgate.domain.verdict import Verdict, merge


def judge(plan: Plan, run: RunRecord) -> RunVerdict:
    """Judge a run. Works on a history that was cut off anywhere: what is missing is INCONCLUSIVE."""
    replaced = {record.replaces for record in run.groups.values() if record.replaces}
    views = with_leaks(plan, tuple(view_group(plan, record) for record in run.groups.values()), run.prompts)
    apart = tuple(view for view in views if not stands_beside(view))
    counted = tuple(view for view in apart if view.record.plan.id not in replaced)
    judged = tuple(_judge_group(plan, view, counted, view.record.plan.id in replaced) for view in apart)
    change = onset(plan, run, views)
    groups = laid_at_the_engine(plan, laid_at_one_door(plan, tuple(group for group, _ in judged)), change)
    calibrated = {group.id: pairs for group, pairs in judged}
    power = power_of(plan, groups)
    beside = _Beside(
        failing=_there(leaked(views), changed(change) if change else None),
        silent=_there(
            unanswered(plan, run, views),
            unsteady(plan, run, views),
            too_weak(plan.policy, power),
            unpressed(views),
            unreleased(run, views),
        ),
    )
    results = tuple(_result(plan, run, groups, counted, calibrated, (name, beside)) for name in PolicyName)
    chosen = next(result for result in results if result.policy is plan.policy.name)
    proven = any(proves_alignment(counted, apart_from=view) for view in counted if view.record.plan.aligned)
    return RunVerdict(
        verdict=chosen.verdict,
        reasons=chosen.reasons,
        policy=plan.policy.name,
        results=results,
        endpoint_lost=run.stopped is not None and run.stopped.reason is Reason.ENDPOINT_LOST,
        alignment_proven=proven,
        groups=groups,
        not_applicable=plan.not_applicable,
        noise=_noise(counted),
        power=power,
        timing=timing_of(plan, counted),
        computed_tokens=sum(_tokens(apart, "computed")),
        sent_tokens=sum(map(_sent, apart)),
        notes=plan.notes + notes_on(plan, views, counted, proven),
        advice=advice_for(chosen.verdict, chosen.reasons, groups),
        onset=change,
        signals=summaries(run),
        tests=run_tests(plan, [calibrated[group.id] for group in groups if not group.replaced], counted),
    )


@dataclass(frozen=True, slots=True)
class _Beside:
    """What is known beside the groups' own verdicts: what fails the run, and why it is not shown that all is well."""

    failing: tuple[Problem, ...]
    silent: tuple[Problem, ...]


def _there(*problems: Problem | None) -> tuple[Problem, ...]:
    return tuple(problem for problem in problems if problem is not None)


def _judge_group(
    plan: Plan, view: GroupView, everyone: tuple[GroupView, ...], replaced: bool
) -> tuple[GroupVerdict, tuple[PairVerdict, ...]]:
    """The group's verdict, and its pairs as the calibrated policy sees them."""
    seen = [build_view(plan, view, pair, everyone) for pair in view.record.plan.pairs]
    stray = [
        build_view(plan, view, pair, everyone, each)
        for each in strays_of(plan, view)
        for pair in view.record.plan.pairs
        if pair.subject is each.arm and pair.baseline in view.standings
    ]
    calibrated, strict = (
        (
            *(_judge_pair(view, replace(each, strict=policy), why_not) for each, why_not in seen),
            *filter(_convicts, (_judge_pair(view, replace(each, strict=policy), why, True) for each, why in stray)),
        )
        for policy in (False, True)
    )
    chosen = strict if plan.policy.name is PolicyName.STRICT else calibrated
    group = view.record.plan
    verdict = GroupVerdict(
        id=group.id,
        tier=group.tier,
        length=group.length,
        purpose=group.purpose,
        family=f"{group.family}/{group.language}",
        aligned=group.aligned,
        verdict=merge(pair.verdict for pair in calibrated if _counts(pair)),
        strict=merge(pair.verdict for pair in strict if _counts(pair)),
        reasons=_reasons(calibrated),
        strict_reasons=_reasons(strict),
        pairs=chosen,
        arms=tuple(_summary(view, step.arm, step.path) for step in group.steps if step.arm in view.standings),
        expected_external=group.expected_external,
        replaced=replaced,
    )
    return verdict, calibrated


def _named(pair: PairPlan, step: ArmStep | None, ruling: Ruling) -> str | None:
    return path_named(pair.kind, pair.subject, step.endpoint, ruling.problem) if step is not None else None


def _judge_pair(view: GroupView, seen: PairView, why_not: str | None, stray: bool = False) -> PairVerdict:
    pair = seen.plan
    ruling: Ruling = decide(seen)
    comparison = seen.comparison
    divergence = comparison.divergence if comparison is not None else None
    drift = comparison.drift if comparison is not None else None
    step = view.record.plan.step(pair.subject)
    failed = ruling.verdict is Verdict.FAIL
    return PairVerdict(
        kind=pair.kind,
        baseline=pair.baseline,
        subject=pair.subject,
        required=pair.required,
        verdict=ruling.verdict,
        row=ruling.row,
        problem=ruling.problem,
        annotations=ruling.annotations,
        exact=seen.exact,
        why_not_exact=why_not,
        ids_equal=comparison.ids_equal if comparison is not None else None,
        first_difference=divergence.index if divergence is not None else None,
        divergence=divergence.kind.value if divergence is not None else None,
        max_drift=_finite(drift.maximum) if drift is not None else None,
        drift_share=drift.share if drift is not None else None,
        first_drift=drift.first_index if drift is not None else None,
        drift_problem=_drift_problem(comparison),
        control_exact=seen.control.exact if seen.control is not None else None,
        control_drift=_finite(seen.control.max_drift) if seen.control is not None else None,
        envelope=seen.envelope.nat,
        attribution=path_named(pair.kind, pair.subject, step.endpoint, ruling.problem)
        if failed and step is not None
        else None,
        blames=pair.kind if failed else None,
        odd_baseline=is_odd(seen),
        shape_matched=alike_but_for_the_bytes(seen.baseline, seen.subject),
        stray=stray,
    )


def _finite(drift: float | None) -> float | None:
    return drift if drift is not None and math.isfinite(drift) else None


def _counts(pair: PairVerdict) -> bool:
    """A pair that is not required may convict, or show what chance may explain; that it cannot acquit is told only."""
    return pair.required or pair.verdict is Verdict.FAIL or _differs(pair)


def _differs(pair: PairVerdict) -> bool:
    """Whether the pair's answers differ, although not so that a fault is shown."""
    return pair.problem is not None and pair.problem.reason is Reason.UNSTABLE


def _convicts(pair: PairVerdict) -> bool:
    """Strays can only speak against the path: an incomplete load proves nothing by being right."""
    return shows_a_fault(pair) or _differs(pair)


def _drift_problem(comparison: Comparison | None) -> str | None:
    if comparison is None or comparison.drift is None:
        return comparison.drift_problem if comparison is not None else None
    return None if math.isfinite(comparison.drift.maximum) else "a logprob is no number on one side only"


def _reasons(pairs: Iterable[PairVerdict]) -> tuple[Problem, ...]:
    """The problems of the worst pairs first, each reason once."""
    ranked = sorted(
        (pair for pair in pairs if _counts(pair) and pair.problem is not None),
        key=lambda pair: pair.verdict is not Verdict.FAIL,
    )
    return _first_of_each(pair.problem for pair in ranked if pair.problem is not None)


def _first_of_each(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """The first problem of every reason, in order."""
    found: dict[Reason, Problem] = {}
    for problem in problems:
        found.setdefault(problem.reason, problem)
    return tuple(found.values())


def _summary(view: GroupView, arm: Arm, path: Path) -> ArmSummary:
    standing = view.standings[arm]
    observation = standing.observation
    timing = observation.timing if observation is not None else None
    ids = observation.token_ids if observation is not None else None
    return ArmSummary(
        arm=arm,
        endpoint=standing.endpoint,
        path=path,
        proven=standing.proven,
        problem=standing.void or standing.unproven or (standing.weak[0] if standing.weak else None),
        attempts=standing.attempts,
        computed=standing.evidence.computed,
        local=standing.evidence.local,
        external=standing.evidence.external,
        loaded_bytes=standing.evidence.loaded_bytes,
        grade=standing.evidence.grade,
        output_tokens=len(ids) if ids is not None else None,
        first_token_s=timing.first_token_s if timing is not None else None,
        total_s=timing.total_s if timing is not None else None,
    )


def _result(
    plan: Plan,
    run: RunRecord,
    groups: tuple[GroupVerdict, ...],
    views: tuple[GroupView, ...],
    calibrated: dict[str, tuple[PairVerdict, ...]],
    how: tuple[PolicyName, _Beside],
) -> PolicyResult:
    """The run's verdict under one policy: the worst group, and everything that forbids a PASS.

    ``how`` is the policy, and what is known beside the groups' verdicts.
    """
    name, beside = how
    strict = name is PolicyName.STRICT
    # What a group proved wrong stays proved, also where another of its arms was void and it was sent again.
    counted = [
        group for group in groups if not group.replaced or (group.strict if strict else group.verdict) is Verdict.FAIL
    ]
    verdicts = [group.strict if strict else group.verdict for group in counted]
    reasons = [
        Problem(problem.reason, f"group {group.id}: {problem.detail}")
        for group, verdict in zip(counted, verdicts, strict=True)
        if verdict is not Verdict.PASS
        for problem in (group.strict_reasons if strict else group.reasons)
    ]
    blockers = [
        *plan.obstacles,
        *_blockers(plan, run, counted, strict),
        *doubts(plan, views),
        *beside.silent,
    ]
    kept = [calibrated[group.id] for group in counted]
    excess = beyond_chance(run_tests(plan, kept, views), kept, Verdict.FAIL in verdicts)
    verdict = merge(
        [
            *verdicts,
            *([Verdict.INCONCLUSIVE] if blockers else []),
            *([Verdict.FAIL] if excess or beside.failing else []),
        ]
    )
    if not counted and not blockers:
        blockers.append(Problem(Reason.NOTHING_CHECKED, "no group was sent"))
    stopped = [problem for problem in blockers if problem is run.stopped]
    rest = [problem for problem in blockers if problem is not run.stopped]
    whole = [*beside.failing, *([excess] if excess else [])]
    failures = sorted([*whole, *reasons], key=_severity) if verdict is Verdict.FAIL else []
    others = [] if failures else sorted(reasons, key=_severity)
    every = [
        *failures,
        *stopped,
        *others,
        *rest,
    ]
    return PolicyResult(name, verdict, _first_of_each(every))


def _severity(problem: Problem) -> int:
    order = list(Reason)
    return order.index(problem.reason)


def _blockers(plan: Plan, run: RunRecord, counted: list[GroupVerdict], strict: bool) -> list[Problem]:
    found: list[Problem] = []
    failed = any((group.strict if strict else group.verdict) is Verdict.FAIL for group in counted)
    early = run.stopped is not None and run.stopped.reason is Reason.DIVERGED
    if run.stopped is not None and not (early and failed):
        found.append(run.stopped)
    elif run.stopped is None and not run.completed and not plan.obstacles:
        found.append(Problem(Reason.INTERRUPTED, "the history ends before the run was done"))
    done = {
        group.tier
        for group in counted
        if group.purpose is Purpose.TIER and (group.strict if strict else group.verdict) is not Verdict.INCONCLUSIVE
    }
    open_tiers = [tier for tier in plan.tiers() if tier not in done]
    if open_tiers and not plan.obstacles:
        found.append(Problem(Reason.TIER_NOT_COVERED, "tiers " + ", ".join(map(str, open_tiers))))
    ignored = [(group.id, arm.arm.value) for group in counted for arm in group.arms if _ignores_salt(arm)]
    if ignored:
        where, arm = ignored[0]
        found.append(Problem(Reason.SALT_IGNORED, f"group {where}: {arm} under a fresh salt was a hit"))
    if not plan.tiers() and not plan.obstacles:
        found.append(Problem(Reason.NOTHING_CHECKED, "no tier can be an external hit on this deployment"))
    return found


def _ignores_salt(arm: ArmSummary) -> bool:
    return arm.problem is not None and arm.problem.reason is Reason.SALT_IGNORED


def _noise(views: tuple[GroupView, ...]) -> tuple[NoiseFloor, ...]:
    controls = [control for view in views for control in view.controls]
    kinds = (LOCAL_REPEAT, COLD_REPEAT, TWO_LEG_REPEAT, COLD_LOCAL, DIRECT_LOCAL)
    levels = sorted({control.level for control in controls}, key=lambda level: level or 0)
    floors = (noise_floor(kind, controls, level) for level in levels for kind in kinds)
    return tuple(floor for floor in floors if floor is not None)


def _sent(view: GroupView) -> int:
    group = view.record.plan
    return sum(length_of(group, step) * len(view.record.of(step.arm)) for step in group.steps)


def _tokens(views: tuple[GroupView, ...], field: str) -> Iterable[int]:
    standings: Iterable[Standing] = (each for view in views for each in view.standings.values())
    return (getattr(each.evidence, field) or 0 for each in standings if answer(each) is not None)
