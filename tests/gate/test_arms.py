"""The whole tool against embedded deployments: the arms beside the usual six, and every way of forcing a load."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.cli.event_loop import run_async
from kvgate.cli.output import ProgressWatcher
from kvgate.cli.run import carry_out
from kvgate.cli.selftest import config_for
from kvgate.config.load import load_config_with_digest
from kvgate.domain.geometry import branch_tail
from kvgate.domain.history import ProbeSent
from kvgate.domain.judge import judge
from kvgate.domain.plan import Plan, Purpose
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Reason
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import ArmSummary, RunVerdict
from kvgate.sim.deployment import Deployment, make_deployment, serving
from kvgate.sim.dials import Dials
from kvgate.sim.faults import BY_NAME
from kvgate.sim.memory import Memory
from kvgate.sim.network import make_weights
from kvgate.sim.presets import PRESETS, scaled
from kvgate.sim.store import LocalCache
from kvgate.sim.topology import Topology
from kvgate.store.run_directory import read_history, read_manifest

USUAL = ["cold", "cold_repeat", "local", "local_repeat", "external", "external_repeat"]
LATER = ["third", "mixed", "branch", "isolation"]

Change = Callable[[Deployment, dict[str, Any], dict[str, str]], None]


def as_it_is(_deployment: Deployment, _content: dict[str, Any], _urls: dict[str, str]) -> None:
    """Change nothing."""


def gated(
    folder: Path,
    fault: str = "healthy",
    arms: list[str] | None = None,
    change: Change = as_it_is,
    **made: Any,
) -> tuple[Plan, RunVerdict]:
    """Plan and ruling for a deployment with a fault; ``change`` has the last word on both sides."""
    return run_async(_gated, folder, fault, arms or [*USUAL, *LATER], change, made)


class Heard(ProgressWatcher):
    """Keeps what is said, and shows nothing."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.heard: list[str] = []

    def said(self, text: str) -> None:
        """Something worth a line happened."""
        self.heard.append(text)


async def ruled(
    folder: Path, content: dict[str, Any], watcher: ProgressWatcher | None = None
) -> tuple[Plan, RunVerdict]:
    """Plan and ruling of a run with this configuration, which is kept in the folder."""
    path = folder / "gate.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    config, digest = load_config_with_digest(path)
    run, _ = await carry_out(config, (path, digest), None, watcher or ProgressWatcher(quiet=True))
    plan = read_manifest(run).plan
    return plan, judge(plan, RunRecord(read_history(run)))


async def _gated(
    folder: Path, fault: str, arms: list[str], change: Change, made: dict[str, Any]
) -> tuple[Plan, RunVerdict]:
    folder.mkdir(exist_ok=True)
    preset, tier, reference = made.pop("preset", "dense"), made.pop("tier", 531), made.pop("reference", None)
    watcher = made.pop("watcher", None)
    deployment = make_deployment(scaled(PRESETS[preset], 16), fault=fault, **made)
    other = make_deployment(scaled(PRESETS[preset], 16), memory=Memory(make_weights(reference or 0)))
    async with serving(deployment) as urls, serving(other) as others:
        content: dict[str, Any] = config_for(BY_NAME["healthy"], urls, folder)
        content["gate"] |= {"arms": arms, "tiers": [tier], "groups_per_tier": 2}
        if reference is not None:
            apart = {"name": "apart", "role": "reference", "url": others["engine"]}
            content["deployment"]["endpoints"].append(apart)
        change(deployment, content, urls)
        return await ruled(folder, content, watcher)


def arms_of(ruling: RunVerdict) -> dict[Arm, ArmSummary]:
    return {arm.arm: arm for arm in ruling.groups[0].arms}


def blamed(ruling: RunVerdict) -> set[str]:
    return {pair.attribution.split(":")[0] for group in ruling.groups for pair in group.pairs if pair.attribution}


def failing(ruling: RunVerdict) -> set[str]:
    return {pair.kind.value for group in ruling.groups for pair in group.pairs if pair.verdict.value == "FAIL"}


@pytest.mark.parametrize(
    ("preset", "tier"), [("dense", 531), ("deepseek-v4-flash", 4115), ("gdn-hybrid", 531), ("swa-hybrid", 531)]
)
def test_a_healthy_engine_passes_with_every_arm_proven(preset: str, tier: int, tmp_path: Path) -> None:
    plan, ruling = gated(tmp_path, preset=preset, tier=tier)
    assert ("PASS", set()) == (ruling.verdict.value, failing(ruling))
    arms, group = arms_of(ruling), plan.groups[0]
    assert {*LATER, "mixed_head", "branch_local"} <= {arm.value for arm in arms}
    assert all(arm.proven for arm in arms.values())
    mixed = arms[Arm.MIXED]
    assert 0 not in (mixed.local, mixed.external)
    assert group.expected_external == (mixed.local or 0) + (mixed.external or 0)
    assert 0 < (arms[Arm.BRANCH].external or 0) < group.expected_external
    exact = {pair.kind.value for pair in ruling.groups[0].pairs if pair.exact}
    assert {"third_vs_local", "mixed_vs_local", "branch_vs_local"} <= exact


def test_two_instances_read_mixed_without_a_drop(tmp_path: Path) -> None:
    plan, ruling = gated(tmp_path, topology=Topology.PAIR)
    assert ("other_instance", "PASS") == (plan.forcing.value, ruling.verdict.value)
    assert arms_of(ruling)[Arm.MIXED].proven


@pytest.mark.parametrize("topology", [Topology.COMBINED, Topology.PAIR])
def test_what_is_wrong_in_mixed_hits_only_is_found(topology: Topology, tmp_path: Path) -> None:
    _, usual = gated(tmp_path, "mixed_only", USUAL, topology=topology)
    assert "PASS" == usual.verdict.value
    _, ruling = gated(tmp_path, "mixed_only", topology=topology)
    assert ("FAIL", {"mixed_vs_local"}, {"mixed path"}) == (ruling.verdict.value, failing(ruling), blamed(ruling))
    assert 2 == arms_of(ruling)[Arm.MIXED].attempts, "a difference is sent again"
    assert "again in 1 of 1 repeats" in ruling.reasons[0].detail


def test_what_was_loaded_wrong_lives_on_in_the_local_cache(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, "zero_block")
    assert {"external_vs_local", "third_vs_local"} <= failing(ruling)
    assert any("lives on" in (pair.attribution or "") for pair in ruling.groups[0].pairs)


def test_a_beginning_shared_with_another_prompt_is_tested(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, "zero_first_block")
    assert "branch_vs_local" in failing(ruling)


def test_a_salt_that_keeps_nobody_out_is_a_failure_of_isolation(tmp_path: Path) -> None:
    _, usual = gated(tmp_path, "salt_ignored", USUAL)
    assert ("INCONCLUSIVE", "SALT_IGNORED") == (usual.verdict.value, usual.reasons[0].reason.value)
    _, ruling = gated(tmp_path, "salt_ignored")
    assert ("FAIL", "ISOLATION") == (ruling.verdict.value, ruling.reasons[0].reason.value)
    assert {"isolation"} == blamed(ruling)


@pytest.mark.parametrize(("other", "verdict"), [(0, "PASS"), (1, "FAIL")], ids=["same weights", "other weights"])
def test_cold_answers_are_held_against_an_independent_endpoint(other: int, verdict: str, tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, arms=[*USUAL, "reference"], reference=other)
    assert (verdict, True) == (ruling.verdict.value, arms_of(ruling)[Arm.REFERENCE].proven)
    assert ({"cold_vs_reference"} if verdict == "FAIL" else set()) == failing(ruling)


def test_a_reference_that_is_asked_for_must_be_there(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, arms=[*USUAL, "reference"])
    assert any("no endpoint has the role reference" in note for note in ruling.notes)


# -- forcing ---------------------------------------------------------------------------------------------------
def two_ranks(_deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
    content["deployment"]["ranks"] = 2
    content["gate"]["forcing"] = "other_rank"


def without_local_cache(deployment: Deployment, _content: dict[str, Any], _urls: dict[str, str]) -> None:
    for node in deployment.nodes.values():
        node.prefix_caching = False


def restarted(_deployment: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
    drop = f"import urllib.request as r; r.urlopen(r.Request('{urls['engine']}/reset_prefix_cache', method='POST'))"
    content["hooks"] = {"restart": [sys.executable, "-c", drop]}
    content["gate"]["forcing"] = "restart"


def flooded(deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
    for rank in deployment.nodes["engine"].ranks:
        rank.cache = LocalCache(CACHE_BYTES)
    content["deployment"]["geometry"] = {"capacity": 1100}
    content["gate"] |= {"forcing": "evict", "groups_per_tier": 1}


CACHE_BYTES = 600_000
WAYS: dict[str, tuple[Change, dict[str, Any], list[str]]] = {
    "other_rank": (two_ranks, {"ranks": 2}, [*USUAL, "third", "mixed", "isolation"]),
    "no_local": (without_local_cache, {}, ["cold", "cold_repeat", "external", "external_repeat", "isolation"]),
    "restart": (restarted, {}, [*USUAL, *LATER]),
    "evict": (flooded, {}, USUAL),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_forcing_proves_its_loads(way: str, tmp_path: Path) -> None:
    change, made, arms = WAYS[way]
    plan, ruling = gated(tmp_path, arms=arms, change=change, **made)
    assert (way, "PASS") == (plan.forcing.value, ruling.verdict.value), ruling.reasons
    assert arms_of(ruling)[Arm.EXTERNAL].proven


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_forcing_finds_what_is_loaded_wrong(way: str, tmp_path: Path) -> None:
    change, made, arms = WAYS[way]
    _, ruling = gated(tmp_path, "zero_block", arms=arms, change=change, **made)
    if way == "no_local":
        # No group is left to show that hits must equal cold runs here: every hit is wrong.
        assert ("INCONCLUSIVE", "ALIGNMENT_UNPROVEN") == (ruling.verdict.value, ruling.reasons[0].reason.value)
    else:
        assert "FAIL" == ruling.verdict.value, ruling.reasons
        assert {"external path"} <= blamed(ruling)


def test_without_a_local_cache_the_groups_that_are_right_convict_those_that_are_not(tmp_path: Path) -> None:
    def change(deployment: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
        without_local_cache(deployment, content, urls)
        content["gate"] |= {"groups_per_tier": 4}

    _, ruling = gated(tmp_path, "after_some", arms=WAYS["no_local"][2], change=change)
    assert ("FAIL", {"external path"}) == (ruling.verdict.value, blamed(ruling)), ruling.reasons


def test_a_flood_that_is_too_small_is_seen(tmp_path: Path) -> None:
    def change(deployment: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
        flooded(deployment, content, urls)
        deployment.nodes["engine"].ranks[0].cache = LocalCache(64 * CACHE_BYTES)

    _, ruling = gated(tmp_path, arms=USUAL, change=change)
    assert ("INCONCLUSIVE", "LOCAL_NOT_DROPPED") == (ruling.verdict.value, ruling.reasons[0].reason.value)


@pytest.mark.parametrize(("capacity", "forcing", "verdict"), [
    (1100, "evict", "PASS"),
    (1_000_000, "reset_local", "INCONCLUSIVE"),
])  # fmt: skip
def test_an_engine_that_drops_nothing_is_flooded_where_the_budget_has_room_for_it(
    capacity: int, forcing: str, verdict: str, tmp_path: Path
) -> None:
    def change(deployment: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
        flooded(deployment, content, urls)
        content["deployment"]["geometry"] = {"capacity": capacity}
        content["gate"]["forcing"] = "auto"

    plan, ruling = gated(tmp_path, "no_reset", USUAL, change)
    assert (forcing, verdict) == (plan.forcing.value, ruling.verdict.value), ruling.reasons
    if verdict != "PASS":
        assert "RESET_UNAVAILABLE" == ruling.reasons[0].reason.value


def test_floods_for_boundary_groups_count_too(tmp_path: Path) -> None:
    def change(deployment: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
        flooded(deployment, content, urls)
        # Room for the floods of one tier's group, not for those of the lengths around its edges.
        content["deployment"]["geometry"] = {"capacity": 300_000}
        content["gate"] |= {"forcing": "auto", "boundaries": True, "tiers": [300, 531]}

    plan, ruling = gated(tmp_path, "no_reset", USUAL, change)
    assert ("reset_local", "RESET_UNAVAILABLE") == (plan.forcing.value, ruling.reasons[0].reason.value)


def test_what_two_branches_share_ends_in_the_middle_of_a_block(tmp_path: Path) -> None:
    plan, _ = gated(tmp_path, arms=[*USUAL, "branch"])
    (run,) = (tmp_path / "runs").glob("[0-9]*")
    sent = {entry.probe.arm: entry.probe for entry in read_history(run) if isinstance(entry, ProbeSent)}
    alike, tail = branch_tail(plan.geometry.granule)
    assert 0 < alike < plan.geometry.granule
    assert alike == (sent[Arm.BRANCH].length - tail) % plan.geometry.granule


def test_what_a_flood_drove_out_of_the_pool_is_not_waited_for(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, "never_put", USUAL, flooded)
    assert ("INCONCLUSIVE", "EXTERNAL_MISS") == (ruling.verdict.value, ruling.reasons[0].reason.value)
    assert 1 == arms_of(ruling)[Arm.EXTERNAL].attempts


def test_a_restart_hook_that_fails_is_told(tmp_path: Path) -> None:
    def change(_deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
        content["hooks"] = {"restart": [sys.executable, "-c", "raise SystemExit('no such unit')"]}
        content["gate"]["forcing"] = "restart"

    _, ruling = gated(tmp_path, arms=USUAL, change=change)
    assert ("INCONCLUSIVE", "HOOK_FAILED") == (ruling.verdict.value, ruling.reasons[0].reason.value)
    assert "no such unit" in ruling.reasons[0].detail


# -- families --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", ["chat", "agent", "code", "shared_prefix", "random"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_family_passes_on_a_healthy_engine_and_finds_a_spoilt_block(
    family: str, language: str, tmp_path: Path
) -> None:
    def change(_deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
        content["gate"]["families"] = [{"family": family, "language": language}]

    _, healthy = gated(tmp_path / "healthy", arms=USUAL, change=change, tier=1043)
    assert "PASS" == healthy.verdict.value, healthy.reasons
    _, spoilt = gated(tmp_path / "spoilt", "zero_last_block", arms=USUAL, change=change, tier=1043)
    assert "FAIL" == spoilt.verdict.value, spoilt.reasons


# -- KV that decode wrote --------------------------------------------------------------------------------------
def longer_answers(_deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
    content["requests"]["max_tokens"] = 24


def continued(ruling: RunVerdict) -> dict[Arm, ArmSummary]:
    group = next(each for each in ruling.groups if each.purpose is Purpose.CONTINUATION)
    return {arm.arm: arm for arm in group.arms}


@pytest.mark.parametrize(("preset", "tokens"), [("dense", 16), ("dense", 24), ("gdn-hybrid", 16), ("gdn-hybrid", 24)])
def test_an_answer_is_gone_on_from(preset: str, tokens: int, tmp_path: Path) -> None:
    def change(_deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
        content["requests"]["max_tokens"] = tokens

    plan, ruling = gated(tmp_path, arms=[*USUAL, "continuation"], change=change, preset=preset)
    assert ("PASS", set()) == (ruling.verdict.value, failing(ruling)), ruling.reasons
    arms, group = continued(ruling), plan.groups[-1]
    # The embedded decoder does not put what it wrote, so nothing of it can be loaded.
    assert {Arm.CONTINUATION} == {arm.arm for arm in arms.values() if not arm.proven}
    assert 1 == arms[Arm.CONTINUATION].attempts, "a second attempt would load what the first computed"
    # More is reused than the prompt alone had: the rest was written by decode.
    assert (arms[Arm.CONTINUATION_LOCAL].local or 0) > group.length


def test_what_decode_wrote_wrong_is_found(tmp_path: Path) -> None:
    _, usual = gated(tmp_path / "usual", "decode_writes_zeros", USUAL)
    assert "PASS" == usual.verdict.value
    # Of a shorter answer so little is wrong that only the exact pair, which names the load, shows it.
    _, ruling = gated(tmp_path / "on", "decode_writes_zeros", [*USUAL, "continuation"], longer_answers)
    assert ("FAIL", {"local path"}) == (ruling.verdict.value, blamed(ruling)), ruling.reasons
    assert any("decode" in advice for advice in ruling.advice)


# -- a deployment that others use, too -------------------------------------------------------------------------
@pytest.mark.parametrize(("fault", "verdict"), [("foreign_at_times", "PASS"), ("foreign_traffic", "INCONCLUSIVE")])
def test_groups_that_others_got_in_between_are_replaced(fault: str, verdict: str, tmp_path: Path) -> None:
    def change(_deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
        content["gate"]["groups_per_tier"] = 4

    _, ruling = gated(tmp_path, fault, USUAL, change)
    assert verdict == ruling.verdict.value, ruling.reasons
    assert any(group.replaced for group in ruling.groups)


@pytest.mark.parametrize(
    ("fault", "split", "grade", "verdict"),
    [
        ("healthy", True, "scheduled", "PASS"),
        ("zero_block", True, "scheduled", "FAIL"),
        ("no_pool", True, "scheduled", "INCONCLUSIVE"),
        ("healthy", True, "arrived", "INCONCLUSIVE"),
        ("healthy", False, "scheduled", "INCONCLUSIVE"),
    ],
)
def test_a_busy_deployment_is_gated_by_what_each_reply_tells_of_itself(
    fault: str, split: bool, grade: str, verdict: str, tmp_path: Path
) -> None:
    def change(_deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
        content["policy"]["evidence"] = grade
        # Fewer groups cannot tell wrong bytes from a batch that changes them.
        content["gate"]["groups_per_tier"] = 6 if fault == "zero_block" else 2

    _, ruling = gated(tmp_path, fault, USUAL, change, dials=Dials(foreign=True, tells_split=split))
    assert verdict == ruling.verdict.value, ruling.reasons
    by_reply = split and grade == "scheduled"
    assert by_reply != any(problem.reason is Reason.FOREIGN_TRAFFIC for problem in ruling.reasons)
    if fault == "zero_block":
        assert {"external path"} == blamed(ruling)
