"""Reading an engine's Prometheus page into kvgate's counters."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from kvgate.domain.counters import Counter, Counters, Gauge, Reading, Signal
from kvgate.engines.dialects import CounterName, Dialect

# Label sets come and go (one per status, say); a server that makes up ever new ones must not fill our memory.
REMEMBERED_HEADS = 4096


class UnreadablePageError(ValueError):
    """The page is not Prometheus text, or has none of the counters the dialect knows."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a sample belongs: its counter, its engine, and how old its name is (0: the newest)."""

    counter: Counter | Signal
    engine: str
    age: int


class CounterReader:
    """Reads one endpoint's pages. Names and labels stay the same from page to page, so each is parsed once."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._known: tuple[tuple[Counter | Signal, CounterName], ...] = (*dialect.counters, *dialect.gauges)
        names = [name for _, where in self._known for name in where.samples]
        self._starts = _starts((*dict.fromkeys(names), dialect.started_sample))
        self._places: dict[str, _Place | None] = {}

    def read(self, page: str) -> Counters:
        """The counters and gauges on a page, per engine. Raises UnreadablePageError.

        Old and new names of one counter are never added up; ``_created`` samples and histograms are passed over.
        """
        totals: dict[Counter | Signal, tuple[int, dict[str, float]]] = {}
        started = None
        for head, value in _values(page, self._starts):
            place = self._place(head)
            if place is None:
                started = value if head == self._dialect.started_sample else started
            elif math.isfinite(value):
                _add(totals, place, value)
        found = [
            (what, engine, value) for what, (_, engines) in totals.items() for engine, value in sorted(engines.items())
        ]
        readings = tuple(Reading(engine, what, value) for what, engine, value in found if isinstance(what, Counter))
        if not readings:
            raise UnreadablePageError("the page has none of the counters kvgate reads")
        gauges = tuple(Gauge(engine, what, value) for what, engine, value in found if isinstance(what, Signal))
        return Counters(readings, started, gauges)

    def _place(self, head: str) -> _Place | None:
        if head in self._places:
            return self._places[head]
        if len(self._places) >= REMEMBERED_HEADS:
            self._places.clear()
        sample = _parsed(head)
        self._places[head] = next(
            (
                _Place(counter, sample.labels.get(self._dialect.engine_label, "0"), where.samples.index(sample.name))
                for counter, where in self._known
                if sample.name in where.samples
                and all(sample.labels.get(label) == value for label, value in where.labels)
            ),
            None,
        )
        return self._places[head]


def _add(totals: dict[Counter | Signal, tuple[int, dict[str, float]]], place: _Place, value: float) -> None:
    """Add a sample to its counter; an older name of the counter counts only where no newer one is there."""
    age, engines = totals.get(place.counter, (place.age, {}))
    if place.age > age:
        return
    if place.age < age:
        engines = {}
    engines[place.engine] = engines.get(place.engine, 0.0) + value
    totals[place.counter] = (place.age, engines)


def parse_counters(page: str, dialect: Dialect) -> Counters:
    """The counters on one page. Raises UnreadablePageError."""
    return CounterReader(dialect).read(page)


def parse_info(page: str, name: str) -> dict[str, str]:
    """The labels of the first sample called ``name``; empty if the page has none. Raises UnreadablePageError."""
    for head, _ in _values(page, _starts((name,))):
        return dict(_parsed(head).labels)
    return {}


def _starts(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}{end}" for name in names for end in ("{", " "))


def _values(page: str, starts: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """Name-and-labels and value of the lines that matter: a vLLM page has hundreds of others, and parsing is slow."""
    # Only line feeds end a line: label values may hold what else Python takes for a line's end.
    for whole in page.split("\n"):
        if not whole.startswith(starts):
            continue
        # An exemplar has braces and a value of its own.
        line = whole.partition(" # {")[0]
        head, _, rest = line.rpartition("} ") if "{" in line else line.partition(" ")
        try:
            # A time stamp may follow the value.
            value = float(rest.split(None, 1)[0])
        except (ValueError, IndexError):
            raise UnreadablePageError(f"the page is not Prometheus text: no number in {line[:80]!r}") from None
        yield (head + "}" if "{" in line else head), value


def _parsed(head: str) -> Sample:
    """A sample's name and labels, by the library."""
    try:
        (family,) = text_string_to_metric_families(f"{head} 0\n")
        (sample,) = family.samples
    except (ValueError, IndexError, KeyError) as error:
        raise UnreadablePageError(f"the page is not Prometheus text: {error}") from None
    return sample
