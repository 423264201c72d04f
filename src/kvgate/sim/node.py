"""One engine of the embedded deployment: prefix cache, pool client, counters, and answers computed from KV bytes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from kvgate.sim.network import (
    VOCABULARY,
    Block,
    Rows,
    Sequence,
    Weights,
    extend,
    generate,
    make_weights,
    resume,
)
from kvgate.sim.planting import ON_LOAD, Loading, wrong_when_saved
from kvgate.sim.store import Ids, LocalCache, Pool, block_hashes
from kvgate.sim.words import Dictionary

SHAPE_NOISE_NAT = 0.04
BEGINNING = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes in tokens: block, prefill chunk, longest prompt plus answer, and the local cache's capacity in blocks."""

    block: int = 32
    chunk: int = 320
    max_model_len: int = 8192
    local_blocks: int = 4096


@dataclass(slots=True)
class Counters:
    """What the engine says it did, in prompt tokens unless named otherwise."""

    prompt: int = 0
    computed: int = 0
    local: int = 0
    external: int = 0
    local_queries: int = 0
    external_queries: int = 0
    external_hits: int = 0
    preemptions: int = 0
    requests: int = 0
    generated: int = 0


@dataclass(frozen=True, slots=True)
class Deed:
    """What really happened to one request, whatever the counters say: prompt tokens by path, and blocks changed."""

    length: int
    computed: int
    local: int
    external: int
    spoilt: int


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: token IDs, rows of (token, logprob) likeliest first, text, and cached prompt tokens as reported."""

    ids: list[int]
    rows: Rows
    text: str
    cached: int
    finish_reason: str


class RefusedError(Exception):
    """The request is answered with an error instead: (status, message)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Node:
    """An engine. ``fault`` names a row of the fault table; '' is a healthy engine."""

    def __init__(
        self,
        shape: Shape,
        pool: Pool | None,
        fault: str = "",
        weights: Weights | None = None,
        words: Dictionary | None = None,
    ) -> None:
        self.shape = shape
        self.pool = None if fault == "no_pool" else pool
        self.fault = fault
        self.counters = Counters()
        self.deeds: list[Deed] = []
        self.weights = weights if weights is not None else make_weights()
        self.words = words if words is not None else Dictionary()
        self._local = LocalCache(shape.local_blocks)
        self._loads = 0
        self._recent: list[Ids] = []

    def drop_local(self) -> None:
        """Forget the engine's own prefix cache, and only that."""
        if self.fault != "reset_lies":
            self._local.drop()

    def complete(self, ids: list[int], salt: str, count: int, top: int) -> Reply:
        """Answer a prompt. Raises RefusedError."""
        prompt = np.array(ids, dtype=np.int64)
        if len(ids) + count > self.shape.max_model_len:
            raise RefusedError(400, f"This model's maximum context length is {self.shape.max_model_len} tokens.")
        if len(ids) == 0 or prompt.min() < 0 or prompt.max() >= VOCABULARY:
            raise RefusedError(400, "The prompt is empty or holds token IDs outside the vocabulary.")
        hashes = block_hashes(prompt, salt, self.shape.block)
        usable = hashes[: (len(ids) - 1) // self.shape.block]
        local = self._local.prefix(usable)
        external, spoilt = self._load(usable[len(local) :], len(ids))
        sequence = self._prefill(prompt, hashes, [*local, *external])
        self._account(len(ids), len(local), len(external), spoilt)
        if external and self.fault == "refused_hit":
            raise RefusedError(500, "KV load failure")
        answer, rows = generate(self.weights, sequence, count, top)
        rows = self._noise(rows, prompt, (len(local) + len(external)) * self.shape.block)
        reply = self._reply(answer, rows, self._cached(local, external), "length")
        reply = self._spoil(reply, prompt, bool(external))
        self.counters.generated += len(reply.ids)
        return reply

    # -- KV ---------------------------------------------------------------------------------------------------
    def _load(self, names: list[str], length: int) -> tuple[list[Block], int]:
        """Blocks from the pool for the prompt's further hashes, as they arrive; and how many were changed."""
        if self.pool is None:
            return [], 0
        keys = [self._key(name, place) for place, name in enumerate(names)]
        self.counters.external_queries += len(names) * self.shape.block
        held = 0
        while held < len(keys) and self.pool.holds(keys[held]):
            held += 1
        self.counters.external_hits += held * self.shape.block
        if held == 0 or self.fault in ("silent_recompute", "evicted"):
            return [], 0
        blocks = [self.pool.get(key) for key in keys[:held]]
        plant = ON_LOAD.get(self.fault)
        number, self._loads = self._loads, self._loads + 1
        if plant is None or held < 2:
            return blocks, 0
        before = [block.copy() for block in blocks]
        after = plant(blocks, Loading(number, length, tuple(self.pool.others(set(keys)))))
        return after, sum(1 for one, other in zip(before, after, strict=True) if _differ(one, other))

    def _prefill(self, prompt: Ids, hashes: list[str], reused: list[Block]) -> Sequence:
        """Compute what is not reused, keep every whole block, and put it into the pool."""
        sequence = resume(list(reused))
        made = extend(self.weights, sequence, prompt[sequence.length :], self.shape.block)
        if self.fault == "saved_wrong":
            made = [wrong_when_saved(block) for block in made]
        for place, (name, block) in enumerate(zip(hashes, [*reused, *made], strict=False)):
            self._local.keep(name, block)
            if self.pool is not None and self.fault != "never_put" and place >= len(reused):
                stored = wrong_when_saved(block) if self.fault == "poisoned_put" and place == 1 else block
                self.pool.put(self._key(name, place), stored)
        return sequence

    def _key(self, name: str, place: int) -> str:
        """The pool's key of a block."""
        if self.fault == "hash_collision" and place == 1:
            return "every prompt's second block"
        return name

    # -- what is said of it -----------------------------------------------------------------------------------
    def _account(self, length: int, local: int, external: int, spoilt: int) -> None:
        block, counters = self.shape.block, self.counters
        computed = length - (local + external) * block
        self.deeds.append(Deed(length, computed, local * block, external * block, spoilt))
        counters.prompt += length
        counters.computed += computed
        counters.local += local * block
        counters.external += external * block
        counters.local_queries += length
        counters.requests += 1
        counters.preemptions += int(self.fault == "preempted")

    def _cached(self, local: list[Block], external: list[Block]) -> int:
        cached = (len(local) + len(external)) * self.shape.block
        return cached + self.shape.block if self.fault == "lying_usage" else cached

    def _noise(self, rows: Rows, prompt: Ids, reused: int) -> Rows:
        """Benign shape noise: for some prompts the answer depends a little on the size of the last prefill chunk.

        Equal chunks give equal answers, so a cold run of an aligned length equals a hit, as on a real engine.
        """
        share = {"shape_noise_15": 15, "shape_noise_45": 45}.get(self.fault, 0)
        last_chunk = (len(prompt) - reused - 1) % self.shape.chunk + 1
        if int(prompt[:64].sum()) % 100 >= share or last_chunk <= self.shape.block:
            return rows
        return [[(token, value - SHAPE_NOISE_NAT) for token, value in row] for row in rows]

    def _spoil(self, reply: Reply, prompt: Ids, external: bool) -> Reply:
        """Faults of answers whose prompt came (partly) from the pool."""
        ids, rows = reply.ids, reply.rows
        leaked = self._foreign_beginning(prompt)
        if not external:
            return reply
        if self.fault == "first_token_lost":
            return self._reply(ids[1:], rows[1:], reply.cached, "length")
        if self.fault == "first_token_doubled":
            return self._reply([ids[0], *ids[:-1]], [rows[0], *rows[:-1]], reply.cached, "length")
        if self.fault == "cut_answer":
            half = len(ids) // 2
            return self._reply(ids[:half], rows[:half], reply.cached, "stop")
        if self.fault == "empty_answer":
            return self._reply([], [], reply.cached, "stop")
        if self.fault == "leak" and leaked is not None:
            return replace(reply, text=leaked)
        return reply

    def _reply(self, ids: list[int], rows: Rows, cached: int, finish_reason: str) -> Reply:
        return Reply(ids, rows, self.words.text(ids), cached, finish_reason)

    def _foreign_beginning(self, prompt: Ids) -> str | None:
        """How the last prompt before this one began; None if there was no other."""
        beginnings = [ids for ids in self._recent if not np.array_equal(ids, prompt[:BEGINNING])]
        self._recent = [*beginnings[-1:], prompt[:BEGINNING].copy()]
        return self.words.text(beginnings[-1].tolist()) if beginnings else None


def _differ(one: Block, other: Block) -> bool:
    return any(
        not np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True)
        for name in ("keys", "values", "window", "recurrent", "pooled")
    )


Clock = Callable[[], float]


@dataclass(slots=True)
class Deployment:
    """Nodes on one pool, as the server shows them."""

    nodes: list[Node] = field(default_factory=list)
    pool: Pool | None = None


def make_deployment(shape: Shape, nodes: int = 1, fault: str = "", clock: Clock = time.monotonic) -> Deployment:
    """A deployment of ``nodes`` engines that share a pool and the fault."""
    pool = Pool(clock, lag_s=0.3 if fault == "slow_put" else 0.0)
    weights, words = make_weights(), Dictionary()
    return Deployment([Node(shape, pool, fault, weights, words) for _ in range(nodes)], pool)
