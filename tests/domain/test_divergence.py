"""Comparing answers: classes of divergence, and drift up to where the contexts part."""

from dataclasses import replace

import pytest

from kvgate.domain.divergence import DivergenceClass, compare
from tests.domain.making import TOKENS, answer

SHIFTED = (*TOKENS[:1], 7, 8, *TOKENS[1:-2])

CLASSES = (
    ((*TOKENS[:4], 9, *TOKENS[5:]), DivergenceClass.TOKEN, 4),
    ((), DivergenceClass.EMPTY, 0),
    (TOKENS[:5], DivergenceClass.TRUNCATED, 5),
    ((TOKENS[0], *TOKENS[:-1]), DivergenceClass.FIRST_TOKEN, 1),
    (TOKENS[1:], DivergenceClass.FIRST_TOKEN, 0),
    ((7, 8, *TOKENS[:-2]), DivergenceClass.SHIFT, 0),
    ((*TOKENS[:3], *[5, 6] * 6), DivergenceClass.DEGENERATE, 3),
)


@pytest.mark.parametrize(("ids", "kind", "index"), CLASSES)
def test_classes(ids: tuple[int, ...], kind: DivergenceClass, index: int) -> None:
    result = compare(answer(), answer(ids))
    assert result.divergence is not None
    assert (kind, index) == (result.divergence.kind, result.divergence.index)


def test_a_shift_says_by_how_much() -> None:
    result = compare(answer(), answer((7, 8, *TOKENS[:-2])))
    assert result.divergence is not None
    assert 2 == result.divergence.shift


def test_repetition_that_the_baseline_shows_too_is_no_degeneration() -> None:
    tail = [5] * 12
    result = compare(answer((1, 2, *tail)), answer((1, 3, *tail)))
    assert result.divergence is not None
    assert DivergenceClass.TOKEN is result.divergence.kind


def test_equal_answers_drift_by_exactly_nothing() -> None:
    result = compare(answer(), answer())
    assert result.exact
    assert result.drift is not None
    assert (0.0, None, len(TOKENS)) == (result.drift.maximum, result.drift.first_index, result.drift.positions)


def test_the_smallest_difference_is_no_longer_exact() -> None:
    result = compare(answer(), answer(shift=5e-324 + 1e-16, at=7))
    assert result.ids_equal
    assert not result.exact
    assert result.drift is not None
    assert 7 == result.drift.first_index


def test_the_runner_up_counts_even_where_the_chosen_token_does_not_move() -> None:
    clean = answer()
    tops = list(clean.top_logprobs or ())
    tops[3] = (tops[3][0], (tops[3][1] or 0.0) - 0.25)
    result = compare(clean, replace(clean, top_logprobs=tuple(tops)))
    assert pytest.approx(0.25) == result.max_drift


def test_positions_after_the_divergence_do_not_count() -> None:
    """Later positions have another context."""
    other = (*TOKENS[:4], 9, *TOKENS[5:])
    result = compare(answer(), answer(other, shift=3.0, at=8))
    assert result.drift is not None
    # At the divergence the sides list other tokens: each is at most as likely as the other side's least likely one.
    assert (2.0, 5, 4) == (result.drift.maximum, result.drift.positions, result.drift.first_index)
    at_it = compare(answer(), answer((*TOKENS[:4], TOKENS[4] + 1000, *TOKENS[5:]), shift=0.5, at=4))
    assert at_it.max_drift is not None
    assert at_it.max_drift > 0.0


def test_a_missing_number_on_one_side_is_infinite_drift_and_on_both_none() -> None:
    clean = answer()
    broken = replace(clean, logprobs=(None, *(clean.logprobs or ())[1:]))
    assert float("inf") == compare(clean, broken).max_drift
    assert (None, "a logprob is no number on both sides") == (
        compare(broken, broken).drift,
        compare(broken, broken).drift_problem,
    )
    assert not compare(clean, broken).within(1e9)


def test_ranks_and_gaps_tell_near_ties() -> None:
    base = answer(gap=0.05)
    ids = (*TOKENS[:4], TOKENS[4] + 1000, *TOKENS[5:])
    flipped = replace(
        answer(ids, gap=0.05), top_ids=(*(base.top_ids or ())[:4], (ids[4], TOKENS[4]), *(base.top_ids or ())[5:])
    )
    divergence = compare(base, flipped).divergence
    assert divergence is not None
    assert (1, 1) == (divergence.rank_in_baseline, divergence.rank_in_subject)
    assert divergence.is_near_tie(0.06)
    assert not divergence.is_near_tie(0.04)
    stranger = compare(base, answer((*TOKENS[:4], 9, *TOKENS[5:]), gap=0.05)).divergence
    assert stranger is not None
    assert not stranger.is_near_tie(99.0)


def test_unusable_logprobs_leave_the_drift_unknown() -> None:
    zeros = replace(answer(), logprobs=(0.0,) * len(TOKENS))
    result = compare(answer(), zeros)
    assert (True, None, False) == (result.ids_equal, result.drift, result.exact)
    assert result.drift_problem == "every logprob is exactly 0.0"


def test_tokens_that_only_one_side_lists_count_by_what_is_certain_of_them() -> None:
    clean = answer(gap=2.0)
    strangers = replace(clean, top_ids=tuple((row[0], row[1] + 7) for row in clean.top_ids or ()))
    assert 0.0 == compare(clean, strangers).max_drift  # both list their least likely token only
    likely = replace(strangers, top_logprobs=tuple((row[0], -0.7) for row in clean.top_logprobs or ()))
    assert compare(clean, likely).max_drift == pytest.approx(1.8)


def test_rows_that_list_nothing_on_one_side_make_the_drift_unknown() -> None:
    bare = replace(answer(), top_ids=((),) * len(TOKENS), top_logprobs=((),) * len(TOKENS))
    assert compare(answer(), bare).drift is None


def test_rows_of_different_width_are_compared_where_they_overlap() -> None:
    clean = answer()
    narrow = replace(
        clean,
        top_ids=((clean.top_ids or ())[0][:1], *(clean.top_ids or ())[1:]),
        top_logprobs=((clean.top_logprobs or ())[0][:1], *(clean.top_logprobs or ())[1:]),
    )
    assert compare(clean, narrow).exact
