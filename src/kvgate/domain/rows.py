"""The decision table of one pair (design §3.6): rows in order, the first that matches decides, PASS is last."""

from collections.abc import Callable
from dataclasses import dataclass

from kvgate.domain.divergence import Comparison, Divergence, DivergenceClass
from kvgate.domain.observation import Observation, Outcome
from kvgate.domain.pair_view import PairView
from kvgate.domain.plan import PairKind
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.standing import Standing
from kvgate.domain.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Decision:
    """What a row says: a verdict with its reason, which only annotates a PASS, or, after which rows go on, None."""

    verdict: Verdict | None
    problem: Problem


Row = Callable[[PairView], Decision | None]


def _fail(reason: Reason, detail: str) -> Decision:
    return Decision(Verdict.FAIL, Problem(reason, detail))


def _inconclusive(problem: Problem) -> Decision:
    return Decision(Verdict.INCONCLUSIVE, problem)


def _ok(standing: Standing | None) -> Observation | None:
    observation = standing.observation if standing is not None else None
    return observation if observation is not None and observation.ok else None


def leak(view: PairView) -> Decision | None:
    """Row 1: another probe's nonce in the output."""
    return _fail(Reason.LEAK, "; ".join(view.leaks)) if view.leaks else None


def missing(view: PairView) -> Decision | None:
    """Row 2: a side is lost, or was never sent (then for the reason that ended the group)."""
    for side, arm in ((view.baseline, view.plan.baseline), (view.subject, view.plan.subject)):
        if side is None:
            unreached = Problem(Reason.OBSERVATION_MISSING, f"the {arm.value} arm was not reached")
            return _inconclusive(view.broken_off or unreached)
        if side.void is None and (side.observation is None or side.observation.outcome is Outcome.LOST):
            detail = side.observation.detail if side.observation is not None else "cut off by the end of the run"
            return _inconclusive(Problem(Reason.OBSERVATION_MISSING, f"{arm.value}: {detail}"))
    return None


def _contaminated(side: Standing) -> bool:
    """Whether a baseline arm is shown not to be what it must be; unknown is not shown."""
    return side.unproven is not None and side.unproven.reason in (Reason.NOT_COLD, Reason.BASELINE_NOT_LOCAL)


def refused(view: PairView) -> Decision | None:
    """Row 3: the subject is refused with a definite error while the baseline is OK."""
    if view.baseline is not None and view.baseline.observation is not None and not view.baseline.observation.ok:
        detail = f"{view.plan.baseline.value}: {view.baseline.observation.detail}"
        return _inconclusive(Problem(Reason.EMPTY if view.baseline.empty else Reason.PROBE_REFUSED, detail))
    subject = view.subject
    if subject is None or subject.observation is None or not subject.refusals:
        return None
    detail = f"{view.plan.subject.value}: {subject.refused_with}"
    if view.plan.kind is PairKind.OUTAGE_VS_COLD and not subject.empty:
        # Without its pool an engine may refuse; what it answers when asked again is compared like any answer.
        return None if subject.observation.ok else Decision(Verdict.PASS, Problem(Reason.CLEAN_ERROR, detail))
    if subject.refusals >= 2:
        return _fail(Reason.EMPTY if subject.empty else Reason.SUBJECT_REFUSED, detail)
    return _inconclusive(Problem(Reason.EMPTY if subject.empty else Reason.PROBE_REFUSED, detail))


def void(view: PairView) -> Decision | None:
    """Row 4: void observations and contaminated baselines neither acquit nor convict."""
    for side in view.sides:
        if side.void is not None:
            return _inconclusive(side.void)
        if side.unproven is not None and side.unproven.reason is Reason.PROMPT_CHANGED:
            # An answer to another prompt shows nothing about this one.
            return _inconclusive(side.unproven)
    baseline, subject = view.baseline, view.subject
    short = view.plan.kind is PairKind.COLD_VS_COLD_REPEAT
    if baseline is not None and baseline.unproven is not None and _contaminated(baseline):
        return _inconclusive(Problem(Reason.FLOOR_WRONG, baseline.unproven.detail) if short else baseline.unproven)
    if baseline is not None and subject is not None and _at_one_place(baseline, subject):
        one, other = baseline.evidence.rank, subject.evidence.rank
        if one is not None and other is not None and one != other:
            return _inconclusive(Problem(Reason.RANK_CHANGED, f"baseline on rank {one}, subject on rank {other}"))
    return None


def isolation(view: PairView) -> Decision | None:
    """Row 10, looked at before any answer: tokens of another key space came in."""
    side = view.subject
    if view.plan.kind is not PairKind.ISOLATION_VS_COLD or side is None:
        return None
    # A hit of its own first attempt, or of its retry, and counters that contradict each other breach nothing.
    shown = side.unproven is not None and side.unproven.reason is Reason.SALT_IGNORED
    if not shown or side.weak or (side.observation is not None and "retried" in side.observation.marks):
        return None
    return _fail(Reason.ISOLATION, _let_in(side))


def _let_in(side: Standing) -> str:
    local, external = side.evidence.local or 0, side.evidence.external or 0
    return f"a prompt under a salt of its own got {external} tokens from outside and {local} from the local cache"


def _at_one_place(one: Standing, other: Standing) -> bool:
    """Whether both were sent to the same engine, so that another rank is a change nobody asked for."""
    return (one.endpoint, one.pinned) == (other.endpoint, other.pinned)


_PROTOCOL = {
    DivergenceClass.EMPTY: Reason.EMPTY,
    DivergenceClass.TRUNCATED: Reason.TRUNCATED,
    DivergenceClass.FIRST_TOKEN: Reason.FIRST_TOKEN,
    DivergenceClass.DEGENERATE: Reason.DEGENERATE,
}


def protocol(view: PairView) -> Decision | None:
    """Row 5: IDs that do not add up, and faults that are never labelled KV corruption."""
    if view.comparison is None:
        return None
    baseline, subject = view.answers
    if subject.token_ids == () and baseline.token_ids == ():
        return _inconclusive(Problem(Reason.EMPTY, "no arm has tokens, so there is no answer to compare with"))
    if subject.token_ids == ():
        again = any((_ok(repeat) or subject).token_ids == () for repeat in view.repeats)
        detail = "the answer has no tokens" + (", again when repeated" if again else "")
        return _fail(Reason.EMPTY, detail) if again else _inconclusive(Problem(Reason.EMPTY, detail))
    for side, arm in ((baseline, view.plan.baseline), (subject, view.plan.subject)):
        problem = side.id_problem()
        if problem is not None and side.token_ids is not None:
            return _inconclusive(Problem(Reason.IDS_INCOMPLETE, f"{arm.value}: {problem}"))
    divergence = view.comparison.divergence
    if divergence is None or divergence.kind not in _PROTOCOL:
        return None
    if not view.exact and divergence.is_near_tie(view.envelope.nat):
        # A benign flip can set a model repeating itself; rows 8 and 9 judge the flip.
        return None
    again = any(
        each.divergence is not None and each.divergence.kind is divergence.kind for each in view.repeat_comparisons
    )
    detail = f"{_where(divergence)}, {'again' if again else 'not'} when repeated"
    reason = _PROTOCOL[divergence.kind]
    if view.strict and not again:
        return _fail(Reason.TOKENS_DIFFER, detail)
    return _fail(reason, detail) if again else _inconclusive(Problem(reason, detail))


def exact_ids(view: PairView) -> Decision | None:
    """Row 6: an exact pair, IDs differ: the baseline repeats itself exactly, so the subject is at fault."""
    result = view.comparison
    if result is None or not view.exact or result.ids_equal:
        return None
    bound = view.policy.lossy_bound_nat
    if bound is not None and view.plan.kind.loads and result.within(bound):
        return Decision(None, Problem(Reason.DECLARED_LOSS, f"{_told(result)}; declared bound {bound:g} nat"))
    same = [each for each in view.repeat_comparisons if _same_divergence(each.divergence, result.divergence)]
    if _may_be_chance(view, result):
        return _unstable_because_noisy(view, result)
    if same:
        return _fail(Reason.DIVERGED, f"{_told(result)}; the same again in {len(same)} of {len(view.repeats)} repeats")
    return _fail(Reason.DIVERGED_INTERMITTENT, f"{_told(result)}; not the same in {len(view.repeats)} repeats")


def _same_divergence(one: Divergence | None, other: Divergence | None) -> bool:
    if one is None or other is None:
        return False
    return (one.index, one.kind, one.subject_token) == (other.index, other.kind, other.subject_token)


def exact_drift(view: PairView) -> Decision | None:
    """Row 7: an exact pair, equal IDs, and a drift above 0.0: the KV bytes differ."""
    result = view.comparison
    if result is None or not view.exact or not result.ids_equal:
        return None
    drift = result.max_drift
    if drift is None or drift == 0.0:
        return None
    bound = view.policy.lossy_bound_nat
    again = sum(1 for each in view.repeat_comparisons if each.max_drift)
    detail = f"token IDs equal, {_told(result)}; again in {again} of {len(view.repeats)} repeats"
    if bound is not None and drift <= bound and view.plan.kind.loads:
        return Decision(None, Problem(Reason.DECLARED_LOSS, f"{detail}; declared bound {bound:g} nat"))
    if _may_be_chance(view, result):
        return _unstable_because_noisy(view, result)
    return _fail(Reason.DRIFT, detail)


def _may_be_chance(view: PairView, result: Comparison) -> bool:
    """Whether a healthy engine may show that now and then (``chance``)."""
    if result.within(view.policy.envelope_cap_nat):
        return not view.shown
    return view.noisy and (view.too_few or not view.same_again)


def _unstable_because_noisy(view: PairView, result: Comparison) -> Decision:
    """A difference on an engine whose other controls differ, too, may be its noise; two equal ones are not."""
    if view.strict and not result.ids_equal:
        return _fail(Reason.TOKENS_DIFFER, _told(result))
    again = sum(not each.exact for each in view.repeat_comparisons)
    why = f"{1 + again} of {1 + len(view.repeats)} answers differ, which a healthy engine may show now and then"
    if view.too_few and view.same_again:
        why = "again when repeated, but among other requests, and too few repeats show that those change nothing"
    elif view.noisy:
        why = f"{1 + again} of {1 + len(view.repeats)} answers differ, and other groups' controls are not exact either"
    return _inconclusive(Problem(Reason.UNSTABLE, f"{_told(result)}; {why}"))


def tolerant_beyond(view: PairView) -> Decision | None:
    """Row 8: no exact floor, and a difference beyond the envelope, or codewords lost where there are no logprobs."""
    result = view.comparison
    if result is None or view.exact:
        return None
    beyond = view.beyond(result)
    if not result.ids_equal and result.drift is None:
        # Without logprobs nothing tells a near tie from a wrong answer; but words that only the subject loses, and
        # loses again, are lost with what it reused.
        if view.lost_recall and view.lost_again:
            detail = f"{view.lost_recall} codewords lost; again in {view.lost_again} of {len(view.repeats)} repeats"
            return _fail(Reason.DIVERGED, detail)
        if view.strict:
            return _fail(Reason.TOKENS_DIFFER, _told(result))
        reason = Reason.TEXT_ONLY if result.divergence is None else Reason.LOGPROBS_UNUSABLE
        return _inconclusive(Problem(reason, f"the answers differ; {result.drift_problem}"))
    if beyond and view.plan.kind is PairKind.GATEWAY_VS_TWO_LEG and not _repeats(view):
        detail = f"{_told(result)}; but two legs sent straight do not give the same answer twice either"
        return _inconclusive(Problem(Reason.UNSTABLE, detail))
    if is_odd(view):
        detail = (
            f"{_told(result)}; but the baseline's own repeat differs from it as far, and the subject agrees with that"
        )
        return _inconclusive(Problem(Reason.UNSTABLE, detail))
    if not beyond:
        return None
    if not _louder(view):
        detail = f"{_told(result)}; by the engine's own repeats {view.envelope.undecided:.3g} nat may be chance"
        if view.strict and not result.ids_equal:
            return _fail(Reason.TOKENS_DIFFER, detail)
        return _inconclusive(Problem(Reason.UNSTABLE, detail))
    detail = f"{_told(result)}; tolerance {view.envelope.nat:g} nat from {view.envelope.informed_by} other groups"
    again = sum(1 for each in view.repeat_comparisons if view.beyond(each))
    if again:
        return _fail(Reason.DIVERGED, f"{detail}; again in {again} of {len(view.repeats)} repeats")
    if view.strict and not result.ids_equal:
        return _fail(Reason.TOKENS_DIFFER, detail)
    return _inconclusive(Problem(Reason.UNSTABLE, f"{detail}; not again in {len(view.repeats)} repeats"))


def _louder(view: PairView) -> bool:
    """Whether the subject is further off than the noise of repeats explains, be it once."""
    bound, seen = view.envelope.undecided, filter(None, (view.comparison, *view.repeat_comparisons))
    return bound < float("inf") and any(not each.within(bound) for each in seen)


def _repeats(view: PairView) -> bool:
    """Whether the baseline agrees with its own repeat within the envelope."""
    return view.control is not None and not view.beyond(view.control)


def is_odd(view: PairView) -> bool:
    """Whether the baseline, beyond the envelope, differs from subject and repeat while these two agree."""
    if view.comparison is None or view.control is None or view.against_repeat is None:
        return False
    return view.beyond(view.comparison) and view.beyond(view.control) and not view.beyond(view.against_repeat)


def tolerant_within(view: PairView) -> Decision | None:
    """Row 9: as row 8, inside the envelope: an annotation, or FAIL under strict if IDs differ."""
    result = view.comparison
    if result is None or view.exact:
        return None
    if not result.ids_equal:
        detail = f"{_told(result)}; tolerance {view.envelope.nat:g} nat"
        if view.strict:
            return _fail(Reason.TOKENS_DIFFER, detail)
        return Decision(None, Problem(Reason.NEAR_TIE, detail))
    if result.max_drift:
        detail = f"token IDs equal, {_told(result)}; tolerance {view.envelope.nat:g} nat"
        return Decision(None, Problem(Reason.NOISE, detail))
    return None


def unproven(view: PairView) -> Decision | None:
    """Row 10: the path is not exercised, or the evidence or the answers are not good enough for a PASS."""
    for side in view.sides[::-1]:
        if side.unproven is not None:
            short = view.plan.kind is PairKind.COLD_VS_COLD_REPEAT and side.unproven.reason is Reason.NOT_COLD
            return _inconclusive(Problem(Reason.FLOOR_WRONG, side.unproven.detail) if short else side.unproven)
        if side.weak:
            return _inconclusive(side.weak[0])
    if view.control_problem is not None:
        return _inconclusive(view.control_problem)
    return _answer_too_weak(view)


def _answer_too_weak(view: PairView) -> Decision | None:
    result = view.comparison
    if result is None:
        return _inconclusive(Problem(Reason.OBSERVATION_MISSING, "nothing to compare"))
    baseline, subject = view.answers
    if baseline.token_ids is None or subject.token_ids is None:
        counts = [side.usage.completion_tokens for side in (baseline, subject) if side.usage is not None]
        if not baseline.text or not subject.text or 0 in counts:
            return _inconclusive(Problem(Reason.EMPTY, "an answer has no text"))
        if view.policy.accept_text_only:
            return None
        return _inconclusive(Problem(Reason.TEXT_ONLY, "the endpoint gives no token IDs"))
    shortest = min(len(baseline.token_ids), len(subject.token_ids))
    if shortest < view.policy.min_output_tokens:
        return _inconclusive(Problem(Reason.TOO_SHORT, f"{shortest} tokens"))
    if result.drift is None and not view.policy.accept_ids_only:
        return _inconclusive(Problem(Reason.LOGPROBS_UNUSABLE, result.drift_problem or "no logprobs"))
    return None


ROWS: tuple[tuple[int, Row], ...] = (
    (1, leak),
    (2, missing),
    (3, refused),
    (4, void),
    (10, isolation),
    (5, protocol),
    (6, exact_ids),
    (7, exact_drift),
    (8, tolerant_beyond),
    (9, tolerant_within),
    (10, unproven),
)
PASS_ROW = 11


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the table made of a pair: the deciding row, its verdict and reason, and the annotations on the way."""

    row: int
    verdict: Verdict
    problem: Problem | None
    annotations: tuple[Problem, ...]


def decide(view: PairView) -> Ruling:
    """Walk the table."""
    annotations = [
        Problem(Reason.RETRIED, f"{side.arm.value}: {side.attempts} attempts")
        for side in (view.baseline, view.subject)
        if side is not None and side.attempts > 1 and side.proven
    ]
    for number, row in ROWS:
        decision = row(view)
        if decision is None:
            continue
        if decision.verdict in (None, Verdict.PASS):
            annotations.append(decision.problem)
        if decision.verdict is not None:
            problem = decision.problem if decision.verdict is not Verdict.PASS else None
            return Ruling(number, decision.verdict, problem, tuple(annotations))
    return Ruling(PASS_ROW, Verdict.PASS, None, tuple(annotations))


def _where(divergence: Divergence) -> str:
    shift = f"({divergence.shift:+d})" if divergence.shift else ""
    return f"{divergence.kind.value}{shift} at output token {divergence.index}"


def _told(result: Comparison) -> str:
    drift = "drift unknown" if result.drift is None else f"drift {result.drift.maximum:.3g} nat"
    return drift if result.divergence is None else f"{_where(result.divergence)}, {drift}"
