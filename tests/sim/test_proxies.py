"""Each kind of proxy on the wire, before engines that write down what they are asked, and before embedded ones."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from kvgate.sim.http import HttpAnswer, HttpRequest
from kvgate.sim.proxy import KINDS, METASERVER, REMOTE_DECODE, Proxy
from kvgate.sim.surface import as_json, failure
from kvgate.sim.topology import ProxyKind, Topology
from tests.sim.driving import answer, ask, asking, completion, deployed, engine, listening_to, prompt, said, served

P_FIRST = [ProxyKind.ASCEND, ProxyKind.ROUTER]
LIKE_ASCEND = [ProxyKind.ASCEND, ProxyKind.LAYERWISE]
PARAMS = {"do_remote_prefill": True, "remote_request_id": "p-0", "remote_block_ids": [[0, 1]]}
BODY = {
    "model": "sim",
    "prompt": [5, 6, 7],
    "max_tokens": 4,
    "temperature": 0,
    "seed": 3,
    "cache_salt": "a",
    "return_token_ids": True,
    "min_p": 0.5,
}
Says = Callable[[HttpRequest], HttpAnswer]


def completed(text: str = "one two", stop_reason: str | None = None, **more: Any) -> dict[str, Any]:
    """A whole completion of two tokens."""
    choice = {"index": 0, "text": text, "finish_reason": "length", "stop_reason": stop_reason}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": None}
    return {"id": "cmpl-x", "choices": [choice], "usage": usage, **more}


def streamed(*texts: str, stop_reason: str | None = None) -> HttpAnswer:
    """A streamed completion, a token for each text; the last one ends it."""
    events = [
        {"choices": [{"text": text, "finish_reason": None, "stop_reason": None}], "usage": None} for text in texts
    ]
    events[-1]["choices"] = [{"text": texts[-1], "finish_reason": "stop", "stop_reason": stop_reason}]
    lines = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
    return HttpAnswer(200, "text/event-stream", pieces=[*lines, b"data: [DONE]\n\n"])


@dataclass
class Engine:
    """An engine that writes down what it is asked, and says one thing after the other, the last one again and again."""

    says: list[Says] = field(default_factory=list)
    asked: list[HttpRequest] = field(default_factory=list)

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        self.asked.append(request)
        saying = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        return saying(request)

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in self.asked]


def prefiller(*says: Says, cached: int | None = 2) -> Engine:
    details = None if cached is None else {"cached_tokens": cached}
    told = completed(kv_transfer_params=PARAMS)
    told["usage"]["prompt_tokens_details"] = details
    return Engine([*says, lambda _: as_json(told)])


def decoder(*says: Says) -> Engine:
    return Engine([*says] if says else [lambda _: as_json(completed())])


def always(found: HttpAnswer) -> Says:
    return lambda _: found


@contextmanager
def proxied(kind: ProxyKind, prefill: Engine, decode: Engine, fault: str = "healthy") -> Iterator[httpx.Client]:
    """A client of a proxy before these two."""
    with listening_to(prefill.answer) as one, listening_to(decode.answer) as other:
        proxy = Proxy([one], [other], fault, kind)
        with listening_to(proxy.answer) as url, asking(url) as client:
            proxy.where = url
            yield client


# -- healthy engines behind each kind ----------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ProxyKind)
@pytest.mark.parametrize("name", ["dense", "deepseek-v4-flash-32"])
def test_every_kind_gives_the_answers_of_one_engine_and_the_same_work(kind: ProxyKind, name: str) -> None:
    deployment = deployed(name, topology=Topology.PD, proxy=kind)
    prefill, decode = deployment.nodes["prefill"], deployment.nodes["decode"]
    ids = prompt(531)
    with served(deployment) as urls, asking(urls["gateway"]) as gateway:
        told = [said(answer(gateway, ids)) for _ in range(2)]
        assert 200 == gateway.post("/reset_prefix_cache", json={}).status_code
        body = completion(ids, stream=True, stream_options={"include_usage": True})
        with gateway.stream("POST", "/v1/completions", json=body) as response:
            events = [json.loads(line[6:]) for line in response.iter_lines() if line and line != "data: [DONE]"]
    alone = ask(engine(name), ids).ids
    assert [alone] * 2 == [each for each, _ in told]
    assert alone == [token for event in events[:-1] for token in event["choices"][0]["token_ids"]]
    hit = prefill.deeds[-1].external
    assert hit > 0
    assert [(531, 0, 0), (531 - hit, hit, 0), (531 - hit, 0, hit)] == [
        (deed.computed, deed.local, deed.external) for deed in prefill.deeds
    ]
    assert [(531, 0)] * 3 == [(deed.transferred, deed.computed) for deed in decode.deeds]
    assert hit == events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("kind", P_FIRST)
def test_prefill_is_asked_for_one_token_and_decode_for_the_rest(kind: ProxyKind) -> None:
    prefill, decode = prefiller(), decoder()
    with proxied(kind, prefill, decode) as client:
        body = {**BODY, "stream_options": {"include_usage": True}, "max_completion_tokens": 9}
        assert 200 == client.post("/v1/completions", json=body).status_code
    (first,), (second,) = prefill.bodies(), decode.bodies()
    one_token = {"stream": False, "max_tokens": 1, "min_tokens": 1, "max_completion_tokens": 1}
    assert {**BODY, **one_token, "kv_transfer_params": REMOTE_DECODE} == first
    assert {**body, "kv_transfer_params": PARAMS} == second


@pytest.mark.parametrize("kind", LIKE_ASCEND)
def test_like_ascend_drops_headers_replaces_the_request_id_and_sends_a_key_that_is_none(kind: ProxyKind) -> None:
    prefill, decode = prefiller(), decoder()
    headers = {"X-Request-Id": "mine", "X-Data-Parallel-Rank": "1", "Authorization": "Bearer key", "Traceparent": "t"}
    with proxied(kind, prefill, decode) as client:
        found = client.post("/v1/completions", json=BODY, headers=headers)
    legs = [*prefill.asked, *decode.asked]
    assert "x-request-id" not in found.headers
    for request in legs:
        assert "Bearer None" == request.headers["authorization"]
        assert {"x-data-parallel-rank", "traceparent"}.isdisjoint(request.headers)
    names = {request.headers["x-request-id"] for request in legs}
    assert 1 == len(names)
    assert "mine" not in names


@pytest.mark.parametrize("kind", LIKE_ASCEND)
def test_like_ascend_knows_few_paths(kind: ProxyKind) -> None:
    prefill, decode = prefiller(), decoder()
    with proxied(kind, prefill, decode) as client:
        paths = ["/metrics", "/health", "/version", "/server_info"]
        assert [404] * 4 == [client.get(path).status_code for path in paths]
        assert [404, 404] == [client.post(path, json={}).status_code for path in ("/tokenize", "/detokenize")]
        assert {"status": "ok", "prefill_instances": 1, "decode_instances": 1} == client.get("/healthcheck").json()
        assert (200 if kind is ProxyKind.ASCEND else 404) == client.get("/v1/models").status_code


@pytest.mark.parametrize("kind", LIKE_ASCEND)
def test_like_ascend_resets_every_engine_and_says_nothing_of_what_they_said(kind: ProxyKind) -> None:
    prefill, decode = Engine([always(as_json({"success": False}))]), decoder(always(as_json({"success": True})))
    with proxied(kind, prefill, decode) as client:
        found = client.post("/reset_prefix_cache?reset_external=true")
        assert (200, b"") == (found.status_code, found.content)
        assert ["/reset_prefix_cache?reset_external=true"] * 2 == [
            engine.asked[0].target for engine in (prefill, decode)
        ]
        decode.says = [always(failure(404, "no"))]
        failed = client.post("/reset_prefix_cache")
        assert (500, 1) == (failed.status_code, len(failed.json()["failed"]))


# -- errors ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", LIKE_ASCEND)
@pytest.mark.parametrize("stream", [False, True])
def test_like_ascend_an_error_of_decode_is_an_empty_200_after_three_tries(kind: ProxyKind, stream: bool) -> None:
    prefill, decode = prefiller(), decoder(always(failure(500, "KV load failure")))
    with proxied(kind, prefill, decode) as client:
        found = client.post("/v1/completions", json={**BODY, "stream": stream})
    kind_of = "text/event-stream" if stream else "application/json"
    assert (200, b"", kind_of) == (found.status_code, found.content, found.headers["content-type"])
    assert 3 == len(decode.asked)


def test_the_ascend_proxy_passes_on_what_prefill_refuses() -> None:
    prefill, decode = prefiller(always(failure(400, "too long"))), decoder()
    with proxied(ProxyKind.ASCEND, prefill, decode) as client:
        refused = client.post("/v1/completions", json=BODY)
        assert (400, "too long") == (refused.status_code, refused.json()["error"]["message"])
        prefill.says, prefill.asked = [always(failure(500, "broken"))], []
        assert (500, 3) == (client.post("/v1/completions", json=BODY).status_code, len(prefill.asked))
    assert [] == decode.asked


def test_an_engine_that_fails_once_is_asked_again() -> None:
    prefill, decode = prefiller(always(failure(500, "once"))), decoder(always(failure(500, "once")))
    decode.says.append(always(as_json(completed())))
    with proxied(ProxyKind.ASCEND, prefill, decode) as client:
        assert "one two" == client.post("/v1/completions", json=BODY).json()["choices"][0]["text"]
    assert [2, 2] == [len(prefill.asked), len(decode.asked)]


def test_a_proxy_without_engines_fails_as_its_framework_does() -> None:
    for kind, status in ((ProxyKind.ASCEND, 500), (ProxyKind.ROUTER, 502)):
        proxy = Proxy(["http://127.0.0.1:1"], ["http://127.0.0.1:1"], kind=kind)
        with listening_to(proxy.answer) as url, asking(url) as client:
            assert status == client.post("/v1/completions", json=BODY).status_code


def test_the_layerwise_proxy_turns_even_a_refusal_into_an_empty_200() -> None:
    with served(deployed(topology=Topology.PD, proxy=ProxyKind.LAYERWISE)) as urls, asking(urls["gateway"]) as gateway:
        found = gateway.post("/v1/completions", json=completion(prompt(10300)))
    assert (200, b"") == (found.status_code, found.content)


# -- usage -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("cached", "told"), [(2, 2), (None, 0)])
def test_the_ascend_proxy_tells_prefills_count_of_cached_tokens_and_0_for_unknown(
    cached: int | None, told: int
) -> None:
    with proxied(ProxyKind.ASCEND, prefiller(cached=cached), decoder()) as client:
        usage = client.post("/v1/completions", json=BODY).json()["usage"]
    assert {"cached_tokens": told} == usage["prompt_tokens_details"]


# -- recomputed --------------------------------------------------------------------------------------------------
def preempted_once(stream: bool) -> Engine:
    """A decoder that recomputes the first request after its first token, and then says the rest."""
    if stream:
        first, rest = streamed(" one", " two", stop_reason="recomputed"), streamed(" three", " four")
        return decoder(always(first), always(rest))
    return decoder(always(as_json(completed(" one two", "recomputed"))), always(as_json(completed(" three four"))))


@pytest.mark.parametrize("stream", [False, True])
def test_what_decode_recomputed_is_resumed_as_text_after_another_prefill(stream: bool) -> None:
    prefill, decode = prefiller(), preempted_once(stream)
    with proxied(ProxyKind.ASCEND, prefill, decode) as client:
        found = client.post("/v1/completions", json={**BODY, "prompt": "zero", "stream": stream})
    assert ["zero", "zero one two"] == [body["prompt"] for body in prefill.bodies()]
    assert [("zero", 4), ("zero one two", 3)] == [(body["prompt"], body["max_tokens"]) for body in decode.bodies()]
    if stream:
        lines = [json.loads(line[6:]) for line in found.text.splitlines() if line and line != "data: [DONE]"]
        # The event that says so is swallowed, and its text with it.
        assert [" one", " three", " four"] == [line["choices"][0]["text"] for line in lines]
    else:
        assert " one two three four" == found.json()["choices"][0]["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_of_token_ids_cannot_be_resumed_and_the_answer_ends(stream: bool) -> None:
    prefill, decode = prefiller(), preempted_once(stream)
    with proxied(ProxyKind.ASCEND, prefill, decode) as client:
        found = client.post("/v1/completions", json={**BODY, "stream": stream})
    assert (200, 1, 1) == (found.status_code, len(prefill.asked), len(decode.asked))
    assert (" one" in found.text, "DONE" in found.text, "finish" in found.text) == (stream, False, stream)
    assert '"finish_reason": "' not in found.text


def test_the_router_passes_recomputed_on() -> None:
    with proxied(ProxyKind.ROUTER, prefiller(), preempted_once(stream=False)) as client:
        assert "recomputed" == client.post("/v1/completions", json=BODY).json()["choices"][0]["stop_reason"]


# -- layerwise ---------------------------------------------------------------------------------------------------
def test_layerwise_decode_is_asked_first_and_calls_back_for_prefill() -> None:
    back: dict[str, Any] = {}
    order: list[str] = []

    def prefilling(request: HttpRequest) -> HttpAnswer:
        order.append("prefill")
        return as_json(completed(kv_transfer_params=PARAMS))

    def decoding(request: HttpRequest) -> HttpAnswer:
        order.append("decode")
        body = json.loads(request.body)
        back.update(body["kv_transfer_params"], request_id=f"cmpl-{request.headers['x-request-id']}-0")
        return as_json(completed())

    prefill, decode = Engine([prefilling]), Engine([decoding])
    with proxied(ProxyKind.LAYERWISE, prefill, decode) as client:
        client.post("/v1/completions", json=BODY)
        assert (["decode"], str(client.base_url).rstrip("/") + METASERVER) == (order, back["metaserver"])
        assert (False, True) == (back["do_remote_decode"], back["do_remote_prefill"])
        # Once the answer is through, nobody waits for the callback any longer.
        assert 500 == client.post(METASERVER, json={"request_id": back["request_id"]}).status_code
        assert 500 == client.post(METASERVER, json={"request_id": "never heard of"}).status_code


def test_layerwise_prefill_gets_what_decode_said_of_itself_and_sends_the_kv_there() -> None:
    deployment = deployed(topology=Topology.PD, proxy=ProxyKind.LAYERWISE)
    seen: list[dict[str, Any]] = []
    with served(deployment) as urls:

        async def between(request: HttpRequest) -> HttpAnswer:
            seen.append(json.loads(request.body))
            async with httpx.AsyncClient(base_url=urls["prefill"], trust_env=False) as onward:
                found = await onward.post(request.path, content=request.body)
            return HttpAnswer(found.status_code, "application/json", found.content)

        with listening_to(between) as prefill:
            proxy = Proxy([prefill], [urls["decode"]], kind=ProxyKind.LAYERWISE)
            with listening_to(proxy.answer) as url, asking(url) as client:
                proxy.where = url
                ids = prompt(300)
                assert ask(engine(), ids).ids == said(answer(client, ids))[0]
    (first,) = seen
    params = first["kv_transfer_params"]
    assert (1, False, True) == (first["max_tokens"], first["stream"], params["do_remote_decode"])
    assert urls["decode"].endswith(f":{params['remote_port']}")
    assert [(300, 0)] == [(deed.transferred, deed.computed) for deed in deployment.nodes["decode"].deeds]


@pytest.mark.parametrize("why", ["prefill refuses", "no metaserver"])
def test_layerwise_kv_that_never_comes_is_an_empty_answer(why: str) -> None:
    refusing = Engine([always(failure(400, "no"))])
    with served(deployed(topology=Topology.PD)) as urls, listening_to(refusing.answer) as prefill:
        proxy = Proxy([prefill], [urls["decode"]], kind=ProxyKind.LAYERWISE)
        with listening_to(proxy.answer) as url, asking(url) as client:
            proxy.where = url if why == "prefill refuses" else "http://127.0.0.1:1"
            found = client.post("/v1/completions", json=completion(prompt(100)))
    assert (200, b"") == (found.status_code, found.content)
    assert (3 if why == "prefill refuses" else 0) == len(refusing.asked)


# -- the router --------------------------------------------------------------------------------------------------
def test_the_router_passes_errors_on_at_once() -> None:
    prefill, decode = prefiller(), decoder(always(failure(500, "KV load failure")))
    with proxied(ProxyKind.ROUTER, prefill, decode) as client:
        found = client.post("/v1/completions", json={**BODY, "stream": True})
        assert (500, "KV load failure", 1) == (found.status_code, found.json()["error"]["message"], len(decode.asked))


def test_the_router_goes_on_without_parameters_and_decode_computes_all_again() -> None:
    deployment = deployed(topology=Topology.PD, fault="no_parameters", proxy=ProxyKind.ROUTER)
    ids = prompt(400)
    with served(deployment) as urls, asking(urls["gateway"]) as gateway:
        assert ask(engine(), ids).ids == said(answer(gateway, ids))[0]
    assert [(400, 0)] == [(deed.computed, deed.transferred) for deed in deployment.nodes["decode"].deeds]


def test_the_router_names_both_engines_in_the_request_id_and_returns_the_clients() -> None:
    prefill, decode = prefiller(), decoder()
    with proxied(ProxyKind.ROUTER, prefill, decode) as client:
        headers = {"X-Request-Id": "mine", "X-Data-Parallel-Rank": "1"}
        found = client.post("/v1/completions", json=BODY, headers=headers)
    assert "mine" == found.headers["x-request-id"]
    name = prefill.asked[0].headers["x-request-id"]
    hosts = [engine.asked[0].headers["host"] for engine in (prefill, decode)]
    assert name.startswith(f"___prefill_addr_{hosts[0]}___decode_addr_{hosts[1]}_")
    assert name == decode.asked[0].headers["x-request-id"]
    assert "x-data-parallel-rank" not in decode.asked[0].headers


def test_the_router_resets_only_with_a_body_in_json() -> None:
    prefill, decode = prefiller(), decoder()
    with proxied(ProxyKind.ROUTER, prefill, decode) as client:
        assert 415 == client.post("/reset_prefix_cache").status_code
        broken = client.post("/reset_prefix_cache", content=b"", headers={"Content-Type": "application/json"})
        assert (400, []) == (broken.status_code, prefill.asked + decode.asked)
        assert 200 == client.post("/reset_prefix_cache", json={}).status_code
        assert [1, 1] == [len(prefill.asked), len(decode.asked)]
        assert [200, 404] == [client.get("/health").status_code, client.get("/healthcheck").status_code]


def test_there_is_a_manner_for_every_kind() -> None:
    assert set(ProxyKind) == set(KINDS)
