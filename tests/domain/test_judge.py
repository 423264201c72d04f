"""What the judge makes of whole runs: exactness, strays, replacements, noise, excess, cut histories."""

from dataclasses import replace

import pytest

from kvgate.domain.counters import Counters
from kvgate.domain.history import CountersRead, Entry, RunStopped
from kvgate.domain.judge import judge
from kvgate.domain.observation import Observation
from kvgate.domain.plan import Route
from kvgate.domain.policy import Policy, PolicyName
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import RunVerdict
from kvgate.domain.verdict import Verdict
from tests.domain import recorded_canaries, recorded_sentinels
from tests.domain.judging import OTHER, SUBJECTS, TIED, both, judged, near_tie, pair, pair_of
from tests.domain.making import (
    ARMS,
    HIT,
    LENGTH,
    Answers,
    answer,
    counters,
    entries,
    group_plan,
    refused,
    run_plan,
    whole_run,
)
from tests.domain.recorded_attribution import CASES_LAID, Laid
from tests.domain.recorded_case import history, told


def test_alignment_makes_cold_pairs_exact_only_when_another_group_proves_it() -> None:
    one, two = group_plan("g1", aligned=True), group_plan("g2", aligned=True)
    saved_wrong: Answers = {arm: answer(shift=0.01) for arm in (Arm.LOCAL, Arm.LOCAL_REPEAT, *SUBJECTS)}
    alone = judge(run_plan(one), RunRecord(whole_run(entries(one, saved_wrong))))
    assert (Verdict.INCONCLUSIVE, Reason.ALIGNMENT_UNPROVEN) == (alone.verdict, alone.reasons[0].reason)
    accepted = run_plan(one, policy=Policy(accept_unproven_alignment=True))
    alone = judge(accepted, RunRecord(whole_run(entries(one, saved_wrong))))
    assert Verdict.PASS is alone.verdict
    assert any("ALIGNMENT_UNPROVEN" in note for note in alone.notes)
    noisy = {**saved_wrong, Arm.COLD_REPEAT: answer(shift=0.02)}
    assert Verdict.PASS is judge(run_plan(one), RunRecord(whole_run(entries(one, noisy)))).verdict
    once = judge(run_plan(one, two), RunRecord(whole_run(entries(one, saved_wrong), entries(two, {}))))
    assert (Verdict.INCONCLUSIVE, Reason.UNSTABLE) == (once.verdict, once.reasons[0].reason), "the cold run may be odd"
    fine = [group_plan(f"g{number}", aligned=True) for number in (3, 4, 5)]
    told = [entries(one, saved_wrong), entries(two, saved_wrong), *(entries(each, {}) for each in fine)]
    proven = judge(run_plan(one, two, *fine), RunRecord(whole_run(*told)))
    assert (Verdict.FAIL, Reason.DRIFT) == (proven.verdict, proven.reasons[0].reason)
    assert proven.alignment_proven
    failing = {each.kind.value for each in proven.groups[0].pairs if each.verdict is Verdict.FAIL}
    assert {"external_vs_cold", "local_vs_cold"} == failing


def without_logprobs(text: str) -> Observation:
    return replace(answer(text=text), logprobs=None, top_ids=None, top_logprobs=None)


def test_lost_codewords_count_where_logprobs_cannot_tell_and_controls_keep_them() -> None:
    said, silent = without_logprobs("amber cedar elm"), replace(without_logprobs("I do not know"), token_ids=OTHER)
    policy = Policy(accept_ids_only=True)
    lossy: Answers = {**dict.fromkeys(ARMS, said), **both(silent)}
    reason = judged(lossy, policy=policy).reasons[0]
    assert (Reason.DIVERGED, "1 codewords lost; again in 1 of 1 repeats") == (
        reason.reason,
        reason.detail.split(": ")[1],
    )
    # Tokens that differ and lose nothing more than a cold run loses against itself are left undecided.
    forgetful = {**lossy, Arm.COLD_REPEAT: silent}
    assert Verdict.INCONCLUSIVE is judged(forgetful, policy=policy).verdict


@pytest.mark.parametrize(("groups", "verdict"), [(8, Verdict.PASS), (9, Verdict.FAIL)])
def test_codewords_lost_in_too_many_groups_fail_the_run(groups: int, verdict: Verdict) -> None:
    """Each loss alone may follow a near tie; losing always and never winning is no accident."""
    plans = [group_plan(f"g{number}") for number in range(groups)]
    said = {arm: replace(answer(gap=0.05), text="amber cedar elm") for arm in ARMS}
    noisy = {**said, Arm.LOCAL_REPEAT: answer(shift=0.02, gap=0.05, text="amber cedar elm"), **both(near_tie())}
    flat: Answers = {**noisy, Arm.LOCAL: near_tie(), Arm.LOCAL_REPEAT: replace(near_tie(), text="x")}
    ruling = judge(run_plan(*plans), RunRecord(whole_run(*(entries(plan, flat) for plan in plans))))
    assert verdict is ruling.verdict, ruling.reasons


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


def test_a_replaced_group_that_proved_a_fault_still_counts() -> None:
    void, stand_in = group_plan("g1"), group_plan("g1+1")
    preempted = {Arm.COLD_REPEAT: counters(LENGTH, 0, 0, preemptions=1)}
    history = whole_run(
        entries(void, both(answer(OTHER)), preempted),  # type: ignore[arg-type]
        entries(stand_in, {}, replaces="g1"),
    )
    ruling = judge(run_plan(void), RunRecord(history))
    assert (Verdict.FAIL, Reason.DIVERGED) == (ruling.verdict, ruling.reasons[0].reason)


def with_counters(entry: Entry, reading: Counters) -> Entry:
    assert isinstance(entry, CountersRead)
    return replace(entry, counters=reading)


def test_partial_loads_cannot_acquit_but_can_convict() -> None:
    """The first attempt brought half the tokens and a wrong answer, the second all and the right one."""
    group = group_plan()
    wrong_then_right: Answers = {Arm.EXTERNAL: [answer(OTHER), answer()]}
    history = whole_run(entries(group, wrong_then_right))
    partial = counters(LENGTH - 48, 0, 48)
    first = next(
        index
        for index, entry in enumerate(history)
        if getattr(entry, "arm", None) is Arm.EXTERNAL and getattr(entry, "moment", None) == "after"
    )
    history[first] = with_counters(history[first], partial)
    ruling = judge(run_plan(group), RunRecord(history))
    assert (Verdict.INCONCLUSIVE, Reason.UNSTABLE) == (ruling.verdict, ruling.reasons[0].reason)
    right = whole_run(entries(group, {Arm.EXTERNAL: [answer(), answer()]}))
    right[first] = with_counters(right[first], partial)
    assert Verdict.PASS is judge(run_plan(group), RunRecord(right)).verdict


def test_a_local_hit_after_an_external_load_is_no_baseline() -> None:
    readings = {Arm.LOCAL: counters(LENGTH - HIT, 0, HIT)}
    group = group_plan()
    history = whole_run(entries(group, {Arm.LOCAL: [answer(), answer()]}, readings))  # type: ignore[arg-type]
    ruling = judge(run_plan(group), RunRecord(history))
    assert (Verdict.INCONCLUSIVE, Reason.BASELINE_NOT_LOCAL) == (ruling.verdict, ruling.reasons[0].reason)


def test_an_unproven_control_is_not_measured_noise() -> None:
    readings = {Arm.LOCAL_REPEAT: counters(LENGTH - 48, 48, 0)}
    ruling = judged(both(answer(shift=0.4)), readings)  # type: ignore[arg-type]
    assert (Verdict.INCONCLUSIVE, Reason.BASELINE_NOT_LOCAL) == (ruling.verdict, ruling.reasons[0].reason)


def test_counters_that_do_not_add_up_are_a_conflict() -> None:
    reading = counters(LENGTH, 0, HIT, prompt_tokens=LENGTH)
    ruling = judged({}, dict.fromkeys(SUBJECTS, reading))
    assert (Verdict.INCONCLUSIVE, Reason.SENSOR_CONFLICT) == (ruling.verdict, ruling.reasons[0].reason)


def test_an_early_stop_needs_a_fail_to_be_covered_by() -> None:
    group = group_plan()
    history = entries(group, {})
    stop = RunStopped(1.0, Problem(Reason.DIVERGED, "stopped early"))
    ruling = judge(run_plan(group), RunRecord([*history, stop]))
    assert (Verdict.INCONCLUSIVE, Reason.DIVERGED) == (ruling.verdict, ruling.reasons[0].reason)


def test_a_refusal_that_went_away_is_not_forgotten() -> None:
    ruling = judged({Arm.EXTERNAL: [refused(), answer()]})
    assert (Verdict.INCONCLUSIVE, Reason.PROBE_REFUSED) == (ruling.verdict, ruling.reasons[0].reason)


def with_one_noisy_neighbour(answers: Answers, neighbours: int) -> RunVerdict:
    """A group among neighbours of which one has a control that moved."""
    groups = [group_plan(f"g{number}") for number in range(neighbours + 1)]
    noisy: Answers = {Arm.LOCAL_REPEAT: answer(shift=0.02)}
    every = [answers, noisy, *({} for _ in groups[2:])]
    histories = [entries(group, each) for group, each in zip(groups, every, strict=True)]
    return judge(run_plan(*groups), RunRecord(whole_run(*histories)))


def test_with_a_little_noise_about_a_difference_must_come_three_times_bit_by_bit() -> None:
    once = with_one_noisy_neighbour({Arm.EXTERNAL: answer(shift=0.02)}, 10)
    assert (Verdict.INCONCLUSIVE, Reason.UNSTABLE) == (once.verdict, once.reasons[0].reason)
    unlike = with_one_noisy_neighbour({Arm.EXTERNAL: answer(shift=0.02), Arm.EXTERNAL_REPEAT: answer(shift=0.03)}, 10)
    assert (Verdict.INCONCLUSIVE, Reason.UNSTABLE) == (unlike.verdict, unlike.reasons[0].reason)
    twice = with_one_noisy_neighbour(both(answer(shift=0.02)), 10)
    assert (Verdict.INCONCLUSIVE, Reason.UNSTABLE) == (twice.verdict, twice.reasons[0].reason)


def test_with_much_noise_about_no_control_makes_a_pair_exact() -> None:
    ruling = with_one_noisy_neighbour(both(answer(shift=0.02)), 3)
    assert Verdict.PASS is ruling.verdict
    assert not pair_of(ruling.groups[0], Arm.EXTERNAL, Arm.LOCAL).exact


def test_cold_pairs_are_exact_only_at_the_predicted_hit_length() -> None:
    """A hit of another length has another suffix shape, whatever was predicted."""
    groups = [group_plan(f"g{number}", aligned=True) for number in range(3)]
    shorter = {arm: counters(LENGTH - 78, 0, 78) for arm in SUBJECTS}
    histories = [entries(groups[0], both(answer(shift=0.02)), shorter)]  # type: ignore[arg-type]
    histories += [entries(group, {}) for group in groups[1:]]
    ruling = judge(run_plan(*groups), RunRecord(whole_run(*histories)))
    assert Verdict.PASS is ruling.verdict, ruling.reasons
    assert "not as long as predicted" in (pair_of(ruling.groups[0], Arm.EXTERNAL, Arm.COLD).why_not_exact or "")


def test_the_calibrated_result_does_not_depend_on_the_policy_asked_for() -> None:
    groups = [group_plan(f"g{number}") for number in range(12)]
    noisy: Answers = {**TIED, Arm.LOCAL_REPEAT: answer(shift=0.02, gap=0.05), **both(near_tie())}
    history = whole_run(*(entries(group, noisy) for group in groups))
    results = [judge(run_plan(*groups, policy=Policy(name=name)), RunRecord(history)).results[0] for name in PolicyName]
    assert results[0] == results[1]


def test_a_text_that_differs_without_ids_is_undecided() -> None:
    def text(words: str) -> Observation:
        return replace(answer(text=words), token_ids=None, logprobs=None, top_ids=None, top_logprobs=None)

    answers: Answers = {**dict.fromkeys(ARMS, text("one")), Arm.COLD: text("two"), Arm.COLD_REPEAT: text("two")}
    ruling = judged(answers, policy=Policy(accept_text_only=True, accept_ids_only=True))
    assert (Verdict.INCONCLUSIVE, Reason.TEXT_ONLY) == (ruling.verdict, ruling.reasons[0].reason)


def test_a_baseline_that_alone_is_odd_does_not_convict() -> None:
    ruling = judged({Arm.LOCAL: answer(OTHER)})
    found = pair(ruling, Arm.EXTERNAL, Arm.LOCAL)
    assert (Verdict.INCONCLUSIVE, Reason.UNSTABLE) == (found.verdict, found.problem and found.problem.reason)


def test_one_lucky_group_does_not_prove_alignment() -> None:
    groups = [group_plan(f"g{number}", aligned=True) for number in range(4)]
    shaped: Answers = {arm: answer(shift=0.2) for arm in (Arm.LOCAL, Arm.LOCAL_REPEAT, *SUBJECTS)}
    histories = [entries(group, shaped if number else {}) for number, group in enumerate(groups)]
    accepted = Policy(accept_unproven_alignment=True)
    assert Verdict.PASS is judge(run_plan(*groups, policy=accepted), RunRecord(whole_run(*histories))).verdict
    assert Verdict.INCONCLUSIVE is judge(run_plan(*groups), RunRecord(whole_run(*histories))).verdict


def test_a_flip_that_no_logprob_explains_is_undecided_not_wrong() -> None:
    bare = replace(answer(), logprobs=None, top_ids=None, top_logprobs=None)
    other = replace(answer(OTHER), logprobs=None, top_ids=None, top_logprobs=None)
    answers: Answers = {**dict.fromkeys(ARMS, bare), **both(other)}
    ruling = judged(answers, policy=Policy(accept_ids_only=True))
    assert (Verdict.INCONCLUSIVE, Reason.LOGPROBS_UNUSABLE) == (ruling.verdict, ruling.reasons[0].reason)


@pytest.mark.parametrize("laid", CASES_LAID, ids=lambda laid: laid.case.name)
def test_what_fails_is_laid_at_the_part_that_is_wrong(laid: Laid) -> None:
    ruling = laid.case.judged()
    assert laid.case.required == told(ruling)
    said = {pair.subject.value: pair.attribution for group in ruling.groups for pair in group.pairs if pair.attribution}
    assert laid.parts.keys() <= said.keys()
    assert laid.parts == {subject: said[subject].split(":")[0] for subject in laid.parts}


def test_f11_requests_that_were_sent_again_are_counted() -> None:
    again = replace(answer(), marks=("retried",))
    group = group_plan("g1")
    ruling = judge(run_plan(group), RunRecord(whole_run(history(group, {Arm.COLD: again, Arm.LOCAL: again}))))
    assert any(note.startswith(f"2 of {len(group.steps)} requests were sent again") for note in ruling.notes)


def test_canaries_that_were_not_answered_are_not_said_to_be_clean() -> None:
    never = next(case for case in recorded_canaries.CASES if case.name == "canaries: never sent").judged()
    assert any(note.endswith("0 of 6 were answered") for note in never.notes)
    clean = recorded_canaries.CASES[0].judged()
    assert any(note.endswith("6 of 6 were answered, none of them with another's nonce") for note in clean.notes)


def test_f26_an_engine_that_changes_is_told_with_the_requests_between_which_it_did() -> None:
    cases = {case.name: case for case in recorded_sentinels.CASES}
    told = recorded_sentinels.between
    assert told(cases["sentinel: alike throughout"]) is None
    assert told(cases["sentinel: the last one only"]) is None
    # Two answers, six of the first group, one answer, six of the second group, two answers.
    assert (9, 16, ("g2",)) == told(cases["sentinel: wrong at the end"])
    assert (2, 9, ("g1",)) == told(cases["sentinel: wrong after the first group"])
    assert (2, 16, ("g1", "g2")) == told(cases["sentinel: wrong at the end, one lost"])
    reason = cases["sentinel: wrong at the end"].judged().reasons[0].detail
    assert "alike up to request 9 of the run and otherwise from request 16 on (g2 in between)" in reason
    (note,) = (note for note in cases["sentinel: drifts a little"].judged().notes if "computed afresh" in note)
    assert "a answered one prompt alike 5 times" in note
    assert "from request 1 to 17 of the run (largest drift 0.05 nat)" in note


def test_what_fails_while_the_engine_changes_is_laid_at_the_engine() -> None:
    wrong = {Arm.EXTERNAL: answer(OTHER), Arm.EXTERNAL_REPEAT: answer(OTHER)}
    said = [recorded_sentinels.SAME] * 3 + [recorded_sentinels.WRONG] * 2
    case = recorded_sentinels.timeline("", "FAIL", said, first=wrong, second=wrong)
    blamed = {
        group.id: {pair.attribution.split(":")[0] for pair in group.pairs if pair.attribution is not None}
        for group in case.judged().groups
    }
    assert {"g1": {"external path"}, "g2": {"engine"}} == blamed
    # Behind prefill and decode the sentinel's own answers came through the transfer.
    behind = replace(case, plan=replace(case.plan, route=Route.TWO_LEG)).judged()
    assert not [
        pair for group in behind.groups for pair in group.pairs if (pair.attribution or "").startswith("engine")
    ]
