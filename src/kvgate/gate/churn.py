"""Pressure: requests that are in flight all the while that one of a group's is."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from kvgate.domain.history import ProbeAnswered, ProbeSent
from kvgate.domain.observation import BROKEN_OFF, Observation, Outcome
from kvgate.domain.plan import ArmStep, GroupPlan, Plan
from kvgate.domain.planning import PromptSource
from kvgate.domain.prompt import Prompt
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
    prompts: PromptSource
    _made: list[tuple[GroupPlan, Prompt]] = field(default_factory=list)
    _bodies: dict[tuple[str, str], Body] = field(default_factory=dict)
    _sent: Counter[str] = field(default_factory=Counter)
    _random: random.Random = field(init=False)
    _life_s: float = FIRST_LIFE_S

    def __post_init__(self) -> None:
        """Draw from the plan's seed."""
        self._random = random.Random(self.plan.seed)  # noqa: S311 - which requests are broken off is no secret

    @asynccontextmanager
    async def around(self, step: ArmStep) -> AsyncIterator[None]:
        """Keep them in flight at the step's endpoint; on leaving, all of them have ended. Nothing without pressure."""
        if not self.plan.pressed(step):
            yield
            return
        # Made once: each prompt is new to the engine under a new salt.
        self._made = self._made or made(self.line, self.plan.churn, self.prompts)
        engine, over = self.line.engines[step.endpoint], _Over()
        workers = [asyncio.create_task(self._work(engine, step, group, prompt, over)) for group, prompt in self._made]
        try:
            await self.clock.sleep(LEAD_S)
            yield
            over.yet = True
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, engine: Engine, beside: ArmStep, group: GroupPlan, prompt: Prompt, over: _Over) -> None:
        key = (engine.name, group.id)
        if key not in self._bodies:
            self._bodies[key] = engine.encode(prompt.ids)
        while not over.yet:
            number = self._sent[group.id]
            self._sent[group.id] += 1
            step = replace(group.steps[0], endpoint=beside.endpoint, salt=f"{group.steps[0].salt}{number}")
            probe = self.line.probe(group.id, step, number, group.length, prompt.sha256)
            breaks_off = self._random.random() < self.plan.cancel_share
            life_s = self._life_s * self._random.random() if breaks_off else None
            self.line.note(ProbeSent(self.line.now(), probe))
            begun = self.clock.now()
            try:
                seen = await asyncio.wait_for(engine.complete(probe, self._bodies[key]), life_s)
            except asyncio.TimeoutError:
                seen = Observation(Outcome.LOST, "broken off by kvgate", marks=(BROKEN_OFF,))
            # Kept for what it says, not for comparing: whatever is sent beside the groups is sent by the thousand.
            seen = replace(seen, logprobs=None, top_ids=None, top_logprobs=None)
            self.line.note(ProbeAnswered(self.line.now(), probe.id, seen))
            self.line.computed += group.length
            if seen.ok:
                self._life_s = max(FIRST_LIFE_S, self.clock.now() - begun)
            elif life_s is None and not over.yet:
                await self.clock.sleep(PAUSE_S)
