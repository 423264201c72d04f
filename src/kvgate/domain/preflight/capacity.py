"""How much KV an engine holds, by what it said at its start, and what a prompt of some length takes of it.

The engine divides the memory it has left by what a token takes. Where layers keep different things (windows, compressed
or recurrent state) its figure of tokens is an average over a request of the longest length, so that shorter prompts may
take more or less of it than their share.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

GIB = 1 << 30
# Ranks whose memory differs by more than this are told of: the smallest is what all can use.
UNEVEN = 0.02


class Word(str, Enum):
    """What a line of a start-up log tells."""

    MEMORY = "memory"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"
    LONGEST = "longest"
    GRANULE = "granule"
    BLOCK = "block"
    GROUPS = "groups"
    VERSION = "version"
    BATCH = "batch"
    SCALED = "scaled"


@dataclass(frozen=True, slots=True)
class Told:
    """One figure of a log: which rank of which data-parallel engine said it, and where."""

    word: Word
    value: float | str
    engine: int
    rank: str
    line: int


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """What one data-parallel engine holds; None is what its log does not tell.

    ``memory`` are GiB by rank. ``tokens`` and ``concurrency`` are the engine's own figures, the latter for requests of
    ``longest`` tokens. ``per_token`` are bytes of one rank. ``granule`` is the least common multiple of the KV groups'
    block sizes, ``groups`` how many there are, ``batch`` is max_num_batched_tokens.
    """

    engine: int
    memory: tuple[tuple[str, float], ...]
    tokens: int | None
    concurrency: float | None
    longest: int | None
    granule: int | None
    groups: int | None
    batch: int | None
    version: str | None
    per_token: float | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TierCost:
    """What prompts of one length take: GiB of one rank, and how many are held at once by one engine."""

    engine: int
    tier: int
    gib: float | None
    at_once: float
    steps: int | None


def capacities(told: Iterable[Told]) -> tuple[EngineCapacity, ...]:
    """What each data-parallel engine holds. Of figures that an engine told twice (it was started again), the last."""
    by_engine: dict[int, list[Told]] = {}
    for each in told:
        by_engine.setdefault(each.engine, []).append(each)
    return tuple(_capacity(engine, by_engine[engine]) for engine in sorted(by_engine))


def _last(told: Sequence[Told], word: Word) -> float | str | None:
    return next((each.value for each in reversed(told) if each.word is word), None)


def _number(told: Sequence[Told], word: Word) -> float | None:
    value = _last(told, word)
    return float(value) if isinstance(value, (int, float)) else None


def _whole(told: Sequence[Told], word: Word) -> int | None:
    value = _number(told, word)
    return int(value) if value is not None else None


def _capacity(engine: int, told: Sequence[Told]) -> EngineCapacity:
    memory = {each.rank: float(each.value) for each in told if each.word is Word.MEMORY}
    tokens, concurrency = _whole(told, Word.TOKENS), _number(told, Word.CONCURRENCY)
    longest, groups = _whole(told, Word.LONGEST), _whole(told, Word.GROUPS)
    if tokens is None and concurrency is not None and longest is not None:
        tokens = int(concurrency * longest)
    smallest = min(memory.values()) if memory else None
    per_token = smallest * GIB / tokens if smallest is not None and tokens else None
    version = _last(told, Word.VERSION)
    granule = _whole(told, Word.GRANULE) or _whole(told, Word.BLOCK)
    return EngineCapacity(
        engine,
        tuple(sorted(memory.items())),
        tokens,
        concurrency,
        longest,
        granule,
        groups,
        _whole(told, Word.BATCH),
        version if isinstance(version, str) else None,
        per_token,
        tuple(_notes(memory, tokens, concurrency, groups, _number(told, Word.SCALED))),
    )


def _notes(
    memory: dict[str, float],
    tokens: int | None,
    concurrency: float | None,
    groups: int | None,
    scaled: float | None,
) -> Iterable[str]:
    if not memory:
        yield (
            "no rank tells its memory for KV, as when --kv-cache-memory is given; bytes per token are not known. Start "
            "once without it, or divide that size by the tokens"
        )
    elif max(memory.values()) > min(memory.values()) * (1 + UNEVEN):
        low, high = min(memory, key=memory.__getitem__), max(memory, key=memory.__getitem__)
        yield (
            f"ranks differ: {low} has {memory[low]:.2f} GiB, {high} {memory[high]:.2f} GiB; the smallest is what all "
            "use, so look at what else runs on its device"
        )
    if tokens is None:
        yield "the log does not tell how many tokens fit; is it the whole log of the start?"
    if groups is not None and groups > 1:
        yield (
            f"{groups} kinds of KV: the figure of tokens is an average at the longest length; short prompts take more "
            "of it than their share, and what is reused comes in whole granules"
        )
    if scaled is not None:
        yield f"layers share buffers (budget scaled by {scaled:g}): memory and tokens are not those of one layer each"
    if concurrency is not None and concurrency < 2:
        yield (
            f"fewer than two requests of the longest length fit ({concurrency:g}): a second one is preempted or waits. "
            "Lower --max-model-len to what is served, or give KV more memory"
        )


def costs(capacity: EngineCapacity, tiers: Sequence[int]) -> tuple[TierCost, ...]:
    """What prompts of these lengths take of an engine; nothing where it does not tell how many tokens fit."""
    if not capacity.tokens:
        return ()
    return tuple(
        TierCost(
            capacity.engine,
            tier,
            tier * capacity.per_token / GIB if capacity.per_token is not None else None,
            capacity.tokens / tier,
            -(-tier // capacity.batch) if capacity.batch else None,
        )
        for tier in tiers
        if capacity.longest is None or tier <= capacity.longest
    )


def unlike(found: Sequence[EngineCapacity]) -> str | None:
    """What differs between data-parallel engines that should be alike; None if nothing does."""
    sizes = {each.engine: each.tokens for each in found if each.tokens is not None}
    if not sizes or min(sizes.values()) * (1 + UNEVEN) >= max(sizes.values()):
        return None
    low, high = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    return (
        f"data-parallel engine {low} holds {sizes[low]} tokens, engine {high} {sizes[high]}: requests are spread "
        "evenly, so the smaller one evicts and preempts first"
    )
