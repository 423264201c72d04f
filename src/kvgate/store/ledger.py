"""The ledger: a SQLite index of run directories. They are the truth; it can always be made again from them.

    runs      one row a run, by its name: what it was, where it is, and the digests of its files when it was taken in
    traits    what is known of each run's deployment, one row a trait; NULL is unknown

Several processes may write it at once. Nothing is counted twice: a run has one name.
"""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from kvgate.domain.kept import KeptRun, LedgerRow, State
from kvgate.errors import RecordError
from kvgate.store.finding import Digests, Found
from kvgate.store.run_directory import MANIFEST

LEDGER = "ledger.sqlite"
VERSION = 1
BUSY_S = 30.0
_RUN: TypeAdapter[KeptRun] = TypeAdapter(KeptRun)
_SCHEMA = (
    """CREATE TABLE runs (
        run_id TEXT PRIMARY KEY, place TEXT NOT NULL, started_at TEXT NOT NULL, verdict TEXT NOT NULL,
        policy TEXT NOT NULL, deployment TEXT NOT NULL, model TEXT NOT NULL, config_sha256 TEXT NOT NULL,
        kvgate_version TEXT NOT NULL, tiers TEXT NOT NULL, excluded_fault_rate REAL NOT NULL,
        fingerprint_sha256 TEXT NOT NULL, manifest_sha256 TEXT NOT NULL, history_sha256 TEXT NOT NULL,
        verdict_sha256 TEXT NOT NULL, state TEXT NOT NULL, why TEXT NOT NULL, stamp TEXT NOT NULL, run TEXT NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE traits (
        run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE, name TEXT NOT NULL, value TEXT,
        PRIMARY KEY (run_id, name)
    ) WITHOUT ROWID""",
    "CREATE INDEX runs_by_deployment ON runs (deployment, started_at)",
)


class Added(str, Enum):
    """What became of a run that was to be taken in.

    DIFFERENT: the ledger has a run of that name, elsewhere, whose files are others.
    """

    NEW = "new"
    KNOWN = "known"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class Mark:
    """What the ledger holds a run directory to: its digests, and sizes and times at the last look."""

    run_id: str
    digests: Digests
    state: State
    stamp: str


class Ledger:
    """The ledger of a folder, open. Make one with ``Ledger.of``."""

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self.folder = folder
        self._connection = connection

    @classmethod
    @contextlib.contextmanager
    def of(cls, folder: Path) -> "Iterator[Ledger]":
        """The ledger of a folder, made if there is none. Raises RecordError."""
        file = folder / LEDGER
        with _told(file):
            connection = sqlite3.connect(file, timeout=BUSY_S, isolation_level=None)
            try:
                _prepare(connection, file)
                yield cls(folder, connection)
            finally:
                connection.close()

    def add(self, found: Found) -> Added:
        """Take a run in, or note what became of it; each run once, whoever else writes. Raises RecordError."""
        with self._change():
            kept = self._mark("run_id = ?", found.run.run_id)
            if kept is None:
                self._write(found)
                return Added.NEW
            mark, place = kept
            here = place == self._place(found.place)
            changed = "" if mark.state is State.UNFINISHED else mark.digests.changed(found.digests)
            if changed and here:
                self._spoil(mark.run_id, changed, found.stamp)
            elif changed:
                return Added.DIFFERENT
            elif here or not (self.folder / place / MANIFEST).exists():
                self._write(found)
            # A copy elsewhere is no news as long as the run is where the ledger has it.
            return Added.KNOWN

    def marks(self) -> dict[str, Mark]:
        """What run directories are held to, by where they are."""
        return {place: mark for mark, place in self._marks("1 = 1", ())}

    def note(self, run_id: str, digests: Digests, stamp: str) -> None:
        """Hold a run's files to what they were; ``digests`` are those of now. Raises RecordError."""
        with self._change():
            kept = self._mark("run_id = ?", run_id)
            if kept is None or kept[0].state is State.UNFINISHED:
                return
            changed = kept[0].digests.changed(digests)
            if changed:
                self._spoil(run_id, changed, stamp)
            else:
                self._connection.execute("UPDATE runs SET stamp = ? WHERE run_id = ?", (stamp, run_id))

    def forget(self, run_id: str) -> None:
        """Take a run out. Raises RecordError."""
        with self._change():
            self._connection.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))

    def forget_all(self) -> None:
        """Take every run out, so that the ledger can be made again. Raises RecordError."""
        with self._change():
            self._connection.execute("DELETE FROM runs")

    def rows(self) -> tuple[LedgerRow, ...]:
        """Every run, oldest first; one whose directory is not there any more is GONE. Raises RecordError."""
        found: list[LedgerRow] = []
        query = "SELECT run, place, state, why FROM runs ORDER BY started_at, run_id"
        for content, place, state, why in self._connection.execute(query):
            try:
                run = _RUN.validate_json(content)
            except ValidationError:
                raise RecordError(
                    f"{self.folder / LEDGER}: holds a row that this kvgate cannot read; `kvgate history --rebuild` "
                    "makes it again from the run directories"
                ) from None
            where = self.folder / place
            if not (where / MANIFEST).exists():
                found.append(LedgerRow(run, str(where), State.GONE, "its directory is not there any more"))
            else:
                found.append(LedgerRow(run, str(where), State(state), why))
        return tuple(found)

    def _spoil(self, run_id: str, changed: str, stamp: str) -> None:
        why = f"{changed} changed after it was judged"
        state = State.EDITED.value
        self._connection.execute(
            "UPDATE runs SET state = ?, why = ?, stamp = ? WHERE run_id = ?", (state, why, stamp, run_id)
        )

    def _write(self, found: Found) -> None:
        run, digests = found.run, found.digests
        origin, name = run.origin, run.fingerprint.value
        row = (
            run.run_id,
            self._place(found.place),
            origin.started_at,
            run.verdict.value,
            run.policy.name.value,
            name("deployment.name") or "",
            name("deployment.model") or "",
            origin.config_sha256,
            origin.kvgate_version,
            " ".join(map(str, run.tiers)),
            run.excluded_fault_rate,
            run.fingerprint.sha256,
            digests.manifest,
            digests.history,
            digests.verdict,
            found.state.value,
            found.why,
            found.stamp,
            _RUN.dump_json(run).decode(),
        )
        self._connection.execute("DELETE FROM runs WHERE run_id = ?", (run.run_id,))
        self._connection.execute(f"INSERT INTO runs VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608
        traits = [(run.run_id, each.name, each.value) for each in run.fingerprint.traits]
        self._connection.executemany("INSERT INTO traits VALUES (?, ?, ?)", traits)

    def _mark(self, where: str, value: str) -> tuple[Mark, str] | None:
        return next(self._marks(where, (value,)), None)

    def _marks(self, where: str, values: tuple[str, ...]) -> Iterator[tuple[Mark, str]]:
        columns = "run_id, manifest_sha256, history_sha256, verdict_sha256, state, stamp, place"
        query = f"SELECT {columns} FROM runs WHERE {where}"  # noqa: S608 - the conditions stand above
        for run_id, manifest, history, verdict, state, stamp, place in self._connection.execute(query, values):
            yield Mark(run_id, Digests(manifest, history, verdict), State(state), stamp), place

    def _place(self, path: Path) -> str:
        """Where a run is, seen from the ledger where it lies below it: the folder may be moved as a whole."""
        whole, folder = path.resolve(), self.folder.resolve()
        return str(whole.relative_to(folder)) if whole.is_relative_to(folder) else str(whole)

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        """One change, seen by others whole or not at all; it waits for theirs."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def discard(folder: Path) -> None:
    """Take away a file that is no ledger any more. Raises RecordError."""
    for name in (LEDGER, f"{LEDGER}-wal", f"{LEDGER}-shm"):
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise RecordError(f"{folder / name}: cannot be taken away ({error.strerror}); do it by hand") from None


def _prepare(connection: sqlite3.Connection, file: Path) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")
    if _version(connection) == VERSION:
        return
    _write_ahead(connection)
    connection.execute("BEGIN IMMEDIATE")
    version = _version(connection)
    if version > VERSION:
        connection.execute("ROLLBACK")
        raise RecordError(
            f"{file}: the ledger has version {version}, this kvgate knows {VERSION}; use the newer kvgate, or move the "
            "file away: it is made again from the run directories"
        )
    if version < VERSION:
        # An older index is not carried over: the run directories have it all.
        connection.execute("DROP TABLE IF EXISTS traits")
        connection.execute("DROP TABLE IF EXISTS runs")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Turn write-ahead logging on. SQLite does not wait for others here, whatever its time limit."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextlib.contextmanager
def _told(file: Path) -> Iterator[None]:
    """What SQLite says, as a sentence."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise RecordError(
            f"{file}: the ledger cannot be used ({error}); see that its folder exists on a local disk, has room, and "
            "that you may write to it"
        ) from None
    except sqlite3.DatabaseError as error:
        raise RecordError(
            f"{file}: is no ledger ({error}); `kvgate history --rebuild` makes it again from the run directories"
        ) from None
