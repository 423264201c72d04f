"""HTTP to one endpoint: bodies encoded once, answers streamed, every failure mapped to an outcome.

httpx.HTTPError and friends          outcome
 ├─ ConnectError, ConnectTimeout …   LOST   could not connect
 ├─ *Timeout                         LOST   no answer in time
 ├─ ReadError, RemoteProtocolError … LOST   the connection broke (once more if no byte had come)
 └─ everything else                  LOST   with the exception's name
HTTP 408, 429, 502, 503, 504         LOST   the server could not take it now
any other status outside 2xx         REFUSED  a definite error, quoted
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import anyio
import httpx
from httpx_sse import EventSource

from kvgate.domain.observation import EMPTY_BODY, Observation, Outcome, Timing
from kvgate.domain.prompt import Ids
from kvgate.engines.answers import AnswerBuilder
from kvgate.engines.words import AnswerError, EmptyAnswerError, ServerError, clean, clip, error_text, parse_json

OVERLOADED = frozenset({408, 429, 502, 503, 504})

# What each httpx exception means to the user. The order matters: the first class that fits is used.
MEANINGS: tuple[tuple[type[Exception], str], ...] = (
    (httpx.ConnectTimeout, "no connection in time"),
    (httpx.ConnectError, "could not connect"),
    (httpx.PoolTimeout, "no free connection in time"),
    (httpx.ReadTimeout, "no answer in time"),
    (httpx.WriteTimeout, "the request could not be sent in time"),
    (httpx.ReadError, "the connection broke while reading"),
    (httpx.WriteError, "the connection broke while sending"),
    (httpx.CloseError, "the connection broke while closing"),
    (httpx.RemoteProtocolError, "the server broke off or does not speak HTTP"),
    (httpx.LocalProtocolError, "the request breaks the HTTP protocol"),
    (httpx.UnsupportedProtocol, "the address has no http:// or https://"),
    (httpx.ProxyError, "a proxy failed"),
    (httpx.DecodingError, "the answer's encoding is broken"),
    (httpx.TooManyRedirects, "the server redirects for ever"),
    (httpx.InvalidURL, "the address is not a URL"),
    (httpx.StreamError, "the answer's stream was used wrongly"),
    (httpx.CookieConflict, "the server sent contradicting cookies"),
    (httpx.HTTPError, "the exchange failed"),
)
# httpx raises some things that are no HTTPError; whoever calls it must catch these.
ANY_HTTPX = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, httpx.CookieConflict)
# How many inactivity limits a stream may live on heartbeats alone, once output has begun.
HEARTBEATS_ONLY = 5.0
# A server that ignores max_tokens is cut off this many tokens later.
SLACK_TOKENS = 64
# Seconds after a broken connection until the next try: whatever else the server has closed is seen by then.
SETTLING_S = 0.05
# Broken connections in a row after which the server counts as gone.
BROKEN_BEFORE_GONE = 4
MOST_TOKENS = 1 << 20
# Characters; the IDs of a prompt of a million tokens, echoed, are an eighth of it.
LARGEST_ANSWER = 1 << 26
# How event streams begin, and within how many pieces this shows.
EVENT_FIELDS = ("data:", ":", "event:", "id:", "retry:")
PIECES_TO_TELL = 16
BROKEN = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)


async def persistently(send: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """What ``send`` gets; while the connection breaks it is asked again, a few times.

    A kept connection that the server closes just as it is used again looks exactly like a server that is gone, and
    with several requests under way the next one may be such a connection, too. Only for requests that do no harm when
    they arrive twice. Raises what httpx raises.
    """
    for _ in range(BROKEN_BEFORE_GONE - 1):
        with contextlib.suppress(*BROKEN):
            return await send()
        await anyio.sleep(SETTLING_S)
    return await send()


def meaning(error: Exception) -> str:
    """One clause for an httpx exception."""
    clause = next((text for kind, text in MEANINGS if isinstance(error, kind)), type(error).__name__)
    told = clip(str(error))
    return f"{clause} ({told})" if told else clause


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; ``first_token`` already includes the share that grows with the prompt."""

    connect: float
    first_token: float
    first_token_per_1k: float
    inactivity: float

    def until_first_token(self, length: int) -> float:
        """Seconds to wait for the first token of a prompt of ``length`` tokens."""
        return self.first_token + self.first_token_per_1k * length / 1000.0


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """Prompt IDs as they are sent, made once per group."""

    ids: list[int]
    encoded: bytes

    @property
    def length(self) -> int:
        """Prompt tokens."""
        return len(self.ids)


def encode_prompt(ids: Ids) -> EncodedPrompt:
    """Encode prompt IDs as JSON."""
    values = ids.tolist()
    return EncodedPrompt(values, json.dumps(values, separators=(",", ":")).encode())


def request_body(fields: Mapping[str, object], prompt: EncodedPrompt) -> bytes:
    """A request body around an encoded prompt."""
    head = json.dumps(dict(fields), separators=(",", ":")).encode()
    return head[:-1] + b',"prompt":' + prompt.encoded + b"}"


class Wire:
    """Posts completion requests to one endpoint and turns whatever happens into an Observation.

    ``hide`` takes secrets out of what the server says, before anything is cut to length. With ``keeps_pieces`` it is
    kept when each piece of a stream came.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        path: str,
        timeouts: Timeouts,
        hide: Callable[[str], str] = str,
        keeps_pieces: bool = False,
    ) -> None:
        self._client = client
        self._hide = hide
        self._keeps_pieces = keeps_pieces
        # Requests differ in body and ID only; the rest is put together once.
        pattern = client.build_request("POST", path, headers={"Content-Type": "application/json"})
        self._url, self._extensions = pattern.url, pattern.extensions
        self._headers = {name: value for name, value in pattern.headers.items() if name != "content-length"}
        self._timeouts = timeouts
        self._sends_done = False

    async def complete(
        self,
        body: bytes,
        prompt: EncodedPrompt,
        request_id: str,
        stream: bool,
        most: int = MOST_TOKENS,
        rank: int | None = None,
    ) -> Observation:
        """Send one request for ``most`` tokens, pinned to a data-parallel rank if one is given.

        Broken off before any byte, it is sent once more, and marked.
        """
        first = await self._once(body, prompt, request_id, stream, most, rank)
        if not isinstance(first, _BrokenEarly):
            return first
        await anyio.sleep(SETTLING_S)
        second = await self._once(body, prompt, request_id + "-retry", stream, most, rank)
        if isinstance(second, _BrokenEarly):
            return Observation(Outcome.LOST, detail=second.detail, marks=("retried",), timing=second.timing)
        return _marked(second, "retried")

    async def _once(
        self, body: bytes, prompt: EncodedPrompt, request_id: str, stream: bool, most: int, rank: int | None
    ) -> "Observation | _BrokenEarly":
        exchange = _Exchange(self._timeouts, prompt, stream, most, self._hide)
        exchange.pieces = [] if self._keeps_pieces and stream else None
        headers = {**self._headers, "X-Request-Id": request_id}
        if rank is not None:
            headers["X-data-parallel-rank"] = str(rank)
        request = httpx.Request("POST", self._url, headers=headers, content=body, extensions=self._extensions)
        try:
            with anyio.CancelScope() as scope:
                exchange.begin(scope)
                response = await self._client.send(request, stream=True)
                try:
                    return self._ended_well(await exchange.read(response), exchange.done)
                finally:
                    await response.aclose()
            return exchange.timed_out()
        except BROKEN as error:
            if exchange.status is None:
                return _BrokenEarly(meaning(error), exchange.timing())
            return exchange.lost(meaning(error))
        except ANY_HTTPX as error:
            return exchange.lost(meaning(error))

    def _ended_well(self, seen: Observation, done: bool | None) -> Observation:
        """Where streams are known to end with [DONE], one without it was cut, even after its finish reason."""
        self._sends_done = self._sends_done or bool(done)
        if seen.ok and done is False and self._sends_done:
            detail = "the answer ended without [DONE], with which this endpoint ends its streams"
            return replace(seen, outcome=Outcome.LOST, detail=detail)
        return seen


@dataclass(frozen=True, slots=True)
class _BrokenEarly:
    detail: str
    timing: Timing


def _marked(observation: Observation, mark: str) -> Observation:
    return replace(observation, marks=(*observation.marks, mark))


class _Watched:
    """What EventSource reads of a response: text from wherever, under a media type that it takes."""

    headers: ClassVar = {"content-type": "text/event-stream"}

    def __init__(self, texts: AsyncIterator[str]) -> None:
        self._texts = texts

    def aiter_text(self) -> AsyncIterator[str]:
        return self._texts


async def _after(pieces: list[str], texts: AsyncIterator[str]) -> AsyncIterator[str]:
    yield "".join(pieces)
    async for text in texts:
        yield text


class _Exchange:
    """One request on its way: the clock, the deadline, and the answer as far as it has come."""

    def __init__(
        self, timeouts: Timeouts, prompt: EncodedPrompt, stream: bool, most: int, hide: Callable[[str], str]
    ) -> None:
        self.done: bool | None = None
        self.pieces: list[float] | None = None
        self._most = most
        self._hide = hide
        self.status: int | None = None
        self._timeouts = timeouts
        self._length = prompt.length
        self._stream = stream
        self._answer = AnswerBuilder(prompt.ids, most)
        # The event loop's own clock, asked for every event of a stream.
        self._now = asyncio.get_running_loop().time
        self._begun = self._now()
        self._first: float | None = None
        self._latest = self._begun
        self._scope: anyio.CancelScope | None = None

    def begin(self, scope: anyio.CancelScope) -> None:
        scope.deadline = self._begun + self._timeouts.until_first_token(self._length)
        self._scope = scope

    def timing(self) -> Timing:
        pieces = tuple(self.pieces) if self.pieces is not None else None
        return Timing(self._first, self._now() - self._begun, pieces)

    def lost(self, detail: str) -> Observation:
        return Observation(
            Outcome.LOST,
            detail=clean(detail),
            status=self.status,
            text=clean("".join(self._answer.text)),
            timing=self.timing(),
        )

    def timed_out(self) -> Observation:
        if self._first is None:
            limit = self._timeouts.until_first_token(self._length)
            return self.lost(f"no first token within {limit:g} s")
        return self.lost(f"nothing more came for {self._timeouts.inactivity:g} s")

    async def read(self, response: httpx.Response) -> Observation:
        self.status = response.status_code
        if not response.is_success:
            await response.aread()
            return self._refusal(response)
        try:
            response.encoding = "utf-8"  # JSON and event streams are; asking the header costs more than reading
            kind = response.headers.get("content-type", "")
            events = kind.startswith("text/event-stream") or "text/event-stream" in kind.lower()
            async with contextlib.aclosing(self._texts(response)) as texts:
                await (self._read_events(texts) if events else self._read_whole(texts))
            return self._answer.finish(response.status_code, self.timing())
        except ServerError as error:
            return self._definite(f"the server answered with an error: {error}")
        except EmptyAnswerError as error:
            return self._definite(f"HTTP {self.status}, but no answer: {error}", EMPTY_BODY)
        except AnswerError as error:
            return self._definite(f"the answer cannot be read: {error}")

    async def _texts(self, response: httpx.Response) -> AsyncGenerator[str, None]:
        """The answer piece by piece; any piece is a sign of life."""
        left = LARGEST_ANSWER
        async for text in response.aiter_text():
            self._alive()
            if left == LARGEST_ANSWER:
                text = text.removeprefix("\ufeff")  # noqa: PLW2901 - a byte order mark is no part of the text
            left -= len(text)
            if left < 0:
                raise AnswerError(f"it is longer than {LARGEST_ANSWER} characters")
            yield text

    async def _read_whole(self, texts: AsyncIterator[str]) -> None:
        """Read an answer that is said to be no event stream. Some proxies pass event streams on as JSON."""
        pieces: list[str] = []
        async for text in texts:
            pieces.append(text)
            begun = "".join(pieces).lstrip() if len(pieces) <= PIECES_TO_TELL else ""
            if begun.startswith(EVENT_FIELDS):
                await self._read_events(_after(pieces, texts))
                return
        self._answer.take(_json_object(self._hide("".join(pieces))))

    async def _read_events(self, texts: AsyncIterator[str]) -> None:
        done, empty = False, True
        source = EventSource(cast("httpx.Response", _Watched(texts))).aiter_sse()
        # Closed here and now: left to the collector, what it holds of a broken-off answer would outlive the request.
        async with contextlib.aclosing(source) as events:
            async for event in events:
                done = done or event.data == "[DONE]"
                if event.data and event.data != "[DONE]":
                    empty = False
                    self._take_event(event.data)
        if empty:
            raise EmptyAnswerError
        self.done = done
        if not done:
            self._answer.marks.append("no-done-marker")

    def _alive(self) -> None:
        """Any byte is a sign of life, also a comment, but comments alone do not keep a request for ever."""
        if self._scope is not None and self._first is not None:
            patience = self._latest + HEARTBEATS_ONLY * self._timeouts.inactivity
            self._scope.deadline = min(self._now() + self._timeouts.inactivity, patience)

    def _take_event(self, data: str) -> None:
        if self._answer.take(_json_object(self._hide(data))):
            self._latest = self._now()
            if self._answer.size() > self._most + SLACK_TOKENS:
                raise AnswerError(f"the answer goes on after the {self._most} tokens asked for")
            if self._first is None:
                self._first = self._latest - self._begun
            if self.pieces is not None:
                self.pieces.append(self._latest - self._begun)
            self._alive()

    def _refusal(self, response: httpx.Response) -> Observation:
        text = self._hide(response.text)
        try:
            message = error_text(parse_json(text))
        except ValueError:
            message = None
        told = message or clip(text) or "empty body"
        detail = f"HTTP {response.status_code}: {told}"
        if response.status_code in OVERLOADED:
            return self.lost(detail)
        return self._definite(detail)

    def _definite(self, detail: str, *marks: str) -> Observation:
        return Observation(
            Outcome.REFUSED,
            detail=clean(detail),
            status=self.status,
            text=clean("".join(self._answer.text)),
            timing=self.timing(),
            marks=marks,
        )


def _json_object(text: str) -> dict[str, object]:
    if not text.strip():
        raise EmptyAnswerError
    try:
        value = parse_json(text)
    except ValueError:
        raise AnswerError(f"not JSON but {clip(text)[:80]!r}") from None
    if isinstance(value, str):
        raise ServerError(clip(value))
    if not isinstance(value, dict):
        raise AnswerError(f"not a JSON object but {type(value).__name__}")
    return value
