"""A loopback server with vLLM's surface and a scripted mind: prefix caches are real bookkeeping, answers are hashes.

It stands in until the simulator exists. Answers depend on the prompt only, so a healthy script repeats to exactly
0.0; a script's ``fault`` changes answers whose prompt came (partly) from the pool. Runs in a thread (``serving``)
or as a process: ``python -m tests.scripted.server PORT``.
"""

import asyncio
import contextlib
import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

VOCABULARY = 4096
TOP = 5


@dataclass
class Pool:
    """An external store: keys of whole blocks and when a look-up can see them; shared by the servers given it."""

    keys: dict[str, float] = field(default_factory=dict)


@dataclass
class Script:
    """How one server behaves. Every field is a dial a test may turn, also while the server runs."""

    block: int = 16
    chunk: int = 64
    max_model_len: int = 4096
    model: str = "m"
    pool: Pool | None = field(default_factory=Pool)
    prefix_caching: bool = True
    reset: str = "ok"  # ok | missing | refuse | lie | silent
    metrics: str = "ok"  # ok | missing | html | stuck | hits_only
    salts_honoured: bool = True
    token_ids: bool = True
    logprobs: bool = True
    server_info: bool = True
    cache_info: bool = True
    bearer: str | None = None
    put_lag: float = 0.0  # seconds until a put can be seen by a look-up
    fault: str = ""  # what happens to answers served from the pool: see FAULTS
    fault_after: int = 2  # external hits that stay right first (the warm-up's are among them)
    cold_noise: float = 0.0  # drift of cold answers against hits of the same prompt (nats)
    die_after: int | None = None  # completions after which connections are dropped unanswered
    foreign: int = 0  # prompt tokens that somebody else adds to the counters with every request
    preempt: bool = False
    hangs_up: float | None = None  # seconds after an answer until the connection is closed, asked again or not
    completion: Callable[[dict[str, Any]], bytes | None] | None = None  # raw reply instead of an answer
    raw: dict[str, bytes] = field(default_factory=dict)  # path -> raw reply


FAULTS = ("diverge", "drift", "nan", "empty", "truncate", "refuse", "flaky", "leak", "load_failed", "degenerate")


@dataclass
class Counts:
    prompt: int = 0
    computed: int = 0
    local: int = 0
    external: int = 0
    local_queries: int = 0
    external_queries: int = 0
    external_looked_up: int = 0
    preemptions: int = 0
    generated: int = 0
    requests: int = 0


class ScriptedServer:
    """One server. ``bodies`` keeps every completion request it was sent."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.counts = Counts()
        self.local: set[str] = set()
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keep_bodies = True
        self.port = 0
        self.others_nonce = ""
        self.external_hits = 0

    # -- caches ---------------------------------------------------------------------------------------------
    def blocks(self, ids: list[int], salt: str) -> list[str]:
        keys, parent = [], salt
        for start in range(0, len(ids) - self.script.block + 1, self.script.block):
            block = ids[start : start + self.script.block]
            parent = hashlib.sha256(f"{parent}{block}".encode()).hexdigest()
            keys.append(parent)
        return keys

    def serve_prompt(self, ids: list[int], salt: str) -> tuple[int, int]:
        """Account for one prompt; returns (local, external) tokens."""
        script, counts = self.script, self.counts
        keys = self.blocks(ids, salt if script.salts_honoured else "")
        usable = keys[: (len(ids) - 1) // script.block]
        local = 0
        if script.prefix_caching:
            counts.local_queries += len(ids)
            while local < len(usable) and usable[local] in self.local:
                local += 1
        external = local
        if script.pool is not None:
            counts.external_queries += len(ids) - local * script.block
            while external < len(usable) and self.in_pool(usable[external]):
                external += 1
        local_tokens, external_tokens = local * script.block, (external - local) * script.block
        counts.external_looked_up += external_tokens
        self.external_hits += int(external_tokens > 0)
        if script.fault == "load_failed":
            external_tokens = 0
        self.local.update(keys)
        if script.pool is not None:
            for key in keys:
                script.pool.keys.setdefault(key, time.monotonic() + script.put_lag)
        counts.prompt += len(ids) + script.foreign
        counts.local += local_tokens
        counts.external += external_tokens
        counts.computed += len(ids) - local_tokens - external_tokens + script.foreign
        counts.preemptions += int(script.preempt)
        counts.requests += 1
        return local_tokens, external_tokens

    def in_pool(self, key: str) -> bool:
        assert self.script.pool is not None
        return time.monotonic() >= self.script.pool.keys.get(key, float("inf"))

    # -- answers --------------------------------------------------------------------------------------------
    def answer(self, ids: list[int], count: int, external: int, reused: int) -> tuple[list[int], list[list[Any]]]:
        """Token IDs and top-k rows [(id, logprob)]; the chosen token is the first of its row."""
        seed = hashlib.sha256(json.dumps(ids).encode()).digest()
        out: list[int] = []
        rows: list[list[Any]] = []
        fault = self.fault_now(external)
        for index in range(count):
            digest = hashlib.sha256(seed + index.to_bytes(4, "big")).digest()
            row: list[Any] = [
                [
                    3 + int.from_bytes(digest[2 * k : 2 * k + 2], "big") % (VOCABULARY - 3),
                    -0.25 * (k + 1) - digest[k] / 512,
                ]
                for k in range(TOP)
            ]
            if fault in ("drift", "flaky"):
                row = [[token, value - 1e-4] for token, value in row]
            if not reused:
                row = [[token, value - self.script.cold_noise] for token, value in row]
            if fault == "diverge" and index == 2:
                row = [[(token + 7) % VOCABULARY, value] for token, value in row]
            if fault == "degenerate":
                row = [[9, value] if k == 0 else [token, value] for k, (token, value) in enumerate(row)]
            out.append(row[0][0])
            rows.append(row)
        return out, rows

    def fault_now(self, external: int) -> str:
        """The fault this answer suffers: only answers from the pool do, and "flaky" strikes just once."""
        script = self.script
        if not external or self.external_hits <= script.fault_after:
            return ""
        if script.fault == "flaky":
            return "flaky" if self.external_hits == script.fault_after + 1 else ""
        return script.fault

    def completion(self, body: dict[str, Any]) -> tuple[int, str, bytes]:
        script = self.script
        if self.keep_bodies:
            self.bodies.append(body)
        if script.completion is not None:
            raw = script.completion(body)
            if raw is not None:
                return 0, "", raw
        if body.get("model") != script.model:
            return error(404, f"The model `{body.get('model')}` does not exist.")
        if body.get("cache_salt") == "":
            return error(400, "Parameter 'cache_salt' must be a non-empty string if provided.")
        ids = body["prompt"]
        count = int(body["max_tokens"])
        if len(ids) + count > script.max_model_len:
            return error(400, f"This model's maximum context length is {script.max_model_len} tokens.")
        local, external = self.serve_prompt(ids, str(body.get("cache_salt", "")))
        if self.fault_now(external) == "refuse":
            return error(500, "Internal server error")
        tokens, rows = self.answer(ids, count, external, local + external)
        fault = self.fault_now(external)
        if fault == "empty":
            tokens, rows = [], []
        if fault == "truncate":
            tokens, rows = tokens[: count // 2], rows[: count // 2]
        self.counts.generated += len(tokens)
        text = self.others_nonce if fault == "leak" else "".join(f" {token}" for token in tokens)
        usage = {
            "prompt_tokens": len(ids),
            "completion_tokens": len(tokens),
            "total_tokens": len(ids) + len(tokens),
            "prompt_tokens_details": {"cached_tokens": local + external},
        }
        nan = fault == "nan"
        if body.get("stream"):
            return 200, "text/event-stream", self.stream(body, ids, tokens, rows, text, usage, nan)
        choice = self.choice(body, ids, tokens, rows, text, "length", nan)
        reply = {
            "id": "cmpl-1",
            "object": "text_completion",
            "model": script.model,
            "choices": [choice],
            "usage": usage,
        }
        return 200, "application/json", json.dumps(reply).encode()

    def choice(
        self,
        body: dict[str, Any],
        ids: list[int] | None,
        tokens: list[int],
        rows: list[list[Any]],
        text: str,
        finish: str | None,
        nan: bool,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": finish, "stop_reason": None}
        if self.script.token_ids and body.get("return_token_ids"):
            choice["token_ids"] = tokens
            choice["prompt_token_ids"] = ids
        if self.script.logprobs and body.get("logprobs"):
            choice["logprobs"] = {
                "tokens": [f"token_id:{row[0][0]}" for row in rows],
                "token_logprobs": [None if nan else row[0][1] for row in rows],
                "top_logprobs": [{f"token_id:{token}": value for token, value in row} for row in rows],
            }
        return choice

    def stream(
        self,
        body: dict[str, Any],
        ids: list[int],
        tokens: list[int],
        rows: list[list[Any]],
        text: str,
        usage: dict[str, Any],
        nan: bool,
    ) -> bytes:
        chunks: list[dict[str, Any]] = []
        for index, token in enumerate(tokens):
            part = text if index == 0 and text == self.others_nonce else f" {token}"
            finish = "length" if index == len(tokens) - 1 else None
            sent = ids if index == 0 else None
            choice = self.choice(body, sent, [token], [rows[index]], part, finish, nan)
            chunks.append({"id": "cmpl-1", "object": "text_completion", "choices": [choice]})
        if not tokens:
            chunks.append({"id": "cmpl-1", "choices": [self.choice(body, ids, [], [], "", "stop", False)]})
        chunks.append({"id": "cmpl-1", "object": "text_completion", "choices": [], "usage": usage})
        events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        return ("".join(events) + "data: [DONE]\n\n").encode()

    # -- the other endpoints --------------------------------------------------------------------------------
    def metrics(self) -> tuple[int, str, bytes]:
        script, counts = self.script, self.counts
        if script.metrics == "missing":
            return error(404, "Not Found")
        if script.metrics == "html":
            return 200, "text/html", b"<html><body>welcome</body></html>"
        if script.metrics == "stuck":
            counts = Counts()
        labels = f'engine="0",model_name="{script.model}"'
        lines = [
            "# TYPE vllm:prompt_tokens_total counter",
            f"vllm:prompt_tokens_total{{{labels}}} {float(counts.prompt)}",
            f"vllm:prompt_tokens_created{{{labels}}} 1.7e+09",
            f"vllm:num_preemptions_total{{{labels}}} {float(counts.preemptions)}",
            f"vllm:prefix_cache_queries_total{{{labels}}} {float(counts.local_queries)}",
            f"vllm:prefix_cache_hits_total{{{labels}}} {float(counts.local)}",
            f"vllm:external_prefix_cache_queries_total{{{labels}}} {float(counts.external_queries)}",
            f"vllm:external_prefix_cache_hits_total{{{labels}}} {float(counts.external_looked_up)}",
            "process_start_time_seconds 1.7e+09",
        ]
        if script.metrics != "hits_only":
            for source, value in (
                ("local_compute", counts.computed),
                ("local_cache_hit", counts.local),
                ("external_kv_transfer", counts.external),
            ):
                lines.append(f'vllm:prompt_tokens_by_source_total{{{labels},source="{source}"}} {float(value)}')
        if script.cache_info:
            lines.append(
                f'vllm:cache_config_info{{block_size="{script.block}",cache_hit_alignment_tokens="None",'
                f'enable_prefix_caching="True",engine="0"}} 1.0'
            )
        return 200, "text/plain; version=0.0.4", ("\n".join(lines) + "\n").encode()

    def reset(self) -> tuple[int, str, bytes]:
        kind = self.script.reset
        if kind == "missing":
            return error(404, "Not Found")
        if kind == "refuse":
            return 200, "application/json", b'{"success":false}'
        if kind != "lie":
            self.local.clear()
        return 200, "application/json", b"" if kind == "silent" else b'{"success":true}'

    def tokenize(self, body: dict[str, Any]) -> tuple[int, str, bytes]:
        ids = [3 + byte for byte in str(body["prompt"]).encode()]
        if body.get("add_special_tokens", True):
            ids = [1, *ids]
        return 200, "application/json", json.dumps({"tokens": ids, "count": len(ids)}).encode()

    def route(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        script = self.script
        bare = path.split("?", maxsplit=1)[0]
        if self.keep_bodies:
            self.paths.append(bare)
        if bare in script.raw:
            return 0, "", script.raw[bare]
        if script.bearer is not None and headers.get("authorization") != f"Bearer {script.bearer}":
            return 401, "application/json", b'{"error":"Unauthorized"}'
        if bare == "/v1/completions":
            return self.completion(json.loads(body))
        if bare == "/tokenize":
            return self.tokenize(json.loads(body))
        if bare == "/reset_prefix_cache" and method == "POST":
            return self.reset()
        if bare == "/metrics":
            return self.metrics()
        pages: dict[str, Any] = {
            "/health": {},
            "/version": {"version": "0.32.0"},
            "/v1/models": {"object": "list", "data": [{"id": script.model, "max_model_len": script.max_model_len}]},
        }
        if script.server_info:
            scheduler = {"max_num_batched_tokens": script.chunk, "enable_chunked_prefill": True}
            pages["/server_info"] = {"vllm_config": {"scheduler_config": scheduler}}
        if bare in pages:
            return 200, "application/json", json.dumps(pages[bare]).encode()
        return error(404, "Not Found")

    # -- sockets --------------------------------------------------------------------------------------------
    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                method, path, _ = lines[0].split(" ", 2)
                headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:])}
                body = await reader.readexactly(int(headers.get("content-length") or 0))
                if self.script.die_after is not None and self.counts.requests >= self.script.die_after:
                    break
                status, kind, content = self.route(method, path, headers, body)
                writer.write(content if status == 0 else framed(status, kind, content))
                await writer.drain()
                if self.script.hangs_up is not None:
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.sleep(self.script.hangs_up)
                if status == 0 or self.script.hangs_up is not None:
                    break
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def listen(self, port: int = 0) -> asyncio.Server:
        server = await asyncio.start_server(self.handle, "127.0.0.1", port, limit=1 << 24)
        self.port = server.sockets[0].getsockname()[1]
        return server

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def framed(status: int, kind: str, content: bytes) -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def error(status: int, message: str) -> tuple[int, str, bytes]:
    body = {"error": {"message": message, "type": "BadRequestError", "code": status}}
    return status, "application/json", json.dumps(body).encode()


@contextlib.contextmanager
def serving(script: Script | None = None, kind: type[ScriptedServer] = ScriptedServer) -> Iterator[ScriptedServer]:
    """A server in a thread of its own, gone afterwards."""
    server = kind(script or Script())
    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(server.listen())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(listener.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=5)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def main(port: int) -> None:
    server = ScriptedServer(Script(max_model_len=200_000, block=128, chunk=8192))
    server.keep_bodies = False
    listener = await server.listen(port)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    async with listener:
        await listener.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
