"""Lists that a stream brings in pieces: each holds what is new, or each holds all there is so far."""

from collections.abc import Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Gathered(Generic[Item]):
    """What the lists of one field add up to.

    Most engines send what is new; some send everything so far with every chunk. As long as each list begins with the
    one before it, both are possible: [7] and [7, 7] are two tokens or three. The first list that does not settles it.
    """

    __slots__ = ("_lengths", "items")

    def __init__(self) -> None:
        # All items, once every list is known to be new; until then the longest list, which begins with all others.
        self.items: list[Item] = []
        self._lengths: list[int] | None = []

    def add(self, part: list[Item]) -> bool:
        """Take a list; True if it brought something new. The list is kept, not copied."""
        lengths = self._lengths
        if lengths is None:
            self.items += part
            return bool(part)
        if not part:
            return False
        known = len(self.items)
        if part[:known] == self.items:
            lengths.append(len(part))
            self.items = part
            return len(part) > known
        self.items = self._added_up(lengths) + part
        self._lengths = None
        return True

    @property
    def added(self) -> bool:
        """Whether the lists are known to hold what is new each time."""
        return self._lengths is None

    @property
    def ambiguous(self) -> bool:
        """Whether the lists can be read in two ways."""
        return self._lengths is not None and len(self._lengths) > 1

    def settled(self, counts: Sequence[int]) -> list[Item] | None:
        """The items, as the first of these counts that fits a reading has it; None if it stays open."""
        lengths = self._lengths
        if lengths is None or len(lengths) < 2:
            return self.items
        for count in counts:
            if count == len(self.items):
                return self.items
            if count == sum(lengths):
                return self._added_up(lengths)
        return None

    def _added_up(self, lengths: list[int]) -> list[Item]:
        return [item for length in lengths for item in self.items[:length]]
