"""Prefill over a Mooncake pool and decode over NIXL: the pool and the transfer, each shown, and each found guilty."""

import pytest

from tests.live.lab import Lab, hooks, proves_external
from tests.live.pd import blamed, config_of, fault, proves_transfer, transferred

STACK = "pd-pool"
pytestmark = pytest.mark.live

ONE_GROUP = {"groups_per_tier": 1}


@pytest.mark.parametrize("route", ["two_leg", "proxy", "router"])
def test_a_healthy_deployment_passes_with_proof_on_prefill_and_on_decode(lab: Lab, route: str) -> None:
    gated = lab.gate(config_of(lab, "vllm-pd-pool", route))
    assert gated.code == 0
    proves_external(gated)
    proves_transfer(gated)
    for pairs in (gated.pairs("external", "local"), transferred(gated)):
        assert pairs
        assert all(pair["exact"] and pair["max_drift"] == 0.0 for pair in pairs)


@pytest.mark.parametrize(("kind", "route"), [("zero_one", "two_leg"), ("swap_two", "proxy"), ("zero_one", "router")])
def test_corrupted_objects_fail_and_the_pool_on_prefill_is_named(lab: Lab, kind: str, route: str) -> None:
    gated = lab.gate(config_of(lab, "vllm-pd-pool", route, gate=ONE_GROUP, hooks=hooks(kind)))
    assert gated.code == 1
    assert blamed(gated) == {"external path"}
    proves_external(gated)


def test_an_emptied_pool_is_a_miss_though_decode_shows_external_tokens(lab: Lab) -> None:
    changes = {"hooks": hooks("remove_all"), "limits": {"external_attempts": 2}}
    gated = lab.gate(config_of(lab, "vllm-pd-pool", "proxy", gate=ONE_GROUP, **changes))
    assert gated.code == 3
    assert gated.reasons[0] == "EXTERNAL_MISS"


def test_a_wrong_transfer_is_told_from_a_wrong_pool(lab: Lab) -> None:
    with fault("reversed"):
        gated = lab.gate(config_of(lab, "vllm-pd-pool", "proxy_and_wire", gate=ONE_GROUP))
    assert gated.code == 1
    assert blamed(gated) == {"transfer"}
