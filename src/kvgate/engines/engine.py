"""One endpoint of an OpenAI-compatible engine, as the gate's Engine port."""

import json
import ssl
from dataclasses import dataclass, field, replace

import anyio
import httpx

from kvgate.domain.history import DropOutcome
from kvgate.domain.observation import Observation, Outcome
from kvgate.domain.probe import Arm, Probe
from kvgate.domain.prompt import Ids
from kvgate.engines.chat import ChatPrompts
from kvgate.engines.dialects import Dialect
from kvgate.engines.logs import LogFile
from kvgate.engines.metrics import CounterReader, UnreadablePageError
from kvgate.engines.wire import (
    ANY_HTTPX,
    EncodedPrompt,
    Timeouts,
    Wire,
    encode_prompt,
    meaning,
    persistently,
    request_body,
)
from kvgate.engines.words import clip, parse_json
from kvgate.errors import RemoteError
from kvgate.ports import Body, CounterReading, DropReply, LogReading

SIDE_CALL_S = 30.0


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """How completions are asked for.

    ``logprobs`` None asks for none. With ``keeps_pieces`` it is kept when each piece of a stream came.
    """

    model: str
    logprobs: int | None
    stream: bool
    ignore_eos: bool
    run_id: str
    timeouts: Timeouts
    rank: int | None = None
    keeps_pieces: bool = False
    secret: str | None = field(default=None, repr=False)

    def hide(self, text: str) -> str:
        """``text`` without the API key: some gateways quote the whole request, headers and all."""
        return text.replace(self.secret, "***") if self.secret else text


def make_client(url: str, bearer: str | None, connect_s: float) -> httpx.AsyncClient:
    """A client for one endpoint. Proxies from the environment are not used: the gate talks to engines directly."""
    headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
    timeout = httpx.Timeout(None, connect=connect_s)
    # A request that waited in the client for a free connection would use up its time there.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    base = url.rstrip("/")
    return httpx.AsyncClient(
        base_url=base, headers=headers, timeout=timeout, limits=limits, trust_env=False, verify=trusting(url)
    )


def trusting(url: str) -> ssl.SSLContext:
    """The authorities that may vouch for an endpoint: those that OpenSSL finds (SSL_CERT_FILE), for private ones too.

    Where there is nothing to verify, none is trusted: reading them all takes longer than most requests.
    """
    return ssl.create_default_context() if url.startswith("https") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class HttpEngine:
    """Sends probes to one endpoint and reads its counters."""

    def __init__(
        self,
        name: str,
        client: httpx.AsyncClient,
        dialect: Dialect,
        settings: RequestSettings,
        log: LogFile | None = None,
    ) -> None:
        self._name = name
        self._client = client
        self._dialect = dialect
        self._settings = settings
        self._log = log
        self._chat: ChatPrompts | None = None
        self._wire = self._wired()
        self._id_fields = dialect.id_fields
        self._reader = CounterReader(dialect)
        # Readings frame every probe; their requests are all alike, so each is built once.
        self._reading = client.build_request("GET", dialect.metrics_path, timeout=SIDE_CALL_S)
        # Some routers refuse a reset without a JSON body.
        self._reset = client.build_request("POST", dialect.reset_path, json={}, timeout=SIDE_CALL_S)

    @property
    def name(self) -> str:
        """The endpoint's name in the deployment."""
        return self._name

    @property
    def model(self) -> str:
        """The model name sent with every request."""
        return self._settings.model

    @property
    def streams(self) -> bool:
        """Whether answers are asked for as streams."""
        return self._settings.stream

    def ask_ids_by(self, fields: tuple[str, ...]) -> None:
        """Which of the dialect's fields to ask token IDs by; settled once, by the capability probe."""
        self._id_fields = fields

    @property
    def path(self) -> str:
        """Where prompts are posted to."""
        return self._dialect.completions_path if self._chat is None else self._dialect.chat_path

    def speak_chat(self, prompts: ChatPrompts) -> None:
        """Send every prompt as a chat from now on."""
        self._chat = prompts
        self._wire = self._wired()

    def _wired(self) -> Wire:
        settings = self._settings
        return Wire(self._client, self.path, settings.timeouts, settings.hide, settings.keeps_pieces)

    async def request(self, fields: dict[str, object], body: EncodedPrompt) -> bytes:
        """A request of these fields, with the prompt as it is sent: token IDs, or the one message of a chat."""
        if self._chat is None:
            return request_body(fields, body)
        return json.dumps({**fields, "messages": await self._chat.messages(body)}, separators=(",", ":")).encode()

    def encode(self, ids: Ids) -> Body:
        """Encode a prompt; done once per group."""
        return encode_prompt(ids)

    async def complete(self, probe: Probe, body: Body) -> Observation:
        """Send one probe and wait for the whole answer."""
        return await self.leg(probe, body, None)

    async def leg(self, probe: Probe, body: Body, transfer: str | None, prefill_only: bool = False) -> Observation:
        """Send one leg of a probe: with transfer parameters (JSON), and, to prefill, for one token in one piece."""
        if not isinstance(body, EncodedPrompt):
            raise TypeError("the body was not encoded by this engine")
        if probe.arm is not Arm.CHURN:
            # What is sent beside another request must not hide what the log says of that.
            self.skip_log()
        settings = self._settings
        stream, count = settings.stream and not prefill_only, 1 if prefill_only else probe.max_tokens
        fields: dict[str, object] = {
            "model": settings.model,
            **dict(self._dialect.fixed_fields),
            **dict.fromkeys(self._id_fields, True),
            "max_tokens": count,
            **self._logprobs(),
            "ignore_eos": settings.ignore_eos,
            "stream": stream,
        }
        if transfer is not None:
            fields["kv_transfer_params"] = json.loads(transfer)
        if stream:
            fields["stream_options"] = {"include_usage": True}
        if probe.salt is not None:
            fields["cache_salt"] = probe.salt
        try:
            request = await self.request(fields, body)
        except RemoteError as error:
            # The text of a chat comes from the server, too.
            return Observation(Outcome.LOST, detail=str(error))
        request_id = f"kvgate-{settings.run_id}-{probe.id}{'-prefill' if prefill_only else ''}"
        rank = probe.rank if probe.rank is not None else settings.rank
        seen = await self._wire.complete(request, body, request_id, stream, count, rank)
        if settings.secret is None:
            return seen
        return replace(seen, detail=settings.hide(seen.detail), text=settings.hide(seen.text))

    def _logprobs(self) -> dict[str, object]:
        count = self._settings.logprobs
        if count is None:
            return {}
        return {"logprobs": count} if self._chat is None else {"logprobs": True, "top_logprobs": count}

    async def drop_local(self) -> DropReply:
        """POST the dialect's reset of the local cache. A mere 200 is not success: the body has to say so."""
        try:
            response = await self._aside(self._reset)
        except ANY_HTTPX as error:
            return DropReply(DropOutcome.UNAVAILABLE, meaning(error))
        if response.status_code in (404, 405, 501):
            return DropReply(DropOutcome.UNAVAILABLE, f"POST {self._dialect.reset_path}: HTTP {response.status_code}")
        if not response.is_success:
            return DropReply(
                DropOutcome.REFUSED, self._settings.hide(f"HTTP {response.status_code}: {clip(response.text)}")
            )
        return _drop_reply(response)

    async def read_counters(self) -> CounterReading:
        """Read the metrics page once."""
        try:
            response = await self._aside(self._reading)
        except ANY_HTTPX as error:
            return CounterReading(None, meaning(error))
        if not response.is_success:
            return CounterReading(None, f"GET {self._dialect.metrics_path}: HTTP {response.status_code}")
        try:
            return CounterReading(self._reader.read(response.content.decode("utf-8", "replace")))
        except UnreadablePageError as error:
            return CounterReading(None, str(error))

    def skip_log(self) -> None:
        """Leave out of the next reading what the log holds so far."""
        if self._log is not None:
            self._log.skip()

    async def read_log(self) -> LogReading | None:
        """Known lines of the log since the last probe; None if the configuration names no log."""
        if self._log is None:
            return None
        reading = self._log.read()
        lines = tuple(replace(line, text=self._settings.hide(line.text)) for line in reading.lines or ())
        return replace(reading, lines=lines) if reading.lines else reading

    async def _aside(self, request: httpx.Request) -> httpx.Response:
        """Send a small request; the whole exchange has its time, not just each read."""
        try:
            with anyio.fail_after(SIDE_CALL_S):
                return await persistently(lambda: self._client.send(request))
        except TimeoutError:
            raise httpx.ReadTimeout(f"the whole answer did not come within {SIDE_CALL_S:g} s") from None

    async def alive(self) -> bool:
        """Whether the endpoint answers at all, with whatever status."""
        try:
            await persistently(lambda: self._client.get(self._dialect.health_path, timeout=SIDE_CALL_S))
        except ANY_HTTPX:
            return False
        return True


def _drop_reply(response: httpx.Response) -> DropReply:
    try:
        body = parse_json(response.text)
    except ValueError:
        return DropReply(DropOutcome.UNKNOWN, "the reset answered without saying whether it worked")
    success = body.get("success") if isinstance(body, dict) else None
    if success is True:
        return DropReply(DropOutcome.DROPPED, "")
    if success is False:
        return DropReply(DropOutcome.REFUSED, "the reset answered success: false")
    return DropReply(DropOutcome.UNKNOWN, "the reset answered without saying whether it worked")
