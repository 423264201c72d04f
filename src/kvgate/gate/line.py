"""A run's line to the deployment: what is said and heard is on disk before anything is made of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvgate.domain.history import Entry, ProbeAnswered, ProbeSent, Waited
from kvgate.domain.observation import Observation, Outcome
from kvgate.domain.plan import ArmStep, Plan
from kvgate.domain.probe import Probe, probe_id
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.record import RunRecord
from kvgate.ports import Body, Clock, Engine, Hooks, Sink, Watcher

ALIVE_TRIES = 3


@dataclass(frozen=True, slots=True)
class Outside:
    """Everything a session reaches the world through; engines by endpoint name."""

    engines: Mapping[str, Engine]
    hooks: Hooks
    sink: Sink
    clock: Clock
    watcher: Watcher


class Stop(Exception):  # noqa: N818 - not an error: the run ends here, with a reason
    """The run cannot or need not go on."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


async def still_alive(engine: Engine, clock: Clock) -> bool:
    """Whether the engine answers at all, asked a few times, a second apart."""
    for number in range(ALIVE_TRIES):
        if await engine.alive():
            return True
        if number + 1 < ALIVE_TRIES:
            await clock.sleep(1.0)
    return False


class Line:
    """Sends probes and keeps the run's record; ``computed`` counts the prompt tokens that the engines computed."""

    def __init__(self, plan: Plan, run_id: str, outside: Outside) -> None:
        self.record = RunRecord()
        self.computed = 0
        self.engines = outside.engines
        self._plan = plan
        self._run_id = run_id
        self._sink = outside.sink
        self._clock = outside.clock
        self._begun = outside.clock.now()

    def now(self) -> float:
        """Seconds since the run began."""
        return round(self._clock.now() - self._begun, 6)

    def note(self, entry: Entry) -> None:
        """On disk first, then in memory."""
        self._sink.append(entry)
        self.record.add(entry)

    async def wait(self, seconds: float, why: str) -> None:
        """Wait, and say why."""
        self.note(Waited(self.now(), seconds, why))
        await self._clock.sleep(seconds)

    def probe(self, group: str, step: ArmStep, attempt: int, length: int, sha256: str) -> Probe:
        """A probe. Its salt is unique per run and group: pool keys outlive runs."""
        salts = step.salt is not None and self._plan.salts_honoured
        salted = f"kvgate-{self._run_id}-{group}-{step.salt}" if salts else None
        name, most = probe_id(group, step.arm, attempt), self._plan.max_tokens
        return Probe(name, group, step.arm, attempt, step.endpoint, salted, length, most, sha256, step.rank)

    async def send(self, engine: Engine, probe: Probe, body: Body) -> Observation:
        """Send one probe. Raises Stop if its engine does not answer any more."""
        self.note(ProbeSent(self.now(), probe))
        observation = await engine.complete(probe, body)
        self.note(ProbeAnswered(self.now(), probe.id, observation))
        if observation.outcome is Outcome.LOST and not await still_alive(engine, self._clock):
            detail = f"{engine.name} stopped answering during {probe.id}: {observation.detail}"
            raise Stop(Problem(Reason.ENDPOINT_LOST, detail))
        return observation

    def check_budget(self) -> None:
        """Raises Stop once more was computed, more requests were sent, or more time went by, than the plan allows."""
        budget = self._plan.budget
        if self.computed > budget.computed_tokens:
            detail = f"{self.computed} prompt tokens were computed, the budget is {budget.computed_tokens}"
            raise Stop(Problem(Reason.BUDGET_EXHAUSTED, detail))
        if budget.requests is not None and self.record.sent >= budget.requests:
            detail = f"{self.record.sent} requests were sent, the budget is {budget.requests}"
            raise Stop(Problem(Reason.BUDGET_EXHAUSTED, detail))
        if self.now() > budget.minutes * 60:
            raise Stop(Problem(Reason.BUDGET_EXHAUSTED, f"{budget.minutes:g} minutes are over"))
