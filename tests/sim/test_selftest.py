"""The gate held against every fault of the embedded deployment, and the self-test held against a weakened gate."""

import json

import pytest
from typer.testing import CliRunner

from kvgate.cli.app import app
from kvgate.cli.selftest import check
from kvgate.domain import rows
from kvgate.sim.faults import BY_NAME, FAULTS
from kvgate.sim.planting import ON_LOAD

TESTED = [fault.name for fault in FAULTS if not fault.needs]


@pytest.mark.parametrize("fault", TESTED)
def test_the_gate_gives_the_required_verdict(fault: str) -> None:
    row = BY_NAME[fault]
    result = check(row)
    assert (row.verdict, True) == (result.verdict, result.right), result.reasons
    assert not row.reasons or set(row.reasons) & set(result.reasons)


# Each row of the table, and a fault that only it decides.
NEEDED = (
    ("leak", "leak"),
    ("refused", "refused_hit"),
    ("protocol", "empty_answer"),
    ("exact_ids", "swallowed_failure"),
    ("exact_drift", "one_bit"),
    ("tolerant_beyond", "lease_expired"),
    ("unproven", "lying_usage"),
)


@pytest.mark.parametrize(("row", "by"), NEEDED)
def test_the_self_test_turns_red_when_a_row_is_removed(row: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tuple((number, each) for number, each in rows.ROWS if each.__name__ != row)
    assert len(kept) == len(rows.ROWS) - 1
    monkeypatch.setattr(rows, "ROWS", kept)
    assert not check(BY_NAME[by]).right


@pytest.mark.parametrize("name", ["one_bit", "empty_answer", "healthy"])
def test_the_self_test_turns_red_when_a_fault_is_not_what_the_table_says(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that does nothing, and a healthy engine that does something, get another verdict than the required."""
    monkeypatch.setitem(ON_LOAD, "one_bit", lambda _objects, _loading: None)
    monkeypatch.setitem(ON_LOAD, "healthy", ON_LOAD["zero_block"])
    monkeypatch.setattr("kvgate.sim.node.ON_ANSWER", {})
    assert not check(BY_NAME[name]).right


def selftest(*arguments: str) -> tuple[int, list[dict[str, object]]]:
    done = CliRunner().invoke(app, ["selftest", *arguments, "--format", "json"])
    return done.exit_code, json.loads(done.stdout)


def test_the_command_tells_every_fault_and_ends_with_0_or_1(monkeypatch: pytest.MonkeyPatch) -> None:
    code, results = selftest("healthy", "one_bit", "proxy_swallows_refusal", "--jobs", "1")
    assert (0, ["healthy", "one_bit"]) == (code, [result["fault"] for result in results])
    assert [("PASS", "PASS", True), ("FAIL", "FAIL", True)] == [
        (result["required"], result["verdict"], result["right"]) for result in results
    ]
    monkeypatch.setattr(rows, "ROWS", tuple(each for each in rows.ROWS if each[1].__name__ != "exact_drift"))
    code, (result,) = selftest("one_bit", "--jobs", "1")
    # Groups together still show it, but not that the bytes differ.
    assert (1, "FAIL", False) == (code, result["verdict"], result["right"])


def test_faults_that_need_traffic_alone_are_inconclusive() -> None:
    assert (3, []) == selftest("proxy_swallows_refusal")


def test_an_unknown_fault_is_a_usage_error() -> None:
    done = CliRunner().invoke(app, ["selftest", "no_such_fault"])
    assert 2 == done.exit_code
    assert "`kvgate sim faults` lists them" in done.stderr
