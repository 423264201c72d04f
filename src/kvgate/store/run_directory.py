"""A run as a directory: manifest before, history during, verdict after.

    manifest.json    plan, versions, lexicon; written before the first probe
    history.jsonl    one entry a line, flushed as it happens
    verdict.json     what the judge said; a pure function of the other two
    prompts/         the token IDs of each group's prompt, as a JSON list

Secrets never get here: the plan holds the name of the environment variable, not its value.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, TypeAdapter

from kvgate.domain.history import Entry
from kvgate.domain.plan import Plan
from kvgate.domain.ruling import RunVerdict
from kvgate.errors import ConfigError
from kvgate.store.records import Lines, read_document, read_lines, unwritable, write_whole

FORMAT = "kvgate.run/1"
MANIFEST, HISTORY, VERDICT, PROMPTS = "manifest.json", "history.jsonl", "verdict.json", "prompts"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was known and decided before the first probe.

    ``started_at`` is ISO 8601 in UTC. ``versions`` are (component, version or None, why unknown) triples.
    ``lexicon`` holds the token IDs of every piece of text by family, so that prompts can be made again. ``stated`` are
    traits of the deployment that the plan does not hold (`kvgate.domain.fingerprint`), ``asked`` what its
    configuration asked to be sent; both are empty in runs of older versions.
    """

    run_id: str
    kvgate_version: str
    started_at: str
    config_path: str
    config_sha256: str
    plan: Plan
    versions: tuple[tuple[str, str | None, str], ...]
    lexicon: dict[str, list[int]]
    stated: tuple[tuple[str, str], ...] = ()
    asked: tuple[str, ...] = ()
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
        self._history = Lines(path / HISTORY)

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
        self._history.add(_WRITERS[type(entry)].to_json(entry))

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
        self._history.close()


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
    return read_document(path / MANIFEST, _MANIFEST, FORMAT, ("run directory", "manifest", "kvgate run"))


def read_stored(path: Path) -> RunVerdict | None:
    """The ruling in verdict.json, None if there is none. Raises RecordError."""
    if not (path / VERDICT).exists():
        return None
    return read_document(path / VERDICT, _VERDICT, FORMAT, ("run directory", "verdict", "kvgate run"))


def read_history(path: Path) -> Iterator[Entry]:
    """The entries of a run directory, oldest first; a last line that was cut off is passed over. Raises RecordError."""
    return read_lines(path / HISTORY, _ENTRY, "a history entry")
