"""Between which two places a failure begins: a search over whole numbers that makes no claim it has not seen.

Places are granules of a length, or granules that are loaded. What is known of a place is what groups showed there; the
next place to try is a pure function of that. Failure need not be monotone: the bracket is between a place that was seen
to pass and the next one that was seen to fail, and nothing is said of places that were not tried.
"""

from dataclasses import dataclass
from enum import Enum

from kvgate.domain.verdict import Verdict

# How many groups of each neighbour make a claim: a fault that strikes now and then passes once by luck.
CONFIRMED = 2


class Found(str, Enum):
    """What a search came to.

    BRACKETED: one step between a place that passes and one that fails, each shown twice. NARROWED: a bracket that is
    wider, or shown once only. ALL_FAIL: the first place there is fails. NOT_BY_PLACE: one place passes and fails, so
    that the place does not decide. GONE: what failed passes now. UNDECIDED: nothing that passes, or fails, was found.
    """

    BRACKETED = "BRACKETED"
    NARROWED = "NARROWED"
    ALL_FAIL = "ALL_FAIL"
    NOT_BY_PLACE = "NOT_BY_PLACE"
    GONE = "GONE"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True, slots=True)
class Tried:
    """What one group showed at a place. ``now`` is whether it was sent for this search, and not found in a record."""

    place: int
    verdict: Verdict
    now: bool = True


@dataclass(frozen=True, slots=True)
class Search:
    """All that is known. Places are ``first``, ``first + stride`` and so on; ``most`` groups may be sent for it."""

    tried: tuple[Tried, ...]
    first: int
    stride: int
    most: int

    def count(self, place: int, verdict: Verdict) -> int:
        """How many groups showed this at that place."""
        return sum(1 for each in self.tried if each.place == place and each.verdict is verdict)

    def places(self, verdict: Verdict) -> tuple[int, ...]:
        """The places where at least one group showed this, lowest first."""
        return tuple(sorted({each.place for each in self.tried if each.verdict is verdict}))

    @property
    def fails(self) -> int | None:
        """The lowest place that was seen to fail."""
        return min(self.places(Verdict.FAIL), default=None)

    @property
    def passes(self) -> int | None:
        """The highest place below that one that was seen to pass, and never to fail."""
        fails = self.fails
        return max((each for each in self.places(Verdict.PASS) if fails is not None and each < fails), default=None)

    @property
    def unknown(self) -> tuple[int, ...]:
        """Places in between that were tried, and showed neither."""
        low, high = self.passes, self.fails
        known = {*self.places(Verdict.PASS), *self.places(Verdict.FAIL)}
        tried = self.places(Verdict.INCONCLUSIVE)
        return tuple(each for each in tried if each not in known and _between(low, each, high))

    @property
    def passes_above(self) -> tuple[int, ...]:
        """Places above the failing one that pass: it is not all that follow."""
        fails = self.fails
        return tuple(each for each in self.places(Verdict.PASS) if fails is not None and each > fails)

    @property
    def sent(self) -> int:
        """Groups that were sent for it."""
        return sum(1 for each in self.tried if each.now)

    @property
    def mixed(self) -> int | None:
        """A place that was seen both to pass and to fail."""
        both = [each for each in self.places(Verdict.PASS) if self.count(each, Verdict.FAIL)]
        return min(both, default=None)


def _between(low: int | None, place: int, high: int | None) -> bool:
    return high is not None and (low is None or low < place) and place < high


def next_place(search: Search) -> int | None:
    """The place to try next; None if the search is at its end."""
    fails = search.fails
    if fails is None or search.mixed is not None or search.sent >= search.most:
        return None
    untried = _open(search, fails)
    shown_now = any(each.now and each.verdict is Verdict.FAIL for each in search.tried)
    # A record may be of yesterday: whether it still fails is asked first, where enough is left to halve and confirm.
    needed = len(untried).bit_length() + CONFIRMED if untried else 0
    roomy = search.most - search.sent > needed
    if roomy and not shown_now and not any(each.now and each.place == fails for each in search.tried):
        return fails
    if untried:
        low = search.passes
        if low is None and search.first in untried:
            return search.first
        middle = (fails + (low if low is not None else search.first - search.stride)) / 2
        return min(untried, key=lambda place: abs(place - middle))
    return _unconfirmed(search, fails)


def _open(search: Search, fails: int) -> tuple[int, ...]:
    """Places in between that nothing is known of; one that showed neither is stepped around."""
    low = search.passes
    start = search.first if low is None else low - (low - search.first) % search.stride + search.stride
    known = {each.place for each in search.tried}
    return tuple(place for place in range(start, fails, search.stride) if place not in known)


def _unconfirmed(search: Search, fails: int) -> int | None:
    """A neighbour that too few groups have shown, the passing one first: it is the one that luck can fake."""
    low = search.passes
    if low is not None and search.count(low, Verdict.PASS) < CONFIRMED and not _silent(search, low):
        return low
    if search.count(fails, Verdict.FAIL) < CONFIRMED and not _silent(search, fails):
        return fails
    return None


def _silent(search: Search, place: int) -> bool:
    """Whether asking again showed nothing as often as a claim would take."""
    return search.count(place, Verdict.INCONCLUSIVE) >= CONFIRMED


def found(search: Search) -> Found:
    """What may be said, given what was seen."""
    fails, low = search.fails, search.passes
    if fails is None:
        return Found.UNDECIDED
    now = [each.verdict for each in search.tried if each.now]
    if Verdict.PASS in now and Verdict.FAIL not in now and _passes_now(search, fails):
        return Found.GONE
    if search.mixed is not None:
        return Found.NOT_BY_PLACE
    if low is None:
        return Found.ALL_FAIL if fails == search.first else Found.UNDECIDED
    twice = search.count(low, Verdict.PASS) >= CONFIRMED and search.count(fails, Verdict.FAIL) >= CONFIRMED
    return Found.BRACKETED if fails - low <= search.stride and twice else Found.NARROWED


def _passes_now(search: Search, place: int) -> bool:
    return any(each.now and each.place == place and each.verdict is Verdict.PASS for each in search.tried)
