"""What narrowing a failure down came to, in values and in sentences. A sentence claims what was seen, and no more."""

from dataclasses import dataclass, replace
from enum import Enum

from kvgate.domain.bracket import CONFIRMED, Found
from kvgate.domain.plan import PairKind
from kvgate.domain.verdict import Verdict


class BlockFound(str, Enum):
    """What loading less came to.

    NAMED: the block, give or take one. RANGE: one of several, or shown once only. EVERY_LOAD: however little is loaded,
    it is wrong. NOT_ONE_BLOCK: it hangs on how much is loaded. UNDECIDED: neither. NOT_ASKED: it could not be tried.
    """

    NAMED = "NAMED"
    RANGE = "RANGE"
    EVERY_LOAD = "EVERY_LOAD"
    NOT_ONE_BLOCK = "NOT_ONE_BLOCK"
    UNDECIDED = "UNDECIDED"
    NOT_ASKED = "NOT_ASKED"


@dataclass(frozen=True, slots=True)
class LengthResult:
    """Prompt lengths in tokens: the longest below the failure that passes, the shortest that was seen to fail.

    ``step`` is the distance of two lengths that were possible, ``*_shown`` by how many groups, of the run and now.
    ``unknown`` are lengths in between that showed neither, ``passes_above`` longer ones that pass; ``groups`` were
    sent.
    """

    found: Found
    passes: int | None
    fails: int | None
    step: int
    passes_shown: int
    fails_shown: int
    unknown: tuple[int, ...]
    passes_above: tuple[int, ...]
    groups: int
    said: str


@dataclass(frozen=True, slots=True)
class BlockResult:
    """Blocks in granules, from 0, of a prompt of ``length`` tokens of which ``loaded`` granules are loaded at most.

    The wrong one is between ``first`` and ``last``, both included. ``alone`` is whether the last of them is wrong also
    where it is loaded alone; None if that was not seen.
    """

    found: BlockFound
    length: int
    granule: int
    loaded: int
    first: int | None
    last: int | None
    alone: bool | None
    groups: int
    said: str
    unknown: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One group that was sent: its length, the granules it reuses, whether less than possible was loaded, and what it
    showed of the failure, with the reason where it did not pass."""

    group: str
    length: int
    granules: int
    by_load: bool
    shown: Verdict
    replaced: bool
    why: str


@dataclass(frozen=True, slots=True)
class NarrowResult:
    """Both answers. ``kind`` is the kind of pair that failed, ``attribution`` the part that it speaks against."""

    kind: PairKind
    attribution: str
    length: LengthResult
    block: BlockResult
    steps: tuple[Step, ...]

    @property
    def gone(self) -> bool:
        """Whether the failure did not come again."""
        return self.length.found is Found.GONE

    @property
    def narrowed(self) -> bool:
        """Whether more is known than that it fails."""
        by_length = self.length.found in (Found.BRACKETED, Found.NARROWED, Found.ALL_FAIL)
        return by_length or self.block.found in (BlockFound.NAMED, BlockFound.RANGE, BlockFound.EVERY_LOAD)


def told_of_length(result: LengthResult) -> LengthResult:
    """The same with its sentence."""
    return replace(result, said=_length_sentence(result))


def _length_sentence(result: LengthResult) -> str:
    low, high = result.passes, result.fails
    if result.found is Found.GONE:
        return f"{high} tokens failed in the run and pass now: the failure did not come again"
    if result.found is Found.NOT_BY_PLACE:
        return (
            "one and the same length passes in one group and fails in another, so the failure hangs on something else "
            "than the length; `gate.groups_per_tier` tells how often it strikes"
        )
    if result.found is Found.ALL_FAIL:
        return f"{high} tokens fail, the shortest length of which anything can be loaded: it is no matter of length"
    if low is None:
        return f"{high} tokens fail; no shorter length was shown to pass{_unknown(result)}{_beyond(result)}"
    told = (
        f"{low} tokens pass and {high} fail"
        if result.found is Found.BRACKETED
        else f"between {low} tokens, which pass, and {high}, which fail"
    )
    seen = f"shown by {result.passes_shown} and {result.fails_shown} groups"
    return f"{told} ({seen}; one step is {result.step} tokens){_unknown(result)}{_beyond(result)}{_short(result)}"


def _unknown(result: LengthResult) -> str:
    named = ", ".join(map(str, result.unknown))
    return f"; {named} in between stayed INCONCLUSIVE" if named else ""


def _beyond(result: LengthResult) -> str:
    named = ", ".join(map(str, result.passes_above))
    return f"; {named} tokens pass again, so it is not every longer prompt" if named else ""


def _short(result: LengthResult) -> str:
    if result.found is not Found.NARROWED:
        return ""
    wide = (result.fails or 0) - (result.passes or 0) > result.step and not result.unknown
    once = min(result.passes_shown, result.fails_shown) < CONFIRMED
    return "; --groups sends more to narrow it further" if wide or once else ""


def told_of_block(result: BlockResult) -> BlockResult:
    """The same with its sentence; the reason why it was not asked is one already."""
    if result.found is BlockFound.NOT_ASKED:
        return result
    return replace(result, said=_block_sentence(result))


def _block_sentence(result: BlockResult) -> str:
    at = f"in prompts of {result.length} tokens"
    if result.found is BlockFound.UNDECIDED or result.first is None or result.last is None:
        return f"{at}, loading less of them did not show which block is wrong"
    if result.found is BlockFound.EVERY_LOAD:
        return (
            f"{at}, a load of one block of {result.granule} tokens is wrong already: it is the first block, or every "
            "load whatever it holds (a scale, a layout, side state such as a recurrent state or a window, or a block "
            "whose place hangs on how much is loaded)"
        )
    if result.found is BlockFound.NOT_ONE_BLOCK:
        return (
            f"{at}, loads of up to {result.first} blocks are right and of {result.last + 1} are wrong, yet the last of "
            "these is right where it is loaded alone: it hangs on how much is loaded at once"
        )
    start, end = result.first * result.granule, (result.last + 1) * result.granule
    which = (
        f"block {result.last}" if result.first == result.last else f"one of the blocks {result.first} to {result.last}"
    )
    sure = "wrong also where it is loaded alone" if result.alone else "not shown where it is loaded alone"
    return f"{at}, {which} (from 0, {result.granule} tokens each: tokens {start} to {end - 1}) is wrong, {sure}"
