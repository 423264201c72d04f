"""What each fault does to loaded blocks, stored blocks and answers. Pure functions of the bytes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvgate.sim.network import GROUP_ARRAYS, Block, Floats

LONG_TOKENS = 512
SOME_LOADS = 5


@dataclass(frozen=True, slots=True)
class Loading:
    """One load: which number it is on this node (from 0), how long the prompt is, and blocks of other prompts."""

    number: int
    length: int
    others: tuple[Block, ...]


Blocks = list[Block]


def _middle(blocks: Blocks) -> Block:
    return blocks[len(blocks) // 2]


def _each_array(block: Block, change: Callable[[Floats], None]) -> None:
    for name in GROUP_ARRAYS:
        change(getattr(block, name))


def _zero_block(blocks: Blocks, _: Loading) -> Blocks:
    _each_array(_middle(blocks), lambda array: array.fill(0.0))
    return blocks


def _zero_keys(blocks: Blocks, _: Loading) -> Blocks:
    _middle(blocks).keys.fill(0.0)
    return blocks


def _nan_block(blocks: Blocks, _: Loading) -> Blocks:
    _middle(blocks).keys.fill(np.nan)
    return blocks


def _foreign_block(blocks: Blocks, loading: Loading) -> Blocks:
    if loading.others:
        blocks[len(blocks) // 2] = loading.others[0].copy()
    return blocks


def _stale_block(blocks: Blocks, _: Loading) -> Blocks:
    place = len(blocks) // 2
    blocks[place] = blocks[place - 1].copy()
    return blocks


def _swapped(blocks: Blocks, _: Loading) -> Blocks:
    # The keys trade places and the values stay: a mere permutation of whole blocks changes no attention.
    one, other = blocks[0], blocks[-1]
    kept = one.keys.copy()
    one.keys[:] = other.keys
    other.keys[:] = kept
    return blocks


def _shifted(blocks: Blocks, _: Loading) -> Blocks:
    values = [block.values.copy() for block in blocks]
    for block, value in zip(blocks, [values[-1], *values[:-1]], strict=True):
        block.values[:] = value
    return blocks


def _half_block(blocks: Blocks, _: Loading) -> Blocks:
    block = _middle(blocks)
    block.keys[len(block.keys) // 2 :] = 0.0
    block.values[len(block.values) // 2 :] = 0.0
    return blocks


def _one_bit(blocks: Blocks, _: Loading) -> Blocks:
    # The recurrent state is read at every step, so that its lowest exponent bits show in the logprobs.
    blocks[-1].recurrent[:1].view(np.uint32)[0] ^= np.uint32(1 << 23)
    return blocks


def _scaled(blocks: Blocks, _: Loading) -> Blocks:
    for block in blocks:
        block.values[:] *= np.float32(1.02)
    return blocks


def _fp8(blocks: Blocks, _: Loading) -> Blocks:
    for block in blocks:
        for array in (block.keys, block.values):
            mantissa, exponent = np.frexp(array)
            array[:] = np.ldexp(np.round(mantissa * 16.0) / 16.0, exponent)
    return blocks


def _no_window(blocks: Blocks, _: Loading) -> Blocks:
    blocks[-1].window.fill(0.0)
    return blocks


def _no_recurrent(blocks: Blocks, _: Loading) -> Blocks:
    blocks[-1].recurrent.fill(0.0)
    return blocks


def _stale_recurrent(blocks: Blocks, _: Loading) -> Blocks:
    blocks[-1].recurrent[:] = blocks[-2].recurrent
    return blocks


def _no_pooled(blocks: Blocks, _: Loading) -> Blocks:
    for block in blocks:
        block.pooled.fill(0.0)
    return blocks


def _unfilled(blocks: Blocks, _: Loading) -> Blocks:
    for block in blocks:
        _each_array(block, lambda array: array.fill(0.0))
    return blocks


def _dead_bytes(blocks: Blocks, _: Loading) -> Blocks:
    # Side state is read at the end of the hit only; inside it nobody looks.
    blocks[0].recurrent[:] += 1.0
    return blocks


ON_LOAD: dict[str, Callable[[Blocks, Loading], Blocks]] = {
    "zero_block": _zero_block,
    "zero_keys": _zero_keys,
    "nan_block": _nan_block,
    "foreign_block": _foreign_block,
    "stale_block": _stale_block,
    "swapped_blocks": _swapped,
    "shifted_blocks": _shifted,
    "half_block": _half_block,
    "one_bit": _one_bit,
    "wrong_scale": _scaled,
    "fp8_loss": _fp8,
    "no_window": _no_window,
    "no_recurrent": _no_recurrent,
    "stale_recurrent": _stale_recurrent,
    "no_pooled": _no_pooled,
    "swallowed_failure": _unfilled,
    "dead_bytes": _dead_bytes,
    "long_only": lambda blocks, loading: _zero_block(blocks, loading) if loading.length > LONG_TOKENS else blocks,
    "after_some": lambda blocks, loading: _zero_block(blocks, loading) if loading.number >= SOME_LOADS else blocks,
    "every_other": lambda blocks, loading: _zero_block(blocks, loading) if loading.number % 2 else blocks,
}


def wrong_when_saved(block: Block) -> Block:
    """A block as a fault at saving time leaves it."""
    spoilt = block.copy()
    spoilt.values[len(spoilt.values) // 2 :] = 0.0
    spoilt.recurrent[:] *= np.float32(0.5)
    return spoilt
