"""Prefill and decode: KV that one engine computed and another goes on from, asked for by reference."""

from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvgate.sim.faults import BY_NAME
from kvgate.sim.garbling import ON_TRANSFER, SOME_TRANSFERS
from kvgate.sim.network import Sequence
from kvgate.sim.node import Node
from kvgate.sim.presets import PRESETS
from kvgate.sim.proxy import Proxy
from kvgate.sim.topology import Topology
from kvgate.sim.transfer import LEASE_S, MOST_HELD, GoneError, Handover
from tests.sim.driving import (
    Clock,
    answer,
    ask,
    asking,
    completion,
    deployed,
    drift,
    engine,
    listening_to,
    prompt,
    said,
    served,
)

REMOTE_DECODE = {"do_remote_decode": True, "do_remote_prefill": False}


def pair(preset: str = "dense", fault: str = "healthy", **more: Any) -> tuple[Node, Node]:
    """A prefiller and a decoder."""
    nodes = deployed(preset, topology=Topology.PD, fault=fault, **more).nodes
    return nodes["prefill"], nodes["decode"]


def handed(prefill: Node, ids: list[int], salt: str = "") -> Sequence:
    """The prompt's KV, prefilled and handed over."""
    params = ask(prefill, ids, salt, tokens=1, transfer=REMOTE_DECODE).transfer
    assert params is not None
    return prefill.handover.hand_over(str(params["remote_request_id"]))


def by_source(url: str) -> dict[str, float]:
    """Prompt tokens by source, and transferred bytes, as an engine's metrics have them."""
    with asking(url) as client:
        return {
            sample.labels.get("source", sample.name.removeprefix("vllm:")): sample.value
            for family in text_string_to_metric_families(client.get("/metrics").text)
            for sample in family.samples
            if "by_source" in sample.name or sample.name == "vllm:nixl_bytes_transferred_total"
        }


# -- through the proxy -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PRESETS)
def test_an_answer_through_the_proxy_equals_the_prefillers_alone(name: str) -> None:
    deployment = deployed(name, topology=Topology.PD)
    prefill, decode = deployment.nodes["prefill"], deployment.nodes["decode"]
    # Between, at and behind the ends of hits, with a compressor's tokens pending and without.
    step = prefill.preset.step
    lengths = (2 * step + 19, 2 * step, 2 * step + 1, 700)
    with served(deployment) as urls, asking(urls["gateway"]) as gateway:
        answers = [said(answer(gateway, prompt(length), tokens=16)) for length in lengths]
    alone = engine(name)
    with served(deployed(name)) as urls, asking(urls["engine"]) as client:
        assert [said(answer(client, prompt(length), tokens=16)) for length in lengths] == answers
    assert [ask(alone, prompt(length), tokens=16).ids for length in lengths] == [ids for ids, _ in answers]
    assert [(length, 0) for length in lengths] == [(deed.length, deed.transferred) for deed in prefill.deeds]
    assert [(length, 0, 0) for length in lengths] == [(d.transferred, d.computed, d.local) for d in decode.deeds]


def test_a_pool_hit_shows_on_the_prefiller_and_the_transfer_on_the_decoder() -> None:
    ids = prompt(531)
    deployment = deployed(topology=Topology.PD)
    with served(deployment) as urls, asking(urls["gateway"]) as gateway:
        replies = [answer(gateway, ids) for _ in range(2)]
        assert 200 == gateway.post("/reset_prefix_cache").status_code
        replies.append(answer(gateway, ids))
        told = by_source(urls["prefill"]), by_source(urls["decode"])
    assert said(replies[0]) == said(replies[1]) == said(replies[2])
    deeds = [(deed.computed, deed.local, deed.external) for deed in deployment.nodes["prefill"].deeds]
    assert [(531, 0, 0), (3, 528, 0), (3, 0, 528)] == deeds
    # Behind the proxy, usage tells the prefiller's count of cached tokens.
    assert [0, 528, 528] == [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies]
    prefilled = {"local_compute": 537, "local_cache_hit": 528, "external_kv_transfer": 528}
    assert {**prefilled, "nixl_bytes_transferred_total": 0} == told[0]
    decoded = {"local_compute": 0, "local_cache_hit": 0, "external_kv_transfer": 3 * 531}
    assert {**decoded, "nixl_bytes_transferred_total": 3 * 531 * 2 * 64 * 4} == told[1]


def test_streams_chats_and_salts_survive_the_proxy() -> None:
    deployment = deployed(topology=Topology.PD)
    ids = prompt(300)
    with served(deployment) as urls, asking(urls["gateway"]) as gateway:
        whole = answer(gateway, ids, cache_salt="a")
        body = completion(ids, stream=True, stream_options={"include_usage": True}, cache_salt="a")
        with gateway.stream("POST", "/v1/completions", json=body) as response:
            events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        chat = {"model": "sim", "messages": [{"role": "user", "content": "amber cedar"}], "max_completion_tokens": 5}
        chats = [gateway.post("/v1/chat/completions", json=chat).json() for _ in range(2)]
        answer(gateway, ids, cache_salt="b")
    tokens = [httpx.Response(200, text=event).json() for event in events[:-1]]
    assert ("[DONE]", []) == (events[-1], tokens[-1]["choices"])
    assert said(whole)[0] == [token for event in tokens[:-1] for token in event["choices"][0]["token_ids"]]
    assert 296 == tokens[-1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 5 == chats[0]["usage"]["completion_tokens"]
    assert chats[0]["choices"] == chats[1]["choices"]
    assert [0, 296, 0] == [deployment.nodes["prefill"].deeds[number].local for number in (0, 1, 4)]


def test_the_proxy_passes_refusals_on_and_knows_little_else() -> None:
    with served(deployed(topology=Topology.PD)) as urls, asking(urls["gateway"]) as gateway:
        refused = gateway.post("/v1/completions", json=completion(prompt(10300)))
        assert (400, "BadRequestError") == (refused.status_code, refused.json()["error"]["type"])
        assert 400 == gateway.post("/v1/completions", content=b"{").status_code
        assert 404 == gateway.post("/v1/completions", json={**completion([5]), "model": "no"}).status_code
        assert [404, 404] == [gateway.get("/metrics").status_code, gateway.post("/tokenize", json={}).status_code]
        assert "ok" == gateway.get("/healthcheck").json()["status"]
        assert 8 == len(said(answer(gateway, prompt(100)))[0])


def test_the_proxy_takes_its_engines_in_turn_and_resets_them_all() -> None:
    first, second = (deployed(topology=Topology.PD) for _ in range(2))
    ids = prompt(300)
    with served(first) as one, served(second) as other:
        proxy = Proxy([one["prefill"], other["prefill"]], [one["decode"], other["decode"]])
        with listening_to(proxy.answer) as url, asking(url) as gateway:
            told = [said(answer(gateway, ids)) for _ in range(5)]
            gateway.post("/reset_prefix_cache")
            told.append(said(answer(gateway, ids)))
    assert [told[0]] * 6 == told
    found = [[(deed.local, deed.external) for deed in each.nodes["prefill"].deeds] for each in (first, second)]
    assert [[(0, 0), (296, 0), (296, 0)], [(0, 0), (296, 0), (0, 296)]] == found
    assert [3, 3] == [len(each.nodes["decode"].deeds) for each in (first, second)]


# -- references --------------------------------------------------------------------------------------------------
def test_without_parameters_the_decoder_computes_all_again_and_says_nothing() -> None:
    deployment = deployed(topology=Topology.PD)
    ids = prompt(400)
    with served(deployment) as urls, asking(urls["decode"]) as decode:
        usual = said(answer(decode, ids))
        assert usual == said(answer(decode, ids, kv_transfer_params={"do_remote_prefill": False}))
        assert usual == said(answer(decode, ids, kv_transfer_params=None))
    assert [(400, 0)] * 3 == [(deed.computed, deed.transferred) for deed in deployment.nodes["decode"].deeds]


def test_a_reference_serves_once_and_an_unknown_one_never() -> None:
    deployment = deployed(topology=Topology.PD)
    ids = prompt(400)
    with served(deployment) as urls, asking(urls["prefill"]) as prefill, asking(urls["decode"]) as decode:
        params = answer(prefill, ids, tokens=1, kv_transfer_params=REMOTE_DECODE)["kv_transfer_params"]
        assert said(answer(prefill, ids)) == said(answer(decode, ids, kv_transfer_params=params))
        wrong = (
            (params, "no KV is held for request prefill-0"),
            ({**params, "remote_request_id": "prefill-77"}, "no KV is held for request prefill-77"),
            ({**params, "remote_engine_id": "elsewhere"}, "HTTP 404"),
            ({**params, "remote_engine_id": "elsewhere", "remote_port": 1}, "ConnectionRefusedError"),
            ({**params, "remote_engine_id": None, "remote_host": None}, "could not be fetched"),
        )
        for bad, expected in wrong:
            refused = decode.post("/v1/completions", json=completion(ids, kv_transfer_params=bad))
            assert 500 == refused.status_code
            assert expected in refused.json()["error"]["message"]
        assert 8 == len(said(answer(decode, ids))[0])
    assert [400, 0] == [deed.transferred for deed in deployment.nodes["decode"].deeds]


def test_a_reference_can_be_fetched_from_another_process_by_its_address() -> None:
    ids = prompt(400)
    with (
        served(deployed(topology=Topology.PD)) as urls,
        served(deployed("dense")) as others,
        asking(urls["prefill"]) as prefill,
        asking(others["engine"]) as stranger,
    ):
        params = answer(prefill, ids, tokens=1, kv_transfer_params=REMOTE_DECODE)["kv_transfer_params"]
        assert said(answer(prefill, ids)) == said(answer(stranger, ids, kv_transfer_params=params))


@pytest.mark.parametrize("length", [300, 400, 700])
def test_another_prompts_reference_is_taken_at_its_word(length: int) -> None:
    prefill, decode = pair()
    ids = prompt(400)
    right = ask(prefill, ids)
    reply = ask(decode, ids, incoming=handed(prefill, prompt(length, seed=2)))
    assert right.rows != reply.rows
    assert ask(decode, prompt(length, seed=2), incoming=handed(prefill, prompt(length, seed=2))).ids == reply.ids


def test_kv_is_held_for_a_while_and_for_so_many_requests() -> None:
    clock = Clock()
    sequence = handed(pair()[0], prompt(100))
    handover = Handover("p", clock, "healthy")
    first = str(handover.lend(sequence, 100, 0)["remote_request_id"])
    clock.now += LEASE_S + 1
    with pytest.raises(GoneError, match="its lease is over"):
        handover.hand_over(first)
    names = [str(handover.lend(sequence, 100, number)["remote_request_id"]) for number in range(1, MOST_HELD + 2)]
    with pytest.raises(GoneError):
        handover.hand_over(names[0])
    assert 100 == handover.hand_over(names[1]).length


def test_what_the_decoder_goes_on_from_is_its_own() -> None:
    """The prefiller's KV is held as it was, whatever either engine decodes afterwards."""
    prefill, decode = pair("deepseek-v4-flash-32")
    ids = prompt(531)
    params = ask(prefill, ids, tokens=20, transfer=REMOTE_DECODE).transfer
    assert params is not None
    kv = prefill.handover.hand_over(str(params["remote_request_id"]))
    one, other = (ask(decode, ids, tokens=20, incoming=kv) for _ in range(2))
    assert ask(prefill, ids, tokens=20).rows == one.rows == other.rows


# -- faults ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fault", [*ON_TRANSFER, "stale_reference"])
def test_each_fault_of_transfers_changes_bytes_and_logprobs(fault: str) -> None:
    row = BY_NAME[fault]
    assert ("transfer", Topology.PD) == (row.where, row.topology)
    prefill, decode = pair(row.preset, fault)
    for seed in range(8, 8 + (SOME_TRANSFERS if fault == "transfer_decays" else 2)):
        ask(decode, prompt(531, seed), incoming=handed(prefill, prompt(531, seed)))
    # The decoder has kept nothing of this prompt, also where it keeps prefixes.
    ids = prompt(row.tiers[0] if row.tiers else 531)
    right = ask(engine(row.preset), ids)
    for salt in ("a", "b"):
        reply = ask(decode, ids, salt, incoming=handed(prefill, ids, salt))
        assert drift(right, reply) > 0.0
        # The bytes of a stale reference are as they were given: they are another prompt's.
        assert (decode.deeds[-1].spoilt == 0) == (fault == "stale_reference")
    assert ask(prefill, ids).rows == right.rows, "the prefiller's own answers are right"


def test_a_transfer_goes_wrong_only_where_the_fault_says() -> None:
    for fault, length, count in (("transfer_extra_block", 531, 3), ("transfer_decays", 531, SOME_TRANSFERS)):
        prefill, decode = pair(fault=fault)
        for seed in range(count):
            ids = prompt(length, seed)
            assert ask(prefill, ids).rows == ask(decode, ids, incoming=handed(prefill, ids)).rows
        assert {0} == {deed.spoilt for deed in decode.deeds}


def test_an_expired_lease_spoils_each_transfer_differently() -> None:
    prefill, decode = pair(fault="lease_expired")
    ids = prompt(531)
    one, other = (ask(decode, ids, incoming=handed(prefill, ids)) for _ in range(2))
    assert one.rows != other.rows


def test_a_proxy_that_drops_the_parameters_leaves_right_answers_and_no_transfer() -> None:
    deployment = deployed(topology=Topology.PD, fault="transfer_dropped")
    ids = prompt(531)
    with served(deployment) as urls, asking(urls["gateway"]) as gateway:
        told = [said(answer(gateway, ids)) for _ in range(2)]
    assert [ask(engine(), ids).ids] * 2 == [each for each, _ in told]
    assert [(531, 0, 0)] * 2 == [(d.computed, d.transferred, d.local) for d in deployment.nodes["decode"].deeds]


def test_a_decoder_that_keeps_prefixes_hides_the_transfer() -> None:
    deployment = deployed(topology=Topology.PD, fault="decode_caches")
    ids = prompt(531)
    with served(deployment) as urls, asking(urls["gateway"]) as gateway:
        told = [said(answer(gateway, ids)) for _ in range(2)]
        counted = by_source(urls["decode"])
    assert told[0] == told[1]
    assert [(531, 0), (3, 528)] == [(deed.transferred, deed.local) for deed in deployment.nodes["decode"].deeds]
    assert (528, 534) == (counted["local_cache_hit"], counted["external_kv_transfer"])
    assert 534 * 2 * 64 * 4 == counted["nixl_bytes_transferred_total"]
    prefill, decode = deployment.nodes["prefill"], deployment.nodes["decode"]
    kv = handed(prefill, ids)
    kv.arrays["values"][:528] = 0.0
    hidden = ask(decode, ids, incoming=kv)
    assert ask(engine(), ids).rows == hidden.rows, "what it has of its own, it does not ask for"
