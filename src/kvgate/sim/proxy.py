"""Prefill/decode proxies of several kinds, each as its public original behaves.

``ascend`` is vllm-ascend's load-balance example: prefill first, then decode with what prefill returned. It passes no
client header on and replaces the request ID, knows few paths, and has sent its status before decode answers: an error
of decode's becomes an empty or cut answer with HTTP 200. Where decode says that it recomputed, it asks both engines
again for prompt and answer so far, as text, which fails for a prompt of token IDs.
``ascend-layerwise`` is its sibling: decode first, which calls back at /v1/metaserver for the prefill leg.
``nixl-router`` is like vllm-router: it passes errors on, goes on without transfer parameters where prefill returned
none, and leaves the usage as decode told it.
"""

import asyncio
import contextlib
import json
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from kvgate.sim.http import HttpAnswer, HttpRequest, call
from kvgate.sim.surface import as_json, failure, unknown_path
from kvgate.sim.tampering import ON_DECODE, ON_REQUEST, ON_TOLD, same
from kvgate.sim.told import STREAM, Body, Told, retell, text_of, unpacked
from kvgate.sim.topology import ProxyKind

REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
PATHS = {"/v1/completions": ("cmpl-", "-0"), "/v1/chat/completions": ("chatcmpl-", "")}
METASERVER = "/v1/metaserver"
# Every so-manieth request is not taken, or is answered with another client's answer, by the faults that say so.
SOME = 3
BUSY = 15
PINNED = "proxy_pins_one"


@dataclass(frozen=True, slots=True)
class Manner:
    """Where the kinds of proxies differ.

    ``attempts`` is how often an engine that fails is asked, ``late`` whether the status is sent before decode answers,
    ``tells_cached`` whether usage gets prefill's count of cached tokens, ``resumes`` whether it asks again where
    decode recomputed.
    """

    health: str = "/healthcheck"
    decode_first: bool = False
    attempts: int = 3
    late: bool = True
    tells_cached: bool = True
    resumes: bool = True


KINDS = {
    ProxyKind.ASCEND: Manner(),
    ProxyKind.LAYERWISE: Manner(decode_first=True),
    ProxyKind.ROUTER: Manner("/health", attempts=1, late=False, tells_cached=False, resumes=False),
}


class _Failed(Exception):  # noqa: N818 - an answer, which a proxy may pass on
    """An engine did not give an answer that could be used."""

    def __init__(self, answer: HttpAnswer) -> None:
        super().__init__(answer.status)
        self.answer = answer


@dataclass(slots=True)
class _Call:
    """One completion on its way: what was asked, of whom, under which ID; what prefill counted as cached."""

    path: str
    body: Body
    prefill: str
    decode: str
    request_id: str
    client_id: str = ""
    cached: int | None = None

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def engine_id(self) -> str:
        """What an engine makes of the request ID."""
        before, after = PATHS[self.path]
        return before + self.request_id + after


class Proxy:
    """Sends every request to a prefiller and a decoder, in turn where there are several.

    ``where`` is its own address, which decode calls back at.
    """

    def __init__(
        self,
        prefill: list[str],
        decode: list[str],
        fault: str = "healthy",
        kind: ProxyKind = ProxyKind.ASCEND,
        where: str = "",
    ) -> None:
        self.prefill = prefill
        self.decode = decode
        self.where = where
        self._fault = fault
        self._kind = kind
        self._manner = KINDS[kind]
        self._count = 0
        self._waiting: dict[str, _Call] = {}
        self._params: Body | None = None
        self._answers: dict[str, HttpAnswer] = {}

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer one request."""
        try:
            if request.method == "POST" and request.path in PATHS:
                return await self._complete(request, json.loads(request.body))
            if request.method == "POST" and request.path == METASERVER and self._manner.decode_first:
                return await self._called_back(json.loads(request.body))
            if request.method == "POST" and request.path == "/reset_prefix_cache":
                return await self._reset(request)
            if request.path == self._manner.health:
                return self._healthy()
            if request.path == "/v1/models" and not self._manner.decode_first:
                return await call("GET", self.prefill[0] + request.path)
        except _Failed as error:
            return error.answer
        except (OSError, ConnectionError):
            return self._unreachable()
        except ValueError as error:
            return failure(400, f"{type(error).__name__}: {error}")
        return unknown_path()

    def _healthy(self) -> HttpAnswer:
        if self._kind is ProxyKind.ROUTER:
            return HttpAnswer(200, "text/plain", b"OK")
        counts = {"prefill_instances": len(self.prefill), "decode_instances": len(self.decode)}
        return as_json({"status": "ok", **counts})

    def _unreachable(self) -> HttpAnswer:
        if self._kind is ProxyKind.ROUTER:
            return failure(502, "an instance cannot be reached")
        # What the web framework makes of an exception that nobody caught.
        return HttpAnswer(500, "text/plain; charset=utf-8", b"Internal Server Error")

    async def _reset(self, request: HttpRequest) -> HttpAnswer:
        """Reset every engine. What they answer is dropped; only their status counts."""
        if self._kind is ProxyKind.ROUTER:
            if "json" not in request.headers.get("content-type", ""):
                return HttpAnswer(415, "text/plain", b"Expected request with `Content-Type: application/json`")
            json.loads(request.body)
        query = request.target.partition("?")[2]
        where = [f"{url}{request.path}{'?' + query if query else ''}" for url in (*self.prefill, *self.decode)]
        statuses = [(await call("POST", url)).status for url in where]
        failed = [url for url, status in zip(where, statuses, strict=True) if status != 200]
        if failed:
            return HttpAnswer(500, "application/json", json.dumps({"failed": failed}).encode())
        return HttpAnswer(200, "text/plain")

    # -- one completion ---------------------------------------------------------------------------------------
    async def _complete(self, request: HttpRequest, body: Body) -> HttpAnswer:
        number, self._count = self._count, self._count + 1
        if self._fault == "proxy_502_at_times" and number % BUSY == BUSY - 1:
            return failure(502, "no connection to an instance")
        kept = f"{request.path} {request.body.decode()}"
        if self._fault == "proxy_caches_answers" and kept in self._answers:
            return self._answers[kept]
        one = _Call(
            path=request.path,
            body=ON_REQUEST.get(self._fault, same)(body),
            prefill=self.prefill[0 if self._fault == PINNED else number % len(self.prefill)],
            decode=self.decode[number % len(self.decode)],
            request_id=f"{number:032x}",
            client_id=request.headers.get("x-request-id", ""),
        )
        if self._kind is ProxyKind.ROUTER:
            hosts = (urlsplit(one.prefill).netloc, urlsplit(one.decode).netloc)
            one.request_id = f"___prefill_addr_{hosts[0]}___decode_addr_{hosts[1]}_{one.request_id}"
        found = await self._both_legs(one)
        return self._mixed_up(kept, number, found)

    def _mixed_up(self, kept: str, number: int, found: HttpAnswer) -> HttpAnswer:
        """The answer, or another client's by the fault that mixes them up."""
        others = [answer for asked, answer in self._answers.items() if asked != kept]
        if self._fault in ("proxy_mixes_clients", "proxy_caches_answers"):
            self._answers = {**self._answers, kept: found}
        if self._fault == "proxy_mixes_clients" and number % SOME == SOME - 1 and others:
            return others[-1]
        return found

    async def _both_legs(self, one: _Call) -> HttpAnswer:
        if self._manner.decode_first:
            self._waiting[one.engine_id] = one
            params: Body | None = {
                "do_remote_decode": False,
                "do_remote_prefill": True,
                "metaserver": self.where + METASERVER,
            }
        else:
            try:
                params = await self._prefilled(one, {**one.body, "kv_transfer_params": REMOTE_DECODE})
            except _Failed:
                if self._fault != "proxy_swallows_refusal" or not isinstance(one.body.get("prompt"), list):
                    raise
                one.body = {**one.body, "prompt": one.body["prompt"][: len(one.body["prompt"]) // 2]}
                params = None
        try:
            return await self._decoded(one, params)
        finally:
            self._waiting.pop(one.engine_id, None)

    async def _prefilled(self, one: _Call, body: Body) -> Body | None:
        """The prefill leg: transfer parameters, if there are any. Raises _Failed."""
        first = {**body, "stream": False, "max_tokens": 1, "min_tokens": 1}
        first.pop("stream_options", None)
        if "max_completion_tokens" in first:
            first["max_completion_tokens"] = 1
        told = json.loads((await self._asked(one.prefill, one, first)).body)
        one.cached = (told["usage"].get("prompt_tokens_details") or {}).get("cached_tokens")
        params: Body | None = told.get("kv_transfer_params")
        if self._fault == "proxy_one_behind":
            params, self._params = self._params, params
        return params

    async def _called_back(self, params: Body) -> HttpAnswer:
        """Decode asks for a prompt's KV: the prefill leg is sent, with what decode says of where to put it.

        Its failure is only logged; decode hears nothing of it.
        """
        one = self._waiting.get(str(params.get("request_id")))
        if one is None:
            return self._unreachable()
        with contextlib.suppress(_Failed, OSError, ConnectionError):
            await self._prefilled(one, {**one.body, "kv_transfer_params": params})
        return HttpAnswer(200, "application/json", b"null")

    async def _asked(self, url: str, one: _Call, body: Body) -> HttpAnswer:
        """One engine's answer; what fails otherwise than by a refusal is tried again. Raises _Failed and OSError."""
        headers = {"Content-Type": "application/json", "X-Request-Id": one.request_id}
        if self._kind is not ProxyKind.ROUTER:
            # Its key comes from the environment, which has none; nobody looks.
            headers["Authorization"] = "Bearer None"
        for attempt in range(self._manner.attempts):
            last = attempt + 1 == self._manner.attempts
            try:
                found = await call("POST", url + one.path, json.dumps(body).encode(), headers)
            except (OSError, ConnectionError):
                if last:
                    raise
            else:
                if found.status == 200:
                    return found
                if found.status == 400 or last:
                    raise _Failed(found)
            await asyncio.sleep(0.001 * 2**attempt)
        raise OSError("nobody was asked")

    # -- the decode leg ---------------------------------------------------------------------------------------
    async def _decoded(self, one: _Call, params: Body | None) -> HttpAnswer:
        body = one.body if params is None else {**one.body, "kv_transfer_params": params}
        body = ON_DECODE.get(self._fault, same)(body)
        if not self._manner.late:
            told = unpacked(await self._asked(one.decode, one, body))
            self._tamper(told)
            return replace(told.packed(), headers=(("x-request-id", one.client_id),) if one.client_id else ())
        told = Told(one.stream, [], done=False)
        try:
            await self._pass_on(one, body, told)
        except (_Failed, OSError, ConnectionError, TypeError):
            # The status has been sent: the answer ends here.
            if not told.chunks:
                return HttpAnswer(200, STREAM, pieces=[]) if one.stream else HttpAnswer(200, "application/json")
        self._tamper(told)
        return told.packed()

    def _tamper(self, told: Told) -> None:
        if self._fault in ON_TOLD:
            ON_TOLD[self._fault](told)

    async def _pass_on(self, one: _Call, body: Body, told: Told) -> None:
        """Pass decode's objects on into ``told``; where it recomputed, go on with prompt and answer so far."""
        said, completed, again = "", 0, 0
        while True:
            heard = unpacked(await self._asked(one.decode, one, body))
            recomputed = False
            for chunk in heard.chunks:
                self._tell_cached(chunk, one.cached)
                choice = chunk["choices"][0] if chunk.get("choices") else None
                if choice is not None:
                    said += text_of(choice)
                    completed += 1 if one.stream else chunk["usage"]["completion_tokens"]
                    recomputed = choice.get("stop_reason") == "recomputed"
                    if recomputed:
                        break
                    if again and not one.stream:
                        retell(choice, said)
                told.chunks.append(chunk)
            if not recomputed:
                told.done = heard.done
                return
            again += 1
            # Text behind token IDs is a TypeError, here as there.
            left = int(one.body.get("max_tokens", 16)) - completed + again
            body = {**body, **_continued(one.body, said), "max_tokens": left}
            if not self._manner.decode_first:
                params = await self._prefilled(one, {**body, "kv_transfer_params": REMOTE_DECODE})
                body["kv_transfer_params"] = params

    def _tell_cached(self, chunk: Body, cached: int | None) -> None:
        if self._manner.tells_cached and chunk.get("usage"):
            chunk["usage"]["prompt_tokens_details"] = {"cached_tokens": cached or 0}


def _continued(body: Body, said: str) -> Body:
    """The prompt for what comes after ``said``. Raises TypeError where it is token IDs."""
    if "messages" in body:
        first, *others = body["messages"]
        return {"messages": [{**first, "content": first["content"] + said}, *others]}
    return {"prompt": body["prompt"] + said}
