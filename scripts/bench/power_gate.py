"""One run of the real gate against an embedded deployment in this process: no sockets, no disk, no waiting.

Requests go from httpx straight to the simulator, so that the engine adapter, the session, the record and the judge
are those of ``kvgate run``. The event loop's clock jumps to the next moment at which something is due.
"""

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import anyio
import httpx

from kvgate.cli.exploring import explore, plan_for
from kvgate.cli.wiring import Connection, Link, deployment_of
from kvgate.config.schema import Config
from kvgate.domain.deployment import Role
from kvgate.domain.history import Entry, ProbeAnswered
from kvgate.domain.observation import Observation, Outcome
from kvgate.domain.plan import Plan
from kvgate.domain.probe import Arm, Probe
from kvgate.domain.prompt import Ids
from kvgate.engines.dialects import DIALECTS
from kvgate.engines.discovery import EndpointDiscovery
from kvgate.engines.engine import HttpEngine, RequestSettings
from kvgate.engines.wire import Timeouts
from kvgate.gate.line import Outside
from kvgate.gate.session import Session, Settings
from kvgate.ports import Body, CounterReading, DropReply, Engine, HookResult, LogReading, Watcher
from kvgate.sim.completions import MODEL
from kvgate.sim.deployment import Deployment, Instance
from kvgate.sim.http import HttpRequest
from kvgate.sim.node import Node

RUN_ID = "power"
T = TypeVar("T")


class _NeverWaiting(selectors.DefaultSelector):
    """A selector that tells how long it was asked to wait instead of waiting."""

    def __init__(self, waited: Callable[[float], None]) -> None:
        super().__init__()
        self._waited = waited

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("every task waits for something that is never due")
        if not ready and timeout is not None and timeout > 0:
            self._waited(timeout)
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop on a clock of its own: where nothing is left to do it jumps to the next timer."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_NeverWaiting(self._jump))

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

    def _jump(self, seconds: float) -> None:
        self._now += seconds


def run_jumping(work: Callable[[JumpingLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end on a loop that never waits."""
    loop = JumpingLoop()
    try:
        return loop.run_until_complete(work(loop))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


@dataclass(frozen=True, slots=True)
class LoopClock:
    """The loop's clock, as the gate's port."""

    loop: JumpingLoop

    def now(self) -> float:
        """Seconds on the loop's clock."""
        return self.loop.time()

    async def sleep(self, seconds: float) -> None:
        """Let the clock jump."""
        await anyio.sleep(seconds)


class _Pieces(httpx.AsyncByteStream):
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


class StraightThrough(httpx.AsyncBaseTransport):
    """Hands requests to one embedded engine."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        target = request.url.raw_path.decode("ascii")
        asked = HttpRequest(request.method, target, headers, await request.aread())
        try:
            answer = await self._instance.answer(asked)
        except asyncio.CancelledError:
            # As a server sees it: the client has gone away.
            self._instance.surface.cancelled()
            raise
        kind = {"content-type": answer.content_type}
        if answer.pieces is not None:
            return httpx.Response(answer.status, headers=kind, stream=_Pieces(answer.pieces))
        return httpx.Response(answer.status, headers=kind, content=answer.body)


class Remembering(EndpointDiscovery):
    """Asks for the token IDs of a piece of text once per process: every deployment here has the same tokenizer."""

    known: ClassVar[dict[tuple[str, bool], tuple[int, ...]]] = {}

    async def tokenize(self, model: str, text: str, special: bool) -> tuple[int, ...]:
        """Token IDs of ``text``."""
        if (text, special) not in self.known:
            self.known[text, special] = await super().tokenize(model, text, special)
        return self.known[text, special]


@dataclass(frozen=True, slots=True)
class NotComputed:
    """An engine where requests that are there only to be in flight beside others are not computed.

    Each takes its place in the batch for ``lasting_s`` seconds, and its tokens are counted. Its answer, which nobody
    compares, is empty. Everything else is the engine's.
    """

    engine: Engine
    instance: Instance
    lasting_s: float

    @property
    def name(self) -> str:
        """The endpoint's name in the deployment."""
        return self.engine.name

    def encode(self, ids: Ids) -> Body:
        """Encode a prompt."""
        return self.engine.encode(ids)

    async def complete(self, probe: Probe, body: Body) -> Observation:
        """Send one probe, or let it be in flight for a while."""
        if probe.arm is not Arm.CHURN:
            return await self.engine.complete(probe, body)
        surface = self.instance.surface
        with surface.occupied():
            counters = surface.node.ranks[0].counters
            counters.prompt += body.length
            counters.computed += body.length
            counters.local_queries += body.length
            counters.external_queries += body.length
            counters.requests += 1
            try:
                await asyncio.sleep(self.lasting_s)
            except asyncio.CancelledError:
                surface.cancelled()
                raise
        return Observation(Outcome.OK)

    async def drop_local(self) -> DropReply:
        """Drop the prefix cache."""
        return await self.engine.drop_local()

    async def read_counters(self) -> CounterReading:
        """Read the counters."""
        return await self.engine.read_counters()

    async def read_log(self) -> LogReading | None:
        """Read the log."""
        return await self.engine.read_log()

    async def alive(self) -> bool:
        """Whether it answers."""
        return await self.engine.alive()


class NoHooks:
    """There are none."""

    async def run(self, argv: tuple[str, ...], environment: Mapping[str, str], limit_s: float) -> HookResult:
        """Never called."""
        raise NotImplementedError


class NoWatcher:
    """Nobody looks on."""

    def group_started(self, index: int, count: int, group_id: str, length: int) -> None:
        """Pass over."""

    def arm_started(self, group_id: str, arm: str, attempt: int) -> None:
        """Pass over."""

    def said(self, text: str) -> None:
        """Pass over."""


@dataclass(slots=True)
class Kept:
    """The record in memory. ``costs`` are prompt tokens (sent, computed) up to each entry, as the engines know them.

    Both count everything the engines were asked, also before the record begins (exploring) and while warming up.
    """

    nodes: tuple[Node, ...]
    entries: list[Entry] = field(default_factory=list)
    costs: list[tuple[int, int]] = field(default_factory=list)
    _read: dict[str, int] = field(default_factory=dict)
    _sent: int = 0
    _computed: int = 0

    def append(self, entry: Entry) -> None:
        """Keep an entry."""
        if isinstance(entry, ProbeAnswered):
            for node in self.nodes:
                for deed in node.deeds[self._read.get(node.name, 0) :]:
                    self._sent += deed.length
                    self._computed += deed.computed
                self._read[node.name] = len(node.deeds)
        self.entries.append(entry)
        self.costs.append((self._sent, self._computed))

    def keep_prompt(self, group: str, encoded: bytes) -> str:  # noqa: ARG002 - the port's
        """Prompts can be made again from the seed."""
        return ""


@dataclass(frozen=True, slots=True)
class GateRun:
    """What a run left: its plan and its record."""

    plan: Plan
    kept: Kept


def config_for(
    names: tuple[str, ...],
    gate: dict[str, object],
    declared: float | None = None,
    stream: bool = False,
    max_tokens: int = 32,
) -> Config:
    """The default configuration for an embedded deployment, but for ``gate``, the budget and whole answers."""
    endpoints = [{"name": name, "role": Role.COMBINED.value, "url": f"http://{name}.invalid"} for name in names]
    return Config.model_validate(
        {
            "version": 1,
            "deployment": {"name": RUN_ID, "model": MODEL, "endpoints": endpoints},
            "gate": {"boundaries": False, "short_control": False, **gate},
            "policy": {"lossy_bound_nat": declared},
            # One piece an answer, where the class asks for no stream: streaming costs a third of the time.
            "requests": {"stream": stream, "max_tokens": max_tokens},
            "budget": {"computed_tokens": 10**9, "minutes": 10_000.0},
        }
    )


def connection_to(config: Config, instances: Mapping[str, Instance]) -> Connection:
    """Embedded engines, by endpoint name, each behind the client and the adapter that a real one has."""
    described, asked = deployment_of(config), config.requests
    dialect = DIALECTS[described.engine]
    timeouts = Timeouts(asked.connect_s, asked.first_token_s, asked.first_token_s_per_1k, asked.inactivity_s)
    settings = RequestSettings(
        described.model, asked.logprobs, asked.stream, asked.ignore_eos, run_id=RUN_ID, timeouts=timeouts
    )
    links: list[Link] = []
    for endpoint in described.endpoints:
        straight = StraightThrough(instances[endpoint.name])
        client = httpx.AsyncClient(base_url=endpoint.url, transport=straight, trust_env=False)
        engine = HttpEngine(endpoint.name, client, dialect, settings)
        links.append(Link(endpoint, client, engine, Remembering(endpoint, client, engine, dialect)))
    return Connection(config, described, dialect, tuple(links))


async def gate(
    deployment: Deployment,
    config: Config,
    clock: LoopClock,
    watching: Callable[[Plan, Kept], Watcher] | None = None,
    beside_s: float | None = None,
) -> GateRun:
    """Explore, plan and carry out, as ``kvgate run`` does.

    Somebody may look on, and end the run. With ``beside_s``, requests beside the groups' own last so long and are not
    computed.
    """
    instances = {name: Instance(node, deployment.nodes) for name, node in deployment.nodes.items()}
    connection = connection_to(config, instances)
    try:
        explored = await explore(connection, config.gate.seed or 0, active=True)
        plan = plan_for(connection, explored, None)
        kept = Kept(tuple(deployment.nodes.values()))
        engines: dict[str, Engine] = connection.engines()
        if beside_s is not None:
            engines = {name: NotComputed(each, instances[name], beside_s) for name, each in engines.items()}
        watcher = watching(plan, kept) if watching is not None else NoWatcher()
        outside = Outside(engines, NoHooks(), kept, clock, watcher)
        settings = Settings({}, {}, hook_s=1.0, evidence_s=config.limits.evidence_s)
        await Session(plan, RUN_ID, explored.prompts, outside, settings).run()
        return GateRun(plan, kept)
    finally:
        for link in connection.links:
            await link.client.aclose()
