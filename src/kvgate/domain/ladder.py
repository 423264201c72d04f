"""Which rung of a ladder to try next, and what the rungs tried so far show.

A ladder is an ordered list of deployment states. Rungs are held against nothing but themselves; what is looked for is
where they begin to fail. Nothing says that a ladder is monotone, so an answer names what was tried and claims no more:
a rung that fails, the one below it that passes, and what its neighbours do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from kvgate.domain.verdict import Verdict


class Mode(Enum):
    """How rungs are tried: by halving, one by one from below, or sets of flags by delta debugging."""

    BINARY = "binary"
    CLIMB = "climb"
    FLAGS = "flags"


Seen = Mapping[int, Verdict]


@dataclass(frozen=True, slots=True)
class Finding:
    """What the rungs that were tried show, by their places on the ladder.

    ``fails`` is the lowest that fails, ``passes`` the nearest below it that passes; ``between`` are those between the
    two that were undecided or could not be tried. ``alone`` are rungs above ``fails`` that pass: the ladder is not
    monotone. ``undecided`` and ``untried`` are of the whole ladder.
    """

    fails: int | None
    passes: int | None
    between: tuple[int, ...]
    alone: tuple[int, ...]
    undecided: tuple[int, ...]
    untried: tuple[int, ...]

    @property
    def verdict(self) -> Verdict:
        """FAIL where a rung fails, PASS where all of them passed, else INCONCLUSIVE."""
        if self.fails is not None:
            return Verdict.FAIL
        return Verdict.INCONCLUSIVE if self.undecided or self.untried else Verdict.PASS


def next_rung(valid: tuple[int, ...], seen: Seen, mode: Mode) -> int | None:
    """The place of the rung to try next, None if what can be found out is found out.

    ``valid`` are the places of the rungs that may be tried, lowest first. By halving, a failing rung among n is found
    and confirmed at both neighbours with at most ceil(log2 n) + 2 of them; where none fails, all of them are tried.
    """
    failing = _halved(valid, seen) if mode is Mode.BINARY else None
    if isinstance(failing, _Wanted):
        return failing.place
    tried = [place for place in valid if place in seen]
    lowest = next((place for place in tried if seen[place] is Verdict.FAIL), None)
    if lowest is None:
        return next((place for place in valid if place not in seen), None)
    at = valid.index(lowest)
    neighbours = (*valid[max(0, at - 1) : at], *valid[at + 1 : at + 2])
    return next((place for place in neighbours if place not in seen), None)


@dataclass(frozen=True, slots=True)
class _Wanted:
    place: int


def _halved(valid: tuple[int, ...], seen: Seen) -> _Wanted | None:
    """The next rung that halving asks for, None once it has come to an end. Undecided rungs are stepped around."""
    low, high = -1, len(valid)
    while True:
        inside = [at for at in range(low + 1, high) if seen.get(valid[at]) is not Verdict.INCONCLUSIVE]
        if not inside:
            return None
        middle = (low + high) // 2
        at = min(inside, key=lambda each: (abs(each - middle), each))
        said = seen.get(valid[at])
        if said is None:
            return _Wanted(valid[at])
        low, high = (at, high) if said is Verdict.PASS else (low, at)


def finding(count: int, seen: Seen) -> Finding:
    """What the rungs tried so far show, of ``count`` rungs."""
    places = range(count)
    fails = next((place for place in places if seen.get(place) is Verdict.FAIL), None)
    below = [place for place in places if fails is not None and place < fails and seen.get(place) is Verdict.PASS]
    passes = below[-1] if below else None
    between = range(passes + 1 if passes is not None else 0, fails) if fails is not None else ()
    return Finding(
        fails=fails,
        passes=passes,
        between=tuple(between),
        alone=tuple(
            place for place in places if fails is not None and place > fails and seen.get(place) is Verdict.PASS
        ),
        undecided=tuple(place for place in places if seen.get(place) is Verdict.INCONCLUSIVE),
        untried=tuple(place for place in places if place not in seen),
    )
