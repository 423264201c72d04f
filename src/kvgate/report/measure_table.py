"""The report of a measurement for a terminal of 80 columns: what the others took against the first, then each part."""

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvgate.domain.deployment import Role
from kvgate.domain.figures import PartFigures, Quantiles
from kvgate.domain.savings import Saving
from kvgate.domain.trace import Arrival, Kind, Slo, Spacing, TracePart
from kvgate.report.measure_document import MeasureReport

WIDTH = 80


def print_measure(report: MeasureReport, console: Console) -> None:
    """Print the whole report."""
    for part in _parts(report):
        console.print(part, width=min(WIDTH, console.width))


def _parts(report: MeasureReport) -> Iterable[RenderableType]:
    labels = ", ".join(each.label for each in report.deployments)
    yield Text.assemble(("\nmeasured  ", "bold"), labels, f"   run {report.run_id}")
    yield Text(f"{_slo(report.trace.slo)}; repeats: {report.trace.repeats}; seed {report.trace.seed}")
    for hindrance in report.hindrances:
        yield Text.assemble(("not measured: ", "bold yellow"), hindrance.detail)
    yield Text(report.no_verdict)
    for part in report.trace.parts:
        figures = [each for each in report.figures if each.part == part.name]
        yield Text.assemble((f"\n{part.name}", "bold"), f": {_described(part)}")
        yield from (_saving(each) for each in report.savings if each.part == part.name)
        yield _counts(figures)
        yield _times(figures)
        yield _tokens(report, figures)
    yield Group(*(Text(f"Note: {note}") for note in report.notes))


def _slo(slo: Slo) -> str:
    limits = (("first token", slo.first_token_s), ("between tokens", slo.between_tokens_s), ("whole", slo.total_s))
    told = [f"{name} {limit:g} s" for name, limit in limits if limit is not None]
    return f"SLO: {', '.join(told)}" if told else "no SLO given"


def _described(part: TracePart) -> str:
    many = f"{part.count} sessions of {part.turns}" if part.turns > 1 else f"{part.count} requests"
    shared = f", {part.shared_tokens} of them shared" if part.shared_tokens else ""
    more = f", then {part.increment_tokens} more each turn" if part.turns > 1 else ""
    kind = "agent runs" if part.kind is Kind.AGENT else part.kind.value.replace("_", " ")
    return f"{kind}, {many}, {part.prompt_tokens} prompt tokens{shared}{more}; {_arrival(part.arrival)}"


def _arrival(arrival: Arrival) -> str:
    if arrival.rate is None:
        return f"{arrival.concurrency} at a time"
    return f"{arrival.rate:g} a second, {'by chance' if arrival.spacing is Spacing.POISSON else 'evenly'}"


def _saving(saving: Saving) -> RenderableType:
    style = "" if not saving.shown else "green" if saving.ratio is not None and saving.ratio < 1.0 else "red"
    unpaired = f" ({saving.unpaired} not paired)" if saving.unpaired else ""
    return Text(f"First token: {saving.sentence}{unpaired}.", style=style)


def _table(*columns: str) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    return table


def _counts(figures: Sequence[PartFigures]) -> RenderableType:
    table = _table("requests", "answered", "refused", "lost", "unsent", "per s", "in SLO", "goodput/s")
    for each in figures:
        table.add_row(
            escape(each.deployment),
            f"{each.answered}/{each.planned}",
            *map(str, (each.refused, each.lost, each.unsent)),
            _number(each.answered_per_s),
            "?" if each.attainment is None else f"{each.attainment:.0%}",
            _number(each.goodput_per_s),
        )
    return table


def _times(figures: Sequence[PartFigures]) -> RenderableType:
    table = Table(show_edge=False, pad_edge=False)
    for name in ("seconds", "", "n", "p50", "p95", "p99"):
        table.add_column(name, justify="left" if name in ("seconds", "") else "right", overflow="fold")
    for name, field in (
        ("first token", "first_token"),
        ("gap in stream", "gaps"),
        ("per token", "between_tokens"),
        ("whole answer", "total"),
    ):
        for number, each in enumerate(figures):
            table.add_row("" if number else name, escape(each.deployment), *_quantiles(getattr(each, field)))
    return table


def _quantiles(quantiles: Quantiles | None) -> tuple[str, ...]:
    if quantiles is None:
        return "0", "?", "?", "?"
    return str(quantiles.count), *(f"{each:.4f}" for each in (quantiles.p50, quantiles.p95, quantiles.p99))


def _tokens(report: MeasureReport, figures: Sequence[PartFigures]) -> RenderableType:
    table = _table("prompt tokens", "answered", "computed", "local", "external", "transferred", "reused")
    for each in figures:
        tokens = each.tokens
        deployment = next(one.deployment for one in report.deployments if one.label == each.deployment)
        transferred = _count(tokens.transferred) if deployment.with_role(Role.DECODE) else "-"
        reused = None if tokens.local is None or tokens.external is None else tokens.local + tokens.external
        share = "?" if reused is None or not tokens.counted else f"{reused / tokens.counted:.0%}"
        split = map(_count, (tokens.computed, tokens.local, tokens.external))
        table.add_row(escape(each.deployment), str(tokens.sent), *split, transferred, share)
    return table


def _count(value: int | None) -> str:
    return "?" if value is None else str(value)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"
