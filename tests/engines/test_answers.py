"""What replies of every shape seen in the field are read as (field log C and F01-F09)."""

import math

import pytest

from kvgate.domain.observation import Observation, Outcome, Usage
from tests.engines.loopback import SENT, chunk, hear, scores, told, usage


def test_the_last_chunk_may_carry_ids_and_the_finish_reason() -> None:
    """F01: then come usage with empty choices and [DONE]."""
    seen = hear(chunk([10, 11], "a"), chunk([12], "b", "length"), usage(3, cached=2))
    assert Outcome.OK is seen.outcome
    assert (10, 11, 12) == seen.token_ids
    assert "ab" == seen.text
    assert "length" == seen.finish_reason
    assert Usage(len(SENT), 3, 2) == seen.usage
    assert () == seen.marks
    assert seen.id_problem() is None


def test_several_ids_per_chunk_and_ids_on_chunks_without_text() -> None:
    """C01 and C05: chunks are no tokens."""
    seen = hear(chunk([1, 2, 3]), chunk([], "x"), chunk([4]), chunk([5], "y", "stop"), usage(5))
    assert (1, 2, 3, 4, 5) == seen.token_ids
    assert seen.id_problem() is None


def test_the_last_usage_wins() -> None:
    """C05: with continuous usage every chunk carries one."""
    first, last = chunk([1], "a"), chunk([2], "b", "length")
    first["usage"] = {"prompt_tokens": 4, "completion_tokens": 1}
    last["usage"] = {"prompt_tokens": 4, "completion_tokens": 2}
    assert Usage(4, 2, None) == hear(first, last).usage


def test_a_later_null_usage_does_not_erase_an_earlier_one() -> None:
    last: dict[str, object] = {"choices": [], "usage": None}
    assert Usage(4, 1, 0) == hear(chunk([1], "a", "length"), usage(1, cached=0), last).usage


def test_comments_and_heartbeats_are_passed_over() -> None:
    seen = hear(b": ping\n\n", b":\n\n", chunk([1], "a"), b": ping\n\n", b"event: ping\n\n", chunk([2], "b", "length"))
    assert (seen.outcome, seen.token_ids) == (Outcome.OK, (1, 2))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_of_the_sse_standard_is_understood(end: bytes) -> None:
    body = b'data: {"choices":[{"text":"a","token_ids":[1],"finish_reason":"length"}]}\n\n'
    seen = hear(body.replace(b"\n", end))
    assert (seen.outcome, seen.token_ids) == (Outcome.OK, (1,))


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085"])
def test_other_line_separators_inside_a_string_split_nothing(separator: str) -> None:
    """They are line ends for Python's splitlines, not for SSE; servers send them unescaped."""
    event = f'data: {{"choices":[{{"text":"a{separator}b","token_ids":[1],"finish_reason":"stop"}}]}}\n\n'
    seen = hear(event.encode())
    assert (Outcome.OK, f"a{separator}b") == (seen.outcome, seen.text)


def test_an_event_without_the_space_after_data_is_read() -> None:
    seen = hear(
        b'data:{"choices":[{"text":"a","token_ids":[1],"finish_reason":"stop"}]}\n\ndata:[DONE]\n\n', done=False
    )
    assert (seen.outcome, seen.token_ids, seen.marks) == (Outcome.OK, (1,), ())


def test_a_missing_done_is_marked_and_nothing_worse() -> None:
    seen = hear(chunk([1], "a", "length"), usage(1), done=False)
    assert (seen.outcome, seen.marks) == (Outcome.OK, ("no-done-marker",))


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "pool is gone", "code": 500}},
        {"error": "pool is gone"},
        {"object": "error", "message": "pool is gone", "code": 500},
        {"message": "pool is gone", "type": "InternalServerError", "code": 500},
        {"detail": "pool is gone"},
        {"detail": [{"loc": ["body"], "msg": "pool is gone"}]},
        "pool is gone",
    ],
    ids=["nested", "string-member", "flat-vllm", "flat", "detail", "detail-list", "string"],
)
def test_an_error_inside_a_stream_is_a_refusal_that_keeps_the_message(error: object) -> None:
    """F03: HTTP 200, three good chunks, then an error."""
    seen = hear(chunk([1], "a"), chunk([2], "b"), chunk([3], "c"), error)
    assert Outcome.REFUSED is seen.outcome
    assert 200 == seen.status
    assert "pool is gone" in seen.detail
    assert "abc" == seen.text


@pytest.mark.parametrize("streamed", [True, False])
def test_ids_absent_null_and_empty_are_three_things(streamed: bool) -> None:
    """F06: absent and null say that the server gives no IDs; [] says that there were none."""

    def read(reply: dict[str, object]) -> Observation:
        return hear(reply, usage(0)) if streamed else told({**reply, "usage": usage(0)["usage"]})

    absent: dict[str, object] = {"choices": [{"text": "a", "finish_reason": "stop"}]}
    assert None is read(absent).token_ids
    assert None is read(chunk(None, "a", "stop")).token_ids
    assert read(chunk([], "a", "stop")).token_ids == ()
    assert "no token IDs" in str(read(absent).id_problem())
    assert None is read(chunk([], "a", "stop")).id_problem()


def test_an_answer_without_any_token_is_kept_as_such() -> None:
    """F07: empty is an answer to be judged, not a failure of the exchange."""
    seen = hear(chunk([], "", "stop"), usage(0))
    assert (seen.outcome, seen.token_ids, seen.text) == (Outcome.OK, (), "")


def test_a_whole_json_reply_is_read_like_a_stream() -> None:
    tops = scores([(10, -0.5), (3, -1.5)], [(11, -0.25), (4, -2.0)])
    reply = chunk([10, 11], "ab", "length", logprobs=tops, prompt_token_ids=list(SENT))
    seen = told({**reply, "usage": usage(2, cached=1)["usage"]})
    assert Outcome.OK is seen.outcome
    assert (10, 11) == seen.token_ids
    assert (-0.5, -0.25) == seen.logprobs
    assert ((10, 3), (11, 4)) == seen.top_ids
    assert ((-0.5, -1.5), (-0.25, -2.0)) == seen.top_logprobs
    assert True is seen.prompt_echoed
    assert Usage(len(SENT), 2, 1) == seen.usage
    assert () == seen.marks


@pytest.mark.parametrize(("echo", "expected"), [(list(SENT), True), ([*SENT, 9], False), ([], False), (None, None)])
def test_an_echoed_prompt_is_checked(echo: object, expected: bool | None) -> None:
    assert expected is hear(chunk([1], "a", "stop", prompt_token_ids=echo), usage(1)).prompt_echoed


def test_ids_come_from_the_logprob_keys_where_there_are_no_others() -> None:
    """C06: return_tokens_as_token_ids without return_token_ids."""
    seen = hear(
        chunk(None, "a", logprobs=scores([(10, -0.5), (3, -1.5)])),
        chunk(None, "b", "length", logprobs=scores([(11, -0.25), (4, -2.0)])),
        usage(2),
    )
    assert (10, 11) == seen.token_ids
    assert seen.logprob_problem() is None


def test_plain_text_keys_give_no_ids() -> None:
    tops = {"tokens": [" a"], "token_logprobs": [-0.5], "top_logprobs": [{" a": -0.5}]}
    seen = hear(chunk(None, "a", "length", logprobs=tops), usage(1))
    assert None is seen.token_ids


def test_all_zero_logprobs_are_unusable() -> None:
    """F08: seen with speculative decoding."""
    tops = scores([(1, 0.0), (2, 0.0)], [(3, 0.0), (4, 0.0)])
    seen = hear(chunk([1, 3], "ab", "length", logprobs=tops), usage(2))
    assert "every logprob is exactly 0.0" == seen.logprob_problem()


def test_fewer_logprobs_than_ids_are_a_problem_of_the_reply() -> None:
    """C06: 566 IDs and 565 logprobs."""
    seen = hear(chunk([1, 2], "ab", "length", logprobs=scores([(1, -0.5)])), usage(2))
    assert "1 logprobs for 2 token IDs" in str(seen.logprob_problem())


@pytest.mark.parametrize("bad", [None, math.nan, -math.inf])
def test_logprobs_that_are_no_numbers_are_kept_as_none(bad: float | None) -> None:
    seen = hear(chunk([1, 2], "ab", "length", logprobs=scores([(1, -0.5), (5, bad)], [(2, bad)])), usage(2))
    assert (-0.5, None) == seen.logprobs
    assert ((-0.5, None), (None,)) == seen.top_logprobs
    assert seen.has_non_finite_logprobs()


def test_a_recomputed_marker_is_kept() -> None:
    """C10: pairs with a recomputed side are void."""
    assert hear(chunk([1], "a", "stop", stop_reason="recomputed"), usage(1)).marks == ("recomputed",)


def test_a_stream_cut_without_a_finish_reason_is_lost() -> None:
    """C16: a prefix of an answer is no answer, with [DONE] or without."""
    for done in (True, False):
        seen = hear(chunk([1], "a"), chunk([2], "b"), done=done)
        assert Outcome.LOST is seen.outcome
        assert "finish reason" in seen.detail


def test_an_empty_stream_is_a_refusal_that_says_so() -> None:
    for seen in (hear(), hear(done=False)):
        assert (Outcome.REFUSED, ("empty-body",)) == (seen.outcome, seen.marks)


def test_a_count_that_contradicts_usage_is_a_problem_of_the_reply() -> None:
    seen = hear(chunk([1, 2], "ab", "length"), usage(3))
    assert Outcome.OK is seen.outcome
    assert "2 token IDs, its usage says 3" in str(seen.id_problem())


@pytest.mark.parametrize(
    "reply",
    [
        {"choices": "none"},
        {"choices": ["text"]},
        {"choices": {"0": {}}},
        {"choices": [None]},
        {"choices": [{"text": "a", "token_ids": [None], "finish_reason": "stop"}]},
        {"choices": [{"text": "a", "token_ids": ["x"], "finish_reason": "stop"}]},
        {"choices": [{"text": "a", "token_ids": [1], "logprobs": {"token_logprobs": 3}, "finish_reason": "stop"}]},
        {"choices": [{"text": "a", "logprobs": {"token_logprobs": [-1.0], "top_logprobs": [[1]]}}]},
        {"choices": [{"text": "a", "logprobs": {"token_logprobs": [-1.0], "top_logprobs": [{"token_id:x": 1}]}}]},
        {"choices": [{"text": "a", "logprobs": {"tokens": ["token_id:x"], "token_logprobs": [-1.0]}}]},
        {"choices": [], "usage": {"prompt_tokens": "many", "completion_tokens": 1}},
        {"choices": [], "usage": {"prompt_tokens": [4], "completion_tokens": 1}},
        {"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": "all"}}},
        {"unexpected": 1},
    ],
    ids=lambda reply: str(reply)[:60],
)
@pytest.mark.parametrize("streamed", [True, False])
def test_a_reply_of_the_wrong_shape_is_a_refusal_and_no_crash(reply: object, streamed: bool) -> None:
    """A27: streams with null token IDs were seen; whatever the shape, the exchange ends in an observation."""
    seen = hear(reply) if streamed else told(reply)
    assert Outcome.REFUSED is seen.outcome
    assert "cannot be read" in seen.detail


def test_halves_of_a_character_in_json_escapes_can_still_be_written_down() -> None:
    """Gateways that cut text by UTF-16 units send lone surrogates; a record in UTF-8 cannot hold them."""
    halves = (b'data: {"choices":[{"text":"\\ud83d","token_ids":[1]}]}\n\n',)
    rest = b'data: {"choices":[{"text":"\\ude00","token_ids":[2],"finish_reason":"stop"}]}\n\n'
    seen = hear(*halves, rest)
    assert Outcome.OK is seen.outcome
    assert "\U0001f600" == seen.text
    cut = hear(b'data: {"choices":[{"text":"\\ud83d","token_ids":[1],"finish_reason":"stop"}]}\n\n')
    assert cut.text.encode("utf-8")
    refused = hear(b'data: {"error":"half \\ud83d of it"}\n\n')
    assert refused.detail.encode("utf-8")
