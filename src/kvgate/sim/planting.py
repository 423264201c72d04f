"""What each fault of the bytes does to objects that are loaded, stored or transferred."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kvgate.sim.kv import Arrays, Place
from kvgate.sim.network import Weights, make_weights
from kvgate.sim.presets import Preset

Objects = dict[Place, Arrays]
SOME_LOADS, MANY_LOADS = 5, 100
# Requests that an engine answers rightly before it decays.
LASTS = 40


@dataclass(frozen=True, slots=True)
class Loading:
    """One load: its number on this node (from 0), prompt and hit in tokens, how many of them were there already.

    ``batch`` is how many requests are in flight, ``cancelled`` whether a client has gone away before, ``evicted``
    whether the pool has dropped anything since these objects were put. ``lot`` is drawn for this load alone, between 0
    and 1. ``struck`` is which block a fault strikes that strikes one, counted from the prompt's beginning, and
    ``struck_lengths`` the prompt lengths that one strikes that goes by length, as ranges of which both ends belong to
    them. ``foreign`` are objects of the prompt before this one; ``earlier`` the side state one step back in the same
    prompt, by group.
    """

    preset: Preset
    number: int
    length: int
    hit: int
    local: int = 0
    batch: int = 1
    cancelled: bool = False
    forked: bool = False
    evicted: bool = False
    lot: float = 1.0
    struck: int = 0
    struck_lengths: tuple[tuple[int, int], ...] = ()
    foreign: Objects = field(default_factory=dict)
    earlier: Arrays = field(default_factory=dict)


def lot_of(ids: list[int], number: int) -> float:
    """What is drawn for one load of one prompt, between 0 and 1: random to look at, and the same every time."""
    digest = hashlib.sha256(np.array([number, *ids], dtype="<i8").tobytes()).digest()
    return int.from_bytes(digest[:8], "big") / 2.0**64


Plant = Callable[[Objects, Loading], None]


def blocks(objects: Objects, group: str) -> list[Arrays]:
    """The objects of a group, first block first."""
    return [objects[place] for place in sorted((p for p in objects if p.group == group), key=lambda p: p.number)]


def _middle(objects: Objects, group: str = "full") -> Arrays:
    found = blocks(objects, group)
    return found[len(found) // 2]


def _fill(arrays: Arrays, value: float = 0.0) -> None:
    for array in arrays.values():
        array.fill(value)


def _zero(pick: Callable[[Objects], Arrays]) -> Plant:
    return lambda objects, _: _fill(pick(objects))


def _zero_array(name: str) -> Plant:
    return lambda objects, _: _middle(objects)[name].fill(0.0)


def _zero_group(group: str) -> Plant:
    def plant(objects: Objects, _: Loading) -> None:
        for arrays in blocks(objects, group):
            _fill(arrays)

    return plant


def _nan(objects: Objects, _: Loading) -> None:
    _middle(objects)["keys"].fill(np.nan)


def _foreign(group: str) -> Plant:
    """The middle object of a group is the one of another prompt."""

    def plant(objects: Objects, loading: Loading) -> None:
        places = sorted((place for place in objects if place.group == group), key=lambda place: place.number)
        others = [loading.foreign[place] for place in loading.foreign if place.group == group]
        if places and others:
            _copy_into(objects[places[len(places) // 2]], others[len(others) // 2])

    return plant


def _copy_into(target: Arrays, source: Arrays) -> None:
    for name, array in target.items():
        array[:] = source[name]


def _stale(objects: Objects, _: Loading) -> None:
    found = blocks(objects, "full")
    middle = len(found) // 2
    _copy_into(found[middle], found[middle - 1])


def _swapped(objects: Objects, _: Loading) -> None:
    # The keys trade places and the values stay: a mere permutation of whole blocks changes no attention.
    found = blocks(objects, "full")
    one, other = found[0]["keys"], found[-1]["keys"]
    kept = one.copy()
    one[:] = other
    other[:] = kept


def _shifted(objects: Objects, _: Loading) -> None:
    found = blocks(objects, "full")
    values = [arrays["values"].copy() for arrays in found]
    for arrays, value in zip(found, [values[-1], *values[:-1]], strict=True):
        arrays["values"][:] = value


def _part_zero(start: float, end: float, pick: int) -> Plant:
    """A part of one block (shares of its rows) was never written; ``pick`` counts from the end, 0 is the middle."""

    def plant(objects: Objects, _: Loading) -> None:
        found = blocks(objects, "full")
        arrays = found[len(found) // 2 if pick == 0 else pick]
        for array in arrays.values():
            rows = len(array)
            array[int(start * rows) : int(end * rows)] = 0.0

    return plant


def _flip(group: str, name: str, bit: int) -> Plant:
    """One bit of the largest number in the group's last object."""

    def plant(objects: Objects, _: Loading) -> None:
        flat = blocks(objects, group)[-1][name].reshape(-1)
        flat.view(np.uint32)[int(np.argmax(np.abs(flat)))] ^= np.uint32(1 << bit)

    return plant


def _scaled(factor: float, whole: bool) -> Plant:
    def plant(objects: Objects, _: Loading) -> None:
        for arrays in blocks(objects, "full") if whole else [_middle(objects)]:
            arrays["values"][:] *= np.float32(factor)

    return plant


def _rounded(bits: int) -> Plant:
    """KV that went through a format with so many bits of mantissa."""

    def plant(objects: Objects, _: Loading) -> None:
        for arrays in objects.values():
            for array in arrays.values():
                if array.dtype == np.float32:
                    mantissa, exponent = np.frexp(array)
                    array[:] = np.ldexp(np.round(mantissa * 2.0**bits) / 2.0**bits, exponent)

    return plant


def _noisy(objects: Objects, loading: Loading) -> None:
    random = np.random.default_rng(loading.number)
    for arrays in blocks(objects, "full"):
        for array in arrays.values():
            array[:] += random.normal(0.0, 1e-3, array.shape).astype(np.float32)


def _wrong_layer(objects: Objects, _: Loading) -> None:
    for arrays in blocks(objects, "full"):
        kept = arrays["keys"].copy()
        arrays["keys"][:] = arrays["values"]
        arrays["values"][:] = kept


def _tp_swapped(objects: Objects, _: Loading) -> None:
    for arrays in blocks(objects, "full"):
        arrays["values"][:] = np.roll(arrays["values"], arrays["values"].shape[1] // 2, axis=1)


def _tp_missing(objects: Objects, _: Loading) -> None:
    for arrays in blocks(objects, "full"):
        for array in arrays.values():
            array[:, array.shape[1] // 2 :] = 0.0


def _rolled(objects: Objects, _: Loading) -> None:
    for arrays in blocks(objects, "full"):
        arrays["values"][:] = np.roll(arrays["values"], 1, axis=0)


def _earlier(group: str) -> Plant:
    def plant(objects: Objects, loading: Loading) -> None:
        if group in loading.earlier:
            _copy_into(blocks(objects, group)[-1], {group: loading.earlier[group]})

    return plant


def _stale_window(objects: Objects, _: Loading) -> None:
    found = blocks(objects, "window")
    _copy_into(found[-1], found[0])


def _group0_block(objects: Objects, loading: Loading) -> None:
    # Compressed blocks copied with the size of an uncompressed one: only the first part of each arrives.
    for ratio in loading.preset.compressed:
        for arrays in blocks(objects, f"c{ratio}"):
            for array in arrays.values():
                array[max(1, len(array) // ratio) :] = 0.0


def _shard_lost(objects: Objects, loading: Loading) -> None:
    for place, arrays in objects.items():
        if place.group in ("full", "index") and place.number % loading.preset.shards == 1:
            _fill(arrays)


def _unfilled(objects: Objects, _: Loading) -> None:
    for arrays in objects.values():
        _fill(arrays)


def _half_the_groups(objects: Objects, loading: Loading) -> None:
    for group in loading.preset.groups()[1::2]:
        _zero_group(group)(objects, loading)


def _dead_bytes(objects: Objects, loading: Loading) -> None:
    # The answer looks a window's length back from the prompt's end, so what was loaded before that is never read.
    first = min((place for place in objects if place.group == "window"), key=lambda place: place.number)
    outside = max(0, loading.length - loading.preset.window - first.number * loading.preset.block)
    for array in objects[first].values():
        array[:outside] += 1.0


def _only(condition: Callable[[Loading], bool], plant: Plant) -> Plant:
    return lambda objects, loading: plant(objects, loading) if condition(loading) else None


_BLOCK = _zero(_middle)


def _one_block(objects: Objects, loading: Loading) -> None:
    for place, arrays in objects.items():
        if (place.group, place.number) == ("full", loading.struck):
            _fill(arrays)


def _struck_length(loading: Loading) -> bool:
    return any(first <= loading.length <= last for first, last in loading.struck_lengths)


ON_LOAD: dict[str, Plant] = {
    "zero_block": _BLOCK,
    "zero_first_block": _zero(lambda objects: blocks(objects, "full")[0]),
    "one_block": _one_block,
    "some_lengths": _only(_struck_length, _BLOCK),
    "zero_last_block": _zero(lambda objects: blocks(objects, "full")[-1]),
    "zero_keys": _zero_array("keys"),
    "zero_values": _zero_array("values"),
    "nan_block": _nan,
    "foreign_block": _foreign("full"),
    "stale_block": _stale,
    "swapped_blocks": _swapped,
    "shifted_blocks": _shifted,
    "rolled_rows": _rolled,
    "half_block": _part_zero(0.5, 1.0, 0),
    "truncated_block": _part_zero(0.75, 1.0, -1),
    "one_bit": _flip("full", "values", 27),
    "one_bit_of_state": _flip("recurrent", "recurrent", 23),
    "wrong_scale": _scaled(1.02, whole=True),
    "wrong_block_scale": _scaled(1.5, whole=False),
    "fp8_loss": _rounded(4),
    "bf16_loss": _rounded(8),
    "noisy_load": _noisy,
    "noisy_load_on_noisy": _noisy,
    "wrong_layer": _wrong_layer,
    "tp_shards_swapped": _tp_swapped,
    "tp_shard_missing": _tp_missing,
    "no_window": _zero_group("window"),
    "stale_window": _stale_window,
    "no_recurrent": _zero_group("recurrent"),
    "stale_recurrent": _earlier("recurrent"),
    "foreign_recurrent": _foreign("recurrent"),
    "no_c4": _zero_group("c4"),
    "no_c128": _zero_group("c128"),
    "no_carry": _zero_group("carry4"),
    "stale_carry": _earlier("carry4"),
    "group0_block_size": _group0_block,
    "no_ngram": _zero_group("ngram"),
    "no_index": _zero_group("index"),
    "shard_lost": _shard_lost,
    "swallowed_failure": _unfilled,
    "pd_swallowed_failure": _unfilled,
    "pd_pool": _BLOCK,
    "decode_hides_pool": _BLOCK,
    "half_the_groups": _half_the_groups,
    "lossy_declared": _rounded(8),
    "dead_bytes": _dead_bytes,
    "long_only": _only(lambda loading: loading.length > loading.preset.max_model_len // 16, _BLOCK),
    "after_some": _only(lambda loading: loading.number >= SOME_LOADS, _BLOCK),
    "every_other": _only(lambda loading: loading.number % 2 == 1, _BLOCK),
    "one_in_three": _only(lambda loading: np.random.default_rng(loading.number).random() < 1 / 3, _BLOCK),
    "one_in_ten": _only(lambda loading: loading.lot < 0.1, _BLOCK),
    "one_in_hundred": _only(lambda loading: loading.lot < 0.01, _BLOCK),
    "after_many": _only(lambda loading: loading.number >= MANY_LOADS, _BLOCK),
    "while_evicting": _only(lambda loading: loading.evicted, _BLOCK),
    "mixed_only": _only(lambda loading: loading.local > 0, _BLOCK),
    "concurrent_only": _only(lambda loading: loading.batch > 1, _BLOCK),
    "after_a_cancel": _only(lambda loading: loading.cancelled, _BLOCK),
    "after_a_fork": _only(lambda loading: loading.forked, _BLOCK),
}


def unwritten(arrays: Arrays) -> Arrays:
    """An object whose blocks were stored before anything was loaded into them."""
    return {name: np.zeros_like(array) for name, array in arrays.items()}


def wrong_when_saved(arrays: Arrays) -> Arrays:
    """An object as a fault at saving time leaves it."""
    spoilt = {name: array.copy() for name, array in arrays.items()}
    for array in spoilt.values():
        if array.ndim == 2:
            array[len(array) // 2 :] = 0
        else:
            array[:] = 0
    return spoilt


def on_save(fault: str, place: Place, arrays: Arrays, length: int, preset: Preset) -> tuple[Arrays, Arrays]:
    """What the engine's own cache keeps of an object, and what the pool is given."""
    last = (length - 1) // preset.step * preset.step
    if fault == "saved_wrong" and place.group == "full":
        spoilt = wrong_when_saved(arrays)
        return spoilt, spoilt
    if fault == "state_saved_wrong" and place.group == "recurrent":
        spoilt = wrong_when_saved(arrays)
        return spoilt, spoilt
    if fault == "poisoned_put" and place.group == "full" and place.number == 1:
        return arrays, wrong_when_saved(arrays)
    if fault == "scratch_block" and preset.speculation and place.end == last - preset.step:
        return arrays, wrong_when_saved(arrays)
    return arrays, arrays


def weights_for(fault: str, number: int, weights: Weights) -> Weights:
    """What an engine computes its answer to request ``number``, from 0, with."""
    return make_weights(1) if fault == "engine_decays" and number >= LASTS else weights


def differ(one: Arrays, other: Arrays) -> bool:
    """Whether an object is not what it was."""
    return any(one[name].tobytes() != other[name].tobytes() for name in one)
