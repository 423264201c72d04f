"""Where KV lives between requests: an engine's own prefix cache, and an external pool that several engines share."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvgate.sim.network import Block

Ids = npt.NDArray[np.int64]


def block_hashes(ids: Ids, salt: str, block: int) -> list[str]:
    """The hash chain of a prompt's whole blocks: each depends on all before it and on the salt."""
    hashes: list[str] = []
    parent = salt
    for start in range(0, len(ids) - block + 1, block):
        content = ids[start : start + block].astype("<i4").tobytes()
        parent = hashlib.sha256(parent.encode() + content).hexdigest()
        hashes.append(parent)
    return hashes


class LocalCache:
    """Blocks by hash, the least recently used ones dropped beyond ``capacity`` blocks."""

    def __init__(self, capacity: int) -> None:
        self._blocks: OrderedDict[str, Block] = OrderedDict()
        self._capacity = capacity

    def prefix(self, hashes: list[str]) -> list[Block]:
        """The longest run of blocks held from the beginning."""
        found: list[Block] = []
        for name in hashes:
            if name not in self._blocks:
                break
            self._blocks.move_to_end(name)
            found.append(self._blocks[name])
        return found

    def keep(self, name: str, block: Block) -> None:
        """Hold a block; what is held already stays."""
        self._blocks.setdefault(name, block)
        self._blocks.move_to_end(name)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def drop(self) -> None:
        """Forget everything."""
        self._blocks.clear()


@dataclass(slots=True)
class _Stored:
    block: Block
    visible_at: float


@dataclass(slots=True)
class Pool:
    """The external store. A put can be seen ``lag_s`` seconds later; objects already there are never overwritten."""

    clock: Callable[[], float]
    lag_s: float = 0.0
    objects: dict[str, _Stored] = field(default_factory=dict)

    def put(self, name: str, block: Block) -> None:
        """Store a copy."""
        if name not in self.objects:
            self.objects[name] = _Stored(block.copy(), self.clock() + self.lag_s)

    def holds(self, name: str) -> bool:
        """Whether a look-up finds the object now."""
        stored = self.objects.get(name)
        return stored is not None and stored.visible_at <= self.clock()

    def get(self, name: str) -> Block:
        """A copy of the object. KeyError if it is gone."""
        return self.objects[name].block.copy()

    def others(self, names: set[str]) -> list[Block]:
        """Blocks of other prompts than those named, oldest first."""
        return [stored.block for name, stored in self.objects.items() if name not in names]
