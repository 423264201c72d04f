"""A key given by an environment variable is nowhere afterwards: not in the run, not in what was printed."""

from pathlib import Path

import pytest

from tests.cli.driving import Ended, config_file, kvgate, only_run
from tests.scripted.server import Script, framed, serving

SECRET = "sk-kvgate-hunter2-0123456789"
AUTH = {"auth": {"bearer_env": "KVGATE_TEST_KEY"}}


def leaks(folder: Path, *ended: Ended) -> list[str]:
    """Every place that holds the secret."""
    files = [file for file in folder.glob("**/*") if file.is_file() and SECRET.encode() in file.read_bytes()]
    printed = [str(each.code) for each in ended if SECRET in each.out or SECRET in each.err]
    return [*map(str, files), *printed]


@pytest.mark.parametrize("fault", ["", "diverge", "refuse"])
def test_a_key_is_sent_and_written_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setenv("KVGATE_TEST_KEY", SECRET)
    junit = tmp_path / "junit.xml"
    with serving(Script(bearer=SECRET, fault=fault)) as server:
        file = config_file(tmp_path, server, deployment=AUTH)
        asked = [
            kvgate("plan", "-c", file),
            kvgate("doctor", "-c", file),
            kvgate("doctor", "-c", file, "--format", "json"),
        ]
        ran = kvgate("run", "-c", file, "--junit", junit, "--format", "json")
        assert server.bodies
    assert (1 if fault else 0) == ran.code, ran.err
    run = only_run(tmp_path)
    after = [
        kvgate("judge", run),
        kvgate("report", run, "--format", "json"),
        kvgate("report", run, "--format", "junit"),
    ]
    assert [] == leaks(tmp_path, *asked, ran, *after)


def test_a_key_the_server_does_not_take_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATE_TEST_KEY", SECRET)
    with serving(Script(bearer="another")) as server:
        ended = kvgate("run", "-c", config_file(tmp_path, server, deployment=AUTH))
    assert 4 == ended.code
    assert [] == leaks(tmp_path, ended)


def test_a_server_that_repeats_the_key_in_its_error_does_not_spread_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some gateways quote the whole request, headers and all."""
    monkeypatch.setenv("KVGATE_TEST_KEY", SECRET)
    script = Script(bearer=SECRET)
    quoted = framed(400, "application/json", f'{{"error":"bad header Authorization: Bearer {SECRET}"}}'.encode())
    with serving(script) as server:
        script.completion = lambda _: quoted if len(server.bodies) > 9 else None
        ended = kvgate("run", "-c", config_file(tmp_path, server, deployment=AUTH))
    assert "bad header" in (only_run(tmp_path) / "history.jsonl").read_text(encoding="utf-8")
    assert [] == leaks(tmp_path, ended)


def test_a_hook_that_prints_its_environment_does_not_spread_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVGATE_TEST_KEY", SECRET)
    hooks = {"before_arm": {"external": ["env"]}, "after_arm": {"cold": ["sh", "-c", "env; exit 3"]}}
    with serving(Script(bearer=SECRET)) as server:
        ended = kvgate("run", "-c", config_file(tmp_path, server, deployment=AUTH, hooks=hooks))
    assert 3 == ended.code
    assert "KVGATE_GROUP" in (only_run(tmp_path) / "history.jsonl").read_text(encoding="utf-8")
    assert [] == leaks(tmp_path, ended)
