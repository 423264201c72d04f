"""The faults of the founding experiment, in KV files on disk, each decided by raw HTTP outside the gate."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.live.lab import ROOT, Gated, Lab, hooks, proves_external

STACK = "example"
pytestmark = pytest.mark.live

FAULTS = (
    "zero_block",
    "zero_block_one_layer",
    "zero_block0_last_layer",
    "swap_blocks",
    "exponent_bits",
    "one_exponent_bit",
    "one_mantissa_bit",
    "lowest_mantissa_bit",
    "smallest_value_bit",
    "gauss",
    "fp8_round_trip",
    "bf16_round_trip",
    "roll_one_block",
    "stale_duplicate",
)
TABLE: dict[str, tuple[dict[str, Any], Gated]] = {}


def raw_check(gated: Gated, fault: str) -> dict[str, Any]:
    """Whether the fault changes any output for the very prompt the gate used, by plain HTTP."""
    prompt = min((gated.run / "prompts").glob("t*.json"))
    argv = [sys.executable, str(ROOT / "scripts/lab/rawcheck.py"), str(prompt), fault]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def test_a_healthy_store_on_disk_passes_and_says_what_ignoring_salts_costs(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-example"))
    assert gated.code == 0
    proves_external(gated)
    assert gated.floor("local_vs_local_repeat")["max_drift"] == 0.0
    assert any("no cold_repeat" in note for note in gated.ruling["notes"])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_exactly_if_it_changes_an_output(lab: Lab, fault: str) -> None:
    gated = lab.gate(lab.config("vllm-example", hooks=hooks(fault, "example")))
    raw = raw_check(gated, fault)
    TABLE[fault] = (raw, gated)
    pair = gated.pairs("external", "local")[0]
    assert pair["exact"]
    assert pair["ids_equal"] == raw["ids_equal"]
    # The gate also counts what is certain of tokens that only one side lists, so it never sees less than plain HTTP.
    assert pair["max_drift"] >= raw["drift"] * (1 - 1e-6)
    # Plain HTTP sees no drift where the two sides' likeliest tokens have none in common: then the IDs tell.
    assert (pair["max_drift"] == 0.0) == (not raw["changed"])
    assert gated.code == (1 if raw["changed"] else 0)
    assert ("external path" in (pair["attribution"] or "")) == raw["changed"]


def test_drift_sees_what_token_ids_do_not() -> None:
    assert set(TABLE) == set(FAULTS)
    print(f"\n{'fault':24} {'token IDs':10} {'drift nat':>10}  raw HTTP  kvgate")
    for fault, (raw, gated) in TABLE.items():
        ids = "equal" if raw["ids_equal"] else "differ"
        print(f"{fault:24} {ids:10} {raw['drift']:10.2e}  {raw['changed']!s:8}  exit {gated.code}")
    changed = [fault for fault, (raw, _) in TABLE.items() if raw["changed"]]
    by_tokens = [fault for fault in changed if not TABLE[fault][0]["ids_equal"]]
    assert len(changed) >= 12
    # The control of the detectors: bytes that no output can tell apart are not called a fault.
    assert "smallest_value_bit" not in changed
    assert len(by_tokens) < len(changed)
