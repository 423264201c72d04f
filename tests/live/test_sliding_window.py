"""A model with sliding-window and full attention over a Mooncake pool, with boundary lengths."""

import pytest

from tests.live.lab import Lab, hooks, proves_external

STACK = "gemma3"
pytestmark = pytest.mark.live


def test_a_healthy_sliding_window_model_passes(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-gemma3"))
    assert gated.code == 0
    proves_external(gated)
    assert gated.floor("local_vs_local_repeat")["max_drift"] == 0.0
    assert [group for group in gated.ruling["groups"] if group["purpose"] == "boundary"]


def test_a_zeroed_pool_object_fails(lab: Lab) -> None:
    changes = {"tiers": [660], "groups_per_tier": 1, "boundaries": False}
    gated = lab.gate(lab.config("vllm-gemma3", gate=changes, hooks=hooks("zero_all")))
    assert gated.code == 1
