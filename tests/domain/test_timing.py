"""Times by tier and path: medians, what a hit saves, and whose times do not count."""

from dataclasses import replace

import pytest

from kvgate.domain.counters import Counters
from kvgate.domain.judge import judge
from kvgate.domain.observation import Observation, Timing
from kvgate.domain.probe import Arm, Path
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import PathTiming
from tests.domain.making import TOKENS, Answers, answer, counters, entries, group_plan, run_plan, whole_run


def took(first: float | None, total: float) -> Observation:
    return replace(answer(), timing=Timing(first, total))


def timed(*answers: Answers, tiers: tuple[int, ...] = ()) -> dict[tuple[int, Path], PathTiming]:
    groups = [
        group_plan(f"g{number}", nonce=f"00000000000{number}", tier=tiers[number] if tiers else 99)
        for number in range(len(answers))
    ]
    histories = [entries(group, given) for group, given in zip(groups, answers, strict=True)]
    ruling = judge(run_plan(*groups), RunRecord(whole_run(*histories)))
    return {(each.tier, each.path): each for each in ruling.timing}


COLD, LOCAL, EXTERNAL = took(1.0, 2.5), took(0.1, 1.6), took(1.25, 2.75)
ANSWERS: Answers = {
    Arm.COLD: COLD,
    Arm.COLD_REPEAT: COLD,
    Arm.LOCAL: LOCAL,
    Arm.LOCAL_REPEAT: LOCAL,
    Arm.EXTERNAL: EXTERNAL,
    Arm.EXTERNAL_REPEAT: EXTERNAL,
}


def test_each_path_has_its_times_and_what_it_saves_against_computing() -> None:
    found = timed(ANSWERS)
    assert [Path.COLD, Path.LOCAL, Path.EXTERNAL] == [path for _, path in found]
    cold, local, external = found.values()
    assert cold.saved_s is None
    assert pytest.approx(0.9) == local.saved_s
    # A load that takes longer than computing: the pool costs time.
    assert pytest.approx(-0.25) == external.saved_s
    assert cold.first_token is not None
    assert (1.0, 1.0, 2.5) == (cold.first_token.p50, cold.first_token.longest, cold.total.p50)
    assert cold.between_tokens is not None
    assert pytest.approx(1.5 / (len(TOKENS) - 1)) == cold.between_tokens.p50
    assert (2, 2, 2) == (cold.probes, local.probes, external.probes)
    assert (0, 160, 160) == (cold.reused_tokens, local.reused_tokens, external.reused_tokens)


def test_tiers_are_told_apart() -> None:
    slow: Answers = {arm: took(10.0, 12.0) for arm in ANSWERS}
    found = timed(ANSWERS, slow, tiers=(99, 4096))
    firsts = {place: each.first_token.p50 for place, each in found.items() if each.first_token is not None}
    assert 1.0 == firsts[99, Path.COLD]
    assert {10.0} == {seconds for (tier, _), seconds in firsts.items() if tier == 4096}


def test_an_answer_that_did_not_come_by_its_path_has_no_time_on_it() -> None:
    group = group_plan()
    missed: dict[Arm, Counters | None] = dict.fromkeys((Arm.EXTERNAL, Arm.EXTERNAL_REPEAT), counters(99, 0, 0))
    ruling = judge(run_plan(group), RunRecord(whole_run(entries(group, ANSWERS, missed))))
    assert [Path.COLD, Path.LOCAL] == [each.path for each in ruling.timing]


def test_times_to_the_first_token_that_nobody_knows_save_nothing() -> None:
    # Without streaming only the whole answer has a time.
    found = timed({arm: took(None, 2.0) for arm in ANSWERS})
    assert {(None, None, None)} == {(each.first_token, each.between_tokens, each.saved_s) for each in found.values()}
    assert {2.0} == {each.total.p50 for each in found.values()}
