"""An engine without a network: caches are bookkeeping, answers are hashes. Held to the contract beside it."""

import hashlib
from dataclasses import dataclass, field

from kvgate.domain.counters import Counter, Counters, Reading
from kvgate.domain.history import DropOutcome
from kvgate.domain.observation import Observation, Outcome, Timing, Usage
from kvgate.domain.probe import Probe
from kvgate.domain.prompt import Ids
from kvgate.ports import Body, CounterReading, DropReply, LogReading

DROPS = {
    "ok": DropReply(DropOutcome.DROPPED, ""),
    "refuse": DropReply(DropOutcome.REFUSED, "blocks are still held"),
    "silent": DropReply(DropOutcome.UNKNOWN, "it did not say"),
    "missing": DropReply(DropOutcome.UNAVAILABLE, "there is no reset"),
}
COUNTED = (Counter.PROMPT_TOKENS, Counter.COMPUTED, Counter.LOCAL, Counter.EXTERNAL)


@dataclass(frozen=True)
class FakeBody:
    """A prompt as the fake takes it."""

    ids: tuple[int, ...]

    @property
    def length(self) -> int:
        """Prompt tokens."""
        return len(self.ids)

    @property
    def encoded(self) -> bytes:
        """The prompt's token IDs as a JSON list."""
        return str(list(self.ids)).encode()


@dataclass
class FakeEngine:
    """One endpoint. Every field but the caches is a dial, to be turned at any time.

    ``answers`` is ok, refused or lost; ``reset`` ok, refuse, silent or missing; engines that share a ``pool`` set
    serve each other's blocks. ``drift`` is added to every logprob of an answer that came from the pool.
    """

    label: str = "a"
    block: int = 16
    pool: set[str] | None = field(default_factory=set)
    answers: str = "ok"
    reset: str = "ok"
    counting: bool = True
    up: bool = True
    drift: float = 0.0
    local: set[str] = field(default_factory=set)
    counts: dict[Counter, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    probes: list[Probe] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The endpoint's name in the deployment."""
        return self.label

    def encode(self, ids: Ids) -> Body:
        """Encode a prompt."""
        return FakeBody(tuple(ids.tolist()))

    async def complete(self, probe: Probe, body: Body) -> Observation:
        """Answer from the caches, or not at all."""
        if not isinstance(body, FakeBody):
            raise TypeError("the body was not encoded by this engine")
        self.probes.append(probe)
        if not self.up or self.answers == "lost":
            return Observation(Outcome.LOST, detail="the connection broke")
        if self.answers == "refused":
            return Observation(Outcome.REFUSED, detail="HTTP 400: refused", status=400, timing=Timing(None, 0.0))
        local, external = self._serve(body.ids, probe.salt or "")
        return self._answer(probe, body.ids, local + external, self.drift if external else 0.0)

    async def read_log(self) -> LogReading | None:
        """It has none."""
        return None

    async def drop_local(self) -> DropReply:
        """Drop the local cache, if the dial says so."""
        if not self.up:
            return DropReply(DropOutcome.UNAVAILABLE, "could not connect")
        if self.reset in ("ok", "silent"):
            self.local.clear()
        return DROPS[self.reset]

    async def read_counters(self) -> CounterReading:
        """Read the counters once."""
        if not self.up or not self.counting:
            return CounterReading(None, "there are no counters")
        return CounterReading(Counters(tuple(Reading("0", name, float(value)) for name, value in self.counts.items())))

    async def alive(self) -> bool:
        """Whether the engine answers at all."""
        return self.up

    def _serve(self, ids: tuple[int, ...], salt: str) -> tuple[int, int]:
        """Look the prompt up, account for it and keep it; returns (local, external) tokens."""
        keys = self._keys(ids, salt)
        usable = keys[: (len(ids) - 1) // self.block]
        pool = self.pool if self.pool is not None else set()
        local = next((at for at, key in enumerate(usable) if key not in self.local), len(usable))
        reused = next((at for at, key in enumerate(usable) if at >= local and key not in pool), len(usable))
        self.local.update(keys)
        pool.update(keys)
        split = (len(ids), len(ids) - reused * self.block, local * self.block, (reused - local) * self.block)
        for name, tokens in zip(COUNTED, split, strict=True):
            self.counts[name] += tokens
        return split[2], split[3]

    def _keys(self, ids: tuple[int, ...], salt: str) -> list[str]:
        keys, parent = [], salt
        for start in range(0, len(ids) - self.block + 1, self.block):
            parent = hashlib.sha256(f"{parent}{ids[start : start + self.block]}".encode()).hexdigest()
            keys.append(parent)
        return keys

    @staticmethod
    def _answer(probe: Probe, ids: tuple[int, ...], cached: int, drift: float) -> Observation:
        digests = [hashlib.sha256(f"{ids}{at}".encode()).digest() for at in range(probe.max_tokens)]
        tokens = tuple(3 + digest[0] for digest in digests)
        logprobs = tuple(-0.25 - digest[1] / 512 + drift for digest in digests)
        return Observation(
            outcome=Outcome.OK,
            status=200,
            token_ids=tokens,
            logprobs=logprobs,
            top_ids=tuple((token, 1) for token in tokens),
            top_logprobs=tuple((value, value - 1.0) for value in logprobs),
            text="".join(f" {token}" for token in tokens),
            finish_reason="length",
            usage=Usage(len(ids), len(tokens), cached),
            prompt_echoed=True,
            timing=Timing(0.0, 0.0),
        )
