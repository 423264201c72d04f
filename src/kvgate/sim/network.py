"""A small real network: a hand-wired induction head over paged KV, with side state like the real thing.

Logits are computed from whatever KV it is given. A bigram seen earlier is continued as it was continued then, so
codewords are really recalled; wrong bytes give wrong answers, subtle ones subtly.

    array       what it holds                                      who reads it
    keys        what came before each token                        attention: "where did this bigram stand?"
    values      each token (with its n-gram memory)                attention: "what came then?"
    index       a short form of the keys                           the indexer, which chooses what attention sees
    window      each token, read back to the window's length       a local attention, and what the next keys are made of
    c4, c128    means of so many tokens                            a second, weak attention each
    carry4, ..  the last such mean at a block's edge               the next entry of that group
    recurrent   a decayed sum of all tokens                        a small addition to every answer
    ngram       the last two token IDs, and a decayed sum of       the next tokens' memory; a small addition to
                what the n-gram memory gave so far                 every answer

Every element is worked out by the same arithmetic whichever way the sequence came to it (tables, sums along an axis of
fixed length, never a matrix product whose shape depends on the prompt): that is what makes cold, local and external
answers equal to the last bit.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kvgate.sim.presets import Preset

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

VOCABULARY = 4096
WIDTH = 64
INDEX_WIDTH = 16
MEMORY_ROWS = 509
SHARPNESS = 7.0
GAIN = 12.0
DECAY = np.float32(0.9)
ONE_STEP = DECAY ** np.float32(1)
MEMORY_WEIGHT = np.float32(0.05)
CARRY_WEIGHT = np.float32(0.5)
SHARED_WEIGHT = np.float32(0.05)
RECURRENT_WEIGHT = np.float32(0.02)
POOLED_WEIGHT = np.float32(0.02)
WINDOW_WEIGHT = np.float32(0.05)
FIRST_USABLE_TOKEN = 3
CONTEXT = 2
# A record is found by more than the two tokens before it: shelf 17 and shelf 27 both end on "7:".
PHRASE = 5
PHRASES = 16381
PHRASE_FACTORS = tuple(pow(4099, PHRASE - 1 - place, PHRASES) for place in range(PHRASE))


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """What the tokens before a position give: tables by token ID (VOCABULARY, n) and phrase, the maps behind them."""

    previous: Floats
    before: Floats
    phrases: Floats
    previous_map: Floats
    before_map: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Unit embeddings (VOCABULARY, WIDTH), key and index look-ups, and the n-gram memory (MEMORY_ROWS, WIDTH)."""

    embeddings: Floats
    keys: Lookup
    index: Lookup
    memory: Floats


# Made once in a process, by seed: nobody changes weights, and a self-test makes a hundred deployments.
_MADE: dict[int, Weights] = {}


def make_weights(seed: int = 0) -> Weights:
    """The same weights from the same seed."""
    if seed not in _MADE:
        _MADE[seed] = _drawn(seed)
    return _MADE[seed]


def _drawn(seed: int) -> Weights:
    random = np.random.default_rng(seed)
    embeddings = _unit_rows(random, VOCABULARY)
    first, second = (np.linalg.qr(random.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32) for _ in range(2))
    shorter = np.linalg.qr(random.standard_normal((WIDTH, INDEX_WIDTH)))[0].astype(np.float32).T
    memory = _unit_rows(random, MEMORY_ROWS)
    phrases = _unit_rows(random, PHRASES)
    keys = _lookup(embeddings, phrases, first, second)
    index = _lookup(embeddings, _times(shorter, phrases), shorter @ first, shorter @ second)
    return Weights(embeddings, keys, index, memory)


def _unit_rows(random: np.random.Generator, count: int) -> Floats:
    rows = random.standard_normal((count, WIDTH)).astype(np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def _lookup(embeddings: Floats, phrases: Floats, first: Floats, second: Floats) -> Lookup:
    return Lookup(_times(first, embeddings), _times(second, embeddings), phrases, first, second)


def _times(matrix: Floats, rows: Floats) -> Floats:
    """``rows @ matrix.T``, each row by the same sums whatever the number of rows."""
    parts = [(matrix[None] * rows[at : at + 1024, None, :]).sum(axis=-1) for at in range(0, len(rows), 1024)]
    return np.concatenate(parts) if parts else np.zeros((0, len(matrix)), np.float32)


@dataclass(slots=True, eq=False)
class Sequence:
    """The KV of one running sequence.

    ``arrays`` have a row per token (per ``ratio`` tokens in compressed groups) and room for more; only rows of the
    first ``length`` tokens count. ``state`` is the side state now, ``states`` as it stood at each possible end of a
    hit. ``ids`` are the last token IDs, ``pending`` the embeddings no compressed entry holds yet. A layer without
    KV of its own reads another's, but sees nothing of the first ``unshared`` tokens (a fault; 0 when all is well).
    """

    preset: Preset
    arrays: dict[str, Array]
    state: dict[str, Array]
    length: int = 0
    states: dict[int, dict[str, Array]] = field(default_factory=dict)
    ids: tuple[int, ...] = (0,) * PHRASE
    pending: dict[int, Floats] = field(default_factory=dict)
    unshared: int = 0

    def rows(self, name: str) -> Floats:
        """The rows in use of an array."""
        ratio = int(name[1:]) if name[0] == "c" else 1
        return self.arrays[name][: self.length // ratio]

    def copy(self) -> "Sequence":
        """A sequence of its own, so that changing or extending one changes no other."""
        arrays = {name: array.copy() for name, array in self.arrays.items()}
        state = {name: array.copy() for name, array in self.state.items()}
        return Sequence(self.preset, arrays, state, self.length, {}, self.ids, dict(self.pending), self.unshared)


def empty_sequence(preset: Preset, capacity: int) -> Sequence:
    """Nothing seen yet, with room for ``capacity`` tokens."""
    arrays: dict[str, Array] = {
        "keys": np.empty((capacity, WIDTH), np.float32),
        "values": np.empty((capacity, WIDTH), np.float32),
    }
    if preset.top_k:
        arrays["index"] = np.empty((capacity, INDEX_WIDTH), np.float32)
    if preset.window:
        arrays["window"] = np.empty((capacity, WIDTH), np.float32)
    state: dict[str, Array] = {}
    for ratio in preset.compressed:
        arrays[f"c{ratio}"] = np.empty((capacity // ratio + 1, WIDTH), np.float32)
        state[f"carry{ratio}"] = np.zeros(WIDTH, np.float32)
    if preset.recurrent:
        state["recurrent"] = np.zeros(WIDTH, np.float32)
    if preset.ngram:
        state["ngram"] = np.zeros(CONTEXT + WIDTH, np.float32)
    pending = {ratio: np.zeros((0, WIDTH), np.float32) for ratio in preset.compressed}
    return Sequence(preset, arrays, state, pending=pending)


def extend(weights: Weights, sequence: Sequence, ids: Ids) -> None:
    """Take in further tokens. A sequence that was resumed goes on from the bytes it was given.

    Side state is kept as it stands at every possible end of a hit.
    """
    preset, arrays = sequence.preset, sequence.arrays
    start, end = sequence.length, sequence.length + len(ids)
    embedded = weights.embeddings[ids]
    known = np.concatenate([np.array(sequence.ids, np.int64), ids])
    ends = range((start // preset.step + 1) * preset.step, end + 1, preset.step) if sequence.state else range(0)
    kept: dict[int, dict[str, Array]] = {place: {} for place in ends}
    arrays["values"][start:end] = embedded
    if preset.ngram:
        arrays["values"][start:end] += _memory(weights, sequence, ids, kept)
    if preset.window:
        arrays["window"][start:end] = embedded
    if preset.recurrent:
        sequence.state["recurrent"], seen = _decayed(sequence.state["recurrent"], embedded, start, preset.block)
        for place, states in kept.items():
            states["recurrent"] = seen[place]
    for ratio in preset.compressed:
        _pool(sequence, embedded, ratio, kept)
    sequence.length = end
    arrays["keys"][start:end] = _look_up(weights.keys, sequence, known, start)
    if preset.top_k:
        arrays["index"][start:end] = _look_up(weights.index, sequence, known, start)
    sequence.states.update(kept)
    sequence.ids = tuple(int(token) for token in known[-PHRASE:])


def append(weights: Weights, sequence: Sequence, token: int) -> None:
    """Take in one further token: the bytes that ``extend`` makes of it, at a fraction of its cost."""
    preset, arrays, place = sequence.preset, sequence.arrays, sequence.length
    ends_a_hit = bool(sequence.state) and (place + 1) % preset.step == 0
    if preset.ngram or preset.compressed or ends_a_hit or place % preset.step < CONTEXT:
        extend(weights, sequence, np.array([token], np.int64))
        return
    embedded, ids = weights.embeddings[token], sequence.ids
    arrays["values"][place] = embedded
    if preset.window:
        arrays["window"][place] = embedded
    if preset.recurrent:
        sequence.state["recurrent"] = ONE_STEP * sequence.state["recurrent"].astype(np.float32) + embedded
    phrase = _phrase(ids)
    for name, lookup in (("keys", weights.keys), ("index", weights.index)):
        if name in arrays:
            arrays[name][place] = lookup.previous[ids[-1]] + lookup.before[ids[-2]] + lookup.phrases[phrase]
    sequence.length = place + 1
    sequence.ids = (*ids[1:], token)


def _look_up(lookup: Lookup, sequence: Sequence, known: Ids, start: int) -> Floats:
    """Rows made of the tokens before each position, from ``start`` on.

    Right after a possible end of a hit the two tokens before come from the bytes at hand, not from their IDs: what a
    hit loads is what counts there.
    """
    count, step = len(known) - PHRASE, sequence.preset.step
    before = known[PHRASE - CONTEXT :]
    rows = lookup.previous[before[1:-1]] + lookup.before[before[:-2]]
    for offset in (0, 1):
        places = np.arange(-(start - offset) % step, count, step)
        if len(places):
            bytes_of = _bytes_before(sequence, places + start, 2)
            rows[places] = _times(lookup.before_map, bytes_of)
            if offset == 0:
                rows[places] += _times(lookup.previous_map, _bytes_before(sequence, places + start, 1))
            else:
                rows[places] += lookup.previous[before[places + 1]]
    if count == 1:
        rows += lookup.phrases[_phrase(known[:-1].tolist())]
    else:
        rows += lookup.phrases[_phrases(known)[:-1]]
    return rows


def _bytes_before(sequence: Sequence, places: Ids, distance: int) -> Floats:
    """What the KV holds of the tokens so far before these places; zeros before the beginning."""
    source = sequence.arrays["window" if sequence.preset.window else "values"]
    rows: Floats = source[np.maximum(places - distance, 0)]
    rows[places < distance] = 0.0
    return rows


def _context(sequence: Sequence) -> Floats:
    """The last two tokens as the KV at hand has them, oldest first."""
    source = sequence.rows("window" if sequence.preset.window else "values")[-CONTEXT:]
    if len(source) == CONTEXT:
        return source
    return np.concatenate([np.zeros((CONTEXT - len(source), WIDTH), np.float32), source])


def _phrases(known: Ids) -> Ids:
    """For every run of PHRASE tokens, its row in the table of phrases."""
    rows = known[: len(known) - PHRASE + 1] * PHRASE_FACTORS[0]
    for place in range(1, PHRASE):
        rows += known[place : place + len(rows)] * PHRASE_FACTORS[place]
    return rows % PHRASES


def _phrase(ids: Iterable[int]) -> int:
    """The same for one run, without the cost of arrays."""
    return sum(token * factor for token, factor in zip(ids, PHRASE_FACTORS, strict=True)) % PHRASES


def _memory(weights: Weights, sequence: Sequence, ids: Ids, kept: dict[int, dict[str, Array]]) -> Floats:
    """What the n-gram memory adds to each token: a row chosen by the token and the two before it."""
    state, start = sequence.state["ngram"], sequence.length
    known = np.concatenate([state[:CONTEXT].astype(np.int64), ids])
    rows = weights.memory[(known[2:] * 31 + known[1:-1] * 17 + known[:-2] * 7) % MEMORY_ROWS]
    summed, seen = _decayed(state[CONTEXT:], rows, start, sequence.preset.block)
    sequence.state["ngram"] = np.concatenate([known[-CONTEXT:].astype(np.float32), summed])
    for place, states in kept.items():
        last = known[place - start : place - start + CONTEXT].astype(np.float32)
        states["ngram"] = np.concatenate([last, seen[place]])
    return np.asarray(MEMORY_WEIGHT * rows, dtype=np.float32)


def _decayed(state: Array, rows: Floats, start: int, block: int) -> tuple[Floats, dict[int, Floats]]:
    """A decayed sum after further rows, and as it stood at every block's edge, by tokens so far."""
    now: Floats = state.astype(np.float32)
    seen: dict[int, Floats] = {}
    head = min(len(rows), -start % block)
    whole = (len(rows) - head) // block
    middle = rows[head : head + whole * block].reshape(whole, block, WIDTH)
    place = start
    for parts in (rows[None, :head], middle, rows[None, head + whole * block :]):
        length = parts.shape[1]
        if length == 0 or len(parts) == 0:
            continue
        powers = DECAY ** np.arange(length - 1, -1, -1, dtype=np.float32)
        fades = DECAY ** np.float32(length)
        for each in (powers[None, :, None] * parts).sum(axis=1):
            now = fades * now + each
            place += length
            seen[place] = now
    return now, seen


def _pool(sequence: Sequence, embedded: Floats, ratio: int, kept: dict[int, dict[str, Array]]) -> None:
    """Entries of a compressed group: the mean of its tokens, and half of the mean before."""
    waiting = np.concatenate([sequence.pending[ratio], embedded])
    whole = len(waiting) // ratio
    sequence.pending[ratio] = waiting[whole * ratio :]
    if whole == 0:
        return
    name, first = f"carry{ratio}", (sequence.length - sequence.length % ratio) // ratio
    means = waiting[: whole * ratio].reshape(whole, ratio, WIDTH).mean(axis=1)
    before = np.concatenate([sequence.state[name][None], means[:-1]])
    sequence.arrays[f"c{ratio}"][first : first + whole] = means + CARRY_WEIGHT * before
    sequence.state[name] = means[-1]
    for place, states in kept.items():
        states[name] = means[place // ratio - first - 1]


def logits_of(weights: Weights, sequence: Sequence) -> Floats:
    """Next-token logits (VOCABULARY,), computed from the KV bytes at hand."""
    preset = sequence.preset
    context = _context(sequence)
    query = _query(weights.keys, context, sequence.ids)
    seen = _chosen(weights, sequence, context)
    keys, values = (sequence.rows(name)[seen] for name in ("keys", "values"))
    attended = _attend(keys, values, query, SHARPNESS)
    if preset.shared:
        borrowed = weights.keys.before_map @ context[1]
        attended = attended + SHARED_WEIGHT * _attend(*_borrowed(sequence, seen, keys, values), borrowed, 1.0)
    if preset.window:
        window = sequence.rows("window")[-preset.window :]
        attended = attended + WINDOW_WEIGHT * _attend(window, window, context[1], 1.0)
    for ratio in preset.compressed:
        pooled = sequence.rows(f"c{ratio}")
        if len(pooled):
            attended = attended + POOLED_WEIGHT * _attend(pooled, pooled, context[1], 1.0)
    if preset.recurrent:
        attended = attended + RECURRENT_WEIGHT * sequence.state["recurrent"].astype(np.float32)
    if preset.ngram:
        attended = attended + RECURRENT_WEIGHT * sequence.state["ngram"][CONTEXT:]
    logits = np.float32(GAIN) * (weights.embeddings @ attended)
    logits[:FIRST_USABLE_TOKEN] = -np.inf
    return np.asarray(logits, dtype=np.float32)


def _borrowed(sequence: Sequence, seen: slice | Ids, keys: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Keys and values as the layer sees them that owns none."""
    if sequence.unshared == 0:
        return keys, values
    there = (np.arange(sequence.length)[seen] >= sequence.unshared).astype(np.float32)[:, None]
    return keys * there, values * there


def _query(lookup: Lookup, context: Floats, ids: tuple[int, ...]) -> Floats:
    phrase = lookup.phrases[_phrase(ids)]
    return np.asarray(lookup.previous_map @ context[1] + lookup.before_map @ context[0] + phrase, dtype=np.float32)


def _chosen(weights: Weights, sequence: Sequence, context: Floats) -> slice | Ids:
    """The positions attention sees: all, or those the indexer ranks highest, shard by shard and then merged."""
    preset, length = sequence.preset, sequence.length
    if not preset.top_k or length <= preset.top_k:
        return slice(None)
    scores = sequence.rows("index") @ _query(weights.index, context, sequence.ids)
    shard = np.arange(length) // preset.block % preset.shards
    best: list[Ids] = []
    for number in range(preset.shards):
        mine = np.flatnonzero(shard == number)
        best.append(mine[_largest(scores[mine], preset.top_k)])
    merged = np.sort(np.concatenate(best))
    return np.sort(merged[_largest(scores[merged], preset.top_k)])


def _largest(scores: Floats, count: int) -> Ids:
    if len(scores) <= count:
        return np.arange(len(scores))
    return np.argpartition(-scores, count - 1)[:count]


def _attend(keys: Floats, values: Floats, query: Floats, sharpness: float) -> Floats:
    scores = np.float32(sharpness) * (keys @ query)
    scores -= scores.max()
    weights = np.exp(scores)
    return np.asarray((weights @ values) / weights.sum(), dtype=np.float32)
