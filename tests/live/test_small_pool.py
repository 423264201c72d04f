"""A real engine whose pool is too small for what is put into it: what it does not hold is neither a PASS nor a FAIL.

Mooncake drops a put that finds no room. Then, and when it is nine tenths full, it evicts: first what was touched
least lately, but nothing that is leased. So a prompt may be there, be gone, or be there in part, from one request to
the next. test_pressure.py has the control with a pool of the normal size.
"""

import json
import re
from typing import Any

import httpx
import pytest

from tests.live.lab import Gated, Lab, proves_external
from tests.live.test_pressure import CROWDED

STACK = "small-pool"
ENGINE, MASTER = "http://127.0.0.1:8101", "http://127.0.0.1:50152"
# A prompt of 243 tokens gives 7 objects of 32; the pool holds 22, and evicts from 20 on.
OBJECTS = 7
pytestmark = pytest.mark.live


@pytest.fixture(autouse=True)
def _empty_pool(lab: Lab) -> None:
    assert lab
    answer = httpx.post(f"{ENGINE}/reset_prefix_cache?reset_external=true", json={}, timeout=60, trust_env=False)
    assert {"success": True} == answer.json()
    assert 0 == of_the_master("master_key_count")


def of_the_master(name: str) -> int:
    """A number of the pool's own, which kvgate never reads."""
    page = httpx.get(f"{MASTER}/metrics", timeout=10, trust_env=False).text
    found = re.search(rf"^{name} (\S+)$", page, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def gate_and_count(lab: Lab, gate: dict[str, Any], **changes: Any) -> tuple[Gated, int]:
    """What the run ended with, and how many objects the master evicted meanwhile. Sentinels take too much room."""
    before = of_the_master("master_evicted_key_count")
    gated = lab.gate(lab.config("vllm-mooncake", gate={"sentinel": False, **gate}, **changes))
    for group in gated.ruling["groups"]:
        assert all(pair["verdict"] != "FAIL" for pair in group["pairs"]), "nothing is wrong"
        assert group["verdict"] != "PASS" or all(arm["proven"] for arm in group["arms"])
    return gated, of_the_master("master_evicted_key_count") - before


def others_come_where(condition: str) -> dict[str, Any]:
    """Hooks: others' prompts drive the group's out of the pool before an external arm, where a shell's test holds."""
    crowd = f"if {condition}; then exec scripts/lab/plant mooncake crowd_out; fi"
    before = {"cold": ["scripts/lab/plant", "mooncake", "note"], "external": ["sh", "-c", crowd]}
    return {"before_arm": before, "timeout_s": 120}


def driven_out(gated: Gated) -> dict[str, list[int]]:
    """By group and attempt, how many of the prompt's objects the master had, and then had no more, by its own list."""
    found: dict[str, list[int]] = {}
    for line in (gated.run / "history.jsonl").read_text().splitlines():
        entry = json.loads(line)
        told = re.search(r"crowd_out: changed (\d+) of \1 objects", entry.get("output", ""))
        if told is not None:
            found.setdefault(entry["group"], []).append(int(told[1]))
    return found


def external(gated: Gated, group: str) -> list[dict[str, Any]]:
    (found,) = [each for each in gated.ruling["groups"] if each["id"] == group]
    return [arm for arm in found["arms"] if arm["arm"].startswith("external")]


def test_a_prompt_that_is_left_alone_passes(lab: Lab) -> None:
    """The control: the same pool, the same hooks, and nobody comes between."""
    gated, _ = gate_and_count(lab, {"tiers": [256], "groups_per_tier": 1}, hooks=others_come_where("false"))
    assert 0 == gated.code, gated.ruling["reasons"]
    proves_external(gated)
    assert {} == driven_out(gated)
    assert [1, 1] == [arm["attempts"] for arm in external(gated, "t256-1")]


def test_a_prompt_that_was_evicted_each_time_is_a_miss(lab: Lab) -> None:
    """One group is driven out before every attempt, the other is left alone: one is a miss, the other passes."""
    gated, evicted = gate_and_count(
        lab,
        {"tiers": [256], "groups_per_tier": 2},
        hooks=others_come_where('[ "$KVGATE_GROUP" = t256-1 ]'),
        limits={"external_attempts": 2},
    )
    assert 3 == gated.code
    assert ["EXTERNAL_MISS"] == gated.reasons
    assert ["INCONCLUSIVE", "PASS"] == [group["verdict"] for group in gated.ruling["groups"]]
    gone = driven_out(gated)
    assert ["t256-1"] == list(gone)
    assert 2 == len(gone["t256-1"])
    assert OBJECTS == gone["t256-1"][0], "the pool held all of it before the others came"
    assert evicted >= sum(gone["t256-1"])
    assert 0 == external(gated, "t256-1")[0]["external"]


def test_a_prompt_that_was_evicted_once_passes_once_it_is_back(lab: Lab) -> None:
    """The first attempt finds nothing, computes and puts again; only an attempt that brought all of it is counted."""
    gated, evicted = gate_and_count(
        lab, {"tiers": [256], "groups_per_tier": 1}, hooks=others_come_where('[ "$KVGATE_ATTEMPT" = 0 ]')
    )
    assert {"t256-1": [OBJECTS]} == driven_out(gated)
    assert evicted >= OBJECTS
    assert 0 == gated.code, gated.ruling["reasons"]
    proves_external(gated)
    first, _ = external(gated, "t256-1")
    assert first["attempts"] > 1
    (pair, _) = gated.pairs("external", "local") + gated.pairs("external_repeat", "local")
    assert "RETRIED" in [note["reason"] for note in pair["annotations"]]


def test_a_prompt_longer_than_the_pool_is_a_miss_for_its_missing_part(lab: Lab) -> None:
    gated, evicted = gate_and_count(lab, {"tiers": [1024], "groups_per_tier": 1}, limits={"external_attempts": 2})
    assert 3 == gated.code
    assert ["EXTERNAL_MISS", "TIER_NOT_COVERED"] == gated.reasons
    assert evicted > 0
    for arm in external(gated, "t1024-1"):
        assert 0 < arm["external"] < 22 * 32, "a beginning is loaded, and is not enough"


def test_a_pool_that_the_pressure_fills_is_a_miss(lab: Lab) -> None:
    gated, evicted = gate_and_count(lab, {**CROWDED, "tiers": [256]}, limits={"external_attempts": 2})
    assert 3 == gated.code
    assert ["EXTERNAL_MISS", "TIER_NOT_COVERED"] == gated.reasons
    assert evicted > OBJECTS
    assert any(not arm["proven"] for arm in external(gated, "t256-1"))
