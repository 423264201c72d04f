"""What commands say of stored runs, as documents with schemas."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from kvgate.domain.clearance import Clearance
from kvgate.domain.kept import Imports, LedgerRow, Unreadable
from kvgate.domain.matrix import Matrix
from kvgate.domain.policy import PolicyName
from kvgate.domain.shards import Merged


@dataclass(frozen=True, slots=True)
class HistoryReport:
    """All runs of a folder, oldest first, and what could not be read."""

    folder: str
    runs: tuple[LedgerRow, ...]
    broken: tuple[Unreadable, ...]
    format: Literal["kvgate.history/1"] = "kvgate.history/1"


@dataclass(frozen=True, slots=True)
class MatrixReport:
    """Runs of a folder by two dimensions. A label that is null is unknown."""

    folder: str
    matrix: Matrix
    broken: tuple[Unreadable, ...]
    format: Literal["kvgate.matrix/1"] = "kvgate.matrix/1"


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What became of run directories from elsewhere."""

    folder: str
    imports: Imports
    format: Literal["kvgate.import/1"] = "kvgate.import/1"


@dataclass(frozen=True, slots=True)
class PruneReport:
    """Runs that were deleted, or would be."""

    folder: str
    dry_run: bool
    runs: tuple[LedgerRow, ...]
    broken: tuple[Unreadable, ...]
    format: Literal["kvgate.prune/1"] = "kvgate.prune/1"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Whether a deployment is cleared, on which terms, and what would have to be done; ``broken`` was not counted."""

    config: str
    folder: str
    live: bool
    policy: PolicyName
    max_fault_rate: float
    max_age_s: float
    clearance: Clearance
    fingerprint_sha256: str
    remedy: str
    broken: tuple[Unreadable, ...]
    format: Literal["kvgate.check/1"] = "kvgate.check/1"


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What runs show together, and what is to be doubted of their directories."""

    merged: Merged
    doubts: tuple[str, ...]
    format: Literal["kvgate.merge/1"] = "kvgate.merge/1"


AnyReport = HistoryReport | MatrixReport | ImportReport | PruneReport | CheckReport | MergeReport
_ADAPTERS: dict[type, TypeAdapter[Any]] = {
    kind: TypeAdapter(kind)
    for kind in (HistoryReport, MatrixReport, ImportReport, PruneReport, CheckReport, MergeReport)
}


def report_json(report: AnyReport) -> str:
    """The JSON report."""
    return str(_ADAPTERS[type(report)].dump_json(report, indent=1).decode()) + "\n"


def ledger_schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of each JSON report, by the name of its command."""
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {
        kind.__name__.removesuffix("Report").lower(): {"$schema": draft, **adapter.json_schema(mode="serialization")}
        for kind, adapter in _ADAPTERS.items()
    }
