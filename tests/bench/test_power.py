"""The power bench, on a handful of runs: bounds, what a cell holds, today's rules, and results that are kept."""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = str(Path(__file__).parents[2] / "scripts" / "bench")


@pytest.fixture(scope="module")
def bench() -> Any:
    """The bench's modules; scripts are no package, so they are found by path."""
    sys.path.insert(0, SCRIPTS)
    try:
        names = ("power", "power_bounds", "power_cells", "power_keeping", "power_page", "power_table")
        yield type("Bench", (), {name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(SCRIPTS)


def cell(bench: Any, fault: str, **more: Any) -> Any:
    row = bench.power_cells.BY_NAME[fault]
    task = bench.power_cells.fault_tasks([row], "class", seeds=1, tiers=(8192,))[0]
    return bench.power_cells.carry_out(replace(task, **more))


def test_bounds_are_those_of_clopper_and_pearson(bench: Any) -> None:
    lower, upper = bench.power_bounds.lower_bound, bench.power_bounds.upper_bound
    assert lower(20, 20) == pytest.approx(0.05 ** (1 / 20))
    assert upper(0, 2000) == pytest.approx(1 - 0.05 ** (1 / 2000))
    # 9 of 10: p with 10 p^9 - 9 p^10 = 0.05.
    share = lower(9, 10)
    assert 10 * share**9 - 9 * share**10 == pytest.approx(0.05)
    assert (lower(0, 5), upper(5, 5), upper(0, 0)) == (0.0, 1.0, 1.0)


def test_there_are_thirty_classes_and_none_needs_what_the_gate_does_not_send(bench: Any) -> None:
    found = bench.power_cells.classes()
    assert len(found) >= 30
    assert not [fault.name for fault in (*found, *bench.power_cells.vacuous()) if fault.needs]


def test_a_fault_is_found_and_its_cost_is_that_of_the_first_failing_group(bench: Any) -> None:
    found = cell(bench, "zero_block")
    assert (found.verdict, found.groups, found.error) == ("FAIL", 1, "")
    assert found.length * 7 < found.sent < found.sent_in_all
    assert found.struck == found.loads > 0


def test_a_fault_that_cannot_strike_at_a_length_is_counted_apart(bench: Any) -> None:
    short = cell(bench, "long_only")
    assert (short.verdict, short.present) == ("PASS", False)
    assert bench.power_table.counted([short]) == []


def test_a_tier_below_the_hit_floor_is_not_applicable(bench: Any) -> None:
    below = cell(bench, "healthy", preset="deepseek-v4-flash", tiers=(128,), kind="class")
    assert (below.verdict, below.applicable) == ("INCONCLUSIVE", False)
    assert bench.power_table.counted([below]) == []


def test_a_pool_that_is_off_passes_todays_rules_and_not_the_gate(bench: Any) -> None:
    seen = cell(bench, "no_pool", kind="vacuous")
    assert seen.verdict == "INCONCLUSIVE"
    assert set(seen.rules.values()) == {"PASS"}


def test_benign_flips_fail_todays_rules_and_not_the_gate(bench: Any) -> None:
    seen = cell(bench, "healthy", kind="clean", lengths="exact", flip_share=1.0)
    assert seen.flipped == seen.flippable > 0
    assert seen.verdict != "FAIL"
    assert (seen.rules["IDs"], seen.rules["IDs, no drop"], seen.rules["0.1 nat"]) == ("FAIL", "FAIL", "PASS")


def test_loads_served_before_the_gate_came_move_faults_that_strike_by_number(bench: Any) -> None:
    struck = {cell(bench, "one_in_three", earlier=earlier).struck for earlier in (0, 4, 8, 12)}
    assert len(struck) > 1


def test_kept_results_are_measured_once_and_only_for_the_same_source(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, figures = tmp_path / "keep.jsonl", tmp_path / "figures.json"
    argv = ["power", "--quick", "--classes", "zero_block", "no_pool", "--jobs", "1", "--keep", str(keep)]
    monkeypatch.setattr(sys, "argv", [*argv, "--json", str(figures)])
    assert bench.power.main() == 1  # two classes are no thirty
    lines = keep.read_text().splitlines()
    assert len(lines) == 4
    assert bench.power.main() == 1
    assert keep.read_text().splitlines() == lines
    assert bench.power.kept_results(keep, "another source") == {}
    document = json.loads(figures.read_text())
    assert not document["limits"][0]["holds"]
    assert document["limits"][0]["wanted"] == "30 fault classes or more"
    shown = capsys.readouterr().out
    assert "| `zero_block`" in shown
    assert "| `no_pool`" in shown


def test_what_was_not_measured_holds_no_limit(bench: Any) -> None:
    assert [limit.wanted for limit in bench.power_table.limits([]) if limit.holds] == []


def test_a_page_takes_each_part_in_its_place(bench: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- measured: one -->\nold\n<!-- end -->\nbetween\n<!-- measured: two -->\n<!-- end -->\n"
    )
    bench.power_page.fill(page, {"two": "b \\1", "one": "a"})
    filled = "before\n<!-- measured: one -->\na\n<!-- end -->\nbetween\n<!-- measured: two -->\nb \\1\n<!-- end -->\n"
    assert page.read_text() == filled
    with pytest.raises(bench.power_page.PageError):
        bench.power_page.fill(page, {"three": "c"})


def test_the_page_has_a_place_for_every_part(bench: Any, tmp_path: Path) -> None:
    page = tmp_path / "power.md"
    page.write_text((Path(SCRIPTS).parents[1] / "docs" / "explanation" / "power.md").read_text())
    bench.power_page.fill(page, bench.power.report_of([cell(bench, "zero_block")], "a source").parts())
    assert "`zero_block`" in page.read_text()


def test_a_line_that_was_cut_off_does_not_spoil_the_next(bench: Any, tmp_path: Path) -> None:
    keep = tmp_path / "keep.jsonl"
    keep.write_text('{"source": "a", "ke')
    with bench.power_keeping.appending(keep) as file:
        file.write('{"source": "b"}\n')
    assert bench.power_keeping.rows_of(keep) == [{"source": "b"}]
