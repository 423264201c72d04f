"""Judging written histories of one group, and the answers that the tests of the judge have in common."""

from dataclasses import replace

from kvgate.domain.judge import judge
from kvgate.domain.observation import Observation
from kvgate.domain.policy import Policy
from kvgate.domain.probe import Arm
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import GroupVerdict, PairVerdict, RunVerdict
from tests.domain.making import (
    ARMS,
    TOKENS,
    Answers,
    answer,
    entries,
    group_plan,
    run_plan,
    whole_run,
)

OTHER = (*TOKENS[:4], *range(200, 212))
SUBJECTS = (Arm.EXTERNAL, Arm.EXTERNAL_REPEAT)


def judged(
    answers: Answers,
    readings: dict[Arm, object] | None = None,
    aligned: bool = False,
    policy: Policy | None = None,
    arms: frozenset[Arm] = ARMS,
) -> RunVerdict:
    """The ruling on a run of one group."""
    group = group_plan(aligned=aligned, arms=arms)
    return judge(run_plan(group, policy=policy), RunRecord(whole_run(entries(group, answers, readings))))  # type: ignore[arg-type]


def pair(ruling: RunVerdict, subject: Arm, baseline: Arm) -> PairVerdict:
    (group,) = ruling.groups
    return pair_of(group, subject, baseline)


def pair_of(group: GroupVerdict, subject: Arm, baseline: Arm) -> PairVerdict:
    return next(each for each in group.pairs if (each.subject, each.baseline) == (subject, baseline))


def both(observation: Observation) -> Answers:
    return dict.fromkeys(SUBJECTS, observation)


NOISY: Answers = {Arm.LOCAL_REPEAT: answer(shift=0.02)}


def near_tie() -> Observation:
    """Token 1104 instead of 104, which every answer holds as its runner-up; here the two have changed places."""
    ids = (*TOKENS[:4], TOKENS[4] + 1000, *TOKENS[5:])
    clean = answer(ids, gap=0.05)
    tops = list(clean.top_ids or ())
    tops[4] = (ids[4], TOKENS[4])
    return replace(clean, top_ids=tuple(tops))


TIED: Answers = {arm: answer(gap=0.05) for arm in ARMS}
