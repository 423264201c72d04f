"""What the nodes of a deployment have in common."""

from dataclasses import dataclass, field

import numpy as np

from kvgate.sim.kv import Arrays, Place
from kvgate.sim.network import Ids, Weights, make_weights
from kvgate.sim.words import Dictionary


@dataclass(slots=True)
class Memory:
    """Weights, words, the last prompts (for faults that mix), whether a client has gone away, and how many requests
    of such clients are kept for ever."""

    weights: Weights = field(default_factory=make_weights)
    words: Dictionary = field(default_factory=Dictionary)
    prompts: list[Ids] = field(default_factory=list)
    objects: list[dict[Place, Arrays]] = field(default_factory=list)
    cancelled: bool = False
    forked: bool = False
    kept: int = 0

    def foreign_text(self, prompt: Ids) -> str | None:
        """How the last prompt before this one began; None if there was no other."""
        mine = prompt[:16]
        others = [ids for ids in self.prompts if not np.array_equal(ids, mine)]
        self.prompts = [*others[-1:], mine.copy()]
        return self.words.text(others[-1].tolist()) if others else None
