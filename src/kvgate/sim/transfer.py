"""KV that one engine prefilled for another: held under a lease, asked for by reference, taken over."""

from collections.abc import Callable

import numpy as np

from kvgate.sim.garbling import ON_TRANSFER, Rows
from kvgate.sim.network import Array, Sequence

LEASE_S = 480.0
MOST_HELD = 16
NOT_HELD = ("hit_not_held", "hit_not_held_router")


class GoneError(Exception):
    """No KV is held under that reference."""


class Handover:
    """The KV an engine holds for others."""

    def __init__(self, owner: str, clock: Callable[[], float], fault: str) -> None:
        self._owner = owner
        self._clock = clock
        self._fault = fault
        self._held: dict[str, tuple[Sequence, float]] = {}

    def lend(self, sequence: Sequence, tokens: int, number: int, loaded: bool = False) -> dict[str, object]:
        """Hold the KV, which may have been ``loaded`` from the pool, and say to the engine that decodes how to ask."""
        request_id = f"{self._owner}-{number}"
        if not (loaded and self._fault in NOT_HELD):
            self._held[request_id] = (sequence.copy(), self._clock() + LEASE_S)
        while len(self._held) > MOST_HELD:
            self._held.pop(next(iter(self._held)))
        blocks = list(range(-(-tokens // sequence.preset.block)))
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self._owner,
            "remote_request_id": request_id,
            "remote_block_ids": [blocks],
            "remote_num_tokens": tokens,
        }

    def hand_over(self, request_id: str) -> Sequence:
        """The KV of a request, which is not held any longer then. Raises GoneError."""
        if self._fault == "stale_reference" and len(self._held) > 1:
            return next(iter(self._held.values()))[0]
        held = self._held.get(request_id)
        if held is None or held[1] < self._clock():
            raise GoneError(f"no KV is held for request {request_id}: it was never here, or its lease is over")
        if self._fault != "stale_reference":
            del self._held[request_id]
        return held[0]


def take_over(sequence: Sequence, capacity: int, fault: str, foreign: Rows, number: int) -> Sequence:
    """Another engine's KV as it arrives, with room for ``capacity`` tokens; ``number`` counts the transfers before."""
    arrays: dict[str, Array] = {}
    for name, array in sequence.arrays.items():
        ratio = int(name[1:]) if name[0] == "c" else 1
        arrays[name] = np.empty((capacity // ratio + 1, array.shape[1]), array.dtype)
        arrays[name][: sequence.length // ratio] = sequence.rows(name)
    taken = Sequence(
        preset=sequence.preset,
        arrays=arrays,
        state=dict(sequence.state),
        length=sequence.length,
        ids=sequence.ids,
        pending=dict(sequence.pending),
    )
    if fault in ON_TRANSFER:
        ON_TRANSFER[fault]({name: taken.rows(name) for name in arrays}, foreign, sequence.preset.block, number)
    return taken


def differing(taken: Sequence, given: Sequence) -> int:
    """How many arrays did not arrive as they were given."""
    return sum(taken.rows(name).tobytes() != given.rows(name).tobytes() for name in given.arrays)
