"""The decision table, row by row, on written histories; every detector beside a control that must not fire."""

from dataclasses import replace

import pytest

from kvgate.domain.judge import judge
from kvgate.domain.observation import Observation
from kvgate.domain.policy import Policy, PolicyName
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Reason
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import PairVerdict, RunVerdict
from kvgate.domain.verdict import Verdict
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
    return next(each for each in group.pairs if (each.subject, each.baseline) == (subject, baseline))


def both(observation: Observation) -> Answers:
    return dict.fromkeys(SUBJECTS, observation)


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


def test_row_5_two_empty_answers_are_not_equal() -> None:
    ruling = judged(dict.fromkeys(ARMS, answer(())))
    assert (Verdict.FAIL, Reason.EMPTY) == (ruling.verdict, ruling.reasons[0].reason)


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


NOISY: Answers = {Arm.LOCAL_REPEAT: answer(shift=0.02)}


def test_rows_8_and_9_without_an_exact_control_the_envelope_decides() -> None:
    inside = judged({**NOISY, **both(answer(shift=0.3))})
    assert (Verdict.PASS, 11) == (inside.verdict, pair(inside, Arm.EXTERNAL, Arm.LOCAL).row)
    assert Reason.NOISE in [note.reason for note in pair(inside, Arm.EXTERNAL, Arm.LOCAL).annotations]
    beyond = judged({**NOISY, **both(answer(shift=0.7))})
    assert (Verdict.FAIL, 8) == (beyond.verdict, pair(beyond, Arm.EXTERNAL, Arm.LOCAL).row)


def test_row_8_a_difference_beyond_the_envelope_seen_once_is_unstable() -> None:
    ruling = judged({**NOISY, Arm.EXTERNAL: answer(shift=0.7)})
    assert (Verdict.INCONCLUSIVE, Reason.UNSTABLE) == (ruling.verdict, ruling.reasons[0].reason)


def near_tie() -> Observation:
    """Token 1104 instead of 104, which every answer holds as its runner-up; here the two have changed places."""
    ids = (*TOKENS[:4], TOKENS[4] + 1000, *TOKENS[5:])
    clean = answer(ids, gap=0.05)
    tops = list(clean.top_ids or ())
    tops[4] = (ids[4], TOKENS[4])
    return replace(clean, top_ids=tuple(tops))


TIED: Answers = {arm: answer(gap=0.05) for arm in ARMS}


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
    short = judged(dict.fromkeys(ARMS, answer(TOKENS[:7])))
    assert (Verdict.INCONCLUSIVE, Reason.TOO_SHORT) == (short.verdict, short.reasons[0].reason)
    bare = replace(answer(), logprobs=None, top_ids=None, top_logprobs=None)
    without = judged(dict.fromkeys(ARMS, bare))
    assert (Verdict.INCONCLUSIVE, Reason.LOGPROBS_UNUSABLE) == (without.verdict, without.reasons[0].reason)
    assert Verdict.PASS is judged(dict.fromkeys(ARMS, bare), policy=Policy(accept_ids_only=True)).verdict
    zeros = replace(answer(), logprobs=(0.0,) * len(TOKENS))
    assert Reason.LOGPROBS_UNUSABLE is judged(dict.fromkeys(ARMS, zeros)).reasons[0].reason


def test_alignment_makes_cold_pairs_exact_only_when_another_group_proves_it() -> None:
    one, two = group_plan("g1", aligned=True), group_plan("g2", aligned=True)
    saved_wrong: Answers = {arm: answer(shift=0.01) for arm in (Arm.LOCAL, Arm.LOCAL_REPEAT, *SUBJECTS)}
    alone = judge(run_plan(one), RunRecord(whole_run(entries(one, saved_wrong))))
    assert Verdict.PASS is alone.verdict
    assert any("ALIGNMENT_UNPROVEN" in note for note in alone.notes)
    proven = judge(run_plan(one, two), RunRecord(whole_run(entries(one, saved_wrong), entries(two, {}))))
    assert (Verdict.FAIL, Reason.DRIFT) == (proven.verdict, proven.reasons[0].reason)
    assert proven.alignment_proven
    failing = {each.kind.value for each in proven.groups[0].pairs if each.verdict is Verdict.FAIL}
    assert {"external_vs_cold", "local_vs_cold"} == failing


def test_lost_codewords_count_only_beyond_what_controls_lose() -> None:
    said, silent = answer(text="amber cedar elm"), answer(text="I do not know")
    every: Answers = dict.fromkeys(ARMS, said)
    lossy = {**every, Arm.LOCAL_REPEAT: answer(shift=0.02, text="amber cedar elm"), **both(silent)}
    assert Reason.DIVERGED is judged(lossy).reasons[0].reason
    forgetful = {**lossy, Arm.COLD_REPEAT: silent}
    assert Verdict.PASS is judged(forgetful).verdict


def test_a_replaced_group_is_shown_but_not_counted() -> None:
    void, stand_in = group_plan("g1"), group_plan("g1+1")
    preempted = {Arm.COLD: counters(LENGTH, 0, 0, preemptions=1)}
    history = whole_run(entries(void, {}, preempted), entries(stand_in, {}, replaces="g1"))  # type: ignore[arg-type]
    ruling = judge(run_plan(void), RunRecord(history))
    assert Verdict.PASS is ruling.verdict
    assert [True, False] == [group.replaced for group in ruling.groups]


def test_nothing_checked_is_never_a_pass() -> None:
    nothing = judge(run_plan(), RunRecord([]))
    assert (Verdict.INCONCLUSIVE, Reason.INTERRUPTED) == (nothing.verdict, nothing.reasons[0].reason)
    assert Reason.NOTHING_CHECKED in [problem.reason for problem in nothing.reasons]


def test_a_history_cut_off_anywhere_is_judged_and_never_passes() -> None:
    group = group_plan()
    history = whole_run(entries(group, {}))
    for cut in range(len(history)):
        ruling = judge(run_plan(group), RunRecord(history[:cut]))
        assert Verdict.INCONCLUSIVE is ruling.verdict, cut


def test_a_tier_without_a_judged_group_is_not_covered() -> None:
    one, two = group_plan("g1", tier=99), group_plan("g2", tier=200)
    ruling = judge(run_plan(one, two), RunRecord(whole_run(entries(one, {}))))
    assert (Verdict.INCONCLUSIVE, Reason.TIER_NOT_COVERED) == (ruling.verdict, ruling.reasons[0].reason)
    assert ruling.reasons[0].detail == "tiers 200"


def test_more_differences_than_controls_explain_fail_the_run() -> None:
    """Each group alone is within the envelope, but only external hits flip."""
    groups = [group_plan(f"g{number}") for number in range(12)]
    flipping = {**TIED, **both(near_tie())}
    noisy = {**flipping, Arm.LOCAL_REPEAT: answer(shift=0.02, gap=0.05)}
    ruling = judge(run_plan(*groups), RunRecord(whole_run(*(entries(group, noisy) for group in groups))))
    assert (Verdict.FAIL, Reason.EXCESS_DIVERGENCE) == (ruling.verdict, ruling.reasons[0].reason)
    alike = {**noisy, Arm.LOCAL: near_tie(), Arm.LOCAL_REPEAT: replace(near_tie(), text="again")}
    calm = judge(run_plan(*groups), RunRecord(whole_run(*(entries(group, alike) for group in groups))))
    assert Verdict.PASS is calm.verdict
