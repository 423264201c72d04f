"""Exit codes by driving the real command: what a shell or a CI job sees, and that a crash never looks like FAIL."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.driving import command, config_file, kvgate, kvgate_process, only_run
from tests.scripted.server import Script, ScriptedServer, serving


@pytest.mark.parametrize(
    ("code", "verdict", "script"),
    [
        (0, "PASS", Script()),
        (1, "FAIL", Script(fault="diverge")),
        (1, "FAIL", Script(fault="drift")),
        (3, "INCONCLUSIVE", Script(pool=None)),
        (3, "INCONCLUSIVE", Script(metrics="missing")),
    ],
    ids=["healthy", "diverging", "drifting", "no-pool", "no-counters"],
)
def test_a_run_ends_with_the_code_of_its_verdict(tmp_path: Path, code: int, verdict: str, script: Script) -> None:
    with serving(script) as server:
        ended = kvgate_process("run", "-q", "-c", config_file(tmp_path, server))
    assert (code, "") == (ended.code, ended.err)
    assert ended.out.split()[0] == verdict


def test_a_configuration_that_does_not_exist_is_usage(tmp_path: Path) -> None:
    ended = kvgate_process("run", "-q", "-c", tmp_path / "none.yaml")
    assert (2, "") == (ended.code, ended.out)
    assert "there is no such file" in ended.err


def test_an_unknown_option_is_usage() -> None:
    assert 2 == kvgate("run", "--no-such-option").code


def test_no_command_prints_help_and_is_usage() -> None:
    assert 2 == kvgate().code


def test_help_and_version_are_success() -> None:
    assert 0 == kvgate("--help").code
    assert 0 == kvgate("--version").code


def test_a_deployment_that_cannot_be_reached_is_remote(tmp_path: Path) -> None:
    with serving() as server:
        file = config_file(tmp_path, server)
    ended = kvgate_process("run", "-q", "-c", file)
    assert (4, "") == (ended.code, ended.out)
    assert "could not connect" in ended.err


def test_a_deployment_that_dies_on_the_way_is_remote_and_leaves_a_record(tmp_path: Path) -> None:
    with serving(Script(die_after=9)) as server:
        ended = kvgate("run", "-q", "-c", config_file(tmp_path, server))
    assert 4 == ended.code
    assert "ENDPOINT_LOST" in ended.out
    assert 4 == kvgate("judge", only_run(tmp_path)).code


# -- interrupted -----------------------------------------------------------------------------------------------
@contextlib.contextmanager
def under_way(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", ScriptedServer]]:
    """A run of very many groups, well past its first group."""
    with serving() as server:
        file = config_file(folder, server, gate={"groups_per_tier": 60})
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command("run", "-q", "-c", file), text=True, **pipes) as process:  # type: ignore[call-overload]
            try:
                wait_for(lambda: len(server.bodies) > 20 or process.poll() is not None)
                assert process.poll() is None
                yield process, server
            finally:
                process.kill()


def wait_for(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_can_be_judged(tmp_path: Path, name: signal.Signals) -> None:
    with under_way(tmp_path) as (process, _):
        process.send_signal(name)
        out, err = process.communicate(timeout=30)
    assert 130 == process.returncode
    assert "INTERRUPTED" in out
    assert "Traceback" not in err
    run = only_run(tmp_path)
    judged = kvgate_process("judge", run)
    assert 3 == judged.code
    assert "INTERRUPTED" in judged.out
    assert 3 == kvgate("judge", run, "--check").code


def test_a_killed_run_can_be_judged(tmp_path: Path) -> None:
    with under_way(tmp_path) as (process, _):
        process.kill()
        process.communicate(timeout=30)
    run = only_run(tmp_path)
    assert not (run / "verdict.json").exists()
    judged = kvgate_process("judge", run)
    assert 3 == judged.code
    assert "INTERRUPTED" in judged.out
    assert "Traceback" not in judged.err
    assert (run / "verdict.json").exists()


def test_an_interrupt_before_the_first_probe_is_no_crash(tmp_path: Path) -> None:
    """A server that accepts and never answers holds the run while it asks what it can prove."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        file = config_file(tmp_path)
        text = file.read_text(encoding="utf-8")
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        file.write_text(text.replace("endpoints: []", f"endpoints: [{{name: a, url: '{url}'}}]"), encoding="utf-8")
        with subprocess.Popen(command("run", "-c", file), stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert "asking d" in process.stderr.readline()
            with silent.accept()[0]:
                process.send_signal(signal.SIGINT)
                rest = process.stderr.read()
    assert 130 == process.returncode
    assert "Traceback" not in rest


# -- crashes ---------------------------------------------------------------------------------------------------
CRASHES = [RuntimeError("x"), KeyError("x"), MemoryError(), RecursionError("x"), EOFError(), asyncio.CancelledError()]


@pytest.mark.parametrize("crash", CRASHES, ids=lambda crash: type(crash).__name__)
def test_an_uncaught_crash_is_70_with_a_traceback(monkeypatch: pytest.MonkeyPatch, crash: BaseException) -> None:
    def explode(*_: object) -> None:
        raise crash

    monkeypatch.setattr("kvgate.cli.explain.explain_code", explode)
    ended = kvgate("explain", "DRIFT")
    assert 70 == ended.code
    assert "Traceback" in ended.err
    assert type(crash).__name__ in ended.err
    assert "bug in kvgate" in ended.err


def test_an_interrupt_anywhere_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvgate.cli.explain.explain_code", interrupt)
    assert 130 == kvgate("explain", "DRIFT").code


@pytest.mark.parametrize("package", ["numpy", "typer", "pydantic"])
def test_a_broken_installation_does_not_look_like_fail(tmp_path: Path, package: str) -> None:
    """Imports fail before any command runs; Python's own exit code for that is 1, which here would read FAIL."""
    (tmp_path / f"{package}.py").write_text("raise ImportError('libfoo.so: cannot open shared object file')\n")
    ended = kvgate_process("explain", "DRIFT", env={"PYTHONPATH": str(tmp_path)})
    assert 70 == ended.code
    assert "libfoo.so" in ended.err


SMALL_FILES = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))
sys.argv = sys.argv[1:]
runpy.run_module("kvgate", run_name="__main__", alter_sys=True)
"""


def test_a_disk_that_fills_up_is_told_and_the_rest_can_be_judged(tmp_path: Path) -> None:
    """No file can grow beyond 120 KB. Nothing of kvgate's is wrong then: a sentence and exit 2, and never 1."""
    with serving() as server:
        file = config_file(tmp_path, server, gate={"groups_per_tier": 8})
        argv = [sys.executable, "-c", SMALL_FILES, "kvgate", "run", "-q", "-c", str(file)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert 2 == done.returncode
    assert "history.jsonl" in done.stderr
    assert "Traceback" not in done.stderr
    assert 3 == kvgate("judge", only_run(tmp_path)).code


@pytest.mark.parametrize("argv", [("explain", "--list", "reasons"), ("--help",)])
def test_a_reader_that_goes_away_gets_no_traceback_and_no_fail(argv: tuple[str, ...]) -> None:
    """`kvgate ... | head -1`."""
    with subprocess.Popen(command(*argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert "Traceback" not in err
    assert process.returncode != 1
