"""What an engine's log says of a request: a source of evidence beside the counters, never instead of them."""

from dataclasses import dataclass
from enum import Enum

from kvgate.domain.reasons import Problem, Reason

# In the name of every request that kvgate sends.
NAMED = "kvgate-"


class LogWord(str, Enum):
    """What a known line tells."""

    LOOKED_UP = "looked_up"
    RETRIEVED = "retrieved"
    LOAD_FAILED = "load_failed"


@dataclass(frozen=True, slots=True)
class LogLine:
    """One known line, clipped. ``request`` is the request it names, '' if it names none.

    ``hit`` are the prompt tokens the store was said to hold, ``load`` those that were to be loaded, or that were.
    """

    word: LogWord
    text: str
    request: str = ""
    hit: int | None = None
    load: int | None = None


@dataclass(frozen=True, slots=True)
class Logged:
    """What the lines around one probe come to. ``loads`` is None where no line speaks of this request."""

    loads: int | None = None
    problems: tuple[Problem, ...] = ()


def read_lines(lines: tuple[LogLine, ...], request_id: str, external: int | None) -> Logged:
    """What the lines written while a probe ran say of it, held against the external tokens the engine counts.

    Engines say the same of one request many times over, and some lines come late, so lines are told apart by request.
    Behind a proxy requests have other names: then all lines count if they name one request only, and none that kvgate
    named, which would be another probe's. Failures without a name always count.
    """
    mine = _of(lines, request_id)
    failures = (line for line in lines if line.word is LogWord.LOAD_FAILED and (not line.request or line in mine))
    failed = next(failures, None)
    problems = [Problem(Reason.LOAD_FAILED, f"the log says: {failed.text}")] if failed is not None else []
    told = [line for line in mine if line.load is not None]
    if not told:
        return Logged(None, tuple(problems))
    # What was in fact retrieved, if the engine says so, else what it last meant to load.
    last = told[-1]
    if external is not None and bool(last.load) != bool(external):
        detail = f"the counters show {external} external tokens, the log says: {last.text}"
        problems.append(Problem(Reason.SENSOR_CONFLICT, detail))
    return Logged(last.load, tuple(problems))


def _of(lines: tuple[LogLine, ...], request_id: str) -> list[LogLine]:
    named = [line for line in lines if request_id in line.request]
    if named:
        return named
    requests = {line.request for line in lines if line.request}
    return list(lines) if len(requests) == 1 and not any(NAMED in name for name in requests) else []
