"""Written histories of many groups: differences that only together are more than controls explain."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvgate.domain.policy import Policy, PolicyName
from kvgate.domain.probe import Arm
from tests.domain.judging import OTHER, TIED, both, near_tie
from tests.domain.making import (
    ARMS,
    HIT,
    LENGTH,
    Answers,
    answer,
    counters,
    group_plan,
    lost,
    run_plan,
)
from tests.domain.recorded_case import Case, Given, Readings, history, of_run

STRICT = Policy(name=PolicyName.STRICT)
LOCALS = (Arm.LOCAL, Arm.LOCAL_REPEAT)

NOISY_TIE: Answers = {**TIED, Arm.LOCAL_REPEAT: answer(shift=0.02, gap=0.05)}
FLIPPING: Answers = {**NOISY_TIE, **both(near_tie())}
# Local hits flip like external ones: nothing speaks against the path.
ALIKE: Answers = {**FLIPPING, Arm.LOCAL: near_tie(), Arm.LOCAL_REPEAT: replace(near_tie(), text="again")}


# No repeats of cold and external runs: many groups are slow to judge.
FEW = ARMS - {Arm.COLD_REPEAT, Arm.EXTERNAL_REPEAT}


NO_LOCAL = FEW - {*LOCALS}


@dataclass(frozen=True, slots=True)
class Member:
    """One group of a pool."""

    answers: Given
    readings: Readings | None = None
    arms: frozenset[Arm] = FEW


def many(name: str, required: str, *each: Given, policy: Policy | None = None) -> Case:
    groups = [group_plan(f"g{number}", arms=FEW) for number in range(len(each))]
    histories = [history(group, answers) for group, answers in zip(groups, each, strict=True)]
    return of_run(name, required, run_plan(*groups, policy=policy), *histories)


def unstable() -> Answers:
    """External hits that differ beyond the envelope, each in another way."""
    return {Arm.LOCAL_REPEAT: answer(shift=0.02), Arm.EXTERNAL: answer(OTHER)}


# External hits flip against exact local hits, and answer as cold runs do; in some groups local hits are noisy.
LIKE_COLD: Answers = {**dict.fromkeys(ARMS, near_tie()), **dict.fromkeys(LOCALS, answer(gap=0.05))}
NOISY_LIKE_COLD: Answers = {**LIKE_COLD, Arm.LOCAL_REPEAT: answer(shift=0.02, gap=0.05)}


def pooled(name: str, required: str, groups: Sequence[Member]) -> Case:
    """A run of groups that differ in arms, answers and counters."""
    plans = [group_plan(f"g{number}", arms=each.arms) for number, each in enumerate(groups)]
    histories = [history(plan, each.answers, each.readings) for plan, each in zip(plans, groups, strict=True)]
    return of_run(f"excess: {name}", required, run_plan(*plans), *histories)


NO_REPEAT = FEW - {Arm.LOCAL_REPEAT}
SHORTER = {Arm.EXTERNAL: counters(LENGTH - 78, 0, 78)}
TWICE = FEW | {Arm.EXTERNAL_REPEAT}
LOST_FIRST: Answers = {Arm.EXTERNAL: [lost(), lost()]}
PARTIAL = {Arm.EXTERNAL: counters(LENGTH - 48, 0, 48)}
AGAINST_LOCAL = (
    pooled(
        "external hits differ from local ones alone",
        "FAIL EXCESS_DIVERGENCE",
        [*[Member(LIKE_COLD)] * 8, *[Member(NOISY_LIKE_COLD)] * 2],
    ),
    pooled(
        "hits of unlike length differ",
        "PASS",
        [*[Member(LIKE_COLD, SHORTER)] * 8, *[Member(NOISY_LIKE_COLD, SHORTER)] * 2],
    ),
    pooled(
        "some local hits are not repeated",
        "FAIL EXCESS_DIVERGENCE",
        [*[Member(LIKE_COLD)] * 9, *[Member(NOISY_LIKE_COLD)] * 2, *[Member(LIKE_COLD, arms=NO_REPEAT)] * 4],
    ),
    pooled(
        "too few local hits are repeated",
        "PASS",
        [*[Member(LIKE_COLD)] * 6, *[Member(NOISY_LIKE_COLD)] * 2, *[Member(LIKE_COLD, arms=NO_REPEAT)] * 4],
    ),
    pooled(
        "the first external hit is lost, and the repeat differs",
        "INCONCLUSIVE OBSERVATION_MISSING TIER_NOT_COVERED",
        [
            *[Member({**LIKE_COLD, **LOST_FIRST}, arms=TWICE)] * 8,
            *[Member({**NOISY_LIKE_COLD, **LOST_FIRST}, arms=TWICE)] * 2,
        ],
    ),
    pooled(
        "partial loads differ, and then the answer is lost",
        "INCONCLUSIVE OBSERVATION_MISSING UNSTABLE TIER_NOT_COVERED",
        [Member({**unstable(), Arm.EXTERNAL: [answer(OTHER), lost()]}, PARTIAL)] * 5,
    ),
    pooled(
        "some external hits are lost",
        "FAIL EXCESS_DIVERGENCE OBSERVATION_MISSING",
        [*[Member(FLIPPING)] * 5, *[Member({**NOISY_TIE, **LOST_FIRST})] * 3],
    ),
)
BYSTANDER = ARMS - {Arm.EXTERNAL, Arm.EXTERNAL_REPEAT}
EXCESS = (
    of_run(
        "excess: one external pair among nine controls",
        "FAIL EXCESS_DIVERGENCE",
        run_plan(
            *(group_plan(f"g{number}", arms=BYSTANDER if number else FEW) for number in range(10)),
            policy=Policy(alpha=0.45),
        ),
        *(
            history(group_plan(f"g{number}", arms=BYSTANDER if number else FEW), NOISY_TIE if number else FLIPPING)
            for number in range(10)
        ),
    ),
    of_run(
        "excess: nine external pairs and one control",
        "FAIL EXCESS_DIVERGENCE",
        run_plan(
            *(group_plan(f"g{number}", arms=NO_LOCAL if number else FEW) for number in range(9)),
            policy=Policy(alpha=0.45),
        ),
        *(history(group_plan(f"g{number}", arms=NO_LOCAL if number else FEW), FLIPPING) for number in range(9)),
    ),
    many("excess: 6 groups flip, at the level", "PASS", *[FLIPPING] * 6, policy=Policy(alpha=4 / 924)),
    many("excess: 5 groups flip", "PASS", *[FLIPPING] * 5),
    many("excess: 6 groups flip", "FAIL EXCESS_DIVERGENCE", *[FLIPPING] * 6),
    many("excess: 12 groups flip, 4 locally, too", "FAIL EXCESS_DIVERGENCE", *[ALIKE] * 4, *[FLIPPING] * 8),
    many("excess: 12 groups flip, 6 locally, too", "PASS", *[ALIKE] * 6, *[FLIPPING] * 6),
    many("excess: 12 groups flip as local hits do", "PASS", *[ALIKE] * 12),
    many("excess: 6 of 12 groups flip", "PASS", *[FLIPPING] * 6, *[NOISY_TIE] * 6),
    many("excess: 7 of 12 groups flip", "FAIL EXCESS_DIVERGENCE", *[FLIPPING] * 7, *[NOISY_TIE] * 5),
    many("excess: unstable ones count", "FAIL EXCESS_DIVERGENCE UNSTABLE TIER_NOT_COVERED", *[unstable()] * 8),
    many("excess: under strict", "FAIL EXCESS_DIVERGENCE TOKENS_DIFFER", *[FLIPPING] * 12, policy=STRICT),
    many("excess: another level", "FAIL EXCESS_DIVERGENCE", *[FLIPPING] * 5, policy=Policy(alpha=0.3)),
    of_run(
        "excess: repeats alone flip",
        "PASS",
        run_plan(*(group_plan(f"g{number}") for number in range(5))),
        *(history(group_plan(f"g{number}"), {**NOISY_TIE, Arm.EXTERNAL_REPEAT: near_tie()}) for number in range(5)),
    ),
)

SAID: Answers = {arm: replace(answer(gap=0.05), text="amber cedar elm") for arm in ARMS}
KEPT: Answers = {**SAID, Arm.LOCAL_REPEAT: answer(shift=0.02, gap=0.05, text="amber cedar elm")}
LOSING: Answers = {**KEPT, **both(near_tie()), Arm.LOCAL: near_tie(), Arm.LOCAL_REPEAT: replace(near_tie(), text="x")}
HIT_SAID = replace(near_tie(), text="amber cedar elm")
# Every arm flips alike, cold ones lose the codeword and hits win it.
WINNING: Answers = {
    **dict.fromkeys(ARMS, HIT_SAID),
    Arm.COLD: answer(gap=0.05),
    Arm.COLD_REPEAT: answer(gap=0.05),
    Arm.LOCAL_REPEAT: replace(HIT_SAID, text="x"),
}
SILENT: Answers = {arm: answer(gap=0.05) for arm in ARMS}
CODEWORDS = (
    many(
        "codewords: lost in 9, and one cold run lost",
        "FAIL EXCESS_DIVERGENCE OBSERVATION_MISSING",
        *[LOSING] * 9,
        {**LOSING, **both(HIT_SAID), Arm.COLD: [lost(), lost()]},
    ),
    many(
        "codewords: lost in 8, and one external hit lost",
        "INCONCLUSIVE OBSERVATION_MISSING",
        *[LOSING] * 8,
        {**KEPT, Arm.EXTERNAL: [lost(), lost()]},
    ),
    many("codewords: lost in 8", "PASS", *[LOSING] * 8),
    many("codewords: lost in 9", "FAIL EXCESS_DIVERGENCE", *[LOSING] * 9),
    many("codewords: lost in 11, won in 1", "PASS", *[LOSING] * 11, WINNING),
    many("codewords: lost in 12, won in 1", "FAIL EXCESS_DIVERGENCE", *[LOSING] * 12, WINNING),
    many("codewords: won in 8", "PASS", *[WINNING] * 8),
    many("codewords: lost in 9 of 12", "FAIL EXCESS_DIVERGENCE", *[LOSING] * 9, *[SILENT] * 3),
    many("codewords: lost in 6, another level", "FAIL EXCESS_DIVERGENCE", *[LOSING] * 6, policy=Policy(alpha=0.08)),
    many("codewords: lost in 9, at the level", "PASS", *[LOSING] * 9, policy=Policy(alpha=4 * 2**-9)),
)


def drifting(external: float, repeat: float = 0.01) -> Answers:
    """Token IDs are equal; the local repeat drifts by so many nats, and so does the external hit."""
    return {Arm.LOCAL_REPEAT: answer(shift=repeat), Arm.EXTERNAL: answer(shift=external)}


FURTHER, AS_FAR, LESS = drifting(0.03), drifting(0.01), drifting(0.005)
DRIFT = (
    many("drift: further in 8", "PASS", *[FURTHER] * 8),
    many("drift: further in 9", "FAIL EXCESS_DIVERGENCE", *[FURTHER] * 9),
    many("drift: further in 9, strict", "FAIL EXCESS_DIVERGENCE", *[FURTHER] * 9, policy=STRICT),
    many("drift: further in 9, at the level", "PASS", *[FURTHER] * 9, policy=Policy(alpha=4 * 2**-9)),
    many("drift: further in 9, and as far in 8", "FAIL EXCESS_DIVERGENCE", *[FURTHER] * 9, *[AS_FAR] * 8),
    many("drift: further in 12, as declared", "PASS", *[FURTHER] * 12, policy=Policy(lossy_bound_nat=0.05)),
    many("drift: as far in 12", "PASS", *[AS_FAR] * 12),
    many("drift: further in 11, less in 1", "PASS", *[FURTHER] * 11, LESS),
    many("drift: further in 12, less in 1", "FAIL EXCESS_DIVERGENCE", *[FURTHER] * 12, LESS),
    many("drift: less in 12", "PASS", *[LESS] * 12),
    many("drift: a little further in 12", "PASS", *[drifting(0.015)] * 12),
    many("drift: twice as far in 12", "FAIL EXCESS_DIVERGENCE", *[drifting(0.25, 0.125)] * 12),
    many("drift: further in 12, mostly a little", "PASS", *[FURTHER] * 5, *[drifting(0.015)] * 7),
    pooled(
        "drift where others came in",
        "INCONCLUSIVE FOREIGN_TRAFFIC TIER_NOT_COVERED",
        [Member(FURTHER, {Arm.EXTERNAL: counters(LENGTH - HIT + 512, 0, HIT)})] * 12,
    ),
    many("drift: further in 10 of 30, and none elsewhere", "FAIL EXCESS_DIVERGENCE", *[FURTHER] * 10, *[AS_FAR] * 20),
    pooled("drift of hits of unlike length", "PASS", [Member(FURTHER, SHORTER)] * 12),
    pooled("drift, and some have no repeat", "FAIL EXCESS_DIVERGENCE", [
        *[Member(FURTHER)] * 9, *[Member({Arm.EXTERNAL: answer(shift=0.03)}, arms=NO_REPEAT)] * 3
    ]),
)  # fmt: skip

CASES: tuple[Case, ...] = (*EXCESS, *AGAINST_LOCAL, *CODEWORDS, *DRIFT)
