"""``kvgate explain``: every code, setting and fault in words."""

import json

import pytest

from kvgate.config.schema import Config
from kvgate.config.settings import NONE, REQUIRED, settings
from kvgate.domain.reasons import Reason
from kvgate.sim.faults import FAULTS
from tests.cli.driving import kvgate


@pytest.mark.parametrize(("code", "told"), [
    ("DRIFT", "the KV bytes differ"),
    ("drift", "the KV bytes differ"),
    ("policy.envelope_cap_nat", "default: 0.5"),
    ("envelope_cap_nat", "largest tolerance of tolerant pairs"),
    ("one_bit", "one exponent bit"),
])  # fmt: skip
def test_a_code_a_setting_and_a_fault_are_explained(code: str, told: str) -> None:
    ended = kvgate("explain", code)
    assert 0 == ended.code
    assert told in ended.out


def test_what_two_tables_know_is_told_by_both() -> None:
    found = json.loads(kvgate("explain", "leak", "--format", "json").out)
    assert [{"code": "LEAK"}, {"fault": "leak"}] == [
        {name: row[name] for name in ("code", "fault") if name in row} for row in found
    ]


def test_a_slip_in_a_setting_is_set_right() -> None:
    ended = kvgate("explain", "policy.alfa")
    assert 2 == ended.code
    assert "did you mean policy.alpha?" in ended.err


@pytest.mark.parametrize(("table", "key", "count"), [
    ("reasons", "code", len(Reason)),
    ("faults", "fault", len(FAULTS)),
    ("settings", "key", len(settings())),
])  # fmt: skip
def test_tables_are_listed_whole(table: str, key: str, count: int) -> None:
    rows = json.loads(kvgate("explain", "--list", table, "--format", "json").out)
    assert count == len({row[key] for row in rows}) > 0
    assert all(all(row.values()) for row in rows), "nothing is left unexplained"


def test_every_key_of_a_file_is_a_setting_with_the_default_that_the_schema_has() -> None:
    by_key = {each.key: each for each in settings()}
    for section, field in Config.model_fields.items():
        keys = [key for key in by_key if key == section or key.startswith(f"{section}.")]
        assert keys, section
        assert field.description
    assert (REQUIRED, NONE) == (by_key["deployment.model"].default, by_key["policy.lossy_bound_nat"].default)
    assert ("3", "true") == (by_key["gate.groups_per_tier"].default, by_key["gate.sentinel"].default)
    assert {"deployment.endpoints[].rank", "gate.pressure", "gate.pressure.cancel_share", "hooks.pool_down"} <= set(
        by_key
    )
