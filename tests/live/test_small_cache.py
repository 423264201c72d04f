"""An engine that cannot be told to forget, and a pool that holds more than it: its cache is flooded instead."""

import pytest

from tests.live.lab import Lab, hooks, proves_external

STACK = "small-cache"
pytestmark = pytest.mark.live

ONE_GROUP = {"tiers": [256], "groups_per_tier": 1}


def test_a_flood_brings_the_prompt_back_from_the_pool(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-mooncake", gate=ONE_GROUP))
    assert gated.code == 0
    assert gated.report["forcing"] == "evict"
    proves_external(gated)
    assert all(pair["exact"] and pair["max_drift"] == 0.0 for pair in gated.pairs("external", "local"))


def test_what_came_back_wrong_fails(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-mooncake", gate=ONE_GROUP, hooks=hooks("swap_two")))
    assert gated.code == 1
    assert any("external path" in (pair["attribution"] or "") for pair in gated.pairs("external", "local"))
