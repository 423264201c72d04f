"""A prefill/decode deployment behind its gateway, as the gate's Engine port: requests go through the entry that users
call, evidence is read from the engines behind it."""

import json
from dataclasses import replace

import anyio

from kvgate.domain.counters import Counters, Gauge, Reading, named
from kvgate.domain.history import DropOutcome
from kvgate.domain.log import LogLine, LogWord
from kvgate.domain.observation import Leg, Observation, Timing
from kvgate.domain.probe import Probe
from kvgate.domain.prompt import Ids
from kvgate.engines.engine import HttpEngine
from kvgate.ports import Body, CounterReading, DropReply, LogReading

# What asks a prefill engine to hold the KV for another.
REMOTE_DECODE = json.dumps(
    {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
)


class GatewayEngine:
    """Sends probes through a gateway; drops caches of, and reads counters from, the engines behind it.

    Without an entry it plays the gateway itself: it sends every probe to the first prefill engine, for one token, and
    then to the first decode engine, with the transfer parameters that came back, or ``settle_s`` later if none did.
    """

    def __init__(
        self,
        entry: HttpEngine | None,
        prefill: tuple[HttpEngine, ...],
        decode: tuple[HttpEngine, ...],
        settle_s: float = 0.0,
    ) -> None:
        self._through = entry
        self._entry = entry if entry is not None else decode[0]
        self._prefill = prefill
        self._decode = decode
        self._settle_s = settle_s

    @property
    def name(self) -> str:
        """The name of the endpoint that answers: the gateway, or the decode engine."""
        return self._entry.name

    def encode(self, ids: Ids) -> Body:
        """Encode a prompt; done once per group."""
        return self._entry.encode(ids)

    async def complete(self, probe: Probe, body: Body) -> Observation:
        """Send one probe through the gateway, or in two legs."""
        for engine in (*self._prefill, *self._decode):
            engine.skip_log()
        if self._through is not None:
            return await self._through.complete(probe, body)
        first = await self._prefill[0].leg(probe, body, REMOTE_DECODE, prefill_only=True)
        legs: tuple[Leg, ...] = (_leg(self._prefill[0].name, first),)
        if not first.ok:
            return replace(first, detail=f"{self._prefill[0].name}, prefill leg: {first.detail}", legs=legs)
        if first.transfer is None:
            # Decode finds the KV in a store, if anywhere; puts are asynchronous. Where it finds none it computes all
            # again, which its counters will show.
            await anyio.sleep(self._settle_s)
        second = await self._entry.leg(probe, body, first.transfer)
        legs = (*legs, _leg(self._entry.name, second))
        if not second.ok:
            return replace(second, detail=f"{self._entry.name}, decode leg: {second.detail}", legs=legs)
        timing = _together(first.timing, second.timing)
        return replace(second, timing=timing, transfer=first.transfer, legs=legs)

    async def drop_local(self) -> DropReply:
        """Drop the prefix caches behind the gateway. Gateways drop the engines' answers, so each engine is asked.

        The worst answer of a prefill engine counts; a decode engine that keeps a cache gives itself away by its hits.
        """
        replies = [await engine.drop_local() for engine in self._prefill]
        for engine in self._decode:
            await engine.drop_local()
        order = (DropOutcome.DROPPED, DropOutcome.UNKNOWN, DropOutcome.REFUSED, DropOutcome.UNAVAILABLE)
        return max(replies, key=lambda reply: order.index(reply.outcome))

    async def read_counters(self) -> CounterReading:
        """The prefill engines' counters, and the decode engines' under names of their own."""
        readings: list[Reading] = []
        started: list[float] = []
        gauges: list[Gauge] = []
        for engines, decoding in ((self._prefill, False), (self._decode, True)):
            for engine in engines:
                reading = await engine.read_counters()
                if reading.counters is None:
                    return CounterReading(None, f"{engine.name}: {reading.detail}")
                readings += named(engine.name, reading.counters, decoding)
                told = reading.counters.gauges
                gauges += [replace(gauge, engine=f"{engine.name}/{gauge.engine}") for gauge in told]
                started += [reading.counters.started] if reading.counters.started is not None else []
        return CounterReading(Counters(tuple(readings), max(started, default=None), tuple(gauges)))

    async def read_log(self) -> LogReading | None:
        """What the prefill engines' logs say, and failures in those of decode; None if none of them can be read."""
        lines: list[LogLine] = []
        found = False
        for engine in (*self._prefill, *self._decode):
            reading = await engine.read_log()
            if reading is None:
                continue
            if reading.lines is None:
                return LogReading(None, f"{engine.name}: {reading.detail}")
            found = True
            # What decode looks up and loads is the transfer, not the pool.
            lines += [each for each in reading.lines if engine in self._prefill or each.word is LogWord.LOAD_FAILED]
        return LogReading(tuple(lines)) if found else None

    async def alive(self) -> bool:
        """Whether the gateway and every engine behind it answer at all."""
        for engine in (self._entry, *self._prefill, *self._decode):
            if not await engine.alive():
                return False
        return True


def _leg(endpoint: str, seen: Observation) -> Leg:
    return Leg(endpoint, seen.outcome, seen.detail, seen.status, seen.token_ids, seen.usage, seen.timing)


def _together(first: Timing | None, second: Timing | None) -> Timing | None:
    """The time of both legs; the first token counts when it comes from the second."""
    if first is None or second is None:
        return second
    token = None if second.first_token_s is None else first.total_s + second.first_token_s
    pieces = None if second.pieces_s is None else tuple(first.total_s + each for each in second.pieces_s)
    return Timing(token, first.total_s + second.total_s, pieces)
