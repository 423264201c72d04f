"""The append-only record of everything said and heard. The judge's only input beside the plan."""

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from kvgate.domain.counters import Counters, Gauge
from kvgate.domain.log import LogLine
from kvgate.domain.observation import Observation
from kvgate.domain.plan import GroupPlan
from kvgate.domain.probe import Arm, Probe
from kvgate.domain.reasons import Problem


class Moment(str, Enum):
    """When counters were read, relative to a probe."""

    BEFORE = "before"
    AFTER = "after"


class DropOutcome(str, Enum):
    """What the engine said to dropping its local cache. UNKNOWN: it answered without saying whether it did."""

    DROPPED = "dropped"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class GroupStarted:
    """A group begins. Replacements of void groups carry the id of the group they stand in for."""

    at: float
    group: GroupPlan
    replaces: str | None = None
    kind: Literal["group_started"] = "group_started"


@dataclass(frozen=True, slots=True)
class CacheDropped:
    """The local cache of an endpoint was asked to go, for one attempt at one arm."""

    at: float
    endpoint: str
    group: str
    arm: Arm
    attempt: int
    outcome: DropOutcome
    detail: str
    kind: Literal["cache_dropped"] = "cache_dropped"


@dataclass(frozen=True, slots=True)
class HookRan:
    """A hook ran. ``exit_code`` is None if it could not be started or ran out of time."""

    at: float
    name: str
    group: str
    arm: Arm
    attempt: int
    argv: tuple[str, ...]
    exit_code: int | None
    seconds: float
    output: str
    kind: Literal["hook_ran"] = "hook_ran"


@dataclass(frozen=True, slots=True)
class CountersRead:
    """An endpoint's counters before or after a probe; ``counters`` is None where they could not be read."""

    at: float
    endpoint: str
    group: str
    arm: Arm
    attempt: int
    moment: Moment
    counters: Counters | None
    detail: str = ""
    kind: Literal["counters_read"] = "counters_read"


@dataclass(frozen=True, slots=True)
class LogRead:
    """Known lines that an endpoint's log got while a probe ran; ``lines`` is None where it could not be read."""

    at: float
    endpoint: str
    group: str
    arm: Arm
    attempt: int
    lines: tuple[LogLine, ...] | None
    detail: str = ""
    kind: Literal["log_read"] = "log_read"


class When(str, Enum):
    """When an engine was asked how it does, relative to the groups."""

    BEFORE = "before"
    MEANWHILE = "meanwhile"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class SignalsRead:
    """What an endpoint told of itself, and its counts of preempted requests and of keys that could not be loaded.

    Of readings that tell the same only the first two are kept.
    """

    at: float
    endpoint: str
    when: When
    gauges: tuple[Gauge, ...]
    preemptions: int | None
    failed_loads: int | None
    kind: Literal["signals_read"] = "signals_read"


@dataclass(frozen=True, slots=True)
class ProbeSent:
    """A probe is about to be sent. One that is never answered was cut off by the end of the run."""

    at: float
    probe: Probe
    kind: Literal["probe_sent"] = "probe_sent"


@dataclass(frozen=True, slots=True)
class ProbeAnswered:
    """What came back for a probe."""

    at: float
    probe_id: str
    observation: Observation
    kind: Literal["probe_answered"] = "probe_answered"


@dataclass(frozen=True, slots=True)
class Waited:
    """The session waited, for asynchronous puts or for an engine to let go of blocks."""

    at: float
    seconds: float
    why: str
    kind: Literal["waited"] = "waited"


@dataclass(frozen=True, slots=True)
class RunStopped:
    """The run ended before all groups were done, for the reason given."""

    at: float
    problem: Problem
    kind: Literal["run_stopped"] = "run_stopped"


@dataclass(frozen=True, slots=True)
class RunCompleted:
    """All groups were done. A history without this entry and without RunStopped was cut off."""

    at: float
    kind: Literal["run_completed"] = "run_completed"


Entry = (
    GroupStarted
    | CacheDropped
    | HookRan
    | CountersRead
    | LogRead
    | SignalsRead
    | ProbeSent
    | ProbeAnswered
    | Waited
    | RunStopped
    | RunCompleted
)
