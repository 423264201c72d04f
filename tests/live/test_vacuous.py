"""Deployments on which the external path cannot be proved: each has its own reason, none is a PASS."""

from pathlib import Path

import pytest

from tests.live.conftest import standing
from tests.live.lab import hooks

pytestmark = pytest.mark.live

CASES: tuple[tuple[str, dict[str, dict[str, object]], str], ...] = (
    ("no-pool", {}, "PATH_NOT_EXERCISED"),
    ("no-reset", {"gate": {"forcing": "reset_local"}}, "RESET_UNAVAILABLE"),
    ("no-counters", {}, "COUNTERS_UNREADABLE"),
    ("mooncake", {"hooks": hooks("remove_all"), "limits": {"external_attempts": 2}}, "EXTERNAL_MISS"),
)


@pytest.mark.parametrize(("stack", "changes", "reason"), CASES, ids=[case[0] for case in CASES])
def test_nothing_unproved_passes(
    stack: str, changes: dict[str, dict[str, object]], reason: str, tmp_path: Path
) -> None:
    with standing(stack, tmp_path) as lab:
        gate = {"tiers": [256], "groups_per_tier": 1}
        changes = {**changes, "gate": {**gate, **changes.get("gate", {})}}
        gated = lab.gate(lab.config("vllm-mooncake", **changes))
    assert gated.code == 3
    assert gated.reasons[0] == reason


def test_the_local_cache_alone_can_be_gated(tmp_path: Path) -> None:
    with standing("no-pool", tmp_path) as lab:
        gated = lab.gate(lab.config("vllm-no-pool"))
    assert gated.code == 0
    assert all(pair["kind"] == "local_vs_cold" for group in gated.ruling["groups"] for pair in group["pairs"])
