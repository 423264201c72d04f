"""The search for where a failure begins: it ends at one step where it can, and claims nothing that it has not seen."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from kvgate.domain.bracket import CONFIRMED, Found, Search, Tried, found, next_place
from kvgate.domain.verdict import Verdict

Oracle = Callable[[int], Verdict]
PASS, FAIL, UNSURE = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


def searched(known: tuple[Tried, ...], oracle: Oracle, most: int = 8, first: int = 1, stride: int = 1) -> Search:
    """A search carried out to its end."""
    search = Search(known, first, stride, most)
    while (place := next_place(search)) is not None:
        assert search.sent < most
        search = Search((*search.tried, Tried(place, oracle(place))), first, stride, most)
    return search


def then(*seen: tuple[int, Verdict]) -> tuple[Tried, ...]:
    """What a run showed, by two groups each."""
    return tuple(Tried(place, verdict, now=False) for place, verdict in seen for _ in range(2))


@pytest.mark.parametrize("width", range(2, 65))
def test_every_position_is_bracketed_to_one_step_by_eight_groups(width: int) -> None:
    for begins in range(11, 11 + width):
        search = searched(then((10, PASS), (10 + width, FAIL)), lambda place, at=begins: FAIL if place >= at else PASS)  # type: ignore[misc]
        assert (Found.BRACKETED, begins - 1, begins) == (found(search), search.passes, search.fails)
        assert search.sent <= min(8, math.ceil(math.log2(width)) + 3)


@pytest.mark.parametrize("width", [100, 200, 256])
def test_eight_groups_halve_as_far_as_they_go_and_say_what_is_not_confirmed(width: int) -> None:
    for begins in range(11, 11 + width):
        search = searched(then((10, PASS), (10 + width, FAIL)), lambda place, at=begins: FAIL if place >= at else PASS)  # type: ignore[misc]
        low, high = search.passes or 0, search.fails or 0
        assert low < begins <= high
        assert 1 == high - low
        if Found.BRACKETED is not found(search):
            assert CONFIRMED > min(search.count(low, PASS), search.count(high, FAIL))


def test_steps_wider_than_one_are_kept_to() -> None:
    search = searched(then((8, PASS), (64, FAIL)), lambda place: FAIL if place >= 40 else PASS, first=8, stride=8)
    assert (Found.BRACKETED, 32, 40) == (found(search), search.passes, search.fails)
    assert {0} == {each.place % 8 for each in search.tried}


@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_places_are_like_nothing_is_claimed_that_is_not_so(seed: int) -> None:
    """Places that fail here and there, and some that show nothing: not monotone, and full of holes."""
    drawn = np.random.default_rng(seed)
    truth = {place: (PASS, FAIL, FAIL, UNSURE, PASS)[drawn.integers(5)] for place in range(1, 60)}
    truth[60] = FAIL
    search = searched(then((60, FAIL)), truth.__getitem__)
    low, high = search.passes, search.fails
    assert high is not None
    assert FAIL is truth[high]
    assert low is None or PASS is truth[low]
    assert all(UNSURE is truth[each] for each in search.unknown)
    assert all(PASS is truth[each] for each in search.passes_above)
    if Found.BRACKETED is found(search):
        assert low == high - 1
    if Found.ALL_FAIL is found(search):
        assert 1 == high


def test_a_hole_at_the_edge_leaves_a_wider_bracket() -> None:
    holes = range(28, 33)
    search = searched(
        then((10, PASS), (50, FAIL)), lambda place: UNSURE if place in holes else FAIL if place >= 30 else PASS, most=16
    )
    assert (Found.NARROWED, 27, 33) == (found(search), search.passes, search.fails)
    assert tuple(holes) == search.unknown


def test_the_first_place_there_is_can_be_the_one_that_fails() -> None:
    search = searched(then((50, FAIL)), lambda _: FAIL)
    assert (Found.ALL_FAIL, None, 1) == (found(search), search.passes, search.fails)


def test_what_passes_now_is_gone() -> None:
    assert Found.GONE is found(searched(then((10, PASS), (12, FAIL)), lambda _: PASS))
    assert Found.GONE is found(searched(then((50, FAIL)), lambda _: PASS))


def by_chance(share: float, seed: int) -> Oracle:
    """Places that fail at random."""
    drawn = np.random.default_rng(seed)
    return lambda _: FAIL if drawn.random() < share else PASS


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_a_place_that_passes_and_fails_is_no_bracket(share: float) -> None:
    """By luck a place may pass twice and the next fail twice; more often it is seen that the place is not it."""
    outcomes = [found(searched(then((10, PASS), (42, FAIL)), by_chance(share, seed))) for seed in range(200)]
    assert outcomes.count(Found.NOT_BY_PLACE) > outcomes.count(Found.BRACKETED)


def test_nothing_is_looked_for_where_nothing_fails() -> None:
    search = Search(then((10, PASS)), 1, 1, 8)
    assert (None, Found.UNDECIDED) == (next_place(search), found(search))
