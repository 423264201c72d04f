"""Prefill and decode over a shared Mooncake pool, without NIXL: decode loads what prefill has put."""

from typing import Any

import pytest

from tests.live.lab import Lab, proves_external
from tests.live.pd import blamed, config_of, proves_transfer, transferred

STACK = "pd-store"
pytestmark = pytest.mark.live


def test_a_healthy_store_passes(lab: Lab) -> None:
    gated = lab.gate(config_of(lab, "vllm-pd-store", "two_leg"))
    assert gated.code == 0
    proves_external(gated)
    proves_transfer(gated)
    for pairs in (gated.pairs("external", "local"), transferred(gated)):
        assert all(pair["exact"] and pair["max_drift"] == 0.0 for pair in pairs)


@pytest.mark.parametrize("fault", ["zero_one", "swap_two"])
def test_what_is_spoilt_between_put_and_load_fails_as_the_transfer(lab: Lab, fault: str) -> None:
    # Prefill has the prompt in its own cache, so what is in the pool is all that decode can have got.
    plant: dict[str, Any] = {
        "before_arm": {
            "cold": ["scripts/lab/plant", "mooncake", "note"],
            "local": ["scripts/lab/plant", "mooncake", fault],
        },
        "timeout_s": 120,
    }
    gated = lab.gate(config_of(lab, "vllm-pd-store", "two_leg", gate={"groups_per_tier": 1}, hooks=plant))
    assert gated.code == 1
    assert blamed(gated) == {"transfer"}
