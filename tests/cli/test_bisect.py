"""Ladders of real processes: each rung is brought up, gated and taken down, and nothing is left running."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from kvgate.cli.bisect import unless_gone
from kvgate.domain.acceptance import Accepts, accepted
from kvgate.domain.reasons import Reason
from kvgate.domain.rungs import Figure, RungTried
from kvgate.domain.verdict import Verdict
from kvgate.report.ladder_document import ladder_report_schema
from kvgate.store.ladder_directory import read_rungs
from tests.cli.driving import Ended, command, kvgate

SERVE = [sys.executable, "-m", "kvgate", "sim", "serve", "--divisor", "16", "--port", "${port}", "--fault", "${fault}"]
LEVELS = ("off", "1", "3", "7")


def free_port() -> int:
    """A free port whose successor is free, too: the embedded pool takes that one."""
    while True:
        with socket.socket() as taken, socket.socket() as next_one:
            taken.bind(("127.0.0.1", 0))
            port: int = taken.getsockname()[1]
            try:
                next_one.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def gate_file(folder: Path) -> None:
    """What gates each rung: a tier and a group, so that it takes as long as it must."""
    content = {
        "version": 1,
        "deployment": {
            "name": "sim-${fault}",
            "model": "sim",
            "endpoints": [{"name": "a", "url": "http://127.0.0.1:${port}"}],
        },
        "gate": {"tiers": [531], "groups_per_tier": 2, "boundaries": False, "short_control": False, "sentinel": False},
        "requests": {"max_tokens": 16},
        "limits": {"settle_s": 0.02, "put_deadline_s": 2.0, "evidence_s": 0.3},
        "output": {"directory": str(folder / "runs")},
    }
    (folder / "gate.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")


def ladder_file(folder: Path, faults: dict[str, str], **more: Any) -> Path:
    """A ladder whose rungs serve these faults."""
    gate_file(folder)
    content = {
        "version": 1,
        "name": "levels",
        "gate": "gate.yaml",
        "values": {"port": free_port()},
        "rungs": [{"name": name, "values": {"fault": fault}} for name, fault in faults.items()],
        "processes": [{"name": "server", "argv": SERVE}],
        "limits": {"ready_s": 60, "grace_s": 5},
        **more,
    }
    path = folder / "ladder.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def planted(first: int, fault: str = "zero_block") -> dict[str, str]:
    return {name: fault if place >= first else "healthy" for place, name in enumerate(LEVELS)}


def climbed(path: Path, code: int) -> tuple[dict[str, Any], Path]:
    """The report of a ladder that ends with this code, and its directory."""
    ended = kvgate("bisect", "--ladder", path, "--format", "json")
    assert code == ended.code, (ended.err, ended.out)
    report = json.loads(ended.out)
    jsonschema.validate(report, ladder_report_schema())
    return report, next((path.parent / "runs").iterdir())


def serving_now(port: int) -> bool:
    """Whether any process still has the port on its command line."""
    return any(f"--port\0{port}\0".encode() in line for line in command_lines())


def command_lines() -> list[bytes]:
    found: list[bytes] = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                found.append((each / "cmdline").read_bytes())
            except OSError:
                continue
    return found


def port_of(path: Path) -> int:
    port: int = yaml.safe_load(path.read_text(encoding="utf-8"))["values"]["port"]
    return port


@pytest.mark.parametrize("first", [0, 2, 4], ids=["all fail", "from the third on", "none"])
def test_the_planted_level_is_found_and_every_server_is_gone(first: int, tmp_path: Path) -> None:
    path = ladder_file(tmp_path, planted(first))
    report, directory = climbed(path, 1 if first < 4 else 0)
    tried = report["climb"]["tried"]
    assert not serving_now(port_of(path))
    if first == 4:
        assert (["no rung fails"], 4) == (report["climb"]["claims"], len(tried))
        return
    assert first == report["climb"]["found"]["fails"]
    assert len(tried) <= 3
    # 128-token blocks, divided by 16.
    assert {8} == {each["block"] for each in tried}
    assert all((directory / each["run_id"] / "verdict.json").exists() for each in tried)
    assert [each["name"] for each in tried] == [each.name for each in read_rungs(directory)]
    assert "Ctrl-C ends it" in next(directory.glob("00-*-server.log")).read_text()


def test_a_rung_that_cannot_be_decided_or_brought_up_is_named(tmp_path: Path) -> None:
    path = ladder_file(tmp_path, {"a": "healthy", "b": "nosuch", "c": "never_put", "d": "zero_block"}, mode="climb")
    report, directory = climbed(path, 1)
    assert ["PASS", "INCONCLUSIVE", "INCONCLUSIVE", "FAIL"] == [each["verdict"] for each in report["climb"]["tried"]]
    assert ["d fails; a below it passes", "whether b, c below d fails is not known", "undecided: b, c"] == report[
        "climb"
    ]["claims"]
    (why,) = report["climb"]["tried"][1]["reasons"]
    assert "RUNG_NOT_UP" == why["reason"]
    assert "server ended with code 2" in why["detail"]
    assert "nosuch" in (directory / "01-b-server.log").read_text()


@pytest.mark.parametrize("fault", ["healthy", "zero_block"])
def test_a_server_that_kept_the_port_speaks_for_no_rung(fault: str, tmp_path: Path) -> None:
    """It answers in the rung's place, rightly or wrongly."""
    idle = [{"name": "server", "argv": [sys.executable, "-c", "import time; time.sleep(60)"]}]
    path = ladder_file(tmp_path, {"a": "healthy", "b": "healthy"}, processes=idle)
    argv = command("sim", "serve", "--divisor", "16", "--port", str(port_of(path)), "--fault", fault)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as stale:
        assert stale.stdout is not None
        stale.stdout.readline()
        try:
            report, _ = climbed(path, 3)
        finally:
            stale.kill()
    assert {"INCONCLUSIVE"} == {each["verdict"] for each in report["climb"]["tried"]}
    assert all("the endpoints answer before" in each["reasons"][0]["detail"] for each in report["climb"]["tried"])


# A server that outlives the process that started it, which ends as soon as the gate has begun.
LEAVES = """
import pathlib, subprocess, sys, time
server = subprocess.Popen(sys.argv[2:], start_new_session=True)
folder = pathlib.Path(sys.argv[1])
(folder / "pid").write_text(str(server.pid))
while not list(folder.glob("runs/ladder-*/[0-9]*/history.jsonl")):
    time.sleep(0.02)
"""


def test_what_answers_after_the_rung_s_process_has_ended_speaks_for_no_rung(tmp_path: Path) -> None:
    leaves = [{"name": "server", "argv": [sys.executable, "-c", LEAVES, str(tmp_path), *SERVE]}]
    path = ladder_file(tmp_path, {"a": "healthy", "b": "healthy"}, processes=leaves, mode="climb")
    try:
        report, _ = climbed(path, 3)
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    first, second = report["climb"]["tried"]
    assert ("INCONCLUSIVE", "RUNG_NOT_UP") == (first["verdict"], first["reasons"][0]["reason"])
    assert first["run_id"] is not None, "it was gated"
    assert "may have been another rung's" in first["reasons"][0]["detail"]
    assert "the endpoints answer before" in second["reasons"][0]["detail"]


def test_a_rung_whose_process_ended_shows_nothing() -> None:
    tried = RungTried(0, "a", (), Verdict.PASS, (), "run", 8, 1.0, 1.0)
    assert tried == unless_gone(tried, None)
    for verdict in Verdict:
        told = unless_gone(replace(tried, verdict=verdict), "server ended with code 1")
        assert (Verdict.INCONCLUSIVE, Reason.RUNG_NOT_UP) == (told.verdict, told.reasons[0].reason)


def test_flags_that_fail_only_together_are_found(tmp_path: Path) -> None:
    """Three flags choose the fault by a launcher of the user's own."""
    launcher = tmp_path / "launch.py"
    launcher.write_text(
        "import os, sys\n"
        "fault = 'zero_block' if {'pool', 'spec'} <= set(sys.argv[2:]) else 'healthy'\n"
        "argv = [sys.executable, '-m', 'kvgate', 'sim', 'serve', '--divisor', '16', '--port', sys.argv[1]]\n"
        "os.execv(sys.executable, [*argv, '--fault', fault])\n"
    )
    flags: list[dict[str, Any]] = [
        {"name": name, "on": {name: [name]}, "off": {name: []}} for name in ("dcp", "pool", "spec")
    ]
    more = {
        "mode": "flags",
        "rungs": None,
        "flags": flags,
        "processes": [
            {"name": "s", "argv": [sys.executable, str(launcher), "${port}", "${dcp}", "${pool}", "${spec}"]}
        ],
    }
    path = ladder_file(tmp_path, {"x": "healthy"}, **more)
    (tmp_path / "gate.yaml").write_text((tmp_path / "gate.yaml").read_text().replace("${fault}", "x"))
    report, _ = climbed(path, 1)
    assert ["pool", "spec"] == sorted(report["climb"]["culprits"]["flags"])
    assert "without any one of pool, spec it passes" in report["climb"]["claims"]


def test_rungs_that_cannot_be_are_said_by_their_rule_and_not_brought_up(tmp_path: Path) -> None:
    path = ladder_file(tmp_path, planted(4))
    content = yaml.safe_load(path.read_text())
    for rung, tokens in zip(content["rungs"][1:], (3, 5, 7), strict=True):
        rung["speculation"] = {"method": "dspark", "tokens": tokens}
    content["rungs"][3]["speculation"]["prefill_tokens"] = 5
    path.write_text(yaml.safe_dump(content))
    report, _ = climbed(path, 3)
    assert "no rung is shown to fail; those that pass: off, 3" in report["climb"]["claims"]
    assert ["off", "3"] == sorted(each["name"] for each in report["climb"]["tried"])[::-1]
    rules = {each["name"]: each["rule"] for each in report["climb"]["invalid"]}
    assert {"1", "7"} == set(rules)
    assert "below the checkpoint's dspark_block_size 5" in rules["1"]
    assert "prefill has 5, decode 7" in rules["7"]


def test_figures_that_commands_tell_are_kept_and_what_is_absent_is_shown_as_absent(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("7")
    count = (
        "import pathlib, sys; p = pathlib.Path(sys.argv[1]); n = int(p.read_text()); p.write_text(str(n + 35)); "
        "print(f'tx: {n} of 9')"
    )
    readings = [
        {"name": "sent", "argv": [sys.executable, "-c", count, str(counter)], "unit": "B"},
        {"name": "of", "argv": ["echo", "tx: 1 of ${fault}"], "pattern": "of (.*)"},
        {"name": "gone", "argv": ["/nowhere/npu-smi"]},
    ]
    path = ladder_file(tmp_path, {"a": "healthy", "b": "healthy"}, readings=readings)
    report, _ = climbed(path, 0)
    figures = {each["name"]: each for each in report["climb"]["tried"][0]["figures"]}
    assert (7, 42, "B", "") == tuple(figures["sent"][key] for key in ("before", "after", "unit", "detail"))
    assert (None, None) == (figures["of"]["before"], figures["of"]["after"])
    assert "'healthy' is no number" in figures["of"]["detail"]
    assert "could not be started" in figures["gone"]["detail"]
    shown = kvgate("bisect", "--ladder", path).out
    assert "gone: absent before, absent after" in shown
    assert "sent: 147 before, 182 after B" in shown


def accepting(*asked: dict[str, Any]) -> dict[str, Any]:
    return {"name": "a", "accept": list(asked)}


@pytest.mark.parametrize(("asked", "said"), [
    ({"reading": "sent", "of": "change", "least": 35, "most": 35}, None),
    ({"reading": "sent", "of": "change", "least": 36}, "change of sent is 35 B; asked for is at least 36"),
    ({"reading": "sent", "least": 42, "most": 42}, None),
    ({"reading": "sent", "least": 1, "most": 41}, "sent is 42 B; asked for is at least 1 and at most 41"),
    ({"reading": "gone", "most": 9}, "gone is absent (gone: code 127"),
    ({"reading": "late", "of": "change", "least": 0}, "change of late is absent (late: the pattern is nowhere"),
    ({"reading": "late", "least": 0}, None),
])  # fmt: skip
def test_a_rung_is_accepted_only_if_its_figures_say_so(asked: dict[str, Any], said: str | None) -> None:
    figures = (
        Figure("sent", "B", 7.0, 42.0),
        Figure("gone", "", None, None, "gone: code 127: not found"),
        Figure("late", "", None, 3.0, "late: the pattern is nowhere in its output"),
    )
    passed = RungTried(0, "a", (), Verdict.PASS, (), "run", 8, 0.0, 0.0, None, figures)
    accepts = Accepts(asked["reading"], asked.get("of") == "change", asked.get("least"), asked.get("most"))
    told = accepted(passed, [accepts])
    if said is None:
        assert passed == told
        return
    assert (Verdict.INCONCLUSIVE, Reason.NOT_ACCEPTED) == (told.verdict, told.reasons[0].reason)
    assert said in told.reasons[0].detail
    assert Verdict.FAIL is accepted(replace(passed, verdict=Verdict.FAIL), [accepts]).verdict, "it takes no FAIL away"


def test_a_rung_that_is_right_and_not_accepted_is_no_rung_that_passes(tmp_path: Path) -> None:
    """Right answers over a port that counted nothing: the transfer went another way."""
    readings = [{"name": "sent", "argv": ["echo", "1"], "unit": "B"}]
    values = {"fault": "healthy"}
    lowest = {"name": "a", "values": values, "accept": [{"reading": "sent", "of": "change", "least": 1}]}
    path = ladder_file(tmp_path, {}, rungs=[lowest, {"name": "b", "values": values}], mode="climb", readings=readings)
    report, _ = climbed(path, 3)
    assert ["INCONCLUSIVE", "PASS"] == [each["verdict"] for each in report["climb"]["tried"]]
    assert ["NOT_ACCEPTED"] == [each["reason"] for each in report["climb"]["tried"][0]["reasons"]]


@pytest.mark.parametrize(("change", "said"), [
    ({"rungs": [{"name": "a", "values": {}}, {"name": "b", "values": {"fault": "x"}}]}, "${fault} has no value"),
    ({"rungs": [{"name": "a"}, {"name": "a"}]}, "two of them have one name"),
    ({"mode": "flags"}, "mode flags takes flags"),
    ({"processes": [{"name": "s", "argv": ["--x=${many}"]}], "values": {"many": ["a", "b"], "port": 1}}, "is a list"),
    ({"gate": "nowhere.yaml"}, "there is no such file"),
    ({"readings": [{"name": "r", "argv": ["x", "${y}"]}]}, "readings[0].argv[1]: ${y} has no value"),
    ({"readings": [{"name": "r", "argv": ["x"], "pattern": "1"}]}, "has no group"),
    ({"rungs": [accepting({"reading": "r", "least": 1}), {"name": "b"}]}, "'r', which is none of readings"),
    ({"rungs": [accepting({"reading": "r"}), {"name": "b"}]}, "neither least nor most is given"),
    ({"rungs": [accepting({"reading": "r", "least": 2, "most": 1}), {"name": "b"}]}, "least 2 is above most 1"),
])  # fmt: skip
def test_what_is_wrong_with_a_ladder_is_said_before_anything_is_brought_up(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = ladder_file(tmp_path, planted(4), **change)
    ended = kvgate("bisect", "--ladder", path)
    assert 2 == ended.code
    assert said in ended.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_nothing_is_left_running_however_it_ends(how: signal.Signals, tmp_path: Path) -> None:
    down = tmp_path / "down"
    path = ladder_file(tmp_path, planted(4), down=["touch", str(down)])
    port = port_of(path)
    process = subprocess.Popen(
        command("bisect", "--ladder", path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=os.getcwd()
    )
    until(lambda: serving_now(port), "a rung to be up")
    process.send_signal(how)
    ended = Ended(process.wait(60), *map(str, process.communicate()))
    until(lambda: not serving_now(port), "the rung to be gone")
    until(down.exists, "`down` to be run")
    if how is signal.SIGINT:
        assert 130 == ended.code, ended.err
        assert "stopped by the user" in ended.out


def until(true: Any, what: str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)
