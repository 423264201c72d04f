"""Keeps an eye on the engines while a run lasts: says what to do about it, and sees that they let go at the end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kvgate.domain.history import SignalsRead, When
from kvgate.domain.plan import Plan
from kvgate.domain.probe import Arm, Path
from kvgate.domain.signals import IN_A_ROW, alerts_on, held, signals_read
from kvgate.gate.line import Line
from kvgate.ports import Clock, Engine, Watcher

RELEASE_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Eye:
    """How often engines are asked how they do (seconds, 0: not), and how long they may take to let go at the end."""

    every_s: float = 2.0
    release_s: float = 30.0


USUAL = Eye()


@dataclass(slots=True)
class Lookout:
    """Asks the engines that a plan's requests are sent to."""

    line: Line
    plan: Plan
    clock: Clock
    watcher: Watcher
    eye: Eye
    _read: dict[str, list[SignalsRead]] = field(default_factory=dict)
    _told: set[tuple[str, str]] = field(default_factory=set)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Ask before, again and again meanwhile, and, if all went well, afterwards until the engines have let go."""
        await self._look(When.BEFORE)
        looking = asyncio.create_task(self._keep_looking()) if self.eye.every_s else None
        try:
            yield
        finally:
            ended = await _ended(looking)
        # What went wrong there must not be lost, nor take the place of what went wrong here.
        if ended is not None:
            raise ended
        await self._until_released()

    async def _keep_looking(self) -> None:
        while True:
            await self.clock.sleep(self.eye.every_s)
            await self._look(When.MEANWHILE)

    async def _until_released(self) -> None:
        """Ask until every engine holds what it held before, or has had its time. Only the last reading is kept."""
        deadline = self.clock.now() + self.eye.release_s
        for engine in self._engines():
            pause = RELEASE_PAUSE_S
            while True:
                now = await self._ask(engine, When.AFTER)
                first = self._read[engine.name][0] if engine.name in self._read else None
                still = held(first, now) if first is not None and now is not None else []
                if not still or self.clock.now() >= deadline:
                    break
                self.watcher.said(f"waiting for {engine.name} to let go ({'; '.join(still)})")
                await self.clock.sleep(pause)
                pause = min(2 * pause, 2.0)
            if now is not None:
                self._keep(now)

    async def _look(self, when: When) -> None:
        for engine in self._engines():
            seen = await self._ask(engine, when)
            read = self._read.get(engine.name, [])
            if seen is not None and not _told_before(read, seen):
                self._keep(seen)

    def _keep(self, seen: SignalsRead) -> None:
        self.line.note(seen)
        read = self._read.setdefault(seen.endpoint, [])
        read.append(seen)
        for each in alerts_on(seen.endpoint, read):
            if (seen.endpoint, each.name) not in self._told:
                self._told.add((seen.endpoint, each.name))
                self.watcher.said(f"{each.seen}: {each.action}")
        # The first and the last two are all that is looked at.
        self._read[seen.endpoint] = [read[0], *read[1:][-2:]]

    async def _ask(self, engine: Engine, when: When) -> SignalsRead | None:
        counters = (await engine.read_counters()).counters
        return signals_read(self.line.now(), engine.name, when, counters) if counters is not None else None

    def _engines(self) -> Sequence[Engine]:
        """The engines that the groups' prompts are sent to; behind a gateway it tells of all of them."""
        sent = (step for group in self.plan.groups for step in group.steps)
        names = dict.fromkeys(step.endpoint for step in sent if step.arm is Arm.COLD or step.path is Path.EXTERNAL)
        return [self.line.engines[name] for name in names]


async def _ended(task: "asyncio.Task[None] | None") -> BaseException | None:
    """End a task; what it failed with, if it did."""
    if task is None:
        return None
    task.cancel()
    failed = (await asyncio.gather(task, return_exceptions=True))[0]
    return failed if isinstance(failed, BaseException) and not isinstance(failed, asyncio.CancelledError) else None


def _told_before(read: list[SignalsRead], seen: SignalsRead) -> bool:
    """Whether a reading tells what as many before it told as make it more than a peak."""
    return len(read) >= IN_A_ROW and all(_same(each, seen) for each in read[-IN_A_ROW:])


def _same(one: SignalsRead, other: SignalsRead) -> bool:
    told = (one.gauges, one.preemptions, one.failed_loads)
    return told == (other.gauges, other.preemptions, other.failed_loads)
