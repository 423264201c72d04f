"""The pool's master as a server of its own, and the pool as an engine in another process sees it."""

import json
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from kvgate.sim.http import HttpAnswer, HttpRequest
from kvgate.sim.kv import Arrays
from kvgate.sim.packing import pack, unpack
from kvgate.sim.store import Pool
from kvgate.sim.surface import as_json, failure, unknown_path

TIMEOUT_S = 60.0
BYTES = "application/octet-stream"


class Master:
    """Turns requests into what one pool does."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer one request."""
        try:
            return self._answer(request)
        except (ValueError, KeyError, TypeError) as error:
            return failure(400, f"{type(error).__name__}: {error}")

    def _answer(self, request: HttpRequest) -> HttpAnswer:
        path, pool = request.path, self.pool
        if path == "/get_all_keys":
            return as_json(list(pool.objects))
        if path == "/metrics":
            return HttpAnswer(
                200,
                "text/plain",
                f"master_key_count {len(pool.objects)}\nmaster_allocated_bytes {pool.size}\n".encode(),
            )
        if path == "/health":
            return as_json({})
        if request.method != "POST":
            return unknown_path()
        if path == "/held":
            return as_json(sorted(pool.held(json.loads(request.body))))
        if path == "/get":
            return HttpAnswer(200, BYTES, pack(pool.get(json.loads(request.body))))
        if path == "/put":
            pool.put(unpack(request.body))
            return as_json({})
        if path == "/remove":
            pool.remove(json.loads(request.body))
            return as_json({})
        if path == "/leave":
            pool.leave()
            return as_json({})
        if path == "/come_back":
            pool.come_back()
            return as_json({})
        if path == "/empty":
            pool.empty()
            return as_json({})
        return unknown_path()


class RemotePool:
    """A pool behind a master in another process."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._host, self._port = where.hostname or "127.0.0.1", where.port or 80

    def held(self, names: list[str]) -> set[str]:
        """Which of these objects a look-up finds now. A master that cannot be reached looks like a clean miss."""
        try:
            return set(json.loads(self._post("/held", json.dumps(names).encode())))
        except OSError:
            return set()

    def get(self, names: list[str]) -> dict[str, Arrays]:
        """The objects that are still there; none if the master cannot be reached."""
        try:
            return unpack(self._post("/get", json.dumps(names).encode()))
        except OSError:
            return {}

    def put(self, objects: dict[str, Arrays]) -> None:
        """Store copies; lost if the master cannot be reached."""
        try:
            self._post("/put", pack(objects))
        except OSError:
            return

    def empty(self) -> None:
        """Remove everything. Raises OSError if the master cannot be reached."""
        self._post("/empty", b"{}")

    def _post(self, path: str, body: bytes) -> bytes:
        connection = HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", path, body)
            response = connection.getresponse()
            content = response.read()
        except HTTPException as error:
            raise ConnectionError(f"the pool's master broke off: {error}") from None
        finally:
            connection.close()
        if response.status != 200:
            raise OSError(f"the pool's master answered HTTP {response.status}")
        return content
