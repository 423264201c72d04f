"""Files that a record is made of: documents written whole or not at all, and lines that are only ever added."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from kvgate.errors import RecordError

T = TypeVar("T")


class Lines:
    """A file that JSON lines are added to; each has left the process when ``add`` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)

    def add(self, line: bytes) -> None:
        """Add one line. Raises RecordError if it cannot be written."""
        try:
            self._file.write(line + b"\n")
        except OSError as error:
            raise unwritable(self._path, error) from None

    def close(self) -> None:
        """Close the file, after making sure it is on disk. Raises RecordError."""
        try:
            os.fsync(self._file.fileno())
            self._file.close()
        except OSError as error:
            raise unwritable(self._path, error) from None


def read_lines(file: Path, adapter: TypeAdapter[T], what: str) -> Iterator[T]:
    """The lines of a file, oldest first. A last line that was cut off by a kill is passed over.

    Raises RecordError for a broken line anywhere else; ``what`` says what each of them is.
    """
    try:
        handle = file.open("rb")
    except OSError as error:
        raise RecordError(f"{file}: cannot be read ({error.strerror}); it holds all that was recorded") from None
    with handle:
        for number, line in enumerate(handle, start=1):
            try:
                yield adapter.validate_json(line)
            except ValidationError as error:
                if not line.endswith(b"\n"):
                    return
                first = error.errors(include_url=False)[0]
                raise RecordError(f"{file}:{number}: not {what}: {first['msg']}") from None


def read_document(file: Path, adapter: TypeAdapter[T], form: str, names: tuple[str, str, str]) -> T:
    """The document in a directory. Raises RecordError.

    ``form`` is its format; ``names`` are what the directory is called, what the document is, and the command that makes
    them.
    """
    kind, what, command = names
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        missing = f"is no {kind}" if file.parent.is_dir() else "does not exist"
        raise RecordError(
            f"{file.parent}: {missing} (no {file.name}); give a directory that `{command}` made"
        ) from None
    except OSError as error:
        raise RecordError(f"{file}: cannot be read ({error.strerror}); give a directory you may read") from None
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        found = _format_of(content)
        if found is not None and found != form:
            raise RecordError(f"{file}: the {kind} has format {found!r}, this kvgate reads {form!r}") from None
        first = error.errors(include_url=False)[0]
        where = "".join(f"{part}: " for part in [".".join(map(str, first["loc"]))] if part)
        raise RecordError(f"{file}: not a {what} of this version: {where}{first['msg']}") from None


def _format_of(content: bytes) -> str | None:
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


def unwritable(file: Path, error: OSError) -> RecordError:
    """What to raise where a record cannot be written any further."""
    return RecordError(f"{file}: cannot be written ({error.strerror}); what came before is kept and can be judged")
