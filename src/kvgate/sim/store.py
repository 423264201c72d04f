"""Where KV lives between requests: an engine's own prefix cache, and an external pool that several engines share."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

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


@dataclass(slots=True)
class Pool:
    """The external store. A put can be seen ``lag_s`` seconds later; objects already there are never overwritten.

    Beyond ``capacity`` bytes the oldest objects go, but not while a look-up holds them under lease.
    """

    clock: Callable[[], float]
    lag_s: float = 0.0
    lease_s: float = 10.0
    capacity: int | None = None
    objects: OrderedDict[str, _Stored] = field(default_factory=OrderedDict)
    size: int = 0

    def held(self, names: list[str]) -> set[str]:
        """Which of these objects a look-up finds now."""
        now = self.clock()
        found = [name for name in names if name in self.objects and self.objects[name].visible_at <= now]
        for name in found:
            self.objects[name].leased_until = now + self.lease_s
            self.objects.move_to_end(name)
        return set(found)

    def get(self, names: list[str]) -> dict[str, Arrays]:
        """The objects that are still there."""
        return {name: self.objects[name].arrays for name in names if name in self.objects}

    def put(self, objects: dict[str, Arrays]) -> None:
        """Store copies."""
        now = self.clock()
        for name, arrays in objects.items():
            if name not in self.objects:
                self.objects[name] = _Stored({key: array.copy() for key, array in arrays.items()}, now + self.lag_s)
                self.size += size_of(arrays)
        self._evict(now)

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
            if self.size <= self.capacity:
                return
