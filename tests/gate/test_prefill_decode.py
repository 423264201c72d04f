"""The whole tool against embedded prefill/decode deployments: proof on both sides, and the guilty part by name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgate.cli.event_loop import run_async
from kvgate.cli.selftest import config_for
from kvgate.domain.history import ProbeAnswered
from kvgate.domain.observation import Observation
from kvgate.domain.plan import PairKind, Purpose
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Reason
from kvgate.domain.ruling import RunVerdict
from kvgate.domain.verdict import Verdict
from kvgate.errors import ConfigError
from kvgate.sim.deployment import Deployment, make_deployment, serving
from kvgate.sim.dials import Dials
from kvgate.sim.faults import BY_NAME
from kvgate.sim.presets import PRESETS, scaled
from kvgate.sim.topology import ProxyKind, Topology
from kvgate.store.run_directory import read_history
from tests.gate.test_arms import USUAL, ruled
from tests.gate.test_arms import gated as arms_gated


def histories(folder: Path) -> list[Observation]:
    """The replies of the one run kept in a folder."""
    (run,) = (folder / "runs").glob("[0-9]*")
    return [entry.observation for entry in read_history(run) if isinstance(entry, ProbeAnswered)]


def gated(folder: Path, fault: str = "healthy", leave_out: str = "", **changes: Any) -> RunVerdict:
    """The ruling on a prefill/decode deployment with a fault; ``changes`` go into the deployment section."""
    return run_async(_gated, folder, fault, leave_out, changes)


async def _gated(folder: Path, fault: str, leave_out: str, changes: dict[str, Any]) -> RunVerdict:
    row = BY_NAME[fault]
    # Every other shape of a last prefill chunk rounds otherwise, as on real engines.
    dials = replace(row.dials, flip_share=1.0)
    deployment = make_deployment(scaled(PRESETS[row.preset], 16), Topology.PD, fault, dials, proxy=row.proxy)
    async with serving(deployment) as urls:
        content: dict[str, Any] = config_for(replace(BY_NAME["healthy_pd"], tiers=row.tiers), urls, folder)
        content["deployment"].update(changes)
        endpoints = content["deployment"]["endpoints"]
        content["deployment"]["endpoints"] = [each for each in endpoints if each["name"] != leave_out]
        _, ruling = await ruled(folder, content)
        return ruling


def blamed(ruling: RunVerdict) -> set[str]:
    return {pair.attribution.split(":")[0] for group in ruling.groups for pair in group.pairs if pair.attribution}


# Through the proxy, and, where the configuration names none, in two legs that kvgate sends itself.
ROUTES = pytest.mark.parametrize("leave_out", ["", "gateway"], ids=["gateway", "two legs"])


@ROUTES
def test_a_healthy_deployment_passes_with_proof_on_both_sides(leave_out: str, tmp_path: Path) -> None:
    ruling = gated(tmp_path, leave_out=leave_out)
    assert ("PASS", set()) == (ruling.verdict.value, blamed(ruling))
    arms = {arm.arm: arm for arm in ruling.groups[0].arms}
    assert (0, ruling.groups[0].expected_external) == (arms[Arm.EXTERNAL].local, arms[Arm.EXTERNAL].external)
    assert "prefill" == arms[Arm.PREFILL_DIRECT].endpoint
    assert all(arm.proven for arm in arms.values())


@ROUTES
@pytest.mark.parametrize(("fault", "part"), [
    ("zero_block", "external path"),
    ("transfer_subtle", "transfer"),
    ("transfer_reversed", "transfer"),
    ("stale_reference", "transfer"),
])  # fmt: skip
def test_the_guilty_part_is_named(fault: str, part: str, leave_out: str, tmp_path: Path) -> None:
    ruling = gated(tmp_path, fault, leave_out)
    assert "FAIL" == ruling.verdict.value
    assert part in blamed(ruling)
    if part == "external path":
        assert {"external path"} == blamed(ruling)
    else:
        assert any("transfer" in advice for advice in ruling.advice)


def test_each_leg_is_kept_with_what_its_engine_said(tmp_path: Path) -> None:
    gated(tmp_path)
    two = [seen for seen in histories(tmp_path) if seen.legs]
    assert two
    for seen in two:
        assert ["prefill", "decode"] == [leg.endpoint for leg in seen.legs]
        first, second = seen.legs
        assert (1, seen.token_ids) == (len(first.token_ids or ()), second.token_ids)
        assert None not in (first.usage, second.usage, first.timing)


def test_the_same_prompt_goes_past_the_gateway_too(tmp_path: Path) -> None:
    ruling = gated(tmp_path)
    arms = {arm.arm: arm for arm in ruling.groups[0].arms}
    assert ("decode", True) == (arms[Arm.TWO_LEG].endpoint, arms[Arm.TWO_LEG].proven)
    exact = {pair.kind for pair in ruling.groups[0].pairs if pair.exact}
    assert {PairKind.GATEWAY_VS_TWO_LEG, PairKind.TRANSFER_VS_DIRECT} <= exact


@pytest.mark.parametrize("kind", [ProxyKind.LAYERWISE, ProxyKind.ROUTER])
def test_a_healthy_deployment_passes_behind_every_proxy(kind: ProxyKind, tmp_path: Path) -> None:
    name = {ProxyKind.LAYERWISE: "healthy_pd_layerwise", ProxyKind.ROUTER: "healthy_pd_router"}[kind]
    assert kind is BY_NAME[name].proxy
    ruling = gated(tmp_path, name)
    assert ("PASS", set()) == (ruling.verdict.value, blamed(ruling))
    for group in ruling.groups:
        arms = {arm.arm: arm for arm in group.arms}
        assert (0, group.expected_external) == (arms[Arm.EXTERNAL].local, arms[Arm.EXTERNAL].external)
        assert all(arm.proven for arm in arms.values())


# The table names the guilty part; the gate, which has one route at a time, names it by what it says on both.
POOL = ("pd_pool", "pd_swallowed_failure", "decode_puts_early")
TRANSFER = ("transfer_relayout", "transfer_last_token")
PROXY = (
    "proxy_temperature",
    "proxy_first_token_lost",
    "proxy_retokenises",
    "proxy_mixes_clients",
    "proxy_caches_answers",
)


@pytest.mark.parametrize("fault", POOL)
def test_a_guilty_pool_is_named_behind_the_proxy(fault: str, tmp_path: Path) -> None:
    assert "pool" == BY_NAME[fault].guilty
    ruling = gated(tmp_path, fault)
    assert ("FAIL", {"external path"}) == (ruling.verdict.value, blamed(ruling))


@pytest.mark.parametrize("fault", TRANSFER)
def test_a_guilty_transfer_shows_without_the_proxy_too(fault: str, tmp_path: Path) -> None:
    assert "transfer" == BY_NAME[fault].guilty
    ruling = gated(tmp_path, fault, leave_out="gateway")
    assert "FAIL" == ruling.verdict.value
    assert "transfer" in blamed(ruling)


@pytest.mark.parametrize("fault", PROXY)
def test_a_guilty_proxy_leaves_nothing_wrong_in_two_legs(fault: str, tmp_path: Path) -> None:
    assert "proxy" == BY_NAME[fault].guilty
    assert ("PASS", set()) == ((ruling := gated(tmp_path, fault, leave_out="gateway")).verdict.value, blamed(ruling))


def test_a_difference_between_prefill_and_decode_needs_a_word_from_the_operator(tmp_path: Path) -> None:
    unsaid = gated(tmp_path, "transfer_subtle", alike=None)
    assert ("INCONCLUSIVE", "TRANSFER_UNPROVEN") == (unsaid.verdict.value, unsaid.reasons[0].reason.value)
    different = gated(tmp_path, "transfer_subtle", alike=False)
    assert "PASS" == different.verdict.value
    alike = gated(tmp_path, "transfer_subtle", alike=True)
    assert ("FAIL", "DRIFT") == (alike.verdict.value, alike.reasons[0].reason.value)


@pytest.mark.parametrize("fault", ["transfer_dropped", "decode_caches"])
def test_an_answer_that_was_not_transferred_proves_nothing(fault: str, tmp_path: Path) -> None:
    ruling = gated(tmp_path, fault)
    assert "INCONCLUSIVE" == ruling.verdict.value
    assert "TRANSFER_NOT_EXERCISED" == ruling.reasons[0].reason.value


def test_hits_on_the_decode_side_never_stand_for_the_pool(tmp_path: Path) -> None:
    # The decoder's external tokens rise with every transfer; the pool is off all the same.
    ruling = gated(tmp_path, "no_pool")
    assert ("INCONCLUSIVE", "PATH_NOT_EXERCISED") == (ruling.verdict.value, ruling.reasons[0].reason.value)


def test_two_legs_show_what_the_proxy_hides(tmp_path: Path) -> None:
    # The proxy drops the transfer parameters; without it the transfer is whole.
    assert "INCONCLUSIVE" == gated(tmp_path, "transfer_dropped").verdict.value
    assert "PASS" == gated(tmp_path, "transfer_dropped", leave_out="gateway").verdict.value


@pytest.mark.parametrize("missing", ["prefill", "decode"])
def test_every_prefill_and_decode_engine_must_be_named(missing: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="every prefill and decode engine with its role"):
        gated(tmp_path, leave_out=missing)


LEAVES_OFF = Dials(prefill_drops=1)


@pytest.mark.parametrize("boundaries", [False, True])
def test_a_prefill_engine_that_leaves_the_last_token_to_decode_is_understood(tmp_path: Path, boundaries: bool) -> None:
    # As vLLM does on models with recurrent state: prefill counts one token less than was sent.
    def change(_deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
        content["gate"] |= {"boundaries": boundaries, "tiers": [600, 1100]}

    made: dict[str, Any] = {"preset": "gdn-hybrid", "topology": Topology.PD, "dials": LEAVES_OFF, "tier": 1100}
    plan, ruling = arms_gated(tmp_path, arms=USUAL, change=change, **made)
    assert (1, Verdict.PASS) == (plan.geometry.prefill_drops, ruling.verdict)
    granule = plan.geometry.granule
    # Prefill alone computes two tokens then, and prefill for decode one.
    assert {2} == {group.length % granule for group in plan.groups if group.purpose is Purpose.TIER}
    assert any("is found only beyond that" in note for note in ruling.notes)
    if boundaries:
        edges = {group.length % granule for group in plan.groups if group.purpose is Purpose.BOUNDARY}
        assert {granule - 1, 0, 1, 2} == edges


def test_a_wrong_transfer_is_found_where_prefill_leaves_off_a_token(tmp_path: Path) -> None:
    made: dict[str, Any] = {"preset": "gdn-hybrid", "topology": Topology.PD, "dials": LEAVES_OFF, "tier": 1100}
    _, ruling = arms_gated(tmp_path, "transfer_reversed", USUAL, **made)
    assert ruling.verdict is Verdict.FAIL


def test_tokens_that_nobody_counted_are_not_taken_for_left_off(tmp_path: Path) -> None:
    def change(_deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
        content["deployment"]["geometry"] = {"prefill_drops": 0}

    made: dict[str, Any] = {"preset": "gdn-hybrid", "topology": Topology.PD, "dials": LEAVES_OFF, "tier": 1100}
    _, ruling = arms_gated(tmp_path, arms=USUAL, change=change, **made)
    assert (Verdict.INCONCLUSIVE, Reason.EVIDENCE_MISSING) == (ruling.verdict, ruling.reasons[0].reason)


@pytest.mark.parametrize(("settle", "verdict"), [(0.6, "PASS"), (0.0, "INCONCLUSIVE")])
def test_decode_that_loads_from_a_store_is_asked_once_the_put_can_have_come(
    settle: float, verdict: str, tmp_path: Path
) -> None:
    # Prefill returns no transfer parameters: what decode gets, it gets from the pool, where puts take a while.
    def change(deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
        deployment.nodes["decode"].store = deployment.pool
        content["deployment"]["endpoints"] = [
            each for each in content["deployment"]["endpoints"] if each["role"] != "gateway"
        ]
        content["limits"]["settle_s"] = settle

    made: dict[str, Any] = {"topology": Topology.PD, "dials": Dials(put_lag_s=0.3)}
    _, ruling = arms_gated(tmp_path, "no_parameters", ["cold", "local", "local_repeat"], change, **made)
    assert verdict == ruling.verdict.value, ruling.reasons
    if verdict != "PASS":
        assert Reason.TRANSFER_NOT_EXERCISED in {problem.reason for problem in ruling.reasons}
