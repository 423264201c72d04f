"""A real engine with a Mooncake pool while other requests are in flight."""

from typing import Any

import pytest

from tests.live.lab import Lab, hooks, proves_external

STACK = "mooncake"
pytestmark = pytest.mark.live


def busy(concurrency: int, **more: Any) -> dict[str, Any]:
    return {"tiers": [256], "groups_per_tier": 2, "pressure": {"concurrency": concurrency, "tokens": 128, **more}}


# What a pool a sixteenth as large cannot hold (test_small_pool.py).
CROWDED = {**busy(4), "groups_per_tier": 1, "tiers": [256, 1024]}


@pytest.mark.parametrize("concurrency", [4, 8])
def test_a_healthy_pool_passes_under_pressure(lab: Lab, concurrency: int) -> None:
    gated = lab.gate(lab.config("vllm-mooncake", gate=busy(concurrency)))
    assert gated.code == 0, gated.ruling["reasons"]
    proves_external(gated)
    told = next(note for note in gated.ruling["notes"] if note.startswith("under pressure"))
    assert f"under pressure: {concurrency} requests of 128 tokens" in told
    assert told.endswith(" 0 failed")


def test_a_healthy_pool_passes_while_clients_go_away(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-mooncake", gate=busy(4, cancel_share=0.5)))
    assert gated.code == 0, gated.ruling["reasons"]
    told = next(note for note in gated.ruling["notes"] if note.startswith("under pressure"))
    assert ", 0 broken off" not in told
    # What their requests held is let go, and the others in flight were seen.
    (signals,) = gated.ruling["signals"]
    assert signals["released"] is True
    assert signals["most_running"] >= 1


def test_each_level_has_a_noise_floor_of_its_own_while_beginnings_are_shared_between(lab: Lab) -> None:
    gate = busy(4, cancel_share=0.3, between=3, pause_s=0.2)
    gate["pressure"]["concurrency"] = [0, 4]
    gated = lab.gate(lab.config("vllm-mooncake", gate=gate))
    assert gated.code == 0, gated.ruling["reasons"]
    proves_external(gated)
    assert {0, 4} == {floor["level"] for floor in gated.ruling["noise"]}
    told = next(note for note in gated.ruling["notes"] if note.startswith("under pressure"))
    assert "0 or 4 requests of 128 tokens in flight" in told
    assert "3 with a common beginning sent before it" in told
    assert told.endswith(" 0 failed")


def test_a_pool_of_normal_size_holds_what_a_small_one_evicts(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-mooncake", gate=CROWDED, limits={"external_attempts": 2}))
    assert 0 == gated.code, gated.ruling["reasons"]
    proves_external(gated)


def test_corrupted_objects_fail_under_pressure(lab: Lab) -> None:
    # Every object put since the prompt was sent, also those of the requests beside it: they cannot be told apart.
    gated = lab.gate(lab.config("vllm-mooncake", gate=busy(4), hooks=hooks("zero_all")))
    assert gated.code == 1
    assert any("external path" in (pair["attribution"] or "") for pair in gated.pairs("external", "local"))
