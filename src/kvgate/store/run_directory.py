"""A run as a directory: manifest before, history during, verdict after.

    manifest.json    plan, versions, lexicon; written before the first probe
    history.jsonl    one entry a line, flushed as it happens
    verdict.json     what the judge said; a pure function of the other two
    prompts/         the token IDs of each group's prompt, as a JSON list

Secrets never get here: the plan holds the name of the environment variable, not its value.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError

from kvgate.domain.history import (
    Entry,
)
from kvgate.domain.plan import Plan
from kvgate.domain.ruling import RunVerdict
from kvgate.errors import ConfigError, RecordError

FORMAT = "kvgate.run/1"
MANIFEST, HISTORY, VERDICT, PROMPTS = "manifest.json", "history.jsonl", "verdict.json", "prompts"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was known and decided before the first probe.

    ``started_at`` is ISO 8601 in UTC. ``versions`` are (component, version or None, why unknown) triples.
    ``lexicon`` holds the token IDs of every piece of text by family, so that prompts can be made again.
    """

    run_id: str
    kvgate_version: str
    started_at: str
    config_path: str
    config_sha256: str
    plan: Plan
    versions: tuple[tuple[str, str | None, str], ...]
    lexicon: dict[str, list[int]]
    format: Literal["kvgate.run/1"] = "kvgate.run/1"


_ENTRY: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="kind")])
# Writing knows the kind already; trying the members of the union in turn costs twice as much.
_WRITERS = {kind: TypeAdapter(kind).serializer for kind in get_args(Entry)}
_MANIFEST: TypeAdapter[Manifest] = TypeAdapter(Manifest)
_VERDICT: TypeAdapter[RunVerdict] = TypeAdapter(RunVerdict)


class RunDirectory:
    """One run on disk, open for writing its history."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._history = (path / HISTORY).open("ab", buffering=0)

    @classmethod
    def create(cls, parent: Path, manifest: Manifest) -> "RunDirectory":
        """Make the directory and write the manifest. Raises ConfigError if that cannot be done."""
        path = parent / manifest.run_id
        try:
            path.mkdir(parents=True)
            write_whole(path / MANIFEST, _MANIFEST.dump_json(manifest, indent=1) + b"\n")
            return cls(path)
        except OSError as error:
            raise ConfigError(
                f"{path}: the run directory cannot be made ({error.strerror}); set output.directory to a folder "
                "you may write to"
            ) from None

    def append(self, entry: Entry) -> None:
        """Write one entry; it has left the process when this returns. Raises RecordError if it cannot be written."""
        try:
            self._history.write(_WRITERS[type(entry)].to_json(entry) + b"\n")
        except OSError as error:
            raise unwritable(self.path / HISTORY, error) from None

    def keep_prompt(self, group: str, encoded: bytes) -> str:
        """Write a group's prompt IDs, a JSON list, to be sent by hand or read by a hook; returns the path."""
        path = self.path / PROMPTS / f"{group}.json"
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(encoded)
        except OSError as error:
            raise unwritable(path, error) from None
        return str(path)

    def close(self) -> None:
        """Close the history, after making sure it is on disk."""
        try:
            os.fsync(self._history.fileno())
            self._history.close()
        except OSError as error:
            raise unwritable(self.path / HISTORY, error) from None


def verdict_bytes(verdict: RunVerdict) -> bytes:
    """The ruling exactly as it is written to verdict.json."""
    return _VERDICT.dump_json(verdict, indent=1) + b"\n"


def write_verdict(path: Path, verdict: RunVerdict) -> None:
    """Write verdict.json into a run directory. Raises RecordError."""
    try:
        write_whole(path / VERDICT, verdict_bytes(verdict))
    except OSError as error:
        raise unwritable(path / VERDICT, error) from None


def read_manifest(path: Path) -> Manifest:
    """The manifest of a run directory. Raises RecordError."""
    file = path / MANIFEST
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        kind = "is no run directory" if path.is_dir() else "does not exist"
        raise RecordError(f"{path}: {kind} (no {MANIFEST}); give a directory that `kvgate run` made") from None
    except OSError as error:
        raise RecordError(f"{file}: cannot be read ({error.strerror})") from None
    try:
        return _MANIFEST.validate_json(content)
    except ValidationError as error:
        found = format_of(content)
        if found is not None and found != FORMAT:
            raise RecordError(f"{file}: the run has format {found!r}, this kvgate reads {FORMAT!r}") from None
        first = error.errors(include_url=False)[0]
        where = "".join(f"{part}: " for part in [".".join(map(str, first["loc"]))] if part)
        raise RecordError(f"{file}: not a manifest of this version: {where}{first['msg']}") from None


def read_history(path: Path) -> Iterator[Entry]:
    """The entries of a run directory, oldest first. A last line cut off by a kill is passed over.

    Raises RecordError for a broken line anywhere else.
    """
    file = path / HISTORY
    try:
        handle = file.open("rb")
    except OSError as error:
        raise RecordError(f"{file}: cannot be read ({error.strerror})") from None
    with handle:
        for number, line in enumerate(handle, start=1):
            try:
                yield _ENTRY.validate_json(line)
            except ValidationError as error:
                if not line.endswith(b"\n"):
                    return
                first = error.errors(include_url=False)[0]
                raise RecordError(f"{file}:{number}: not a history entry: {first['msg']}") from None


def unwritable(file: Path, error: OSError) -> RecordError:
    """What to raise where a record cannot be written any further."""
    return RecordError(f"{file}: cannot be written ({error.strerror}); what came before is kept and can be judged")


def format_of(content: bytes) -> str | None:
    """The format that a JSON document says it has, None if it says none."""
    try:
        value = json.loads(content)
    except ValueError:
        return None
    found = value.get("format") if isinstance(value, dict) else None
    return str(found) if found is not None else None


def write_whole(path: Path, content: bytes) -> None:
    """Write a whole file or nothing."""
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_bytes(content)
    partial.replace(path)
