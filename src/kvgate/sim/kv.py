"""KV as objects: what a prefix cache keeps, a pool stores and a fault corrupts.

An object is one block of one KV group, or one group's side state at a possible end of a hit. Its name holds the group,
its place and the hash of every token up to its end, so equal names mean equal prompts.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from kvgate.sim.network import PHRASE, Array, Ids, Sequence, empty_sequence
from kvgate.sim.presets import Preset

Arrays = dict[str, Array]
STATES = ("carry", "recurrent", "ngram")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an object belongs: its group, its number within the group, and the prompt tokens it reaches up to."""

    group: str
    number: int
    end: int


def block_hashes(ids: Ids, salt: str, block: int) -> list[str]:
    """The hash chain of a prompt's whole blocks: each depends on all before it and on the salt."""
    hashes: list[str] = []
    parent = salt
    content = ids.astype("<i4").tobytes()
    for start in range(0, len(ids) - block + 1, block):
        parent = hashlib.sha256(parent.encode() + content[start * 4 : (start + block) * 4]).hexdigest()
        hashes.append(parent)
    return hashes


def is_state(group: str) -> bool:
    """Whether a group holds one state per possible end of a hit, rather than a row per token."""
    return group.startswith(STATES)


def span(preset: Preset, group: str) -> int:
    """Prompt tokens one object of a group covers."""
    if is_state(group):
        return preset.step
    return preset.block * (int(group[1:]) if group[0] == "c" else 1)


def name_of(place: Place, hashes: list[str], preset: Preset) -> str:
    """An object's name."""
    return f"{place.group}/{place.number}:{hashes[place.end // preset.block - 1]}"


def places_between(preset: Preset, start: int, end: int) -> list[Place]:
    """Every object that a prompt's tokens from ``start`` to ``end`` fill. Both are multiples of the block size."""
    found: list[Place] = []
    for group in preset.groups():
        size = span(preset, group)
        found += [Place(group, number, (number + 1) * size) for number in range(-(-start // size), end // size)]
    return found


def places_needed(preset: Preset, start: int, end: int) -> list[Place]:
    """Every object a hit of ``end`` tokens loads when the first ``start`` are there already."""
    found: list[Place] = []
    for group in preset.groups():
        size = span(preset, group)
        if is_state(group):
            found.append(Place(group, end // size - 1, end))
            continue
        first = max(start, end - preset.window) if group == "window" else start
        found += [Place(group, number, (number + 1) * size) for number in range(first // size, end // size)]
    return found


def longest_hit(preset: Preset, limit: int, holds: Callable[[Place], bool], start: int = 0) -> int:
    """The longest hit, in tokens, of which every needed object is held: a multiple of the preset's step."""
    best = limit // preset.step * preset.step
    for group in preset.groups():
        if is_state(group) or group == "window":
            continue
        size, number = span(preset, group), start // span(preset, group)
        while (number + 1) * size <= best and holds(Place(group, number, (number + 1) * size)):
            number += 1
        best = min(best, number * size // preset.step * preset.step)
    while best > start and not all(
        holds(place) for place in places_needed(preset, start, best) if is_state(place.group) or place.group == "window"
    ):
        best -= preset.step
    return max(best, start)


def cut(sequence: Sequence, place: Place) -> Arrays:
    """One object's arrays, as views of the sequence's."""
    if is_state(place.group):
        return {place.group: sequence.states[place.end][place.group]}
    size = sequence.preset.block
    rows = slice(place.number * size, (place.number + 1) * size)
    names = ("keys", "values") if place.group == "full" else (place.group,)
    return {name: sequence.arrays[name][rows] for name in names}


def fill(sequence: Sequence, objects: dict[Place, Arrays]) -> None:
    """Write objects into a sequence, each at its place."""
    size = sequence.preset.block
    for place, arrays in objects.items():
        if is_state(place.group):
            sequence.state[place.group] = arrays[place.group].copy()
            continue
        for name, rows in arrays.items():
            sequence.arrays[name][place.number * size : (place.number + 1) * size] = rows


def resume(preset: Preset, hit: int, objects: dict[Place, Arrays], ids: Ids, capacity: int) -> Sequence:
    """A sequence that goes on after ``hit`` tokens from these objects. ``ids`` is the whole prompt."""
    sequence = empty_sequence(preset, capacity)
    if hit == 0:
        return sequence
    # Rows outside the window are never read; zeros, so that nothing depends on what the memory held before.
    if "window" in sequence.arrays:
        sequence.arrays["window"][:hit] = 0.0
    fill(sequence, objects)
    sequence.length = hit
    last = ids[max(0, hit - PHRASE) : hit]
    sequence.ids = (*(0,) * (PHRASE - len(last)), *(int(token) for token in last))
    return sequence
