"""The embedded engine's HTTP surface, like vLLM's: completions, metrics, tokenizer, reset. Loopback only."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h11

from kvgate.sim.node import Counters, Node, RefusedError, Reply

MODEL = "sim"
LARGEST_BODY = 64 << 20
Answer = tuple[int, str, bytes]


class Surface:
    """Turns requests into answers of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._scrapes = 0

    def answer(self, method: str, target: str, body: bytes) -> Answer:
        """Answer one request."""
        path = target.split("?", maxsplit=1)[0]
        try:
            if method == "POST":
                return self._post(path, json.loads(body or b"{}"))
            return self._get(path)
        except RefusedError as error:
            return _error(error.status, str(error))
        except (ValueError, KeyError, TypeError) as error:
            return _error(400, f"{type(error).__name__}: {error}")

    def _get(self, path: str) -> Answer:
        shape = self._node.shape
        if path == "/metrics":
            return 200, "text/plain; version=0.0.4", self._metrics().encode()
        pages: dict[str, Any] = {
            "/health": {},
            "/version": {"version": "sim"},
            "/v1/models": {"object": "list", "data": [{"id": MODEL, "max_model_len": shape.max_model_len}]},
            "/server_info": {"vllm_config": {"scheduler_config": {"max_num_batched_tokens": shape.chunk}}},
        }
        return _json(pages[path]) if path in pages else _error(404, "Not Found")

    def _post(self, path: str, body: dict[str, Any]) -> Answer:
        if path == "/v1/completions":
            return self._complete(body)
        if path == "/tokenize":
            ids = self._node.words.tokenize(str(body["prompt"]))
            return _json({"tokens": ids, "count": len(ids)})
        if path == "/reset_prefix_cache":
            self._node.drop_local()
            return _json({"success": True})
        return _error(404, "Not Found")

    def _complete(self, body: dict[str, Any]) -> Answer:
        if body.get("model") != MODEL:
            return _error(404, f"The model `{body.get('model')}` does not exist.")
        salt = body.get("cache_salt")
        if salt == "":
            return _error(400, "Parameter 'cache_salt' must be a non-empty string if provided.")
        salt = "" if self._node.fault == "salt_ignored" else str(salt or "")
        prompt = body["prompt"]
        ids = self._node.words.tokenize(prompt) if isinstance(prompt, str) else [int(token) for token in prompt]
        reply = self._node.complete(ids, salt, int(body.get("max_tokens", 16)), max(1, int(body.get("logprobs") or 1)))
        usage = {
            "prompt_tokens": len(ids),
            "completion_tokens": len(reply.ids),
            "total_tokens": len(ids) + len(reply.ids),
            "prompt_tokens_details": {"cached_tokens": reply.cached},
        }
        if not body.get("stream"):
            choice = _choice(body, reply, ids, 0, len(reply.ids), reply.text)
            return _json({"id": "cmpl-sim", "object": "text_completion", "choices": [choice], "usage": usage})
        chunks = [_choice(body, reply, ids, at, at + 1, reply.text if at == 0 else "") for at in range(len(reply.ids))]
        chunks = chunks or [_choice(body, reply, ids, 0, 0, "")]
        head = {"id": "cmpl-sim", "object": "text_completion"}
        events: list[dict[str, Any]] = [{**head, "choices": [choice]} for choice in chunks]
        events.append({**head, "choices": [], "usage": usage})
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        return 200, "text/event-stream", text.encode()

    def _metrics(self) -> str:
        """The metrics page, told as the node's fault has it."""
        fault, counters = self._node.fault, self._node.counters
        self._scrapes += 1
        factor = 2 if fault == "counters_double" else 1
        if fault == "counters_stuck" or (fault == "counters_saw" and self._scrapes % 2):
            counters = Counters()
        return _page(counters, factor, self._node.shape.block)


def _page(counters: Counters, factor: int, block: int) -> str:
    by_source = {"local_compute": counters.computed, "local_cache_hit": counters.local}
    by_source["external_kv_transfer"] = counters.external
    plain = {
        "prompt_tokens": counters.prompt,
        "prefix_cache_queries": counters.local_queries,
        "prefix_cache_hits": counters.local,
        "external_prefix_cache_queries": counters.external_queries,
        "external_prefix_cache_hits": counters.external_hits,
        "num_preemptions": counters.preemptions,
        "generation_tokens": counters.generated,
    }
    label = 'engine="0",model_name="sim"'
    lines = [f"vllm:{name}_total{{{label}}} {float(value * factor)}" for name, value in plain.items()]
    lines += [
        f'vllm:prompt_tokens_by_source_total{{{label},source="{source}"}} {float(value * factor)}'
        for source, value in by_source.items()
    ]
    lines.append(f'vllm:cache_config_info{{block_size="{block}",enable_prefix_caching="True",engine="0"}} 1.0')
    return "\n".join(lines) + "\n"


def _choice(body: dict[str, Any], reply: Reply, prompt: list[int], start: int, end: int, text: str) -> dict[str, Any]:
    last = end >= len(reply.ids)
    choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": reply.finish_reason if last else None}
    if body.get("return_token_ids"):
        choice["token_ids"] = reply.ids[start:end]
        choice["prompt_token_ids"] = prompt if start == 0 else None
    if body.get("logprobs"):
        rows = reply.rows[start:end]
        chosen = [next(value for token, value in row if token == row[0][0]) for row in rows]
        choice["logprobs"] = {
            "tokens": [f"token_id:{row[0][0]}" for row in rows],
            "token_logprobs": [_number(value) for value in chosen],
            "top_logprobs": [{f"token_id:{token}": _number(value) for token, value in row} for row in rows],
        }
    return choice


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def _json(value: object) -> Answer:
    return 200, "application/json", json.dumps(value).encode()


def _error(status: int, message: str) -> Answer:
    body = {"error": {"message": message, "type": "BadRequestError", "code": status}}
    return status, "application/json", json.dumps(body).encode()


async def _converse(surface: Surface, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection until the client or the protocol ends it."""
    connection = h11.Connection(h11.SERVER)
    request: h11.Request | None = None
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(1 << 16))
        elif isinstance(event, h11.Request):
            request, body = event, bytearray()
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > LARGEST_BODY:
                return
        elif isinstance(event, h11.EndOfMessage) and request is not None:
            status, kind, content = surface.answer(request.method.decode(), request.target.decode(), bytes(body))
            headers = [("Content-Type", kind), ("Content-Length", str(len(content)))]
            writer.write(connection.send(h11.Response(status_code=status, headers=headers)) or b"")
            writer.write(connection.send(h11.Data(data=content)) or b"")
            writer.write(connection.send(h11.EndOfMessage()) or b"")
            await writer.drain()
            if connection.our_state is h11.MUST_CLOSE:
                return
            connection.start_next_cycle()
        else:
            return


@asynccontextmanager
async def serving(node: Node, port: int = 0) -> AsyncIterator[int]:
    """Serve a node on loopback; yields the port."""
    surface = Surface(node)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _converse(surface, reader, writer)
        except (h11.RemoteProtocolError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", port)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
