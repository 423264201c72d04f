"""Two servers on one pool: the external path is forced by a reader that never computed the prompt."""

import pytest

from tests.live.lab import Lab, hooks, proves_external

STACK = "pair"
pytestmark = pytest.mark.live


def test_a_second_instance_reads_what_the_first_wrote(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-pair"))
    assert gated.code == 0
    proves_external(gated)
    endpoints = {arm["arm"]: arm["endpoint"] for arm in gated.ruling["groups"][0]["arms"]}
    assert endpoints["cold"] == "writer"
    assert {endpoints[arm] for arm in ("local", "external", "external_repeat")} == {"reader"}
    assert all(pair["exact"] and pair["max_drift"] == 0.0 for pair in gated.pairs("external", "local"))


def test_corrupted_objects_fail_at_the_reader(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-pair", gate={"groups_per_tier": 1}, hooks=hooks("zero_all")))
    assert gated.code == 1
    assert any("loaded into reader" in (pair["attribution"] or "") for pair in gated.pairs("external", "local"))
