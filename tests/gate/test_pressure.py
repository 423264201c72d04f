"""The whole tool while other requests are in flight: what only shows then, and what must not be mistaken for it."""

import asyncio
import json
import signal
import subprocess
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgate.cli.event_loop import run_async
from kvgate.cli.selftest import check, config_for
from kvgate.domain.history import ProbeAnswered, ProbeSent
from kvgate.domain.observation import BROKEN_OFF
from kvgate.domain.plan import PairKind, Plan
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Reason
from kvgate.domain.ruling import RunVerdict
from kvgate.domain.verdict import Verdict
from kvgate.errors import ConfigError
from kvgate.sim.deployment import Deployment, make_deployment, serving
from kvgate.sim.dials import Dials
from kvgate.sim.faults import BY_NAME
from kvgate.sim.http import HttpAnswer, HttpRequest, call, listening
from kvgate.sim.presets import PRESETS, scaled
from kvgate.sim.topology import Topology
from kvgate.store.run_directory import read_history
from tests.cli.driving import command, config_file
from tests.gate.test_arms import USUAL, blamed, gated, ruled
from tests.gate.test_sources import reading_logs, writing_logs
from tests.scripted.server import serving as serving_script

BY_ARM = tuple(map(Arm, USUAL))
PACE = Dials(latency_per_token_s=0.001)


def pressed(concurrency: int | list[int] = 3, groups: int = 2, **more: Any) -> Any:
    """A change of the configuration: so many others in flight."""

    def change(_deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
        content["gate"]["pressure"] = {"concurrency": concurrency, **more}
        content["gate"]["groups_per_tier"] = groups

    return change


def entries(folder: Path) -> list[Any]:
    return list(read_history(next((folder / "runs").glob("[0-9]*"))))


@pytest.mark.parametrize(("concurrency", "verdict"), [(0, Verdict.PASS), (2, Verdict.FAIL)], ids=["quiet", "pressed"])
def test_what_is_wrong_under_load_only_is_found_under_load_only(
    concurrency: int, verdict: Verdict, tmp_path: Path
) -> None:
    change: dict[str, Any] = {"change": pressed(concurrency, groups=6)} if concurrency else {}
    _, ruling = gated(tmp_path, "concurrent_only", USUAL, dials=PACE, **change)
    assert verdict is ruling.verdict, ruling.reasons
    assert blamed(ruling) == ({"external path"} if verdict is Verdict.FAIL else set())


def test_a_small_difference_among_others_needs_many_exact_repeats_to_convict(tmp_path: Path) -> None:
    """Two groups cannot tell wrong bytes from a batch that changes them; more groups can."""
    _, ruling = gated(tmp_path, "concurrent_only", USUAL, change=pressed(2), dials=PACE)
    assert (Verdict.INCONCLUSIVE, Reason.UNSTABLE) == (ruling.verdict, ruling.reasons[0].reason)
    assert "too few repeats show" in ruling.reasons[0].detail


def test_every_request_of_a_group_has_company_and_all_of_it_ends(tmp_path: Path) -> None:
    plan, ruling = gated(tmp_path, arms=USUAL, change=pressed(3), dials=PACE)
    assert ruling.verdict is Verdict.PASS, ruling.reasons
    flying: set[str] = set()
    company: list[int] = []
    for entry in entries(tmp_path):
        if isinstance(entry, ProbeSent) and entry.probe.arm is Arm.CHURN:
            flying.add(entry.probe.id)
        elif isinstance(entry, ProbeSent) and entry.probe.arm not in (Arm.WARMUP, Arm.SENTINEL):
            company.append(len(flying))
        elif isinstance(entry, ProbeAnswered):
            flying.discard(entry.probe_id)
    assert [3] * len(company) == company
    assert len(plan.groups) * len(USUAL) == len(company)
    assert set() == flying
    assert any(note.startswith("under pressure: 3 requests of 531 tokens") for note in ruling.notes)


def test_requests_that_the_gate_breaks_off_are_recorded_as_its_own_doing(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, arms=USUAL, change=pressed(2, cancel_share=1.0), dials=PACE)
    assert ruling.verdict is Verdict.PASS, ruling.reasons
    churned = [
        entry.observation
        for entry in entries(tmp_path)
        if isinstance(entry, ProbeAnswered) and "churn" in entry.probe_id
    ]
    assert sum(BROKEN_OFF in each.marks for each in churned) > len(churned) // 2
    assert all(each.ok or BROKEN_OFF in each.marks for each in churned)


def test_what_a_cancel_leaves_behind_is_found(tmp_path: Path) -> None:
    assert check(BY_NAME["after_a_cancel"]).right
    _, quiet = gated(tmp_path, "after_a_cancel", USUAL, dials=PACE)
    assert quiet.verdict is Verdict.PASS, "the control: nobody goes away without pressure"


def test_others_are_still_seen_among_the_gates_own(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, arms=USUAL, change=pressed(2), dials=Dials(latency_per_token_s=0.002, foreign=True))
    assert ruling.verdict is Verdict.INCONCLUSIVE
    assert Reason.FOREIGN_TRAFFIC in {problem.reason for problem in ruling.reasons}


def test_a_wrong_answer_is_found_whatever_is_beside_it(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, "zero_block", USUAL, change=pressed(3, groups=6, tokens=300), dials=PACE)
    assert (Verdict.FAIL, {"external path"}) == (ruling.verdict, blamed(ruling)), ruling.reasons


def test_a_server_that_turns_the_others_away_is_not_under_pressure(tmp_path: Path) -> None:
    _, ruling = run_async(_turned_away, tmp_path)
    assert ruling.verdict is Verdict.INCONCLUSIVE
    assert ruling.reasons[0].reason is Reason.PRESSURE_MISSING
    assert any("HTTP 429" in note for note in ruling.notes)
    sent = [entry.probe.arm for entry in entries(tmp_path) if isinstance(entry, ProbeSent)]
    assert sent.count(Arm.CHURN) <= 4 * (len(sent) - sent.count(Arm.CHURN)), "it is not asked in a loop"


async def _turned_away(folder: Path) -> tuple[Plan, RunVerdict]:
    """Whoever asks with a prompt as short as those beside the groups' is one too many."""
    async with serving(make_deployment(scaled(PRESETS["dense"], 16), dials=PACE)) as urls:

        async def relay(request: HttpRequest) -> HttpAnswer:
            if request.path.endswith("completions") and len(json.loads(request.body)["prompt"]) == 300:
                return HttpAnswer(429, "application/json", b'{"error":{"message":"too many requests","code":429}}')
            json_body = {"Content-Type": "application/json"}
            return await call(request.method, urls["engine"] + request.target, request.body, json_body)

        async with listening(relay) as port:
            content: dict[str, Any] = config_for(BY_NAME["healthy"], {"engine": f"http://127.0.0.1:{port}"}, folder)
            content["gate"] |= {"arms": USUAL, "tiers": [531], "groups_per_tier": 2}
            content["gate"]["pressure"] = {"concurrency": 2, "tokens": 300}
            return await ruled(folder, content)


def test_a_reference_is_left_in_peace(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, arms=[*USUAL, "reference"], change=pressed(2), dials=PACE, reference=0)
    assert ruling.verdict is Verdict.PASS, ruling.reasons
    sent = [entry.probe for entry in entries(tmp_path) if isinstance(entry, ProbeSent)]
    assert {"engine"} == {probe.endpoint for probe in sent if probe.arm is Arm.CHURN}
    assert "apart" in {probe.endpoint for probe in sent}


def test_what_was_really_in_flight_ends_the_run_at_its_budget(tmp_path: Path) -> None:
    plan, _ = gated(tmp_path / "free", arms=USUAL, change=pressed(3), dials=PACE)

    def change(deployment: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
        pressed(3)(deployment, content, urls)
        content["budget"] = {"computed_tokens": plan.computed_tokens()}

    _, ruling = gated(tmp_path / "bound", arms=USUAL, change=change, dials=PACE)
    assert ruling.verdict is Verdict.INCONCLUSIVE
    assert Reason.BUDGET_EXHAUSTED in {problem.reason for problem in ruling.reasons}


def test_counters_that_lag_are_waited_for_until_they_hold_all_that_was_answered(tmp_path: Path) -> None:
    """What those beside it add must not stand in for the request itself."""
    _, ruling = run_async(_behind_a_late_page, tmp_path)
    assert ruling.verdict is Verdict.PASS, ruling.reasons


async def _behind_a_late_page(folder: Path) -> tuple[Plan, RunVerdict]:
    """The page of counters is the one of a tenth of a second ago."""
    seen: deque[tuple[float, HttpAnswer]] = deque()
    async with serving(make_deployment(scaled(PRESETS["dense"], 16), dials=PACE)) as urls:

        async def watch() -> None:
            while True:
                seen.append((time.monotonic(), await call("GET", urls["engine"] + "/metrics")))
                await asyncio.sleep(0.02)

        async def relay(request: HttpRequest) -> HttpAnswer:
            if request.path == "/metrics":
                while len(seen) > 1 and seen[1][0] <= time.monotonic() - 0.1:
                    seen.popleft()
                return seen[0][1]
            json_body = {"Content-Type": "application/json"}
            return await call(request.method, urls["engine"] + request.target, request.body, json_body)

        watching = asyncio.create_task(watch())
        try:
            async with listening(relay) as port:
                content: dict[str, Any] = config_for(BY_NAME["healthy"], {"engine": f"http://127.0.0.1:{port}"}, folder)
                content["gate"] |= {"arms": USUAL, "tiers": [531], "groups_per_tier": 2, "sentinel": False}
                content["gate"]["pressure"] = {"concurrency": 2}
                content["limits"]["evidence_s"] = 2.0
                return await ruled(folder, content)
        finally:
            watching.cancel()


def test_requests_that_reuse_each_others_kv_prove_nothing(tmp_path: Path) -> None:
    """What is in flight is new to the engine only where salts keep prompts apart."""
    _, ruling = gated(tmp_path, "salt_ignored", USUAL, change=pressed(2), dials=PACE)
    assert ruling.verdict is Verdict.INCONCLUSIVE
    _, ruling = gated(tmp_path / "bare", "salt_ignored", ["cold", "local", "external"], change=pressed(2), dials=PACE)
    assert ruling.verdict is Verdict.INCONCLUSIVE, "nor where no arm stands under a fresh salt"


def test_lines_of_the_log_are_not_lost_among_others(tmp_path: Path) -> None:
    """Requests beside it must not skip what the engine's log says of the group's own load."""
    change = reading_logs(tmp_path, "log")

    def both(deployment: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
        change(deployment, content, urls)
        pressed(2)(deployment, content, urls)

    _, ruling = gated(tmp_path, arms=USUAL, change=both, dials=writing_logs(tmp_path, latency_per_token_s=0.001))
    assert ruling.verdict is Verdict.PASS, ruling.reasons


def test_a_stop_under_pressure_is_clean(tmp_path: Path) -> None:
    with serving_script() as server:
        gate = {"groups_per_tier": 60, "pressure": {"concurrency": 4}}
        file = config_file(tmp_path, server, gate=gate, budget={"computed_tokens": 10**8})
        with subprocess.Popen(
            command("run", "-q", "-c", file), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            deadline = time.monotonic() + 30
            while len(server.bodies) < 40 and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
    assert (130, "") == (process.returncode, err)
    assert "INTERRUPTED" in out


def test_two_readers_are_pressed_where_they_are_asked(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, arms=USUAL, change=pressed(2), dials=PACE, topology=Topology.PAIR)
    assert ruling.verdict is Verdict.PASS, ruling.reasons
    sent = [entry.probe for entry in entries(tmp_path) if isinstance(entry, ProbeSent)]
    assert {"a", "b"} == {probe.endpoint for probe in sent if probe.arm is Arm.CHURN}


def test_what_is_in_flight_counts_against_the_budget(tmp_path: Path) -> None:
    plan, _ = gated(tmp_path, arms=USUAL, change=pressed(3, tokens=300), dials=PACE)
    quiet, _ = gated(tmp_path / "quiet", arms=USUAL, dials=PACE)
    beside = 3 * 300 * len(USUAL) * len(plan.groups)
    assert beside == plan.computed_tokens() - quiet.computed_tokens() == plan.sent_tokens() - quiet.sent_tokens()


@pytest.mark.parametrize(("changes", "made", "said"), [
    ({"deployment": {"salts": "ignored"}}, {}, "only a store that honours salts"),
    ({"gate": {"pressure": {"concurrency": 1, "tokens": 1_000_000}}}, {}, "is above what the deployment takes"),
    ({"gate": {"pressure": {"concurrency": 1, "tokens": 16}}}, {}, "gate.pressure.tokens 16: "),
    ({"gate": {"pressure": {"concurrency": 0}}}, {}, "so nothing is sent"),
    ({"gate": {"pressure": {"concurrency": [0, 0]}}}, {}, "so nothing is sent"),
], ids=["no salts", "too long", "too short", "none", "none at any level"])  # fmt: skip
def test_pressure_that_shows_nothing_is_refused(
    changes: dict[str, Any], made: dict[str, Any], said: str, tmp_path: Path
) -> None:
    def change(_deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
        content["gate"] |= {"pressure": {"concurrency": 2}, **changes.get("gate", {})}
        content["deployment"] |= changes.get("deployment", {})
        if changes.get("deployment"):
            content["gate"]["arms"] = [arm for arm in USUAL if arm != "cold_repeat"]

    with pytest.raises(ConfigError, match=said):
        gated(tmp_path, arms=USUAL, change=change, **made)


PD: dict[str, Any] = {"topology": Topology.PD, "dials": Dials(latency_s=0.01, latency_per_token_s=0.001)}


def test_each_level_of_pressure_has_a_noise_floor_of_its_own(tmp_path: Path) -> None:
    """Answers drift while others run: alone they are bit-equal, and held to that."""
    change = pressed([0, 3], groups=4)
    plan, ruling = gated(
        tmp_path / "noisy", arms=USUAL, change=change, dials=replace(PACE, batch_noise=0.02, batch_shapes=4)
    )
    assert Verdict.PASS is ruling.verdict, ruling.reasons
    assert [0, 3, 0, 3] == [group.level for group in plan.groups if group.purpose.value == "tier"]
    floors = {(floor.kind, floor.level): floor for floor in ruling.noise}
    quiet, loud = floors["local_vs_local_repeat", 0], floors["local_vs_local_repeat", 3]
    assert (2, 2) == (quiet.pairs, loud.pairs)
    assert quiet.exact == 2 > loud.exact
    exact = {
        (group.level, pair.exact)
        for group, seen in zip(plan.groups, ruling.groups, strict=True)
        for pair in seen.pairs
        if pair.kind is PairKind.EXTERNAL_VS_LOCAL and not pair.stray
    }
    assert {(0, True), (3, False)} == exact, "the noise of one level is no excuse at another"
    assert "0 or 3 requests of 531 tokens in flight" in next(note for note in ruling.notes if "pressure" in note)


def test_more_levels_than_groups_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has 3 levels, gate\.groups_per_tier is 2; each level needs a group"):
        gated(tmp_path, arms=USUAL, change=pressed([1, 2, 3]))


def test_clients_that_take_their_time_ask_less_often(tmp_path: Path) -> None:
    slow = replace(PACE, latency_per_token_s=0.01)
    for name, pause_s in (("at once", 0.0), ("later", 0.2)):
        gated(tmp_path / name, arms=USUAL, change=pressed(2, pause_s=pause_s, tokens=128), dials=slow)
    at_once, later = (
        sum(isinstance(entry, ProbeSent) and entry.probe.arm is Arm.CHURN for entry in entries(tmp_path / name))
        for name in ("at once", "later")
    )
    assert later < at_once


def test_impatient_clients_that_take_their_time_are_there_when_the_groups_request_follows(tmp_path: Path) -> None:
    """Broken off at once, and then silent for long, they would be missing."""
    change = pressed(4, pause_s=0.3, cancel_share=0.9, tokens=128)
    _, ruling = gated(tmp_path, arms=USUAL, change=change, dials=replace(PACE, latency_per_token_s=0.01))
    assert Verdict.PASS is ruling.verdict, ruling.reasons


def test_what_begins_alike_and_goes_on_differently_is_found_where_it_is_sent(tmp_path: Path) -> None:
    assert check(BY_NAME["after_a_fork"]).right
    _, alone = gated(tmp_path, "after_a_fork", USUAL)
    assert Verdict.PASS is alone.verdict, "the control: nobody shares a beginning"


def test_requests_between_have_a_common_beginning_and_what_is_broken_off_is_tried_again(tmp_path: Path) -> None:
    change = pressed(0, between=3, cancel_share=0.5)
    _, ruling = gated(tmp_path, arms=USUAL, change=change, dials=replace(PACE, latency_per_token_s=0.005))
    assert Verdict.PASS is ruling.verdict, ruling.reasons
    seen = entries(tmp_path)
    sent = {entry.probe.id: entry.probe for entry in seen if isinstance(entry, ProbeSent)}
    churned = [probe for probe in sent.values() if probe.arm is Arm.CHURN]
    requests = sum(probe.arm in BY_ARM for probe in sent.values())
    assert len({probe.salt for probe in churned}) == requests, "one beginning before each request of a group"
    ended = {entry.probe_id: entry.observation for entry in seen if isinstance(entry, ProbeAnswered)}
    by_prompt: dict[tuple[str | None, str], list[bool]] = {}
    for probe in churned:
        by_prompt.setdefault((probe.salt, probe.prompt_sha256), []).append(ended[probe.id].ok)
    assert 3 * requests == len(by_prompt)
    assert {(True,), (False, True)} == set(map(tuple, by_prompt.values()))


@pytest.mark.parametrize("drops", [0, 1], ids=["whole prompts", "prefill drops the last token"])
@pytest.mark.parametrize("cancels", [0.0, 0.4])
def test_prefill_and_decode_are_gated_under_pressure(cancels: float, drops: int, tmp_path: Path) -> None:
    made = {**PD, "dials": replace(PD["dials"], prefill_drops=drops)}
    plan, ruling = gated(tmp_path, arms=USUAL, change=pressed(3, cancel_share=cancels), **made)
    assert Verdict.PASS is ruling.verdict, ruling.reasons
    assert 3 == len(plan.churn)
    sent = [entry.probe for entry in entries(tmp_path) if isinstance(entry, ProbeSent)]
    beside = {probe.endpoint for probe in sent if probe.arm is Arm.CHURN}
    assert "gateway" in beside, "users' way"


@pytest.mark.parametrize(("fault", "verdict", "reason"), [
    ("pd_pool", Verdict.FAIL, None),
    ("transfer_reversed", Verdict.FAIL, None),
    ("transfer_dropped", Verdict.INCONCLUSIVE, Reason.TRANSFER_NOT_EXERCISED),
    ("decode_caches", Verdict.INCONCLUSIVE, Reason.TRANSFER_NOT_EXERCISED),
    ("transfer_fails", Verdict.INCONCLUSIVE, Reason.TRANSFER_NOT_EXERCISED),
    ("proxy_drops_salt", Verdict.INCONCLUSIVE, None),
])  # fmt: skip
def test_what_is_wrong_between_prefill_and_decode_is_found_under_pressure(
    fault: str, verdict: Verdict, reason: Reason | None, tmp_path: Path
) -> None:
    # What is small convicts among others only where six groups repeat themselves exactly.
    _, ruling = gated(tmp_path, fault, USUAL, change=pressed(2, groups=6 if verdict is Verdict.FAIL else 3), **PD)
    assert verdict is ruling.verdict, ruling.reasons
    if reason is not None:
        assert reason in {problem.reason for problem in ruling.reasons}


def test_foreign_traffic_is_seen_beside_the_gates_own_behind_a_gateway(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, "pd_foreign_traffic", USUAL, change=pressed(2), **PD)
    assert Verdict.INCONCLUSIVE is ruling.verdict
    assert Reason.FOREIGN_TRAFFIC in {problem.reason for problem in ruling.reasons}
