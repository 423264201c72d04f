"""What a PASS excludes, and whether differences are more than controls explain."""

import math

from kvgate.domain.plan import Plan, Purpose
from kvgate.domain.policy import Policy
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.ruling import GroupVerdict, TierPower
from kvgate.domain.verdict import Verdict

CONFIDENCE = 0.95
# Repeats make a group's answer surer; they are no further groups.
_REPEATS = (Arm.EXTERNAL_REPEAT, Arm.LOCAL_REPEAT, Arm.COLD_REPEAT)


def excluded_fault_rate(groups: int, confidence: float = CONFIDENCE) -> float:
    """The per-request fault rate above which ``groups`` clean ones would be unlikely: 1 - (1-c)^(1/n); 1.0 for none."""
    if groups <= 0:
        return 1.0
    return float(1.0 - (1.0 - confidence) ** (1.0 / groups))


def excess_p_value(subject_hits: int, subjects: int, control_hits: int, controls: int) -> float:
    """One-sided exact (hypergeometric) probability of at least ``subject_hits`` differences among the subjects.

    Given the margins, as in Fisher's test. 1.0 where either side is empty.
    """
    if subjects == 0 or controls == 0:
        return 1.0
    total, hits = subjects + controls, subject_hits + control_hits
    ways = math.comb(total, hits)
    upper = min(hits, subjects)
    tail = sum(math.comb(subjects, k) * math.comb(controls, hits - k) for k in range(subject_hits, upper + 1))
    return tail / ways


def sign_p_value(more: int, less: int) -> float:
    """Exact probability of at least ``more`` of all being greater if each were as likely to be less; 1.0 for none."""
    total = more + less
    return float(sum(math.comb(total, k) for k in range(more, total + 1)) / 2**total)


def groups_for(rate: float, confidence: float = CONFIDENCE) -> int:
    """How many clean groups exclude per-request faults above that rate, which lies between 0 and 1."""
    return math.ceil(math.log(1.0 - confidence) / math.log(1.0 - rate))


def rounds_for(planned: int, more: int) -> tuple[int, ...]:
    """How many groups a tier each further round has: as many as there are already, ``more`` in all."""
    found: list[int] = []
    while sum(found) < more:
        found.append(min(planned + sum(found), more - sum(found)))
    return tuple(found)


def power_of(plan: Plan, groups: tuple[GroupVerdict, ...]) -> tuple[TierPower, ...]:
    """What the clean groups of each tier exclude, arm by arm: those that pass and whose arm came by its path."""
    found: list[TierPower] = []
    for tier in plan.tiers():
        planned = [group for group in plan.groups if (group.tier, group.purpose) == (tier, Purpose.TIER)]
        members = [each for each in groups if (each.tier, each.purpose) == (tier, Purpose.TIER) and not each.replaced]
        subjects = {pair.subject for group in planned for pair in group.pairs}
        for arm in (arm for arm in Arm if arm in subjects and arm not in _REPEATS):
            clean = [
                group
                for group in members
                if group.verdict is Verdict.PASS and any(each.arm is arm and each.proven for each in group.arms)
            ]
            lengths = tuple(sorted({group.length for group in clean}))
            found.append(TierPower(tier, arm, lengths, arm.path, len(clean), excluded_fault_rate(len(clean))))
    return tuple(found)


def too_weak(policy: Policy, power: tuple[TierPower, ...]) -> Problem | None:
    """The first tier and arm whose clean groups exclude less than the policy asks for, or None."""
    most = policy.max_fault_rate
    weak = next((each for each in power if most is not None and each.excluded_fault_rate > most), None)
    if weak is None or most is None:
        return None
    detail = (
        f"tier {weak.tier}, {weak.arm.value}: {weak.groups} clean groups leave faults in up to "
        f"{100 * weak.excluded_fault_rate:.2g}% of requests open, policy.max_fault_rate is {100 * most:.2g}%: "
        f"{groups_for(most)} are "
        "needed"
    )
    return Problem(Reason.POWER_TOO_LOW, detail)
