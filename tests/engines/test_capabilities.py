"""What the capability probe finds to survive the way through an entry, where a proxy drops fields with HTTP 200."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvgate.domain.deployment import AnswerGrade, Capabilities, Endpoint, Role
from kvgate.engines.dialects import DIALECTS
from kvgate.engines.discovery import EndpointDiscovery
from kvgate.engines.engine import HttpEngine, RequestSettings, make_client
from kvgate.errors import RemoteError
from tests.engines.loopback import PATIENT
from tests.engines.odd_servers import Events, edit_answers
from tests.scripted.server import Script, ScriptedServer, error, framed, serving

IDS = tuple(range(5, 45))


def asked(server: ScriptedServer, stream: bool = True) -> Capabilities:
    """What is found of a server."""

    async def once() -> Capabilities:
        settings = RequestSettings("m", logprobs=2, stream=stream, ignore_eos=True, run_id="run", timeouts=PATIENT)
        async with make_client(server.url, None, 5.0) as client:
            engine = HttpEngine("a", client, DIALECTS["vllm"], settings)
            endpoint = Endpoint("a", Role.GATEWAY, server.url)
            return await EndpointDiscovery(endpoint, client, engine, DIALECTS["vllm"]).capabilities(IDS)

    return asyncio.run(once())


def dropping(*fields: str) -> Callable[[ScriptedServer], None]:
    """Make the server a proxy that does not pass on these fields of a request."""

    def drop(server: ScriptedServer) -> None:
        def answer(body: dict[str, Any]) -> bytes:
            server.script.completion = None
            kept = {name: value for name, value in body.items() if name not in fields}
            told = framed(*server.completion(kept))
            server.script.completion = answer
            return told

        server.script.completion = answer

    return drop


def test_an_engine_that_drops_nothing_has_nothing_to_be_told_of() -> None:
    for stream in (True, False):
        with serving() as server:
            seen = asked(server, stream)
        assert (AnswerGrade.A, True, True, True) == (
            seen.answer_grade, seen.echoes_prompt_ids, seen.salt, seen.cached_tokens
        )  # fmt: skip
        assert () == seen.details


@pytest.mark.parametrize(
    ("fields", "grade", "salt", "told"),
    [
        (("cache_salt",), AnswerGrade.A, False, "salts are dropped or unknown"),
        (("return_token_ids",), AnswerGrade.A, True, "does not echo the prompt"),
        (("return_token_ids", "return_tokens_as_token_ids", "logprobs"), AnswerGrade.C, True, "no token IDs"),
        (("logprobs",), AnswerGrade.B, True, "no logprobs"),
        (("stream", "stream_options"), AnswerGrade.A, True, "in one piece"),
    ],
    ids=str,
)
def test_what_a_proxy_drops_with_http_200_is_told(
    fields: tuple[str, ...], grade: AnswerGrade, salt: bool, told: str
) -> None:
    with serving() as server:
        dropping(*fields)(server)
        seen = asked(server)
    assert (grade, salt) == (seen.answer_grade, seen.salt)
    assert any(told in detail for detail in seen.details), seen.details


def test_a_reply_without_usage_or_with_another_prompt_is_told() -> None:
    def no_usage(events: Events, external: bool) -> None:
        del events[-1]

    def other_prompt(events: Events, external: bool) -> None:
        events[0]["choices"][0]["prompt_token_ids"] = [1, *IDS]

    for edit, told in ((no_usage, "no usage"), (other_prompt, "saw other prompt tokens")):
        with serving() as server:
            edit_answers(server, edit)
            assert any(told in detail for detail in asked(server).details)
    with serving() as server:
        edit_answers(server, no_usage, done=False)
        assert "the reply is marked no-done-marker" in asked(server).details


def test_a_server_that_refuses_every_salt_does_not_honour_salts() -> None:
    """Servers that refuse fields they do not know refuse an empty salt, too: that alone shows nothing."""
    refusal = framed(*error(400, "unknown field: cache_salt"))
    with serving() as server:
        server.script.completion = lambda body: refusal if "cache_salt" in body else None
        seen = asked(server)
    assert (AnswerGrade.A, False) == (seen.answer_grade, seen.salt)
    assert "requests with a cache_salt are refused" in seen.details


def test_a_server_that_answers_nothing_is_an_error_that_quotes_it() -> None:
    for script, told in ((Script(model="x"), "HTTP 404"), (Script(max_model_len=8), "maximum context length")):
        with serving(replace(script)) as server, pytest.raises(RemoteError, match=told):
            asked(server)


def test_the_probe_is_never_answered_from_an_earlier_probes_cache() -> None:
    with serving() as server:
        asked(server)
        asked(server)
        assert (0, 0) == (server.counts.local, server.counts.external)
