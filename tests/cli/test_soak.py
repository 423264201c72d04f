"""Round after round: the worst round decides, what passed may be dropped, and the rest stays."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from kvgate.domain.probe import Arm
from kvgate.domain.probe import Path as By
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.soak import Clean, FirstToken, SoakRound, alpha_of, kendall_p_value, sum_up
from kvgate.domain.verdict import Verdict
from kvgate.report.soak_document import soak_schema
from kvgate.store.run_directory import read_manifest
from kvgate.store.soak_directory import ROUNDS, read_rounds
from tests.cli.driving import Ended, command, config_file, kvgate
from tests.scripted.server import Script, serving


def soaked(folder: Path, script: Script, *more: str, **sections: Any) -> tuple[Ended, Path]:
    """How `kvgate soak` ended against a scripted server, and the soak's directory."""
    with serving(script) as server:
        file = config_file(folder, server, **sections)
        ended = kvgate("soak", "-c", file, "--for", "1h", *more)
    return ended, next((folder / "runs").glob("soak-*"))


def test_rounds_that_pass_are_a_pass_and_exclude_more_than_each_alone(tmp_path: Path) -> None:
    ended, directory = soaked(tmp_path, Script(), "--rounds", "3", "--format", "json")
    assert 0 == ended.code, ended.err
    report = json.loads(ended.out)
    jsonschema.validate(report, soak_schema())
    assert [["PASS", 3]] == report["summary"]["by_verdict"]
    external = next(each for each in report["summary"]["excluded"] if each["arm"] == "external")
    assert 6 == external["groups"], "two groups a round"
    assert pytest.approx(1 - 0.05 ** (1 / 6)) == external["excluded_fault_rate"]
    manifests = [read_manifest(directory / each["run_id"]) for each in report["rounds"]]
    assert [0.01 / 2, 0.01 / 6, 0.01 / 12] == pytest.approx([manifest.plan.policy.alpha for manifest in manifests])
    assert 3 == len({group.nonce for manifest in manifests for group in manifest.plan.groups[:1]}), "prompts of its own"
    assert all((directory / each["run_id"] / "verdict.json").exists() for each in report["rounds"])


@pytest.mark.parametrize(("more", "rounds"), [((), 1), (("--keep-going",), 3)], ids=["stops", "goes on"])
def test_a_round_that_fails_is_the_verdict_and_ends_the_soak(
    more: tuple[str, ...], rounds: int, tmp_path: Path
) -> None:
    ended, directory = soaked(tmp_path, Script(fault="diverge"), "--rounds", "3", *more)
    assert 1 == ended.code, ended.err
    assert "DIVERGED" in ended.out
    found = list(read_rounds(directory))
    assert rounds == len(found)
    assert all(each.kept for each in found)


def test_rounds_that_passed_make_room_for_others(tmp_path: Path) -> None:
    ended, directory = soaked(tmp_path, Script(), "--rounds", "9", "--keep-mb", "1", gate={"groups_per_tier": 8})
    assert 0 == ended.code, ended.err
    found = list(read_rounds(directory))
    assert 9 == len(found), "every round is told of"
    assert not found[0].kept
    assert found[-1].kept, "the oldest go first"
    size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file() and file.name != ROUNDS)
    assert size <= 1 << 20


def test_rounds_that_did_not_pass_are_never_dropped(tmp_path: Path) -> None:
    gate = {"groups_per_tier": 12}
    ended, directory = soaked(tmp_path, Script(metrics="hits_only"), "--keep-mb", "1", "--rounds", "40", gate=gate)
    found = list(read_rounds(directory))
    assert 3 == ended.code, ended.err
    assert all(each.kept and each.verdict is Verdict.INCONCLUSIVE for each in found)
    assert len(found) < 40
    assert "nothing of them is dropped" in ended.out


def test_a_soak_that_is_stopped_says_what_it_has(tmp_path: Path) -> None:
    with serving(Script()) as server:
        file = config_file(tmp_path, server)
        with subprocess.Popen(
            command("soak", "-q", "-c", file, "--for", "1h"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and process.poll() is None:
                lines = [path for path in tmp_path.glob(f"runs/*/{ROUNDS}") if path.stat().st_size]
                if lines:
                    break
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert 130 == process.returncode, err
        assert "stopped by the user" in out
    assert list(read_rounds(next((tmp_path / "runs").glob("soak-*"))))


@pytest.mark.parametrize("said", ["", "1", "0s", "5 weeks", "-1h"])
def test_a_duration_that_is_none_is_said_so(said: str, tmp_path: Path) -> None:
    with serving(Script()) as server:
        ended = kvgate("soak", "-c", config_file(tmp_path, server), f"--for={said}")
    assert 2 == ended.code
    assert "is no duration" in ended.err


def test_a_deployment_that_is_not_there_is_remote_trouble(tmp_path: Path) -> None:
    with serving(Script()) as server:
        file = config_file(tmp_path, server)
    ended = kvgate("soak", "-c", file, "--for", "1m")
    assert 4 == ended.code


def a_round(number: int, verdict: Verdict = Verdict.PASS, seconds: float = 0.1) -> SoakRound:
    reasons = () if verdict is Verdict.PASS else (Problem(Reason.UNSTABLE, "seen"),)
    clean, first = (Clean(512, Arm.EXTERNAL, 2),), (FirstToken(512, By.COLD, seconds),)
    return SoakRound(number, f"r{number}", 0.0, 1.0, verdict, reasons, clean, first, 10, 0.01, False, True)


def test_what_all_rounds_say_is_the_worst_of_them_and_names_the_round() -> None:
    summed = sum_up([a_round(1), a_round(2, Verdict.INCONCLUSIVE), a_round(3, Verdict.FAIL)])
    assert Verdict.FAIL is summed.verdict
    assert ["round 3 (r3): seen", "round 2 (r2): seen"] == [problem.detail for problem in summed.reasons]
    assert Verdict.INCONCLUSIVE is sum_up([]).verdict, "nothing was checked"


def test_alpha_is_spent_and_never_more_than_that() -> None:
    assert 0.01 > sum(alpha_of(0.01, number) for number in range(1, 10_000)) > 0.0099


@pytest.mark.parametrize(("seconds", "moves"), [
    ([0.1 + 0.01 * number for number in range(12)], True),
    ([0.3 - 0.01 * number for number in range(12)], True),
    ([0.1, 0.12, 0.11, 0.1, 0.12, 0.11, 0.1, 0.12, 0.11, 0.1, 0.12, 0.11], False),
    ([0.1 + 0.0001 * number for number in range(12)], False),
    ([0.1, 0.2, 0.3], False),
], ids=["rises", "falls", "neither", "too little", "too few"])  # fmt: skip
def test_what_moves_all_the_while_is_told(seconds: list[float], moves: bool) -> None:
    summed = sum_up([a_round(number, seconds=value) for number, value in enumerate(seconds, start=1)])
    assert moves is bool(summed.trends)


def test_kendalls_test_agrees_with_its_table() -> None:
    """Ten values in order: S = 45, its variance 125, so z = 44 / 11.18 = 3.935."""
    assert pytest.approx(8.3e-5, rel=0.01) == kendall_p_value(list(range(10)))
    assert 1.0 == kendall_p_value([1.0]) == kendall_p_value([1.0, 1.0])
