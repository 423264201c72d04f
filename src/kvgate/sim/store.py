"""Where KV lives between requests: an engine's own prefix cache, and an external pool that several engines share."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from kvgate.sim.kv import Arrays


def size_of(arrays: Arrays) -> int:
    """Bytes of an object."""
    return sum(array.nbytes for array in arrays.values())


class Store(Protocol):
    """An external pool as an engine sees it, in this process or another."""

    def held(self, names: list[str]) -> set[str]:
        """Which of these objects a look-up finds now; they are under lease for a while."""

    def get(self, names: list[str]) -> dict[str, Arrays]:
        """The objects that are still there, by name."""

    def put(self, objects: dict[str, Arrays]) -> None:
        """Store copies; what is there already is never overwritten."""

    def empty(self) -> None:
        """Remove everything."""


class LocalCache:
    """Objects by name, the least recently used ones dropped beyond ``capacity`` bytes."""

    def __init__(self, capacity: int) -> None:
        self._objects: OrderedDict[str, Arrays] = OrderedDict()
        self._capacity = capacity
        self._size = 0

    def __contains__(self, name: str) -> bool:
        return name in self._objects

    def get(self, name: str) -> Arrays:
        """An object, which is the most recently used one now. KeyError if it is not held."""
        self._objects.move_to_end(name)
        return self._objects[name]

    def keep(self, name: str, arrays: Arrays) -> None:
        """Hold an object; what is held already stays."""
        if name not in self._objects:
            self._objects[name] = arrays
            self._size += size_of(arrays)
        self._objects.move_to_end(name)
        while self._size > self._capacity:
            self._size -= size_of(self._objects.popitem(last=False)[1])

    def drop(self) -> None:
        """Forget everything."""
        self._objects.clear()
        self._size = 0


@dataclass(slots=True)
class _Stored:
    arrays: Arrays
    visible_at: float
    leased_until: float = 0.0
    # How many objects the pool had dropped for want of room when this one was put.
    dropped_before: int = 0


@dataclass(slots=True)
class Outage:
    """Whether a pool is away, and how those take it that use it.

    ``ignored``: it stays although it was taken away; ``unnoticed``: look-ups find what was there before;
    ``for_good``: nobody looks again once it is back.
    """

    ignored: bool = False
    unnoticed: bool = False
    for_good: bool = False
    away: bool = False
    over: bool = False

    @property
    def finds_nothing(self) -> bool:
        """Whether a look-up finds nothing, whatever is held."""
        return (self.away and not self.unnoticed) or (self.over and self.for_good)


@dataclass(slots=True)
class Pool:
    """The external store. A put can be seen ``lag_s`` seconds later; objects already there are never overwritten.

    Beyond ``capacity`` bytes the oldest objects go, but not while a look-up holds them under lease. While it is away it
    finds nothing and keeps nothing, and it comes back empty.
    """

    clock: Callable[[], float]
    lag_s: float = 0.0
    lease_s: float = 10.0
    capacity: int | None = None
    objects: OrderedDict[str, _Stored] = field(default_factory=OrderedDict)
    size: int = 0
    dropped: int = 0
    outage: Outage = field(default_factory=Outage)

    def held(self, names: list[str]) -> set[str]:
        """Which of these objects a look-up finds now."""
        if self.outage.finds_nothing:
            return set()
        now = self.clock()
        found = [name for name in names if name in self.objects and self.objects[name].visible_at <= now]
        for name in found:
            self.objects[name].leased_until = now + self.lease_s
            self.objects.move_to_end(name)
        return set(found)

    def get(self, names: list[str]) -> dict[str, Arrays]:
        """The objects that are still there; where an outage goes unnoticed, blocks that nothing was written into."""
        found = {name: self.objects[name].arrays for name in names if name in self.objects}
        if self.outage.away:
            found = {name: {key: np.zeros_like(each) for key, each in arrays.items()} for name, arrays in found.items()}
        return found

    def put(self, objects: dict[str, Arrays]) -> None:
        """Store copies."""
        if self.outage.away:
            return
        now = self.clock()
        for name, arrays in objects.items():
            if name not in self.objects:
                copies = {key: array.copy() for key, array in arrays.items()}
                self.objects[name] = _Stored(copies, now + self.lag_s, dropped_before=self.dropped)
                self.size += size_of(arrays)
        self._evict(now)

    def evicted_since(self, names: list[str]) -> bool:
        """Whether anything was dropped for want of room since the first of these objects was put."""
        return any(self.objects[name].dropped_before < self.dropped for name in names if name in self.objects)

    def leave(self) -> None:
        """Go away, unless that is ignored."""
        self.outage.away = not self.outage.ignored

    def come_back(self) -> None:
        """Be there again, empty."""
        if self.outage.away:
            self.outage.away, self.outage.over = False, True
            self.empty()

    def empty(self) -> None:
        """Remove everything, leased or not."""
        self.objects.clear()
        self.size = 0

    def remove(self, names: Iterable[str]) -> None:
        """Remove these objects."""
        for name in names:
            gone = self.objects.pop(name, None)
            self.size -= size_of(gone.arrays) if gone is not None else 0

    def _evict(self, now: float) -> None:
        if self.capacity is None or self.size <= self.capacity:
            return
        for name in [name for name, stored in self.objects.items() if stored.leased_until <= now]:
            self.remove([name])
            self.dropped += 1
            if self.size <= self.capacity:
                return
