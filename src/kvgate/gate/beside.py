"""What is sent beside the groups: canaries, all at once, and sentinels, again and again."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from kvgate.domain.canaries import WAVES
from kvgate.domain.history import GroupStarted
from kvgate.domain.plan import GroupPlan, Plan
from kvgate.domain.planning import Prompts
from kvgate.domain.prompt import Prompt
from kvgate.gate.line import Line
from kvgate.ports import Watcher


def made(line: Line, groups: Iterable[GroupPlan], prompts: Prompts) -> list[tuple[GroupPlan, Prompt]]:
    """The groups' prompts; the groups are told of in the record."""
    found = [(group, prompts.for_group(group)) for group in groups]
    for group, _ in found:
        line.note(GroupStarted(line.now(), group, None))
    return found


async def send_canaries(line: Line, canaries: tuple[GroupPlan, ...], prompts: Prompts, watcher: Watcher) -> None:
    """Send every canary at the same time, as often as there are waves. Raises Stop."""
    ready = made(line, canaries, prompts)
    for wave in range(WAVES if ready else 0):
        line.check_budget()
        watcher.said(f"sending {len(ready)} canaries at once")
        probes = [
            (line.engines[step.endpoint], line.probe(group.id, step, wave, group.length, prompt.sha256), prompt)
            for group, prompt in ready
            for step in group.steps
        ]
        sent = (line.send(engine, probe, engine.encode(prompt.ids)) for engine, probe, prompt in probes)
        ended = await asyncio.gather(*sent, return_exceptions=True)
        failed = next((each for each in ended if isinstance(each, BaseException)), None)
        if failed is not None:
            raise failed
        line.computed += sum(group.length for group, _ in ready)


class Sentinels:
    """One prompt per engine, computed afresh each time it is asked."""

    def __init__(self, line: Line, plan: Plan, prompts: Prompts) -> None:
        self._line = line
        self._retries = plan.limits.lost_retries
        self._made = made(line, plan.sentinels, prompts)
        self._asked = 0

    async def ask(self, times: int) -> None:
        """Ask each of them so many times. Raises Stop."""
        for _ in range(times):
            for _ in range(1 + self._retries):
                if await self._ask_each():
                    break

    async def _ask_each(self) -> bool:
        """Ask each of them once; whether all of them answered."""
        good = True
        for group, prompt in self._made:
            step = replace(group.steps[0], salt=f"{group.steps[0].salt}{self._asked}")
            engine = self._line.engines[step.endpoint]
            probe = self._line.probe(group.id, step, self._asked, group.length, prompt.sha256)
            good = (await self._line.send(engine, probe, engine.encode(prompt.ids))).ok and good
            self._line.computed += group.length
        self._asked += 1
        return good
