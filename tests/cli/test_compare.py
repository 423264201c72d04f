"""`kvgate compare`: a regression is one, what is like is held against what is like, and the rest is named."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from kvgate.cli.reproducing import judged
from kvgate.domain.comparing import Change, DriftChange, Judged, change_of, compare_runs
from kvgate.domain.probe import Path as ProbePath
from kvgate.domain.verdict import Verdict
from kvgate.report.compare_document import compare_schema
from kvgate.store.run_directory import read_manifest
from tests.cli.driving import config_file, kvgate, only_run
from tests.scripted.server import Script, serving

RUNS: dict[str, tuple[Script, dict[str, Any]]] = {
    "right": (Script(), {}),
    "right again": (Script(), {}),
    "drifts": (Script(fault="drift"), {}),
    "no pool": (Script(pool=None), {}),
    "other tier": (Script(), {"gate": {"tiers": [1024]}}),
    "longer answers": (Script(), {"requests": {"max_tokens": 24}}),
    "strict": (Script(), {"policy": {"name": "strict"}}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """One real run of each kind; not to be changed."""
    found: dict[str, Path] = {}
    for name, (script, sections) in RUNS.items():
        folder = tmp_path_factory.mktemp("run")
        with serving(script) as server:
            kvgate("run", "-q", "-c", config_file(folder, server, **sections))
        found[name] = only_run(folder)
    return found


def compared(runs: Mapping[str, Path], before: str, after: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON report of a comparison."""
    ended = kvgate("compare", runs[before], runs[after], "--format", "json")
    content: dict[str, Any] = json.loads(ended.out)
    jsonschema.validate(content, compare_schema())
    return ended.code, content


@pytest.mark.parametrize(("before", "after", "code", "change"), [
    ("right", "right again", 0, "SAME"),
    ("right", "drifts", 1, "REGRESSED"),
    ("drifts", "right", 0, "IMPROVED"),
    ("drifts", "drifts", 0, "SAME"),
    ("right", "no pool", 3, "UNPROVEN"),
    ("no pool", "drifts", 3, "UNPROVEN"),
])  # fmt: skip
def test_a_regression_is_what_passed_and_fails(
    before: str, after: str, code: int, change: str, runs: Mapping[str, Path]
) -> None:
    ended, content = compared(runs, before, after)
    assert code == ended
    external = next(each for each in content["comparison"]["pairs"] if each["kind"] == "external_vs_local")
    assert change == external["change"]
    assert {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3}[content["verdict"]] == ended


def test_drift_that_was_not_there_is_told(runs: Mapping[str, Path]) -> None:
    drifts = {
        (before, after): {each["drift"] for each in compared(runs, before, after)[1]["comparison"]["pairs"]}
        for before, after in (("right", "drifts"), ("drifts", "right"), ("right", "right again"))
    }
    assert "appeared" in drifts["right", "drifts"]
    assert "gone" in drifts["drifts", "right"]
    assert {"same"} == drifts["right", "right again"]


def test_times_are_paired_by_tier_and_path(runs: Mapping[str, Path]) -> None:
    _, content = compared(runs, "right", "right again")
    paths = content["comparison"]["paths"]
    assert {"cold", "local", "external"} == {each["path"] for each in paths}
    assert all(each["first_token_ratio"] > 0 for each in paths)
    table = kvgate("compare", runs["right"], runs["right again"])
    assert "NO REGRESSION" in table.out
    assert "Times (medians" in table.out


def test_what_is_not_alike_is_not_compared_and_why(runs: Mapping[str, Path]) -> None:
    _, content = compared(runs, "right", "longer answers")
    assert [] == content["comparison"]["paths"]
    assert {"output tokens differ: 16 and 24"} == {each["why"] for each in content["comparison"]["not_compared"]}
    code, content = compared(runs, "right", "other tier")
    assert (3, []) == (code, content["comparison"]["pairs"])
    whys = {each["why"] for each in content["comparison"]["not_compared"]}
    assert {"only the first run has it", "only the second run has it"} <= whys


def test_both_are_judged_by_the_policy_of_the_first(runs: Mapping[str, Path]) -> None:
    code, content = compared(runs, "right", "strict")
    assert 0 == code
    assert any("both are judged by that of the first" in note for note in content["notes"])


def test_what_is_no_run_is_one_sentence_and_exit_2(runs: Mapping[str, Path], tmp_path: Path) -> None:
    ended = kvgate("compare", runs["right"], tmp_path)
    assert (2, 1) == (ended.code, len(ended.err.strip().splitlines()))
    assert "is no run directory" in ended.err


def test_comparing_changes_nothing(runs: Mapping[str, Path], tmp_path: Path) -> None:
    one, other = (Path(shutil.copytree(runs[name], tmp_path / name)) for name in ("right", "drifts"))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    kvgate("compare", one, other)
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}


def ruled(path: Path) -> Judged:
    manifest = read_manifest(path)
    return manifest.plan, judged(manifest, path)


def test_runs_of_two_models_have_nothing_to_be_compared(runs: Mapping[str, Path]) -> None:
    plan, ruling = ruled(runs["right"])
    other = replace(plan, deployment=replace(plan.deployment, model="another"))
    comparison = compare_runs((plan, ruling), (other, ruling))
    assert (Verdict.INCONCLUSIVE, ()) == (comparison.verdict, comparison.pairs)
    assert "model 'm', the second of 'another'" in comparison.not_compared[0].why


def test_hits_of_another_length_have_other_times(runs: Mapping[str, Path]) -> None:
    plan, ruling = ruled(runs["right"])
    timing = tuple(
        replace(each, reused_tokens=each.reused_tokens // 2) if each.path is ProbePath.EXTERNAL else each
        for each in ruling.timing
    )
    comparison = compare_runs((plan, ruling), (plan, replace(ruling, timing=timing)))
    assert ProbePath.EXTERNAL not in {each.path for each in comparison.paths}
    assert any("what is reused differs" in each.why for each in comparison.not_compared)


@pytest.mark.parametrize(("before", "after", "change"), [
    (Verdict.PASS, Verdict.FAIL, Change.REGRESSED),
    (Verdict.INCONCLUSIVE, Verdict.FAIL, Change.UNPROVEN),
    (Verdict.PASS, Verdict.INCONCLUSIVE, Change.UNPROVEN),
    (Verdict.FAIL, Verdict.INCONCLUSIVE, Change.UNPROVEN),
    (Verdict.INCONCLUSIVE, Verdict.PASS, Change.IMPROVED),
    (Verdict.FAIL, Verdict.FAIL, Change.SAME),
])  # fmt: skip
def test_every_change_of_a_verdict_has_a_name(before: Verdict, after: Verdict, change: Change) -> None:
    assert change is change_of(before, after)


def test_a_run_that_fails_as_a_whole_is_a_regression_although_no_pair_is(runs: Mapping[str, Path]) -> None:
    """Small differences of many groups fail a run, and no pair of it."""
    plan, ruling = ruled(runs["right"])
    comparison = compare_runs((plan, ruling), (plan, replace(ruling, verdict=Verdict.FAIL)))
    assert (Change.REGRESSED, Verdict.FAIL) == (comparison.change, comparison.verdict)
    assert {Change.SAME} == {pair.change for pair in comparison.pairs}
    assert {DriftChange.SAME} == {pair.drift for pair in comparison.pairs}
