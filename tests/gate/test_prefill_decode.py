"""The whole tool against embedded prefill/decode deployments: proof on both sides, and the guilty part by name."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.cli.event_loop import run_async
from kvgate.cli.output import ProgressWatcher
from kvgate.cli.run import carry_out
from kvgate.cli.selftest import config_for
from kvgate.config.load import load_config_with_digest
from kvgate.domain.judge import judge
from kvgate.domain.probe import Arm
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import RunVerdict
from kvgate.errors import ConfigError
from kvgate.sim.deployment import make_deployment, serving
from kvgate.sim.dials import Dials
from kvgate.sim.faults import BY_NAME
from kvgate.sim.presets import PRESETS, scaled
from kvgate.sim.topology import Topology
from kvgate.store.run_directory import read_history, read_manifest


def gated(folder: Path, fault: str = "healthy", leave_out: str = "", **changes: Any) -> RunVerdict:
    """The ruling on a prefill/decode deployment with a fault; ``changes`` go into the deployment section."""
    return run_async(_gated, folder, fault, leave_out, changes)


async def _gated(folder: Path, fault: str, leave_out: str, changes: dict[str, Any]) -> RunVerdict:
    # Every other shape of a last prefill chunk rounds otherwise, as on real engines.
    deployment = make_deployment(scaled(PRESETS["dense"], 16), Topology.PD, fault, Dials(flip_share=1.0))
    async with serving(deployment) as urls:
        content: dict[str, Any] = config_for(BY_NAME["healthy_pd"], urls, folder)
        content["deployment"].update(changes)
        endpoints = content["deployment"]["endpoints"]
        content["deployment"]["endpoints"] = [each for each in endpoints if each["name"] != leave_out]
        path = folder / "gate.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        config, digest = load_config_with_digest(path)
        run, _ = await carry_out(config, (path, digest), None, ProgressWatcher(quiet=True))
    return judge(read_manifest(run).plan, RunRecord(read_history(run)))


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
