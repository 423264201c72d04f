"""The chat endpoint of a real engine, with a real chat template, over a Mooncake pool."""

import pytest

from tests.live.lab import Lab, hooks, proves_external

STACK = "mooncake"
pytestmark = pytest.mark.live

BY_CHAT = {"endpoint": "chat"}
ONE_TIER = {"tiers": [256], "groups_per_tier": 2}


def test_a_healthy_pool_passes_by_chat(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-mooncake", gate=ONE_TIER, requests=BY_CHAT))
    assert gated.code == 0
    proves_external(gated)
    assert all(pair["exact"] and pair["max_drift"] == 0.0 for pair in gated.pairs("external", "local"))


def test_corrupted_objects_fail_by_chat(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-mooncake", gate=ONE_TIER, requests=BY_CHAT, hooks=hooks("zero_one")))
    assert gated.code == 1
    assert any("external path" in (pair["attribution"] or "") for pair in gated.pairs("external", "local"))


def test_canaries_sent_at_once_keep_to_themselves(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-mooncake", gate={**ONE_TIER, "groups_per_tier": 1, "canaries": 8}))
    assert gated.code == 0
    assert any("16 of 16 were answered, none of them with another's nonce" in note for note in gated.ruling["notes"])
