"""Keeping the ledger in step with run directories: taking in new ones, those of others, and letting old ones go."""

import os
import secrets
import shutil
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from kvgate.domain.kept import Imported, Imports, LedgerRow, State, Unreadable
from kvgate.domain.verdict import Verdict
from kvgate.errors import ConfigError, RecordError
from kvgate.store.finding import Digests, Found, digests_of, find, is_name, runs_under, stamp_of
from kvgate.store.ledger import Added, Ledger
from kvgate.store.run_directory import HISTORY, MANIFEST, PROMPTS, VERDICT

TAKEN_AWAY, COMING = ".pruned-", ".importing-"
DAY_S = 86_400.0


def sync(ledger: Ledger, version: str, thorough: bool = False) -> tuple[Unreadable, ...]:
    """Take in what lies under the ledger's folder and is not in it; hold the rest to what it was.

    Files whose size and time of change are what they were are only read again if ``thorough``. Returns what could not
    be read.
    """
    marks, broken = ledger.marks(), list[Unreadable]()
    inside = {str(path.relative_to(ledger.folder)): path for path in runs_under(ledger.folder)}
    outside = [place for place in marks if Path(place).is_absolute()]
    elsewhere = {place: Path(place) for place in outside if (Path(place) / MANIFEST).exists()}
    for place, path in (inside | elsewhere).items():
        mark = marks.get(place)
        try:
            if mark is None or mark.state is State.UNFINISHED:
                ledger.add(find(path, version))
                continue
            stamp = stamp_of(path)
            if thorough or stamp != mark.stamp:
                ledger.note(mark.run_id, _digests_or_none(path), stamp)
        except RecordError as error:
            broken.append(Unreadable(str(path), str(error)))
    return tuple(broken)


def _digests_or_none(path: Path) -> Digests:
    """The digests of a run directory; none at all where a file is missing, which is a change like any other."""
    try:
        return digests_of(path)
    except RecordError:
        return Digests("", "", "")


def take_in(ledger: Ledger, folders: tuple[Path, ...], version: str, copies: bool) -> Imports:
    """Take in run directories from elsewhere, at any depth; copied into the ledger's folder, or left where they are."""
    taken, known, broken = list[Imported](), list[Imported](), list[Unreadable]()
    for folder in folders:
        paths = list(runs_under(folder))
        if not paths:
            broken.append(Unreadable(str(folder), _nothing_in(folder)))
        for path in paths:
            try:
                found = find(path, version)
                added, place = _bring(ledger, found, version, copies)
            except RecordError as error:
                broken.append(Unreadable(str(path), str(error)))
                continue
            if added is Added.DIFFERENT:
                why = f"run {found.run.run_id} is known already with other files; one of the two was edited"
                broken.append(Unreadable(str(path), why))
            else:
                into = taken if added is Added.NEW else known
                into.append(Imported(found.run.run_id, str(path), str(place)))
    return Imports(tuple(taken), tuple(known), tuple(broken))


def _nothing_in(folder: Path) -> str:
    return "holds no run directory" if folder.is_dir() else "is no folder"


def _bring(ledger: Ledger, found: Found, version: str, copies: bool) -> tuple[Added, Path]:
    """Take one run in, with a copy of its directory where one is asked for and there is none."""
    inside = found.place.resolve().is_relative_to(ledger.folder.resolve())
    known = next((row for row in ledger.rows() if row.run.run_id == found.run.run_id), None)
    if not copies or inside or (known is not None and known.state is not State.GONE):
        return ledger.add(found), Path(known.place) if known is not None else found.place
    target = ledger.folder / found.run.run_id
    if not target.exists():
        _copy(found.place, target)
    # What is there now is taken in, whoever made it, and what was found is held against it.
    added = ledger.add(find(target, version))
    return (ledger.add(found), target) if added is Added.KNOWN else (added, target)


def _copy(source: Path, target: Path) -> None:
    """Copy what a run directory is made of, whole or not at all; links and other files are left out."""
    for file in (source / MANIFEST, source / HISTORY):
        if file.is_symlink() or not file.is_file():
            raise RecordError(f"{file}: is no plain file, so it is not copied; put the file itself there")
    partial = target.parent / f"{COMING}{target.name}-{secrets.token_hex(4)}"
    try:
        partial.mkdir(parents=True)
        for name in (MANIFEST, HISTORY, VERDICT):
            _copy_file(source / name, partial / name)
        prompts = source / PROMPTS
        if prompts.is_dir() and not prompts.is_symlink():
            (partial / PROMPTS).mkdir()
            for file in sorted(prompts.glob("*.json")):
                _copy_file(file, partial / PROMPTS / file.name)
        partial.rename(target)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        if target.is_dir():
            # Another import was sooner.
            return
        raise RecordError(f"{target}: cannot be made ({error.strerror}); make room, or import with --index") from None


def _copy_file(source: Path, target: Path) -> None:
    if source.is_file() and not source.is_symlink():
        shutil.copy2(source, target)


def old_runs(ledger: Ledger, days: float, keep_failures: bool) -> tuple[LedgerRow, ...]:
    """Runs that began more than so many days ago; one that has no verdict counts from the last thing it wrote."""
    return tuple(
        row
        for row in ledger.rows()
        if _days_old(row) > days and not (keep_failures and row.run.verdict is Verdict.FAIL)
    )


def _days_old(row: LedgerRow) -> float:
    began, wrote = seconds_of(row.run.origin.started_at), 0.0
    with suppress(OSError):
        wrote = (Path(row.place) / HISTORY).stat().st_mtime
    if began is None or row.state is State.UNFINISHED:
        began = max(began or 0.0, wrote)
    return (time.time() - began) / DAY_S


def seconds_of(moment: str) -> float | None:
    """Seconds since 1970 of an ISO 8601 time, in UTC unless it says otherwise; None for text that is none."""
    try:
        found = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    except ValueError:
        return None
    return (found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)).timestamp()


def take_away(ledger: Ledger, rows: tuple[LedgerRow, ...]) -> None:
    """Delete run directories that lie under the ledger's folder, and take all of these runs out of it.

    A directory is set aside in one step before it is deleted, so that no half of one is ever taken for a run.
    """
    inside = ledger.folder.resolve()
    for row in rows:
        path = Path(row.place)
        if row.state is not State.GONE and path.resolve().is_relative_to(inside) and is_name(row.run.run_id):
            aside = path.parent / f"{TAKEN_AWAY}{row.run.run_id}-{secrets.token_hex(4)}"
            try:
                path.rename(aside)
            except OSError as error:
                raise ConfigError(f"{path}: cannot be deleted ({error.strerror}); do it by hand") from None
        ledger.forget(row.run.run_id)
    sweep(ledger.folder)


def sweep(folder: Path) -> None:
    """Delete what an earlier prune, or an import of long ago, set aside and did not come to delete."""
    for name, folders, _ in os.walk(folder):
        for each in [each for each in folders if each.startswith((TAKEN_AWAY, COMING))]:
            path = Path(name) / each
            if each.startswith(TAKEN_AWAY) or time.time() - path.stat().st_mtime > DAY_S:
                shutil.rmtree(path, ignore_errors=True)
        folders[:] = [each for each in folders if not each.startswith(".")]
