"""`kvgate measure` as a command: exit codes, the offline report, the table, and what never reaches a disk."""

import json
import signal
import subprocess
import time
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest

from kvgate.report.measure_document import NO_VERDICT, measure_schema
from tests.cli.driving import command, kvgate
from tests.measuring import config, entries, figures, measure, only_record, report, trace
from tests.scripted.server import Script, framed, serving

SECRET = "sk-kvgate-hunter2-0123456789"


def test_a_measurement_ends_with_0_and_fits_its_schema(tmp_path: Path) -> None:
    with serving() as one, serving() as other:
        made = config(tmp_path, "one", one.url), config(tmp_path, "other", other.url)
        ended = measure(trace(tmp_path, {}, slo={"first_token_s": 30}), *made)
    assert (0, "") == (ended.code, ended.err)
    jsonschema.validate(report(ended), measure_schema())
    assert 1.0 == figures(ended)["other"]["attainment"]


def test_the_record_is_reported_again_byte_for_byte(tmp_path: Path) -> None:
    with serving() as one, serving() as other:
        ended = measure(trace(tmp_path, {}), config(tmp_path, "one", one.url), config(tmp_path, "other", other.url))
    again = kvgate("measure", "--from", only_record(tmp_path), "--format", "json")
    assert (ended.code, ended.out) == (again.code, again.out)


def test_the_table_fits_80_columns_and_says_that_it_is_no_verdict(tmp_path: Path) -> None:
    with serving() as one, serving() as other:
        made = config(tmp_path, "combined-without-pool", one.url), config(tmp_path, "pd-with-pool", other.url)
        ended = measure(trace(tmp_path, {}), *made, form="table")
    assert 0 == ended.code, ended.err
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "".join(NO_VERDICT.split()) in "".join(ended.out.split())
    assert "p95" in ended.out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "give one or more configurations with -c and a trace with --trace"),
        (("-c", "c.yaml"), "give one or more configurations"),
        (("--from", "x", "--trace", "t.yaml"), "leave -c and --trace out"),
        (("--from", "nowhere"), "nowhere: does not exist"),
        (("--from", "."), "is no measurement"),
    ],
)
def test_a_command_that_cannot_be_meant_is_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = kvgate("measure", *argv)
    assert (2, True) == (ended.code, said in ended.err), ended.err


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"kind": "sessions"}, "trace.yaml:2: parts.0: "),
        ({"prompt_tokens": 5000}, "takes 4096; shorten the part"),
        ({"color": "red"}, "parts.0.color: there is no such key"),
    ],
)
def test_a_bad_trace_is_usage_and_says_where(tmp_path: Path, part: dict[str, object], said: str) -> None:
    with serving() as server:
        ended = measure(trace(tmp_path, part), config(tmp_path, "one", server.url))
        assert not server.bodies
    assert (2, True) == (ended.code, said in ended.err), ended.err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"deployment": {"model": "other"}}, "does not serve 'other'; it serves m"),
        ({"requests": {"endpoint": "chat"}}, "chat cannot be measured; set completions"),
        ({"requests": {"ignore_eos": False}}, "requests.ignore_eos: differs"),
    ],
)
def test_deployments_that_cannot_be_sent_the_same_are_usage(
    tmp_path: Path, changes: dict[str, dict[str, object]], said: str
) -> None:
    with serving() as server:
        made = config(tmp_path, "one", server.url), config(tmp_path, "other", server.url, **changes)
        ended = measure(trace(tmp_path, {}), *made)
        assert not server.bodies
    assert (2, True) == (ended.code, said in ended.err), ended.err


def test_a_deployment_that_cannot_be_reached_is_remote(tmp_path: Path) -> None:
    with serving() as server, serving() as gone:
        made = config(tmp_path, "one", server.url), config(tmp_path, "gone", gone.url)
        gone.script.die_after = 0
        ended = measure(trace(tmp_path, {}), *made)
        assert not server.bodies
    assert (4, "") == (ended.code, ended.out)


def test_fewer_than_half_answered_is_3(tmp_path: Path) -> None:
    refusal = framed(400, "application/json", b'{"error":{"message":"no room"}}')
    with serving(Script(completion=lambda _: refusal)) as server:
        ended = measure(trace(tmp_path, {}), config(tmp_path, "one", server.url))
    assert 3 == ended.code
    assert "no room" in report(ended)["hindrances"][0]["detail"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_measurement_is_130_and_can_be_reported(tmp_path: Path, number: signal.Signals) -> None:
    with serving() as server:
        sent = trace(tmp_path, {"count": 1000, "arrival": {"rate": 20}})
        made = config(tmp_path, "one", server.url)
        argv = command("measure", "-q", "-c", made, "--trace", sent, "--format", "json")
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            until = time.monotonic() + 30
            while len(server.bodies) < 10 and time.monotonic() < until:
                time.sleep(0.05)
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
    assert (130, "") == (process.returncode, err)
    assert "cut_off" == json.loads(out)["hindrances"][0]["obstacle"]
    again = kvgate("measure", "--from", only_record(tmp_path), "--format", "json")
    assert (3, out) == (again.code, again.out)


def test_a_line_cut_off_by_a_kill_is_passed_over_and_a_broken_one_is_not(tmp_path: Path) -> None:
    with serving() as server:
        assert 0 == measure(trace(tmp_path, {}), config(tmp_path, "one", server.url)).code
    file = only_record(tmp_path) / "requests.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    assert 3 == kvgate("measure", "--from", file.parent).code
    file.write_bytes(b'{"kind":"nonsense"}\n' + whole)
    ended = kvgate("measure", "--from", file.parent)
    assert (2, True) == (ended.code, "requests.jsonl:1: not an entry" in ended.err)


def test_a_key_is_sent_and_written_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATE_TEST_KEY", SECRET)
    script = Script(bearer=SECRET)
    quoted = framed(400, "application/json", f'{{"error":"bad header Authorization: Bearer {SECRET}"}}'.encode())
    with serving(script) as server:
        script.completion = lambda _: quoted if len(server.bodies) % 3 == 0 else None
        made = config(tmp_path, "one", server.url, deployment={"auth": {"bearer_env": "KVGATE_TEST_KEY"}})
        ended = measure(trace(tmp_path, {}), made)
    assert 0 == ended.code, ended.err
    assert any("bad header" in repr(entry) for entry in entries(tmp_path))
    files = [file for file in tmp_path.glob("**/*") if file.is_file() and SECRET.encode() in file.read_bytes()]
    assert ([], False, False) == (files, SECRET in ended.out, SECRET in ended.err)
