"""What a server says, made fit to read and to write down: JSON of any depth, error objects of every shape, one line."""

import json
from collections.abc import Mapping

from pydantic_core import from_json

LONGEST_DETAIL = 300
LONGEST_LOOKED_AT = 1024


class AnswerError(ValueError):
    """The reply has a shape kvgate cannot read."""


class EmptyAnswerError(AnswerError):
    """The reply says HTTP 200 and nothing else."""

    def __init__(self) -> None:
        super().__init__("it is empty, as where a proxy swallows an error")


class ServerError(Exception):
    """The reply is an error object, also when it comes inside a stream with HTTP 200."""


def parse_json(text: str) -> object:
    """Parse JSON quickly; the standard parser takes what the quick one refuses, such as half a surrogate pair.

    Raises ValueError, also where brackets are nested deeper than Python can follow.
    """
    try:
        return from_json(text)
    except ValueError:
        try:
            value: object = json.loads(text)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        return value


def error_text(body: object) -> str | None:
    """The message of an error object: nested, flat, a list of complaints, or a bare string; None if it is none."""
    if isinstance(body, str):
        return clip(body)
    if not isinstance(body, Mapping):
        return None
    error = body.get("error", body.get("detail"))
    answers = "choices" in body or "usage" in body
    if error is None and not answers:
        error = body.get("message")
    if error is None or (answers and not error):
        # Some gateways send "error": "" or false with every good chunk.
        return None
    if isinstance(error, Mapping):
        error = error.get("message") or dict(error)
    if isinstance(error, list):
        error = "; ".join(str(each.get("msg", each)) if isinstance(each, Mapping) else str(each) for each in error)
    return clip(str(error))


def clean(text: str) -> str:
    """Text that can be written and shown: half characters become replacement marks.

    Gateways that cut strings by UTF-16 units send lone surrogates, which no file can hold.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clip(text: str) -> str:
    """One line of bounded length, without control characters (a server's words must not steer a terminal)."""
    # Cut first: an error page may have megabytes, and each character is looked at.
    shown = clean(text[:LONGEST_LOOKED_AT])
    line = " ".join("".join(char if char.isprintable() else " " for char in shown).split())
    return line if len(line) <= LONGEST_DETAIL else line[: LONGEST_DETAIL - 3] + "..."
