"""Whole deployments: engines, their pool, and a proxy, in one process or several."""

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from kvgate.sim.dials import QUIET, Dials
from kvgate.sim.http import LOOPBACK, HttpAnswer, HttpRequest, call, listening
from kvgate.sim.master import Master, RemotePool
from kvgate.sim.memory import Memory
from kvgate.sim.network import Sequence
from kvgate.sim.node import DECODE_CACHES, Node, RefusedError, Role
from kvgate.sim.packing import pack_sequence, unpack_sequence
from kvgate.sim.presets import Preset
from kvgate.sim.proxy import Proxy
from kvgate.sim.store import Outage, Pool, Store
from kvgate.sim.surface import Surface, as_json, failure
from kvgate.sim.topology import Part, ProxyKind, Topology
from kvgate.sim.transfer import GoneError


@dataclass(slots=True)
class Deployment:
    """Engines by name; those of a PD deployment are called prefill and decode."""

    topology: Topology
    nodes: dict[str, Node]
    pool: Pool
    fault: str = "healthy"
    memory: Memory = field(default_factory=Memory)
    proxy: ProxyKind = ProxyKind.ASCEND


# How many prefill engines there are, where it is not one; they share the pool and are called prefill, prefill2...
PREFILLERS = {"proxy_pins_one": 2, "proxy_in_turn": 2}

# How an outage of the pool is taken.
OUTAGES = {"outage_ignored": "ignored", "outage_unnoticed": "unnoticed", "outage_for_good": "for_good"}


def make_deployment(
    preset: Preset,
    topology: Topology = Topology.COMBINED,
    fault: str = "healthy",
    dials: Dials = QUIET,
    ranks: int = 1,
    clock: Callable[[], float] = time.monotonic,
    memory: Memory | None = None,
    proxy: ProxyKind = ProxyKind.ASCEND,
) -> Deployment:
    """A deployment with the fault planted wherever it acts. ``proxy`` is what stands before prefill and decode."""
    outage = Outage(**{OUTAGES[fault]: True}) if fault in OUTAGES else Outage()
    pool = Pool(clock, lag_s=dials.put_lag_s, capacity=dials.pool_bytes or None, outage=outage)
    memory = Memory() if memory is None else Memory(memory.weights, memory.words)

    def node(name: str, store: Store | None, prefix_caching: bool = True, decodes: bool = False) -> Node:
        return Node(preset, store, fault, memory, dials, Role(name, ranks, prefix_caching, decodes), clock)

    if topology is Topology.PD:
        # As vllm-ascend's guides have it: the decoder keeps no prefix cache and does not ask the pool.
        stored = pool if fault == "decode_puts_early" else None
        decode = node("decode", stored, prefix_caching=fault in DECODE_CACHES, decodes=True)
        names = ["prefill", *(f"prefill{number}" for number in range(2, PREFILLERS.get(fault, 1) + 1))]
        nodes = {**{name: node(name, pool) for name in names}, "decode": decode}
    elif topology is Topology.PAIR:
        nodes = {"a": node("a", pool), "b": node("b", pool)}
    else:
        nodes = {"engine": node("engine", pool)}
    return Deployment(topology, nodes, pool, fault, memory, proxy)


class Instance:
    """A node's surface, and the KV it holds for other engines."""

    def __init__(self, node: Node, peers: dict[str, Node]) -> None:
        self._peers = peers
        self._arrived: dict[str, Sequence] = {}
        self.surface = Surface(node, self._fetch, push=self._push)

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        """Answer one request."""
        if request.path.startswith("/kv/"):
            name = request.path.removeprefix("/kv/")
            if request.method == "POST":
                self._arrived[name] = unpack_sequence(request.body, self.surface.node.preset)
                return as_json({})
            try:
                held = self.surface.node.handover.hand_over(name)
            except GoneError as error:
                return failure(404, str(error))
            return HttpAnswer(200, "application/octet-stream", pack_sequence(held))
        return await self.surface.answer(request)

    async def _fetch(self, params: dict[str, Any], name: str) -> Sequence:
        """The KV that another engine holds, in this process or behind its address."""
        if params.get("metaserver"):
            return await self._sent_for(str(params["metaserver"]), name)
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

    async def _sent_for(self, metaserver: str, name: str) -> Sequence:
        """Layerwise: the request came here first, and the KV is sent here once a prefiller was called for it."""
        host, port = self.surface.where
        wanted = {
            "request_id": name,
            "do_remote_prefill": False,
            "do_remote_decode": True,
            "remote_engine_id": self.surface.node.name,
            "remote_block_ids": [[]],
            "remote_host": host,
            "remote_port": port,
        }
        try:
            await call("POST", metaserver, json.dumps(wanted).encode(), {"Content-Type": "application/json"})
        except (OSError, ConnectionError) as error:
            raise RefusedError(500, f"the metaserver cannot be reached: {type(error).__name__}") from None
        arrived = self._arrived.pop(name, None)
        if arrived is None:
            # The real one waits until a lease is over, which nobody here has the time for.
            raise RefusedError(500, f"no KV was sent for request {name}")
        return arrived

    async def _push(self, waiting: dict[str, Any], held: dict[str, Any]) -> None:
        """Send KV that is held here to the engine that waits for it."""
        try:
            sequence = self.surface.node.handover.hand_over(str(held["remote_request_id"]))
        except GoneError as error:
            raise RefusedError(500, str(error)) from None
        where = f"http://{waiting.get('remote_host')}:{waiting.get('remote_port')}/kv/{waiting.get('request_id')}"
        await call("POST", where, pack_sequence(sequence))


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
            entry = Proxy([], [], deployment.fault, deployment.proxy)
            await listen("gateway", entry.answer)
            entry.where = urls["gateway"]
        for name, node in deployment.nodes.items():
            instance = Instance(node, deployment.nodes)
            instance.surface.where = (LOOPBACK, await listen(name, instance.answer))
        if deployment.topology is Topology.PD:
            entry.prefill += [urls[name] for name in deployment.nodes if name != "decode"]
            entry.decode.append(urls["decode"])
        await listen("pool", Master(deployment.pool).answer)
        yield urls


@asynccontextmanager
async def serving_alone(
    part: Part,
    preset: Preset,
    fault: str,
    dials: Dials,
    port: int,
    elsewhere: dict[str, list[str]],
    proxy: ProxyKind = ProxyKind.ASCEND,
) -> AsyncIterator[dict[str, str]]:
    """Serve one part of a deployment: combined, prefill, decode, proxy or pool; yields its base URL by name.

    ``elsewhere`` are the addresses of other parts by name; a proxy needs a prefill and a decode engine's.
    """
    store = RemotePool(elsewhere["pool"][0]) if elsewhere.get("pool") else None
    handler: Callable[[HttpRequest], Any]
    instance: Instance | None = None
    entry: Proxy | None = None
    if part is Part.POOL:
        handler = Master(Pool(time.monotonic, lag_s=dials.put_lag_s, capacity=dials.pool_bytes or None)).answer
    elif part is Part.PROXY:
        entry = Proxy(elsewhere["prefill"], elsewhere["decode"], fault, proxy)
        handler = entry.answer
    else:
        decodes = part is Part.DECODE
        keeps = not decodes or fault in DECODE_CACHES
        # The port in its name keeps transfer references of several engines apart.
        role = Role(f"{part.value}-{port}", prefix_caching=keeps, decodes=decodes)
        node = Node(preset, store, fault, Memory(), dials, role)
        instance = Instance(node, {})
        handler = instance.answer
    async with listening(handler, port) as bound:
        if instance is not None:
            instance.surface.where = (LOOPBACK, bound)
        if entry is not None:
            entry.where = f"http://{LOOPBACK}:{bound}"
        yield {part.value: f"http://{LOOPBACK}:{bound}"}
