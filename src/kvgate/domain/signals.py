"""What engines tell of themselves while a run lasts: what to do about it, and whether they let go of what they held.

The actions are those of the tuning rules (seed 001 §6.4).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvgate.domain.counters import Counter, Counters, Gauge, Signal
from kvgate.domain.group_view import GroupView
from kvgate.domain.history import SignalsRead, When
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import SignalSummary

# The share of the KV cache from which on it counts as nearly full, and readings in a row that make it more than a peak.
NEARLY_FULL = 0.9
IN_A_ROW = 2
# Shares of the KV cache are told as floating-point numbers.
SAME_SHARE = 1e-6


@dataclass(frozen=True, slots=True)
class Alert:
    """Something to tell the operator: what is seen, under a name that is told once, and what to do."""

    name: str
    seen: str
    action: str


def signals_read(at: float, endpoint: str, when: When, counters: Counters) -> SignalsRead:
    """What is kept of one reading."""
    counts = {name: _total(counters, name) for name in (Counter.PREEMPTIONS, Counter.FAILED_LOADS)}
    preempted, failed = counts[Counter.PREEMPTIONS], counts[Counter.FAILED_LOADS]
    return SignalsRead(at, endpoint, when, counters.gauges, preempted, failed)


def _total(counters: Counters, counter: Counter) -> int | None:
    values = [reading.value for reading in counters.readings if reading.counter is counter]
    return round(sum(values)) if values else None


def value_of(gauges: Iterable[Gauge], signal: Signal) -> float | None:
    """One signal of an endpoint: requests of all its engines together, the fullest engine's share; None if not told."""
    values = [gauge.value for gauge in gauges if gauge.signal is signal]
    if not values:
        return None
    return max(values) if signal is Signal.KV_USAGE else sum(values)


def alerts_on(endpoint: str, read: Sequence[SignalsRead]) -> tuple[Alert, ...]:
    """What the readings of one endpoint so far, oldest first, ask an operator to do. Looks at the ends of them only."""
    return tuple(each for each in (rule(endpoint, read) for rule in _RULES) if each is not None)


def _cache_is_full(endpoint: str, read: Sequence[SignalsRead]) -> Alert | None:
    last = _last(read, Signal.KV_USAGE)
    if last is None or min(last) <= NEARLY_FULL:
        return None
    return Alert(
        "kv_usage",
        f"{endpoint}: requests hold {100 * last[-1]:.0f}% of the KV cache",
        "add offload, or lower max-model-len or the concurrency; what is evicted meanwhile makes hits fail",
    )


def _requests_wait(endpoint: str, read: Sequence[SignalsRead]) -> Alert | None:
    last = _last(read, Signal.WAITING)
    if last is None or min(last) <= 0:
        return None
    return Alert(
        "waiting",
        f"{endpoint}: {last[-1]:g} requests wait for the engine",
        "times to the first token hold that wait; lower the concurrency, or max-num-batched-tokens for long prefills",
    )


def _last(read: Sequence[SignalsRead], signal: Signal) -> list[float] | None:
    """The signal in the last few readings; None if there are too few, or it is not told."""
    values = [value for each in read[-IN_A_ROW:] if (value := value_of(each.gauges, signal)) is not None]
    return values if len(values) == IN_A_ROW else None


def _preempted(endpoint: str, read: Sequence[SignalsRead]) -> Alert | None:
    count = _moved(read[0].preemptions, read[-1].preemptions)
    if not count:
        return None
    return Alert(
        "preemptions",
        f"{endpoint}: {count} requests were preempted",
        "the KV cache is too small for what runs at once: lower the concurrency, or add offload",
    )


def _loads_fail(endpoint: str, read: Sequence[SignalsRead]) -> Alert | None:
    count = _moved(read[0].failed_loads, read[-1].failed_loads)
    if not count:
        return None
    return Alert(
        "failed_loads",
        f"{endpoint}: {count} keys could not be loaded from the pool",
        "read the engine's log and the pool's; until loads work, keep the pool off",
    )


_RULES = (_cache_is_full, _requests_wait, _preempted, _loads_fail)


def _moved(first: int | None, last: int | None) -> int | None:
    """How far a counter moved; None if it was not read, or fell. One that appears later began at 0."""
    return last - (first or 0) if last is not None and last >= (first or 0) else None


def summaries(run: RunRecord) -> tuple[SignalSummary, ...]:
    """What each endpoint told over the whole run."""
    found: list[SignalSummary] = []
    for endpoint, read in run.signals.items():
        found.append(
            SignalSummary(
                endpoint=endpoint,
                readings=len(read),
                most_running=_most(read, Signal.RUNNING),
                most_waiting=_most(read, Signal.WAITING),
                most_kv_usage=_most(read, Signal.KV_USAGE),
                preemptions=_moved(read[0].preemptions, read[-1].preemptions),
                failed_loads=_moved(read[0].failed_loads, read[-1].failed_loads),
                released=_released(read),
                actions=tuple(f"{each.seen}: {each.action}" for each in _worst_of_each(endpoint, read)),
            )
        )
    return tuple(found)


def _worst_of_each(endpoint: str, read: list[SignalsRead]) -> Iterable[Alert]:
    """Each kind of alert as it was told last."""
    found: dict[str, Alert] = {}
    for end in range(1, len(read) + 1):
        recent = [read[0], *read[max(1, end - IN_A_ROW) : end]]
        found |= {each.name: each for each in alerts_on(endpoint, recent)}
    return found.values()


def _most(read: list[SignalsRead], signal: Signal) -> float | None:
    return max((seen for each in read if (seen := value_of(each.gauges, signal)) is not None), default=None)


def held(baseline: SignalsRead, now: SignalsRead) -> list[str]:
    """What an engine still holds that it did not hold before the first group, in words; nothing if it let go of all."""
    told: list[str] = []
    for signal, what in _HELD.items():
        before, after = value_of(baseline.gauges, signal), value_of(now.gauges, signal)
        if before is not None and after is not None and after > before + SAME_SHARE:
            told.append(f"{what} {_share(signal, after)}, {_share(signal, before)} before the first group")
    return told


_HELD = {
    Signal.RUNNING: "requests running:",
    Signal.WAITING: "requests waiting:",
    Signal.KV_USAGE: "KV cache in use:",
}


def _share(signal: Signal, value: float) -> str:
    return f"{100 * value:.3g}%" if signal is Signal.KV_USAGE else f"{value:g}"


def _ends(read: list[SignalsRead]) -> tuple[SignalsRead, SignalsRead] | None:
    first = next((each for each in read if each.when is When.BEFORE), None)
    last = next((each for each in reversed(read) if each.when is When.AFTER), None)
    return (first, last) if first is not None and last is not None else None


def _released(read: list[SignalsRead]) -> bool | None:
    ends = _ends(read)
    if ends is None or not ends[1].gauges:
        return None
    return not held(*ends)


def unreleased(run: RunRecord, views: tuple[GroupView, ...]) -> Problem | None:
    """Which engine still holds what the run's requests held after all of them had ended, or None.

    An engine that others use cannot be told apart from one that does not let go.
    """
    evidence = [standing.evidence for view in views for standing in view.standings.values()]
    if any(each.first(Reason.FOREIGN_TRAFFIC) or each.by_reply for each in evidence):
        return None
    for endpoint, read in run.signals.items():
        ends = _ends(read)
        if ends is None and run.completed and read[0].gauges:
            return Problem(Reason.NOT_RELEASED, f"{endpoint}: it could not be asked any more after the last request")
        still = held(*ends) if ends is not None else []
        if still:
            return Problem(Reason.NOT_RELEASED, f"{endpoint}: {'; '.join(still)}")
    return None
