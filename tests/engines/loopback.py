"""A loopback server whose replies are raw bytes, and one engine that asks it: for what no well-behaved server does."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from kvgate.domain.observation import Observation
from kvgate.domain.probe import Arm, Probe
from kvgate.engines.dialects import DIALECTS
from kvgate.engines.engine import HttpEngine, RequestSettings, make_client
from kvgate.engines.wire import Timeouts

SENT = (5, 6, 7, 8)
PATIENT = Timeouts(connect=5.0, first_token=20.0, first_token_per_1k=0.0, inactivity=20.0)


@dataclass(frozen=True)
class Pause:
    """Send nothing for a while."""

    seconds: float


@dataclass(frozen=True)
class Reset:
    """Break the connection with a TCP reset, not with an orderly end."""


@dataclass(frozen=True)
class Close:
    """End the connection in good order."""


Action = bytes | Pause | Reset | Close
Reply = Sequence[Action]


@dataclass
class Loopback:
    """What one server was asked; request n is answered with reply n, the last reply again and again."""

    replies: Sequence[Reply]
    url: str = ""
    heads: list[str] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    bodies: list[bytes] = field(default_factory=list)

    def sent(self, number: int = 0) -> dict[str, Any]:
        """The JSON body of one request."""
        body = json.loads(self.bodies[number])
        assert isinstance(body, dict)
        return body

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        over = (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError)
        with contextlib.closing(writer), contextlib.suppress(*over):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = await reader.readexactly(int(fields.get("content-length", "0")))
                self.heads.append(head)
                self.bodies.append(body)
                if not await self._reply(writer, self.replies[min(len(self.bodies), len(self.replies)) - 1]):
                    break

    async def _reply(self, writer: asyncio.StreamWriter, reply: Reply) -> bool:
        """Carry out one reply; False if the connection is over."""
        for action in reply:
            if isinstance(action, bytes):
                writer.write(action)
                await writer.drain()
            elif isinstance(action, Pause):
                await asyncio.sleep(action.seconds)
            elif isinstance(action, Reset):
                raw: socket.socket = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                return False
            else:
                return False
        return True


@contextlib.asynccontextmanager
async def answering(*replies: Reply) -> AsyncIterator[Loopback]:
    """A loopback server that gives these replies in turn."""
    loopback = Loopback(replies)
    server = await asyncio.start_server(loopback.handle, "127.0.0.1", 0)
    loopback.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield loopback
    finally:
        server.close()
        for task in loopback.tasks:
            task.cancel()
        await asyncio.gather(*loopback.tasks, return_exceptions=True)
        # Transports close in the next turn of the loop.
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def engine_at(url: str, timeouts: Timeouts = PATIENT, *, stream: bool = True) -> AsyncIterator[HttpEngine]:
    """The engine under test, on one address."""
    settings = RequestSettings("m", logprobs=2, stream=stream, ignore_eos=True, run_id="run", timeouts=timeouts)
    async with make_client(url, None, timeouts.connect) as client:
        yield HttpEngine("a", client, DIALECTS["vllm"], settings)


def probe(*, salt: str | None = "salt-1", max_tokens: int = 16) -> Probe:
    """A probe over the prompt SENT."""
    return Probe("g.cold.0", "g", Arm.COLD, 0, "a", salt, len(SENT), max_tokens, "")


async def complete(engine: HttpEngine, salt: str | None = "salt-1") -> Observation:
    """Send the prompt once."""
    return await engine.complete(probe(salt=salt), engine.encode(np.array(SENT, dtype=np.int32)))


def ask(*replies: Reply, timeouts: Timeouts = PATIENT, stream: bool = True) -> tuple[Observation, Loopback]:
    """Ask once a server that gives these replies."""

    async def once() -> tuple[Observation, Loopback]:
        async with answering(*replies) as server, engine_at(server.url, timeouts, stream=stream) as engine:
            return await complete(engine), server

    return asyncio.run(once())


def hear(*events: object, done: bool = True) -> Observation:
    """The observation that a stream of these events makes (JSON values, or bytes as they are)."""
    return ask([chunked(sse(*events, done=done))])[0]


def told(value: object) -> Observation:
    """The observation that a whole JSON reply makes."""
    return ask([page(200, "application/json", json.dumps(value).encode())], stream=False)[0]


def sse(*events: object, done: bool = True) -> bytes:
    """A stream's bytes: JSON values as data events, bytes as they are, [DONE] at the end."""
    parts = [
        event if isinstance(event, bytes) else f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
        for event in events
    ]
    return b"".join(parts) + (b"data: [DONE]\n\n" if done else b"")


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def piece(content: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(content), content)


def chunked(content: bytes, *cuts: int) -> bytes:
    """A whole streamed reply, its content cut into HTTP chunks at these positions."""
    edges = [0, *cuts, len(content)]
    pieces = [content[start:end] for start, end in pairwise(edges) if end > start]
    return HEAD + b"".join(map(piece, pieces)) + END


def page(status: int, kind: str, content: bytes) -> bytes:
    """A whole reply with a length."""
    return f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


def chunk(ids: object, text: str = "", finish: str | None = None, **more: object) -> dict[str, object]:
    """One completion chunk of one choice; ``ids`` as they stand in the reply."""
    return {"id": "cmpl-1", "choices": [{"index": 0, "text": text, "token_ids": ids, "finish_reason": finish, **more}]}


def usage(completion: int, cached: int | None = None) -> dict[str, object]:
    """The last chunk of a stream: usage and no choices."""
    details = None if cached is None else {"cached_tokens": cached}
    counts = {"prompt_tokens": len(SENT), "completion_tokens": completion, "prompt_tokens_details": details}
    return {"id": "cmpl-1", "choices": [], "usage": counts}


def scores(*rows: Sequence[tuple[int, float | None]]) -> dict[str, object]:
    """A logprobs object: per token its top rows, the chosen one first, keyed by token ID."""
    return {
        "tokens": [f"token_id:{row[0][0]}" for row in rows],
        "token_logprobs": [row[0][1] for row in rows],
        "top_logprobs": [{f"token_id:{token}": value for token, value in row} for row in rows],
    }
