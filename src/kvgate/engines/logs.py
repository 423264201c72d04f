"""The log file of an engine, read beside each request: known lines only, kept as what they say."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from kvgate.domain.log import LogLine, LogWord
from kvgate.engines.words import clip
from kvgate.ports import LogReading

# More than this between two requests is not read: an engine that logs so much is not quiet.
MOST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Pattern:
    word: LogWord
    pattern: re.Pattern[str]


def _pattern(word: LogWord, text: str) -> _Pattern:
    return _Pattern(word, re.compile(text))


# Named groups: request, hit, load. Sources: vllm-ascend pool_scheduler and pool_worker 0.23 to 0.26, LMCache's vLLM
# adapter, vLLM's scheduler; the swallowed failures of facts/vllm-ascend.md 1.6 and 1.7.
_PATTERNS = (
    _pattern(
        LogWord.LOOKED_UP,
        r"Reqid: (?P<request>[^,\s]+), .*?(?:kvpool|LMCache) hit tokens: (?P<hit>\d+).*?need to load: (?P<load>\d+)",
    ),
    _pattern(LogWord.RETRIEVED, r"\[req_id=(?P<request>[^\]\s]+)\] Retrieved (?P<load>\d+) out of (?P<hit>\d+)"),
    _pattern(LogWord.LOAD_FAILED, r"KV load failed for hybrid request (?P<request>\S+?)\.?(?:\s|$)"),
    _pattern(LogWord.LOAD_FAILED, r"Failed to get .* keys out of"),
    _pattern(LogWord.LOAD_FAILED, r"Remote connection failed in lookup"),
    _pattern(LogWord.LOAD_FAILED, r"Mooncake transfer failed, ret:"),
    _pattern(LogWord.LOAD_FAILED, r"Failing .* request\(s\) due to KV load failure"),
    _pattern(LogWord.LOAD_FAILED, r"Recovered from KV load failure"),
    _pattern(LogWord.LOAD_FAILED, r"lease_expired_before_data_transfer_completed"),
)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m|\^\[\[[0-9;]*m")


def known_line(text: str) -> LogLine | None:
    """What one line of a log says; None if it is none of the known ones."""
    plain = _ESCAPES.sub("", text)
    for each in _PATTERNS:
        found = each.pattern.search(plain)
        if found is not None:
            groups = found.groupdict()
            hit, load = groups.get("hit"), groups.get("load")
            return LogLine(
                each.word,
                clip(plain[found.start() :].strip()),
                groups.get("request") or "",
                int(hit) if hit else None,
                int(load) if load else None,
            )
    return None


class LogFile:
    """A file that an engine appends to. Rotation and truncation are followed: a new file is read from its start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._inode: int | None = None

    def skip(self) -> None:
        """Pass over everything written so far."""
        try:
            status = self._path.stat()
        except OSError:
            self._at, self._inode = 0, None
            return
        self._at, self._inode = status.st_size, status.st_ino

    def read(self) -> LogReading:
        """The known lines written since the last ``skip``; read again, the same lines and those that came after."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                start = self._at if status.st_ino == self._inode and status.st_size >= self._at else 0
                file.seek(start)
                content = file.read(MOST_BYTES + 1)
        except OSError as error:
            return LogReading(None, f"{self._path}: {error.strerror}")
        if len(content) > MOST_BYTES:
            return LogReading(None, f"{self._path}: more than {MOST_BYTES} bytes were written beside one request")
        found = (known_line(line) for line in content.decode("utf-8", "replace").splitlines())
        return LogReading(tuple(line for line in found if line is not None))
