"""The record of a measurement: what was decided before the first request, and everything said and heard."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from kvgate.domain.counters import Counters
from kvgate.domain.deployment import Deployment, Role
from kvgate.domain.history import Moment
from kvgate.domain.observation import Observation
from kvgate.domain.policy import Grade
from kvgate.domain.trace import Planned, Trace

# The part that requests belong to which only wake an engine up; no figure is made of them.
WARM_UP = ""
# The part of the one request that was sent before under another salt: nothing of it may be reused.
SALTS = "/salts"


@dataclass(frozen=True, slots=True)
class MeasuredDeployment:
    """One of the deployments that are held against each other; ``label`` is its name, unique among them.

    ``entries`` are the endpoints that requests are sent to, in turn. ``by_source_grade`` is what its engine's counters
    are worth. ``config_sha256`` is the digest of the file it was described by.
    """

    label: str
    deployment: Deployment
    entries: tuple[str, ...]
    salts_honoured: bool
    by_source_grade: Grade
    config_path: str
    config_sha256: str


@dataclass(frozen=True, slots=True)
class MeasurePlan:
    """Everything decided before the first request. The first deployment is what the others are held against."""

    trace: Trace
    planned: tuple[Planned, ...]
    deployments: tuple[MeasuredDeployment, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LegStarted:
    """The trace begins on a deployment (by its place), for the so-manieth time."""

    at: float
    leg: int
    deployment: int
    repeat: int
    kind: Literal["leg_started"] = "leg_started"


@dataclass(frozen=True, slots=True)
class PartStarted:
    """A part of the trace begins; arrivals are counted from here. The salt is None where salts are ignored."""

    at: float
    leg: int
    part: str
    nonce: str
    salt: str | None
    kind: Literal["part_started"] = "part_started"


@dataclass(frozen=True, slots=True)
class EngineCounted:
    """One engine's counters before or after a part; ``counters`` is None where they could not be read."""

    at: float
    leg: int
    part: str
    moment: Moment
    endpoint: str
    role: Role
    counters: Counters | None
    detail: str = ""
    kind: Literal["engine_counted"] = "engine_counted"


@dataclass(frozen=True, slots=True)
class RequestSent:
    """A request is about to be sent. ``due_s`` is when it was to be sent, in seconds after its part began.

    None where that hung on an answer. ``sha256`` is the digest of the prompt as it is sent.
    """

    at: float
    leg: int
    part: str
    request: str
    endpoint: str
    length: int
    sha256: str
    due_s: float | None
    kind: Literal["request_sent"] = "request_sent"


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    """What came back for a request."""

    at: float
    leg: int
    part: str
    request: str
    observation: Observation
    kind: Literal["request_answered"] = "request_answered"


@dataclass(frozen=True, slots=True)
class PartEnded:
    """Every request of a part has ended."""

    at: float
    leg: int
    part: str
    kind: Literal["part_ended"] = "part_ended"


@dataclass(frozen=True, slots=True)
class LegBroken:
    """A deployment went away; the rest of the trace was not sent to it."""

    at: float
    leg: int
    detail: str
    kind: Literal["leg_broken"] = "leg_broken"


@dataclass(frozen=True, slots=True)
class MeasureStopped:
    """The measurement ended before its end, for the reason given."""

    at: float
    detail: str
    kind: Literal["measure_stopped"] = "measure_stopped"


@dataclass(frozen=True, slots=True)
class MeasureCompleted:
    """All legs were done. A record without this and without MeasureStopped was cut off."""

    at: float
    kind: Literal["measure_completed"] = "measure_completed"


MeasureEntry = (
    LegStarted
    | PartStarted
    | EngineCounted
    | RequestSent
    | RequestAnswered
    | PartEnded
    | LegBroken
    | MeasureStopped
    | MeasureCompleted
)


@dataclass(slots=True)
class PartRecord:
    """What was said and heard in one part of one leg."""

    deployment: int
    repeat: int
    part: str
    started: float = 0.0
    ended: float = 0.0
    sent: dict[str, RequestSent] = field(default_factory=dict)
    answered: dict[str, Observation] = field(default_factory=dict)
    read: dict[Moment, list[EngineCounted]] = field(default_factory=lambda: defaultdict(list))


@dataclass(slots=True)
class MeasureRecord:
    """The entries put in order; warm-up is left out. ``salts`` are the requests that show whether salts are kept."""

    parts: list[PartRecord] = field(default_factory=list)
    salts: list[PartRecord] = field(default_factory=list)
    broken: dict[int, str] = field(default_factory=dict)
    stopped: str | None = None
    completed: bool = False

    def of(self, deployment: int, part: str) -> list[PartRecord]:
        """One part on one deployment, every time it was sent."""
        return [each for each in self.parts if (each.deployment, each.part) == (deployment, part)]


def put_in_order(entries: Iterable[MeasureEntry]) -> MeasureRecord:
    """The record that these entries make."""
    record = MeasureRecord()
    legs: dict[int, LegStarted] = {}
    parts: dict[tuple[int, str], PartRecord] = {}
    for entry in entries:
        if isinstance(entry, LegStarted):
            legs[entry.leg] = entry
        elif isinstance(entry, LegBroken):
            record.broken[legs[entry.leg].deployment] = entry.detail
        elif isinstance(entry, MeasureStopped):
            record.stopped = entry.detail
        elif isinstance(entry, MeasureCompleted):
            record.completed = True
        elif entry.part != WARM_UP:
            leg = legs[entry.leg]
            if (entry.leg, entry.part) not in parts:
                made = PartRecord(leg.deployment, leg.repeat, entry.part, entry.at, entry.at)
                parts[entry.leg, entry.part] = made
                (record.salts if entry.part == SALTS else record.parts).append(made)
            _take(parts[entry.leg, entry.part], entry)
    return record


def _take(part: PartRecord, entry: PartStarted | EngineCounted | RequestSent | RequestAnswered | PartEnded) -> None:
    if isinstance(entry, PartStarted):
        part.started = part.ended = entry.at
    elif isinstance(entry, EngineCounted):
        part.read[entry.moment].append(entry)
    elif isinstance(entry, RequestSent):
        part.sent[entry.request] = entry
    elif isinstance(entry, RequestAnswered):
        part.answered[entry.request] = entry.observation
        part.ended = max(part.ended, entry.at)
