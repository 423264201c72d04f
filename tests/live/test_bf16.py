"""SmolLM2 in bf16: aligned lengths are exact everywhere; unaligned ones need the calibrated policy."""

import subprocess

import pytest

from tests.live.lab import ROOT, Lab, proves_external

STACK = "mooncake-bf16"
pytestmark = pytest.mark.live


def test_aligned_lengths_pass_both_policies_with_every_floor_at_zero(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-mooncake-bf16"))
    assert gated.code == 0
    proves_external(gated)
    assert [gated.policy(name)["verdict"] for name in ("calibrated", "strict")] == ["PASS", "PASS"]
    assert gated.ruling["alignment_proven"]
    assert [0.0] * 3 == [
        gated.floor(kind)["max_drift"] for kind in ("local_vs_local_repeat", "cold_vs_cold_repeat", "local_vs_cold")
    ]
    assert all(pair["exact"] for group in gated.ruling["groups"] for pair in group["pairs"])


def test_unaligned_lengths_pass_calibrated_and_fail_strict(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-mooncake-bf16-unaligned"))
    assert gated.code == 0
    assert gated.policy("calibrated")["verdict"] == "PASS"
    strict = gated.policy("strict")
    assert strict["verdict"] == "FAIL"
    assert strict["reasons"][0]["reason"] == "TOKENS_DIFFER"
    # The shape-matched floor stays at exactly 0.0 although cold and hit give other token IDs.
    assert all(pair["exact"] and pair["max_drift"] == 0.0 for pair in gated.pairs("external", "local"))
    cold = gated.pairs("external", "cold")
    differing = [pair for pair in cold if not pair["ids_equal"]]
    assert differing
    assert all("not aligned" in pair["why_not_exact"] for pair in cold)
    assert {"NEAR_TIE"} == {note["reason"] for pair in differing for note in pair["annotations"]}
    # The same record under the plain rule, "same prompt twice, same token IDs".
    done = subprocess.run([".venv/bin/kvgate", "judge", str(gated.run), "--policy", "strict"], cwd=ROOT, check=False)
    assert done.returncode == 1
