"""Loopback HTTP for the embedded deployment: a small server on h11, and a small client for those that call others."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11

LARGEST_BODY = 1 << 30
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request with its whole body. Header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.split("?", maxsplit=1)[0]

    @property
    def query(self) -> dict[str, str]:
        """The query's fields; the last of a name counts."""
        text = self.target.partition("?")[2]
        pairs = (part.partition("=") for part in text.split("&") if part)
        return {name: value for name, _, value in pairs}


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer; ``pieces`` are sent one by one, ``pace_s`` seconds apart, in place of ``body``.

    ``gone`` is called if the client goes away, ``over`` once the answer is sent or nobody is left to hear it.
    ``headers`` come beside the usual ones.
    """

    status: int
    content_type: str
    body: bytes = b""
    pieces: list[bytes] | None = None
    gone: Callable[[], None] | None = None
    over: Callable[[], None] | None = None
    pace_s: float = 0.0
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[HttpRequest], Awaitable[HttpAnswer]]


@asynccontextmanager
async def listening(handler: Handler, port: int = 0) -> AsyncIterator[int]:
    """Serve on loopback; yields the port. Afterwards no connection is left open."""
    open_ones: set[asyncio.StreamWriter] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.add(writer)
        try:
            await _converse(handler, reader, writer)
        except (h11.RemoteProtocolError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            open_ones.discard(writer)

    server = await asyncio.start_server(handle, LOOPBACK, port, limit=1 << 20)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for writer in open_ones:
            writer.transport.abort()
        # What was aborted is closed when the loop comes round again.
        await asyncio.sleep(0)


async def _converse(handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection until the client or the protocol ends it."""
    connection = h11.Connection(h11.SERVER)
    request: h11.Request | None = None
    parts: list[bytes] = []
    size = 0
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(1 << 20))
        elif isinstance(event, h11.Request):
            request, parts, size = event, [], 0
        elif isinstance(event, h11.Data):
            parts.append(bytes(event.data))
            size += len(event.data)
            if size > LARGEST_BODY:
                return
        elif isinstance(event, h11.EndOfMessage) and request is not None:
            headers = {name.decode().lower(): value.decode("latin-1") for name, value in request.headers}
            asked = HttpRequest(request.method.decode(), request.target.decode(), headers, b"".join(parts))
            await _send(connection, writer, reader, await handler(asked))
            if connection.our_state is h11.MUST_CLOSE:
                return
            connection.start_next_cycle()
        else:
            return


async def _send(
    connection: h11.Connection, writer: asyncio.StreamWriter, reader: asyncio.StreamReader, answer: HttpAnswer
) -> None:
    headers = [("Content-Type", answer.content_type), *answer.headers]
    if answer.pieces is None:
        headers.append(("Content-Length", str(len(answer.body))))
    else:
        headers.append(("Transfer-Encoding", "chunked"))
    writer.write(connection.send(h11.Response(status_code=answer.status, headers=headers)) or b"")
    try:
        for piece in answer.pieces if answer.pieces is not None else [answer.body]:
            if reader.at_eof() or writer.is_closing():
                raise ConnectionResetError
            writer.write(connection.send(h11.Data(data=piece)) or b"")
            if answer.pieces is not None:
                await writer.drain()
                # Also when there is no hurry: other connections get their turn, and an end of this one is heard.
                await asyncio.sleep(answer.pace_s)
        writer.write(connection.send(h11.EndOfMessage()) or b"")
        await writer.drain()
    except ConnectionError:
        if answer.gone is not None:
            answer.gone()
        raise
    finally:
        if answer.over is not None:
            answer.over()


async def call(method: str, url: str, body: bytes = b"", headers: dict[str, str] | None = None) -> HttpAnswer:
    """One request to another loopback server, on a connection of its own. Raises OSError or ConnectionError."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=1 << 20)
    connection = h11.Connection(h11.CLIENT)
    target = where.path + (f"?{where.query}" if where.query else "")
    fields = {"Host": where.netloc, "Content-Length": str(len(body)), "Connection": "close", **(headers or {})}
    try:
        writer.write(
            connection.send(h11.Request(method=method, target=target or "/", headers=list(fields.items()))) or b""
        )
        writer.write(connection.send(h11.Data(data=body)) or b"")
        writer.write(connection.send(h11.EndOfMessage()) or b"")
        await writer.drain()
        return await _received(connection, reader)
    finally:
        writer.close()


async def _received(connection: h11.Connection, reader: asyncio.StreamReader) -> HttpAnswer:
    status, kind, parts = 0, "", []
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(1 << 20))
        elif isinstance(event, h11.Response):
            status = event.status_code
            kind = next((value.decode() for name, value in event.headers if name == b"content-type"), "")
        elif isinstance(event, h11.Data):
            parts.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            return HttpAnswer(status, kind, b"".join(parts))
        else:
            raise ConnectionError("the other server closed the connection")
