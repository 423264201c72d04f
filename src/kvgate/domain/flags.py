"""Which of several features, together, make a deployment fail: delta debugging over sets of flags.

The algorithm is Zeller and Hildebrandt's ddmin with three outcomes: a set fails, passes, or is undecided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvgate.domain.verdict import Verdict

Flags = frozenset[str]
Seen = Mapping[Flags, Verdict]


@dataclass(frozen=True, slots=True)
class Culprits:
    """What was found out of all flags.

    ``flags`` is a set that fails, none where all flags together do not. ``needless`` are flags of it of which it is not
    shown that it takes them: without each of them the set was undecided. ``fails_bare`` is whether the deployment fails
    with no flag at all.
    """

    flags: tuple[str, ...] | None
    needless: tuple[str, ...]
    fails_bare: bool
    undecided: bool


class _Needed(Exception):  # noqa: N818 - not an error: this set has to be tried before the search can go on
    def __init__(self, flags: Flags) -> None:
        super().__init__()
        self.flags = flags


def next_flags(flags: Sequence[str], seen: Seen) -> Flags | None:
    """The set to try next, None once the smallest that fails is known, or that none does."""
    try:
        culprits(flags, seen)
    except _Needed as needed:
        return needed.flags
    return None


def culprits(flags: Sequence[str], seen: Seen) -> Culprits:
    """What the sets tried show. Call it once ``next_flags`` asks for no more."""

    def said(some: Sequence[str]) -> Verdict:
        found = seen.get(frozenset(some))
        if found is None:
            raise _Needed(frozenset(some))
        return found

    together = said(flags)
    if together is not Verdict.FAIL:
        return Culprits(None, (), False, together is Verdict.INCONCLUSIVE)
    bare = said(())
    if bare is Verdict.FAIL:
        return Culprits((), (), True, False)
    left, pieces = tuple(flags), 2
    while len(left) >= 2:
        parts = _split(left, pieces)
        rests = [tuple(each for each in left if each not in part) for part in parts]
        smaller = next((part for part in parts if said(part) is Verdict.FAIL), None)
        if smaller is not None:
            left, pieces = smaller, 2
            continue
        # With two pieces each is the rest of the other.
        smaller = next((rest for rest in rests if pieces > 2 and said(rest) is Verdict.FAIL), None)
        if smaller is not None:
            left, pieces = smaller, max(pieces - 1, 2)
            continue
        if pieces >= len(left):
            break
        pieces = min(len(left), 2 * pieces)
    needless = tuple(each for each in left if said([other for other in left if other != each]) is Verdict.INCONCLUSIVE)
    return Culprits(left, needless, False, bool(needless) or bare is Verdict.INCONCLUSIVE)


def _split(left: tuple[str, ...], pieces: int) -> list[tuple[str, ...]]:
    ends = [round(number * len(left) / pieces) for number in range(pieces + 1)]
    return [left[ends[at] : ends[at + 1]] for at in range(pieces) if ends[at + 1] > ends[at]]
