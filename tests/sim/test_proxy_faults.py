"""Every fault of proxies, and of what they let through, acts as the table says and on nothing else."""

import json
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from kvgate.sim.deeds import Deed
from kvgate.sim.deployment import Deployment, make_deployment, serving_alone
from kvgate.sim.dials import QUIET
from kvgate.sim.faults import BY_NAME, FAULTS
from kvgate.sim.network import FIRST_USABLE_TOKEN
from kvgate.sim.presets import PRESETS, scaled
from kvgate.sim.proxy import BUSY, SOME
from kvgate.sim.tampering import ON_DECODE, ON_REQUEST, ON_TOLD
from kvgate.sim.topology import Part, Topology
from tests.sim.driving import (
    SCALE,
    answer,
    ask,
    asking,
    completion,
    engine,
    memory,
    prompt,
    said,
    served,
    small,
)

IDS = prompt(531)
RIGHT = ask(engine(), IDS, tokens=12)


def deployment_of(fault: str) -> Deployment:
    row = BY_NAME[fault]
    assert row.topology is Topology.PD
    preset = scaled(PRESETS[row.preset], SCALE, row.speculation)
    return make_deployment(preset, row.topology, fault, row.dials, memory=memory(), proxy=row.proxy)


def deeds(deployment: Deployment, part: str) -> list[Deed]:
    return deployment.nodes[part].deeds


def counted(url: str) -> dict[str, float]:
    """Look-ups that hit, and prompt tokens by source."""
    with asking(url) as client:
        lines = client.get("/metrics").text.splitlines()
    found = {line.split("{")[0]: float(line.split()[-1]) for line in lines if line.startswith("vllm:external")}
    sources = {line.split('source="')[1].split('"')[0]: float(line.split()[-1]) for line in lines if "source=" in line}
    return {"looked up": found["vllm:external_prefix_cache_hits_total"], **sources}


def streamed(client: httpx.Client, ids: list[int], tokens: int = 12) -> tuple[list[dict[str, Any]], bool]:
    """The objects of a stream, and whether it said that it ended."""
    body = completion(ids, tokens, stream=True, stream_options={"include_usage": True})
    with client.stream("POST", "/v1/completions", json=body) as response:
        assert 200 == response.status_code
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    return [json.loads(line) for line in lines if line != "[DONE]"], "[DONE]" in lines


# -- the table ---------------------------------------------------------------------------------------------------
def test_every_fault_of_proxies_stands_in_the_table_with_the_guilty_part() -> None:
    planted = {*ON_REQUEST, *ON_DECODE, *ON_TOLD}
    assert planted <= set(BY_NAME)
    assert {"proxy"} == {BY_NAME[name].guilty or "proxy" for name in planted}
    assert {"", "pool", "transfer", "proxy"} == {fault.guilty for fault in FAULTS}
    named = [fault for fault in FAULTS if fault.guilty]
    assert {Topology.PD} == {fault.topology for fault in named}
    everywhere = {fault.name for fault in FAULTS if fault.topology is Topology.PD and fault.verdict != "PASS"}
    assert {"pd_foreign_traffic", "proxy_in_turn"} == everywhere - {fault.name for fault in named}


# -- what the engines are asked ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("fault", "change"), [
    ("proxy_cuts_prompt", IDS[66:]),
    ("proxy_adds_token", [FIRST_USABLE_TOKEN, *IDS]),
    ("proxy_retokenises", [*IDS[:265], FIRST_USABLE_TOKEN, *IDS[266:]]),
])  # fmt: skip
def test_another_prompt_is_answered_and_echoed(fault: str, change: list[int]) -> None:
    deployment = deployment_of(fault)
    with served(deployment) as urls, asking(urls["gateway"]) as gateway:
        told = answer(gateway, IDS, 12)
    assert change == told["choices"][0]["prompt_token_ids"]
    assert ask(engine(), change, tokens=12).ids == said(told)[0]
    assert [len(change)] * 2 == [deeds(deployment, part)[0].length for part in ("prefill", "decode")]


def test_a_salt_that_is_dropped_separates_nobody() -> None:
    deployment = deployment_of("proxy_drops_salt")
    with served(deployment) as urls, asking(urls["gateway"]) as gateway:
        for salt in ("a", "b"):
            answer(gateway, IDS, cache_salt=salt)
    assert [0, 528] == [deed.local for deed in deeds(deployment, "prefill")]


@pytest.mark.parametrize(("fault", "gone"), [("proxy_drops_ids", "token_ids"), ("proxy_drops_logprobs", "logprobs")])
def test_a_wish_that_is_dropped_is_not_granted(fault: str, gone: str) -> None:
    with served(deployment_of(fault)) as urls, asking(urls["gateway"]) as gateway:
        choice = answer(gateway, IDS, 12)["choices"][0]
    assert choice.get(gone) is None
    assert memory().words.text(RIGHT.ids) == choice["text"]
    if fault == "proxy_drops_ids":
        assert not [token for token in choice["logprobs"]["tokens"] if token.startswith("token_id:")]


def test_another_temperature_draws_other_tokens_from_the_same_logits() -> None:
    with served(deployment_of("proxy_temperature")) as urls, asking(urls["gateway"]) as gateway:
        one, other = (said(answer(gateway, IDS, 12, seed=seed)) for seed in (1, 2))
        assert one == said(answer(gateway, IDS, 12, seed=1))
        with asking(urls["decode"]) as decode:
            assert RIGHT.ids == said(answer(decode, IDS, 12, seed=1))[0]
    assert RIGHT.ids != one[0] != other[0]
    # What is told of the first position are its logprobs before the temperature.
    rows = {token: round(value, 4) for token, value in RIGHT.rows[0]}
    told = {int(name.split(":")[1]): round(value, 4) for name, value in one[1]["top_logprobs"][0].items()}
    assert rows.items() & told.items()


def test_half_as_many_tokens_come_and_say_that_they_are_all() -> None:
    with served(deployment_of("proxy_max_tokens")) as urls, asking(urls["gateway"]) as gateway:
        told = answer(gateway, IDS, 12)
    assert (RIGHT.ids[:6], "length") == (said(told)[0], told["choices"][0]["finish_reason"])
    assert 6 == told["usage"]["completion_tokens"]


# -- what is passed on -------------------------------------------------------------------------------------------
FIRST = RIGHT.ids[0]
PASSED_ON = {
    "proxy_first_token_lost": (RIGHT.ids[1:], 11, "length"),
    "proxy_first_token_doubled": ([FIRST, *RIGHT.ids], 13, "length"),
    "proxy_first_token_replaced": ([FIRST - 1, *RIGHT.ids[1:]], 12, "length"),
    "proxy_loses_chunk": ([FIRST, *RIGHT.ids[2:]], 12, "length"),
    "proxy_cuts_answer": (RIGHT.ids[:6], 6, "stop"),
    "proxy_tells_all_cached": (RIGHT.ids, 12, "length"),
}


@pytest.mark.parametrize("fault", PASSED_ON)
@pytest.mark.parametrize("stream", [False, True])
def test_answers_are_passed_on_as_the_fault_has_it(fault: str, stream: bool) -> None:
    deployment = deployment_of(fault)
    with served(deployment) as urls, asking(urls["gateway"]) as gateway:
        if stream:
            events, done = streamed(gateway, IDS)
            choices, usage = [event["choices"][0] for event in events if event["choices"]], events[-1]["usage"]
            assert done
        else:
            told = answer(gateway, IDS, 12)
            choices, usage = told["choices"], told["usage"]
        with asking(urls["prefill"]) as prefill:
            assert RIGHT.ids == said(answer(prefill, IDS, 12))[0]
    ids, count, ended = PASSED_ON[fault]
    assert (ids, count) == ([token for choice in choices for token in choice["token_ids"]], usage["completion_tokens"])
    assert [ended] == [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    logprobs = [value for choice in choices for value in choice["logprobs"]["token_logprobs"]]
    assert len(ids) == len(logprobs)
    texts = "".join(choice["text"] for choice in choices)
    if fault != "proxy_first_token_replaced":
        assert memory().words.text(ids) == texts
    cached = 530 if fault == "proxy_tells_all_cached" else 0
    assert {"cached_tokens": cached} == usage["prompt_tokens_details"]
    assert [(531, 0)] == [(deed.transferred, deed.spoilt) for deed in deeds(deployment, "decode")]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_broken_off_ends_with_http_200_all_the_same(stream: bool) -> None:
    with served(deployment_of("proxy_breaks_off")) as urls, asking(urls["gateway"]) as gateway:
        assert RIGHT.ids[:8] == said(answer(gateway, IDS, 8))[0]
        if stream:
            events, done = streamed(gateway, IDS)
            assert (RIGHT.ids[:6], False) == ([event["choices"][0]["token_ids"][0] for event in events], done)
            assert {None} == {event["choices"][0]["finish_reason"] for event in events}
        else:
            found = gateway.post("/v1/completions", json=completion(IDS, 12))
            assert 200 == found.status_code
            with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
                found.json()


# -- one client and another --------------------------------------------------------------------------------------
def asked_in_turn(fault: str, prompts: list[list[int]]) -> tuple[list[list[int]], Deployment]:
    deployment = deployment_of(fault)
    with served(deployment) as urls, asking(urls["gateway"]) as gateway:
        return [said(answer(gateway, ids))[0] for ids in prompts], deployment


def test_the_parameters_of_the_request_before_bring_its_kv() -> None:
    one, other = prompt(531, 2), prompt(531, 3)
    told, deployment = asked_in_turn("proxy_one_behind", [one, one, other, other])
    right = [ask(engine(), ids).ids for ids in (one, other)]
    # The first request has none before it, and decode computes it; the third gets the second's.
    assert [right[0], right[0], right[0], right[1]] == told
    assert [0, 531, 531, 531] == [deed.transferred for deed in deeds(deployment, "decode")]


def test_every_third_client_gets_another_clients_answer() -> None:
    prompts = [prompt(531, seed) for seed in range(2 * SOME)]
    told, deployment = asked_in_turn("proxy_mixes_clients", prompts)
    right = [ask(engine(), ids).ids for ids in prompts]
    assert [right[0], right[1], right[1], right[3], right[4], right[4]] == told
    assert 6 == len(deeds(deployment, "decode"))


def test_an_answer_that_is_kept_asks_no_engine() -> None:
    told, deployment = asked_in_turn("proxy_caches_answers", [IDS, IDS, prompt(300), IDS])
    assert told[0] == told[1] == told[3] != told[2]
    assert [2, 2] == [len(deeds(deployment, part)) for part in ("prefill", "decode")]


def test_one_request_in_fifteen_finds_no_engine() -> None:
    with served(deployment_of("proxy_502_at_times")) as urls, asking(urls["gateway"]) as gateway:
        codes = [gateway.post("/v1/completions", json=completion([9] * 20, 1)).status_code for _ in range(2 * BUSY)]
    assert [200] * (BUSY - 1) + [502] == codes[:BUSY] == codes[BUSY:]


def test_a_refusal_that_is_swallowed_leaves_an_answer_to_a_part_of_the_prompt() -> None:
    ids = prompt(10300)
    deployment = deployment_of("proxy_swallows_refusal")
    with served(deployment) as urls, asking(urls["gateway"]) as gateway:
        told = answer(gateway, ids)
        assert ids[:5150] == told["choices"][0]["prompt_token_ids"]
        assert [] == deeds(deployment, "prefill")
        refused = gateway.post("/v1/completions", json={**completion([5]), "prompt": ""})
        assert 400 == refused.status_code


# -- transfers that a proxy lets through -------------------------------------------------------------------------
@pytest.mark.parametrize(("fault", "status"), [("hit_not_held", 200), ("hit_not_held_router", 500)])
def test_what_came_from_the_pool_is_not_held_and_each_proxy_tells_it_in_its_way(fault: str, status: int) -> None:
    deployment = deployment_of(fault)
    with served(deployment) as urls, asking(urls["gateway"]) as gateway:
        assert said(answer(gateway, IDS)) == said(answer(gateway, IDS))
        gateway.post("/reset_prefix_cache", json={})
        tries = counted(urls["decode"])["looked up"]
        found = gateway.post("/v1/completions", json=completion(IDS))
        assert (status, status == 200) == (found.status_code, found.content == b"")
        after = counted(urls["decode"])
    # The look-up counts as a hit although nothing came; what arrived does not.
    assert tries < after["looked up"]
    assert 2 * 531 == after["external_kv_transfer"]
    assert [0, 0, 528] == [deed.external for deed in deeds(deployment, "prefill")]
    assert 2 == len(deeds(deployment, "decode"))


def test_transfers_that_fail_count_as_hits_and_are_computed_again() -> None:
    told, deployment = asked_in_turn("transfer_fails", [IDS, IDS])
    assert [RIGHT.ids[:8]] * 2 == told
    assert [(531, 0)] * 2 == [(deed.computed, deed.transferred) for deed in deeds(deployment, "decode")]
    with served(deployment_of("transfer_fails")) as urls, asking(urls["gateway"]) as gateway:
        answer(gateway, IDS)
        page = counted(urls["decode"])
    assert (531, 0, 531) == (page["looked up"], page["external_kv_transfer"], page["local_compute"])


def test_somebody_elses_transfer_is_counted_where_none_was() -> None:
    deployment = deployment_of("foreign_on_decode")
    with served(deployment) as urls, asking(urls["gateway"]) as gateway:
        answer(gateway, IDS)
        page = counted(urls["decode"])
    assert [(531, 0)] == [(deed.computed, deed.transferred) for deed in deeds(deployment, "decode")]
    assert (530, 531) == (page["external_kv_transfer"], page["local_compute"])


def hidden(fault: str) -> tuple[list[list[tuple[int, float]]], Deployment]:
    """The last of three answers, the third after a reset of everything, and the deployment."""
    deployment = deployment_of(fault)
    with served(deployment) as urls, asking(urls["gateway"]) as gateway:
        answer(gateway, IDS)
        answer(gateway, IDS)
        assert 200 == gateway.post("/reset_prefix_cache").status_code
        told = said(answer(gateway, IDS))
    rows = [[(int(name.split(":")[1]), value) for name, value in row.items()] for row in told[1]["top_logprobs"]]
    return rows, deployment


def test_a_decode_cache_that_no_reset_drops_hides_a_pool_that_is_wrong() -> None:
    rows, deployment = hidden("decode_hides_pool")
    assert [sorted(row) for row in ask(engine(), IDS).rows] == [sorted(row) for row in rows]
    assert deeds(deployment, "prefill")[-1].spoilt > 0
    assert [0, 528, 528] == [deed.local for deed in deeds(deployment, "decode")]


def test_a_decode_cache_that_no_reset_drops_keeps_what_was_transferred_wrongly() -> None:
    rows, deployment = hidden("decode_hides_transfer")
    assert [sorted(row) for row in ask(engine(), IDS).rows] != [sorted(row) for row in rows]
    assert deeds(deployment, "decode")[0].spoilt > 0
    assert [0, 528, 528] == [deed.local for deed in deeds(deployment, "decode")]


@pytest.mark.parametrize("fault", ["pd_pool", "pd_swallowed_failure", "decode_puts_early"])
def test_a_pool_that_is_wrong_spoils_what_prefill_loads_and_no_transfer(fault: str) -> None:
    deployment = deployment_of(fault)
    with served(deployment) as urls, asking(urls["gateway"]) as gateway:
        told = [said(answer(gateway, IDS)) for _ in range(2)]
        gateway.post("/reset_prefix_cache")
        told.append(said(answer(gateway, IDS)))
    assert told[0] == told[1] != told[2]
    assert 0 < deeds(deployment, "prefill")[-1].external
    assert [531] * 3 == [deed.transferred for deed in deeds(deployment, "decode")]
    assert {0} == {deed.spoilt for deed in deeds(deployment, "decode")}
    if fault == "pd_swallowed_failure":
        assert any("KV load failed for hybrid request" in line for line in deployment.nodes["prefill"].log.lines)


@pytest.mark.parametrize(("fault", "tries"), [
    ("decode_recomputes", [False, False]),
    ("decode_recomputes_at_times", [True, False]),
])  # fmt: skip
def test_answers_that_decode_recomputed_are_broken_off_by_the_proxy(fault: str, tries: list[bool]) -> None:
    with served(deployment_of(fault)) as urls, asking(urls["gateway"]) as gateway:
        assert tries == [streamed(gateway, IDS)[1] for _ in tries]


def test_an_answer_that_decode_recomputed_says_so_behind_the_router() -> None:
    with served(deployment_of("decode_recomputes_router")) as urls, asking(urls["gateway"]) as gateway:
        told = answer(gateway, IDS, 12)
    assert ("recomputed", RIGHT.ids[:6]) == (told["choices"][0]["stop_reason"], said(told)[0])


def test_text_that_decode_recomputed_is_resumed_by_the_proxy() -> None:
    text = memory().words.text(memory().words.tokenize("amber cedar elm fir " * 40))
    with served(deployment_of("decode_recomputes_at_times")) as urls, asking(urls["gateway"]) as gateway:
        body = {**completion([], 12), "prompt": text}
        once, again = (gateway.post("/v1/completions", json=body).json()["choices"][0] for _ in range(2))
    assert once["text"] == again["text"][: len(once["text"])]
    # Only the last segment's IDs are told.
    assert len(again["token_ids"]) < len(once["token_ids"])


# -- several processes -------------------------------------------------------------------------------------------
def alone(part: Part, fault: str, elsewhere: dict[str, list[str]]) -> AbstractContextManager[dict[str, str]]:
    portal = start_blocking_portal()
    return _Alone(portal, part, fault, elsewhere)


class _Alone:
    """One part of a deployment in a loop of its own, sharing nothing with the others."""

    def __init__(self, portal: Any, part: Part, fault: str, elsewhere: dict[str, list[str]]) -> None:
        self._portal = portal
        self._serving = serving_alone(part, small("dense"), fault, QUIET, 0, elsewhere, BY_NAME[fault].proxy)

    def __enter__(self) -> dict[str, str]:
        self._context = self._portal.__enter__().wrap_async_context_manager(self._serving)
        urls: dict[str, str] = self._context.__enter__()
        return urls

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)
        self._portal.__exit__(*error)


@pytest.mark.parametrize("fault", ["transfer_foreign_tail", "healthy_pd_layerwise"])
def test_prefill_and_decode_need_not_share_a_process(fault: str) -> None:
    with (
        alone(Part.PREFILL, fault, {}) as prefill,
        alone(Part.DECODE, fault, {}) as decode,
        alone(Part.PROXY, fault, {"prefill": [prefill["prefill"]], "decode": [decode["decode"]]}) as proxy,
        asking(proxy["proxy"]) as gateway,
    ):
        # The tail of the prompt before is another one's only from the second prompt on.
        told = [said(answer(gateway, prompt(531, seed))) for seed in (1, 2)]
        with asking(decode["decode"]) as client:
            found = client.get("/deeds").json()["deeds"]
        with asking(prefill["prefill"]) as client:
            right = [said(answer(client, prompt(531, seed))) for seed in (1, 2)]
    spoilt = fault == "transfer_foreign_tail"
    assert [531, 531] == [deed["transferred"] for deed in found]
    assert [False, spoilt] == [deed["spoilt"] > 0 for deed in found]
    assert [True, not spoilt] == [one == other for one, other in zip(told, right, strict=True)]
