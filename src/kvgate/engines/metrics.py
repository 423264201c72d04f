"""Reading an engine's Prometheus page into kvgate's counters."""

import math
from collections.abc import Iterator
from functools import lru_cache

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from kvgate.domain.counters import Counter, Counters, Reading
from kvgate.engines.dialects import CounterName, Dialect


class UnreadablePageError(ValueError):
    """The page is not Prometheus text, or has none of the counters the dialect knows."""


def parse_counters(page: str, dialect: Dialect) -> Counters:
    """The counters on a metrics page, per engine. Raises UnreadablePageError.

    Old and new names of one counter are never added up; ``_created`` samples and histograms are passed over.
    """
    by_name: dict[str, list[Sample]] = {}
    for sample in _samples(page, _wanted(dialect)):
        by_name.setdefault(sample.name, []).append(sample)
    readings: list[Reading] = []
    for counter, where in dialect.counters:
        readings += _read(counter, where, by_name, dialect.engine_label)
    if not readings:
        raise UnreadablePageError("the page has none of the counters kvgate reads")
    started = next((sample.value for sample in by_name.get(dialect.started_sample, ())), None)
    return Counters(tuple(readings), started)


def parse_info(page: str, name: str) -> dict[str, str]:
    """The labels of the first sample called ``name``; empty if the page has none."""
    for sample in _samples(page, (name,)):
        return dict(sample.labels)
    return {}


@lru_cache(maxsize=16)
def _wanted(dialect: Dialect) -> tuple[str, ...]:
    names = [name for _, where in dialect.counters for name in where.samples]
    return (*dict.fromkeys(names), dialect.started_sample)


def _samples(page: str, names: tuple[str, ...]) -> Iterator[Sample]:
    """Parse only the lines that matter: a vLLM page has hundreds of histogram lines, and parsing is slow."""
    starts = _starts(names)
    for line in page.splitlines():
        if not line.startswith(starts):
            continue
        head, _, rest = line.rpartition("} ") if "{" in line else line.partition(" ")
        try:
            sample = _parsed(head + "}" if "{" in line else head)
            # A time stamp may follow the value.
            yield sample._replace(value=float(rest.split()[0]))
        except (ValueError, IndexError, KeyError) as error:
            raise UnreadablePageError(f"the page is not Prometheus text: {error}") from None


@lru_cache(maxsize=16)
def _starts(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}{end}" for name in names for end in ("{", " "))


@lru_cache(maxsize=4096)
def _parsed(head: str) -> Sample:
    """A sample's name and labels, by the library; they stay the same from reading to reading."""
    (family,) = text_string_to_metric_families(f"{head} 0\n")
    (sample,) = family.samples
    return sample


def _read(counter: Counter, where: CounterName, by_name: dict[str, list[Sample]], engine_label: str) -> list[Reading]:
    for name in where.samples:
        totals: dict[str, float] = {}
        for sample in by_name.get(name, ()):
            if math.isfinite(sample.value) and all(sample.labels.get(label) == value for label, value in where.labels):
                engine = sample.labels.get(engine_label, "0")
                totals[engine] = totals.get(engine, 0.0) + sample.value
        if totals:
            return [Reading(engine, counter, value) for engine, value in sorted(totals.items())]
    return []
