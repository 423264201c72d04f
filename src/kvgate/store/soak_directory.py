"""A soak as a directory: one line a round, and the run directories of the rounds, within a bound.

soak.jsonl       one round a line, flushed as it ends; never shortened
RUN/             a round's run directory, complete; those that passed are dropped, oldest first, above the bound
"""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from kvgate.domain.soak import SoakRound
from kvgate.domain.verdict import Verdict
from kvgate.errors import ConfigError
from kvgate.store.records import Lines, read_lines

ROUNDS = "soak.jsonl"
_ROUND: TypeAdapter[SoakRound] = TypeAdapter(SoakRound)


class SoakDirectory:
    """The directory of a soak that goes on. ``bound`` is how many bytes its rounds may take."""

    def __init__(self, path: Path, bound: int) -> None:
        self.path = path
        self._bound = bound
        self._sizes: dict[str, int] = {}
        self._passed: list[str] = []

    @classmethod
    def create(cls, path: Path, bound: int) -> "SoakDirectory":
        """Make the directory. Raises ConfigError."""
        try:
            path.mkdir(parents=True)
            (path / ROUNDS).touch(exist_ok=False)
        except OSError as error:
            raise ConfigError(
                f"{path}: the soak's directory cannot be made ({error.strerror}); set output.directory to a folder you "
                "may write to"
            ) from None
        return cls(path, bound)

    def add(self, ended: SoakRound) -> bool:
        """Take in a round, drop older ones that passed where room is needed; whether the rest is within the bound.

        Raises RecordError if the round cannot be written down.
        """
        lines = Lines(self.path / ROUNDS)
        lines.add(_ROUND.dump_json(ended))
        lines.close()
        self._sizes[ended.run_id] = _size(self.path / ended.run_id)
        self._passed += [ended.run_id] if ended.verdict is Verdict.PASS else []
        while self._passed and sum(self._sizes.values()) > self._bound:
            oldest = self._passed.pop(0)
            shutil.rmtree(self.path / oldest, ignore_errors=True)
            # What could not be dropped still takes room.
            self._sizes[oldest] = _size(self.path / oldest)
        return sum(self._sizes.values()) <= self._bound


def _size(folder: Path) -> int:
    """Bytes that a folder's files take."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def read_rounds(path: Path) -> Iterator[SoakRound]:
    """The rounds of a soak, oldest first; a last line cut off by a kill is passed over. Raises RecordError."""
    for found in read_lines(path / ROUNDS, _ROUND, "a round of a soak"):
        yield replace(found, kept=(path / found.run_id).is_dir())
