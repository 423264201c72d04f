"""A prefill/decode deployment behind its gateway, as the gate's Engine port: requests go through the entry that users
call, evidence is read from the engines behind it."""

from kvgate.domain.counters import Counter, Counters, Reading
from kvgate.domain.history import DropOutcome
from kvgate.domain.observation import Observation
from kvgate.domain.probe import Probe
from kvgate.domain.prompt import Ids
from kvgate.engines.engine import HttpEngine
from kvgate.ports import Body, CounterReading, DropReply

# What a decode engine counts, under names of its own: only the prefill side's counters say anything of the pool.
_ON_DECODE = {
    Counter.PROMPT_TOKENS: Counter.DECODE_PROMPT,
    Counter.COMPUTED: Counter.DECODE_COMPUTED,
    Counter.LOCAL: Counter.DECODE_LOCAL,
    Counter.EXTERNAL: Counter.TRANSFERRED,
    Counter.PREEMPTIONS: Counter.PREEMPTIONS,
}


class GatewayEngine:
    """Sends probes through a gateway; drops caches of, and reads counters from, the engines behind it."""

    def __init__(self, entry: HttpEngine, prefill: tuple[HttpEngine, ...], decode: tuple[HttpEngine, ...]) -> None:
        self._entry = entry
        self._prefill = prefill
        self._decode = decode

    @property
    def name(self) -> str:
        """The gateway's name in the deployment."""
        return self._entry.name

    def encode(self, ids: Ids) -> Body:
        """Encode a prompt; done once per group."""
        return self._entry.encode(ids)

    async def complete(self, probe: Probe, body: Body) -> Observation:
        """Send one probe through the gateway."""
        return await self._entry.complete(probe, body)

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
        for engines, decoding in ((self._prefill, False), (self._decode, True)):
            for engine in engines:
                reading = await engine.read_counters()
                if reading.counters is None:
                    return CounterReading(None, f"{engine.name}: {reading.detail}")
                readings += _named(engine.name, reading.counters, decoding)
                started += [reading.counters.started] if reading.counters.started is not None else []
        return CounterReading(Counters(tuple(readings), max(started, default=None)))

    async def alive(self) -> bool:
        """Whether the gateway and every engine behind it answer at all."""
        for engine in (self._entry, *self._prefill, *self._decode):
            if not await engine.alive():
                return False
        return True


def _named(name: str, counters: Counters, decoding: bool) -> list[Reading]:
    found: list[Reading] = []
    for reading in counters.readings:
        counter = _ON_DECODE.get(reading.counter) if decoding else reading.counter
        if counter is not None:
            found.append(Reading(f"{name}/{reading.engine}", counter, reading.value))
    return found
