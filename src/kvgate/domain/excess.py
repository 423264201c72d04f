"""What the groups of a run show together although each of them alone may be chance."""

import math

from kvgate.domain.pairing import GroupView, recall_lost_and_won
from kvgate.domain.plan import PairKind, Plan
from kvgate.domain.power import excess_p_value
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.ruling import PairVerdict

# Reasons that count as a difference left standing when groups are pooled against controls.
# Cold answers that alone are far off: this many, and most, are no chance.
ODD_GROUPS = 2
_DIFFERENT = (Reason.NEAR_TIE, Reason.UNSTABLE, Reason.TOKENS_DIFFER)


def excess(plan: Plan, groups: list[tuple[PairVerdict, ...]]) -> Problem | None:
    """More differing external pairs than the pairs beside them explain (exact test, corrected for two looks).

    Cold pairs are held against local-vs-cold pairs; shape-matched ones against each group's own local repeat.
    """
    cold = [_of_kind(pairs, PairKind.EXTERNAL_VS_COLD) for pairs in groups]
    local = [_of_kind(pairs, PairKind.LOCAL_VS_COLD) for pairs in groups]
    matched = [pair for pairs in groups if (pair := _of_kind(pairs, PairKind.EXTERNAL_VS_LOCAL)) and pair.shape_matched]
    looks = (
        (
            PairKind.EXTERNAL_VS_COLD,
            [_differs(pair) for pair in cold if pair],
            [_differs(pair) for pair in local if pair],
        ),
        (
            PairKind.EXTERNAL_VS_LOCAL,
            [_differs(pair) for pair in matched],
            [not pair.control_exact for pair in matched if pair.control_exact is not None],
        ),
    )
    odd = [pair.odd_baseline for pair in cold if pair]
    if odd.count(True) >= ODD_GROUPS and 2 * odd.count(True) > len(odd):
        detail = f"{odd.count(True)} of {len(odd)} cold answers are far off their own repeats, with which hits agree"
        return Problem(Reason.EXCESS_DIVERGENCE, detail)
    for kind, subjects, controls in looks:
        p_value = excess_p_value(sum(subjects), len(subjects), sum(controls), len(controls))
        if any(subjects) and p_value < plan.policy.alpha / len(looks):
            detail = (
                f"{sum(subjects)} of {len(subjects)} {kind.value} pairs differ, {sum(controls)} of {len(controls)} "
                f"controls do (p = {p_value:.2g})"
            )
            return Problem(Reason.EXCESS_DIVERGENCE, detail)
    return None


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
    total = lost + won
    p_value = sum(math.comb(total, k) for k in range(lost, total + 1)) / 2**total
    if not lost or p_value >= plan.policy.alpha:
        return None
    detail = f"{lost} groups lost the codeword on the external path, {won} won it (p = {p_value:.2g})"
    return Problem(Reason.EXCESS_DIVERGENCE, detail)


def _differs(pair: PairVerdict) -> bool:
    problems = [*pair.annotations, *([pair.problem] if pair.problem else [])]
    return any(problem.reason in _DIFFERENT for problem in problems)
