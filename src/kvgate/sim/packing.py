"""Arrays as bytes, for processes that hand KV to each other: a JSON header, a line break, then the arrays' bytes."""

import json
from typing import Any

import numpy as np

from kvgate.sim.kv import Arrays
from kvgate.sim.network import Sequence, empty_sequence
from kvgate.sim.presets import Preset


def pack(objects: dict[str, Arrays]) -> bytes:
    """Objects by name."""
    entries: list[list[Any]] = []
    parts: list[bytes] = []
    for name, arrays in objects.items():
        for key, array in arrays.items():
            entries.append([name, key, array.dtype.str, list(array.shape)])
            parts.append(np.ascontiguousarray(array).tobytes())
    return json.dumps(entries).encode() + b"\n" + b"".join(parts)


def unpack(content: bytes) -> dict[str, Arrays]:
    """Objects by name. ValueError where the content is no such packing."""
    head, _, rest = content.partition(b"\n")
    objects: dict[str, Arrays] = {}
    at = 0
    for name, key, kind, shape in json.loads(head):
        dtype = np.dtype(kind)
        size = int(np.prod(shape)) * dtype.itemsize
        # A copy, so that it can be written to.
        objects.setdefault(name, {})[key] = np.frombuffer(rest[at : at + size], dtype).reshape(shape).copy()
        at += size
    return objects


def pack_sequence(sequence: Sequence) -> bytes:
    """The KV of a sequence, without the room it has for more."""
    arrays = {name: sequence.rows(name) for name in sequence.arrays}
    pending = {str(ratio): rows for ratio, rows in sequence.pending.items()}
    facts = {"length": np.array([sequence.length, *sequence.ids], np.int64)}
    return pack({"arrays": arrays, "state": dict(sequence.state), "pending": pending, "facts": facts})


def unpack_sequence(content: bytes, preset: Preset) -> Sequence:
    """A sequence from its packing."""
    objects = unpack(content)
    length, *ids = (int(value) for value in objects["facts"]["length"].astype(np.int64))
    sequence = empty_sequence(preset, length)
    sequence.length, sequence.ids = length, tuple(ids)
    for name, rows in objects["arrays"].items():
        sequence.rows(name)[:] = rows
    sequence.state.update(objects.get("state", {}))
    sequence.pending.update({int(ratio): rows.astype(np.float32) for ratio, rows in objects.get("pending", {}).items()})
    return sequence
