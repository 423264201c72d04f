"""Every exception that httpx can raise has a meaning, and none leaves the engine's methods."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import httpx
import pytest

from kvgate.domain.history import DropOutcome
from kvgate.domain.observation import Observation, Outcome
from kvgate.engines.dialects import DIALECTS
from kvgate.engines.engine import HttpEngine, RequestSettings
from kvgate.engines.wire import BROKEN, MEANINGS, meaning
from kvgate.ports import CounterReading, DropReply
from tests.engines.loopback import PATIENT, complete


def classes(root: type[Exception]) -> Iterator[type[Exception]]:
    yield root
    for kind in root.__subclasses__():
        yield from classes(kind)


ROOTS = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, httpx.CookieConflict)
EVERY = sorted({kind for root in ROOTS for kind in classes(root)}, key=lambda kind: kind.__name__)


def made(kind: type[Exception]) -> Exception:
    if kind is httpx.HTTPStatusError:
        return kind("told", request=httpx.Request("POST", "http://a"), response=httpx.Response(500))
    if kind in (httpx.StreamConsumed, httpx.StreamClosed, httpx.ResponseNotRead, httpx.RequestNotRead):
        return kind()
    return kind("told")


def run(kind: type[Exception], ask: Callable[[HttpEngine], Awaitable[object]]) -> tuple[object, int]:
    """What an engine method returns on a transport that always raises, and how often it was asked."""
    asked: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        raise made(kind)

    async def once() -> object:
        settings = RequestSettings("m", logprobs=2, stream=True, ignore_eos=True, run_id="run", timeouts=PATIENT)
        async with httpx.AsyncClient(base_url="http://a", transport=httpx.MockTransport(handle)) as client:
            return await ask(HttpEngine("a", client, DIALECTS["vllm"], settings))

    return asyncio.run(once()), len(asked)


def test_the_list_of_exceptions_is_not_empty() -> None:
    assert {httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError, httpx.StreamClosed} <= set(EVERY)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_every_exception_has_a_clause_that_says_what_happened(kind: type[Exception]) -> None:
    clause = meaning(made(kind))
    assert any(isinstance(made(kind), known) for known, _ in MEANINGS)
    assert kind.__name__ not in clause
    assert "\n" not in clause


def test_no_meaning_is_hidden_behind_a_wider_one() -> None:
    kinds = [kind for kind, _ in MEANINGS]
    hidden = [
        late.__name__ for index, late in enumerate(kinds) if any(issubclass(late, early) for early in kinds[:index])
    ]
    assert [] == hidden


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_no_exception_leaves_complete(kind: type[Exception]) -> None:
    seen, asked = run(kind, complete)
    assert isinstance(seen, Observation)
    assert Outcome.LOST is seen.outcome
    assert meaning(made(kind)) == seen.detail
    broken = issubclass(kind, BROKEN)
    assert (2, ("retried",)) == (asked, seen.marks) if broken else (1, ()) == (asked, seen.marks)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_no_exception_leaves_the_side_calls(kind: type[Exception]) -> None:
    dropped, _ = run(kind, lambda engine: engine.drop_local())
    read, _ = run(kind, lambda engine: engine.read_counters())
    alive, _ = run(kind, lambda engine: engine.alive())
    assert isinstance(dropped, DropReply)
    assert DropOutcome.UNAVAILABLE is dropped.outcome
    assert isinstance(read, CounterReading)
    assert None is read.counters
    assert meaning(made(kind)) == read.detail
    assert False is alive
