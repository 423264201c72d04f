"""Prefill and decode over NIXL with what else they run with: a hybrid model, and speculation."""

from pathlib import Path

import pytest

from tests.live.conftest import standing
from tests.live.lab import proves_external
from tests.live.pd import blamed, config_of, fault, proves_transfer, transferred

pytestmark = pytest.mark.live

ONE_GROUP = {"groups_per_tier": 1}


def test_a_hybrid_model_is_transferred_whole_and_a_wrong_transfer_of_it_is_found(tmp_path: Path) -> None:
    with standing("pd-hybrid", tmp_path) as lab:
        gate = {"tiers": [1300], "groups_per_tier": 1}
        gated = lab.gate(config_of(lab, "vllm-pd", "two_leg", gate=gate))
        assert gated.code == 0
        proves_transfer(gated)
        with fault("foreign_blocks"):
            broken = lab.gate(config_of(lab, "vllm-pd", "wire", gate=gate))
        assert broken.code == 1
        assert blamed(broken) == {"transfer"}


def test_speculation_on_both_sides_passes_and_a_wrong_transfer_is_found(tmp_path: Path) -> None:
    with standing("pd-ngram", tmp_path) as lab:
        gated = lab.gate(config_of(lab, "vllm-pd-pool", "proxy", gate=ONE_GROUP))
        assert gated.code == 0
        proves_external(gated)
        proves_transfer(gated)
        assert all(pair["exact"] and pair["max_drift"] == 0.0 for pair in transferred(gated))
        with fault("reversed"):
            broken = lab.gate(config_of(lab, "vllm-pd-pool", "proxy_and_wire", gate=ONE_GROUP))
        assert broken.code == 1
        assert blamed(broken) == {"transfer"}
