"""A small real network: a hand-wired induction head over paged KV, with side state like the real thing.

Logits are computed from whatever KV it is given. A bigram seen earlier is continued as it was continued then, so
codewords are really recalled; wrong bytes give wrong answers, subtle ones subtly.

    group       what it holds                                  who reads it
    full        keys and values of every token                 attention, at every step
    window      the embeddings of the last tokens              makes the next keys and the query
    recurrent   a decayed sum of all embeddings                a small addition to every answer
    pooled      means of every 4 tokens' values                a second, weak attention
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
# Per output position, (token, logprob) pairs, likeliest first.
Rows = list[list[tuple[int, float]]]

VOCABULARY = 4096
WIDTH = 64
SHARPNESS = 14.0
GAIN = 12.0
DECAY = 0.9
WINDOW = 2
POOL = 4
RECURRENT_WEIGHT = 0.02
POOLED_WEIGHT = 0.02
FIRST_USABLE_TOKEN = 3


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Embeddings (VOCABULARY, WIDTH), unit length, and two orthogonal maps (WIDTH, WIDTH)."""

    embeddings: Floats
    previous: Floats
    before_previous: Floats


def make_weights(seed: int = 0) -> Weights:
    """The same weights from the same seed."""
    random = np.random.default_rng(seed)
    embeddings = random.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    maps = [np.linalg.qr(random.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32) for _ in range(2)]
    return Weights(embeddings, maps[0], maps[1])


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The KV of one block of tokens, by group: what is cached, pooled, transferred and corrupted.

    ``keys`` and ``values`` (block, WIDTH); ``window`` (WINDOW, WIDTH) and ``recurrent`` (WIDTH,) as they stand at the
    block's end; ``pooled`` (block / POOL, WIDTH).
    """

    keys: Floats
    values: Floats
    window: Floats
    recurrent: Floats
    pooled: Floats

    def copy(self) -> "Block":
        """A block of its own, so that changing one changes no other."""
        return Block(*(getattr(self, name).copy() for name in GROUP_ARRAYS))

    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(getattr(self, name).nbytes for name in GROUP_ARRAYS)


GROUP_ARRAYS = ("keys", "values", "window", "recurrent", "pooled")


@dataclass(slots=True, eq=False)
class Sequence:
    """The KV of one running sequence: whole blocks, then a tail of fewer tokens than a block."""

    keys: list[Floats]
    values: list[Floats]
    pooled: list[Floats]
    window: Floats
    recurrent: Floats
    length: int

    @classmethod
    def empty(cls) -> "Sequence":
        """Nothing seen yet."""
        return cls([], [], [], np.zeros((WINDOW, WIDTH), np.float32), np.zeros(WIDTH, np.float32), 0)


def resume(blocks: list[Block]) -> Sequence:
    """A sequence that goes on after these blocks, from the side state of the last one."""
    if not blocks:
        return Sequence.empty()
    last = blocks[-1]
    return Sequence(
        keys=[block.keys for block in blocks],
        values=[block.values for block in blocks],
        pooled=[block.pooled for block in blocks],
        window=last.window,
        recurrent=last.recurrent,
        length=sum(len(block.keys) for block in blocks),
    )


def extend(weights: Weights, sequence: Sequence, ids: npt.NDArray[np.int64], block: int) -> list[Block]:
    """Prefill ``ids`` block by block; returns the whole blocks made. The sequence must stand at a block's edge."""
    made: list[Block] = []
    embeddings = weights.embeddings[ids]
    for start in range(0, len(ids), block):
        part = embeddings[start : start + block]
        made_block = _step(weights, sequence, part)
        if len(part) == block:
            made.append(made_block)
    return made


def _step(weights: Weights, sequence: Sequence, part: Floats) -> Block:
    """Take in up to one block of embeddings. The order of the arithmetic depends on the tokens only, never on how the
    sequence came to this point: that is what makes cold, local and external answers equal to the last bit."""
    context = np.concatenate([sequence.window, part])
    keys = context[WINDOW - 1 : -1] @ weights.previous.T + context[WINDOW - 2 : -2] @ weights.before_previous.T
    powers = DECAY ** np.arange(len(part) - 1, -1, -1, dtype=np.float32)
    recurrent = (DECAY ** np.float32(len(part))) * sequence.recurrent + (powers[:, None] * part).sum(axis=0)
    whole = len(part) // POOL * POOL
    pooled = part[:whole].reshape(-1, POOL, WIDTH).mean(axis=1)
    made = Block(
        keys.astype(np.float32), part.copy(), context[-WINDOW:].copy(), recurrent.astype(np.float32), pooled.copy()
    )
    sequence.keys.append(made.keys)
    sequence.values.append(made.values)
    sequence.pooled.append(made.pooled)
    sequence.window, sequence.recurrent = made.window, made.recurrent
    sequence.length += len(part)
    return made


def generate(weights: Weights, sequence: Sequence, count: int, top: int) -> tuple[list[int], Rows]:
    """Greedy tokens and, for each, the ``top`` most likely tokens with their logprobs, likeliest first."""
    keys, values = np.concatenate(sequence.keys), np.concatenate(sequence.values)
    pooled = np.concatenate(sequence.pooled)
    ids: list[int] = []
    rows: Rows = []
    for _ in range(count):
        logprobs = _logprobs(weights, keys, values, pooled, sequence)
        best = np.argsort(-logprobs, kind="stable")[:top]
        rows.append([(int(token), float(logprobs[token])) for token in best])
        ids.append(int(best[0]))
        part = weights.embeddings[best[:1]]
        grown = _step(weights, sequence, part)
        keys, values = np.concatenate([keys, grown.keys]), np.concatenate([values, grown.values])
    return ids, rows


def _logprobs(weights: Weights, keys: Floats, values: Floats, pooled: Floats, sequence: Sequence) -> Floats:
    """Next-token logprobs (VOCABULARY,), computed from the KV bytes at hand."""
    query = sequence.window[-1] @ weights.previous.T + sequence.window[-2] @ weights.before_previous.T
    attended = _attend(keys, values, query.astype(np.float32), SHARPNESS / 2.0)
    if len(pooled):
        attended = attended + POOLED_WEIGHT * _attend(pooled, pooled, sequence.window[-1], 1.0)
    attended = attended + RECURRENT_WEIGHT * sequence.recurrent
    logits = GAIN * (weights.embeddings @ attended)
    logits[:FIRST_USABLE_TOKEN] = -np.inf
    peak = logits.max()
    shifted = logits - peak
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), dtype=np.float32)


def _attend(keys: Floats, values: Floats, query: Floats, sharpness: float) -> Floats:
    scores = sharpness * (keys @ query)
    scores -= scores.max()
    weights = np.exp(scores)
    return np.asarray((weights @ values) / weights.sum(), dtype=np.float32)
