"""Pressure: requests that are in flight all the while that one of a group's is, and between two of them."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from kvgate.domain.history import ProbeAnswered, ProbeSent
from kvgate.domain.observation import BROKEN_OFF, Observation, Outcome
from kvgate.domain.plan import ArmStep, GroupPlan, Plan
from kvgate.domain.planning import Prompts
from kvgate.domain.prompt import Ids, Prompt, begun_alike, digest
from kvgate.gate.beside import made
from kvgate.gate.line import Line
from kvgate.ports import Body, Clock, Engine

# How long the others have been on their way when the group's request follows.
LEAD_S = 0.02
# After a refusal, so that a server that has no room is not asked in a loop.
PAUSE_S = 0.2
# How long the first request that is to be broken off lives; later ones up to what an answer takes.
FIRST_LIFE_S = 0.05


@dataclass(slots=True)
class _Over:
    """Whether the group's request is done, so that no more are sent beside it."""

    yet: bool = False


@dataclass(slots=True)
class Churn:
    """The requests that make the pressure: each prompt again and again, under a salt of its own each time."""

    line: Line
    clock: Clock
    plan: Plan
    prompts: Prompts
    _made: list[tuple[GroupPlan, Prompt]] = field(default_factory=list)
    _bodies: dict[tuple[str, str], Body] = field(default_factory=dict)
    _sent: Counter[str] = field(default_factory=Counter)
    _random: random.Random = field(init=False)
    _life_s: float = FIRST_LIFE_S
    _stirred: int = 0

    def __post_init__(self) -> None:
        """Draw from the plan's seed."""
        self._random = random.Random(self.plan.seed)  # noqa: S311 - which requests are broken off is no secret

    @asynccontextmanager
    async def around(self, group: GroupPlan, step: ArmStep) -> AsyncIterator[None]:
        """Keep them in flight at the step's endpoint; on leaving, all of them have ended. Nothing without pressure."""
        company = self.plan.company(group, step)
        if not company:
            yield
            return
        engine, over = self.line.engines[step.endpoint], _Over()
        workers = [
            asyncio.create_task(self._work(engine, step, *each, over)) for each in self._prompts_made()[:company]
        ]
        try:
            await self.clock.sleep(LEAD_S)
            yield
            over.yet = True
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def stir(self, step: ArmStep) -> None:
        """Send requests with a common beginning, all at once, and those that are broken off a second time; all of them
        have ended on return. Nothing where the plan sends none."""
        if not self.plan.stirred(step):
            return
        engine, (first, whole) = self.line.engines[step.endpoint], self._prompts_made()[0]
        salt = f"{first.steps[0].salt}-between{self._stirred}"
        self._stirred += 1
        # The nonce stands at the beginning, so that all of them are the first prompt's.
        begun = replace(first.steps[0], endpoint=step.endpoint, salt=salt)
        sent = [
            self._once_or_again(engine, begun, first, begun_alike(whole.ids, prompt.ids))
            for _, prompt in self._prompts_made()[: self.plan.between]
        ]
        await asyncio.gather(*sent)

    def _prompts_made(self) -> list[tuple[GroupPlan, Prompt]]:
        # Made once: each prompt is new to the engine under a new salt.
        self._made = self._made or made(self.line, self.plan.churn, self.prompts)
        return self._made

    async def _once_or_again(self, engine: Engine, step: ArmStep, group: GroupPlan, ids: Ids) -> None:
        """What an impatient client does: after it broke off, it asks for the same again."""
        body = engine.encode(ids)
        seen = await self._send(engine, step, group, (body, digest(ids)), self._breaks_off())
        if BROKEN_OFF in seen.marks:
            await self._send(engine, step, group, (body, digest(ids)), None)

    async def _work(self, engine: Engine, beside: ArmStep, group: GroupPlan, prompt: Prompt, over: _Over) -> None:
        key = (engine.name, group.id)
        if key not in self._bodies:
            self._bodies[key] = engine.encode(prompt.ids)
        # The first one has to be there when the group's request follows, however impatient its client is.
        spared_s = 2 * LEAD_S
        while not over.yet:
            step = replace(
                group.steps[0], endpoint=beside.endpoint, salt=f"{group.steps[0].salt}{self._sent[group.id]}"
            )
            life_s, begun = self._breaks_off(), self.clock.now()
            life_s, spared_s = life_s + spared_s if life_s is not None else None, 0.0
            seen = await self._send(engine, step, group, (self._bodies[key], prompt.sha256), life_s)
            if seen.ok:
                self._life_s = max(FIRST_LIFE_S, self.clock.now() - begun)
            elif life_s is None and not over.yet:
                await self.clock.sleep(PAUSE_S)
            if self.plan.pause_s and not over.yet:
                await self.clock.sleep(self._random.expovariate(1 / self.plan.pause_s))

    def _breaks_off(self) -> float | None:
        """After how many seconds the next one is broken off, None if it is not."""
        return self._life_s * self._random.random() if self._random.random() < self.plan.cancel_share else None

    async def _send(
        self, engine: Engine, step: ArmStep, group: GroupPlan, prompt: tuple[Body, str], life_s: float | None
    ) -> Observation:
        """Send one, and break it off after ``life_s`` seconds unless it is answered by then (None: wait for it)."""
        body, sha256 = prompt
        number = self._sent[group.id]
        self._sent[group.id] += 1
        probe = self.line.probe(group.id, step, number, group.length, sha256)
        self.line.note(ProbeSent(self.line.now(), probe))
        try:
            seen = await asyncio.wait_for(engine.complete(probe, body), life_s)
        except asyncio.TimeoutError:
            seen = Observation(Outcome.LOST, "broken off by kvgate", marks=(BROKEN_OFF,))
        # Kept for what it says, not for comparing: whatever is sent beside the groups is sent by the thousand.
        seen = replace(seen, logprobs=None, top_ids=None, top_logprobs=None)
        self.line.note(ProbeAnswered(self.line.now(), probe.id, seen))
        self.line.computed += group.length
        return seen
