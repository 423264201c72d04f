"""A hybrid model with recurrent state over a Mooncake pool: healthy, and with the pooled state zeroed."""

import pytest

from tests.live.lab import Lab, hooks, proves_external

STACK = "qwen3next"
pytestmark = pytest.mark.live


def test_a_healthy_hybrid_passes(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-qwen3next"))
    assert gated.code == 0
    proves_external(gated)
    granule = gated.report["geometry"]["granule"]
    assert granule > 512  # the engine pads blocks until a recurrent state fits: 640 and 1152 were seen
    assert gated.floor("local_vs_local_repeat")["max_drift"] == 0.0
    assert [512] == [tier["tier"] for tier in gated.ruling["not_applicable"]]
    assert gated.ruling["not_applicable"][0]["hit_floor"] == granule + 1
    assert [group["length"] for group in gated.ruling["groups"] if group["purpose"] == "short_control"] == [512]


@pytest.mark.parametrize("fault", ["zero_group0", "zero_recurrent"])
def test_zeroed_recurrent_state_fails_although_token_ids_are_equal(lab: Lab, fault: str) -> None:
    changes = {"tiers": [1300], "groups_per_tier": 2}
    gated = lab.gate(lab.config("vllm-qwen3next", gate=changes, hooks=hooks(fault)))
    assert gated.code == 1
    pairs = gated.pairs("external", "local")
    assert all("external path" in pair["attribution"] for pair in pairs)
    assert all(pair["max_drift"] > 0.0 for pair in pairs)
    # Prompts are new in every run: a near tie of 0.002 nat may fall the other way in one of them.
    assert any(pair["ids_equal"] for pair in pairs)
    assert "DRIFT" in gated.reasons
    assert {"DRIFT", "DIVERGED"} >= set(gated.reasons)
