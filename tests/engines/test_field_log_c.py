"""The field log's client and protocol traps (C01 to C20), one test each: what every one demands of the reader."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgate.domain.counters import Counter, Counters, Reading
from kvgate.domain.divergence import compare
from kvgate.domain.evidence import Evidence, read_evidence, transfer_problem
from kvgate.domain.observation import Observation, Outcome
from kvgate.domain.policy import Grade, Policy
from kvgate.domain.reasons import Reason
from kvgate.engines.wire import Timeouts
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
    hear,
    page,
    piece,
    scores,
    sse,
    told,
    usage,
)
from tests.engines.odd_servers import Events, edit_answers, run_gate
from tests.scripted.server import serving

GOOD = sse(chunk([1], "a"), chunk([2], "b", "length"), usage(2))


def chat(finish: str | None = None, delta: object = None, **more: object) -> dict[str, object]:
    """One chunk of a streamed chat."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish, **more}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]}


def chat_scores(*rows: list[tuple[str, float]]) -> dict[str, object]:
    """A chat's logprobs: per token its likeliest, the chosen one first."""
    content = [
        {
            "token": row[0][0],
            "bytes": list(row[0][0].encode()),
            "logprob": row[0][1],
            "top_logprobs": [{"token": token, "bytes": None, "logprob": value} for token, value in row],
        }
        for row in rows
    ]
    return {"content": content, "refusal": None}


def test_c01_ids_on_chunks_without_text_are_kept() -> None:
    """A tool parser holds text back; the IDs come all the same."""
    seen = hear(chat(token_ids=[1, 2], delta={"role": "assistant", "content": ""}), chat(token_ids=[3]), chat(
        "stop", {"content": "x"}, token_ids=[4]
    ), usage(4))  # fmt: skip
    assert (Outcome.OK, (1, 2, 3, 4), "x") == (seen.outcome, seen.token_ids, seen.text)
    assert None is seen.id_problem()


def test_c02_a_chat_reply_whose_parser_drops_the_ids_has_none() -> None:
    message = {"role": "assistant", "reasoning_content": "so ", "content": "x"}
    seen = told({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage(4)["usage"]})
    assert (Outcome.OK, None, "so x") == (seen.outcome, seen.token_ids, seen.text)
    assert "no token IDs" in str(seen.id_problem())


def test_c03_every_endpoint_gives_its_ids_in_another_place() -> None:
    tops = chat_scores([("token_id:1", -0.5), ("token_id:9", -1.5)], [("token_id:2", -0.25), ("token_id:8", -2.0)])
    keyed = scores([(1, -0.5), (9, -1.5)], [(2, -0.25), (8, -2.0)])
    prompt, count = {"prompt_token_ids": list(SENT)}, {"usage": usage(2)["usage"]}
    message = {"index": 0, "message": {"content": "ab"}, "token_ids": [1, 2], "logprobs": tops, "finish_reason": "stop"}
    beside = {"id": "c", "choices": [], "sglext": {"output_ids": [[1, 2]], "input_ids": list(SENT)}}
    replies = {
        "completion, whole": told({**chunk([1, 2], "ab", "stop", logprobs=keyed, **prompt), **count}),
        "completion, streamed": hear(chunk([1, 2], "ab", "stop", logprobs=keyed, **prompt), usage(2)),
        "chat, whole": told({"id": "c", "choices": [message], **prompt, **count}),
        "chat, streamed": hear(
            {**chat(delta={"role": "assistant"}), **prompt},
            chat(delta={"content": "ab"}, token_ids=[1, 2], logprobs=tops),
            chat("stop"),
            usage(2),
        ),
        "beside the choices": hear(chat("stop", {"content": "ab"}, logprobs=tops), beside, usage(2)),
    }
    expected = replies["completion, whole"]
    assert (True, (1, 2), (-0.5, -0.25)) == (expected.prompt_echoed, expected.token_ids, expected.logprobs)
    assert ((1, 9), (2, 8)) == expected.top_ids
    assert {} == {name: seen for name, seen in replies.items() if replace(seen, timing=expected.timing) != expected}


def test_c04_prompt_ids_that_nobody_asked_for_are_no_output() -> None:
    seen = hear(chunk(None, "a", prompt_token_ids=list(SENT)), chunk(None, "b", "stop"), usage(2))
    assert (None, True, "ab") == (seen.token_ids, seen.prompt_echoed, seen.text)
    assert () == hear(chunk([], "", "stop"), usage(0)).token_ids


def test_c05_chunks_are_no_tokens_and_the_last_usage_counts() -> None:
    first, second, last = chunk([1, 4, 4, 4], "a"), chunk([3], "b"), chunk([5, 6], "c", "length")
    for event, count in ((first, 4), (second, 5), (last, 7)):
        event["usage"] = {"prompt_tokens": 4, "completion_tokens": count}
    seen = hear(first, second, last, {"choices": [], "usage": {"prompt_tokens": None, "completion_tokens": None}})
    assert (1, 4, 4, 4, 3, 5, 6) == seen.token_ids
    assert None is seen.id_problem()


def test_c06_counts_that_do_not_match_are_the_replys_problem_and_no_divergence(tmp_path: Path) -> None:
    def short(events: Events, external: bool) -> None:
        if external:
            events[3]["choices"][0]["logprobs"] = None

    with serving() as server:
        edit_answers(server, short)
        driven = run_gate(tmp_path, server)
    assert (3, "LOGPROBS_UNUSABLE") == (driven.code, driven.reasons[0])
    assert "15 logprobs for 16 token IDs" in driven.stdout


def test_c07_cached_tokens_behind_a_decoder_are_no_sensor() -> None:
    moved = {
        Counter.PROMPT_TOKENS: 512.0, Counter.COMPUTED: 512.0, Counter.LOCAL: 0.0, Counter.EXTERNAL: 0.0,
        Counter.DECODE_PROMPT: 512.0, Counter.DECODE_LOCAL: 0.0, Counter.TRANSFERRED: 511.0,
    }  # fmt: skip
    seen = hear(chunk([1], "a", "length"), usage(1, cached=511))
    assert () == evidence_of(512, moved, seen).problems
    direct = {name: value for name, value in moved.items() if "decode" not in name.value}
    assert Reason.SENSOR_CONFLICT in {problem.reason for problem in evidence_of(512, direct, seen).problems}


def evidence_of(length: int, moved: dict[Counter, float], seen: Observation | None = None) -> Evidence:
    before = Counters(tuple(Reading("0", name, 0.0) for name in moved))
    after = Counters(tuple(Reading("0", name, value) for name, value in moved.items()))
    return read_evidence(length, before, after, seen, Grade.ARRIVED)


def test_c08_no_word_of_cached_tokens_is_not_zero() -> None:
    def cached(details: object) -> int | None:
        counts = {"prompt_tokens": 4, "completion_tokens": 1, "prompt_tokens_details": details}
        seen = hear(chunk([1], "a", "stop"), {"choices": [], "usage": counts})
        assert seen.usage is not None
        return seen.usage.cached_tokens

    assert [None, None, None, 0, 7] == [
        cached(details) for details in (None, {}, {"cached_tokens": None}, {"cached_tokens": 0}, {"cached_tokens": 7})
    ]


def test_c09_the_engines_own_split_of_cached_tokens_is_read() -> None:
    details = {"cached_tokens": 96, "local_cached_tokens": 32, "external_cached_tokens": 64}
    counts = {"prompt_tokens": 4, "completion_tokens": 1, "prompt_tokens_details": details}
    split = hear(chunk([1], "a", "stop"), {"choices": [], "usage": counts}).usage
    assert split is not None
    assert (96, 32, 64) == (split.cached_tokens, split.local_cached_tokens, split.external_cached_tokens)
    plain = hear(chunk([1], "a", "stop"), usage(1, cached=96)).usage
    assert plain is not None
    assert (None, None) == (plain.local_cached_tokens, plain.external_cached_tokens)


@pytest.mark.parametrize("field", ["stop_reason", "usage"])
def test_c10_a_recomputed_answer_voids_its_group(field: str, tmp_path: Path) -> None:
    """Said by the proxy, or shown by a prompt that grows while it is answered."""

    def recompute(events: Events, external: bool) -> None:
        if external and field == "stop_reason":
            events[-2]["choices"][0]["stop_reason"] = "recomputed"
        elif external:
            events[0]["usage"] = {"prompt_tokens": 350}

    with serving() as server:
        edit_answers(server, recompute)
        driven = run_gate(tmp_path, server)
    assert (3, "RECOMPUTED") == (driven.code, driven.reasons[0])


def test_c10_a_prompt_of_another_length_is_another_prompt() -> None:
    counts = {"choices": [], "usage": {"prompt_tokens": len(SENT) + 3, "completion_tokens": 1}}
    assert False is hear(chunk([1], "a", "stop"), counts).prompt_echoed
    assert False is hear(chunk([1], "a", "stop", prompt_token_ids=list(SENT)), counts).prompt_echoed
    again = chunk([2], "b", "stop", prompt_token_ids=list(SENT))
    assert False is hear(chunk([1], "a", prompt_token_ids=[9]), again, usage(2)).prompt_echoed


def test_c12_a_proxy_that_hangs_is_given_up_and_one_that_asks_twice_is_seen() -> None:
    hanging, _ = ask(
        [HEAD, piece(sse(chunk([1], "a"), done=False)), Pause(30)], timeouts=replace(PATIENT, inactivity=0.2)
    )
    assert (Outcome.LOST, True) == (hanging.outcome, hanging.detail.startswith("nothing more came"))

    def begun(name: str, *chunks: dict[str, object]) -> list[dict[str, object]]:
        return [{**each, "id": name} for each in chunks]

    half, whole = (
        [chunk([1, 2], "a"), chunk([3], "b")],
        [chunk([1, 2], "a"), chunk([3], "b"), chunk([4], "c", "length")],
    )
    by_name = hear(*begun("one", *half), *begun("two", *whole))
    half[0], whole[0] = (chunk([1, 2], "a", prompt_token_ids=list(SENT)) for _ in range(2))
    by_echo = hear(*half, *whole)
    for seen in (by_name, by_echo):
        assert (Outcome.OK, True) == (seen.outcome, "begins anew" in str(seen.id_problem()))
    # A prefill engine's first token under its own name is no second beginning.
    for rest in ([2, 1], [1, 2]):
        assert (
            None is hear(*begun("p", chunk([1], "a")), *begun("d", chunk(rest, "b", "length")), usage(3)).id_problem()
        )


def test_c13_the_wait_for_the_first_token_grows_with_the_prompt() -> None:
    late: list[Action] = [Pause(0.4), chunked(GOOD)]
    waits = Timeouts(connect=5.0, first_token=0.1, first_token_per_1k=0.0, inactivity=20.0)
    assert Outcome.LOST is ask(late, timeouts=waits)[0].outcome
    assert Outcome.OK is ask(late, timeouts=replace(waits, first_token_per_1k=3000.0))[0].outcome


def test_c14_a_connection_that_idled_away_costs_no_answer_and_a_race_one_marked_retry() -> None:
    async def each(replies: list[list[Action]]) -> list[Observation]:
        async with answering(*replies) as server, engine_at(server.url) as engine:
            seen = []
            for _ in range(3):
                seen.append(await complete(engine))
                await asyncio.sleep(0.05)
            return seen

    idled = asyncio.run(each([[chunked(GOOD), Close()]]))
    assert [(Outcome.OK, ())] * 3 == [(seen.outcome, seen.marks) for seen in idled]
    raced = asyncio.run(each([[chunked(GOOD)], [Reset()], [chunked(GOOD)], [Close()], [chunked(GOOD)]]))
    assert [Outcome.OK] * 3 == [seen.outcome for seen in raced]
    assert [(), ("retried",), ("retried",)] == [seen.marks for seen in raced]


def test_c15_a_stream_cut_by_a_load_balancer_is_lost_and_not_sent_again() -> None:
    seen, server = ask([HEAD, piece(sse(chunk([1], "a"), done=False)), Close()])
    assert (Outcome.LOST, 1, "a") == (seen.outcome, len(server.bodies), seen.text)
    framed_well, _ = ask([HEAD, piece(sse(chunk([1], "a"), done=False)), END])
    assert (Outcome.LOST, "the answer ended without a finish reason") == (framed_well.outcome, framed_well.detail)


@pytest.mark.parametrize(("kept", "finish", "reasons"), [
    (8, None, {"OBSERVATION_MISSING"}),
    (8, "stop", {"TRUNCATED", "IDS_INCOMPLETE"}),
    (8, "abort", {"SUBJECT_REFUSED"}),
])  # fmt: skip
def test_c16_a_beginning_of_the_answer_never_passes(
    kept: int, finish: str | None, reasons: set[str], tmp_path: Path
) -> None:
    def cut(events: Events, external: bool) -> None:
        if external:
            del events[kept:]
            events[-1]["choices"][0]["finish_reason"] = finish

    with serving() as server:
        edit_answers(server, cut)
        driven = run_gate(tmp_path, server)
    assert driven.code in (1, 3)
    assert reasons & set(driven.reasons)


def test_c16_where_streams_end_with_done_one_without_it_was_cut() -> None:
    async def twice() -> list[Observation]:
        replies = [[chunked(GOOD)], [chunked(GOOD.replace(b"data: [DONE]\n\n", b""))]]
        async with answering(*replies) as server, engine_at(server.url) as engine:
            return [await complete(engine), await complete(engine)]

    first, second = asyncio.run(twice())
    assert (Outcome.OK, Outcome.LOST) == (first.outcome, second.outcome)
    assert "without [DONE]" in second.detail


@pytest.mark.parametrize(
    ("body", "outcome", "fragment"),
    [
        (b"", Outcome.REFUSED, "no answer: it is empty"),
        (b"{'error': 'bad request'}", Outcome.REFUSED, "bad request"),
        (b'{"error": {"message": "too long", "code": 400}}', Outcome.REFUSED, "too long"),
        (b'{"error": "too long"}', Outcome.REFUSED, "too long"),
        (b'data: {"error": {"message": "too long"}}\n\n', Outcome.REFUSED, "too long"),
        (b'data: {"object": "error", "message": "too long"}\n\n', Outcome.REFUSED, "too long"),
    ],
)
def test_c17_errors_that_a_proxy_passes_on_as_http_200_are_no_answers(
    body: bytes, outcome: Outcome, fragment: str
) -> None:
    kind = "text/event-stream" if body.startswith(b"data") else "application/json"
    seen, _ = ask([page(200, kind, body)])
    assert (outcome, True) == (seen.outcome, fragment in seen.detail)
    empty_stream, _ = ask([page(200, "text/event-stream", b"")])
    assert (Outcome.REFUSED, ("empty-body",)) == (empty_stream.outcome, empty_stream.marks)


def test_c18_token_limits_are_stated_once_and_checked(tmp_path: Path) -> None:
    def stop_early(events: Events, external: bool) -> None:
        del events[-2]
        events[-2]["choices"][0]["finish_reason"] = "length"
        del events[-1]

    with serving() as server:
        edit_answers(server, stop_early)
        driven = run_gate(tmp_path, server)
        assert [] == [body for body in server.bodies if "min_tokens" in body or "max_completion_tokens" in body]
    assert (3, "IDS_INCOMPLETE") == (driven.code, driven.reasons[0])
    assert "ended at its length limit of 16 with 15 token IDs" in driven.stdout


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/octet-stream", ""])
def test_c19_a_stream_under_another_media_type_and_a_whole_reply_are_both_read(kind: str) -> None:
    body = b": ping\n\n" + GOOD
    streamed = HEAD.replace(b"text/event-stream; charset=utf-8", kind.encode())
    parts: list[Action] = [piece(body[:3]), Pause(0.1), piece(body[3:])]
    seen, _ = ask([streamed, *parts, END])
    assert (Outcome.OK, (1, 2), ()) == (seen.outcome, seen.token_ids, seen.marks)
    assert seen.timing is not None
    assert seen.timing.first_token_s is not None
    whole, _ = ask([page(200, kind or "application/json", json.dumps(chunk([1, 2], "ab", "length")).encode())])
    assert (Outcome.OK, (1, 2), "ab") == (whole.outcome, whole.token_ids, whole.text)


def test_c20_a_decoder_that_computed_the_prompt_itself_had_no_transfer() -> None:
    moved: dict[Counter, Any] = {
        Counter.PROMPT_TOKENS: 512.0, Counter.COMPUTED: 512.0, Counter.LOCAL: 0.0, Counter.EXTERNAL: 0.0,
        Counter.DECODE_PROMPT: 512.0, Counter.DECODE_LOCAL: 0.0, Counter.TRANSFERRED: 0.0,
    }  # fmt: skip
    problem = transfer_problem(512, evidence_of(512, moved), Policy())
    assert problem is not None
    assert Reason.TRANSFER_NOT_EXERCISED is problem.reason
    assert None is transfer_problem(512, evidence_of(512, {**moved, Counter.TRANSFERRED: 512.0}), Policy())


def test_c33_logprobs_are_looked_at_before_they_are_used() -> None:
    misnamed = hear(chunk([1, 2], "ab", "length", logprobs=scores([(2, -0.5)], [(1, -0.25)])), usage(2))
    assert "named after other tokens" in str(misnamed.logprob_problem())
    zero = hear(chunk([1, 2], "ab", "length", logprobs=scores([(1, 0.0)], [(2, 0.0)])), usage(2))
    assert "exactly 0.0" in str(zero.logprob_problem())
    good = hear(chunk([1, 2], "ab", "length", logprobs=scores([(1, -0.5)], [(2, -0.25)])), usage(2))
    assert None is good.logprob_problem()
    assert None is compare(good, misnamed).drift
    # IDs as what is new, logprobs as all there is so far.
    rows = [(1, -0.5)], [(2, -0.25)], [(3, -1.0)]
    grown = hear(
        *(
            chunk([number], "x", "length" if number == 3 else None, logprobs=scores(*rows[:number]))
            for number in (1, 2, 3)
        ),
        usage(3),
    )
    assert ((1, 2, 3), (-0.5, -0.25, -1.0)) == (grown.token_ids, grown.logprobs)
    assert (None, None) == (grown.id_problem(), grown.logprob_problem())


@pytest.mark.parametrize("lost", [0, 1], ids=["whole", "without its first token"])
def test_c34_a_prompt_repeated_before_the_answer_is_no_part_of_it(lost: int) -> None:
    text_only = hear(chunk([1], "the whole prompt a"), chunk([2], "b", "length"), usage(2))
    assert (None, (1, 2)) == (text_only.id_problem(), text_only.token_ids)
    prompt = list(SENT)[lost:]
    tops = scores(*([(token, -3.0)] for token in prompt), [(1, -0.5)])
    first = chunk([*prompt, 1], "the prompt a", logprobs=tops)
    seen = hear(first, chunk([2], "b", "length", logprobs=scores([(2, -0.25)])), usage(2))
    assert ((1, 2), (-0.5, -0.25), ("prompt-repeated",)) == (seen.token_ids, seen.logprobs, seen.marks)
    # An answer may quote its prompt: what usage counts is the answer.
    quoted = hear(chunk([*prompt, 1], "the prompt a", "length"), usage(len(prompt) + 1))
    assert ((*prompt, 1), ()) == (quoted.token_ids, quoted.marks)
