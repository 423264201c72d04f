"""How exchanges go wrong on a real loopback socket, and what is said of each (design §5, field log F02, F11, F12)."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from kvgate.domain.observation import Observation, Outcome
from kvgate.engines.dialects import DIALECTS
from kvgate.engines.engine import HttpEngine, RequestSettings, make_client
from kvgate.engines.wire import OVERLOADED, Timeouts
from tests.engines.loopback import (
    END,
    HEAD,
    PATIENT,
    SENT,
    Action,
    Close,
    Pause,
    Reset,
    answering,
    ask,
    chunk,
    chunked,
    complete,
    engine_at,
    page,
    piece,
    scores,
    sse,
    usage,
)

FIRST = sse(chunk([1], "a"), done=False)
GOOD = sse(chunk([1], "a"), chunk([2], "b", "length"), usage(2))
WHOLE = page(200, "application/json", json.dumps(chunk([1, 2], "ab", "length")).encode())
HASTY = Timeouts(connect=5.0, first_token=0.3, first_token_per_1k=0.0, inactivity=20.0)
RESTLESS = Timeouts(connect=5.0, first_token=20.0, first_token_per_1k=0.0, inactivity=0.3)


def timeless(seen: Observation) -> Observation:
    return replace(seen, timing=None)


# -- splitting (F02) -------------------------------------------------------------------------------------------
TRICKY = sse(
    b": ping\r\n\r\n",
    chunk([10, 11], '令牌 "é" 😀\\n', logprobs=scores([(10, -0.5), (3, -1.5)], [(11, -0.25), (4, -2.0)])),
    chunk([], "ü"),
    b'event: message\r\nid: 7\r\ndata: {"choices":\r\ndata: [{"text":"\\u00e9","token_ids":[12],'
    b'"finish_reason":"length"}]}\r\n\r\n',
    usage(3, cached=0),
)


def test_no_split_of_a_reply_changes_what_is_read() -> None:
    """Wherever an HTTP chunk ends - in a line, a JSON string, a character - the same answer is read."""

    async def every_split() -> tuple[Observation, list[Observation]]:
        replies = [[chunked(TRICKY)], *([chunked(TRICKY, cut)] for cut in range(1, len(TRICKY)))]
        async with answering(*replies) as server, engine_at(server.url) as engine:
            whole = await complete(engine)
            return whole, [await complete(engine) for _ in replies[1:]]

    whole, parts = asyncio.run(every_split())
    assert (Outcome.OK, (10, 11, 12)) == (whole.outcome, whole.token_ids)
    assert '令牌 "é" 😀\\nüé' == whole.text
    assert [] == [cut for cut, seen in enumerate(parts, start=1) if timeless(seen) != timeless(whole)]


def test_a_reply_in_single_bytes_is_read_like_the_whole() -> None:
    whole, _ = ask([chunked(TRICKY)])
    bytewise, _ = ask([chunked(TRICKY, *range(1, len(TRICKY)))])
    assert timeless(whole) == timeless(bytewise)


# -- what the status says --------------------------------------------------------------------------------------
@pytest.mark.parametrize("status", sorted(OVERLOADED))
def test_a_server_that_cannot_take_it_now_has_lost_the_probe(status: int) -> None:
    seen, server = ask([page(status, "application/json", b'{"error":{"message":"busy"}}')])
    assert (Outcome.LOST, status, 1) == (seen.outcome, seen.status, len(server.bodies))
    assert f"HTTP {status}: busy" == seen.detail


def test_the_statuses_that_mean_not_now_are_these() -> None:
    assert {408, 429, 502, 503, 504} == OVERLOADED


@pytest.mark.parametrize("status", [301, 400, 404, 422, 500, 501])
def test_any_other_status_is_a_definite_refusal_that_is_quoted(status: int) -> None:
    seen, server = ask([page(status, "application/json", b'{"error":{"message":"no such field"}}')])
    assert (Outcome.REFUSED, status, 1) == (seen.outcome, seen.status, len(server.bodies))
    assert f"HTTP {status}: no such field" == seen.detail


@pytest.mark.parametrize(
    ("body", "fragment"),
    [(b"", "empty body"), (b"Internal Server Error", "Internal Server Error"), (b'{"object":"error"}', "error")],
)
def test_an_error_without_a_message_still_says_something(body: bytes, fragment: str) -> None:
    seen, _ = ask([page(500, "text/plain", body)])
    assert fragment in seen.detail


@pytest.mark.parametrize("stream", [True, False])
def test_a_web_page_instead_of_an_answer_is_refused_with_a_clear_sentence(stream: bool) -> None:
    seen, _ = ask([page(200, "text/html", b"<html>\n<body>Welcome to nginx!</body></html>")], stream=stream)
    assert Outcome.REFUSED is seen.outcome
    assert "the answer cannot be read: not JSON but '<html> <body>Welcome to nginx!</body></html>'" == seen.detail


def test_a_json_list_is_refused() -> None:
    seen, _ = ask([page(200, "application/json", b"[1, 2]")])
    assert (Outcome.REFUSED, "the answer cannot be read: not a JSON object but list") == (seen.outcome, seen.detail)


def test_a_proxy_may_turn_a_stream_into_a_whole_reply() -> None:
    """C19."""
    seen, _ = ask([WHOLE], stream=True)
    assert (Outcome.OK, (1, 2)) == (seen.outcome, seen.token_ids)


def test_the_content_type_may_be_written_in_any_case() -> None:
    seen, _ = ask([chunked(GOOD).replace(b"text/event-stream", b"Text/Event-Stream")])
    assert (Outcome.OK, (1, 2)) == (seen.outcome, seen.token_ids)


# -- broken connections ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("breaking", [Reset(), Close()], ids=["reset", "close"])
def test_a_connection_broken_before_any_byte_is_tried_exactly_once_more(breaking: Reset | Close) -> None:
    """F11."""
    seen, server = ask([breaking], [chunked(GOOD)])
    assert (Outcome.OK, (1, 2), ("retried",)) == (seen.outcome, seen.token_ids, seen.marks)
    assert 2 == len(server.bodies)
    assert server.bodies[0] == server.bodies[1]


@pytest.mark.parametrize("breaking", [Reset(), Close()], ids=["reset", "close"])
def test_a_connection_broken_before_any_byte_twice_is_lost(breaking: Reset | Close) -> None:
    seen, server = ask([breaking])
    assert (Outcome.LOST, ("retried",), 2) == (seen.outcome, seen.marks, len(server.bodies))
    assert seen.detail


@pytest.mark.parametrize("breaking", [Reset(), Close()], ids=["reset", "close"])
@pytest.mark.parametrize("before", [HEAD, HEAD + piece(FIRST)], ids=["head", "token"])
def test_a_connection_broken_after_bytes_is_lost_and_not_tried_again(before: bytes, breaking: Reset | Close) -> None:
    """A retry after bytes could double the answer (C12)."""
    seen, server = ask([before, Pause(0.05), breaking])
    assert (Outcome.LOST, (), 1) == (seen.outcome, seen.marks, len(server.bodies))
    assert "broke" in seen.detail


def test_a_whole_reply_cut_short_is_lost() -> None:
    seen, _ = ask([WHOLE[:-10], Close()], stream=False)
    assert Outcome.LOST is seen.outcome


def test_a_stream_without_a_frame_that_is_cut_in_an_event_is_lost() -> None:
    """Without chunks or a length the end of the connection is the end of the answer: only the content can tell."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    seen, _ = ask([head, GOOD[: GOOD.index(b"length")], Close()])
    assert Outcome.LOST is seen.outcome


def test_an_idle_connection_closed_by_the_server_does_not_lose_the_next_probe() -> None:
    """C14: keep-alive shorter than the client's; at most one visible retry."""

    async def twice() -> tuple[Observation, Observation]:
        async with answering([chunked(GOOD), Close()], [chunked(GOOD)]) as server, engine_at(server.url) as engine:
            first = await complete(engine)
            await asyncio.sleep(0.05)
            return first, await complete(engine)

    first, second = asyncio.run(twice())
    assert (Outcome.OK, Outcome.OK) == (first.outcome, second.outcome)


def test_something_that_is_not_http_is_lost() -> None:
    seen, _ = ask([b"SSH-2.0-OpenSSH_9.6\r\n", Close()])
    assert (Outcome.LOST, "HTTP" in seen.detail) == (seen.outcome, True)


def test_nobody_listening_is_lost_without_a_retry() -> None:
    async def refused() -> Observation:
        async with answering([Close()]) as server:
            url = server.url
        async with engine_at(url) as engine:
            return await complete(engine)

    seen = asyncio.run(refused())
    assert (Outcome.LOST, None, ()) == (seen.outcome, seen.status, seen.marks)
    assert seen.detail.startswith("could not connect")


# -- time ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("before", [[], [HEAD], [HEAD, piece(b": ping\n\n")]], ids=["nothing", "head", "comment"])
def test_no_first_token_in_time_is_lost(before: list[bytes]) -> None:
    seen, server = ask([*before, Pause(30)], timeouts=HASTY)
    assert (Outcome.LOST, 1) == (seen.outcome, len(server.bodies))
    assert "no first token within" in seen.detail
    assert "within 0 s" not in seen.detail


def test_a_stream_that_falls_silent_is_lost_and_keeps_its_text() -> None:
    seen, _ = ask([HEAD, piece(FIRST), Pause(30)], timeouts=RESTLESS)
    assert (Outcome.LOST, "a") == (seen.outcome, seen.text)
    assert seen.detail.startswith("nothing more came for")
    assert seen.timing is not None
    assert seen.timing.first_token_s is not None


def test_heartbeats_before_the_first_token_do_not_count_as_tokens() -> None:
    """F12: a long prefill under heartbeats; the time to the first token is that of the token."""
    beats: list[Action] = [piece(b": ping\n\n"), Pause(0.1)] * 4
    seen, _ = ask([HEAD, *beats, piece(GOOD), END])
    assert Outcome.OK is seen.outcome
    assert seen.timing is not None
    assert seen.timing.first_token_s is not None
    assert seen.timing.first_token_s >= 0.4


def test_heartbeats_between_tokens_are_activity() -> None:
    """``inactivity_s`` is seconds without a byte, and a comment is bytes."""
    beats: list[Action] = [piece(b": ping\n\n"), Pause(0.3)] * 5
    rest = GOOD[len(FIRST) :]
    seen, _ = ask([HEAD, piece(FIRST), *beats, piece(rest), END], timeouts=replace(PATIENT, inactivity=1.2))
    assert (Outcome.OK, (1, 2)) == (seen.outcome, seen.token_ids)


def test_a_slow_answer_may_take_longer_than_the_wait_for_its_first_token() -> None:
    parts = [part for _ in range(5) for part in (piece(FIRST), Pause(0.3))]
    seen, _ = ask([HEAD, *parts, piece(GOOD), END], timeouts=replace(PATIENT, first_token=1.2, inactivity=1.2))
    assert (Outcome.OK, 7) == (seen.outcome, len(seen.token_ids or ()))


def test_the_wait_for_the_first_token_grows_with_the_prompt() -> None:
    waits = Timeouts(connect=1.0, first_token=120.0, first_token_per_1k=5.0, inactivity=60.0)
    assert 120.0 + 5.0 * 131.072 == waits.until_first_token(131_072)


# -- the body on the wire --------------------------------------------------------------------------------------
ALWAYS = {"temperature": 0, "top_p": 1, "top_k": -1, "seed": 42, "n": 1, "max_tokens": 16, "model": "m"}
NEVER = ("min_tokens", "tools", "response_format", "guided_json", "structured_outputs", "stop", "echo", "messages")


@pytest.mark.parametrize("stream", [True, False])
def test_every_request_states_its_sampling_and_its_prompt_as_ids(stream: bool) -> None:
    _, server = ask([chunked(GOOD) if stream else WHOLE], stream=stream)
    body = server.sent()
    assert ALWAYS == {name: body.get(name) for name in ALWAYS}
    assert list(SENT) == body["prompt"]
    assert [] == [name for name in NEVER if name in body]
    assert stream is body["stream"]
    assert ({"include_usage": True} if stream else None) == body.get("stream_options")


def test_a_salt_is_sent_only_when_there_is_one() -> None:
    async def both() -> tuple[dict[str, object], dict[str, object]]:
        async with answering([chunked(GOOD)]) as server, engine_at(server.url, PATIENT) as engine:
            await complete(engine, salt="s")
            await complete(engine, salt=None)
            return server.sent(0), server.sent(1)

    salted, plain = asyncio.run(both())
    assert "s" == salted.pop("cache_salt")
    assert salted == plain


def test_a_request_is_named_and_its_retry_by_another_name() -> None:
    _, server = ask([Close()], [chunked(GOOD)])
    names = [
        line.split(": ")[1] for head in server.heads for line in head.split("\r\n") if "request-id" in line.lower()
    ]
    assert ["kvgate-run-g.cold.0", "kvgate-run-g.cold.0-retry"] == names


# -- when each piece came ---------------------------------------------------------------------------------------
PACED: list[Action] = [
    HEAD,
    piece(sse(b": ping\n\n", chunk([1], "a"), done=False)),
    Pause(0.1),
    piece(sse(chunk([2], "b", "length"), done=False)),
    Pause(0.1),
    piece(sse(usage(2))),
    END,
]


def paced(stream: bool, keeps: bool) -> tuple[Observation, dict[str, Any]]:
    """What comes of a stream with pauses, and the fields it was asked for by."""

    async def once() -> tuple[Observation, dict[str, Any]]:
        timing = RequestSettings("m", None, stream, ignore_eos=True, run_id="run", timeouts=PATIENT, keeps_pieces=keeps)
        async with answering(PACED) as server, make_client(server.url, None, 5.0) as client:
            engine = HttpEngine("a", client, DIALECTS["vllm"], timing)
            engine.ask_ids_by(())
            return await complete(engine), server.sent()

    return asyncio.run(once())


def test_it_is_kept_when_each_piece_with_output_came_if_asked() -> None:
    seen, asked = paced(stream=True, keeps=True)
    assert seen.timing is not None
    assert seen.timing.pieces_s is not None
    first, second = seen.timing.pieces_s
    assert first == seen.timing.first_token_s
    assert second - first >= 0.09
    assert seen.timing.total_s - second >= 0.09
    assert not {"logprobs", "return_token_ids"} & asked.keys()


def test_otherwise_it_is_not() -> None:
    seen, _ = paced(stream=True, keeps=False)
    assert seen.timing is not None
    assert None is seen.timing.pieces_s
