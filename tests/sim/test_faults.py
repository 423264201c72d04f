"""The fault table: every row is planted somewhere, shows where the row says, and leaves alone what it does not name."""

import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvgate.sim.answers import ON_ANSWER, Reply
from kvgate.sim.deployment import Deployment, make_deployment
from kvgate.sim.faults import BY_NAME, FAULTS
from kvgate.sim.garbling import ON_TRANSFER
from kvgate.sim.node import Node
from kvgate.sim.planting import ON_LOAD
from kvgate.sim.presets import PRESETS, scaled
from kvgate.sim.topology import Topology
from tests.sim.driving import (
    SCALE,
    answer,
    ask,
    asking,
    by_each_path,
    completion,
    drift,
    engine,
    memory,
    prompt,
    said,
    served,
)

IDS = prompt(531)
HIT = 528


def deployment_of(fault: str) -> Deployment:
    """The deployment a row names, its lengths divided."""
    row = BY_NAME[fault]
    preset = scaled(PRESETS[row.preset], SCALE, row.speculation)
    return make_deployment(preset, row.topology, fault, row.dials, memory=memory())


def node_of(fault: str) -> Node:
    """Its engine, which has seen two other prompts."""
    node = next(iter(deployment_of(fault).nodes.values()))
    for seed in (101, 102):
        ask(node, prompt(1043, seed), tokens=1)
    return node


# -- the table ---------------------------------------------------------------------------------------------------
def test_the_table_names_each_fault_once_with_a_verdict_and_what_it_is_made_after() -> None:
    assert len(FAULTS) == len(BY_NAME) >= 36
    assert {"FAIL", "INCONCLUSIVE", "PASS"} == {fault.verdict for fault in FAULTS}
    assert [] == [fault.name for fault in FAULTS if bool(fault.reasons) == (fault.verdict == "PASS")]
    assert [] == [fault.name for fault in FAULTS if not (fault.sentence and fault.models and fault.where)]
    assert len(FAULTS) == len({fault.sentence for fault in FAULTS})
    assert {fault.preset for fault in FAULTS} <= set(PRESETS)
    assert {fault.lengths for fault in FAULTS} == {"aligned", "exact"}


def test_everything_that_can_be_planted_stands_in_the_table() -> None:
    assert set() == {*ON_LOAD, *ON_TRANSFER, *ON_ANSWER}.difference(BY_NAME)
    places: dict[str, Collection[str]] = {"transfer": ON_TRANSFER, "answer": ON_ANSWER, "load": ON_LOAD}
    # These are no change to bytes that are loaded: a scratch block is put, a missing owner is never read, a stale
    # reference stands for other bytes altogether.
    elsewhere = {"scratch_block", "shared_owner_missing", "stale_reference", "refused_hit"}
    # Nor are transfers that do not take place at all.
    elsewhere |= {"transfer_fails", "no_parameters"}
    assert elsewhere == {each.name for each in FAULTS if each.where in places and each.name not in places[each.where]}
    assert {"dead_bytes", "lossy_declared"} == {each.name for each in FAULTS if each.where == "control"} & set(ON_LOAD)


# What the controls with a decoder do is shown in test_transfer.py; where no two answers are alike, none is exact.
CONTROLS = [
    fault.name
    for fault in FAULTS
    if fault.verdict == "PASS" and fault.topology is not Topology.PD and not fault.dials.run_noise
]


@pytest.mark.parametrize("fault", CONTROLS)
def test_controls_answer_rightly_on_every_path_at_aligned_lengths(fault: str) -> None:
    node, row = node_of(fault), BY_NAME[fault]
    right = engine(node.preset)
    for length in (515, 1027):
        ids = prompt(length)
        time.sleep(row.dials.put_lag_s)
        replies = by_each_path(node, ids)
        assert replies.cold.rows == replies.local.rows
        assert (fault == "lossy_declared") == (replies.local.rows != replies.external.rows)
        assert row.dials.flip_share > 0.0 or ask(right, ids).rows == replies.cold.rows


# Faults of the last loaded block: the answer must stand there, or next to nothing of it is read.
LAST_BLOCK = ("zero_last_block", "truncated_block", "one_bit")


# -- bytes -------------------------------------------------------------------------------------------------------
def loads_of(fault: str) -> list[tuple[int, float]]:
    """For several loads: how many objects were changed, and the drift of the external hit against the local one."""
    node, found = node_of(fault), []
    for length, seed in ((536, 1), (536, 2), (536, 3), (1048, 4), (536, 5), (536, 6), (1048, 7), (536, 8)):
        answers = by_each_path(node, prompt(length, seed, length - 24 if fault in LAST_BLOCK else None))
        assert node.deeds[-1].external > 0
        found.append((node.deeds[-1].spoilt, drift(answers.local, answers.external)))
    return found


# Those that strike among other requests, or among other arms' loads, are shown there.
ALONE = [
    name
    for name in ON_LOAD
    if not (BY_NAME[name].needs or BY_NAME[name].arms or BY_NAME[name].pressure or BY_NAME[name].between)
]


@pytest.mark.parametrize("fault", ALONE)
def test_every_fault_of_loaded_bytes_changes_bytes_and_by_them_logprobs(fault: str) -> None:
    loads = loads_of(fault)
    changed = [shift for spoilt, shift in loads if spoilt]
    assert changed
    assert all(shift == 0.0 for spoilt, shift in loads if not spoilt)
    if fault == "dead_bytes":
        assert [0.0] * len(loads) == changed
    elif fault == "lossy_declared":
        assert 0.0 < max(changed) < (BY_NAME[fault].declared or 0.0)
    else:
        assert all(shift > 0.0 for shift in changed)
    some = {"long_only": 2, "some_lengths": 6, "after_some": 3, "every_other": 4}
    assert fault == "one_in_three" or some.get(fault, len(loads)) == len(changed)


def test_one_load_in_three_is_wrong_in_the_long_run() -> None:
    node, spoilt = node_of("one_in_three"), 0
    ask(node, IDS)
    for _ in range(90):
        node.drop_local()
        ask(node, IDS, tokens=1)
        spoilt += node.deeds[-1].spoilt
    assert 20 <= spoilt <= 40


def test_a_layer_that_finds_no_owner_drifts() -> None:
    answers = by_each_path(node_of("shared_owner_missing"), IDS)
    assert drift(answers.cold, answers.local) == 0.0 < drift(answers.local, answers.external)


# Whether an answer from the engine's own cache, and one from the pool, differs from the cold one.
STORED_WRONG = {
    "poisoned_put": (False, True),
    "scratch_block": (False, True),
    "hash_collision": (False, True),
    "saved_wrong": (True, True),
    "state_saved_wrong": (True, True),
}


@pytest.mark.parametrize("fault", STORED_WRONG)
def test_what_is_stored_wrong_shows_where_it_is_read(fault: str) -> None:
    node = node_of(fault)
    for seed in range(3):
        answers = by_each_path(node, prompt(531, seed))
        assert ask(engine(node.preset), prompt(531, seed)).rows == answers.cold.rows
        found = (answers.cold.rows != answers.local.rows, answers.cold.rows != answers.external.rows)
        assert STORED_WRONG[fault] == found
        if found == (True, True):
            assert answers.local.rows == answers.external.rows


# -- answers -----------------------------------------------------------------------------------------------------
def lost(right: Reply) -> dict[str, Any]:
    """What each fault makes of a right answer: the fields that it changes."""
    ids, rows = right.ids, right.rows
    return {
        "first_token_lost": {"ids": ids[1:]},
        "first_token_doubled": {"ids": [ids[0], *ids[:-1]]},
        "shifted_answer": {"ids": ids[3:]},
        "cut_answer": {"ids": ids[:4], "finish_reason": "stop"},
        "empty_answer": {"ids": [], "finish_reason": "stop", "text": ""},
        "looping_answer": {"ids": [*ids[:3], *[ids[2]] * 5]},
        "broken_stream": {"ids": ids, "broken_after": 3},
        "recomputed": {"ids": ids, "stop_reason": "recomputed"},
        "ids_missing": {"ids": ids[:-2], "claimed": 8},
        "zero_logprobs": {"ids": ids, "rows": [[(token, 0.0) for token, _ in row] for row in rows]},
        "leak": {"ids": ids, "text": memory().words.text(prompt(1043, 102)[:16])},
    }


def test_an_answer_is_another_s_only_while_others_run() -> None:
    node = node_of("leak_under_load")
    right = ask(node, prompt(1043, 102))
    assert right.text == ask(node, prompt(1043, 102)).text
    busy = ask(node, IDS, batch=2)
    assert (busy.ids, memory().words.text(prompt(1043, 102)[:16])) == (ask(engine(), IDS).ids, busy.text)


# One of them strikes only while others run.
@pytest.mark.parametrize("fault", sorted(set(ON_ANSWER) - {"leak_under_load"}))
def test_every_fault_of_answers_changes_those_from_the_pool_and_no_others(fault: str) -> None:
    answers = by_each_path(node_of(fault), IDS)
    assert ask(engine(), IDS).rows == answers.cold.rows == answers.local.rows
    expected = lost(answers.local)[fault]
    assert expected == {name: getattr(answers.external, name) for name in expected}
    assert answers.external != replace(answers.local, cached=answers.external.cached)
    assert len(answers.external.ids) == len(answers.external.rows) == sum(answers.external.steps)


def test_a_refused_hit_is_an_error_only_for_what_must_be_loaded() -> None:
    with served(deployment_of("refused_hit")) as urls, asking(urls["engine"]) as client:
        assert said(answer(client, IDS)) == said(answer(client, IDS))
        client.post("/reset_prefix_cache")
        refused = client.post("/v1/completions", json=completion(IDS))
        assert (500, "KV load failure") == (refused.status_code, refused.json()["error"]["message"])


# -- the path that never ran -------------------------------------------------------------------------------------
# Tokens from the pool after the engine's own cache was dropped, and what look-ups had found.
PATHS = {
    "no_pool": (0, 0),
    "never_put": (0, 0),
    "silent_recompute": (0, HIT),
    "evicted": (0, HIT),
    "shorter_hit": (264, 264),
    "reset_lies": (0, 0),
}


@pytest.mark.parametrize("fault", PATHS)
def test_a_path_that_never_ran_gives_right_answers(fault: str) -> None:
    node = node_of(fault)
    answers = by_each_path(node, IDS)
    assert ask(engine(), IDS).rows == answers.cold.rows == answers.local.rows == answers.external.rows
    assert PATHS[fault] == (node.deeds[-1].external, node.ranks[0].counters.external_hits)
    assert (HIT if fault == "reset_lies" else 0) == node.deeds[-1].local
    failed = [line for line in node.log.lines if line.startswith("Failed to get")]
    assert (1 if fault in ("silent_recompute", "evicted") else 0) == len(failed)


@pytest.mark.parametrize(
    ("fault", "status", "told"), [("reset_refused", 200, {"success": False}), ("no_reset", 404, {})]
)
def test_a_reset_that_is_refused_or_missing(fault: str, status: int, told: dict[str, bool]) -> None:
    with served(deployment_of(fault)) as urls, asking(urls["engine"]) as client:
        reply = client.post("/reset_prefix_cache")
        assert (status, told.get("success")) == (reply.status_code, reply.json().get("success"))


def test_a_pool_that_leaves_out_the_salt_serves_everybody() -> None:
    node = node_of("salt_ignored")
    usual = ask(node, IDS, "a").rows
    assert usual == ask(node, IDS, "b").rows
    assert (0, HIT) == (node.deeds[-1].local, node.deeds[-1].external)


# -- counters ----------------------------------------------------------------------------------------------------
def counters(client: httpx.Client) -> dict[str, float]:
    return {
        sample.labels.get("source", sample.name.removeprefix("vllm:").removesuffix("_total")): sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if sample.name.endswith("_total")
    }


def one_path(page: dict[str, float]) -> list[float]:
    return [page[name] for name in ("prompt_tokens", "local_compute", "local_cache_hit", "num_preemptions")]


def pages_of(fault: str, requests: int = 2, scrapes: int = 2) -> list[dict[str, float]]:
    with served(deployment_of(fault)) as urls, asking(urls["engine"]) as client:
        for _ in range(requests):
            answer(client, IDS)
        return [counters(client) for _ in range(scrapes)]


def test_counters_lie_as_the_table_says() -> None:
    right = [1062.0, 534.0, 528.0, 0.0]
    none, double = [0.0] * 4, [2 * value for value in right]
    more = [1574.0, 1046.0, 528.0, 0.0]
    twice: dict[str, list[list[float]]] = {
        "healthy": [right, right],
        "counters_stuck": [none, none],
        "counters_double": [double, double],
        "counters_saw": [none, right],
        "foreign_traffic": [right, more],
        "preempted": [[*right[:3], 2.0], [*right[:3], 2.0]],
    }
    assert twice == {fault: [one_path(page) for page in pages_of(fault)] for fault in twice}


def test_counters_that_restart_fall_after_some_requests() -> None:
    (before,), (after,) = (pages_of("counters_restart", requests, 1) for requests in (12, 13))
    assert 12 * 531 == before["prompt_tokens"]
    assert after["prompt_tokens"] < 7


def test_look_ups_only_leaves_out_arrivals() -> None:
    (page,) = pages_of("look_ups_only", scrapes=1)
    assert ("prefix_cache_hits" in page, "local_compute" in page) == (True, False)


def test_no_counters_is_no_page() -> None:
    with served(deployment_of("no_counters")) as urls, asking(urls["engine"]) as client:
        assert 404 == client.get("/metrics").status_code


def test_usage_lies_by_a_block() -> None:
    answers = by_each_path(node_of("lying_usage"), IDS)
    assert (8, HIT + 8, HIT + 8) == (answers.cold.cached, answers.local.cached, answers.external.cached)


# -- what needs traffic of its own -------------------------------------------------------------------------------
def spoilt(deployment: Deployment) -> list[int]:
    return [deed.spoilt for deed in deployment.nodes["engine"].deeds]


def reset(client: httpx.Client) -> None:
    assert {"success": True} == client.post("/reset_prefix_cache").json()


def mixed(client: httpx.Client) -> None:
    answer(client, IDS[:264], tokens=1)


def left_alone(client: httpx.Client) -> None:
    """A client that goes away in mid-stream."""
    with client.stream("POST", "/v1/completions", json=completion(prompt(300, 2), 40, stream=True)) as response:
        next(response.iter_lines())
    # The server hears of it when it sends the next piece.
    time.sleep(0.1)


def finished(client: httpx.Client) -> None:
    """A client that reads its stream to the end."""
    with client.stream("POST", "/v1/completions", json=completion(prompt(300, 2), 40, stream=True)) as response:
        assert "data: [DONE]" == [line for line in response.iter_lines() if line][-1]


TRAFFIC: tuple[tuple[str, Callable[[httpx.Client], None], bool], ...] = (
    ("mixed_only", mixed, True),
    ("mixed_only", finished, False),
    ("after_a_cancel", left_alone, True),
    ("after_a_cancel", finished, False),
)


@pytest.mark.parametrize(("fault", "traffic", "shows"), TRAFFIC)
def test_a_fault_shows_under_the_traffic_it_needs_and_not_without(
    fault: str, traffic: Callable[[httpx.Client], None], shows: bool
) -> None:
    deployment = deployment_of(fault)
    with served(deployment) as urls, asking(urls["engine"]) as client:
        right = said(answer(client, IDS))
        reset(client)
        assert right == said(answer(client, IDS))
        assert [0, 0] == spoilt(deployment)
        reset(client)
        traffic(client)
        assert shows == (right != said(answer(client, IDS)))
        assert shows == (spoilt(deployment)[-1] > 0)
        assert (264 if traffic is mixed else 0) == deployment.nodes["engine"].deeds[-1].local


def test_loads_are_wrong_while_others_run_and_only_then() -> None:
    deployment = deployment_of("concurrent_only")
    prompts = [prompt(4000, seed) for seed in range(8)]
    with served(deployment) as urls, asking(urls["engine"]) as client, ThreadPoolExecutor(8) as pool:
        right = [said(answer(client, ids)) for ids in prompts]
        reset(client)
        assert right == [said(answer(client, ids)) for ids in prompts]
        reset(client)
        together = list(pool.map(lambda ids: said(answer(client, ids)), prompts))
    alone, busy_deeds = deployment.nodes["engine"].deeds[:16], deployment.nodes["engine"].deeds[16:]
    assert {(1, 0)} == {(deed.batch, deed.spoilt) for deed in alone}
    assert [deed.batch > 1 for deed in busy_deeds] == [deed.spoilt > 0 for deed in busy_deeds]
    assert (
        sum(deed.spoilt > 0 for deed in busy_deeds)
        == sum(one != other for one, other in zip(right, together, strict=True))
        > 0
    )


def test_what_the_gate_is_not_ready_for_says_so() -> None:
    seldom = {"one_in_ten", "one_in_hundred", "after_many"}
    assert {"proxy_swallows_refusal", *seldom} == {fault.name for fault in FAULTS if fault.needs}
