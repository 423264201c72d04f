"""Faults that strike seldom, late, or under a condition: what a run of so many groups finds, and what a PASS says."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from calibrate_noise import PER_TOKEN_S
from power_gate import Kept, NoWatcher

from kvgate.domain.history import RunCompleted, SignalsRead, When
from kvgate.domain.judge import judge
from kvgate.domain.plan import Plan
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import RunVerdict
from kvgate.domain.verdict import Verdict
from kvgate.gate.line import Stop
from kvgate.ports import Watcher
from kvgate.sim.deployment import Deployment
from kvgate.sim.dials import QUIET as QUIET_DIALS
from kvgate.sim.dials import Dials

BUDGETS = (3, 10, 29, 100, 299)


@dataclass(frozen=True, slots=True)
class Rare:
    """A row of the fault table, when it strikes, with which share of loads if that is at random, and what is beside.

    ``most`` is the largest budget that is worth its time.
    """

    name: str
    sentence: str
    fault: str = ""
    share: float | None = None
    beside: int = 0
    cancels: float = 0.0
    dials: Dials = QUIET_DIALS
    most: int = BUDGETS[-1]


# A prompt of the shortest tier takes 64 KiB, so that the pool is full after some eight groups.
_SMALL_POOL = Dials(pool_bytes=1 << 20)
_BUSY = Dials(latency_per_token_s=PER_TOKEN_S)

RARE: tuple[Rare, ...] = (
    Rare("one_in_ten", "one load in ten, at random", share=0.1),
    Rare("one_in_hundred", "one load in a hundred, at random", share=0.01),
    Rare("after_some", "every load after the fifth"),
    Rare("after_many", "every load after the hundredth"),
    Rare("concurrent_only", "every load, with 3 requests beside it", beside=3, dials=_BUSY),
    Rare("concurrent_only, alone", "the same fault with nothing beside it", fault="concurrent_only", most=29),
    Rare("while_evicting", "every load once the pool drops what is oldest", dials=_SMALL_POOL),
    Rare("after_a_cancel", "every load after a client has gone away", beside=2, cancels=0.3, dials=_BUSY),
)


def rarely(name: str) -> Rare:
    """The row of that name."""
    return next(each for each in RARE if each.name == name)


@dataclass(frozen=True, slots=True)
class RarelyStruck:
    """What a run of so many groups would have said: its verdict, its clean groups, and the rate its PASS excludes."""

    verdict: str
    clean: int = 0
    excluded: float = 1.0


@dataclass(slots=True)
class EndsAtFail(NoWatcher):
    """Looks at the record after each group in which a load was struck, and ends the run once the judge says FAIL.

    ``loads_before`` are those made before the first group: warming up.
    """

    plan: Plan
    kept: Kept
    deployment: Deployment
    loads_before: int = 0
    found_at: int | None = None
    _ends: list[int] = field(default_factory=list)
    _struck: int = 0

    def group_started(self, index: int, count: int, group_id: str, length: int) -> None:  # noqa: ARG002 - the port's
        """Look at what was recorded of the groups before this one. Raises Stop."""
        self._ends.append(len(self.kept.entries))
        if index == 1:
            self.loads_before, self._struck = self._loads()
        elif self._fails(index - 1):
            self.found_at = index - 1
            raise Stop(Problem(Reason.DIVERGED, "a group has failed"))

    def ended(self, groups: int) -> int | None:
        """After how many groups the judge said FAIL; the run is over, and so many were planned."""
        if self.found_at is None and len(self._ends) == groups:
            self._ends.append(len(self.kept.entries))
            self.found_at = groups if self._fails(groups) else None
        return self.found_at

    def of_a_run(self, budget: int) -> RarelyStruck:
        """What a run of so many groups would have said. A pair that has failed stays failed."""
        if self.found_at is not None and self.found_at <= budget:
            return RarelyStruck(Verdict.FAIL.value)
        if budget >= len(self._ends):
            return RarelyStruck("none")
        ruling = self.ruling_of(budget)
        power = next((each for each in ruling.power if each.arm is Arm.EXTERNAL), None)
        clean = power.groups if power is not None else 0
        return RarelyStruck(ruling.verdict.value, clean, power.excluded_fault_rate if power is not None else 1.0)

    def ruling_of(self, groups: int) -> RunVerdict:
        """The judge's ruling on the first so many groups, as if no more had been asked for."""
        plan = replace(self.plan, groups=self.plan.groups[:groups])
        entries = self.kept.entries[: self._ends[groups]]
        at = entries[-1].at
        # At the end of a run the engines are asked once more, and these hold nothing then.
        first = [each for each in entries if isinstance(each, SignalsRead) and each.when is When.BEFORE]
        last = [replace(each, at=at, when=When.AFTER) for each in first]
        return judge(plan, RunRecord([*entries, *last, RunCompleted(at)]))

    def _loads(self) -> tuple[int, int]:
        loads = [deed for node in self.deployment.nodes.values() for deed in node.deeds if deed.external]
        return len(loads), sum(1 for deed in loads if deed.spoilt)

    def _fails(self, groups: int) -> bool:
        _, struck = self._loads()
        fresh, self._struck = struck > self._struck, struck
        return fresh and self.ruling_of(groups).verdict is Verdict.FAIL


def end_at_fail() -> tuple[list[EndsAtFail], Callable[[Plan, Kept, Deployment], Watcher]]:
    """A place for the watcher of a run, and what makes it."""
    place: list[EndsAtFail] = []

    def watching(plan: Plan, kept: Kept, deployment: Deployment) -> Watcher:
        place.append(EndsAtFail(plan, kept, deployment))
        return place[-1]

    return place, watching
