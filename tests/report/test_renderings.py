"""Renderings of what servers really say: colour codes, markup, control characters."""

import json
from pathlib import Path
from typing import Any

import pytest
from junitparser import JUnitXml

from tests.cli.driving import Ended, config_file, kvgate, only_run
from tests.scripted.server import Pool, Script, framed, serving

ODD = "\x1b[31mboom\x1b[0m \x00\x08 ]]> <b> & [/red] [bold] \ufffe 令牌"


REFUSAL = framed(400, "application/json", json.dumps({"error": {"message": ODD}}).encode())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose external hits were refused with an odd message."""
    folder = tmp_path_factory.mktemp("odd")
    pool = Pool()

    def refuse_hits(body: dict[str, Any]) -> bytes | None:
        first = server.blocks(body["prompt"], body.get("cache_salt", ""))[:1]
        return REFUSAL if not server.local and pool.keys.keys() >= set(first) and first else None

    with serving(Script(pool=pool)) as server:
        server.script.completion = refuse_hits
        ended = kvgate("run", "-c", config_file(folder, server), "--junit", folder / "junit.xml")
    assert (1, "SUBJECT_REFUSED" in ended.out) == (ended.code, True), ended
    return only_run(folder)


def test_junit_can_be_parsed_whatever_the_server_said(run: Path) -> None:
    (suite,) = JUnitXml.fromfile(str(run.parents[1] / "junit.xml"))
    told = " ".join(str(result.message) for case in suite for result in case.result)
    assert "boom" in told
    assert "令牌" in told
    assert suite.failures > 0


def test_json_can_be_parsed_whatever_the_server_said(run: Path) -> None:
    assert "boom" in json.dumps(json.loads(kvgate("report", run, "--format", "json").out))


def test_the_table_shows_markup_as_it_is_and_sends_no_colour_codes_of_the_server(run: Path) -> None:
    ended = kvgate("report", run)
    assert 0 == ended.code
    squeezed = "".join(ended.out.split())
    assert "[/red][bold]" in squeezed
    assert "\x1b" not in ended.out


def test_a_group_that_was_broken_off_says_what_the_server_said(tmp_path: Path) -> None:
    """The cold arm is refused, so no pair was reached: the refusal is the reason, not the pairs that are missing."""
    with serving() as server:
        server.script.completion = lambda _: REFUSAL if len(server.bodies) > 12 else None
        ended = kvgate("run", "-q", "-c", config_file(tmp_path, server))
    assert 3 == ended.code
    assert "PROBE_REFUSED" in ended.out
    assert "HTTP 400" in ended.out


# -- names with markup in them ---------------------------------------------------------------------------------
def with_model(folder: Path, model: str, *argv: str) -> Ended:
    with serving(Script(model=model)) as server:
        return kvgate(*argv, "-c", config_file(folder, server, deployment={"model": model}))


@pytest.mark.parametrize("argv", [("doctor",), ("plan",), ("run", "-q"), ("doctor", "--format", "json")], ids=" ".join)
def test_a_model_named_like_markup_is_no_crash(tmp_path: Path, argv: tuple[str, ...]) -> None:
    ended = with_model(tmp_path, "org/m[/x][bold]", *argv)
    assert 0 == ended.code, ended.err
    assert "Traceback" not in ended.err


def test_doctor_prints_the_model_as_it_is(tmp_path: Path) -> None:
    assert "org/m[bold]" in with_model(tmp_path, "org/m[bold]", "doctor").out


# -- progress --------------------------------------------------------------------------------------------------
def test_plain_lines_are_not_folded(tmp_path: Path) -> None:
    """In CI logs a path that is broken over two lines cannot be found or copied."""
    deep = tmp_path / ("deep-" * 20)
    deep.mkdir()
    with serving() as server:
        ended = kvgate("run", "-c", config_file(deep, server))
    assert f"kept in {only_run(deep)}" in ended.err.splitlines()


def test_quiet_says_nothing(tmp_path: Path) -> None:
    with serving() as server:
        ended = kvgate("run", "-q", "-c", config_file(tmp_path, server))
    assert (0, "") == (ended.code, ended.err)


def test_the_json_report_of_a_run_is_all_that_is_on_standard_output(tmp_path: Path) -> None:
    with serving() as server:
        ended = kvgate("run", "-c", config_file(tmp_path, server), "--format", "json")
    assert "PASS" == json.loads(ended.out)["ruling"]["verdict"]


# -- discovery through the command line ------------------------------------------------------------------------
def test_the_length_limit_is_that_of_the_model_under_test(tmp_path: Path) -> None:
    """Gateways and servers with adapters list several models; the others' limits say nothing."""
    models = [{"id": "m", "max_model_len": 4096}, {"id": "other", "max_model_len": 128}]
    page = framed(200, "application/json", json.dumps({"object": "list", "data": models}).encode())
    with serving(Script(raw={"/v1/models": page})) as server:
        ended = kvgate("plan", "-c", config_file(tmp_path, server))
    assert 0 == ended.code, ended.err


@pytest.mark.parametrize("command", ["plan", "doctor", "run"])
def test_a_server_that_hangs_up_between_requests_is_asked_again(tmp_path: Path, command: str) -> None:
    """F11 for pages, counters, resets and probes: the lost race must not read as "the server does not say"."""
    with serving(Script(hangs_up=0.003)) as server:
        ended = kvgate(command, "-c", config_file(tmp_path, server))
    assert 0 == ended.code, ended.err


@pytest.mark.parametrize(
    "config",
    ['"text"', "[]", '{"scheduler_config": "text"}', '{"scheduler_config": [1]}', '{"scheduler_config": null}'],
)
def test_server_info_of_another_shape_is_passed_over(tmp_path: Path, config: str) -> None:
    page = framed(200, "application/json", f'{{"vllm_config": {config}}}'.encode())
    with serving(Script(raw={"/server_info": page})) as server:
        ended = kvgate("doctor", "-c", config_file(tmp_path, server))
    assert "Traceback" not in ended.err
    assert ended.code in (0, 3)


def test_a_server_that_knows_no_token_ids_is_asked_without(tmp_path: Path) -> None:
    """F10: some servers answer an unknown field with 400; what they can give is then less, and that is told."""

    def refuse(body: dict[str, object]) -> bytes | None:
        if "return_token_ids" not in body:
            return None
        return framed(400, "application/json", b'{"error":{"message":"unsupported parameter return_token_ids"}}')

    with serving(Script(completion=refuse, token_ids=False)) as server:
        ended = kvgate("doctor", "-c", config_file(tmp_path, server))
    assert 4 != ended.code
    assert "return_token_ids" in ended.out
