"""The engine's log as a source: known lines, and a file that grows, rotates and holds anything."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.domain.log import LogWord
from kvgate.engines import logs
from kvgate.engines.logs import LogFile, known_line

PREFIX = "\x1b[0;36m(EngineCore_DP0 pid=10773)\x1b[0;0m INFO 02-03 11:27:41 [pool_scheduler.py:85] "
LOOKED_UP = "Reqid: cmpl-kvgate-r-g.external.0-0, Total tokens 1182, kvpool hit tokens: 1024, need to load: 1024"


@pytest.mark.parametrize(("line", "word", "request_id", "hit", "load"), [
    (PREFIX + LOOKED_UP, LogWord.LOOKED_UP, "cmpl-kvgate-r-g.external.0-0", 1024, 1024),
    ("Reqid: r1, Total tokens 9, kvpool hit tokens: 65536, local prefix cache hit tokens: 65536, need to load: 0",
     LogWord.LOOKED_UP, "r1", 65536, 0),
    ("Reqid: r2, Total tokens 9, Inference Engine computed tokens: 0, LMCache hit tokens: 512, need to load: 512",
     LogWord.LOOKED_UP, "r2", 512, 512),
    ("[req_id=r3] Retrieved 511 out of 512 required tokens", LogWord.RETRIEVED, "r3", 512, 511),
    ("KV load failed for hybrid request r4. Skip invalid-block fallback to avoid scheduler crash. failed_blocks=[1]",
     LogWord.LOAD_FAILED, "r4", None, None),
    ("Failed to get 3 keys out of 9. error_codes=[-704]", LogWord.LOAD_FAILED, "", None, None),
    ("ERROR Remote connection failed in lookup: timed out", LogWord.LOAD_FAILED, "", None, None),
    ("Failing 1 request(s) due to KV load failure", LogWord.LOAD_FAILED, "", None, None),
])  # fmt: skip
def test_known_lines(line: str, word: LogWord, request_id: str, hit: int | None, load: int | None) -> None:
    found = known_line(line)
    assert found is not None
    assert (word, request_id, hit, load) == (found.word, found.request, found.hit, found.load)
    assert "\x1b" not in found.text


@pytest.mark.parametrize("line", [
    "",
    "Prefix cache hit rate: 12.0%, External prefix cache hit rate: 3.0%",
    "First DSV4(compress) request failure is expected. This is normal behavior.",
    "Reqid: r, Total tokens 9",
    "Failed to put 3 keys out of 9. error_codes=[-800]",
])  # fmt: skip
def test_other_lines_say_nothing_of_a_load(line: str) -> None:
    assert known_line(line) is None


@given(st.text(max_size=300))
def test_no_line_breaks_the_reader(line: str) -> None:
    known_line(line)
    known_line(LOOKED_UP + line)


def test_only_what_was_written_since_is_read(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_text(LOOKED_UP.replace("1024", "1") + "\n")
    log = LogFile(path)
    log.skip()
    assert () == log.read().lines
    with path.open("ab") as file:
        file.write(b"\xff\x00 noise\n" + LOOKED_UP.encode() + b"\n")
    assert [1024] == [line.load for line in log.read().lines or ()]
    assert [1024] == [line.load for line in log.read().lines or ()]
    log.skip()
    assert () == log.read().lines


@pytest.mark.parametrize("how", ["replaced", "replaced by a longer one", "truncated"])
def test_a_rotated_file_is_read_from_its_start(tmp_path: Path, how: str) -> None:
    path = tmp_path / "engine.log"
    path.write_text("x" * 10_000)
    log = LogFile(path)
    log.skip()
    if how != "truncated":
        path.rename(tmp_path / "engine.log.1")
    path.write_text(LOOKED_UP + "\n" + "x" * (20_000 if "longer" in how else 0))
    assert [1024] == [line.load for line in log.read().lines or ()]


def test_a_file_that_is_gone_or_floods_is_not_read_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "engine.log"
    gone = LogFile(path).read()
    assert gone.lines is None
    assert "No such file" in gone.detail
    monkeypatch.setattr(logs, "MOST_BYTES", 1000)
    path.write_text(LOOKED_UP * 20)
    flood = LogFile(path).read()
    assert flood.lines is None
    assert "1000 bytes" in flood.detail
