"""`kvgate judge` and `kvgate report`: offline, the same every time, in every format."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
from junitparser import JUnitXml

from kvgate.report.document import report_schema
from tests.cli.driving import config_file, kvgate, kvgate_process, only_run
from tests.scripted.server import Script, serving

SCRIPTS = {
    "PASS": Script(),
    "FAIL": Script(fault="drift"),
    "INCONCLUSIVE": Script(pool=None),
}
CODES = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """One real run of each verdict; not to be changed."""
    found: dict[str, Path] = {}
    for verdict, script in SCRIPTS.items():
        folder = tmp_path_factory.mktemp(verdict)
        with serving(script) as server:
            assert CODES[verdict] == kvgate("run", "-q", "-c", config_file(folder, server)).code
        found[verdict] = only_run(folder)
    return found


@pytest.mark.parametrize("verdict", CODES)
def test_a_verdict_is_reproduced_byte_for_byte(runs: Mapping[str, Path], tmp_path: Path, verdict: str) -> None:
    run = Path(shutil.copytree(runs[verdict], tmp_path / "run"))
    stored = (run / "verdict.json").read_bytes()
    assert CODES[verdict] == kvgate("judge", run, "--check").code
    (run / "verdict.json").unlink()
    assert CODES[verdict] == kvgate("judge", run).code
    assert stored == (run / "verdict.json").read_bytes()


def test_a_verdict_does_not_depend_on_hash_seeds(runs: Mapping[str, Path]) -> None:
    for seed in ("0", "1"):
        assert 1 == kvgate_process("judge", runs["FAIL"], "--check", env={"PYTHONHASHSEED": seed}).code


@pytest.mark.parametrize("verdict", CODES)
def test_judging_changes_nothing_in_a_finished_run(runs: Mapping[str, Path], verdict: str) -> None:
    before = {file: file.read_bytes() for file in runs[verdict].glob("**/*") if file.is_file()}
    kvgate("judge", runs[verdict])
    kvgate("judge", runs[verdict], "--policy", "strict")
    kvgate("report", runs[verdict])
    assert before == {file: file.read_bytes() for file in runs[verdict].glob("**/*") if file.is_file()}


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("verdict.json", '"verdict": "FAIL"', '"verdict": "PASS"'),
        ("history.jsonl", '"outcome":"OK"', '"outcome":"LOST"'),
        ("manifest.json", '"name": "calibrated"', '"name": "strict"'),
    ],
    ids=["verdict", "history", "manifest"],
)
def test_a_changed_file_is_found(runs: Mapping[str, Path], tmp_path: Path, name: str, old: str, new: str) -> None:
    run = Path(shutil.copytree(runs["FAIL"], tmp_path / "run"))
    text = (run / name).read_text(encoding="utf-8")
    assert old in text
    (run / name).write_text(text.replace(old, new), encoding="utf-8")
    ended = kvgate("judge", run, "--check")
    assert 2 == ended.code
    assert "is not what manifest and history give" in ended.err


def test_check_needs_a_stored_verdict(runs: Mapping[str, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs["PASS"], tmp_path / "run"))
    (run / "verdict.json").unlink()
    ended = kvgate("judge", run, "--check")
    assert 2 == ended.code
    assert "judge without --check first" in ended.err
    assert not (run / "verdict.json").exists()


def test_check_names_the_file_whatever_its_folder_is_called(runs: Mapping[str, Path], tmp_path: Path) -> None:
    """Square brackets are markup to the terminal library."""
    run = Path(shutil.copytree(runs["PASS"], tmp_path / "[red]run[/x]"))
    ended = kvgate("judge", run, "--check")
    assert 0 == ended.code
    assert f"{run}/verdict.json" in ended.out


def test_another_policy_is_another_verdict_and_is_not_stored(runs: Mapping[str, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs["PASS"], tmp_path / "run"))
    (run / "verdict.json").unlink()
    ended = kvgate("judge", run, "--policy", "strict")
    assert 0 == ended.code
    assert "policy strict" in ended.out
    assert not (run / "verdict.json").exists()


# -- formats ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("verdict", CODES)
def test_the_table_starts_with_the_verdict(runs: Mapping[str, Path], verdict: str) -> None:
    ended = kvgate("report", runs[verdict])
    assert (0, "") == (ended.code, ended.err)
    assert verdict == ended.out.split()[0]


@pytest.mark.parametrize("verdict", CODES)
def test_the_json_report_fits_its_schema(runs: Mapping[str, Path], verdict: str) -> None:
    ended = kvgate("report", runs[verdict], "--format", "json")
    assert (0, "") == (ended.code, ended.err)
    report = json.loads(ended.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    jsonschema.Draft202012Validator(report_schema()).validate(report)
    assert "kvgate.report/1" == report["format"]
    assert verdict == report["ruling"]["verdict"]
    named = {each["reason"] for each in report["explanations"]}
    assert {each["reason"] for each in report["ruling"]["reasons"]} <= named


@pytest.mark.parametrize("verdict", CODES)
def test_junit_is_green_only_for_a_pass(runs: Mapping[str, Path], tmp_path: Path, verdict: str) -> None:
    ended = kvgate("report", runs[verdict], "--format", "junit")
    assert (0, "") == (ended.code, ended.err)
    (tmp_path / "junit.xml").write_text(ended.out, encoding="utf-8")
    document = JUnitXml.fromfile(str(tmp_path / "junit.xml"))
    (suite,) = document
    assert suite.tests == len(list(suite))
    assert suite.tests > 1
    red = suite.failures + suite.errors
    assert (red == 0) is (verdict == "PASS")
    whole = next(case for case in suite if case.name == "run")
    assert ([] if verdict == "PASS" else [verdict]) == [result.type for result in whole.result]


@pytest.mark.parametrize("form", ["table", "json", "junit"])
def test_judge_and_report_print_the_same(runs: Mapping[str, Path], form: str) -> None:
    judged = kvgate("judge", runs["FAIL"], "--format", form)
    reported = kvgate("report", runs["FAIL"], "--format", form)
    assert judged.out == reported.out
    assert (1, 0) == (judged.code, reported.code)


def test_a_terminal_without_unicode_gets_a_report_and_no_crash(runs: Mapping[str, Path]) -> None:
    for form in ("table", "json", "junit"):
        ended = kvgate_process("report", runs["FAIL"], "--format", form, env={"PYTHONIOENCODING": "ascii"})
        assert (0, "") == (ended.code, ended.err)
