"""The gate held against every fault of the embedded deployment, and the self-test held against a weakened gate."""

import json

import pytest
from typer.testing import CliRunner

from kvgate.cli.app import app
from kvgate.domain import rows
from kvgate.sim.faults import FAULTS


def selftest(*faults: str) -> tuple[int, list[dict[str, object]]]:
    done = CliRunner().invoke(app, ["selftest", *faults, "--format", "json"])
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.parametrize("fault", [fault.name for fault in FAULTS])
def test_the_gate_gives_the_required_verdict(fault: str) -> None:
    code, results = selftest(fault)
    assert (0, True) == (code, results[0]["right"]), results


# Each row of the table, and a fault that only it decides.
NEEDED = (
    ("leak", "leak"),
    ("refused", "refused_hit"),
    ("protocol", "empty_answer"),
    ("exact_drift", "one_bit"),
    ("unproven", "lying_usage"),
)


@pytest.mark.parametrize(("row", "fault"), NEEDED)
def test_the_self_test_turns_red_when_a_row_is_removed(row: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tuple((number, each) for number, each in rows.ROWS if each.__name__ != row)
    assert len(kept) == len(rows.ROWS) - 1
    monkeypatch.setattr(rows, "ROWS", kept)
    code, results = selftest(fault)
    assert (1, False) == (code, results[0]["right"]), results


def test_an_unknown_fault_is_a_usage_error() -> None:
    done = CliRunner().invoke(app, ["selftest", "no_such_fault"])
    assert done.exit_code == 2
    assert "`kvgate sim faults` lists them" in done.stderr
