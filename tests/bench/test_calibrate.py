"""The calibration bench, on a handful of runs: noise, budgets cut out of one run, what is beside, the picture."""

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = str(Path(__file__).parents[2] / "scripts" / "bench")
PAGE = Path(SCRIPTS).parents[1] / "docs" / "explanation" / "calibration.md"
NAMES = ("calibrate", "calibrate_cells", "calibrate_noise", "calibrate_picture", "calibrate_rare", "calibrate_table")


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """The bench's modules; scripts are no package, so they are found by path."""
    sys.path.insert(0, SCRIPTS)
    try:
        names = (*NAMES, "power_cells", "power_gate", "power_page", "power_table")
        yield type("Bench", (), {name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(SCRIPTS)


def seen(bench: Any, **more: Any) -> Any:
    """A result that nobody had to measure."""
    known = {"part": "alarms", "fault": "healthy", "level": "request-5", "seed": 1, "verdict": "PASS", **more}
    return bench.calibrate_cells.Seen(key="/".join(str(known[name]) for name in list(known)[:4]), **known)


def test_everything_is_measured_once_and_told(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, picture, page = tmp_path / "keep.jsonl", tmp_path / "picture.svg", tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    argv = ["calibrate", "--quick", "--jobs", "1", "--keep", str(keep), "--markdown", str(page)]
    monkeypatch.setattr(sys, "argv", [*argv, "--picture", str(picture)])
    assert 1 == bench.calibrate.main()  # one run shows no 1 %
    lines = keep.read_text().splitlines()
    first = (page.read_text(), picture.read_bytes())
    assert 1 == bench.calibrate.main()
    assert (lines, first) == (keep.read_text().splitlines(), (page.read_text(), picture.read_bytes()))
    assert {} == bench.calibrate.kept_results(keep, "another source")
    assert {"alarms", "classes", "stops", "rare"} == {key.split("/")[0] for key in map(key_of, lines)}
    shown = capsys.readouterr().out
    for told in ("| `zero_block`", "| per request, 15 %", "one load in ten, at random", "external loads a group"):
        assert told in shown
        assert told in page.read_text()
    # The figures alone decide what is drawn.
    assert b"<dc:date>" not in picture.read_bytes()
    assert b"zero_block" in picture.read_bytes()


def key_of(line: str) -> str:
    return line.split('"key": "')[1].split('"', maxsplit=1)[0]


def test_a_run_can_be_made_again_by_its_key(
    bench: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = bench.calibrate_cells.Trial("classes", "zero_block", "request-15", 3)
    assert trial == bench.calibrate_cells.trial_named(trial.key)
    monkeypatch.setattr(sys, "argv", ["calibrate", "--rerun", trial.key])
    assert 0 == bench.calibrate.main()
    assert "FAIL" == capsys.readouterr().out.split()[0]


def test_a_false_alarm_is_never_hidden(bench: Any) -> None:
    table = bench.calibrate_table
    runs = [seen(bench, seed=seed) for seed in range(299)]
    clean = table.limits(runs)[:2]
    assert [True, True] == [limit.holds for limit in clean]
    few = table.limits([*runs, *(seen(bench, seed=seed, level="batch-0.02x8") for seed in range(100))])[:2]
    assert [True, False] == [limit.holds for limit in few], "a hundred runs bound nothing to 1 %"
    assert "at most 3 %" == few[1].measured
    wrong = seen(bench, seed=1299, verdict="FAIL", reasons=("DRIFT: group t1: 0.02 nat",))
    found = table.limits([*runs, wrong])[0]
    assert (False, "per request, 5 % (1/300)") == (found.holds, found.measured)
    (told,) = table.alarm_notes([*runs, wrong])
    assert "DRIFT (1)" in told
    assert "--rerun alarms/healthy/request-5/1299" in told


def test_healthy_runs_are_pooled_by_how_much_flips(bench: Any) -> None:
    levels = {"request-5": 3, "span-5": 2, "state-45": 1, "batch-0.02x1": 2, "batch-0.02x32": 4, "batch-0x1": 1}
    runs = [
        seen(bench, level=level, seed=seed, verdict="FAIL" if (level, seed) == ("span-5", 0) else "PASS")
        for level, count in levels.items()
        for seed in range(count)
    ]
    rows = bench.calibrate_table.pool_rows(runs)[1:]
    assert {
        ("5 % flip, of every kind", "5", "1"),
        ("45 % flip, of every kind", "1", "0"),
        ("batch, 0.02 nat, 1 to 32 beside", "6", "0"),
        ("0 % flip, of every kind", "1", "0"),
    } == {tuple(row[:3]) for row in rows}


def test_what_was_not_measured_holds_no_limit(bench: Any) -> None:
    assert [] == [limit.wanted for limit in bench.calibrate_table.limits([]) if limit.holds]


@pytest.mark.parametrize(("hits", "agree"), [(0, False), (6, False), (20, True), (40, False)])
def test_misses_are_held_against_chance(bench: Any, hits: int, agree: bool) -> None:
    table = bench.calibrate_table
    expected = table.expected_missed(0.1, 3, 2.0)
    assert expected == pytest.approx(0.9**6)
    assert agree == table.agrees(table.Count(hits, 40), expected)
    assert not table.holds_what_it_says(table.Count(6, 20))
    assert table.holds_what_it_says(table.Count(1, 20))


def test_a_smaller_budget_cut_out_of_a_run_is_that_run(bench: Any) -> None:
    def watched(groups: int) -> Any:
        place, watching = bench.calibrate_rare.end_at_fail()
        preset = bench.power_cells.scaled(bench.power_cells.PRESETS["dense"], 64)
        gate = {"tiers": [128], "groups_per_tier": groups, "seed": 5, "sentinel": False}
        wanted = bench.power_cells.Wanted(gate, 12, watching=watching)
        fault = bench.power_cells.BY_NAME["healthy"]
        run, _ = bench.power_cells.run_gate(fault, preset, fault.dials, wanted)
        assert place[0].ended(groups) is None
        return place[0], run

    (long, _), (short, run) = watched(4), watched(2)
    assert long.of_a_run(2) == short.of_a_run(2)
    judged = bench.calibrate_rare.judge(run.plan, bench.calibrate_rare.RunRecord(run.kept.entries))
    cut = long.ruling_of(2)
    assert (judged.verdict, judged.power, judged.groups) == (cut.verdict, cut.power, cut.groups)
    assert "none" == short.of_a_run(3).verdict


def test_what_is_beside_and_not_computed_changes_no_answer(bench: Any) -> None:
    def answers(beside_s: float | None) -> list[Any]:
        level = bench.calibrate_noise.BY_LEVEL["batch-0.02x2"]
        level = replace(level, dials=replace(level.dials, batch_shapes=1))
        preset = bench.power_cells.scaled(bench.power_cells.PRESETS["gdn-hybrid"], 64)
        gate = {"tiers": [128], "groups_per_tier": 2, "seed": 5, "pressure": {"concurrency": 2}}
        fault = bench.power_cells.BY_NAME["healthy"]
        wanted = bench.power_cells.Wanted(gate, 16, beside_s=beside_s)
        run, deployment = bench.power_cells.run_gate(fault, preset, level.on(fault.dials, 0), wanted)
        loads = [deed for deed in deployment.nodes["engine"].deeds if deed.external]
        assert {3} == {deed.batch for deed in loads[-4:]}
        record = bench.calibrate_rare.RunRecord(run.kept.entries)
        groups = [group for name, group in record.groups.items() if name.startswith("t")]
        return [
            (group.plan.id, step.arm, each.observation.token_ids, each.observation.logprobs)
            for group in groups
            for step in group.plan.steps
            for each in group.of(step.arm)
        ]

    computed, not_computed = answers(None), answers(bench.calibrate_noise.LONGEST_S)
    assert computed == not_computed
    assert len(computed) >= 12
