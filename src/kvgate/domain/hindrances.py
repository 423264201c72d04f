"""What stood in the way of measuring, and what a reader of the figures should know beside them."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from kvgate.domain.counters import Counter
from kvgate.domain.figures import PartFigures, moved, tokens_of
from kvgate.domain.measured import MeasurePlan, MeasureRecord
from kvgate.domain.trace import Kind

# A request sent later than this was not sent when the trace has it.
LATE_S = 0.1
# Prompt tokens that the requests of a random part may have in common: what stands before all of them.
ALIKE_TOKENS = 32
# Gaps this many times as long as the mean per token are not between tokens.
PIECES = 1.5
# What may make an engine count a prompt twice.
TWICE = frozenset({"retried", "recomputed"})


class Obstacle(str, Enum):
    """Why something could not be measured."""

    WENT_AWAY = "went_away"
    CUT_OFF = "cut_off"
    MOSTLY_UNANSWERED = "mostly_unanswered"
    NO_FIRST_TOKEN = "no_first_token"
    FOREIGN_TRAFFIC = "foreign_traffic"
    SALTS_IGNORED = "salts_ignored"


@dataclass(frozen=True, slots=True)
class Hindrance:
    """An obstacle with what was seen."""

    obstacle: Obstacle
    detail: str


def hindrances_of(plan: MeasurePlan, record: MeasureRecord, figures: tuple[PartFigures, ...]) -> tuple[Hindrance, ...]:
    """Everything that could not be measured as it was to be."""
    labels = [each.label for each in plan.deployments]
    found = [
        Hindrance(Obstacle.WENT_AWAY, f"{labels[number]}: {detail}") for number, detail in sorted(record.broken.items())
    ]
    if not record.completed and not record.broken:
        found.append(Hindrance(Obstacle.CUT_OFF, record.stopped or "the record ends before the measurement does"))
    for each in figures:
        where = f"{each.part} on {each.deployment}"
        if 2 * each.answered < each.planned:
            told = f"{where}: {each.answered} of {each.planned} requests were answered{_said(plan, record, each)}"
            found.append(Hindrance(Obstacle.MOSTLY_UNANSWERED, told))
        elif each.first_token is None:
            told = f"{where}: no answer tells when its first token came; set requests.stream: true"
            found.append(Hindrance(Obstacle.NO_FIRST_TOKEN, told))
    return (*found, *_salts_ignored(plan, record), *_foreign(plan, record))


def _said(plan: MeasurePlan, record: MeasureRecord, figures: PartFigures) -> str:
    """What was said to the first request that was not answered."""
    number = [each.label for each in plan.deployments].index(figures.deployment)
    every = (seen for part in record.of(number, figures.part) for seen in part.answered.values())
    detail = next((seen.detail for seen in every if not seen.ok and seen.detail), "")
    return f"; the first said: {detail}" if detail else ""


def _salts_ignored(plan: MeasurePlan, record: MeasureRecord) -> Iterator[Hindrance]:
    for check in record.salts:
        deployment = plan.deployments[check.deployment]
        tokens = tokens_of(deployment, check)
        reused = (tokens.local or 0) + (tokens.external or 0)
        if reused > ALIKE_TOKENS:
            told = (
                f"{deployment.label}: {reused} of {tokens.sent} prompt tokens were reused under another salt, so what "
                "one leg left may be another's hit; set deployment.salts: ignored"
            )
            yield Hindrance(Obstacle.SALTS_IGNORED, told)


def _foreign(plan: MeasurePlan, record: MeasureRecord) -> Iterator[Hindrance]:
    for part in record.parts:
        delta, _ = moved(part)
        # Whatever was not answered may have been counted or not, and what was sent twice may have been twice.
        again = {name for name, seen in part.answered.items() if TWICE & set(seen.marks)}
        most = sum(each.length * (2 if name in again else 1) for name, each in part.sent.items())
        for counter, side in ((Counter.PROMPT_TOKENS, ""), (Counter.DECODE_PROMPT, "decode ")):
            count = delta.total(counter) if delta is not None else None
            if count is not None and count > most:
                where = f"{part.part} on {plan.deployments[part.deployment].label}"
                told = f"{where}: {most} prompt tokens were sent, the {side}engines counted {count}: others used them"
                yield Hindrance(Obstacle.FOREIGN_TRAFFIC, told)


def notes_of(plan: MeasurePlan, figures: tuple[PartFigures, ...]) -> tuple[str, ...]:
    """What a reader of the figures should know."""
    found: list[str] = list(plan.notes)
    if len(plan.deployments) > 1 and plan.trace.repeats == 1:
        found.append("measured once each: a drift of the machine looks like a difference; set repeats: 2")
    waiting = [part.name for part in plan.trace.parts if part.arrival.concurrency is not None]
    if waiting:
        found.append(
            f"{', '.join(waiting)}: so many requests at a time, so when one arrives hangs on how fast the deployment "
            "answers"
        )
    turns = [part.name for part in plan.trace.parts if part.turns > 1 and part.name not in waiting]
    if turns:
        found.append(f"{', '.join(turns)}: first turns arrive alike everywhere, later ones once the last is answered")
    kinds = {part.name: part.kind for part in plan.trace.parts}
    for each in figures:
        found += [f"{each.part} on {each.deployment}: {told}" for told in _notes(each, kinds[each.part])]
    return tuple(dict.fromkeys(found))


def _notes(figures: PartFigures, kind: Kind) -> Iterator[str]:
    tokens, gaps, between = figures.tokens, figures.gaps, figures.between_tokens
    if figures.late_s > LATE_S:
        yield f"kvgate itself sent a request up to {figures.late_s:.2f} s late: this machine is too busy"
    if tokens.why_unknown:
        yield f"tokens by path are unknown: {tokens.why_unknown}"
    if tokens.counted is not None and tokens.counted < tokens.sent - figures.answered:
        yield (
            f"of {tokens.sent} prompt tokens answered the engines counted {tokens.counted}: name every engine behind "
            "the gateway"
        )
    reused = (tokens.local or 0) + (tokens.external or 0)
    if kind is Kind.RANDOM and reused > ALIKE_TOKENS * figures.answered:
        yield (
            f"{reused} prompt tokens were reused where next to nothing is alike: the cache may ignore salts; set "
            "deployment.salts: ignored"
        )
    if gaps is not None and between is not None and gaps.p50 > PIECES * between.p50:
        yield "pieces of the streams hold several tokens each, so gaps are not between tokens"
