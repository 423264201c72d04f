"""What the groups of a run show together although each of them alone may be chance."""

from collections.abc import Iterable

from kvgate.domain.chance import Beside, odd_loads_p_value
from kvgate.domain.group_view import GroupView, proven_comparison
from kvgate.domain.noise import COLD_REPEAT, LOCAL_REPEAT
from kvgate.domain.pairing import alike_but_for_the_bytes, recall_lost_and_won
from kvgate.domain.plan import PairKind, Plan
from kvgate.domain.power import excess_p_value, sign_p_value
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.ruling import PairVerdict, RunTest

# Cold answers that alone are far off: this many, and most, are no chance.
ODD_GROUPS = 2
# Tests that a whole run is put to, each at its share of the policy's alpha: differing cold pairs, odd loads, drift,
# codewords.
LOOKS = 4
ODD_LOADS = "loads are odd"
# How many times as far as repeats of local hits, in the median, loads have to drift to be worth a FAIL.
EFFECT = 2.0
# Reasons that count as a difference left standing when groups are pooled against controls.
_DIFFERENT = (Reason.NEAR_TIE, Reason.UNSTABLE, Reason.TOKENS_DIFFER)


def run_tests(plan: Plan, groups: list[tuple[PairVerdict, ...]], views: tuple[GroupView, ...]) -> tuple[RunTest, ...]:
    """The tests that a whole run is put to, each at its share of the policy's alpha.

    A run that may go on while it is undecided is looked at more than once, so each look has its share, too: whatever
    the tests have to do with each other, and whenever it stops, a healthy run fails by any of them with at most alpha.
    """
    cold = _pairs(groups, PairKind.EXTERNAL_VS_COLD)
    local = _pairs(groups, PairKind.LOCAL_VS_COLD)
    matched = [pair for pair in _pairs(groups, PairKind.EXTERNAL_VS_LOCAL) if pair.shape_matched]
    level = plan.policy.alpha / LOOKS / plan.looks
    return (
        _more_differ(level, PairKind.EXTERNAL_VS_COLD, [*map(_differs, cold)], [*map(_differs, local)]),
        _odd_loads(plan, level, views),
        _drift_further(plan, level, matched),
        _lost_codewords(level, views),
    )


def beyond_chance(tests: Iterable[RunTest], groups: list[tuple[PairVerdict, ...]], failed: bool) -> Problem | None:
    """What the groups show together beyond the pairs beside them; None if that may be chance.

    ``failed`` is whether one of them fails by itself: what is odd in it need not be told again.
    """
    odd = [pair.odd_baseline for pair in _pairs(groups, PairKind.EXTERNAL_VS_COLD)]
    if odd.count(True) >= ODD_GROUPS and 2 * odd.count(True) > len(odd):
        detail = f"{odd.count(True)} of {len(odd)} cold answers are far off their own repeats, with which hits agree"
        return Problem(Reason.EXCESS_DIVERGENCE, detail)
    found = next((each for each in tests if each.rejects and not (failed and each.name == ODD_LOADS)), None)
    return Problem(Reason.EXCESS_DIVERGENCE, f"{found.seen} (p = {found.p_value:.2g})") if found is not None else None


def _pairs(groups: list[tuple[PairVerdict, ...]], kind: PairKind) -> list[PairVerdict]:
    return [pair for pairs in groups if (pair := _of_kind(pairs, kind))]


def _more_differ(level: float, kind: PairKind, subjects: list[bool], controls: list[bool]) -> RunTest:
    """More differing cold pairs than local-vs-cold pairs explain (Fisher's exact test)."""
    p_value = excess_p_value(sum(subjects), len(subjects), sum(controls), len(controls))
    seen = (
        f"{sum(subjects)} of {len(subjects)} {kind.value} pairs differ, {sum(controls)} of {len(controls)} controls do"
    )
    return RunTest(f"more {kind.value} pairs differ", seen, p_value, level, p_value < level)


def _odd_loads(plan: Plan, level: float, views: tuple[GroupView, ...]) -> RunTest:
    """More loads that are not bit-equal to the local hit they are held against than repeats of that hit that are not.

    A load of the right bytes is one more repeat of that hit, be it ever so noisy.
    """
    found = [each for view in views if (each := _beside(view, plan.policy.envelope_cap_nat)) is not None]
    # A state that changes for a while leaves neighbours alike: the repeat that comes after the loads shows it.
    noisy = any(each.kind == COLD_REPEAT and not each.comparison.exact for view in views for each in view.controls)
    p_value = odd_loads_p_value(found, noisy)
    odd, made = sum(sum(each.loads) for each in found), sum(len(each.loads) for each in found)
    repeats = f"{sum(each.repeat for each in found)} of {len(found)} repeats are not"
    seen = f"{odd} of {made} loads are not as the local hit is, {repeats}"
    # What a lossy store was declared to lose it loses every time.
    worth = plan.policy.lossy_bound_nat is None
    return RunTest(ODD_LOADS, seen, p_value, level, p_value < level and worth, worth)


def _beside(view: GroupView, cap: float) -> Beside | None:
    """The first two loads of a group that differ from its local hit in nothing but their bytes' origin, and the hit's
    repeat; None where there is no such repeat.

    Answers that are further off than ``cap`` (nats), or cannot be compared, are the rows' business.
    """
    repeat = next((each for each in view.controls if each.kind == LOCAL_REPEAT), None)
    if repeat is None:
        return None
    baseline = view.standings.get(Arm.LOCAL)
    loads = (view.standings.get(arm) for arm in (Arm.EXTERNAL, Arm.EXTERNAL_REPEAT))
    compared = (proven_comparison(baseline, each) for each in loads if alike_but_for_the_bytes(baseline, each))
    small = (each for each in compared if each is not None and each.drift is not None and each.within(cap))
    return Beside(tuple(not each.exact for each in small), not repeat.comparison.exact)


def _drift_further(plan: Plan, level: float, matched: list[PairVerdict]) -> RunTest:
    """Loads that drift further than the same group's repeat of a local hit, group after group (exact sign test).

    A load of the right bytes is nothing but one more repeat, so either may be the further one. The effect has to be
    worth it, too.
    """
    pairs = [
        (pair.max_drift, pair.control_drift)
        for pair in matched
        if pair.max_drift is not None and pair.control_drift is not None
    ]
    pairs = [(subject, control) for subject, control in pairs if subject != control]
    further = sum(subject > control for subject, control in pairs)
    p_value = sign_p_value(further, len(pairs) - further)
    subject, control = (sorted(side)[len(pairs) // 2] for side in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    seen = (
        f"external hits drift further than repeats of local ones in {further} of {len(matched)} groups, in the median "
        f"{subject:.2g} against {control:.2g} nat"
    )
    # What a lossy store was declared to lose it loses every time.
    worth = subject >= EFFECT * control and plan.policy.lossy_bound_nat is None
    return RunTest("loads drift further", seen, p_value, level, p_value < level and worth, worth)


def _lost_codewords(level: float, views: tuple[GroupView, ...]) -> RunTest:
    """External answers that lose codewords cold ones hold, more often than the other way round (exact sign test).

    Benign flips lose and win alike; each flip alone may be a near tie.
    """
    lost, won = recall_lost_and_won(views)
    p_value = sign_p_value(lost, won)
    seen = f"{lost} groups lost the codeword on the external path, {won} won it"
    return RunTest("codewords are lost", seen, p_value, level, p_value < level)


def _of_kind(pairs: tuple[PairVerdict, ...], kind: PairKind) -> PairVerdict | None:
    """The group's own pair of a kind (not its repeat's, not a stray's) if both sides were answered."""
    return next(
        (
            pair
            for pair in pairs
            if pair.kind is kind
            and pair.subject is not Arm.EXTERNAL_REPEAT
            and not pair.stray
            and pair.ids_equal is not None
        ),
        None,
    )


def _differs(pair: PairVerdict) -> bool:
    problems = [*pair.annotations, *([pair.problem] if pair.problem else [])]
    return any(problem.reason in _DIFFERENT for problem in problems)
