"""Sends one trace to several deployments, one after the other, and records every word; it makes nothing of it."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from kvgate.domain.counters import Counter, Counters, difference, named
from kvgate.domain.deployment import Role
from kvgate.domain.evidence import counted
from kvgate.domain.history import Moment
from kvgate.domain.measured import (
    SALTS,
    WARM_UP,
    EngineCounted,
    LegBroken,
    LegStarted,
    MeasureCompleted,
    MeasureEntry,
    MeasurePlan,
    MeasureStopped,
    PartEnded,
    PartStarted,
    RequestAnswered,
    RequestSent,
)
from kvgate.domain.observation import Observation, Outcome
from kvgate.domain.probe import Arm, Probe
from kvgate.domain.prompt import Ids, digest
from kvgate.domain.reasons import Problem
from kvgate.domain.trace import Planned, TraceLeg, TracePart, TracePrompts, legs_of, nonce_of_run
from kvgate.gate.line import still_alive
from kvgate.ports import Clock, Engine, MeasureSink, Watcher

# A prompt is put together this long before it is due, so that this takes nothing off its time.
LEAD_S = 0.25
# Requests to every entry before a leg, of which the last is as long as any.
WARM_UPS = 3
POLL_S = 0.1
LONGEST_SLEEP_S = 1.0


@dataclass(frozen=True, slots=True)
class Target:
    """A deployment's engines: those that requests are sent to, in turn, and those whose counters are read.

    ``evidence_s`` is how long counters may lag, in seconds.
    """

    entries: tuple[Engine, ...]
    engines: tuple[tuple[Role, Engine], ...]
    evidence_s: float


@dataclass(frozen=True, slots=True)
class MeasureOutside:
    """Everything a measurement reaches the world through; targets in the order of the plan's deployments."""

    targets: tuple[Target, ...]
    sink: MeasureSink
    clock: Clock
    watcher: Watcher


@dataclass(frozen=True, slots=True)
class _Key:
    """What the prompts of one part of one leg begin with, and the key space they are in."""

    nonce: str
    salt: str | None


class Measuring:
    """One measurement: ``run`` goes through all legs."""

    def __init__(self, plan: MeasurePlan, run_id: str, prompts: TracePrompts, outside: MeasureOutside) -> None:
        self._plan = plan
        self._run_id = run_id
        self._prompts = prompts
        self._targets = outside.targets
        self._sink = outside.sink
        self._clock = outside.clock
        self._watcher = outside.watcher
        self._begun = outside.clock.now()
        # Deployments that went away, and what was last said of them.
        self._gone: dict[int, str] = {}

    async def run(self) -> None:
        """Send the whole trace to every deployment, as often as the trace says."""
        legs = legs_of(len(self._plan.deployments), self._plan.trace.repeats)
        for leg in legs:
            if leg.deployment in self._gone:
                continue
            label = self._plan.deployments[leg.deployment].label
            self._watcher.said(f"{leg.number + 1} of {len(legs)}: {label}")
            self._note(LegStarted(self._now(), leg.number, leg.deployment, leg.repeat))
            await self._leg(leg)
            if leg.deployment in self._gone:
                self._note(LegBroken(self._now(), leg.number, self._gone[leg.deployment]))
                self._watcher.said(f"{label} went away: {self._gone[leg.deployment]}")
        self._note(MeasureCompleted(self._now()))

    def stop(self, problem: Problem) -> None:
        """Record that the measurement ended early."""
        self._note(MeasureStopped(self._now(), problem.detail))

    def _note(self, entry: MeasureEntry) -> None:
        self._sink.append(entry)

    def _now(self) -> float:
        return round(self._clock.now() - self._begun, 6)

    async def _leg(self, leg: TraceLeg) -> None:
        await self._warm_up(leg)
        for part in self._plan.trace.parts:
            if leg.deployment in self._gone:
                return
            requests = [each for each in self._plan.planned if each.part == part.name]
            self._watcher.said(f"  {part.name}: {len(requests)} requests")
            before = await self._read(leg, part.name, Moment.BEFORE)
            key = self._key(leg, part.name)
            start = self._now()
            self._note(PartStarted(start, leg.number, part.name, key.nonce, key.salt))
            answered = await self._send_all(leg, part, requests, key, start)
            self._note(PartEnded(self._now(), leg.number, part.name))
            await self._read_settled(leg, part.name, before, answered)

    def _key(self, leg: TraceLeg, part: str) -> _Key:
        """Nothing of an earlier run, leg or part may answer: by salts, or, where they are ignored, by another nonce.

        Where one deployment ignores salts all get a nonce of their own, so that their prompts stay alike in shape.
        """
        honoured = self._plan.deployments[leg.deployment].salts_honoured
        all_honour = all(each.salts_honoured for each in self._plan.deployments)
        nonce = nonce_of_run(self._run_id if all_honour and part else f"{self._run_id}/{leg.number}/{part}")
        name = f"kvgate-{self._run_id}-{leg.number}-{part or 'warm-up'}"
        return _Key(nonce, name if honoured else None)

    # -- requests ---------------------------------------------------------------------------------------------
    async def _warm_up(self, leg: TraceLeg) -> None:
        """Wake lazy parts up: a first request is never a figure. Ends once the counters have taken all in."""
        before = await self._read(leg, WARM_UP, Moment.BEFORE)
        key, answered = self._key(leg, WARM_UP), 0
        parts = sorted(self._plan.trace.parts, key=lambda part: part.prompt_tokens)
        longest = max(parts, key=lambda part: part.longest)
        for engine in self._targets[leg.deployment].entries:
            for number in range(WARM_UPS):
                if leg.deployment in self._gone:
                    return
                last = number == WARM_UPS - 1
                part, length = (longest, longest.longest) if last else (parts[0], parts[0].prompt_tokens)
                ids = self._prompts.session(part, number % part.count, key.nonce)[:length]
                request = f"warm-up.{engine.name}.{number}"
                seen = await self._send(leg, (WARM_UP, request, None), engine, ids, key)
                answered += length if seen.ok else 0
        await self._read_settled(leg, WARM_UP, before, answered)
        if key.salt is not None and leg.repeat == 0:
            await self._try_another_salt(leg, longest, key)

    async def _try_another_salt(self, leg: TraceLeg, part: TracePart, key: _Key) -> None:
        """Send the longest prompt of the warm-up under another salt: the counters show whether salts are kept."""
        ids = self._prompts.session(part, (WARM_UPS - 1) % part.count, key.nonce)
        before = await self._read(leg, SALTS, Moment.BEFORE)
        entry, other = self._targets[leg.deployment].entries[0], _Key(key.nonce, f"{key.salt}-other")
        seen = await self._send(leg, (SALTS, "salts", None), entry, ids, other)
        await self._read_settled(leg, SALTS, before, len(ids) if seen.ok else 0)

    async def _send_all(self, leg: TraceLeg, part: TracePart, requests: list[Planned], key: _Key, start: float) -> int:
        """Every session of a part, as its arrivals have it; returns the prompt tokens of what was answered."""
        turns: dict[int, list[Planned]] = {}
        for request in requests:
            turns.setdefault(request.session, []).append(request)
        sessions = list(turns.values())
        if part.arrival.concurrency is None:
            workers = [asyncio.create_task(self._session(leg, part, each, key, start)) for each in sessions]
        else:
            left = iter(sessions)
            count = min(part.arrival.concurrency, len(sessions))
            workers = [asyncio.create_task(self._work(leg, part, left, key, start)) for _ in range(count)]
        try:
            return sum(await asyncio.gather(*workers))
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(
        self, leg: TraceLeg, part: TracePart, left: Iterator[list[Planned]], key: _Key, start: float
    ) -> int:
        answered = 0
        for session in left:
            answered += await self._session(leg, part, session, key, start)
        return answered

    async def _session(self, leg: TraceLeg, part: TracePart, turns: list[Planned], key: _Key, start: float) -> int:
        """One session's turns, each once the one before has ended, however it did: the trace is the same for all."""
        arrives, answered = turns[0].arrives_s, 0
        if arrives is not None:
            await self._until(leg, start + arrives - LEAD_S)
        whole = self._prompts.session(part, turns[0].session, key.nonce)
        entries = self._targets[leg.deployment].entries
        for request in turns:
            if leg.deployment in self._gone:
                break
            engine = entries[(request.session * part.turns + request.turn) % len(entries)]
            if request.turn:
                await self._clock.sleep(part.think_s)
            due = (part.name, request.id, request.arrives_s)
            seen = await self._send(leg, due, engine, whole[: request.length], key, start)
            answered += request.length if seen.ok else 0
        return answered

    async def _until(self, leg: TraceLeg, moment: float) -> None:
        """Wait, but not for a deployment that is gone."""
        while (left := moment - self._now()) > 0 and leg.deployment not in self._gone:
            await self._clock.sleep(min(left, LONGEST_SLEEP_S))

    async def _send(
        self,
        leg: TraceLeg,
        due: tuple[str, str, float | None],
        engine: Engine,
        ids: Ids,
        key: _Key,
        start: float = 0.0,
    ) -> Observation:
        """Send one request, when it is due; ``due`` is its part, its name, and seconds after the part's start."""
        part, name, due_s = due
        sha256, body, length = digest(ids), engine.encode(ids), len(ids)
        if due_s is not None:
            await self._until(leg, start + due_s)
        # Of what is sent by the thousand the engine's log says nothing that could be told apart.
        probe = Probe(
            id=f"{leg.number}.{name}",
            group=part,
            arm=Arm.CHURN,
            attempt=leg.repeat,
            endpoint=engine.name,
            salt=key.salt,
            length=length,
            max_tokens=self._plan.trace.max_tokens,
            prompt_sha256=sha256,
        )
        self._note(RequestSent(self._now(), leg.number, part, name, engine.name, length, sha256, due_s))
        seen = await engine.complete(probe, body)
        self._note(RequestAnswered(self._now(), leg.number, part, name, seen))
        if seen.outcome is Outcome.LOST and leg.deployment not in self._gone:
            alive = await still_alive(engine, self._clock)
            if not alive:
                self._gone.setdefault(leg.deployment, f"{engine.name} stopped answering during {name}: {seen.detail}")
        return seen

    # -- counters ---------------------------------------------------------------------------------------------
    async def _read(self, leg: TraceLeg, part: str, moment: Moment) -> Counters | None:
        """Read every engine's counters and record them; returns them together, None where one cannot be read."""
        entries = await self._readings(leg, part, moment)
        for entry in entries:
            self._note(entry)
        return _together(entries)

    async def _readings(self, leg: TraceLeg, part: str, moment: Moment) -> list[EngineCounted]:
        found: list[EngineCounted] = []
        for role, engine in self._targets[leg.deployment].engines:
            reading = await engine.read_counters()
            found.append(
                EngineCounted(
                    self._now(), leg.number, part, moment, engine.name, role, reading.counters, reading.detail
                )
            )
        return found

    async def _read_settled(self, leg: TraceLeg, part: str, before: Counters | None, answered: int) -> None:
        """Read the counters once they account for what was answered, or lag no longer than they may."""
        until = self._now() + self._targets[leg.deployment].evidence_s
        while True:
            entries = await self._readings(leg, part, Moment.AFTER)
            after = _together(entries)
            if before is None or after is None or _accounted(before, after, answered) or self._now() >= until:
                break
            await self._clock.sleep(POLL_S)
        for entry in entries:
            self._note(entry)


def _accounted(before: Counters, after: Counters, answered: int) -> bool:
    """Whether so many prompt tokens are counted; by decode, where there is one: prefill was done before."""
    decoded = difference(before, after).total(Counter.DECODE_PROMPT)
    moved = decoded if decoded is not None else counted(before, after)
    return moved is None or moved >= answered


def _together(entries: list[EngineCounted]) -> Counters | None:
    readings = [
        reading
        for entry in entries
        if entry.counters is not None
        for reading in named(entry.endpoint, entry.counters, entry.role is Role.DECODE)
    ]
    return Counters(tuple(readings)) if all(entry.counters is not None for entry in entries) else None
