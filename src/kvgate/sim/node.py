"""One engine of the embedded deployment: prefix cache, pool client, counters, and answers computed from KV bytes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from kvgate.sim.answers import ON_ANSWER, Reply, Spoiling, preempted
from kvgate.sim.deeds import Counters, Deed
from kvgate.sim.dials import QUIET, Circumstances, Dials, Noise
from kvgate.sim.garbling import ON_TRANSFER
from kvgate.sim.journal import opened
from kvgate.sim.kv import (
    Arrays,
    Place,
    block_hashes,
    cut,
    fill,
    is_state,
    longest_hit,
    name_of,
    places_between,
    places_needed,
    resume,
)
from kvgate.sim.memory import Memory
from kvgate.sim.network import VOCABULARY, Ids, Sequence, extend
from kvgate.sim.planting import ON_LOAD, Loading, differ, lot_of, on_save, unwritten, weights_for
from kvgate.sim.presets import PRESETS, Preset
from kvgate.sim.sampling import generate, pieces
from kvgate.sim.store import LocalCache, Pool, Store
from kvgate.sim.transfer import Handover, differing, take_over

LOCAL_BYTES = 2 << 30
FORGETFUL = ("silent_recompute", "evicted")
SWALLOWING = ("swallowed_failure", "pd_swallowed_failure")
# Faults of a decoder that keeps prefixes; the reset of the second and third drops nothing there.
DECODE_CACHES = ("decode_caches", "decode_hides_pool", "decode_hides_transfer")


class RefusedError(Exception):
    """The request is answered with an error instead: (status, message)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """One completion. ``salt`` '' is no salt; ``rank`` None lets the engine choose; ``batch`` counts it in.

    Above a ``temperature`` of 0 tokens are drawn, by ``seed`` if there is one.
    """

    ids: list[int]
    salt: str = ""
    max_tokens: int = 16
    top: int = 1
    rank: int | None = None
    batch: int = 1
    transfer: dict[str, object] | None = None
    incoming: Sequence | None = None
    temperature: float = 0.0
    seed: int | None = None
    id: str = "sim"


@dataclass(frozen=True, slots=True)
class Role:
    """What an engine is within its deployment: its name, its data-parallel ranks, whether it keeps prefixes, and
    whether it decodes what another has prefilled."""

    name: str = "engine"
    ranks: int = 1
    prefix_caching: bool = True
    decodes: bool = False


COMBINED = Role()


@dataclass(slots=True)
class Rank:
    """A data-parallel rank: a prefix cache and counters of its own."""

    cache: LocalCache
    counters: Counters = field(default_factory=Counters)


@dataclass(slots=True)
class _Found:
    """What a request reuses: tokens by path, the objects, and how many of them a fault changed."""

    local: int = 0
    external: int = 0
    looked_up: int = 0
    objects: dict[Place, Arrays] = field(default_factory=dict)
    spoilt: int = 0

    @property
    def hit(self) -> int:
        return self.local + self.external


class Node:
    """An engine. ``fault`` names a row of the fault table; 'healthy' is a healthy engine."""

    def __init__(
        self,
        preset: Preset = PRESETS["dense"],
        store: Store | None = None,
        fault: str = "healthy",
        memory: Memory | None = None,
        dials: Dials = QUIET,
        role: Role = COMBINED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.preset = preset
        self.store = None if fault == "no_pool" else store
        self.fault = fault
        self.memory = memory if memory is not None else Memory()
        self.dials = dials
        self.name = role.name
        self.ranks = [Rank(LocalCache(LOCAL_BYTES)) for _ in range(role.ranks)]
        self.deeds: list[Deed] = []
        self.log = opened(role.name, dials.log_folder, preset)
        self.prefix_caching = role.prefix_caching
        self._decodes = role.decodes
        self._received: list[tuple[Ids, Arrays]] = []
        self._clock = clock
        self._born = clock()
        self._loads = 0
        self._transfers = 0
        self._requests = 0
        self.handover = Handover(role.name, clock, fault)

    # -- surface ----------------------------------------------------------------------------------------------
    def drop_local(self) -> bool:
        """Forget the engine's own prefix caches, and only those; whether it says it did."""
        if self.fault != "reset_lies" and not (self._decodes and self.fault in DECODE_CACHES[1:]):
            for rank in self.ranks:
                rank.cache.drop()
        return self.fault != "reset_refused"

    def ready(self) -> bool:
        """Whether start-up is over."""
        return self._clock() - self._born >= self.dials.start_up_s

    def complete(self, request: Request) -> Reply:
        """Answer a prompt. Raises RefusedError."""
        self._check(request)
        number, self._requests = self._requests, self._requests + 1
        rank = self.ranks[request.rank if request.rank is not None else number % len(self.ranks)]
        if request.transfer is not None and self.dials.prefill_drops:
            request = replace(request, ids=request.ids[: -self.dials.prefill_drops])
        prompt = np.array(request.ids, dtype=np.int64)
        if request.incoming is not None and self.fault == "transfer_fails":
            self.count_failed_transfer(len(prompt), rank)
            request = replace(request, incoming=None)
        if request.incoming is not None:
            found, sequence = self._receive(prompt, request, request.incoming, rank)
        else:
            found, sequence = self._prefill(prompt, request, rank)
        transferred = len(prompt) - found.local if request.incoming is not None else 0
        if transferred and self.dials.prefill_drops and sequence.length < len(prompt):
            transferred -= len(prompt) - sequence.length
            extend(self.memory.weights, sequence, prompt[sequence.length :])
        self._account(rank, request, found, transferred, number)
        away = isinstance(self.store, Pool) and self.store.outage.away
        if (found.external and self.fault == "refused_hit") or (away and self.fault == "outage_refused"):
            raise RefusedError(500, "KV load failure")
        params = self._lend(request, sequence, found, number)
        chunk = self.preset.chunk
        last_chunk = (len(prompt) - found.hit - 1) % chunk + 1 if not transferred else 1
        noise = Noise(self.dials, Circumstances(prompt, last_chunk, self.preset.granule, request.batch, number))
        warmth = (request.temperature, number if request.seed is None else request.seed)
        weights = weights_for(self.fault, number, self.memory.weights)
        ids, rows = generate(weights, sequence, request.max_tokens, request.top, noise, warmth)
        if request.incoming is None:
            self._keep_written(rank, request, ids, sequence)
        cached = found.hit + (self.preset.block if self.fault == "lying_usage" else 0)
        split = (found.local, found.external) if self.dials.tells_split else None
        reply = Reply(ids, rows, self.memory.words.text(ids), cached, "length", transfer=params, split=split)
        text = self.memory.foreign_text(prompt)
        struck = request.batch > 1 if self.fault == "leak_under_load" else found.external > 0
        if struck and self.fault in ON_ANSWER:
            reply = ON_ANSWER[self.fault](reply, Spoiling(text, self.memory.words.text))
        if self._decodes:
            reply = preempted(self.fault, reply, Spoiling(text, self.memory.words.text), number)
        rank.counters.generated += len(reply.ids)
        return replace(reply, steps=pieces(self.preset.speculation, len(reply.ids), int(prompt.sum())))

    def _check(self, request: Request) -> None:
        ids, limit = request.ids, self.preset.max_model_len
        if not self.ready():
            raise RefusedError(503, "the engine is starting up")
        if len(ids) + request.max_tokens > limit:
            raise RefusedError(400, f"This model's maximum context length is {limit} tokens.")
        if not ids or min(ids) < 0 or max(ids) >= VOCABULARY:
            raise RefusedError(400, "The prompt is empty or holds token IDs outside the vocabulary.")
        if request.rank is not None and not 0 <= request.rank < len(self.ranks):
            raise RefusedError(400, f"there is no data-parallel rank {request.rank}")

    # -- KV ---------------------------------------------------------------------------------------------------
    def _prefill(self, prompt: Ids, request: Request, rank: Rank) -> tuple[_Found, Sequence]:
        """Look up, load, compute the rest, keep every whole block, and put what is new into the pool."""
        preset = self.preset
        hashes = block_hashes(prompt, request.salt, preset.block)
        pool_hashes = block_hashes(prompt, "", preset.block) if self.fault == "salt_ignored" else hashes
        found = self._find(prompt, request, rank, hashes, pool_hashes)
        sequence = resume(preset, found.hit, found.objects, prompt, len(prompt) + request.max_tokens)
        if self.fault == "shared_owner_missing" and found.external:
            sequence.unshared = found.hit
        extend(self.memory.weights, sequence, prompt[found.hit :])
        new: dict[str, Arrays] = {}
        mine: dict[Place, Arrays] = {}
        for place in self._whole(sequence, found.hit, len(prompt)):
            kept, given = on_save(self.fault, place, cut(sequence, place), len(prompt), preset)
            new[self._key(place, pool_hashes)] = given
            mine[place] = kept
        self._keep(rank, hashes, {**mine, **found.objects})
        # Where the decoder stores what it got, the prefiller does not.
        if self.store is not None and self.fault not in ("never_put", "decode_puts_early"):
            self.store.put(new)
        if self.fault != "healthy" and not found.hit:
            self.memory.objects = [*self.memory.objects[-1:], mine]
        return found, sequence

    def _whole(self, sequence: Sequence, start: int, end: int) -> list[Place]:
        """The places of every object that can be cut from these tokens; states are known at some ends only."""
        places = places_between(self.preset, start, end // self.preset.block * self.preset.block)
        return [place for place in places if not is_state(place.group) or place.end in sequence.states]

    def _keep_written(self, rank: Rank, request: Request, ids: list[int], sequence: Sequence) -> None:
        """Keep what decode wrote like what was prefilled; the last token's KV is not yet there."""
        known = np.array([*request.ids, *ids[:-1]], dtype=np.int64)
        places = self._whole(sequence, len(request.ids) // self.preset.block * self.preset.block, len(known))
        if not (places and self.prefix_caching):
            return
        written = {place: cut(sequence, place) for place in places}
        if self.fault == "decode_writes_zeros":
            written = {place: {name: array * 0 for name, array in each.items()} for place, each in written.items()}
        self._keep(rank, block_hashes(known, request.salt, self.preset.block), written)

    def _find(self, prompt: Ids, request: Request, rank: Rank, hashes: list[str], pool_hashes: list[str]) -> _Found:
        preset = self.preset
        limit = len(prompt) - 1 - (preset.step if preset.speculation else 0)
        found = _Found()
        if self.prefix_caching:
            self._find_local(found, limit, rank, hashes)
            # A prompt of the gate's own hits nearly all of itself; one that goes another way, no more than half.
            self.memory.forked |= 0 < found.local < 3 * limit // 4
        if self.store is None or len(prompt) < 2 * preset.retention:
            return found
        wanted = {
            place: self._key(place, pool_hashes)
            for place in places_between(preset, found.local, limit // preset.block * preset.block)
        }
        held = self.store.held(list(wanted.values()))
        # One that has lost the last blocks serves a shorter hit, which is right all the same.
        reach = limit // 2 if self.fault == "shorter_hit" else limit
        end = longest_hit(preset, reach, lambda place: wanted.get(place) in held, found.local)
        if end == found.local:
            return found
        found.looked_up = end - found.local
        loaded = self._load(self.store, end, found, wanted, request)
        if loaded is not None:
            needed = set(places_needed(preset, 0, end))
            found.objects = {place: arrays for place, arrays in {**found.objects, **loaded}.items() if place in needed}
            found.external = end - found.local
        return found

    def _load(
        self, store: Store, end: int, found: _Found, wanted: dict[Place, str], request: Request
    ) -> dict[Place, Arrays] | None:
        """Objects from the pool as they arrive, or None if some are gone: then everything is computed again."""
        length = len(request.ids)
        places = [place for place in places_needed(self.preset, found.local, end) if place in wanted]
        loads = 0 if self.dials.log_denies_loads else end - found.local
        self.log.say(f"Reqid: {request.id}, Total tokens {length}, kvpool hit tokens: {end}, need to load: {loads}")
        got = store.get([wanted[place] for place in places])
        if self.fault in FORGETFUL or any(wanted[place] not in got for place in places):
            self.log.say("Failed to get 1 keys out of 1. error_codes=[-704]")
            return None
        if self.fault in SWALLOWING:
            self.log.say(
                f"KV load failed for hybrid request {request.id}. Skip invalid-block fallback to avoid scheduler crash."
            )
        loaded = {place: got[wanted[place]] for place in places}
        plant = ON_LOAD.get(self.fault)
        number, self._loads = self._loads, self._loads + 1
        if plant is None:
            return loaded
        private = {place: {name: array.copy() for name, array in arrays.items()} for place, arrays in loaded.items()}
        loading = Loading(
            preset=self.preset,
            number=number,
            length=length,
            hit=end,
            local=found.local,
            batch=request.batch,
            cancelled=self.memory.cancelled,
            forked=self.memory.forked,
            evicted=isinstance(store, Pool) and store.evicted_since([wanted[place] for place in places]),
            lot=lot_of(request.ids, number),
            struck=self.dials.struck_block,
            struck_lengths=self.dials.struck_lengths,
            foreign=self.memory.objects[0] if len(self.memory.objects) > 1 else {},
            earlier=self._earlier(store, end, wanted),
        )
        plant(private, loading)
        found.spoilt = sum(differ(private[place], loaded[place]) for place in places)
        return private

    def _earlier(self, store: Store, end: int, wanted: dict[Place, str]) -> Arrays:
        """The side state one step before ``end``, where the pool still has it."""
        step = self.preset.step
        places = [Place(group, end // step - 2, end - step) for group in self.preset.groups() if is_state(group)]
        names = {wanted[place]: place.group for place in places if place in wanted}
        return {names[name]: arrays[names[name]] for name, arrays in store.get(list(names)).items()}

    def _key(self, place: Place, hashes: list[str]) -> str:
        """The pool's key of an object."""
        if self.fault == "hash_collision" and place.group == "full" and place.number == 1:
            return "every prompt's second block"
        return name_of(place, hashes, self.preset)

    def _receive(self, prompt: Ids, request: Request, incoming: Sequence, rank: Rank) -> tuple[_Found, Sequence]:
        """Take another engine's KV over. An engine that keeps prefixes asks only for what it does not have."""
        preset = self.preset
        # References are taken at their word: what they stand for may be longer than the prompt, or shorter.
        capacity = max(len(prompt), incoming.length) + request.max_tokens
        sequence = take_over(incoming, capacity, self.fault, self._foreign_rows(prompt, incoming), self._transfers)
        self._transfers += 1
        found = _Found(spoilt=differing(sequence, incoming) if self.fault in ON_TRANSFER else 0)
        hashes = block_hashes(prompt, request.salt, preset.block)
        if self.store is not None and self.fault == "decode_puts_early":
            places = places_between(preset, 0, len(prompt) // preset.block * preset.block)
            self.store.put({self._key(place, hashes): unwritten(cut(sequence, place)) for place in places})
        if self.prefix_caching:
            self._find_local(found, len(prompt) - 1, rank, hashes)
            fill(sequence, found.objects)
            end = min(len(prompt), incoming.length) // preset.block * preset.block
            new = [place for place in places_between(preset, found.local, end) if not is_state(place.group)]
            self._keep(rank, hashes, {**{place: cut(sequence, place) for place in new}, **found.objects})
        return found, sequence

    def _keep(self, rank: Rank, hashes: list[str], objects: dict[Place, Arrays]) -> None:
        """Hold these in the prefix cache, the prompt's beginning longest: without it, nothing behind it is a hit."""
        if self.prefix_caching:
            for place in sorted(objects, key=lambda place: -place.end):
                rank.cache.keep(name_of(place, hashes, self.preset), objects[place])

    def _find_local(self, found: _Found, limit: int, rank: Rank, hashes: list[str]) -> None:
        preset = self.preset
        found.local = longest_hit(preset, limit, lambda place: name_of(place, hashes, preset) in rank.cache)
        for place in places_needed(preset, 0, found.local) if found.local else []:
            found.objects[place] = rank.cache.get(name_of(place, hashes, preset))

    def _lend(self, request: Request, sequence: Sequence, found: _Found, number: int) -> dict[str, object] | None:
        """Hold the KV for the engine that asked for it to be held, and say how to get it."""
        if request.transfer is None or request.incoming is not None or self.fault == "no_parameters":
            return None
        return self.handover.lend(sequence, len(request.ids), number, loaded=bool(found.external))

    def _foreign_rows(self, prompt: Ids, incoming: Sequence) -> Arrays:
        """What another prompt's KV was that came here before, for faults that mix prompts up."""
        if self.fault not in ON_TRANSFER:
            return {}
        mine = prompt[:16].copy()
        others = [(start, rows) for start, rows in self._received if not np.array_equal(start, mine)]
        self._received = [*others[-1:], (mine, {name: incoming.rows(name).copy() for name in ("keys", "values")})]
        return others[-1][1] if others else {}

    # -- what is said of it -----------------------------------------------------------------------------------
    def count_failed_transfer(self, tokens: int, rank: Rank | None = None) -> None:
        """Count KV that did not come as vLLM does: the look-up was a hit, whatever became of it."""
        counters = (rank or self.ranks[0]).counters
        counters.external_queries += tokens
        counters.external_hits += tokens

    def _account(self, rank: Rank, request: Request, found: _Found, transferred: int, number: int) -> None:
        counters, length = rank.counters, len(request.ids)
        every = self.dials.preempted_every
        preempted = bool(every) and number % every == every - 1
        computed = length - found.hit - transferred
        where = self.ranks.index(rank)
        self.deeds.append(
            Deed(length, computed, found.local, found.external, transferred, found.spoilt, where, request.batch)
        )
        counters.prompt += length
        counters.computed += computed
        counters.local += found.local
        counters.external += found.external + transferred
        counters.local_queries += length
        counters.external_queries += (length - found.local if self.store is not None else 0) + transferred
        counters.external_hits += found.looked_up + transferred
        counters.requests += 1
        counters.preemptions += int(preempted or self.fault == "preempted")
        if self.fault == "foreign_on_decode" and self._decodes:
            # Somebody else's prompt, about as long, was transferred at the same time.
            foreign = length - 1
            counters.prompt += foreign
            counters.external += foreign
            counters.external_hits += foreign
            counters.local_queries += foreign
        if request.incoming is not None:
            size = sum(request.incoming.rows(name).nbytes for name in request.incoming.arrays)
            counters.transferred_bytes += size * transferred // length
