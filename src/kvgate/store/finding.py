"""Run directories as they lie about: found at any depth, judged again, and held to what they were.

A run directory is one that holds history.jsonl or a manifest of kvgate's. Hidden folders are passed over: they are ones
that are being made or taken away.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvgate.domain.judge import judge
from kvgate.domain.kept import KeptRun, Origin, State, kept_run
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import RunVerdict
from kvgate.errors import RecordError
from kvgate.store.run_directory import (
    HISTORY,
    MANIFEST,
    VERDICT,
    Manifest,
    read_history,
    read_manifest,
    read_stored,
    verdict_bytes,
)

FILES = (MANIFEST, HISTORY, VERDICT)
# How far into a manifest its format is looked for; other tools have manifests, too.
_LOOK = 1 << 20


@dataclass(frozen=True, slots=True)
class Digests:
    """SHA-256 of the files a verdict rests on, in hex; the verdict's is empty where there is none."""

    manifest: str
    history: str
    verdict: str

    def changed(self, other: "Digests") -> str:
        """The names of the files that differ, joined; empty if none does."""
        mine, theirs = (self.manifest, self.history, self.verdict), (other.manifest, other.history, other.verdict)
        return " and ".join(name for name, one, two in zip(FILES, mine, theirs, strict=True) if one != two)


@dataclass(frozen=True, slots=True)
class Found:
    """A run directory that was read: what is kept of it, where it is, its digests, and what is to be said of it."""

    run: KeptRun
    place: Path
    digests: Digests
    state: State
    why: str
    stamp: str


def runs_under(folder: Path) -> Iterator[Path]:
    """Every run directory in a folder, at any depth, in order, or the folder itself; links are not followed."""
    for name, folders, files in os.walk(folder):
        if HISTORY in files or (MANIFEST in files and _is_ours(Path(name) / MANIFEST)):
            folders.clear()
            yield Path(name)
            continue
        folders[:] = sorted(each for each in folders if not each.startswith("."))


def _is_ours(manifest: Path) -> bool:
    try:
        with manifest.open("rb") as file:
            head = file.read(_LOOK)
            file.seek(max(0, manifest.stat().st_size - _LOOK))
            return b"kvgate.run/" in head or b"kvgate.run/" in file.read()
    except OSError:
        return False


def stamp_of(path: Path) -> str:
    """Sizes and times of change of a run directory's files: if they are the same, so is the rest in all likelihood."""
    return " ".join(_stamp(path / name) for name in FILES)


def _stamp(file: Path) -> str:
    try:
        seen = file.stat()
    except OSError:
        return "none"
    return f"{seen.st_size}:{seen.st_mtime_ns}"


def digests_of(path: Path) -> Digests:
    """The digests of a run directory as it is now. Raises RecordError."""
    return Digests(*(_digest(path / name) for name in FILES))


def _digest(file: Path) -> str:
    found = hashlib.sha256()
    try:
        with file.open("rb") as handle:
            while block := handle.read(1 << 20):
                found.update(block)
    except FileNotFoundError:
        if file.name == VERDICT:
            return ""
        raise RecordError(f"{file}: is missing; give a directory that `kvgate run` made") from None
    except OSError as error:
        raise RecordError(f"{file}: cannot be read ({error.strerror}); give a directory you may read") from None
    return found.hexdigest()


def find(path: Path, version: str) -> Found:
    """Read a run directory and judge it from its history. ``version`` is that of this kvgate. Raises RecordError."""
    manifest = read_manifest(path)
    if not is_name(manifest.run_id):
        raise RecordError(
            f"{path / MANIFEST}: run_id {manifest.run_id[:60]!r} is no name of a run; give a directory that "
            "`kvgate run` made"
        )
    ruling = judge(manifest.plan, RunRecord(read_history(path)))
    return found(path, manifest, ruling, version)


def found(path: Path, manifest: Manifest, ruling: RunVerdict, version: str) -> Found:
    """The same for a run that was just judged. Raises RecordError."""
    stamp, digests = stamp_of(path), digests_of(path)
    state, why = State.KEPT, ""
    if not digests.verdict:
        state, why = State.UNFINISHED, f"it has no {VERDICT}; `kvgate judge {path}` writes one"
    elif not _stands(path, manifest, ruling, version):
        state, why = State.EDITED, f"{VERDICT} is not what manifest and history give"
    origin = Origin(
        manifest.run_id, manifest.kvgate_version, manifest.started_at, manifest.config_path, manifest.config_sha256
    )
    run = kept_run(origin, manifest.plan, ruling, manifest.versions, manifest.stated, manifest.asked)
    return Found(run, path, digests, state, why, stamp)


def _stands(path: Path, manifest: Manifest, ruling: RunVerdict, version: str) -> bool:
    """Whether verdict.json is what its history gives: to the byte, or, of another version, in what it says."""
    if manifest.kvgate_version == version:
        try:
            return (path / VERDICT).read_bytes() == verdict_bytes(ruling)
        except OSError as error:
            raise RecordError(f"{path / VERDICT}: cannot be read ({error.strerror})") from None
    try:
        stored = read_stored(path)
    except RecordError:
        return False
    return stored is not None and [(each.policy, each.verdict) for each in stored.results] == [
        (each.policy, each.verdict) for each in ruling.results
    ]


def is_name(run_id: str) -> bool:
    """Whether this can be the name of a run, and so of a folder: no path, nothing hidden."""
    return (
        bool(run_id)
        and len(run_id) <= 128
        and run_id[0] not in ".-"
        and all(each.isascii() and (each.isalnum() or each in "._-") for each in run_id)
    )
