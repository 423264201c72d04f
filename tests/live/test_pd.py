"""Prefill and decode over NIXL without a pool: the transfer alone, whole, wrong, failed and left out."""

import pytest

from tests.live.lab import Lab
from tests.live.pd import blamed, config_of, endpoints, fault, proves_transfer, transferred

STACK = "pd"
pytestmark = pytest.mark.live

ONE_GROUP = {"groups_per_tier": 1}
# Whole blocks only: decode computes the last token of every prompt itself, here the only one of its block.
WHOLE_BLOCKS = {**ONE_GROUP, "tiers": [288], "lengths": "exact"}


@pytest.mark.parametrize("route", ["two_leg", pytest.param("proxy", marks=pytest.mark.smoke), "router"])
def test_a_healthy_transfer_passes_and_is_bit_equal_to_prefill_alone(lab: Lab, route: str) -> None:
    gated = lab.gate(config_of(lab, "vllm-pd", route))
    assert gated.code == 0
    proves_transfer(gated)
    arms = {arm["arm"]: arm for arm in gated.ruling["groups"][0]["arms"]}
    assert arms["cold"]["endpoint"] == ("decode" if route == "two_leg" else "gateway")
    assert arms["prefill_direct"]["endpoint"] == "prefill"
    assert all(pair["exact"] and pair["max_drift"] == 0.0 for pair in transferred(gated))


@pytest.mark.parametrize("route", ["proxy", "two_leg"])
def test_a_healthy_transfer_passes_under_pressure(lab: Lab, route: str) -> None:
    gate = {**ONE_GROUP, "pressure": {"concurrency": 2, "tokens": 128}}
    gated = lab.gate(config_of(lab, "vllm-pd", route, gate=gate))
    assert gated.code == 0, gated.ruling["reasons"]
    proves_transfer(gated)
    told = next(note for note in gated.ruling["notes"] if note.startswith("under pressure"))
    assert told.endswith(" 0 failed")


def test_a_wrong_transfer_fails_under_pressure(lab: Lab) -> None:
    gate = {**ONE_GROUP, "pressure": {"concurrency": 2, "tokens": 128}}
    with fault("foreign_blocks"):
        gated = lab.gate(config_of(lab, "vllm-pd", "proxy_and_wire", gate=gate))
    assert gated.code == 1, gated.ruling["reasons"]
    assert blamed(gated) == {"transfer"}


@pytest.mark.parametrize(("kind", "route"), [
    ("reversed", "wire"),
    pytest.param("reversed", "proxy_and_wire", marks=pytest.mark.smoke),
    ("foreign_blocks", "wire"),
    ("foreign_blocks", "proxy_and_wire"),
    ("stale", "wire"),
])  # fmt: skip
def test_a_wrong_transfer_fails_and_the_transfer_is_named(lab: Lab, kind: str, route: str) -> None:
    with fault(kind):
        gated = lab.gate(config_of(lab, "vllm-pd", route, gate=ONE_GROUP))
    assert gated.code == 1
    assert blamed(gated) == {"transfer"}
    # Nothing but the answers shows it: the counters on decode are those of a good transfer.
    proves_transfer(gated)
    assert [False] == [pair["ids_equal"] for pair in transferred(gated)]


@pytest.mark.parametrize("kind", ["reversed", "swap_inner"])
def test_what_goes_wrong_only_through_the_gateway_is_laid_at_its_door(lab: Lab, kind: str) -> None:
    # The same prompt sent past it, in two legs of kvgate's own, is right.
    with fault(kind):
        gated = lab.gate(config_of(lab, "vllm-pd", "proxy", gate=ONE_GROUP))
    assert gated.code == 1
    assert blamed(gated) == {"gateway"}
    assert all(pair["exact"] and pair["max_drift"] == 0.0 for pair in transferred(gated))


def test_a_foreign_last_block_fails(lab: Lab) -> None:
    with fault("foreign_last_block"):
        gated = lab.gate(config_of(lab, "vllm-pd", "wire", gate=WHOLE_BLOCKS))
    assert gated.code == 1
    assert blamed(gated) == {"transfer"}
    proves_transfer(gated)


def test_two_swapped_blocks_show_in_drift_alone(lab: Lab) -> None:
    with fault("swap_inner"):
        gated = lab.gate(config_of(lab, "vllm-pd", "wire", gate=ONE_GROUP))
    assert gated.code == 1
    assert blamed(gated) == {"transfer"}
    assert gated.reasons == ["DRIFT"]
    assert [True] == [pair["ids_equal"] for pair in transferred(gated)]


@pytest.mark.smoke
def test_a_decoder_that_computes_all_again_proves_nothing_though_its_answers_are_right(lab: Lab) -> None:
    with fault("dropped"):
        gated = lab.gate(config_of(lab, "vllm-pd", "proxy", gate=ONE_GROUP))
    assert gated.code == 3
    assert gated.reasons[0] == "TRANSFER_NOT_EXERCISED"
    assert all(pair["ids_equal"] for group in gated.ruling["groups"] for pair in group["pairs"])


@pytest.mark.parametrize("kind", ["wrong_engine", "wrong_port"])
def test_a_failed_transfer_is_never_proof(lab: Lab, kind: str) -> None:
    # Decode answers HTTP 500, and its external hits rise all the same.
    with fault(kind):
        gated = lab.gate(config_of(lab, "vllm-pd", "wire", gate=ONE_GROUP))
    assert gated.code == 3
    assert gated.reasons[0] == "PROBE_REFUSED"


def test_an_error_hidden_behind_an_empty_answer_is_said_to_be_one(lab: Lab) -> None:
    # As the load-balance proxy of vllm-ascend does: a 500 of decode becomes a 200 with an empty body.
    with fault("wrong_engine", swallow=True):
        gated = lab.gate(config_of(lab, "vllm-pd", "proxy", gate=ONE_GROUP))
    assert gated.code == 3
    assert gated.reasons[0] == "EMPTY"


def test_the_transfer_never_stands_for_a_pool(lab: Lab) -> None:
    # External tokens on decode rise with every transfer; prefill has no pool to load from, but NIXL is asked.
    gated = lab.gate(lab.config("vllm-pd-pool", deployment={"endpoints": endpoints("proxy")}, gate=ONE_GROUP))
    assert gated.code == 3
    assert gated.reasons[0] == "EXTERNAL_MISS"
    external = [arm for arm in gated.ruling["groups"][0]["arms"] if arm["arm"].startswith("external")]
    assert [0, 0] == [arm["external"] for arm in external]
