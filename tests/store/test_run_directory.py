"""A run as a directory: what is written can be read again, and what was damaged is told."""

import json
import shutil
from pathlib import Path

import pytest

from kvgate.domain.counters import Counter, Counters, Reading
from kvgate.domain.history import (
    CacheDropped,
    CountersRead,
    DropOutcome,
    Entry,
    HookRan,
    Moment,
    ProbeAnswered,
    ProbeSent,
    RunCompleted,
    RunStopped,
    Waited,
)
from kvgate.domain.observation import Observation, Outcome, Timing, Usage
from kvgate.domain.probe import Arm, Probe
from kvgate.domain.reasons import Problem, Reason
from kvgate.errors import ConfigError, RecordError
from kvgate.store.run_directory import RunDirectory, read_history, read_manifest
from tests.cli.driving import config_file, kvgate, only_run
from tests.scripted.server import serving

ANSWER = Observation(
    outcome=Outcome.OK,
    status=200,
    token_ids=(1, 2),
    logprobs=(-0.1, None),
    top_ids=((1, 3), (2,)),
    top_logprobs=((-0.1, -1e-300), (None,)),
    text='令牌 "é" 😀\n\u2028\x00',
    finish_reason="length",
    usage=Usage(4, 2, 0),
    prompt_echoed=True,
    timing=Timing(0.1 + 0.2, 1 / 3),
    marks=("retried",),
)
ENTRIES: tuple[Entry, ...] = (
    CacheDropped(0.5, "a", "g", Arm.EXTERNAL, 1, DropOutcome.REFUSED, "success: false"),
    HookRan(1.0, "before_arm.external", "g", Arm.EXTERNAL, 0, ("sh", "-c", "true"), None, 0.25, "out\n"),
    CountersRead(1.5, "a", "g", Arm.COLD, 0, Moment.BEFORE, None, "HTTP 404"),
    CountersRead(2.0, "a", "g", Arm.COLD, 0, Moment.AFTER, Counters((Reading("1", Counter.LOCAL, 1e15),), 1.7e9)),
    ProbeSent(2.5, Probe("g.cold.0", "g", Arm.COLD, 0, "a", None, 64, 16, "00")),
    ProbeAnswered(3.0, "g.cold.0", ANSWER),
    ProbeAnswered(3.0, "g.cold.1", Observation(Outcome.LOST, detail="no answer")),
    Waited(3.5, 0.1, "asynchronous puts"),
    RunStopped(4.0, Problem(Reason.INTERRUPTED, "stopped by the user")),
    RunCompleted(4.5),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run's directory; not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    with serving() as server:
        assert 0 == kvgate("run", "-q", "-c", config_file(folder, server)).code
    return only_run(folder)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of a real run's directory."""
    return Path(shutil.copytree(finished, tmp_path / finished.name))


def test_every_kind_of_entry_is_read_as_it_was_written(finished: Path, tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, read_manifest(finished))
    for entry in ENTRIES:
        directory.append(entry)
    directory.close()
    assert ENTRIES == tuple(read_history(directory.path))


def test_every_entry_is_on_disk_when_append_returns(finished: Path, tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, read_manifest(finished))
    for count, entry in enumerate(ENTRIES, start=1):
        directory.append(entry)
        assert count == len(list(read_history(directory.path)))
    directory.close()


def test_a_manifest_is_read_as_it_was_written(finished: Path, tmp_path: Path) -> None:
    manifest = read_manifest(finished)
    directory = RunDirectory.create(tmp_path, manifest)
    directory.close()
    assert manifest == read_manifest(directory.path)
    assert finished.name == manifest.run_id
    assert (finished / "manifest.json").read_bytes() == (directory.path / "manifest.json").read_bytes()


def test_a_real_history_is_read_and_written_again_byte_for_byte(finished: Path, tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path, read_manifest(finished))
    for entry in read_history(finished):
        directory.append(entry)
    directory.close()
    assert (finished / "history.jsonl").read_bytes() == (directory.path / "history.jsonl").read_bytes()


def test_nothing_is_left_half_written(finished: Path) -> None:
    assert [] == list(finished.glob("**/*.partial"))


def test_a_run_of_the_same_name_is_never_written_over(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be made.*output\.directory"):
        RunDirectory.create(run.parent, read_manifest(run))


def test_a_folder_that_is_a_file_is_a_configuration_error(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"output\.directory"):
        RunDirectory.create(tmp_path / "file", read_manifest(run))


# -- damage ----------------------------------------------------------------------------------------------------
def test_a_history_cut_off_anywhere_is_readable(run: Path) -> None:
    """A kill can end the file after any byte; only the last entry may be missing."""
    file = run / "history.jsonl"
    whole, entries = file.read_bytes(), list(read_history(run))
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    cuts = range(ends[4], ends[6] + 1)
    for cut in [0, 1, *cuts]:
        file.write_bytes(whole[:cut])
        seen = list(read_history(run))
        assert entries[: len(seen)] == seen
        assert sum(1 for end in ends if end <= cut) <= len(seen)


def test_a_run_cut_off_is_judged(run: Path) -> None:
    (run / "verdict.json").unlink()
    file = run / "history.jsonl"
    file.write_bytes(file.read_bytes()[:-700])
    judged = kvgate("judge", run)
    assert 3 == judged.code
    assert "INTERRUPTED" in judged.out


@pytest.mark.parametrize("broken", [b"{", b"", b"[]", b'{"kind":"unknown","at":1}', b'{"kind":"waited"}', b"\xff\xfe"])
def test_a_broken_line_in_the_middle_is_an_error_with_its_place(run: Path, broken: bytes) -> None:
    file = run / "history.jsonl"
    lines = file.read_bytes().split(b"\n")
    lines[4] = broken
    file.write_bytes(b"\n".join(lines))
    with pytest.raises(RecordError, match=rf"{file}:5: not a history entry") as raised:
        list(read_history(run))
    assert "\n" not in str(raised.value)
    assert 2 == kvgate("judge", run).code


def test_a_missing_history_is_an_error(run: Path) -> None:
    (run / "history.jsonl").unlink()
    with pytest.raises(RecordError, match=r"history\.jsonl: cannot be read"):
        list(read_history(run))


def test_a_manifest_of_another_version_is_named(run: Path) -> None:
    file = run / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": "kvgate.run/99"}))
    with pytest.raises(RecordError, match=r"format 'kvgate.run/99', this kvgate reads 'kvgate.run/1'"):
        read_manifest(run)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 7}', '{"format": "kvgate.run/1"}'])
def test_a_broken_manifest_is_a_sentence(run: Path, content: str) -> None:
    (run / "manifest.json").write_text(content)
    with pytest.raises(RecordError, match=r"manifest\.json: ") as raised:
        read_manifest(run)
    assert "\n" not in str(raised.value)
    assert ": :" not in str(raised.value)
