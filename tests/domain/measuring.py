"""Written records of measurements: who answered what, when, with which counters."""

from dataclasses import dataclass, field

from kvgate.domain.counters import Counter, Counters, Reading
from kvgate.domain.deployment import Deployment, Endpoint, Role
from kvgate.domain.history import Moment
from kvgate.domain.measured import (
    EngineCounted,
    LegStarted,
    MeasureCompleted,
    MeasuredDeployment,
    MeasureEntry,
    MeasurePlan,
    PartEnded,
    PartStarted,
    RequestAnswered,
    RequestSent,
)
from kvgate.domain.observation import Observation, Outcome, Timing, Usage
from kvgate.domain.policy import Grade
from kvgate.domain.trace import Arrival, Kind, Planned, Slo, Trace, TracePart, legs_of

LENGTH = 100


def deployment(label: str) -> MeasuredDeployment:
    """A deployment of one engine."""
    endpoints = (Endpoint("e", Role.COMBINED, "http://127.0.0.1:9"),)
    return MeasuredDeployment(
        label, Deployment(label, "vllm", "m", endpoints), ("e",), True, Grade.ARRIVED, "c.yaml", "0"
    )


def plan(count: int, *labels: str, slo: Slo | None = None, repeats: int = 1, kind: Kind = Kind.RANDOM) -> MeasurePlan:
    """One part of so many requests that stand alone, on these deployments."""
    part = TracePart("p", kind, count, 1, LENGTH, 0, 0, Arrival(rate=10.0))
    requests = tuple(Planned(f"p.{number}.0", "p", number, 0, number / 10, LENGTH, "0") for number in range(count))
    trace = Trace(7, 8, repeats, slo or Slo(), (part,))
    return MeasurePlan(trace, requests, tuple(map(deployment, labels)))


def answered(first: float, pieces: int = 5, gap: float = 0.01, tail: float = 0.0) -> Observation:
    """An answer in pieces of one token each, and ``tail`` seconds until it was over."""
    times = tuple(first + number * gap for number in range(pieces))
    return Observation(
        Outcome.OK, status=200, usage=Usage(LENGTH, pieces), timing=Timing(first, times[-1] + tail, times)
    )


REFUSED = Observation(Outcome.REFUSED, "HTTP 400: no", 400, timing=Timing(None, 0.1))
LOST = Observation(Outcome.LOST, "no answer in time", timing=Timing(None, 1.0))


@dataclass
class Leg:
    """What was said in one leg. ``counted`` are prompt tokens by path, None where the counters cannot be read."""

    seen: list[Observation | None]
    counted: tuple[int, int, int] | None = None
    seconds: float = 10.0
    late: float = 0.0
    unsent: int = field(default=0)


def counters(split: tuple[int, int, int]) -> Counters:
    """Readings of computed, local and external prompt tokens."""
    names = (Counter.COMPUTED, Counter.LOCAL, Counter.EXTERNAL)
    found = [Reading("0", name, 1000.0 + value) for name, value in zip(names, split, strict=True)]
    return Counters((Reading("0", Counter.PROMPT_TOKENS, 5000.0 + sum(split)), *found))


def record(made: MeasurePlan, *legs: Leg) -> list[MeasureEntry]:
    """The record of these legs, in the order in which they are sent."""
    entries: list[MeasureEntry] = []
    for leg, told in zip(legs_of(len(made.deployments), made.trace.repeats), legs, strict=True):
        start = 100.0 * leg.number
        entries.append(LegStarted(start, leg.number, leg.deployment, leg.repeat))
        entries.append(_read(start, leg.number, Moment.BEFORE, None if told.counted is None else (0, 0, 0)))
        entries.append(PartStarted(start, leg.number, "p", "1", "s"))
        sent = made.planned[: len(made.planned) - told.unsent]
        for request, seen in zip(sent, told.seen, strict=True):
            at = start + (request.arrives_s or 0.0) + told.late
            entries.append(RequestSent(at, leg.number, "p", request.id, "e", LENGTH, "0", request.arrives_s))
            if seen is not None:
                entries.append(RequestAnswered(start + told.seconds, leg.number, "p", request.id, seen))
        entries.append(PartEnded(start + told.seconds, leg.number, "p"))
        entries.append(_read(start + told.seconds, leg.number, Moment.AFTER, told.counted))
    return [*entries, MeasureCompleted(1000.0)]


def _read(at: float, leg: int, moment: Moment, split: tuple[int, int, int] | None) -> EngineCounted:
    found = counters(split) if split is not None else None
    return EngineCounted(at, leg, "p", moment, "e", Role.COMBINED, found, "" if found else "GET /metrics: HTTP 404")
