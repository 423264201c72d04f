"""An embedded engine's HTTP surface, like vLLM's: completions, chat, metrics, tokenizer, resets."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kvgate.sim.completions import MODEL, BadRequestError, Body, chat_text, pieces, wanted_logprobs, whole
from kvgate.sim.http import HttpAnswer, HttpRequest
from kvgate.sim.metrics import page
from kvgate.sim.network import Sequence
from kvgate.sim.node import Node, RefusedError, Request

# Finds the KV another engine holds for a request, from the transfer parameters that came with it and the request's
# ID; and sends KV that is held (under the second parameters) to an engine that waits for it (by the first).
Fetch = Callable[[dict[str, Any], str], Awaitable[Sequence]]
Push = Callable[[dict[str, Any], dict[str, Any]], Awaitable[None]]
ERROR_TYPES = {400: "BadRequestError", 404: "NotFoundError"}
OTHER = "InternalServerError"


class Surface:
    """Turns requests into answers of one node."""

    def __init__(
        self,
        node: Node,
        fetch: Fetch | None = None,
        where: tuple[str, int] = ("127.0.0.1", 0),
        push: Push | None = None,
    ) -> None:
        self.node = node
        self.where = where
        self._fetch = fetch
        self._push = push
        self._scrapes = 0
        self._in_flight = 0

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer one request."""
        try:
            if request.method == "POST":
                return await self._post(request, json.loads(request.body or b"{}"))
            return self._get(request.path)
        except RefusedError as error:
            return failure(error.status, str(error))
        except BadRequestError as error:
            return failure(400, str(error))
        except OSError as error:
            return failure(500, f"another part of the deployment cannot be reached: {type(error).__name__}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return failure(400, f"{type(error).__name__}: {error}")

    def _get(self, path: str) -> HttpAnswer:
        node = self.node
        preset = node.preset
        if path == "/metrics":
            if node.fault == "no_counters":
                return unknown_path()
            self._scrapes += 1
            return HttpAnswer(200, "text/plain; version=0.0.4", page(node, self._scrapes, self._in_flight).encode())
        if path == "/health":
            return as_json({}) if node.ready() else failure(503, "the engine is starting up")
        scheduler = {"max_num_batched_tokens": preset.chunk, "enable_chunked_prefill": True}
        vllm_config: Body = {"scheduler_config": scheduler}
        if preset.speculation:
            vllm_config["speculative_config"] = {"method": "mtp", "num_speculative_tokens": preset.speculation}
        pages: dict[str, Any] = {
            "/version": {"version": "0.32.0+sim"},
            "/v1/models": {"object": "list", "data": [self._model()]},
            "/server_info": {"vllm_config": vllm_config},
            "/deeds": {"deeds": [{name: getattr(deed, name) for name in deed.__slots__} for deed in node.deeds]},
            "/log": {"lines": node.log.lines},
        }
        return as_json(pages[path]) if path in pages else unknown_path()

    def _model(self) -> Body:
        limit = self.node.preset.max_model_len
        return {"id": MODEL, "object": "model", "created": 0, "owned_by": "sim", "max_model_len": limit}

    async def _post(self, request: HttpRequest, body: Body) -> HttpAnswer:
        node, path = self.node, request.path
        if path in ("/v1/completions", "/v1/chat/completions"):
            return await self._complete(request, body, chat=path.endswith("chat/completions"))
        if path == "/tokenize":
            ids = node.memory.words.tokenize(_text_of(body))
            return as_json({"tokens": ids, "count": len(ids), "max_model_len": node.preset.max_model_len})
        if path == "/detokenize":
            return as_json({"prompt": node.memory.words.text(int(token) for token in body["tokens"])})
        if path == "/reset_prefix_cache" and node.fault != "no_reset":
            dropped = self._in_flight == 0 and node.drop_local()
            if request.query.get("reset_external") == "true" and node.store is not None and node.fault != "reset_lies":
                node.store.empty()
            return as_json({"success": dropped})
        return unknown_path()

    async def _complete(self, request: HttpRequest, body: Body, chat: bool) -> HttpAnswer:
        node = self.node
        if body.get("model") != MODEL:
            return failure(404, f"The model `{body.get('model')}` does not exist.")
        salt = body.get("cache_salt")
        if salt == "":
            return failure(400, "Parameter 'cache_salt' must be a non-empty string if provided.")
        ids = self._prompt(body, chat)
        rank = request.headers.get("x-data-parallel-rank")
        name = request.headers.get("x-request-id", "sim")
        self._in_flight += 1
        try:
            await asyncio.sleep(node.dials.latency_s + node.dials.latency_per_1k_s * len(ids) / 1000)
            params = body.get("kv_transfer_params") or {}
            name = f"{'chatcmpl-' if chat else 'cmpl-'}{name}{'' if chat else '-0'}"
            incoming = await self._incoming(params, name, len(ids))
            reply = node.complete(
                Request(
                    ids=ids,
                    salt=str(salt or ""),
                    max_tokens=int(body.get("max_completion_tokens") or body.get("max_tokens", 16)),
                    top=max(1, wanted_logprobs(body, chat)),
                    rank=int(rank) if rank is not None else None,
                    batch=self._in_flight,
                    transfer=params if params.get("do_remote_decode") else None,
                    incoming=incoming,
                    temperature=float(body.get("temperature") or 0.0),
                    seed=body.get("seed"),
                    id=name,
                )
            )
            await self._take_time(len(reply.ids), bool(body.get("stream")))
            # Whoever streams at some pace is one of the batch as long as that takes.
            streams = bool(body.get("stream")) and node.dials.latency_per_token_s > 0.0
            self._in_flight += streams
        finally:
            self._in_flight -= 1
        if reply.transfer is not None:
            reply.transfer.update(remote_host=self.where[0], remote_port=self.where[1])
            reply.transfer["remote_prefill_cached_tokens"] = reply.cached
            if params.get("remote_port") and self._push:
                await self._push(params, reply.transfer)
        if incoming is not None and isinstance(params.get("remote_prefill_cached_tokens"), int):
            # As with NIXL, what a decoder tells is what the prefiller had cached.
            reply = replace(reply, cached=params["remote_prefill_cached_tokens"])
        say = node.memory.words.text
        if not body.get("stream"):
            if reply.broken_after is not None:
                return failure(500, "KV load failure")
            return as_json(whole(body, chat, ids, reply, say, name))
        events = pieces(body, chat, ids, reply, say, name)
        return HttpAnswer(
            200,
            "text/event-stream",
            pieces=[event.encode() for event in events],
            gone=self.cancelled,
            over=self._left if streams else None,
            pace_s=node.dials.latency_per_token_s,
        )

    async def _take_time(self, tokens: int, streams: bool) -> None:
        """Take the time that the prompt just computed would have taken, and an answer in one piece, too."""
        dials = self.node.dials
        if dials.compute_per_1k_s:
            # What was reused takes none.
            await asyncio.sleep(dials.compute_per_1k_s * self.node.deeds[-1].computed / 1000)
        if not streams:
            await asyncio.sleep(dials.latency_per_token_s * tokens)

    async def _incoming(self, params: Body, name: str, tokens: int) -> Sequence | None:
        """The KV that another engine has computed, where the request says that one has."""
        if not params.get("do_remote_prefill") or self._fetch is None:
            return None
        try:
            return await self._fetch(params, name)
        except RefusedError:
            self.node.count_failed_transfer(tokens)
            raise

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """One more request in flight, of which nothing else is known."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    def _let_go(self) -> None:
        self.node.memory.kept -= 1

    def _left(self) -> None:
        self._in_flight -= 1

    def cancelled(self) -> None:
        """A client has gone away."""
        memory = self.node.memory
        memory.cancelled = True
        lets_go_after_s = self.node.dials.lets_go_after_s
        memory.kept += self.node.fault == "not_released" or lets_go_after_s > 0
        if lets_go_after_s:
            asyncio.get_running_loop().call_later(lets_go_after_s, self._let_go)

    def _prompt(self, body: Body, chat: bool) -> list[int]:
        words = self.node.memory.words
        if chat:
            return words.tokenize(chat_text(body.get("messages")))
        prompt = body["prompt"]
        return words.tokenize(prompt) if isinstance(prompt, str) else [int(token) for token in prompt]


def _text_of(body: Body) -> str:
    return chat_text(body["messages"]) if "messages" in body else str(body["prompt"])


def as_json(value: object) -> HttpAnswer:
    """A JSON answer."""
    return HttpAnswer(200, "application/json", json.dumps(value).encode())


def failure(status: int, message: str) -> HttpAnswer:
    """An error as vLLM words it."""
    body = {"error": {"message": message, "type": ERROR_TYPES.get(status, OTHER), "param": None, "code": status}}
    return HttpAnswer(status, "application/json", json.dumps(body).encode())


def unknown_path() -> HttpAnswer:
    """There is nothing at this path; the web framework words it, not the engine."""
    return HttpAnswer(404, "application/json", b'{"detail":"Not Found"}')
