"""From the record of a measurement to its figures: a pure function, so that the record can be reported again."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from kvgate.domain.counters import Counter, CounterDelta, Counters, Reading, difference, named
from kvgate.domain.deployment import Role
from kvgate.domain.evidence import split_of
from kvgate.domain.history import Moment
from kvgate.domain.measured import EngineCounted, MeasuredDeployment, MeasurePlan, MeasureRecord, PartRecord
from kvgate.domain.observation import Observation, Outcome
from kvgate.domain.policy import Grade
from kvgate.domain.trace import Slo, TracePart


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds, of ``count`` values."""

    count: int
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class PathTokens:
    """Prompt tokens by path, by the engines' counters. None is unknown, or counted by no engine; never zero.

    ``computed``, ``local`` and ``external`` are of combined and prefill engines; ``transferred`` and
    ``decode_computed`` of decode engines. ``counted`` are all that the first were given, ``sent`` all that was sent
    and answered. ``grade`` is what the counters show: that tokens were scheduled, or that they arrived.
    """

    sent: int
    counted: int | None = None
    computed: int | None = None
    local: int | None = None
    external: int | None = None
    transferred: int | None = None
    decode_computed: int | None = None
    preemptions: int | None = None
    grade: Grade | None = None
    why_unknown: str = ""


@dataclass(frozen=True, slots=True)
class PartFigures:
    """One part of the trace on one deployment, all repeats together; times in seconds.

    ``first_token`` and ``total`` are since the request was sent, ``gaps`` lie between pieces of a stream,
    ``between_tokens`` is the mean of each answer. ``within_slo`` and what follows from it are None where no SLO was
    given, or it names a time that answers do not tell. ``late_s`` is how late kvgate itself sent a request, at most.
    """

    part: str
    deployment: str
    planned: int
    answered: int
    refused: int
    lost: int
    unsent: int
    seconds: float
    answered_per_s: float | None
    first_token: Quantiles | None
    gaps: Quantiles | None
    between_tokens: Quantiles | None
    total: Quantiles | None
    within_slo: int | None
    attainment: float | None
    goodput_per_s: float | None
    late_s: float
    tokens: PathTokens


def figures_of(plan: MeasurePlan, record: MeasureRecord) -> tuple[PartFigures, ...]:
    """The figures of every part on every deployment, part by part."""
    return tuple(
        _figures(plan, part, number, record.of(number, part.name))
        for part in plan.trace.parts
        for number in range(len(plan.deployments))
    )


def first_token_s(seen: Observation) -> float | None:
    """Seconds to the first token of an answer that was streamed; None where that was not told."""
    return seen.timing.first_token_s if seen.ok and seen.timing is not None else None


def between_tokens_s(seen: Observation) -> float | None:
    """The mean seconds between two tokens of one answer; None where it has fewer than two, or none were counted."""
    first, usage = first_token_s(seen), seen.usage
    count = usage.completion_tokens if usage is not None else len(seen.token_ids or ())
    if seen.timing is None or first is None or count < 2:
        return None
    last = seen.timing.pieces_s[-1] if seen.timing.pieces_s else seen.timing.total_s
    return (last - first) / (count - 1)


def _gaps(seen: Observation) -> list[float]:
    pieces = seen.timing.pieces_s if seen.ok and seen.timing is not None else None
    return [float(each) for each in np.diff(pieces)] if pieces else []


def _figures(plan: MeasurePlan, part: TracePart, number: int, records: list[PartRecord]) -> PartFigures:
    seen = [each for record in records for each in record.answered.values()]
    outcomes = [each.outcome for each in seen]
    answers = [each for each in seen if each.ok]
    sent = sum(len(record.sent) for record in records)
    planned = sum(request.part == part.name for request in plan.planned) * plan.trace.repeats
    seconds = sum(record.ended - record.started for record in records)
    within = _within(plan.trace.slo, answers)
    deployment = plan.deployments[number]
    return PartFigures(
        part=part.name,
        deployment=deployment.label,
        planned=planned,
        answered=len(answers),
        refused=outcomes.count(Outcome.REFUSED),
        # A request that was sent and never answered was cut off by the end of the record.
        lost=outcomes.count(Outcome.LOST) + sent - len(seen),
        unsent=planned - sent,
        seconds=round(seconds, 6),
        answered_per_s=len(answers) / seconds if seconds else None,
        first_token=quantiles(first_token_s(each) for each in answers),
        gaps=quantiles(gap for each in answers for gap in _gaps(each)),
        between_tokens=quantiles(between_tokens_s(each) for each in answers),
        total=quantiles(each.timing.total_s for each in answers if each.timing is not None),
        within_slo=within,
        attainment=within / sent if within is not None and sent else None,
        goodput_per_s=within / seconds if within is not None and seconds else None,
        late_s=max((late for record in records for late in _late(record)), default=0.0),
        tokens=_tokens(deployment, records, plan.trace.repeats),
    )


def quantiles(seconds: Iterable[float | None]) -> Quantiles | None:
    """Percentiles of the values that are known; None if none is."""
    known = [each for each in seconds if each is not None]
    if not known:
        return None
    half, most, nearly_all = (float(np.quantile(known, share)) for share in (0.5, 0.95, 0.99))
    return Quantiles(len(known), half, most, nearly_all)


def _within(slo: Slo, answers: list[Observation]) -> int | None:
    """How many answers kept the SLO; None where there is none, or where an answer does not tell a time it names."""
    if not slo.given:
        return None
    kept = [_keeps(slo, each) for each in answers]
    return None if None in kept else kept.count(True)


def _keeps(slo: Slo, seen: Observation) -> bool | None:
    first, between = first_token_s(seen), between_tokens_s(seen)
    total = seen.timing.total_s if seen.timing is not None else None
    one_token = seen.usage is not None and seen.usage.completion_tokens < 2
    asked = [(slo.first_token_s, first), (slo.total_s, total)]
    # An answer of one token has nothing between tokens that could take long.
    asked += [] if one_token else [(slo.between_tokens_s, between)]
    told = [None if took is None else took <= limit for limit, took in asked if limit is not None]
    if False in told:
        return False
    return None if None in told else True


def _late(record: PartRecord) -> Iterator[float]:
    for each in record.sent.values():
        if each.due_s is not None:
            yield max(0.0, each.at - record.started - each.due_s)


def _tokens(deployment: MeasuredDeployment, records: list[PartRecord], repeats: int) -> PathTokens:
    """Tokens by path over all repeats: unknown as a whole where one of them is."""
    each = [tokens_of(deployment, record) for record in records]
    sent = sum(one.sent for one in each)
    why = next((one.why_unknown for one in each if one.why_unknown), "")
    if len(each) < repeats and not why:
        why = "not all of it was sent"
    if why or not each:
        return PathTokens(sent, why_unknown=why)

    def total(name: str) -> int | None:
        values = [getattr(one, name) for one in each]
        return None if None in values else sum(values)

    return PathTokens(
        sent=sent,
        counted=total("counted"),
        computed=total("computed"),
        local=total("local"),
        external=total("external"),
        transferred=total("transferred"),
        decode_computed=total("decode_computed"),
        preemptions=total("preemptions"),
        grade=each[0].grade,
    )


def tokens_of(deployment: MeasuredDeployment, record: PartRecord) -> PathTokens:
    """Tokens by path of one part of one leg."""
    sent = sum(record.sent[name].length for name, seen in record.answered.items() if seen.ok)
    delta, why = moved(record)
    if delta is None:
        return PathTokens(sent, why_unknown=why)
    counted = delta.total(Counter.PROMPT_TOKENS)
    split = split_of(delta, counted if counted is not None else sent, deployment.by_source_grade)
    if split is None:
        return PathTokens(sent, why_unknown="the engines export none of the counters needed")
    computed, local, external, grade, _ = split
    return PathTokens(
        sent=sent,
        counted=counted,
        computed=computed,
        local=local,
        external=external,
        transferred=delta.total(Counter.TRANSFERRED),
        decode_computed=delta.total(Counter.DECODE_COMPUTED),
        preemptions=delta.total(Counter.PREEMPTIONS),
        grade=grade,
    )


def moved(record: PartRecord) -> tuple[CounterDelta | None, str]:
    """What the counters of all engines moved by in a part, or why that is not known."""
    before, after = (_together(record.read[moment]) for moment in (Moment.BEFORE, Moment.AFTER))
    if isinstance(before, str) or isinstance(after, str):
        return None, before if isinstance(before, str) else str(after)
    delta = difference(before, after)
    return (None, delta.fell[0]) if delta.fell else (delta, "")


def _together(read: list[EngineCounted]) -> Counters | str:
    """The readings of all engines at one moment as one, or why they cannot be had."""
    if not read:
        return "the counters were not read"
    readings: list[Reading] = []
    started: list[float] = []
    for each in read:
        if each.counters is None:
            return f"{each.endpoint}: {each.detail}"
        readings += named(each.endpoint, each.counters, each.role is Role.DECODE)
        started += [each.counters.started] if each.counters.started is not None else []
    return Counters(tuple(readings), max(started, default=None))
