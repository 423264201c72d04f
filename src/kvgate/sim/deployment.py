"""Whole deployments: engines, their pool, and a proxy, in one process or several."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from kvgate.sim.dials import QUIET, Dials
from kvgate.sim.http import LOOPBACK, HttpAnswer, HttpRequest, call, listening
from kvgate.sim.master import Master, RemotePool
from kvgate.sim.network import Sequence
from kvgate.sim.node import Memory, Node, RefusedError, Role
from kvgate.sim.packing import pack_sequence, unpack_sequence
from kvgate.sim.presets import Preset
from kvgate.sim.proxy import Proxy
from kvgate.sim.store import Pool, Store
from kvgate.sim.surface import Surface, failure
from kvgate.sim.topology import Part, Topology
from kvgate.sim.transfer import GoneError


@dataclass(slots=True)
class Deployment:
    """Engines by name; those of a PD deployment are called prefill and decode."""

    topology: Topology
    nodes: dict[str, Node]
    pool: Pool
    fault: str = "healthy"
    memory: Memory = field(default_factory=Memory)


def make_deployment(
    preset: Preset,
    topology: Topology = Topology.COMBINED,
    fault: str = "healthy",
    dials: Dials = QUIET,
    ranks: int = 1,
    clock: Callable[[], float] = time.monotonic,
    memory: Memory | None = None,
) -> Deployment:
    """A deployment with the fault planted wherever it acts."""
    pool = Pool(clock, lag_s=dials.put_lag_s)
    memory = Memory() if memory is None else Memory(memory.weights, memory.words)

    def node(name: str, store: Store | None, prefix_caching: bool = True) -> Node:
        return Node(preset, store, fault, memory, dials, Role(name, ranks, prefix_caching), clock)

    if topology is Topology.PD:
        # As vllm-ascend's guides have it: the decoder keeps no prefix cache and does not ask the pool.
        nodes = {"prefill": node("prefill", pool), "decode": node("decode", None, fault == "decode_caches")}
    elif topology is Topology.PAIR:
        nodes = {"a": node("a", pool), "b": node("b", pool)}
    else:
        nodes = {"engine": node("engine", pool)}
    return Deployment(topology, nodes, pool, fault, memory)


class Instance:
    """A node's surface, and the KV it holds for other engines."""

    def __init__(self, node: Node, peers: dict[str, Node]) -> None:
        self._peers = peers
        self.surface = Surface(node, self._fetch)

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer one request."""
        if request.path.startswith("/kv/"):
            try:
                held = self.surface.node.handover.hand_over(request.path.removeprefix("/kv/"))
            except GoneError as error:
                return failure(404, str(error))
            return HttpAnswer(200, "application/octet-stream", pack_sequence(held))
        return await self.surface.answer(request)

    async def _fetch(self, params: dict[str, Any]) -> Sequence:
        """The KV that another engine holds, in this process or behind its address."""
        request_id = str(params.get("remote_request_id"))
        peer = self._peers.get(str(params.get("remote_engine_id")))
        if peer is not None:
            try:
                return peer.handover.hand_over(request_id)
            except GoneError as error:
                raise RefusedError(500, str(error)) from None
        try:
            got = await call("GET", f"http://{params.get('remote_host')}:{params.get('remote_port')}/kv/{request_id}")
        except (OSError, ConnectionError) as error:
            raise RefusedError(500, f"the KV could not be fetched: {type(error).__name__}") from None
        if got.status != 200:
            raise RefusedError(500, f"the KV could not be fetched: HTTP {got.status}")
        return unpack_sequence(got.body, self.surface.node.preset)


@asynccontextmanager
async def serving(deployment: Deployment, first_port: int = 0) -> AsyncIterator[dict[str, str]]:
    """Serve a deployment on loopback; yields base URLs by name: its engines, ``gateway`` (PD) and ``pool``.

    Ports follow each other from ``first_port``; 0 takes free ones.
    """
    urls: dict[str, str] = {}
    async with AsyncExitStack() as stack:

        async def listen(name: str, handler: Callable[[HttpRequest], Any]) -> int:
            port = await stack.enter_async_context(listening(handler, first_port + len(urls) if first_port else 0))
            urls[name] = f"http://{LOOPBACK}:{port}"
            return port

        if deployment.topology is Topology.PD:
            # The entry comes first, so that its port is the one that was asked for; it learns its instances below.
            entry = Proxy([], [], deployment.fault)
            await listen("gateway", entry.answer)
        for name, node in deployment.nodes.items():
            instance = Instance(node, deployment.nodes)
            instance.surface.where = (LOOPBACK, await listen(name, instance.answer))
        if deployment.topology is Topology.PD:
            entry.prefill.append(urls["prefill"])
            entry.decode.append(urls["decode"])
        await listen("pool", Master(deployment.pool).answer)
        yield urls


@asynccontextmanager
async def serving_alone(
    part: Part, preset: Preset, fault: str, dials: Dials, port: int, elsewhere: dict[str, list[str]]
) -> AsyncIterator[dict[str, str]]:
    """Serve one part of a deployment: combined, prefill, decode, proxy or pool; yields its base URL by name.

    ``elsewhere`` are the addresses of other parts by name; a proxy needs a prefill and a decode engine's.
    """
    store = RemotePool(elsewhere["pool"][0]) if elsewhere.get("pool") else None
    handler: Callable[[HttpRequest], Any]
    instance: Instance | None = None
    if part is Part.POOL:
        handler = Master(Pool(time.monotonic, lag_s=dials.put_lag_s)).answer
    elif part is Part.PROXY:
        handler = Proxy(elsewhere["prefill"], elsewhere["decode"], fault).answer
    else:
        keeps = part is not Part.DECODE or fault == "decode_caches"
        # The port in its name keeps transfer references of several engines apart.
        node = Node(preset, store, fault, Memory(), dials, Role(f"{part.value}-{port}", prefix_caching=keeps))
        instance = Instance(node, {})
        handler = instance.answer
    async with listening(handler, port) as bound:
        if instance is not None:
            instance.surface.where = (LOOPBACK, bound)
        yield {part.value: f"http://{LOOPBACK}:{bound}"}
