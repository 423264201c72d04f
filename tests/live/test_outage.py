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


def test_a_killed_master_changes_no_answer_and_serves_again(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-mooncake", gate=ONE_TIER, hooks=HOOKS))
    assert gated.code == 0, gated.ruling["reasons"]
    (group,) = [each for each in gated.ruling["groups"] if each["purpose"] == "outage"]
    arms = {arm["arm"]: arm for arm in group["arms"]}
    assert all(arm["proven"] for arm in arms.values())
    assert [0, 0] == [arms[name]["external"] for name in ("outage", "outage_repeat")], "the master was away"
    assert group["expected_external"] == arms["external"]["external"] == arms["recovered"]["external"]
    away = [pair for pair in group["pairs"] if pair["kind"] == "outage_vs_cold"]
    assert [(True, 0.0), (True, 0.0)] == [(pair["exact"], pair["max_drift"]) for pair in away]


def test_a_master_that_nobody_killed_shows_nothing(lab: Lab) -> None:
    """The control: a hook that does nothing leaves the pool where it was."""
    gated = lab.gate(
        lab.config("vllm-mooncake", gate=ONE_TIER, hooks={**HOOKS, "pool_down": ["true"], "pool_up": ["true"]})
    )
    assert gated.code == 3
    assert "OUTAGE_MISSING" in gated.reasons
