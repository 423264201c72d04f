"""A prefill/decode proxy like vllm-ascend's load-balance example: P first, then D with what P returned.

Like it, the proxy knows completions, chat, a reset that goes to everybody, and /healthcheck; it passes no client
headers on, and gives the decoder's usage the prefiller's count of cached tokens.
"""

import json
from typing import Any

from kvgate.sim.http import HttpAnswer, HttpRequest, call
from kvgate.sim.surface import as_json, failure, unknown_path

REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
PATHS = ("/v1/completions", "/v1/chat/completions")


class Proxy:
    """Sends every request to a prefiller and a decoder, in turn where there are several."""

    def __init__(self, prefill: list[str], decode: list[str], fault: str = "healthy") -> None:
        self.prefill = prefill
        self.decode = decode
        self._fault = fault
        self._count = 0

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer one request."""
        try:
            if request.path in PATHS and request.method == "POST":
                return await self._complete(request, json.loads(request.body))
            if request.path == "/reset_prefix_cache":
                for url in (*self.prefill, *self.decode):
                    await call("POST", url + request.target, request.body)
                return as_json({})
            if request.path == "/healthcheck":
                return as_json({"status": "ok"})
        except (OSError, ConnectionError) as error:
            return failure(502, f"an instance cannot be reached: {type(error).__name__}")
        except ValueError as error:
            return failure(400, f"{type(error).__name__}: {error}")
        return unknown_path()

    async def _complete(self, request: HttpRequest, body: dict[str, Any]) -> HttpAnswer:
        number, self._count = self._count, self._count + 1
        first = {**body, "kv_transfer_params": REMOTE_DECODE, "stream": False, "max_tokens": 1, "min_tokens": 1}
        first.pop("stream_options", None)
        if "max_completion_tokens" in first:
            first["max_completion_tokens"] = 1
        prefilled = await call(
            "POST", self.prefill[number % len(self.prefill)] + request.path, json.dumps(first).encode()
        )
        if prefilled.status != 200:
            return prefilled
        told = json.loads(prefilled.body)
        params = told.get("kv_transfer_params")
        second = body if self._fault == "transfer_dropped" else {**body, "kv_transfer_params": params}
        decoded = await call("POST", self.decode[number % len(self.decode)] + request.path, json.dumps(second).encode())
        cached = (told["usage"].get("prompt_tokens_details") or {}).get("cached_tokens")
        if decoded.status == 200 and "event-stream" in decoded.content_type:
            return HttpAnswer(
                200, decoded.content_type, pieces=[_patched_event(each, cached) for each in _events(decoded.body)]
            )
        if decoded.status == 200:
            return HttpAnswer(200, decoded.content_type, _patched(decoded.body, cached))
        return decoded


def _events(body: bytes) -> list[bytes]:
    return [part + b"\n\n" for part in body.split(b"\n\n") if part]


def _patched_event(event: bytes, cached: int | None) -> bytes:
    if b'"usage"' not in event:
        return event
    return b"data: " + _patched(event.removeprefix(b"data: ").rstrip(), cached) + b"\n\n"


def _patched(content: bytes, cached: int | None) -> bytes:
    answer = json.loads(content)
    if answer.get("usage"):
        answer["usage"]["prompt_tokens_details"] = {"cached_tokens": cached}
    return json.dumps(answer).encode()
