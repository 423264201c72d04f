"""A ladder as a directory: one line a rung, each rung's run directory, and the logs of bringing it up.

rungs.jsonl      one rung a line, flushed as it ends
NN-NAME.log      what its commands printed; NN-NAME-PROCESS.log what each process did
RUN/             a rung's run directory, complete
"""

import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter

from kvgate.domain.rungs import RungTried
from kvgate.errors import ConfigError
from kvgate.store.records import Lines, read_lines

RUNGS = "rungs.jsonl"
_RUNG: TypeAdapter[RungTried] = TypeAdapter(RungTried)


class LadderDirectory:
    """The directory of a ladder that is being tried."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path) -> "LadderDirectory":
        """Make the directory. Raises ConfigError."""
        try:
            path.mkdir(parents=True)
            (path / RUNGS).touch(exist_ok=False)
        except OSError as error:
            raise ConfigError(
                f"{path}: the ladder's directory cannot be made ({error.strerror}); set output.directory to a folder "
                "you may write to"
            ) from None
        return cls(path)

    def log_of(self, number: int, name: str) -> Path:
        """Where the output of a rung's commands goes; ``number`` is how many were tried before."""
        return self.path / f"{number:02}-{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.log"

    def add(self, tried: RungTried) -> None:
        """Take in a rung. Raises RecordError if it cannot be written down."""
        lines = Lines(self.path / RUNGS)
        lines.add(_RUNG.dump_json(tried))
        lines.close()


def read_rungs(path: Path) -> Iterator[RungTried]:
    """The rungs of a ladder in the order in which they were tried; a last line cut off is passed over. Raises
    RecordError."""
    yield from read_lines(path / RUNGS, _RUNG, "a rung of a ladder")
