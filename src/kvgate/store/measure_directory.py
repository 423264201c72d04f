"""A measurement as a directory: what was decided before, everything said and heard during.

    measure.json      trace, planned requests with arrivals and digests, deployments; written before the first request
    requests.jsonl    one entry a line, flushed as it happens

The report is a pure function of the two. Secrets never get here.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError

from kvgate.domain.measured import MeasureEntry, MeasurePlan
from kvgate.errors import ConfigError, RecordError
from kvgate.store.run_directory import format_of, unwritable, write_whole

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
        self._requests = (path / REQUESTS).open("ab", buffering=0)

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
        try:
            self._requests.write(_WRITERS[type(entry)].to_json(entry) + b"\n")
        except OSError as error:
            raise unwritable(self.path / REQUESTS, error) from None

    def close(self) -> None:
        """Close the record, after making sure it is on disk."""
        try:
            os.fsync(self._requests.fileno())
            self._requests.close()
        except OSError as error:
            raise unwritable(self.path / REQUESTS, error) from None


def read_measure(path: Path) -> MeasureManifest:
    """What was decided before a measurement. Raises RecordError."""
    file = path / MEASURE
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        kind = "is no measurement" if path.is_dir() else "does not exist"
        raise RecordError(f"{path}: {kind} (no {MEASURE}); give a directory that `kvgate measure` made") from None
    except OSError as error:
        raise RecordError(f"{file}: cannot be read ({error.strerror}); give a directory you may read") from None
    try:
        return _MANIFEST.validate_json(content)
    except ValidationError as error:
        found = format_of(content)
        if found is not None and found != FORMAT:
            raise RecordError(f"{file}: has format {found!r}, this kvgate reads {FORMAT!r}") from None
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise RecordError(f"{file}: not a measurement of this version: {where}: {first['msg']}") from None


def read_requests(path: Path) -> Iterator[MeasureEntry]:
    """The entries of a measurement, oldest first. A last line cut off by a kill is passed over.

    Raises RecordError for a broken line anywhere else.
    """
    file = path / REQUESTS
    try:
        handle = file.open("rb")
    except OSError as error:
        raise RecordError(f"{file}: cannot be read ({error.strerror}); it holds what was sent and heard") from None
    with handle:
        for number, line in enumerate(handle, start=1):
            try:
                yield _ENTRY.validate_json(line)
            except ValidationError as error:
                if not line.endswith(b"\n"):
                    return
                first = error.errors(include_url=False)[0]
                raise RecordError(f"{file}:{number}: not an entry of a measurement: {first['msg']}") from None
