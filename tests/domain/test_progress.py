"""When a group may be replaced, and when a local hit is no baseline any more."""

from dataclasses import replace

from kvgate.domain.history import CountersRead
from kvgate.domain.judge import judge
from kvgate.domain.observation import Observation
from kvgate.domain.probe import Arm
from kvgate.domain.progress import is_void
from kvgate.domain.reasons import Reason
from kvgate.domain.record import RunRecord
from kvgate.domain.verdict import Verdict
from tests.domain.making import (
    HIT,
    LENGTH,
    Answers,
    answer,
    counters,
    entries,
    group_plan,
    lost,
    refused,
    run_plan,
    whole_run,
)

PREEMPTED = {Arm.COLD_REPEAT: counters(LENGTH, 0, 0, preemptions=1)}


def voided(external: list[Observation]) -> bool:
    group = group_plan()
    answers: Answers = {Arm.EXTERNAL: external}
    record = RunRecord(entries(group, answers, PREEMPTED))  # type: ignore[arg-type]
    return is_void(run_plan(group), record.groups["g1"])


def test_a_group_with_a_void_arm_may_be_replaced() -> None:
    assert voided([answer()])


def test_a_lost_or_refused_external_request_is_not_forgiven_because_another_arm_was_void() -> None:
    assert not voided([refused(), answer()])
    assert not voided([lost(), answer()])


def test_a_local_hit_on_what_an_earlier_attempt_loaded_is_no_baseline() -> None:
    """Attempt 0 was served from outside; attempt 1 is a local hit on exactly those bytes."""
    group = group_plan()
    history = whole_run(entries(group, {Arm.LOCAL: [answer(), answer()]}))
    loaded = counters(LENGTH - HIT, 0, HIT)
    for index, entry in enumerate(history):
        if isinstance(entry, CountersRead) and (entry.arm, entry.attempt, entry.moment.value) == (
            Arm.LOCAL,
            0,
            "after",
        ):
            history[index] = replace(entry, counters=loaded)
    ruling = judge(run_plan(group), RunRecord(history))
    assert (Verdict.INCONCLUSIVE, Reason.BASELINE_NOT_LOCAL) == (ruling.verdict, ruling.reasons[0].reason)
