"""A real engine whose Mooncake master is killed and started again in mid-run."""

import pytest

from tests.live.lab import Lab

STACK = "mooncake"
pytestmark = pytest.mark.live

ONE_TIER = {"tiers": [256], "groups_per_tier": 2}
HOOKS = {
    "pool_down": ["scripts/lab/pool", "down", STACK],
    "pool_up": ["scripts/lab/pool", "up", STACK],
    "timeout_s": 60,
}


def test_what_a_killed_master_does_is_shown(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-mooncake", gate=ONE_TIER, hooks=HOOKS))
    raise AssertionError(gated.ruling)
