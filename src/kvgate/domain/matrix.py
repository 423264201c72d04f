"""Stored runs as a table: one dimension of their deployments down, another one across."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvgate.domain.fingerprint import UNKNOWN, standing
from kvgate.domain.kept import LedgerRow, State
from kvgate.domain.verdict import Verdict, merge

# Dimensions of a run that are no traits of its deployment.
OF_RUNS = ("policy", "tiers", "kvgate_version", "config_sha256")
_PREFIXES = ("deployment.", "server.", "version.", "feature.", "geometry.", "requests.")


@dataclass(frozen=True, slots=True)
class Cell:
    """The runs of one row and column; either label is None where that dimension is not known of them.

    ``verdict`` is that of the newest run of each deployment in the cell, the worst of these. An edited or unfinished
    run is no PASS.
    """

    row: str | None
    column: str | None
    verdict: Verdict
    runs: int
    by_verdict: tuple[tuple[Verdict, int], ...]
    newest_run: str
    newest_at: str
    excluded_fault_rate: float


@dataclass(frozen=True, slots=True)
class Matrix:
    """The table: labels in order, unknown last, and the cells that are not empty."""

    row_dimension: str
    column_dimension: str
    where: tuple[tuple[str, str], ...]
    rows: tuple[str | None, ...]
    columns: tuple[str | None, ...]
    cells: tuple[Cell, ...]


class NoDimensionError(ValueError):
    """A dimension that no run has; says which there are."""


def dimensions(rows: Sequence[LedgerRow]) -> tuple[str, ...]:
    """The names of all dimensions that runs have."""
    names = {each.name for row in rows for each in row.run.fingerprint.traits}
    return (*sorted(names | set(standing())), *OF_RUNS)


def dimension(asked: str, rows: Sequence[LedgerRow]) -> str:
    """The full name of a dimension; ``model`` is short for ``deployment.model``, and so on. Raises NoDimensionError."""
    known = dimensions(rows)
    for name in (asked, *(prefix + asked for prefix in _PREFIXES), f"{asked}.name"):
        if name in known:
            return name
    raise NoDimensionError(f"{asked}: there is no such dimension; there are {', '.join(known)}")


def value_of(row: LedgerRow, name: str) -> str | None:
    """What a run is in a dimension, None if that is not known."""
    run = row.run
    own: Mapping[str, str] = {
        "policy": run.policy.name.value,
        "tiers": " ".join(map(str, run.tiers)),
        "kvgate_version": run.origin.kvgate_version,
        "config_sha256": run.origin.config_sha256,
    }
    return own[name] if name in own else run.fingerprint.value(name)


def matrix(rows: Sequence[LedgerRow], down: str, across: str, where: Sequence[tuple[str, str]]) -> Matrix:
    """The table of these runs; ``where`` are (dimension, value) pairs that a run must have. Raises NoDimensionError."""
    down, across = dimension(down, rows), dimension(across, rows)
    conditions = tuple((dimension(name, rows), value) for name, value in where)
    chosen = [row for row in rows if all((value_of(row, name) or UNKNOWN) == value for name, value in conditions)]
    places: dict[tuple[str | None, str | None], list[LedgerRow]] = {}
    for row in chosen:
        places.setdefault((value_of(row, down), value_of(row, across)), []).append(row)
    return Matrix(
        row_dimension=down,
        column_dimension=across,
        where=conditions,
        rows=_labels(place[0] for place in places),
        columns=_labels(place[1] for place in places),
        cells=tuple(_cell(place, places[place]) for place in sorted(places, key=lambda each: tuple(map(_order, each)))),
    )


def _order(label: str | None) -> tuple[bool, str]:
    return label is None, label or ""


def _labels(found: Iterable[str | None]) -> tuple[str | None, ...]:
    return tuple(sorted(set(found), key=_order))


def counted(row: LedgerRow) -> Verdict:
    """What a run may be counted as: one that was edited or has not ended is no PASS."""
    doubtful = row.state in (State.EDITED, State.UNFINISHED) and row.run.verdict is Verdict.PASS
    return Verdict.INCONCLUSIVE if doubtful else row.run.verdict


def _cell(place: tuple[str | None, str | None], rows: list[LedgerRow]) -> Cell:
    ordered = sorted(rows, key=lambda row: (row.run.origin.started_at, row.run.run_id))
    newest = {row.run.fingerprint.sha256: row for row in ordered}
    counts = Counter(counted(row) for row in ordered)
    last = ordered[-1].run
    return Cell(
        row=place[0],
        column=place[1],
        verdict=merge(map(counted, newest.values())),
        runs=len(ordered),
        by_verdict=tuple((verdict, counts[verdict]) for verdict in Verdict if counts[verdict]),
        newest_run=last.run_id,
        newest_at=last.origin.started_at,
        excluded_fault_rate=max(row.run.excluded_fault_rate for row in newest.values()),
    )
