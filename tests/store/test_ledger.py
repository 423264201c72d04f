"""The ledger: an index that several may write, that survives a kill, and that run directories make again."""

import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pytest

from kvgate import __version__
from kvgate.domain.kept import State
from kvgate.domain.verdict import Verdict
from kvgate.errors import RecordError
from kvgate.store.keeping import old_runs, sync, take_away, take_in
from kvgate.store.ledger import LEDGER, VERSION, Added, Ledger
from tests.cli.driving import config_file, kvgate, only_run
from tests.scripted.server import serving
from tests.store.recording import copied, found_in

WRITERS, EACH = 4, 12
# Of each kind; 200 before a release: KVGATE_TEST_KILLS=200 scripts/test tests/store/test_ledger.py -k killed
KILLS = int(os.environ.get("KVGATE_TEST_KILLS", "24"))
# Processes that are forked off one that has everything imported begin at once.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.store.test_ledger"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run's directory; not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    with serving() as server:
        gate = {"groups_per_tier": 1, "sentinel": False}
        assert 0 == kvgate("run", "-q", "-c", config_file(folder, server, gate=gate)).code
    return only_run(folder)


def names(ledger: Ledger) -> list[str]:
    return [row.run.run_id for row in ledger.rows()]


def test_a_run_is_in_it_once_however_often_it_is_added(finished: Path, tmp_path: Path) -> None:
    path = copied(finished, tmp_path, "r1")
    with Ledger.of(tmp_path) as ledger:
        assert [Added.NEW, Added.KNOWN, Added.KNOWN] == [ledger.add(found_in(path)) for _ in range(3)]
        assert () == sync(ledger, __version__)
        (row,) = ledger.rows()
    assert (Verdict.PASS, State.KEPT, str(path)) == (row.run.verdict, row.state, row.place)
    assert [(512, 1)] == sorted({(each.tier, each.groups) for each in row.run.clean})
    assert row.run.fingerprint.value("device") is None, "nobody told it"


def test_it_can_be_asked_by_plain_sql(finished: Path, tmp_path: Path) -> None:
    copied(finished, tmp_path, "r1")
    with Ledger.of(tmp_path) as ledger:
        sync(ledger, __version__)
    with sqlite3.connect(tmp_path / LEDGER) as plain:
        assert [("r1", "PASS", "d", "m", "512")] == plain.execute(
            "SELECT run_id, verdict, deployment, model, tiers FROM runs"
        ).fetchall()
        assert [(None,)] == plain.execute("SELECT value FROM traits WHERE name = 'device'").fetchall()
        assert [("wal",)] == plain.execute("PRAGMA journal_mode").fetchall()
        assert [(VERSION,)] == plain.execute("PRAGMA user_version").fetchall()
    plain.close()


def test_it_is_made_again_from_run_directories(finished: Path, tmp_path: Path) -> None:
    for number in range(3):
        copied(finished, tmp_path / "deep" / "er", f"r{number}")
    with Ledger.of(tmp_path) as ledger:
        sync(ledger, __version__)
        before = ledger.rows()
    (tmp_path / LEDGER).unlink()
    with Ledger.of(tmp_path) as ledger:
        assert () == ledger.rows()
        sync(ledger, __version__)
        assert before == ledger.rows()


def test_a_folder_may_be_moved_as_a_whole(finished: Path, tmp_path: Path) -> None:
    copied(finished, tmp_path / "here", "r1")
    with Ledger.of(tmp_path / "here") as ledger:
        sync(ledger, __version__)
    (tmp_path / "here").rename(tmp_path / "there")
    with Ledger.of(tmp_path / "there") as ledger:
        (row,) = ledger.rows()
    assert (State.KEPT, str(tmp_path / "there" / "r1")) == (row.state, row.place)


@pytest.mark.parametrize("name", ["manifest.json", "history.jsonl", "verdict.json"])
def test_a_file_that_was_changed_is_noticed_and_put_back_it_is_forgiven(
    finished: Path, tmp_path: Path, name: str
) -> None:
    path = copied(finished, tmp_path, "r1")
    whole = (path / name).read_bytes()
    with Ledger.of(tmp_path) as ledger:
        sync(ledger, __version__)
        (path / name).write_bytes(whole + b"\n")
        sync(ledger, __version__)
        (row,) = ledger.rows()
        assert (State.EDITED, f"{name} changed after it was judged") == (row.state, row.why)
        (path / name).write_bytes(whole)
        assert Added.KNOWN is ledger.add(found_in(path))
        assert [State.KEPT] == [each.state for each in ledger.rows()]


def test_a_change_that_hides_behind_size_and_time_is_found_by_a_thorough_look(finished: Path, tmp_path: Path) -> None:
    path = copied(finished, tmp_path, "r1")
    file = path / "history.jsonl"
    with Ledger.of(tmp_path) as ledger:
        sync(ledger, __version__)
        seen, content = file.stat(), file.read_bytes()
        file.write_bytes(content[:-2] + b" \n")
        os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        assert seen.st_size == file.stat().st_size
        sync(ledger, __version__)
        assert [State.KEPT] == [each.state for each in ledger.rows()], "the quick look"
        sync(ledger, __version__, thorough=True)
        assert [State.EDITED] == [each.state for each in ledger.rows()]


def test_a_verdict_that_its_history_does_not_give_is_noticed_at_first_sight(finished: Path, tmp_path: Path) -> None:
    path = copied(finished, tmp_path, "r1")
    text = (path / "verdict.json").read_text(encoding="utf-8")
    (path / "verdict.json").write_text(text.replace('"verdict": "PASS"', '"verdict": "FAIL"', 1), encoding="utf-8")
    with Ledger.of(tmp_path) as ledger:
        sync(ledger, __version__)
        (row,) = ledger.rows()
    assert (State.EDITED, Verdict.PASS) == (row.state, row.run.verdict), "what the judge says is what is kept"


def test_a_run_without_a_verdict_is_unfinished_until_it_has_one(finished: Path, tmp_path: Path) -> None:
    path = copied(finished, tmp_path, "r1")
    (path / "verdict.json").rename(tmp_path / "aside")
    lines = (path / "history.jsonl").read_bytes()
    (path / "history.jsonl").write_bytes(lines[: len(lines) // 2])
    with Ledger.of(tmp_path) as ledger:
        sync(ledger, __version__)
        (row,) = ledger.rows()
        assert (State.UNFINISHED, Verdict.INCONCLUSIVE) == (row.state, row.run.verdict)
        (path / "history.jsonl").write_bytes(lines)
        (tmp_path / "aside").rename(path / "verdict.json")
        sync(ledger, __version__)
        (row,) = ledger.rows()
        assert (State.KEPT, Verdict.PASS) == (row.state, row.run.verdict)


def test_a_run_whose_directory_is_gone_is_told_and_taken_back(finished: Path, tmp_path: Path) -> None:
    path = copied(finished, tmp_path, "r1")
    with Ledger.of(tmp_path) as ledger:
        sync(ledger, __version__)
        elsewhere = path.rename(tmp_path / "another")
        assert [State.GONE] == [row.state for row in ledger.rows()]
        sync(ledger, __version__)
        assert [(State.KEPT, str(elsewhere))] == [(row.state, row.place) for row in ledger.rows()]


def test_what_cannot_be_read_is_named_and_the_rest_is_taken_in(finished: Path, tmp_path: Path) -> None:
    copied(finished, tmp_path, "good")
    (copied(finished, tmp_path, "bad") / "manifest.json").write_text("{", encoding="utf-8")
    (copied(finished, tmp_path, "cut") / "manifest.json").unlink()
    (tmp_path / "other-tool").mkdir()
    (tmp_path / "other-tool" / "manifest.json").write_text('{"name": "an app"}', encoding="utf-8")
    with Ledger.of(tmp_path) as ledger:
        broken = sync(ledger, __version__)
        assert ["good"] == names(ledger)
    assert ["bad", "cut"] == [Path(each.place).name for each in broken]


def test_a_name_that_leads_out_of_the_folder_is_refused(finished: Path, tmp_path: Path) -> None:
    for name in ("../out", "/out", ".hidden", "a/b", ""):
        path = copied(finished, tmp_path / "from" / str(abs(hash(name))), "r1")
        text = (path / "manifest.json").read_text(encoding="utf-8")
        (path / "manifest.json").write_text(text.replace('"run_id": "r1"', f'"run_id": "{name}"'), encoding="utf-8")
        with pytest.raises(RecordError, match="is no name of a run"):
            found_in(path)


# -- the file itself -------------------------------------------------------------------------------------------
def test_a_ledger_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    with Ledger.of(tmp_path):
        pass
    with sqlite3.connect(tmp_path / LEDGER) as plain:
        plain.execute(f"PRAGMA user_version = {VERSION + 1}")
    plain.close()
    with pytest.raises(RecordError, match="use the newer kvgate"), Ledger.of(tmp_path):
        pass


def test_a_ledger_of_an_older_version_is_made_again(finished: Path, tmp_path: Path) -> None:
    copied(finished, tmp_path, "r1")
    with sqlite3.connect(tmp_path / LEDGER) as plain:
        plain.execute("CREATE TABLE runs (something TEXT)")
    plain.close()
    with Ledger.of(tmp_path) as ledger:
        sync(ledger, __version__)
        assert ["r1"] == names(ledger)


def test_a_file_that_is_no_ledger_is_told_and_made_again_on_demand(finished: Path, tmp_path: Path) -> None:
    copied(finished, tmp_path, "r1")
    (tmp_path / LEDGER).write_text("no database at all, but long enough to look at" * 100, encoding="utf-8")
    ended = kvgate("history", "--in", tmp_path)
    assert 2 == ended.code
    assert "`kvgate history --rebuild` makes it again" in ended.err
    ended = kvgate("history", "--in", tmp_path, "--rebuild")
    assert 0 == ended.code, ended.err
    assert "1 run in" in ended.out


def test_a_run_whose_ledger_cannot_be_written_is_kept_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "runs" / LEDGER).mkdir(parents=True)
    with serving() as server:
        ended = kvgate("run", "-q", "-c", config_file(tmp_path, server))
    assert 0 == ended.code
    assert 1 == len(ended.err.splitlines())
    assert "the run is kept" in ended.err
    assert (only_run(tmp_path) / "verdict.json").exists()


# -- several at once, and kills --------------------------------------------------------------------------------
def adding(folder: Path, start: int) -> None:
    """A process that takes in runs, half of which another takes in at the same time."""
    for number in range(start, start + EACH):
        with Ledger.of(folder) as ledger:
            ledger.add(found_in(folder / f"r{number:03d}"))


def test_several_writers_at_once_lose_nothing_and_double_nothing(finished: Path, tmp_path: Path) -> None:
    count = (WRITERS + 1) * EACH // 2
    for number in range(count):
        copied(finished, tmp_path, f"r{number:03d}")
    processes = [FORKS.Process(target=adding, args=(tmp_path, number * EACH // 2)) for number in range(WRITERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [0] * WRITERS == [process.exitcode for process in processes]
    with Ledger.of(tmp_path) as ledger:
        assert [f"r{number:03d}" for number in range(count)] == sorted(names(ledger))


def churning(source: Path, folder: Path, begun: Event) -> None:
    """A process that takes in, copies in, notes changes and takes away, until it is killed."""
    number = 0
    begun.set()
    while True:
        number += 1
        with Ledger.of(folder) as ledger:
            take_in(ledger, (source,), __version__, copies=True)
            sync(ledger, __version__, thorough=True)
            if number % 3 == 0:
                take_away(ledger, old_runs(ledger, -1.0, keep_failures=False)[:2])


def gating(config: Path, begun: Event) -> None:
    """A process that gates, once."""
    begun.set()
    kvgate("run", "-q", "-c", config)


@contextmanager
def begun(target: Callable[..., None], *argv: Path) -> Iterator[BaseProcess]:
    """A process that is at work, and killed at the end."""
    begun = FORKS.Event()
    process = FORKS.Process(target=target, args=(*argv, begun))
    process.start()
    assert begun.wait(60)
    try:
        yield process
    finally:
        process.kill()
        process.join(30)


def test_a_writer_killed_at_any_moment_leaves_everything_readable_and_nothing_doubled(
    finished: Path, tmp_path: Path
) -> None:
    source, folder = tmp_path / "source", tmp_path / "runs"
    folder.mkdir()
    for number in range(4):
        copied(finished, source / "deep", f"r{number}")
    draw, sizes = np.random.default_rng(7), set[int]()
    for _ in range(KILLS):
        with begun(churning, source, folder) as process:
            time.sleep(draw.uniform(0.0, 0.25))
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        with sqlite3.connect(folder / LEDGER) as plain:
            assert [("ok",)] == plain.execute("PRAGMA integrity_check").fetchall()
        plain.close()
        with Ledger.of(folder) as ledger:
            assert () == sync(ledger, __version__, thorough=True), "every run directory there is can be read"
            rows = ledger.rows()
        assert len(rows) == len({row.run.run_id for row in rows}) <= 4
        assert {State.KEPT, State.GONE} >= {row.state for row in rows}
        sizes.add(sum(row.state is State.KEPT for row in rows))
    assert len(sizes) > 1, "kills came at different moments"
    with Ledger.of(folder) as ledger:
        take_in(ledger, (source,), __version__, copies=True)
        assert [("r0", State.KEPT), ("r1", State.KEPT), ("r2", State.KEPT), ("r3", State.KEPT)] == sorted(
            (row.run.run_id, row.state) for row in ledger.rows()
        )


def test_a_run_killed_at_any_moment_leaves_a_record_that_is_read_and_counted_once(tmp_path: Path) -> None:
    draw, folder = np.random.default_rng(8), tmp_path / "runs"
    with serving() as server:
        config = config_file(tmp_path, server, gate={"groups_per_tier": 1, "sentinel": False})
        assert 0 == kvgate("run", "-q", "-c", config).code
        (first,) = folder.glob("*/history.jsonl")
        status = first.with_name("verdict.json").stat()
        whole = status.st_mtime - first.with_name("manifest.json").stat().st_mtime
        for number in range(KILLS):
            known = set(folder.glob("*/history.jsonl"))
            with begun(gating, config) as process:
                # Every fourth at any moment from the start, the others once something is on disk.
                while number % 4 and process.is_alive() and known == set(folder.glob("*/history.jsonl")):
                    time.sleep(0.001)
                time.sleep(draw.uniform(0.0, whole))
                process.kill()
    # A directory without a manifest is one in which nothing had been planned yet, so nothing was sent.
    made = {path.name for path in folder.glob("[0-9]*") if (path / "manifest.json").exists()}
    ended = kvgate("history", "--in", folder, "--format", "json")
    assert 0 == ended.code, ended.err
    rows = json.loads(ended.out)["runs"]
    assert sorted(made) == sorted(row["run"]["origin"]["run_id"] for row in rows), "each once"
    assert {"kept", "unfinished"} >= {row["state"] for row in rows}
    for row in rows:
        code = kvgate("judge", folder / row["run"]["origin"]["run_id"]).code
        assert {"PASS": 0, "INCONCLUSIVE": 3}[row["run"]["verdict"]] == code, row
    verdicts = {row["run"]["verdict"] for row in rows}
    assert {"PASS", "INCONCLUSIVE"} == verdicts, "kills came before the end"
    unfinished = sum(row["state"] == "unfinished" for row in rows)
    assert KILLS / 3 <= unfinished, "and after something was on disk"


def test_what_a_kill_left_behind_is_swept_away_by_the_next_prune(finished: Path, tmp_path: Path) -> None:
    copied(finished, tmp_path, "r1")
    copied(finished, tmp_path, "r2", started_at="2020-01-01T00:00:00+00:00")
    shutil.copytree(tmp_path / "r1", tmp_path / ".pruned-r0-abcd")
    with Ledger.of(tmp_path) as ledger:
        sync(ledger, __version__)
        assert ["r2", "r1"] == names(ledger)
        take_away(ledger, old_runs(ledger, 30.0, keep_failures=True))
        assert ["r1"] == names(ledger)
    assert ["r1"] == sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
