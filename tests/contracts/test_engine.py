"""What the gate relies on in every engine: one contract, kept by the HTTP engine and by the fake alike."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
import pytest

from kvgate.domain.counters import Counter, CounterDelta, difference
from kvgate.domain.history import DropOutcome
from kvgate.domain.observation import Observation, Outcome
from kvgate.domain.probe import Arm, Probe
from kvgate.domain.prompt import Ids
from kvgate.ports import Engine
from tests.contracts.fake_engine import FakeEngine
from tests.engines.loopback import engine_at
from tests.scripted.server import Pool, Script, framed, serving

BLOCK, LENGTH, REUSABLE, TOKENS = 16, 100, 96, 12


def prompt(first: int = 7) -> Ids:
    return np.arange(first, first + LENGTH, dtype=np.int32)


def probe(salt: str | None = "s") -> Probe:
    return Probe("g.cold.0", "g", Arm.COLD, 0, "a", salt, LENGTH, TOKENS, "")


@dataclass
class Bench:
    """An engine and the dials of what stands behind it (those of FakeEngine)."""

    engine: Engine
    dial: Callable[[str, object], None]

    async def send(self, salt: str | None = "s", first: int = 7) -> Observation:
        return await self.engine.complete(probe(salt), self.engine.encode(prompt(first)))

    async def moved(self, salt: str | None = "s", first: int = 7) -> CounterDelta:
        """What one probe moves the counters by."""
        before = (await self.engine.read_counters()).counters
        await self.send(salt, first)
        after = (await self.engine.read_counters()).counters
        assert before is not None
        assert after is not None
        return difference(before, after)


Work = Callable[[Bench], Awaitable[None]]
OnBench = Callable[[Work], None]


def on_fake(work: Work) -> None:
    engine = FakeEngine(block=BLOCK)

    async def whole() -> None:
        await work(Bench(engine, lambda name, value: setattr(engine, name, value)))

    asyncio.run(whole())


def on_http(work: Work) -> None:
    script = Script(block=BLOCK, pool=Pool())

    async def whole(url: str) -> None:
        async with engine_at(url) as engine:
            await work(Bench(engine, lambda name, value: turn(script, name, value)))

    with serving(script) as server:
        asyncio.run(whole(server.url))


def turn(script: Script, name: str, value: object) -> None:
    """Make a scripted server do what a dial of the fake says."""
    replies = {"refused": framed(400, "application/json", b'{"error":"no"}'), "lost": framed(503, "text/plain", b"no")}
    if name == "answers":
        script.completion = lambda _: replies.get(str(value))
    elif name == "counting":
        script.metrics = "ok" if value else "missing"
    elif name == "up":
        script.die_after = None if value else 0
    else:
        setattr(script, name, value)


@pytest.fixture(params=[on_fake, on_http], ids=["fake", "http"])
def on_bench(request: pytest.FixtureRequest) -> OnBench:
    """Runs a piece of work on a fresh engine of each kind."""
    chosen: OnBench = request.param
    return chosen


def split(delta: CounterDelta) -> tuple[int | None, ...]:
    return tuple(delta.total(name) for name in (Counter.COMPUTED, Counter.LOCAL, Counter.EXTERNAL))


def test_an_encoded_prompt_knows_its_length(on_bench: OnBench) -> None:
    async def work(bench: Bench) -> None:
        assert LENGTH == bench.engine.encode(prompt()).length
        assert "a" == bench.engine.name

    on_bench(work)


def test_a_whole_answer_has_ids_logprobs_usage_and_time(on_bench: OnBench) -> None:
    async def work(bench: Bench) -> None:
        seen = await bench.send()
        assert (Outcome.OK, 200, "length") == (seen.outcome, seen.status, seen.finish_reason)
        assert TOKENS == len(seen.token_ids or ())
        assert (None, None) == (seen.id_problem(), seen.logprob_problem())
        assert seen.usage is not None
        assert (LENGTH, TOKENS, 0) == (seen.usage.prompt_tokens, seen.usage.completion_tokens, seen.usage.cached_tokens)
        assert True is seen.prompt_echoed
        assert seen.timing is not None
        assert seen.timing.first_token_s is not None
        assert 0 <= seen.timing.first_token_s <= seen.timing.total_s

    on_bench(work)


def test_the_same_prompt_has_the_same_answer_and_another_another(on_bench: OnBench) -> None:
    async def work(bench: Bench) -> None:
        one, again, other = await bench.send(), await bench.send(), await bench.send(first=8)
        assert (one.token_ids, one.logprobs, one.top_ids) == (again.token_ids, again.logprobs, again.top_ids)
        assert one.token_ids != other.token_ids

    on_bench(work)


def test_counters_account_for_every_prompt_token_by_its_path(on_bench: OnBench) -> None:
    async def work(bench: Bench) -> None:
        cold, local = await bench.moved(), await bench.moved()
        await bench.engine.drop_local()
        external, local_again = await bench.moved(), await bench.moved()
        rest = LENGTH - REUSABLE
        assert (LENGTH, 0, 0) == split(cold)
        assert (rest, REUSABLE, 0) == split(local)
        assert (rest, 0, REUSABLE) == split(external)
        assert (rest, REUSABLE, 0) == split(local_again)
        for delta in (cold, local, external, local_again):
            assert LENGTH == delta.total(Counter.PROMPT_TOKENS)
            assert () == delta.fell

    on_bench(work)


def test_another_salt_is_another_key_space(on_bench: OnBench) -> None:
    async def work(bench: Bench) -> None:
        await bench.moved("one")
        assert (LENGTH, 0, 0) == split(await bench.moved("two"))
        assert (LENGTH, 0, 0) == split(await bench.moved(None))
        assert (LENGTH - REUSABLE, REUSABLE, 0) == split(await bench.moved("one"))

    on_bench(work)


@pytest.mark.parametrize(("answers", "outcome"), [("refused", Outcome.REFUSED), ("lost", Outcome.LOST)])
def test_a_probe_without_an_answer_is_an_observation_that_says_why(
    on_bench: OnBench, answers: str, outcome: Outcome
) -> None:
    async def work(bench: Bench) -> None:
        bench.dial("answers", answers)
        seen = await bench.send()
        assert outcome is seen.outcome
        assert seen.detail
        assert not seen.ok
        assert await bench.engine.alive()

    on_bench(work)


@pytest.mark.parametrize(
    ("reset", "outcome", "gone"),
    [
        ("ok", DropOutcome.DROPPED, True),
        ("refuse", DropOutcome.REFUSED, False),
        ("silent", DropOutcome.UNKNOWN, True),
        ("missing", DropOutcome.UNAVAILABLE, False),
    ],
)
def test_dropping_says_what_was_answered_and_drops_only_the_local_cache(
    on_bench: OnBench, reset: str, outcome: DropOutcome, gone: bool
) -> None:
    async def work(bench: Bench) -> None:
        bench.dial("reset", reset)
        await bench.send()
        reply = await bench.engine.drop_local()
        assert outcome is reply.outcome
        assert bool(reply.detail) is (outcome is not DropOutcome.DROPPED)
        reused = (0, REUSABLE) if gone else (REUSABLE, 0)
        assert reused == split(await bench.moved())[1:]

    on_bench(work)


def test_counters_that_cannot_be_read_are_none_with_a_reason(on_bench: OnBench) -> None:
    async def work(bench: Bench) -> None:
        bench.dial("counting", False)
        reading = await bench.engine.read_counters()
        assert None is reading.counters
        assert reading.detail

    on_bench(work)


def test_nothing_raises_when_the_endpoint_is_gone(on_bench: OnBench) -> None:
    async def work(bench: Bench) -> None:
        assert await bench.engine.alive()
        bench.dial("up", False)
        seen = await bench.send()
        assert Outcome.LOST is seen.outcome
        assert seen.detail
        assert DropOutcome.UNAVAILABLE is (await bench.engine.drop_local()).outcome
        reading = await bench.engine.read_counters()
        assert (None, True) == (reading.counters, bool(reading.detail))
        assert False is await bench.engine.alive()

    on_bench(work)


def test_a_body_of_another_engine_is_a_programming_error(on_bench: OnBench) -> None:
    class Stranger:
        length = LENGTH
        encoded = b"[]"

    async def work(bench: Bench) -> None:
        with pytest.raises(TypeError, match="not encoded by this engine"):
            await bench.engine.complete(probe(), Stranger())

    on_bench(work)
