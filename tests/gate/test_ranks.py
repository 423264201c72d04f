"""The whole tool against engines with several data-parallel ranks, asked leg by leg."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvgate.cli.event_loop import run_async
from kvgate.cli.selftest import config_for
from kvgate.config.load import load_config
from kvgate.domain.plan import Plan, Route
from kvgate.domain.reasons import Reason
from kvgate.domain.ruling import RunVerdict
from kvgate.domain.verdict import Verdict
from kvgate.errors import ConfigError
from kvgate.sim.deployment import Deployment, make_deployment, serving
from kvgate.sim.faults import BY_NAME
from kvgate.sim.http import HttpAnswer, HttpRequest, call, listening
from kvgate.sim.presets import PRESETS, scaled
from kvgate.sim.topology import Topology
from tests.gate.test_arms import USUAL, blamed, ruled

Pins = dict[str, int]
PINNED = {"prefill": 1, "decode": 0}


def in_two_legs(
    folder: Path, pins: Pins, fault: str = "healthy", deaf: str = "", gateway: bool = False
) -> tuple[Deployment, Plan, RunVerdict]:
    """Gate prefill and decode engines of two ranks each; whatever stands before ``deaf`` drops the header."""
    return run_async(_in_two_legs, folder, pins, fault, deaf, gateway)


async def _in_two_legs(
    folder: Path, pins: Pins, fault: str, deaf: str, gateway: bool
) -> tuple[Deployment, Plan, RunVerdict]:
    deployment = make_deployment(scaled(PRESETS["dense"], 16), Topology.PD, fault, ranks=2)
    async with serving(deployment) as urls:

        async def relay(request: HttpRequest) -> HttpAnswer:
            headers = {
                "Content-Type": "application/json",
                **{name: request.headers[name] for name in KEPT & set(request.headers)},
            }
            return await call(request.method, urls[deaf] + request.target, request.body, headers)

        async with listening(relay, 0) as port:
            seen = {**urls, **({deaf: f"http://127.0.0.1:{port}"} if deaf else {})}
            if not gateway:
                seen.pop("gateway")
            content: dict[str, Any] = config_for(BY_NAME["healthy"], seen, folder)
            content["gate"] |= {"arms": USUAL, "tiers": [531], "groups_per_tier": 2}
            for endpoint in content["deployment"]["endpoints"]:
                if endpoint["name"] in pins:
                    endpoint["rank"] = pins[endpoint["name"]]
            return (deployment, *await ruled(folder, content))


KEPT = {"x-request-id"}


def test_each_leg_is_pinned_to_the_rank_of_its_endpoint(tmp_path: Path) -> None:
    deployment, plan, ruling = in_two_legs(tmp_path, PINNED)
    assert (Route.TWO_LEG, Verdict.PASS) == (plan.route, ruling.verdict), ruling.reasons
    served = {name: set(Counter(deed.rank for deed in node.deeds)) for name, node in deployment.nodes.items()}
    assert {"prefill": {1}, "decode": {0}} == served


def test_ranks_that_take_turns_prove_no_local_hit(tmp_path: Path) -> None:
    """The control: without a pin the engine balances, and what one rank holds the other loads or computes."""
    deployment, _, ruling = in_two_legs(tmp_path, {})
    assert ruling.verdict is Verdict.INCONCLUSIVE
    assert {0, 1} == {deed.rank for deed in deployment.nodes["prefill"].deeds}


@pytest.mark.parametrize(("fault", "part"), [("zero_block", "external path"), ("transfer_reversed", "transfer")])
def test_pinned_legs_find_what_is_wrong(fault: str, part: str, tmp_path: Path) -> None:
    _, _, ruling = in_two_legs(tmp_path, PINNED, fault)
    assert (Verdict.FAIL, {part}) == (ruling.verdict, blamed(ruling)), ruling.reasons


@pytest.mark.parametrize("deaf", ["prefill", "decode"])
def test_a_pin_that_was_dropped_on_the_way_proves_nothing(deaf: str, tmp_path: Path) -> None:
    _, _, ruling = in_two_legs(tmp_path, PINNED, deaf=deaf)
    assert ruling.verdict is Verdict.INCONCLUSIVE
    asked = PINNED[deaf]
    said = f"{deaf}: rank {asked} was asked for, rank {1 - asked} served"
    assert [Reason.RANK_CHANGED] == [problem.reason for problem in ruling.reasons if said in problem.detail]


def test_a_gateway_chooses_ranks_for_itself(tmp_path: Path) -> None:
    """Only what kvgate sends past it is pinned: another rank behind the gateway breaks no promise."""
    _, plan, ruling = in_two_legs(tmp_path, PINNED, gateway=True)
    assert plan.route is Route.GATEWAY
    told = [problem.detail for problem in ruling.reasons if problem.reason is Reason.RANK_CHANGED]
    assert not any("was asked for" in detail for detail in told)


@pytest.mark.parametrize(("deployment", "said"), [
    ("endpoints: [{name: g, role: gateway, url: 'http://h', rank: 1}]", "a gateway passes requests on as it likes"),
    ("ranks: 2\n  endpoints: [{name: e, url: 'http://h', rank: 1}]", "leave rank out of endpoint 'e'"),
    ("endpoints: [{name: e, url: 'http://h', rank: -1}]", "rank"),
])  # fmt: skip
def test_ranks_that_cannot_be_pinned_are_refused(deployment: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(f"version: 1\ndeployment:\n  name: d\n  model: m\n  {deployment}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        load_config(path)
