"""The whole tool against what stands between it and the engines: other gateways, several prefill engines, ranks."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvgate.cli.event_loop import run_async
from kvgate.cli.selftest import config_for
from kvgate.domain.plan import Forcing, Plan, Route
from kvgate.domain.reasons import Reason
from kvgate.domain.ruling import RunVerdict
from kvgate.domain.verdict import Verdict
from kvgate.sim.deployment import Deployment, make_deployment, serving
from kvgate.sim.faults import BY_NAME
from kvgate.sim.http import HttpAnswer, HttpRequest, call, listening
from kvgate.sim.presets import PRESETS, scaled
from kvgate.sim.topology import Topology
from tests.gate.test_arms import USUAL, blamed, gated, ruled

Meddle = Callable[[dict[str, Any]], dict[str, Any]]


def through_a_gateway(folder: Path, meddle: Meddle, fault: str = "healthy") -> tuple[Plan, RunVerdict]:
    """Gate one engine behind a gateway of the kind that speaks OpenAI on both sides and changes what it passes on."""
    return run_async(_through_a_gateway, folder, meddle, fault)


async def _through_a_gateway(folder: Path, meddle: Meddle, fault: str) -> tuple[Plan, RunVerdict]:
    folder.mkdir(exist_ok=True)
    deployment = make_deployment(scaled(PRESETS["dense"], 16), fault=fault)
    async with serving(deployment) as urls:

        async def relay(request: HttpRequest) -> HttpAnswer:
            body = request.body
            if request.path.endswith("completions"):
                body = json.dumps(meddle(json.loads(body))).encode()
            return await call(
                request.method, urls["engine"] + request.target, body, {"Content-Type": "application/json"}
            )

        async with listening(relay, 0) as port:
            both = {"gateway": f"http://127.0.0.1:{port}", "engine": urls["engine"]}
            content: dict[str, Any] = config_for(BY_NAME["healthy"], both, folder)
            content["gate"] |= {"arms": USUAL, "tiers": [531], "groups_per_tier": 2}
            return await ruled(folder, content)


def test_c40_an_engine_behind_a_gateway_is_gated_by_both_ways_in(tmp_path: Path) -> None:
    plan, ruling = through_a_gateway(tmp_path, lambda body: body)
    assert (Route.GATEWAY, Verdict.PASS) == (plan.route, ruling.verdict)
    asked = {arm.endpoint for group in ruling.groups for arm in group.arms}
    assert {"gateway", "engine"} == asked


def test_c40_a_gateway_that_changes_what_it_passes_on_is_named(tmp_path: Path) -> None:
    # A repetition penalty of its own: every answer is fluent, and none is the engine's.
    _, ruling = through_a_gateway(tmp_path, lambda body: {**body, "temperature": 1.5, "seed": 3})
    assert ruling.verdict is Verdict.FAIL
    assert {"gateway"} == blamed(ruling)


def test_c40_a_gateway_that_drops_the_salt_proves_nothing(tmp_path: Path) -> None:
    _, ruling = through_a_gateway(tmp_path, lambda body: {key: body[key] for key in body if key != "cache_salt"})
    assert ruling.verdict is Verdict.INCONCLUSIVE
    assert Reason.SALT_IGNORED in {problem.reason for problem in ruling.reasons}


def test_c40_a_gateway_that_is_in_order_is_not_blamed_for_the_pool(tmp_path: Path) -> None:
    _, ruling = through_a_gateway(tmp_path, lambda body: body, "zero_block")
    assert ruling.verdict is Verdict.FAIL
    assert {"external path"} == blamed(ruling)


def test_a_gateway_beside_more_than_one_engine_is_passed_by(tmp_path: Path) -> None:
    """Which engine it would choose is not known; each is asked by itself, and nothing waits for a transfer."""

    def change(_deployment: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
        endpoints = content["deployment"]["endpoints"]
        endpoints.append({"name": "gateway", "role": "gateway", "url": urls["engine"]})
        endpoints.append({"name": "decode", "role": "decode", "url": urls["engine"]})

    plan, ruling = gated(tmp_path, arms=USUAL, change=change)
    assert (Route.DIRECT, Verdict.PASS) == (plan.route, ruling.verdict)


def test_c11_a_prefill_engine_that_served_nothing_is_named(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, "proxy_pins_one", USUAL, topology=Topology.PD)
    assert ruling.verdict is Verdict.PASS
    assert any("prefill2 served none of the" in note for note in ruling.notes)


def test_c11_of_several_that_all_serve_none_is_named(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, "proxy_in_turn", USUAL, topology=Topology.PD)
    assert ruling.verdict is Verdict.INCONCLUSIVE
    assert not any("served none" in note for note in ruling.notes)


@pytest.mark.parametrize("named", ["header", "port"])
def test_c39_writer_and_reader_are_pinned_to_their_ranks(tmp_path: Path, named: str) -> None:
    """By a header where the engine balances between its ranks, by a port of its own where something else does."""
    seen: list[Deployment] = []

    def change(deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
        seen.append(deployment)
        if named == "header":
            content["deployment"]["ranks"] = 2
            content["gate"]["forcing"] = "other_rank"

    made: dict[str, Any] = {"ranks": 2} if named == "header" else {"topology": Topology.PAIR}
    plan, ruling = gated(tmp_path, arms=USUAL, change=change, **made)
    assert ruling.verdict is Verdict.PASS
    assert plan.forcing is (Forcing.OTHER_RANK if named == "header" else Forcing.OTHER_INSTANCE)
    externals = Counter(
        (name, deed.rank) for name, node in seen[0].nodes.items() for deed in node.deeds if deed.external
    )
    writer, reader = (("engine", 0), ("engine", 1)) if named == "header" else (("a", 0), ("b", 0))
    # Each endpoint is warmed up with one prompt, sent twice to every rank; all else was loaded by the reader.
    warmed = 2 if named == "header" else 1
    assert {writer: 1, reader: warmed + 2 * len(plan.groups)} == externals
