"""Properties of the readers: where a reply or a page is cut, and in which order lines stand, changes nothing."""

import asyncio
import importlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.domain.observation import Observation, Outcome
from kvgate.engines.dialects import DIALECTS
from kvgate.engines.engine import HttpEngine, RequestSettings
from kvgate.engines.metrics import parse_counters
from kvgate.ports import CounterReading
from tests.engines.loopback import PATIENT, chunk, complete, scores, sse, usage

SCRIPTS = str(Path(__file__).parents[2] / "scripts" / "bench")
PAGE = (Path(__file__).parents[1] / "fixtures" / "vllm-0.32-metrics.txt").read_bytes()
QUICK = settings(max_examples=60, deadline=None)

tokens = st.lists(st.integers(0, 9), min_size=1, max_size=12)
texts = st.text(max_size=6)


class Pieces(httpx.AsyncByteStream):
    """A body in pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def cut(content: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(content) + 1) for place in places), len(content)]
    return [content[start:end] for start, end in pairwise(edges)]


async def asked(pieces: list[bytes], kind: str) -> tuple[Observation, CounterReading]:
    """What an engine makes of these pieces, as an answer and as a page."""

    def reply(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": kind}, stream=Pieces(pieces))

    timing = RequestSettings("m", logprobs=2, stream=True, ignore_eos=True, run_id="run", timeouts=PATIENT)
    async with httpx.AsyncClient(base_url="http://a", transport=httpx.MockTransport(reply)) as client:
        engine = HttpEngine("a", client, DIALECTS["vllm"], timing)
        return replace(await complete(engine), timing=None), await engine.read_counters()


@QUICK
@given(
    parts=st.lists(st.tuples(tokens, texts), min_size=1, max_size=4),
    places=st.lists(st.integers(0, 1 << 20), max_size=6),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    kind=st.sampled_from(["text/event-stream", "application/json"]),
)
def test_no_cut_changes_an_answer(parts: list[tuple[list[int], str]], places: list[int], end: str, kind: str) -> None:
    count = sum(len(ids) for ids, _ in parts)
    events: list[Any] = [b": ping\n\n"]
    events += [chunk(ids, text, logprobs=scores(*([(each, -0.5)] for each in ids))) for ids, text in parts]
    content = sse(*events, chunk([], "", "length"), usage(count)).replace(b"\n", end.encode())
    whole, _ = asyncio.run(asked([content], kind))
    split, _ = asyncio.run(asked(cut(content, places), kind))
    assert whole == split
    assert (Outcome.OK, "".join(text for _, text in parts)) == (whole.outcome, whole.text)
    assert [each for ids, _ in parts for each in ids] == list(whole.token_ids or ())
    assert None is whole.id_problem()


@QUICK
@given(ids=tokens, edges=st.lists(st.integers(0, 12), max_size=6), grow=st.booleans(), rows_grow=st.booleans())
def test_usage_tells_added_lists_from_grown_ones(ids: list[int], edges: list[int], grow: bool, rows_grow: bool) -> None:
    """However an answer is dealt out, with its IDs and its logprobs each as what is new or as all so far."""
    places = sorted({min(edge, len(ids)) for edge in edges} | {len(ids)})
    rows = [[(each, -0.5)] for each in ids]
    events = []
    for start, end in pairwise([0, *places]):
        shown, values = ids[0 if grow else start : end], rows[0 if rows_grow else start : end]
        events.append(chunk(shown, "x", "length" if end == len(ids) else None, logprobs=scores(*values)))
    seen, _ = asyncio.run(asked([sse(*events, usage(len(ids)))], "text/event-stream"))
    assert (tuple(ids), None) == (seen.token_ids, seen.id_problem())
    assert len(ids) == len(seen.logprobs or ())


@QUICK
@given(places=st.lists(st.integers(0, len(PAGE)), max_size=6), shuffled=st.randoms(use_true_random=False))
def test_no_cut_and_no_order_changes_a_page(places: list[int], shuffled: Any) -> None:
    whole = parse_counters(PAGE.decode(), DIALECTS["vllm"])
    _, split = asyncio.run(asked(cut(PAGE, places), "text/plain"))
    assert whole == split.counters
    lines = PAGE.decode().splitlines()
    shuffled.shuffle(lines)
    again = parse_counters("\r\n".join(lines), DIALECTS["vllm"])
    assert (whole.table(), whole.started) == (again.table(), again.started)


@pytest.fixture(scope="module")
def fuzz() -> Iterator[Any]:
    """The fuzzer; scripts are no package, so it is found by path."""
    sys.path.insert(0, SCRIPTS)
    try:
        yield importlib.import_module("fuzz")
    finally:
        sys.path.remove(SCRIPTS)


def test_spoiled_inputs_crash_nothing(fuzz: Any, tmp_path: Path) -> None:
    tally = asyncio.run(fuzz.fuzz(2000, 20, tmp_path))
    assert [] == tally.failures
    assert {"stream: OK", "stream: REFUSED", "stream: LOST", "page: counters", "page: unreadable"} <= set(
        tally.outcomes
    )


def test_the_fuzzer_sees_crashes_and_hangs_and_keeps_their_inputs(
    fuzz: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "HANG_S", 0.5)
    tally = asyncio.run(fuzz.fuzz(10, 20, tmp_path, control=True))
    assert ["KeyError", "HangError"] == [failure.split(":")[0] for failure in tally.failures]
    assert 2 == len(list(tmp_path.iterdir()))


def test_an_empty_finish_reason_is_none() -> None:
    """Found by the fuzzer: a reason of nothing but control characters counted as one."""
    seen, _ = asyncio.run(asked([sse(chunk([1], "a", "\x00"), usage(1))], "text/event-stream"))
    assert (Outcome.LOST, None) == (seen.outcome, seen.finish_reason)


@pytest.mark.parametrize("status", [200, 500])
def test_brackets_nested_deeper_than_python_follows_are_refused(status: int) -> None:
    """Found by the fuzzer: the standard parser ends in a RecursionError, which is no ValueError."""
    deep = b'{"error":' * 3000 + b"1" + b"}" * 3000

    def reply(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, headers={"content-type": "application/json"}, content=deep)

    async def once() -> Observation:
        timing = RequestSettings("m", logprobs=2, stream=True, ignore_eos=True, run_id="run", timeouts=PATIENT)
        async with httpx.AsyncClient(base_url="http://a", transport=httpx.MockTransport(reply)) as client:
            return await complete(HttpEngine("a", client, DIALECTS["vllm"], timing))

    seen = asyncio.run(once())
    assert Outcome.REFUSED is seen.outcome
    assert len(seen.detail) < 500


def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvgate.engines.wire.LARGEST_ANSWER", 1000)
    for content in (json.dumps(chunk([1], "a" * 2000, "stop")).encode(), b"data: " + b"x" * 2000, b":" * 2000):
        for kind in ("application/json", "text/event-stream"):
            seen, _ = asyncio.run(asked([content], kind))
            assert (Outcome.REFUSED, True) == (seen.outcome, "longer than 1000 characters" in seen.detail)
