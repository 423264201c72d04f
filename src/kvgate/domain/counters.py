"""Readings of an engine's counters, under kvgate's own names."""

from dataclasses import dataclass
from enum import Enum


class Counter(str, Enum):
    """What a dialect may be able to count, in prompt tokens unless the name says otherwise."""

    PROMPT_TOKENS = "prompt_tokens"
    COMPUTED = "computed"
    LOCAL = "local"
    EXTERNAL = "external"
    LOCAL_HITS = "local_hits"
    LOCAL_QUERIES = "local_queries"
    EXTERNAL_HITS = "external_hits"
    EXTERNAL_QUERIES = "external_queries"
    PREEMPTIONS = "preemptions_count"
    REQUESTS = "requests_count"
    LOADED_BYTES = "loaded_bytes"
    FAILED_LOADS = "failed_loads_count"
    # What the decode side of a prefill/decode deployment counts.
    DECODE_PROMPT = "decode_prompt_tokens"
    DECODE_COMPUTED = "decode_computed"
    DECODE_LOCAL = "decode_local"
    TRANSFERRED = "transferred"


# What a decode engine counts, under names of its own: only the prefill side's counters say anything of the pool.
_ON_DECODE = {
    Counter.PROMPT_TOKENS: Counter.DECODE_PROMPT,
    Counter.COMPUTED: Counter.DECODE_COMPUTED,
    Counter.LOCAL: Counter.DECODE_LOCAL,
    Counter.EXTERNAL: Counter.TRANSFERRED,
    Counter.PREEMPTIONS: Counter.PREEMPTIONS,
}


@dataclass(frozen=True, slots=True)
class Reading:
    """One counter of one engine (data-parallel rank) at one moment."""

    engine: str
    counter: Counter
    value: float


class Signal(str, Enum):
    """What an engine tells of the moment it is asked: requests it works on, requests that wait, and the share of its
    KV cache that requests hold (0 to 1; what is kept for later and may be dropped does not count)."""

    RUNNING = "running"
    WAITING = "waiting"
    KV_USAGE = "kv_usage"


@dataclass(frozen=True, slots=True)
class Gauge:
    """One signal of one engine (data-parallel rank) at one moment."""

    engine: str
    signal: Signal
    value: float


@dataclass(frozen=True, slots=True)
class Counters:
    """One reading of an endpoint. ``started`` is the process's start time in Unix seconds, None if unknown."""

    readings: tuple[Reading, ...]
    started: float | None = None
    gauges: tuple[Gauge, ...] = ()

    def table(self) -> dict[tuple[str, Counter], float]:
        """The readings by (engine, counter)."""
        return {(reading.engine, reading.counter): reading.value for reading in self.readings}


@dataclass(frozen=True, slots=True)
class CounterDelta:
    """What moved between two readings of one endpoint."""

    by_engine: dict[str, dict[Counter, float]]
    fell: tuple[str, ...]

    def total(self, counter: Counter) -> int | None:
        """The sum over engines, or None if no engine has the counter."""
        values = [counts[counter] for counts in self.by_engine.values() if counter in counts]
        return round(sum(values)) if values else None

    def active_engines(self) -> tuple[str, ...]:
        """The engines whose prompt tokens moved."""
        return tuple(
            sorted(
                engine
                for engine, counts in self.by_engine.items()
                if counts.get(Counter.PROMPT_TOKENS, counts.get(Counter.LOCAL_QUERIES, 0.0)) > 0
            )
        )

    def decoding_engines(self) -> tuple[str, ...]:
        """The decode engines, behind prefill ones, whose prompt tokens moved."""
        return tuple(sorted(name for name, counts in self.by_engine.items() if counts.get(Counter.DECODE_PROMPT, 0.0)))


def named(endpoint: str, counters: Counters, decoding: bool) -> list[Reading]:
    """One endpoint's readings beside those of others; a decode engine's under names of their own."""
    found: list[Reading] = []
    for reading in counters.readings:
        counter = _ON_DECODE.get(reading.counter) if decoding else reading.counter
        if counter is not None:
            found.append(Reading(f"{endpoint}/{reading.engine}", counter, reading.value))
    return found


def difference(before: Counters, after: Counters) -> CounterDelta:
    """``after`` minus ``before``. A counter first seen afterwards counts from 0 (label sets appear on first use)."""
    earlier, later = before.table(), after.table()
    by_engine: dict[str, dict[Counter, float]] = {}
    fell: list[str] = []
    for (engine, counter), value in later.items():
        moved = value - earlier.get((engine, counter), 0.0)
        if moved < 0:
            fell.append(f"{counter.value} of engine {engine} fell from {value - moved:g} to {value:g}")
        by_engine.setdefault(engine, {})[counter] = moved
    for engine, counter in earlier.keys() - later.keys():
        fell.append(f"{counter.value} of engine {engine} vanished")
    if before.started is not None and after.started is not None and abs(after.started - before.started) > 1.0:
        anew = after.started > before.started
        fell.append("the server process was started anew" if anew else "another server process answered than before")
    return CounterDelta(by_engine, tuple(fell))
