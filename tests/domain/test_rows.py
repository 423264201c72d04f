"""The decision table, row by row, on written histories; every detector beside a control that must not fire."""

from dataclasses import replace

import pytest

from kvgate.domain.judge import judge
from kvgate.domain.policy import Policy, PolicyName
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Reason
from kvgate.domain.record import RunRecord
from kvgate.domain.verdict import Verdict
from tests.domain.judging import NOISY, OTHER, SUBJECTS, TIED, both, judged, near_tie, pair
from tests.domain.making import (
    ARMS,
    HIT,
    LENGTH,
    TOKENS,
    Answers,
    answer,
    counters,
    entries,
    group_plan,
    lost,
    refused,
    run_plan,
    whole_run,
    with_usage,
)


def test_equal_answers_by_proven_paths_pass_in_row_11() -> None:
    ruling = judged({})
    assert (Verdict.PASS, ()) == (ruling.verdict, ruling.reasons)
    assert {11} == {each.row for each in ruling.groups[0].pairs}
    assert pair(ruling, Arm.EXTERNAL, Arm.LOCAL).exact


def test_row_1_a_foreign_nonce_is_a_leak() -> None:
    mine, theirs = group_plan("g1", nonce="111111111111"), group_plan("g2", nonce="222222222222")
    answers: Answers = {Arm.EXTERNAL: answer(text="it is 2222 2222 2222")}
    history = whole_run(entries(mine, answers), entries(theirs, {}))
    ruling = judge(run_plan(mine, theirs), RunRecord(history))
    assert (Verdict.FAIL, Reason.LEAK) == (ruling.verdict, ruling.reasons[0].reason)
    own = whole_run(entries(mine, {Arm.EXTERNAL: answer(text="it is 111111111111")}), entries(theirs, {}))
    assert judge(run_plan(mine, theirs), RunRecord(own)).verdict is Verdict.PASS


@pytest.mark.parametrize("arm", [Arm.COLD, Arm.LOCAL, Arm.EXTERNAL])
def test_row_2_a_lost_side_is_inconclusive(arm: Arm) -> None:
    ruling = judged({arm: lost()})
    assert Verdict.INCONCLUSIVE is ruling.verdict
    assert Reason.OBSERVATION_MISSING in [problem.reason for problem in ruling.reasons]


def test_row_3_a_subject_refused_twice_fails_and_once_is_inconclusive() -> None:
    twice = judged({Arm.EXTERNAL: [refused(), refused()]})
    assert (Verdict.FAIL, Reason.SUBJECT_REFUSED) == (twice.verdict, twice.reasons[0].reason)
    once = judged({Arm.EXTERNAL: refused()})
    assert (Verdict.INCONCLUSIVE, Reason.PROBE_REFUSED) == (once.verdict, once.reasons[0].reason)
    baseline = judged({Arm.COLD: [refused(), refused()]})
    assert Verdict.INCONCLUSIVE is baseline.verdict


def test_row_4_void_observations_neither_acquit_nor_convict() -> None:
    preempted = {arm: counters(LENGTH - HIT, 0, HIT, preemptions=1) for arm in SUBJECTS}
    ruling = judged(both(answer(OTHER)), preempted)  # type: ignore[arg-type]
    assert (Verdict.INCONCLUSIVE, Reason.PREEMPTED) == (ruling.verdict, ruling.reasons[0].reason)


def test_row_4_a_contaminated_baseline_does_not_convict() -> None:
    readings = {Arm.LOCAL: counters(LENGTH - HIT, HIT - 16, 16)}
    ruling = judged(both(answer(OTHER)), readings)  # type: ignore[arg-type]
    found = pair(ruling, Arm.EXTERNAL, Arm.LOCAL)
    assert (Verdict.INCONCLUSIVE, 4, Reason.BASELINE_NOT_LOCAL) == (
        found.verdict,
        found.row,
        found.problem and found.problem.reason,
    )


def test_row_4_a_change_of_rank_is_void() -> None:
    idle = counters(0, 0, 0, external_queries=0)
    busy = counters(LENGTH - HIT, 0, HIT, rank="1")
    ruling = judged({}, {Arm.EXTERNAL: replace(busy, readings=(*idle.readings, *busy.readings))})
    found = pair(ruling, Arm.EXTERNAL, Arm.LOCAL)
    assert (Verdict.INCONCLUSIVE, Reason.RANK_CHANGED) == (found.verdict, found.problem and found.problem.reason)


def test_row_5_ids_that_do_not_add_up_are_inconclusive() -> None:
    ruling = judged(both(with_usage(answer(), len(TOKENS) + 1)))
    assert (Verdict.INCONCLUSIVE, Reason.IDS_INCOMPLETE) == (ruling.verdict, ruling.reasons[0].reason)


PROTOCOL_FAULTS = (
    ((), Reason.EMPTY),
    (TOKENS[:10], Reason.TRUNCATED),
    ((TOKENS[0], *TOKENS[:-1]), Reason.FIRST_TOKEN),
    ((*TOKENS[1:], 7), Reason.FIRST_TOKEN),
    ((*TOKENS[:2], *[9] * 14), Reason.DEGENERATE),
)


@pytest.mark.parametrize(("ids", "reason"), PROTOCOL_FAULTS)
def test_row_5_protocol_faults_keep_their_own_name(ids: tuple[int, ...], reason: Reason) -> None:
    again = judged(both(answer(ids)))
    assert (Verdict.FAIL, reason) == (again.verdict, again.reasons[0].reason)
    assert {5} == {each.row for each in again.groups[0].pairs if each.subject in SUBJECTS}
    once = judged({Arm.EXTERNAL: answer(ids)})
    assert (Verdict.INCONCLUSIVE, reason) == (once.verdict, once.reasons[0].reason)


def test_row_5_two_empty_answers_are_not_equal_and_do_not_blame_the_path() -> None:
    ruling = judged(dict.fromkeys(ARMS, answer(())))
    assert (Verdict.INCONCLUSIVE, Reason.EMPTY) == (ruling.verdict, ruling.reasons[0].reason)


def test_row_6_other_tokens_on_an_exact_pair_fail() -> None:
    ruling = judged(both(answer(OTHER)))
    found = pair(ruling, Arm.EXTERNAL, Arm.LOCAL)
    assert (Verdict.FAIL, 6, Reason.DIVERGED, 4) == (
        found.verdict,
        found.row,
        found.problem and found.problem.reason,
        found.first_difference,
    )
    assert found.attribution is not None
    assert "external path" in found.attribution


@pytest.mark.parametrize("arm", SUBJECTS)
def test_row_6_a_difference_seen_once_is_intermittent(arm: Arm) -> None:
    ruling = judged({arm: answer(OTHER)})
    assert (Verdict.FAIL, Reason.DIVERGED_INTERMITTENT) == (ruling.verdict, ruling.reasons[0].reason)


@pytest.mark.parametrize("shift", [1e-9, 0.05])
def test_row_7_any_drift_on_an_exact_pair_fails_although_the_tokens_are_equal(shift: float) -> None:
    ruling = judged(both(answer(shift=shift, at=3)))
    found = pair(ruling, Arm.EXTERNAL, Arm.LOCAL)
    assert (Verdict.FAIL, 7, True) == (found.verdict, found.row, found.ids_equal)
    assert (Verdict.FAIL, Reason.DRIFT) == (ruling.verdict, ruling.reasons[0].reason)


def test_row_7_a_logprob_that_is_no_number_is_drift() -> None:
    clean = answer()
    broken = replace(clean, logprobs=(None, *(clean.logprobs or ())[1:]))
    found = pair(judged(both(broken)), Arm.EXTERNAL, Arm.LOCAL)
    assert (Verdict.FAIL, None) == (found.verdict, found.max_drift)
    assert found.drift_problem == "a logprob is no number on one side only"


def test_row_7_declared_loss_is_an_annotation_up_to_its_bound() -> None:
    lossy = Policy(lossy_bound_nat=0.01)
    inside = judged(both(answer(shift=0.005)), policy=lossy)
    assert Verdict.PASS is inside.verdict
    assert Reason.DECLARED_LOSS in [note.reason for note in pair(inside, Arm.EXTERNAL, Arm.LOCAL).annotations]
    assert Verdict.FAIL is judged(both(answer(shift=0.02)), policy=lossy).verdict


def test_rows_8_and_9_without_an_exact_control_the_envelope_decides() -> None:
    inside = judged({**NOISY, **both(answer(shift=0.3))})
    assert (Verdict.PASS, 11) == (inside.verdict, pair(inside, Arm.EXTERNAL, Arm.LOCAL).row)
    assert Reason.NOISE in [note.reason for note in pair(inside, Arm.EXTERNAL, Arm.LOCAL).annotations]
    beyond = judged({**NOISY, **both(answer(shift=0.7))})
    assert (Verdict.FAIL, 8) == (beyond.verdict, pair(beyond, Arm.EXTERNAL, Arm.LOCAL).row)


def test_row_8_a_difference_beyond_the_envelope_seen_once_is_unstable() -> None:
    ruling = judged({**NOISY, Arm.EXTERNAL: answer(shift=0.7)})
    assert (Verdict.INCONCLUSIVE, Reason.UNSTABLE) == (ruling.verdict, ruling.reasons[0].reason)


def test_row_9_a_flip_between_near_ties_is_noise_unless_strict() -> None:
    noisy = {**TIED, Arm.LOCAL_REPEAT: answer(shift=0.02, gap=0.05), **both(near_tie())}
    calibrated = judged(noisy)
    assert Verdict.PASS is calibrated.verdict
    assert Reason.NEAR_TIE in [note.reason for note in pair(calibrated, Arm.EXTERNAL, Arm.LOCAL).annotations]
    strict = next(result for result in calibrated.results if result.policy is PolicyName.STRICT)
    assert (Verdict.FAIL, Reason.TOKENS_DIFFER) == (strict.verdict, strict.reasons[0].reason)
    assert Verdict.FAIL is judged(noisy, policy=Policy(name=PolicyName.STRICT)).verdict


def test_row_9_a_flip_with_a_wide_gap_is_no_near_tie() -> None:
    ruling = judged({**NOISY, **both(answer(OTHER))})
    assert (Verdict.FAIL, Reason.DIVERGED) == (ruling.verdict, ruling.reasons[0].reason)


def test_a_near_tie_on_an_exact_pair_still_fails() -> None:
    assert Verdict.FAIL is judged({**TIED, **both(near_tie())}).verdict


UNPROVEN = (
    (counters(LENGTH, 0, 0, external_queries=0), Reason.PATH_NOT_EXERCISED),
    (counters(LENGTH, 0, 0), Reason.EXTERNAL_MISS),
    (counters(LENGTH - HIT + 16, 0, HIT - 16), Reason.EXTERNAL_MISS),
    (counters(LENGTH - HIT, HIT, 0), Reason.LOCAL_NOT_DROPPED),
    (counters(LENGTH, 0, 0, external_hits=HIT), Reason.LOAD_FAILED),
    (counters(LENGTH - HIT, 0, HIT, external_hits=0), Reason.SENSOR_CONFLICT),
    (counters(LENGTH - HIT, 0, HIT, local_hits=16), Reason.SENSOR_CONFLICT),
    (counters(LENGTH - HIT, 0, HIT, prompt_tokens=LENGTH + 1), Reason.FOREIGN_TRAFFIC),
    (counters(LENGTH - HIT, 0, HIT, prompt_tokens=LENGTH - 1), Reason.EVIDENCE_MISSING),
    (counters(-5, 0, HIT, prompt_tokens=HIT - 5), Reason.COUNTER_RESET),
    (None, Reason.COUNTERS_UNREADABLE),
)


@pytest.mark.parametrize(("reading", "reason"), UNPROVEN)
def test_row_10_no_pass_without_proof_of_the_path(reading: object, reason: Reason) -> None:
    ruling = judged({}, dict.fromkeys(SUBJECTS, reading))
    assert (Verdict.INCONCLUSIVE, reason) == (ruling.verdict, ruling.reasons[0].reason)


def test_row_10_usage_that_contradicts_the_counters_is_a_conflict() -> None:
    ruling = judged(both(with_usage(answer(), len(TOKENS), cached=HIT + 16)))
    assert (Verdict.INCONCLUSIVE, Reason.SENSOR_CONFLICT) == (ruling.verdict, ruling.reasons[0].reason)
    assert Verdict.PASS is judged(both(with_usage(answer(), len(TOKENS), cached=HIT))).verdict


def test_row_10_answers_that_are_too_short_or_without_logprobs_do_not_pass() -> None:
    short = judged(dict.fromkeys(ARMS, replace(answer(TOKENS[:7]), finish_reason="stop")))
    assert (Verdict.INCONCLUSIVE, Reason.TOO_SHORT) == (short.verdict, short.reasons[0].reason)
    bare = replace(answer(), logprobs=None, top_ids=None, top_logprobs=None)
    without = judged(dict.fromkeys(ARMS, bare))
    assert (Verdict.INCONCLUSIVE, Reason.LOGPROBS_UNUSABLE) == (without.verdict, without.reasons[0].reason)
    assert Verdict.PASS is judged(dict.fromkeys(ARMS, bare), policy=Policy(accept_ids_only=True)).verdict
    zeros = replace(answer(), logprobs=(0.0,) * len(TOKENS))
    assert Reason.LOGPROBS_UNUSABLE is judged(dict.fromkeys(ARMS, zeros)).reasons[0].reason
