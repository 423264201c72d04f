"""Searching ladders: every planted place is found within its bound, and nothing is claimed that is not so."""

import itertools
import math
import random

import pytest

from kvgate.domain.flags import culprits, next_flags
from kvgate.domain.ladder import Finding, Mode, finding, next_rung
from kvgate.domain.verdict import Verdict

PASS, FAIL, OPEN = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE
BY_LETTER = {"P": PASS, "F": FAIL, "o": OPEN}


def searched(truth: str, mode: Mode, invalid: tuple[int, ...] = ()) -> tuple[Finding, list[int]]:
    """What comes of a ladder whose rungs say so, and the rungs in the order in which they were tried."""
    valid = tuple(place for place in range(len(truth)) if place not in invalid)
    seen: dict[int, Verdict] = {}
    while (place := next_rung(valid, seen, mode)) is not None:
        assert place in valid
        assert place not in seen
        seen[place] = BY_LETTER[truth[place]]
    return finding(len(truth), seen), list(seen)


def holds(truth: str, found: Finding) -> None:
    """Nothing that is claimed is otherwise in truth."""
    if found.fails is not None:
        assert truth[found.fails] == "F"
    if found.passes is not None:
        assert found.fails is not None
        assert truth[found.passes] == "P"
        assert found.passes < found.fails
        assert tuple(range(found.passes + 1, found.fails)) == found.between
    assert all(truth[place] == "P" for place in found.alone)
    assert all(truth[place] == "o" for place in found.undecided)
    if found.verdict is PASS:
        assert set(truth) == {"P"}


@pytest.mark.parametrize("mode", [Mode.BINARY, Mode.CLIMB])
@pytest.mark.parametrize("count", range(2, 10))
def test_a_planted_rung_is_found_wherever_it_is(mode: Mode, count: int) -> None:
    for first in range(count):
        truth = "P" * first + "F" * (count - first)
        found, tried = searched(truth, mode)
        holds(truth, found)
        assert (first, first - 1 if first else None, ()) == (found.fails, found.passes, found.between)
        assert () == found.alone
        # Confirmed at both neighbours.
        assert {place for place in (first - 1, first, first + 1) if 0 <= place < count} <= set(tried)
        if mode is Mode.BINARY:
            assert len(tried) <= math.ceil(math.log2(count)) + 2
        if count == 4:
            assert len(tried) <= (3 if mode is Mode.BINARY else 4), "off, 1, 3, 7: three restarts at most"


@pytest.mark.parametrize("mode", [Mode.BINARY, Mode.CLIMB])
@pytest.mark.parametrize("count", range(2, 8))
def test_whatever_the_rungs_say_nothing_is_claimed_that_is_not_so(mode: Mode, count: int) -> None:
    for letters in itertools.product("PFo", repeat=count):
        truth = "".join(letters)
        found, tried = searched(truth, mode)
        holds(truth, found)
        if "F" not in truth:
            # That nothing fails is said of what was tried, and all of it was.
            assert count == len(tried)
            assert found.verdict is (OPEN if "o" in truth else PASS)


@pytest.mark.parametrize("count", range(3, 10))
def test_undecided_rungs_are_stepped_around_and_named(count: int) -> None:
    for first, hole in itertools.permutations(range(count), 2):
        truth = "".join("o" if at == hole else "F" if at >= first else "P" for at in range(count))
        found, tried = searched(truth, Mode.BINARY)
        assert (first, found.verdict) == (found.fails, FAIL)
        assert ((hole,) if hole == first - 1 else ()) == found.between
        assert hole not in tried or hole in found.undecided
        assert len(tried) <= math.ceil(math.log2(count)) + 2 + 1


def test_a_ladder_that_is_not_monotone_is_told() -> None:
    for truth in ("PPFPP", "FPPPP", "PFPFF"):
        found, _ = searched(truth, Mode.CLIMB)
        assert found.alone, truth
    # By halving, what fails alone among rungs that pass is found where no other fails.
    found, _ = searched("PFPPP", Mode.BINARY)
    assert (1, 0, (2,)) == (found.fails, found.passes, found.alone[:1])


def test_invalid_rungs_are_not_tried() -> None:
    found, tried = searched("PPFF", Mode.BINARY, invalid=(1,))
    assert 1 not in tried
    assert (2, 0, (1,)) == (found.fails, found.passes, found.between)
    nothing, tried = searched("PP", Mode.CLIMB, invalid=(0, 1))
    assert ([], OPEN) == (tried, nothing.verdict), "a ladder of which nothing could be tried shows nothing"


FLAGS = ("prefix", "dcp", "pool", "spec", "ep", "graph")


def debugged(guilty: set[str], undecided: set[frozenset[str]] = frozenset()) -> tuple[object, int]:  # type: ignore[assignment]
    seen: dict[frozenset[str], Verdict] = {}
    while (wanted := next_flags(FLAGS, seen)) is not None:
        assert wanted not in seen
        seen[wanted] = OPEN if wanted in undecided else FAIL if guilty <= wanted and guilty else PASS
    return culprits(FLAGS, seen), len(seen)


def test_every_set_of_one_to_three_flags_is_found() -> None:
    for size in (1, 2, 3):
        for guilty in itertools.combinations(FLAGS, size):
            found, tries = debugged(set(guilty))
            assert (set(guilty), ()) == (set(found.flags), found.needless)  # type: ignore[attr-defined]
            assert tries <= len(FLAGS) ** 2


def test_where_all_together_pass_no_flag_is_blamed() -> None:
    found, tries = debugged(set())
    assert (None, False, 1) == (found.flags, found.undecided, tries)  # type: ignore[attr-defined]


def test_undecided_sets_blame_no_flag_that_is_not_shown_to_matter() -> None:
    draw = random.Random(3)  # noqa: S311 - which sets are undecided is no secret
    subsets = [frozenset(some) for size in range(1, 6) for some in itertools.combinations(FLAGS, size)]
    for _ in range(200):
        guilty = set(draw.sample(FLAGS, draw.choice((1, 2))))
        undecided = {some for some in subsets if draw.random() < 0.3}
        found, _ = debugged(guilty, undecided)
        assert guilty <= set(found.flags)  # type: ignore[attr-defined]
        assert set(found.flags) - guilty <= set(found.needless)  # type: ignore[attr-defined]
