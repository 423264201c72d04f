"""The benchmark's server: the scripted one as a process of its own, with a path that makes it forget everything.

Every leg of a benchmark starts from the same empty caches, so a session sends the very same requests each time
and a bare loop that replays them gets the very same replies.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.scripted.server import Script, ScriptedServer  # noqa: E402 - the root is put on the path first

FORGET = "/bench/forget"
MAX_MODEL_LEN = 200_000


class BenchServer(ScriptedServer):
    """A scripted server that keeps no bodies and can be told to forget."""

    def __init__(self) -> None:
        super().__init__(Script())
        self.begin_anew()

    def begin_anew(self) -> None:
        """Be as if just started, whatever state a scripted server has; only the port stays."""
        port = self.port
        super().__init__(Script(block=128, chunk=8192, max_model_len=MAX_MODEL_LEN))
        self.port = port
        self.keep_bodies = False

    def route(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        """Answer one request."""
        if path != FORGET:
            return super().route(method, path, headers, body)
        self.begin_anew()
        return 200, "application/json", b'{"success":true}'


@contextlib.contextmanager
def server_process() -> Iterator[str]:
    """The address of a server in a process of its own, ended afterwards."""
    process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
    try:
        port = process.stdout.readline().strip() if process.stdout is not None else ""
        if not port:
            raise RuntimeError("the server did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=10)


async def _main() -> None:
    server = BenchServer()
    listener = await server.listen()
    print(server.port, flush=True)
    async with listener:
        await listener.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
