"""The embedded engine as the ``openai`` package sees it: what users write against vLLM works here too."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from kvgate.sim.deployment import Deployment
from tests.sim.driving import answer_at, deployed, prompt, served, small

TEXT = "The codeword of amber is cedar elm. The codeword of basil is fir oak. The codeword of amber is"
IDS = prompt(400)
EXTRA = {"return_token_ids": True, "return_tokens_as_token_ids": True}


@pytest.fixture(scope="module")
def deployment() -> Deployment:
    return deployed(small("dense", speculation=3), ranks=2)


@pytest.fixture(scope="module")
def client(deployment: Deployment) -> Iterator[OpenAI]:
    with (
        served(deployment) as urls,
        OpenAI(base_url=f"{urls['engine']}/v1", api_key="none", max_retries=0, timeout=60.0) as made,
    ):
        yield made


def chat(text: str) -> list[Any]:
    return [{"role": "system", "content": "Answer."}, {"role": "user", "content": [{"type": "text", "text": text}]}]


def test_models_are_listed(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert ("sim", 10240) == (model.id, model.to_dict()["max_model_len"])


def test_a_completion_of_text_tells_text_and_usage(client: OpenAI) -> None:
    reply = client.completions.create(model="sim", prompt=TEXT, max_tokens=3, temperature=0)
    assert " cedar elm." == reply.choices[0].text
    assert ("length", None) == (reply.choices[0].finish_reason, reply.choices[0].logprobs)
    assert reply.usage is not None
    assert (21, 3, 24) == (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens)


def test_a_completion_of_token_ids_tells_ids_and_logprobs(client: OpenAI) -> None:
    reply = client.completions.create(model="sim", prompt=IDS, max_tokens=8, logprobs=4, extra_body=EXTRA)
    choice = reply.choices[0]
    told = choice.to_dict()
    assert answer_at(IDS) == told["token_ids"]
    assert IDS == told["prompt_token_ids"]
    logprobs = choice.logprobs
    assert logprobs is not None
    assert [f"token_id:{token}" for token in answer_at(IDS)] == logprobs.tokens
    assert logprobs.top_logprobs is not None
    assert logprobs.token_logprobs is not None
    assert [4] * 8 == [len(row) for row in logprobs.top_logprobs]
    for token, value, row in zip(logprobs.tokens or [], logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert row[token] == value == max(row.values()) <= 0.0
    assert list(range(8)) == logprobs.text_offset


def test_a_streamed_completion_adds_up_to_the_whole_one(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "sim", "prompt": IDS, "max_tokens": 40, "logprobs": 2, "extra_body": EXTRA}
    whole = client.completions.create(**asked)
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    *told, last = chunks
    assert [] == last.choices
    assert last.usage is not None
    assert last.usage.to_dict() == {
        **(whole.usage.to_dict() if whole.usage else {}),
        "prompt_tokens_details": {"cached_tokens": 384},
    }
    choices = [chunk.choices[0] for chunk in told]
    pieces = [choice.to_dict()["token_ids"] for choice in choices]
    assert whole.choices[0].to_dict()["token_ids"] == [token for piece in pieces for token in piece]
    assert last.usage.completion_tokens == sum(len(piece) for piece in pieces)
    # A draft of three tokens is accepted up to a point, so a piece carries one to four.
    assert {1, 2, 3, 4} == {len(piece) for piece in pieces}
    assert whole.choices[0].text == "".join(choice.text for choice in choices)
    assert whole.choices[0].logprobs is not None
    streamed = [value for choice in choices if choice.logprobs for value in choice.logprobs.token_logprobs or []]
    assert whole.choices[0].logprobs.token_logprobs == streamed
    assert [None] * (len(choices) - 1) + ["length"] == [choice.finish_reason for choice in choices]
    assert IDS == choices[0].to_dict()["prompt_token_ids"]
    assert all("prompt_token_ids" not in choice.to_dict() for choice in choices[1:])


def test_a_stream_tells_no_usage_unless_asked(client: OpenAI) -> None:
    chunks = list(client.completions.create(model="sim", prompt=IDS, max_tokens=4, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_a_chat_tells_content_logprobs_and_ids(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model="sim", messages=chat(TEXT), max_completion_tokens=4, logprobs=True, top_logprobs=3, extra_body=EXTRA
    )
    choice = reply.choices[0]
    assert "assistant" == choice.message.role
    assert choice.message.content
    told: Any = choice.to_dict()["token_ids"]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert [f"token_id:{token}" for token in told] == [entry.token for entry in choice.logprobs.content]
    assert [3] * 4 == [len(entry.top_logprobs) for entry in choice.logprobs.content]
    assert all(entry.token == entry.top_logprobs[0].token for entry in choice.logprobs.content)
    assert reply.usage is not None
    prompt_ids: Any = reply.to_dict()["prompt_token_ids"]
    assert len(prompt_ids) == reply.usage.prompt_tokens


def test_a_streamed_chat_adds_up_to_the_whole_one(client: OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "sim",
        "messages": chat(TEXT),
        "max_tokens": 12,
        "logprobs": True,
        "top_logprobs": 2,
        "extra_body": EXTRA,
    }
    whole = client.chat.completions.create(**asked)
    first, *told, last = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert ("assistant", "") == (first.choices[0].delta.role, first.choices[0].delta.content)
    assert whole.to_dict()["prompt_token_ids"] == first.to_dict()["prompt_token_ids"]
    assert ([], 12) == (last.choices, last.usage.completion_tokens if last.usage else None)
    choices = [chunk.choices[0] for chunk in told]
    assert whole.choices[0].message.content == "".join(choice.delta.content or "" for choice in choices)
    ids = [token for choice in choices for token in choice.to_dict()["token_ids"]]
    assert whole.choices[0].to_dict()["token_ids"] == ids
    entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content or []]
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.content == entries
    assert "length" == choices[-1].finish_reason


def test_a_salt_keeps_prompts_apart_and_a_header_pins_the_rank(client: OpenAI, deployment: Deployment) -> None:
    ids = prompt(300, seed=5)

    def cached(salt: str, rank: int) -> int:
        reply = client.completions.create(
            model="sim",
            prompt=ids,
            max_tokens=1,
            extra_body={"cache_salt": salt},
            extra_headers={"X-data-parallel-rank": str(rank)},
        )
        assert reply.usage is not None
        assert reply.usage.prompt_tokens_details is not None
        assert rank == deployment.nodes["engine"].deeds[-1].rank
        return reply.usage.prompt_tokens_details.cached_tokens or 0

    assert [0, 288, 0, 288] == [cached("a", 0), cached("a", 0), cached("b", 0), cached("b", 1)]
    last = deployment.nodes["engine"].deeds[-1]
    assert (0, 288) == (last.local, last.external), "the other rank has no cache of its own, so the pool serves it"


def test_transfer_parameters_come_back_for_a_remote_decode(client: OpenAI) -> None:
    asked = {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}
    reply = client.completions.create(model="sim", prompt=IDS, max_tokens=1, extra_body=asked).to_dict()
    params = reply["kv_transfer_params"]
    assert isinstance(params, dict)
    assert (True, False) == (params["do_remote_prefill"], params["do_remote_decode"])
    assert (400, [list(range(50))]) == (params["remote_num_tokens"], params["remote_block_ids"])
    assert {"remote_engine_id", "remote_request_id", "remote_host", "remote_port"} <= set(params)


def test_unknown_fields_are_ignored(client: OpenAI) -> None:
    usual = client.completions.create(model="sim", prompt=IDS, max_tokens=4).choices[0].text
    odd = client.completions.create(model="sim", prompt=IDS, max_tokens=4, extra_body={"no_such_field": [1]})
    assert usual == odd.choices[0].text


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"prompt": prompt(10300)}, "maximum context length is 10240 tokens"),
    ({"prompt": prompt(10236), "max_tokens": 5}, "maximum context length is 10240 tokens"),
    ({"prompt": [5, -1]}, "outside the vocabulary"),
    ({"prompt": [5, 4096]}, "outside the vocabulary"),
    ({"prompt": []}, "empty"),
    ({"prompt": {"no": "prompt"}}, "invalid literal"),
    ({"logprobs": 21}, "at most 20"),
    ({"extra_body": {"cache_salt": ""}}, "cache_salt"),
    ({"extra_headers": {"X-data-parallel-rank": "2"}}, "no data-parallel rank 2"),
    ({"extra_headers": {"X-data-parallel-rank": "two"}}, "invalid literal"),
)


@pytest.mark.parametrize(("change", "expected"), REFUSED)
def test_what_cannot_be_answered_is_a_bad_request(client: OpenAI, change: dict[str, Any], expected: str) -> None:
    with pytest.raises(openai.BadRequestError, match=expected) as refused:
        client.completions.create(**{"model": "sim", "prompt": IDS, "max_tokens": 4, **change})
    assert (400, "BadRequestError") == (refused.value.status_code, refused.value.type)


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="The model `other` does not exist") as refused:
        client.completions.create(model="other", prompt=IDS)
    assert (404, "NotFoundError") == (refused.value.status_code, refused.value.type)


def test_a_chat_without_messages_is_a_bad_request(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="messages"):
        client.chat.completions.create(model="sim", messages="none")  # type: ignore[arg-type]
