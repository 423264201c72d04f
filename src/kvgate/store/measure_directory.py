"""A measurement as a directory: what was decided before, everything said and heard during.

    measure.json      trace, planned requests with arrivals and digests, deployments; written before the first request
    requests.jsonl    one entry a line, flushed as it happens

The report is a pure function of the two. Secrets never get here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, TypeAdapter

from kvgate.domain.measured import MeasureEntry, MeasurePlan
from kvgate.errors import ConfigError
from kvgate.store.records import Lines, read_document, read_lines, write_whole

FORMAT = "kvgate.measure/1"
MEASURE, REQUESTS = "measure.json", "requests.jsonl"


@dataclass(frozen=True, slots=True)
class MeasureManifest:
    """What was known and decided before the first request. ``started_at`` is ISO 8601 in UTC."""

    run_id: str
    kvgate_version: str
    started_at: str
    trace_path: str
    trace_sha256: str
    plan: MeasurePlan
    format: Literal["kvgate.measure/1"] = "kvgate.measure/1"


_MANIFEST: TypeAdapter[MeasureManifest] = TypeAdapter(MeasureManifest)
_ENTRY: TypeAdapter[MeasureEntry] = TypeAdapter(Annotated[MeasureEntry, Field(discriminator="kind")])
_WRITERS = {kind: TypeAdapter(kind).serializer for kind in get_args(MeasureEntry)}


class MeasureDirectory:
    """One measurement on disk, open for writing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._requests = Lines(path / REQUESTS)

    @classmethod
    def create(cls, parent: Path, manifest: MeasureManifest) -> "MeasureDirectory":
        """Make the directory and write what was decided. Raises ConfigError if that cannot be done."""
        path = parent / manifest.run_id
        try:
            path.mkdir(parents=True)
            write_whole(path / MEASURE, _MANIFEST.dump_json(manifest, indent=1) + b"\n")
            return cls(path)
        except OSError as error:
            raise ConfigError(
                f"{path}: the directory cannot be made ({error.strerror}); set output.directory to a folder you may "
                "write to"
            ) from None

    def append(self, entry: MeasureEntry) -> None:
        """Write one entry; it has left the process when this returns. Raises RecordError if it cannot be written."""
        self._requests.add(_WRITERS[type(entry)].to_json(entry))

    def close(self) -> None:
        """Close the record, after making sure it is on disk."""
        self._requests.close()


def read_measure(path: Path) -> MeasureManifest:
    """What was decided before a measurement. Raises RecordError."""
    return read_document(path / MEASURE, _MANIFEST, FORMAT, ("measurement", "measurement", "kvgate measure"))


def read_requests(path: Path) -> Iterator[MeasureEntry]:
    """The entries of a measurement, oldest first; a last line cut off by a kill is passed over. Raises RecordError."""
    return read_lines(path / REQUESTS, _ENTRY, "an entry of a measurement")
