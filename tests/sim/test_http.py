"""The embedded engine on the wire: streams, tokenizer, metrics, resets, ranks, deeds, and requests at the same time."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvgate.sim.deployment import Deployment
from kvgate.sim.dials import Dials
from kvgate.sim.words import Dictionary
from tests.sim.driving import answer, answer_at, asking, completion, deployed, prompt, said, served, small

IDS = prompt(400)
TEXT = "Shelf 0017: amber cedar elm.\nNext line, twice  spaced_out; 琥珀罗勒"


def one(deployment: Deployment) -> Iterator[httpx.Client]:
    with served(deployment) as urls, asking(urls["engine"]) as made:
        yield made


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A healthy engine; what tests ask of it is salted or random, so that they stay apart."""
    yield from one(deployed())


def events(client: httpx.Client, body: dict[str, Any], path: str = "/v1/completions") -> list[str]:
    """The data lines of a streamed reply."""
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert (200, "text/event-stream") == (response.status_code, response.headers["content-type"])
        return [line.removeprefix("data: ") for line in response.iter_lines() if line]


def samples(client: httpx.Client) -> dict[tuple[str, str, str], float]:
    """Counters by name, engine and source."""
    return {
        (sample.name, sample.labels.get("engine", ""), sample.labels.get("source", "")): sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
    }


# -- streams -----------------------------------------------------------------------------------------------------
def test_a_stream_is_server_sent_events_that_end_with_usage_and_done(client: httpx.Client) -> None:
    *told, usage, done = events(client, completion(IDS, 5, stream_options={"include_usage": True}))
    assert "[DONE]" == done
    assert ([], 5) == (json.loads(usage)["choices"], json.loads(usage)["usage"]["completion_tokens"])
    choices = [json.loads(each)["choices"][0] for each in told]
    assert [[token] for token in answer_at(IDS, tokens=5)] == [choice["token_ids"] for choice in choices]
    assert IDS == choices[0]["prompt_token_ids"]
    assert ["length"] == [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


@pytest.mark.parametrize("speculation", [0, 1, 3, 7])
def test_pieces_carry_as_many_ids_as_a_draft_allows(speculation: int) -> None:
    with served(deployed(small("dense", speculation))) as urls, asking(urls["engine"]) as client:
        *told, usage, _ = events(client, completion(IDS, 60, stream_options={"include_usage": True}))
    sizes = [len(json.loads(each)["choices"][0]["token_ids"]) for each in told]
    assert json.loads(usage)["usage"]["completion_tokens"] == sum(sizes) == 60
    assert (1, speculation + 1) == (sizes[0], max(sizes))


def test_an_error_in_mid_stream_takes_the_usages_place() -> None:
    with served(deployed(fault="broken_stream")) as urls, asking(urls["engine"]) as client:
        answer(client, IDS)
        client.post("/reset_prefix_cache")
        *_, error, done = events(client, completion(IDS, stream_options={"include_usage": True}))
        assert ("InternalServerError", "[DONE]") == (json.loads(error)["error"]["type"], done)
        client.post("/reset_prefix_cache")
        assert 500 == client.post("/v1/completions", json=completion(IDS)).status_code


def test_numbers_that_are_none_are_null_on_the_wire() -> None:
    with served(deployed(fault="nan_block")) as urls, asking(urls["engine"]) as client:
        answer(client, IDS)
        client.post("/reset_prefix_cache")
        assert [None] * 8 == said(answer(client, IDS))[1]["token_logprobs"]


# -- tokenizer and facts -----------------------------------------------------------------------------------------
def test_text_survives_the_tokenizer(client: httpx.Client) -> None:
    told = client.post("/tokenize", json={"model": "sim", "prompt": TEXT}).json()
    assert (len(told["tokens"]), 10240) == (told["count"], told["max_model_len"])
    assert TEXT == client.post("/detokenize", json={"model": "sim", "tokens": told["tokens"]}).json()["prompt"]
    messages = [{"role": "user", "content": "amber cedar"}]
    chat = client.post("/tokenize", json={"model": "sim", "messages": messages}).json()["tokens"]
    reply = client.post(
        "/v1/chat/completions",
        json={"model": "sim", "messages": messages, "max_tokens": 1, "return_token_ids": True},
    ).json()
    assert chat == reply["prompt_token_ids"]


def words_of(count: int) -> list[str]:
    return [chr(0x61 + number % 26) + chr(0x61 + number // 26) for number in range(count)]


def test_a_dictionary_that_is_full_goes_on_with_ids_that_stand_for_several_words() -> None:
    words = Dictionary()
    apart = "".join(f" {one}{other}" for one in ("am", "ba", "ce", "de", "em") for other in words_of(100))
    assert apart == words.text(words.tokenize(apart)), "words whose IDs collide get different ones as long as there are"
    many = " ".join(f"w{first}{second}" for first in "abcdefghijklmnopqrst" for second in "abcdefghijklmnopqrst" * 12)
    assert len(words.tokenize(many)) == 4800
    more = "".join(f" {chr(0x4E00 + number)}x" for number in range(500))
    ids = words.tokenize(more)
    assert max(ids) < 4096
    assert ids == words.tokenize(more)
    assert "<5>" == Dictionary().text([5])


def test_an_engine_tells_what_it_is(client: httpx.Client) -> None:
    assert {"version": "0.32.0+sim"} == client.get("/version").json()
    (model,) = client.get("/v1/models").json()["data"]
    assert ("sim", 10240) == (model["id"], model["max_model_len"])
    scheduler = client.get("/server_info?config_format=json").json()["vllm_config"]["scheduler_config"]
    assert 512 == scheduler["max_num_batched_tokens"]
    assert 200 == client.get("/health").status_code


def test_an_engine_with_a_draft_model_says_so() -> None:
    with served(deployed(small("dense", speculation=3))) as urls, asking(urls["engine"]) as client:
        config = client.get("/server_info").json()["vllm_config"]["speculative_config"]
    assert {"method": "mtp", "num_speculative_tokens": 3} == config


def test_an_engine_that_starts_up_is_not_healthy_and_refuses() -> None:
    with served(deployed(dials=Dials(start_up_s=600.0))) as urls, asking(urls["engine"]) as client:
        assert 503 == client.get("/health").status_code
        refused = client.post("/v1/completions", json=completion(IDS))
        assert (503, "InternalServerError") == (refused.status_code, refused.json()["error"]["type"])


@pytest.mark.parametrize(
    ("content", "status"), [(b"{", 400), (b"[]", 400), (b"{}", 404), (b'{"model": "sim"}', 400), (b"\xff", 400)]
)
def test_a_body_that_is_no_request_is_refused(client: httpx.Client, content: bytes, status: int) -> None:
    assert status == client.post("/v1/completions", content=content).status_code
    assert 200 == client.get("/health").status_code


def test_an_unknown_path_is_worded_by_the_framework(client: httpx.Client) -> None:
    for reply in (client.get("/no/such/path"), client.post("/no/such/path", json={})):
        assert (404, {"detail": "Not Found"}) == (reply.status_code, reply.json())


# -- metrics, deeds, log -----------------------------------------------------------------------------------------
def test_counters_tell_the_deeds() -> None:
    with served(deployed("deepseek-v4-flash-32")) as urls, asking(urls["engine"]) as client:
        ids = prompt(1100)
        answer(client, ids)
        answer(client, ids)
        client.post("/reset_prefix_cache")
        answer(client, ids)
        page, deeds = samples(client), client.get("/deeds").json()["deeds"]
        (info,) = (
            sample.labels
            for family in text_string_to_metric_families(client.get("/metrics").text)
            for sample in family.samples
            if sample.name == "vllm:cache_config_info"
        )
        log = client.get("/log").json()["lines"]
    assert [(1100, 0, 0), (76, 1024, 0), (76, 0, 1024)] == [(d["computed"], d["local"], d["external"]) for d in deeds]
    expected = {
        "prompt_tokens_total": 3300,
        "prefix_cache_queries_total": 3300,
        "prefix_cache_hits_total": 1024,
        "external_prefix_cache_queries_total": 2276,
        "external_prefix_cache_hits_total": 1024,
        "generation_tokens_total": 24,
        "request_success_total": 3,
        "num_preemptions_total": 0,
        "nixl_bytes_transferred_total": 0,
    }
    assert expected == {name: page[f"vllm:{name}", "0", ""] for name in expected}
    sources = {"local_compute": 1252, "local_cache_hit": 1024, "external_kv_transfer": 1024}
    assert sources == {source: page["vllm:prompt_tokens_by_source_total", "0", source] for source in sources}
    assert page["vllm:prompt_tokens_created", "0", ""] > 1e9
    assert ("2", "256", "256") == tuple(
        info[name] for name in ("block_size", "cache_hit_alignment_tokens", "prefix_cache_retention_interval")
    )
    expected_lines = ["Reqid: cmpl-sim-0, Total tokens 1100, kvpool hit tokens: 1024, need to load: 1024"]
    assert expected_lines == [line for line in log if line.startswith("Reqid")]


def test_ranks_have_caches_and_counters_of_their_own() -> None:
    deployment = deployed(ranks=2)
    with served(deployment) as urls, asking(urls["engine"]) as client:
        for rank in ("1", "1", "0"):
            client.post("/v1/completions", json=completion(IDS), headers={"X-data-parallel-rank": rank})
        page = samples(client)
        assert [(1, 0, 0), (1, 392, 0), (0, 0, 392)] == ranks_of(deployment)
        assert [400.0, 800.0] == [page["vllm:prompt_tokens_total", rank, ""] for rank in "01"]
        assert [0.0, 392.0] == [page["vllm:prefix_cache_hits_total", rank, ""] for rank in "01"]
        assert [392.0, 0.0] == [page["vllm:external_prefix_cache_hits_total", rank, ""] for rank in "01"]
        for seed in range(4):
            answer(client, prompt(100, seed))
        assert [1, 0, 1, 0] == [rank for rank, _, _ in ranks_of(deployment)[3:]]


def ranks_of(deployment: Deployment) -> list[tuple[int, int, int]]:
    return [(deed.rank, deed.local, deed.external) for deed in deployment.nodes["engine"].deeds]


# -- resets and salts --------------------------------------------------------------------------------------------
def test_a_reset_drops_the_engines_cache_and_the_pool_only_if_asked() -> None:
    deployment = deployed()
    with served(deployment) as urls, asking(urls["engine"]) as client, asking(urls["pool"]) as pool:
        found = []
        for target in ("", "?reset_external=false", "?reset_external=true"):
            answer(client, IDS)
            assert {"success": True} == client.post(f"/reset_prefix_cache{target}").json()
            answer(client, IDS)
            found.append(ranks_of(deployment)[-1][1:])
        assert [(0, 392), (0, 392), (0, 0)] == found
        assert 50 == len(pool.get("/get_all_keys").json())
        assert f"master_key_count {50}\nmaster_allocated_bytes {50 * 8 * 64 * 4 * 2}\n" == pool.get("/metrics").text


def test_a_reset_does_not_succeed_while_a_request_runs() -> None:
    with (
        served(deployed(dials=Dials(latency_s=0.5))) as urls,
        asking(urls["engine"]) as client,
        ThreadPoolExecutor(1) as other,
    ):
        running: Future[dict[str, Any]] = other.submit(answer, client, IDS)
        time.sleep(0.2)
        assert {"success": False} == client.post("/reset_prefix_cache").json()
        running.result()
        assert {"success": True} == client.post("/reset_prefix_cache").json()


def test_latency_grows_with_prompt_and_answer() -> None:
    dials = Dials(latency_s=0.05, latency_per_1k_s=0.2, latency_per_token_s=0.02)
    with served(deployed(dials=dials)) as urls, asking(urls["engine"]) as client:
        took = []
        for length, tokens in ((100, 1), (1000, 1), (100, 11)):
            begun = time.monotonic()
            answer(client, prompt(length), tokens)
            took.append(time.monotonic() - begun)
        assert [True] * 3 == [least <= seconds for least, seconds in zip((0.09, 0.27, 0.29), took, strict=True)]
        begun = time.monotonic()
        assert 11 + 1 == len(events(client, completion(prompt(100), 11)))
        assert time.monotonic() - begun >= 0.05 + 0.02 + 11 * 0.02


def test_what_is_reused_takes_no_time_to_compute() -> None:
    with served(deployed(dials=Dials(compute_per_1k_s=1.0))) as urls, asking(urls["engine"]) as client:
        took = []
        for _ in range(2):
            begun = time.monotonic()
            answer(client, prompt(1000), 1)
            took.append(time.monotonic() - begun)
    assert took[0] >= 1.0
    assert took[1] < 0.5


def test_a_salt_keeps_the_cache_and_the_pool_apart() -> None:
    deployment = deployed()
    with served(deployment) as urls, asking(urls["engine"]) as client:
        answers = [answer(client, IDS, cache_salt=salt) for salt in ("a", "a", "b")]
        client.post("/reset_prefix_cache")
        answers += [answer(client, IDS, cache_salt=salt) for salt in ("c", "b", None)]
    assert [0, 392, 0, 0, 392, 0] == [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in answers]
    assert [(0, 0), (0, 392), (0, 0)] == [(deed.local, deed.external) for deed in deployment.nodes["engine"].deeds[3:]]
    assert all(said(answers[0]) == said(reply) for reply in answers)


# -- at the same time --------------------------------------------------------------------------------------------
def test_requests_at_the_same_time_are_counted_and_answered_alike() -> None:
    deployment = deployed(dials=Dials(latency_s=0.2))
    with served(deployment) as urls, asking(urls["engine"]) as client, ThreadPoolExecutor(6) as pool:
        alone = [said(answer(client, prompt(300, seed), cache_salt="alone")) for seed in range(6)]
        together = list(pool.map(lambda seed: said(answer(client, prompt(300, seed), cache_salt="many")), range(6)))
    assert alone == together
    batches = [deed.batch for deed in deployment.nodes["engine"].deeds]
    assert [1] * 6 == batches[:6]
    assert max(batches[6:]) >= 3


def test_batch_noise_touches_only_what_ran_beside_others() -> None:
    deployment = deployed(dials=Dials(latency_s=0.2, batch_noise=0.02))
    prompts = {length: prompt(length) for length in range(300, 306)}
    with served(deployment) as urls, asking(urls["engine"]) as client, ThreadPoolExecutor(6) as pool:
        alone = {length: said(answer(client, ids)) for length, ids in prompts.items()}
        together = dict(zip(prompts, pool.map(lambda ids: said(answer(client, ids)), prompts.values()), strict=True))
    beside = {deed.length for deed in deployment.nodes["engine"].deeds[6:] if deed.batch > 1}
    assert beside
    assert beside == {length for length in prompts if alone[length] != together[length]}
    assert all(alone[length][0] == together[length][0] for length in prompts), "noise decides near ties only"


def test_large_bodies_and_kept_connections(client: httpx.Client) -> None:
    ids = prompt(10_000)
    for _ in range(3):
        assert answer_at(ids) == said(answer(client, ids))[0]
