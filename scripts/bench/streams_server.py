"""A zero-latency server whose answers follow from the prompt, as a process of its own.

It answers when all streams are open, so that they really are at once. ``swap`` gives two of them each other's answer,
``lose`` leaves one without its end.
"""

import asyncio
import contextlib
import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator

TOKENS = 32
VOCABULARY = 150_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def answer_to(prompt: bytes) -> tuple[int, ...]:
    """The token IDs that answer a prompt, given as its JSON list without spaces."""
    digest = hashlib.sha256(prompt).digest()
    return tuple(
        int.from_bytes(hashlib.sha256(digest + bytes([place])).digest()[:4], "big") % VOCABULARY
        for place in range(TOKENS)
    )


class StreamsServer:
    """Holds every request until ``count`` have come, then answers all."""

    def __init__(self, count: int, fault: str) -> None:
        self._count = count
        self._fault = fault
        self._prompts: list[bytes] = []
        self._all = asyncio.Event()
        self._connections = 0

    def leave(self) -> None:
        """End the process; if requests are still waited for, say of how many something came."""
        if not self._all.is_set():
            print(
                f"the server had {self._connections} connections and {len(self._prompts)} whole requests of "
                f"{self._count}",
                file=sys.stderr,
                flush=True,
            )
        raise SystemExit(0)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection with one request."""
        self._connections += 1
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        body = await reader.readexactly(length)
        place = len(self._prompts)
        self._prompts.append(body[body.index(b'"prompt":') + 9 : -1])
        if len(self._prompts) == self._count:
            self._all.set()
        await self._all.wait()
        if self._fault == "swap" and place < 2:
            place = 1 - place
        prompt = self._prompts[place]
        writer.write(HEAD)
        for number, token in enumerate(answer_to(prompt)):
            finish = "length" if number == TOKENS - 1 else None
            choice = {"index": 0, "text": f" {token}", "token_ids": [token], "finish_reason": finish}
            event = json.dumps({"id": "c", "choices": [choice]}).encode()
            if number == 0:
                event = event[:-3] + b', "prompt_token_ids": ' + prompt + event[-3:]
            if self._fault == "lose" and place == 0 and number == TOKENS // 2:
                break
            self._send(writer, event)
            await writer.drain()
        else:
            counts = {"prompt_tokens": prompt.count(b",") + 1, "completion_tokens": TOKENS}
            self._send(writer, json.dumps({"id": "c", "choices": [], "usage": counts}).encode())
        self._send(writer, b"[DONE]")
        writer.write(b"0\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    @staticmethod
    def _send(writer: asyncio.StreamWriter, event: bytes) -> None:
        line = b"data: " + event + b"\n\n"
        writer.write(b"%x\r\n%s\r\n" % (len(line), line))


@contextlib.contextmanager
def server_process(count: int, fault: str) -> Iterator[str]:
    """The address of a server in a process of its own, ended afterwards."""
    argv = [sys.executable, __file__, str(count), fault]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        port = process.stdout.readline().strip() if process.stdout is not None else ""
        if not port:
            raise RuntimeError("the server did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=10)


async def _main(count: int, fault: str) -> None:
    server = StreamsServer(count, fault)
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0, limit=1 << 24, backlog=1024)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.leave)
    print(listener.sockets[0].getsockname()[1], flush=True)
    async with listener:
        await listener.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), sys.argv[2]))
