"""History put in order: groups, their arms, and the attempts at each."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvgate.domain.counters import Counters
from kvgate.domain.history import (
    CacheDropped,
    CountersRead,
    DropOutcome,
    Entry,
    GroupStarted,
    HookRan,
    LogRead,
    Moment,
    ProbeAnswered,
    ProbeSent,
    RunCompleted,
    RunStopped,
    SignalsRead,
)
from kvgate.domain.log import LogLine
from kvgate.domain.observation import Observation
from kvgate.domain.plan import GroupPlan
from kvgate.domain.probe import Arm, Probe
from kvgate.domain.reasons import Problem


@dataclass(slots=True)
class Attempt:
    """One try at one arm, filled in as its entries come.

    ``number`` is its request's place among all the run's requests, from 1. ``company`` is how many of the gate's other
    requests were in flight when it was sent, ``beside`` how many prompt tokens of theirs the counters have moved by
    between its two readings, at least and at most. ``weighed`` keeps its standing until a further entry comes.
    """

    probe: Probe | None = None
    number: int = 0
    before: Counters | None = None
    after: Counters | None = None
    company: int = 0
    beside: tuple[int, int] = (0, 0)
    observation: Observation | None = None
    counters_detail: str = ""
    log: tuple[LogLine, ...] | None = None
    log_detail: str = ""
    drop: DropOutcome | None = None
    drop_detail: str = ""
    hooks: list[HookRan] = field(default_factory=list)
    weighed: object = None

    @property
    def ok(self) -> bool:
        """Whether a complete answer came back."""
        return self.observation is not None and self.observation.ok


@dataclass(slots=True)
class GroupRecord:
    """What was recorded for one group."""

    plan: GroupPlan
    replaces: str | None = None
    attempts: dict[Arm, list[Attempt]] = field(default_factory=dict)

    def of(self, arm: Arm) -> list[Attempt]:
        """All attempts at an arm, oldest first."""
        return self.attempts.get(arm, [])

    def at(self, arm: Arm, number: int) -> Attempt:
        """The attempt of that number, made if it does not exist yet."""
        attempts = self.attempts.setdefault(arm, [])
        while len(attempts) <= number:
            attempts.append(Attempt())
        return attempts[number]


class RunRecord:
    """A run's history, kept in order as entries are added. Adding is all that changes it."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.groups: dict[str, GroupRecord] = {}
        # What each endpoint told of itself, oldest first.
        self.signals: dict[str, list[SignalsRead]] = {}
        self.stopped: Problem | None = None
        self.completed = False
        # Which group sent each prompt first, by the prompt's digest; warm-up prompts are among them.
        self.prompts: dict[str, str] = {}
        self._probes: dict[str, Probe] = {}
        self._beside = _Beside()
        # How many requests were sent.
        self.sent = 0
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Take in one entry. Entries of warm-up probes belong to no group and are passed over."""
        if isinstance(entry, GroupStarted):
            self.groups[entry.group.id] = GroupRecord(entry.group, entry.replaces)
        elif isinstance(entry, ProbeSent):
            self._probes[entry.probe.id] = entry.probe
            self.prompts.setdefault(entry.probe.prompt_sha256, entry.probe.group)
            self.sent += 1
            probe = entry.probe
            company = self._beside.sent(probe)
            self._fill(probe.group, probe.arm, probe.attempt, probe=probe, number=self.sent, company=company)
        elif isinstance(entry, ProbeAnswered):
            sent = self._probes.get(entry.probe_id)
            if sent is not None:
                self._beside.answered(sent, entry.observation)
                self._fill(sent.group, sent.arm, sent.attempt, observation=entry.observation)
        elif isinstance(entry, CountersRead | LogRead | CacheDropped):
            self._fill(entry.group, entry.arm, entry.attempt, **self._read(entry))
        elif isinstance(entry, HookRan):
            group = self.groups.get(entry.group)
            if group is not None:
                attempt = group.at(entry.arm, entry.attempt)
                attempt.hooks.append(entry)
                attempt.weighed = None
        elif isinstance(entry, SignalsRead):
            self.signals.setdefault(entry.endpoint, []).append(entry)
        elif isinstance(entry, RunStopped):
            self.stopped = entry.problem
        elif isinstance(entry, RunCompleted):
            self.completed = True

    def _read(self, entry: CountersRead | LogRead | CacheDropped) -> dict[str, object]:
        """What was read or done beside a probe, by the names of an attempt."""
        if isinstance(entry, LogRead):
            return {"log": entry.lines, "log_detail": entry.detail}
        if isinstance(entry, CacheDropped):
            return {"drop": entry.outcome, "drop_detail": entry.detail}
        found: dict[str, object] = {"before": entry.counters}
        if entry.moment is Moment.BEFORE:
            self._beside.begin()
        else:
            found = {"after": entry.counters, "beside": (self._beside.least, self._beside.most)}
        return found if entry.counters is not None else {**found, "counters_detail": entry.detail}

    def surely_beside(self, left_off: int) -> int:
        """Prompt tokens of answered requests that the gate sent beside the one whose counters are read, without those
        that prefill leaves off each."""
        return self._beside.least - left_off * self._beside.answers

    def forget(self, group: str) -> None:
        """Drop a group that is done; what was said of it stays on disk. Keeps memory flat over long runs."""
        del self.groups[group]
        self._probes = {name: probe for name, probe in self._probes.items() if probe.group in self.groups}

    def _fill(self, group_id: str, arm: Arm, tried: int, **values: object) -> None:
        group = self.groups.get(group_id)
        if group is None:
            return
        attempt = group.at(arm, tried)
        attempt.weighed = None
        for name, value in values.items():
            setattr(attempt, name, value)


@dataclass(slots=True)
class _Beside:
    """What the gate sends beside a group's request: every such request begins after the counters were read, and ends
    before they are read again. An engine may count one that was broken off a little later."""

    flying: int = 0
    least: int = 0
    most: int = 0
    late: int = 0
    answers: int = 0

    def begin(self) -> None:
        """The counters were read before a request."""
        self.least, self.most, self.late, self.answers = 0, self.late, 0, 0

    def sent(self, probe: Probe) -> int:
        """Take in a request; how many others are in flight."""
        if probe.arm is Arm.CHURN:
            self.flying += 1
            self.most += probe.length
        return self.flying

    def answered(self, probe: Probe, seen: Observation) -> None:
        """Take in an answer. What was broken off or refused may have been counted or not."""
        if probe.arm is Arm.CHURN:
            self.flying -= 1
            self.least += probe.length if seen.ok else 0
            self.answers += seen.ok
            self.late += 0 if seen.ok else probe.length
