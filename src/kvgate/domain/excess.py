"""What the groups of a run show together although each of them alone may be chance."""

from kvgate.domain.pairing import GroupView, recall_lost_and_won
from kvgate.domain.plan import PairKind, Plan
from kvgate.domain.power import excess_p_value, sign_p_value
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.ruling import PairVerdict

# Cold answers that alone are far off: this many, and most, are no chance.
ODD_GROUPS = 2
# Tests that a whole run is put to, each at its share of the policy's alpha: differing cold and shape-matched pairs,
# drift, codewords.
LOOKS = 4
# How many times as far as repeats of local hits, in the median, loads have to drift to be worth a FAIL.
EFFECT = 2.0
# Reasons that count as a difference left standing when groups are pooled against controls.
_DIFFERENT = (Reason.NEAR_TIE, Reason.UNSTABLE, Reason.TOKENS_DIFFER)


def excess(plan: Plan, groups: list[tuple[PairVerdict, ...]]) -> Problem | None:
    """What external pairs show beyond the pairs beside them: more differences, or drift that is larger all along."""
    cold = [pair for pairs in groups if (pair := _of_kind(pairs, PairKind.EXTERNAL_VS_COLD))]
    odd = [pair.odd_baseline for pair in cold]
    if odd.count(True) >= ODD_GROUPS and 2 * odd.count(True) > len(odd):
        detail = f"{odd.count(True)} of {len(odd)} cold answers are far off their own repeats, with which hits agree"
        return Problem(Reason.EXCESS_DIVERGENCE, detail)
    local = [pair for pairs in groups if (pair := _of_kind(pairs, PairKind.LOCAL_VS_COLD))]
    matched = [pair for pairs in groups if (pair := _of_kind(pairs, PairKind.EXTERNAL_VS_LOCAL)) and pair.shape_matched]
    controls = [not pair.control_exact for pair in matched if pair.control_exact is not None]
    return (
        _more_differ(plan, PairKind.EXTERNAL_VS_COLD, [*map(_differs, cold)], [*map(_differs, local)])
        or _more_differ(plan, PairKind.EXTERNAL_VS_LOCAL, [*map(_differs, matched)], controls)
        or _drift_further(plan, matched)
    )


def _more_differ(plan: Plan, kind: PairKind, subjects: list[bool], controls: list[bool]) -> Problem | None:
    """More differing pairs than controls explain (Fisher's exact test).

    Cold pairs are held against local-vs-cold pairs; shape-matched ones against each group's own local repeat.
    """
    p_value = excess_p_value(sum(subjects), len(subjects), sum(controls), len(controls))
    if p_value >= plan.policy.alpha / LOOKS:
        return None
    detail = (
        f"{sum(subjects)} of {len(subjects)} {kind.value} pairs differ, {sum(controls)} of {len(controls)} controls "
        f"do (p = {p_value:.2g})"
    )
    return Problem(Reason.EXCESS_DIVERGENCE, detail)


def _drift_further(plan: Plan, matched: list[PairVerdict]) -> Problem | None:
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
    if p_value >= plan.policy.alpha / LOOKS:
        return None
    subject, control = (sorted(side)[len(pairs) // 2] for side in zip(*pairs, strict=True))
    # What a lossy store was declared to lose it loses every time.
    if subject < EFFECT * control or plan.policy.lossy_bound_nat is not None:
        return None
    detail = (
        f"external hits drift further than repeats of local ones in {further} of {len(matched)} groups, in the median "
        f"{subject:.2g} against {control:.2g} nat (p = {p_value:.2g})"
    )
    return Problem(Reason.EXCESS_DIVERGENCE, detail)


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


def lost_codewords(plan: Plan, views: tuple[GroupView, ...]) -> Problem | None:
    """External answers that lose codewords cold ones hold, more often than the other way round (exact sign test).

    Benign flips lose and win alike; each flip alone may be a near tie.
    """
    lost, won = recall_lost_and_won(views)
    p_value = sign_p_value(lost, won)
    if p_value >= plan.policy.alpha / LOOKS:
        return None
    detail = f"{lost} groups lost the codeword on the external path, {won} won it (p = {p_value:.2g})"
    return Problem(Reason.EXCESS_DIVERGENCE, detail)


def _differs(pair: PairVerdict) -> bool:
    problems = [*pair.annotations, *([pair.problem] if pair.problem else [])]
    return any(problem.reason in _DIFFERENT for problem in problems)
