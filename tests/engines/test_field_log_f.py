"""The field log's test inputs F01 to F17, F26 and F27, one test each: what every one demands."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgate.domain.counters import Counter, Counters, Reading, difference
from kvgate.domain.divergence import DivergenceClass, compare
from kvgate.domain.evidence import read_evidence
from kvgate.domain.observation import Observation, Outcome, Usage
from kvgate.domain.policy import Grade
from kvgate.domain.reasons import Reason
from kvgate.engines.dialects import DIALECTS
from kvgate.engines.metrics import parse_counters
from kvgate.engines.wire import Timeouts
from tests.driving import kvgate, write_config
from tests.engines.loopback import (
    END,
    HEAD,
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
    piece,
    scores,
    sse,
    told,
    usage,
)
from tests.engines.odd_servers import ONE_GROUP, Events, edit_answers, found, run_gate
from tests.scripted.server import Script, ScriptedServer, error, framed, serving

GOOD = sse(chunk([1], "a"), chunk([2], "b", "length"), usage(2))


def test_f01_the_last_ids_come_with_the_finish_reason_and_usage_comes_after() -> None:
    last: dict[str, Any] = chunk([12, 13], "c", "length", logprobs=scores([(12, -1.0)], [(13, -2.0)]))
    seen = hear(chunk([10, 11], "ab", logprobs=scores([(10, -0.5)], [(11, -0.25)])), last, usage(4, cached=2))
    assert (Outcome.OK, (10, 11, 12, 13)) == (seen.outcome, seen.token_ids)
    assert (-0.5, -0.25, -1.0, -2.0) == seen.logprobs
    assert Usage(len(SENT), 4, 2) == seen.usage
    assert (None, None, ()) == (seen.id_problem(), seen.logprob_problem(), seen.marks)


def test_f02_no_boundary_changes_what_is_read() -> None:
    body = sse(chunk([10], '令"😀', logprobs=scores([(10, -0.5), (3, -1.5)])), chunk([11], "é", "length"), usage(2))

    async def every_cut() -> list[Observation]:
        replies = [[chunked(body, *cuts)] for cuts in [(), *((cut,) for cut in range(1, len(body)))]]
        async with answering(*replies) as server, engine_at(server.url) as engine:
            return [replace(await complete(engine), timing=None) for _ in replies]

    whole, *parts = asyncio.run(every_cut())
    assert (Outcome.OK, (10, 11), '令"😀é') == (whole.outcome, whole.token_ids, whole.text)
    assert [] == [cut for cut, seen in enumerate(parts, start=1) if seen != whole]


@pytest.mark.parametrize(
    "event",
    [
        {"error": {"message": "KV load failed", "code": 500}},
        {"message": "KV load failed", "code": 500},
        "KV load failed",
    ],
    ids=["nested", "flat", "string"],
)
def test_f03_an_error_after_good_chunks_is_a_refusal_with_its_message(event: object) -> None:
    seen = hear(chunk([1], "a"), chunk([2], "b"), chunk([3], "c"), event)
    assert (Outcome.REFUSED, 200) == (seen.outcome, seen.status)
    assert "KV load failed" in seen.detail


def doubled(events: Events, external: bool) -> None:
    if external:
        events.insert(1, json.loads(json.dumps(events[0])))
        events[1]["choices"][0]["prompt_token_ids"] = None
        del events[-2]
        events[-2]["choices"][0]["finish_reason"] = "length"


def lost(events: Events, external: bool) -> None:
    if external:
        events[1]["choices"][0]["prompt_token_ids"] = events[0]["choices"][0]["prompt_token_ids"]
        del events[0]
        events[-1]["usage"]["completion_tokens"] -= 1
        events[-2]["choices"][0]["finish_reason"] = "stop"


def test_f04_a_doubled_first_token_is_the_proxys_and_no_corruption(tmp_path: Path) -> None:
    with serving() as server:
        edit_answers(server, doubled)
        driven = run_gate(tmp_path, server)
    assert (1, "FIRST_TOKEN") == (driven.code, driven.reasons[0])
    assert not {"DIVERGED", "DIVERGED_INTERMITTENT", "DRIFT"} & found(driven)
    tokens = tuple(range(100, 116))
    one, other = (hear(chunk(list(ids), "x", "length"), usage(16)) for ids in (tokens, (100, *tokens[:-1])))
    divergence = compare(one, other).divergence
    assert divergence is not None
    assert (DivergenceClass.FIRST_TOKEN, 1) == (divergence.kind, divergence.shift)
    assert "FIRST_TOKEN(+1)" in driven.ruling["reasons"][0]["detail"]


def test_f05_a_lost_first_token_is_the_proxys_too(tmp_path: Path) -> None:
    with serving() as server:
        edit_answers(server, lost)
        driven = run_gate(tmp_path, server)
    assert (1, "FIRST_TOKEN") == (driven.code, driven.reasons[0])
    assert "FIRST_TOKEN(-1)" in driven.ruling["reasons"][0]["detail"]
    assert not {"DIVERGED", "DIVERGED_INTERMITTENT", "DRIFT"} & found(driven)


def test_f06_ids_absent_null_and_empty_in_a_chat_reply_are_three_outcomes() -> None:
    def reply(**more: object) -> Observation:
        message = {"role": "assistant", "content": ""}
        choice = {"index": 0, "message": message, "finish_reason": "stop", **more}
        return told({"object": "chat.completion", "choices": [choice], "usage": usage(0)["usage"]})

    absent, null, empty = reply(), reply(token_ids=None), reply(token_ids=[])
    assert (None, None, ()) == (absent.token_ids, null.token_ids, empty.token_ids)
    assert "no token IDs" in str(absent.id_problem())
    assert "no token IDs" in str(null.id_problem())
    assert None is empty.id_problem()


def test_f07_two_empty_answers_are_a_failure_and_not_equal(tmp_path: Path) -> None:
    def emptied(events: Events, external: bool) -> None:
        choice = {"index": 0, "text": "", "token_ids": [], "finish_reason": "stop"}
        events[:-1] = [{"id": "cmpl-1", "choices": [choice]}]
        events[-1]["usage"]["completion_tokens"] = 0

    with serving() as server:
        edit_answers(server, emptied)
        driven = run_gate(tmp_path, server)
    assert (3, True) == (driven.code, "EMPTY" in found(driven))


def test_f08_all_zero_logprobs_are_unusable_and_say_so(tmp_path: Path) -> None:
    def zeroed(events: Events, external: bool) -> None:
        for event in events[:-1]:
            logprobs = event["choices"][0]["logprobs"]
            logprobs["token_logprobs"] = [0.0]
            logprobs["top_logprobs"] = [dict.fromkeys(row, 0.0) for row in logprobs["top_logprobs"]]

    with serving() as server:
        edit_answers(server, zeroed)
        driven = run_gate(tmp_path, server)
    assert (3, "LOGPROBS_UNUSABLE") == (driven.code, driven.reasons[0])
    assert "every logprob is exactly 0.0" in driven.stdout


@pytest.mark.parametrize("names", [("output_ids", "input_ids"), ("completion_token_ids", "prompt_token_ids")])
@pytest.mark.parametrize("choices", [[], None])
def test_f09_ids_in_an_extension_beside_empty_choices_are_recovered(names: tuple[str, str], choices: object) -> None:
    plain = {"id": "c", "choices": [{"index": 0, "text": "ab", "finish_reason": None}]}
    over = {"id": "c", "choices": [{"index": 0, "text": "c", "finish_reason": "length"}]}
    extension = {"id": "c", "choices": choices, "sglext": {names[0]: [[10, 11, 12]], names[1]: list(SENT)}}
    seen = hear(plain, over, extension, usage(3))
    assert (Outcome.OK, (10, 11, 12), True) == (seen.outcome, seen.token_ids, seen.prompt_echoed)
    assert None is seen.id_problem()
    both = hear(chunk([10], "a"), chunk([11, 12], "b", "length"), extension, usage(3))
    assert (None, (10, 11, 12)) == (both.id_problem(), both.token_ids)
    other = hear(chunk([10], "a"), chunk([11, 13], "b", "length"), extension, usage(3))
    assert "differ" in str(other.id_problem())


def test_f10_a_refused_field_makes_the_probe_fall_back_and_say_so(tmp_path: Path) -> None:
    refusal = framed(*error(400, "unsupported parameter: return_token_ids"))
    with serving() as server:
        server.script.completion = lambda body: refusal if "return_token_ids" in body else None
        config = write_config(tmp_path, [server], ONE_GROUP)
        doctor = kvgate(tmp_path, "doctor", "-c", str(config), "--format", "json")
        driven = kvgate(tmp_path, "run", "-c", str(config), "--format", "json", "-q")
    (seen,) = doctor.report["capabilities"]
    assert "refused: return_token_ids" in seen["details"]
    assert seen["token_ids"]  # by the keys of the logprobs
    assert (0, "A") == (driven.code, driven.report["answer_grade"])


@pytest.mark.parametrize("breaking", [Reset(), Close()], ids=["reset", "close"])
def test_f11_a_lost_keep_alive_race_is_retried_once_and_recorded(breaking: Action) -> None:
    async def twice() -> tuple[list[Observation], int]:
        replies: list[list[Action]] = [[chunked(GOOD)], [breaking], [chunked(GOOD)]]
        async with answering(*replies) as server, engine_at(server.url) as engine:
            return [await complete(engine), await complete(engine)], len(server.bodies)

    (first, second), asked = asyncio.run(twice())
    assert ((), ("retried",), 3) == (first.marks, second.marks, asked)
    assert (Outcome.OK, (1, 2)) == (second.outcome, second.token_ids)


def test_f12_heartbeats_during_a_long_prefill_are_no_time_out() -> None:
    # The pauses are longer than the inactivity limit, which does not hold before the first token.
    timeouts = Timeouts(connect=5.0, first_token=0.1, first_token_per_1k=3000.0, inactivity=0.1)
    beats: list[Action] = [piece(b": heartbeat\n\n"), Pause(0.15)] * 5
    seen, server = ask([HEAD, *beats, piece(GOOD), END], timeouts=timeouts)
    assert (Outcome.OK, (1, 2), 1) == (seen.outcome, seen.token_ids, len(server.bodies))
    assert seen.timing is not None
    assert seen.timing.first_token_s is not None
    assert seen.timing.first_token_s >= 0.75


def test_f13_external_hits_belong_to_the_engine_that_had_them() -> None:
    page = "\n".join(
        f'vllm:{name}{{engine="{engine}"}} {value}'
        for engine, moved in (("0", 0), ("1", 1))
        for name, value in (
            ("prompt_tokens_total", "{prompt}" if moved else "900"),
            ("prompt_tokens_created", "1.7e9"),
            ("external_prefix_cache_hits_total", "{hits}" if moved else "64"),
            ("external_prefix_cache_hits_created", "1.8e9"),
        )
    )
    before, after = (
        parse_counters(page.replace("{prompt}", prompt).replace("{hits}", hits), DIALECTS["vllm"])
        for prompt, hits in (("0", "0"), ("512", "448"))
    )
    delta = difference(before, after)
    assert ("1",) == delta.active_engines()
    assert {"0": 0.0, "1": 448.0} == {engine: at[Counter.EXTERNAL_HITS] for engine, at in delta.by_engine.items()}
    assert () == delta.fell


class StuckHits(ScriptedServer):
    """Counts prompts and look-ups, but never a hit; what replies say of cached tokens is true."""

    def metrics(self) -> tuple[int, str, bytes]:
        self.script.metrics = "hits_only"
        status, kind, content = super().metrics()
        lines = [line.rsplit(" ", 1)[0] + " 0.0" if "hits" in line else line for line in content.decode().splitlines()]
        return status, kind, "\n".join(lines).encode()


def test_f14_stuck_hit_counters_against_cached_tokens_are_a_conflict(tmp_path: Path) -> None:
    with serving(Script(), StuckHits) as server:
        driven = run_gate(tmp_path, server, policy={"evidence": "scheduled"})
    assert (3, "INCONCLUSIVE") == (driven.code, driven.ruling["verdict"])
    table = {Counter.LOCAL_HITS: 0.0, Counter.EXTERNAL_HITS: 0.0, Counter.PROMPT_TOKENS: 5376.0}
    none, all_zero = ({name: share * value for name, value in table.items()} for share in (0.0, 1.0))
    before, after = (Counters(tuple(Reading("0", *each) for each in at.items())) for at in (none, all_zero))
    seen = hear(chunk([1], "a", "length"), usage(1, cached=5248))
    evidence = read_evidence(5376, before, after, seen, Grade.ARRIVED)
    assert [Reason.SENSOR_CONFLICT] == [problem.reason for problem in evidence.problems]
    assert "5248 cached tokens, the counters 0 local + 0 external" in evidence.problems[0].detail


def test_f15_look_ups_without_hits_are_not_exercised(tmp_path: Path) -> None:
    with serving(Script(put_lag=1e9)) as server:
        driven = run_gate(tmp_path, server)
    assert (3, "EXTERNAL_MISS") == (driven.code, driven.reasons[0])
    assert "were asked for" in driven.stdout


def test_f16_hits_of_a_preempted_request_prove_nothing(tmp_path: Path) -> None:
    with serving(Script(preempt=True)) as server:
        driven = run_gate(tmp_path, server)
    assert (3, "PREEMPTED") == (driven.code, driven.reasons[0])


class Alternating(ScriptedServer):
    """Several API processes answer for the metrics in turn, each with its own counters."""

    turn = 0

    def metrics(self) -> tuple[int, str, bytes]:
        self.turn += 1
        kept = self.counts
        if self.turn % 2:
            self.counts = replace(kept, prompt=kept.prompt // 2, computed=kept.computed // 2)
        answer = super().metrics()
        self.counts = kept
        return answer


def test_f17_counters_that_saw_are_unreliable(tmp_path: Path) -> None:
    def page(value: int) -> str:
        return f'vllm:prompt_tokens_total{{engine="0"}} {value}\n'

    first, second, third = (parse_counters(page(value), DIALECTS["vllm"]) for value in (40, 17, 40))
    assert ("prompt_tokens of engine 0 fell from 40 to 17",) == difference(first, second).fell
    assert () == difference(second, third).fell
    with serving(Script(), Alternating) as server:
        driven = run_gate(tmp_path, server)
    assert 3 == driven.code
    assert {"COUNTER_RESET", "FOREIGN_TRAFFIC", "EVIDENCE_MISSING"} & set(driven.reasons)


def decaying(lasts: int) -> type[ScriptedServer]:
    """A server that is right for so many of the gate's requests, then wrong for all, whatever they reuse."""

    class Decaying(ScriptedServer):
        def answer(self, ids: list[int], count: int, external: int, reused: int) -> tuple[list[int], list[list[Any]]]:
            asked = sum("kvgate-" in str(body.get("cache_salt")) for body in self.bodies)
            return super().answer(ids if asked <= lasts else [*ids, 5], count, external, reused)

    return Decaying


FOUR_TIERS: dict[str, Any] = {"gate": {"tiers": [400, 500, 600, 700], "groups_per_tier": 3, "boundaries": False}}


@pytest.mark.parametrize("sentinel", [True, False])
def test_f26_an_engine_that_goes_wrong_for_all_is_found_by_its_own_earlier_answers(
    tmp_path: Path, sentinel: bool
) -> None:
    # The second tier's last request is the 60th, or the 57th: no group has seen both the right and the wrong engine.
    lasts = 2 + 2 + 2 * 3 * 6 + 1 if sentinel else 2 + 2 * 3 * 6
    with serving(Script(), decaying(lasts)) as server:
        driven = run_gate(tmp_path, server, gate={**FOUR_TIERS["gate"], "sentinel": sentinel})
    if not sentinel:
        # The control: every group agrees with itself, and nothing else is looked at.
        assert 0 == driven.code
        return
    assert (1, "ANSWERS_CHANGED") == (driven.code, driven.reasons[0])
    onset = driven.ruling["onset"]
    assert onset["right_until"] <= lasts < onset["wrong_from"]
    assert onset["wrong_from"] - onset["right_until"] <= 3 * 6 + 1


def test_f26_an_engine_that_goes_wrong_before_the_first_group_is_found_by_what_was_asked_before(tmp_path: Path) -> None:
    # Two requests of the warm-up, two of the sentinel: every group sees the wrong engine only, and agrees with itself.
    with serving(Script(), decaying(4)) as server:
        driven = run_gate(tmp_path, server)
    assert (1, ["ANSWERS_CHANGED"]) == (driven.code, driven.reasons)
    assert 4 == driven.ruling["onset"]["right_until"]
    assert {"PASS"} == {group["verdict"] for group in driven.ruling["groups"]}


@pytest.mark.parametrize("lasts", [4, 5, 33, 60, 77, 78])
def test_f26_wherever_it_goes_wrong_it_does_not_pass(tmp_path: Path, lasts: int) -> None:
    with serving(Script(), decaying(lasts)) as server:
        driven = run_gate(tmp_path, server, **FOUR_TIERS)
    assert driven.code in (1, 3)
    assert {"ANSWERS_CHANGED", "UNSTABLE"} & set(driven.reasons)
    if driven.ruling["onset"] is not None:
        assert driven.ruling["onset"]["right_until"] <= lasts < driven.ruling["onset"]["wrong_from"]


def test_f27_another_requests_nonce_is_a_leak(tmp_path: Path) -> None:
    with serving(Script(fault="leak", fault_after=3)) as server:
        config = write_config(tmp_path, [server], {"gate": {"tiers": [400], "groups_per_tier": 2, "seed": 7}})
        plan = kvgate(tmp_path, "plan", "-c", str(config), "--format", "json")
        server.others_nonce = plan.report["groups"][0]["nonce"]
        driven = kvgate(tmp_path, "run", "-c", str(config), "--format", "json", "-q")
    assert (1, "LEAK") == (driven.code, driven.reasons[0])
