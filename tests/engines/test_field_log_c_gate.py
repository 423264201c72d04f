"""The field log's traps in resets, counters and loads (C21 to C38), one test each, most by the whole gate."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kvgate.domain.counters import Counter, Counters, Reading, difference
from kvgate.domain.evidence import read_evidence
from kvgate.domain.history import DropOutcome
from kvgate.domain.observation import Outcome
from kvgate.domain.policy import Grade
from kvgate.domain.reasons import Reason
from kvgate.engines.dialects import DIALECTS
from kvgate.engines.metrics import parse_counters
from kvgate.ports import DropReply
from tests.engines.loopback import PATIENT, Action, Pause, answering, ask, engine_at, page
from tests.engines.odd_servers import Events, edit_answers, found, run_gate
from tests.scripted.server import Pool, Script, ScriptedServer, error, serving

VLLM = DIALECTS["vllm"]


def test_c21_a_reset_that_left_a_tier_serving_is_found_out(tmp_path: Path) -> None:
    with serving(Script(reset="lie")) as server:
        driven = run_gate(tmp_path, server)
    assert (3, "LOCAL_NOT_DROPPED") == (driven.code, driven.reasons[0])


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, b'{"success":true}', DropOutcome.DROPPED),
        (200, b'{"success":false}', DropOutcome.REFUSED),
        (200, b"", DropOutcome.UNKNOWN),
        (200, b"{}", DropOutcome.UNKNOWN),
        (200, b'{"success":"true"}', DropOutcome.UNKNOWN),
        (200, b"[" * 100_000, DropOutcome.UNKNOWN),
        (400, b"busy", DropOutcome.REFUSED),
        (404, b"", DropOutcome.UNAVAILABLE),
    ],
)
def test_c22_only_a_body_that_says_so_is_a_reset(status: int, body: bytes, outcome: DropOutcome) -> None:
    async def drop() -> DropReply:
        async with answering([page(status, "application/json", body)]) as server, engine_at(server.url) as engine:
            return await engine.drop_local()

    assert outcome is asyncio.run(drop()).outcome


class Reluctant(ScriptedServer):
    """Refuses to drop its cache right after a request and does so when asked again."""

    asked = 0

    def reset(self) -> tuple[int, str, bytes]:
        self.asked += 1
        if self.asked % 2:
            return error(400, "requests are still running")
        return super().reset()


def test_c23_a_reset_refused_right_after_a_request_is_asked_for_again(tmp_path: Path) -> None:
    with serving(Script(), Reluctant) as server:
        driven = run_gate(tmp_path, server)
    assert (0, "PASS") == (driven.code, driven.ruling["verdict"])


def test_c24_old_and_new_names_on_one_page_are_one_counter() -> None:
    names = ("vllm:gpu_prefix_cache_hits", "vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits")
    lines = [f'{name}{{engine="0"}} 64\n{name.removesuffix("_total")}_created{{engine="0"}} 1.7e9' for name in names]
    lines.append('vllm:prefix_cache_hits_total{engine="0"} 65')
    for order in (lines, lines[::-1]):
        assert {("0", Counter.LOCAL_HITS): 65.0} == parse_counters("\n".join(order), VLLM).table()


def test_c25_pages_of_several_processes_are_no_steady_counters() -> None:
    older = Counters((Reading("0", Counter.PROMPT_TOKENS, 40.0),), started=1000.0)
    newer = Counters((Reading("0", Counter.PROMPT_TOKENS, 40.0),), started=1200.0)
    assert ("the server process was started anew",) == difference(older, newer).fell
    assert ("another server process answered than before",) == difference(newer, older).fell
    assert () == difference(older, older).fell


def test_c26_more_hits_than_tokens_came_from_the_cache_are_a_conflict() -> None:
    moved = {
        Counter.PROMPT_TOKENS: 512.0, Counter.COMPUTED: 64.0, Counter.LOCAL: 448.0, Counter.EXTERNAL: 0.0,
        Counter.LOCAL_HITS: 896.0, Counter.PREEMPTIONS: 1.0,
    }  # fmt: skip
    before = Counters(tuple(Reading("0", name, 0.0) for name in moved))
    after = Counters(tuple(Reading("0", name, value) for name, value in moved.items()))
    reasons = {problem.reason for problem in read_evidence(512, before, after, None, Grade.ARRIVED).problems}
    assert {Reason.SENSOR_CONFLICT, Reason.PREEMPTED} == reasons


def test_c27_counters_that_stand_still_prove_nothing(tmp_path: Path) -> None:
    with serving(Script(metrics="stuck")) as server:
        driven = run_gate(tmp_path, server)
    assert (3, "EVIDENCE_MISSING") == (driven.code, driven.reasons[0])


def test_c28_local_and_external_hits_are_counted_apart_and_per_engine() -> None:
    def text(local: int, external: int) -> str:
        return "".join(
            f'vllm:{name}_total{{engine="{engine}",model_name="m"}} {value}\n'
            for engine, values in (("0", (7, 9)), ("1", (local, external)))
            for name, value in zip(("prefix_cache_hits", "external_prefix_cache_hits"), values, strict=True)
        )

    delta = difference(parse_counters(text(0, 0), VLLM), parse_counters(text(32, 416), VLLM))
    assert {Counter.LOCAL_HITS: 0.0, Counter.EXTERNAL_HITS: 0.0} == delta.by_engine["0"]
    assert {Counter.LOCAL_HITS: 32.0, Counter.EXTERNAL_HITS: 416.0} == delta.by_engine["1"]


def test_c29_a_server_that_dies_is_remote_trouble_and_a_new_process_is_seen(tmp_path: Path) -> None:
    with serving(Script(die_after=6)) as server:
        driven = run_gate(tmp_path, server)
    assert (4, "ENDPOINT_LOST") == (driven.code, driven.reasons[0])
    page_of = 'vllm:prompt_tokens_total{{engine="0"}} {}\nprocess_start_time_seconds {}\n'
    before, after = (parse_counters(page_of.format(*each), VLLM) for each in ((40, 1.7e9), (52, 1.7e9 + 60)))
    assert ("the server process was started anew",) == difference(before, after).fell


def test_c30_a_pool_that_is_never_written_is_not_exercised(tmp_path: Path) -> None:
    class NeverWritten(dict[str, float]):
        def setdefault(self, key: str, default: float = 0.0, /) -> float:
            return default if key else 0.0

    with serving(Script(pool=Pool(NeverWritten()))) as server:
        driven = run_gate(tmp_path, server)
    assert (3, "EXTERNAL_MISS") == (driven.code, driven.reasons[0])


def test_c32_an_asynchronous_put_is_waited_for(tmp_path: Path) -> None:
    with serving(Script(put_lag=0.3)) as server:
        driven = run_gate(tmp_path, server, limits={"settle_s": 0.05, "put_deadline_s": 20.0, "evidence_s": 0.1})
    assert (0, "PASS") == (driven.code, driven.ruling["verdict"])
    assert "RETRIED" in found(driven)


def test_c35_an_answer_that_never_comes_is_given_up() -> None:
    silent: list[Action] = [Pause(30)]
    begun = time.monotonic()
    seen, server = ask(silent, timeouts=replace(PATIENT, first_token=0.3))
    assert (Outcome.LOST, 1) == (seen.outcome, len(server.bodies))
    assert "no first token within 0.3 s" == seen.detail
    assert time.monotonic() - begun < 10


def test_c36_slow_hits_are_no_fault(tmp_path: Path) -> None:
    def slow(events: Events, external: bool) -> None:
        time.sleep(0.2 if external else 0.0)

    with serving() as server:
        edit_answers(server, slow)
        driven = run_gate(tmp_path, server)
    assert (0, "PASS") == (driven.code, driven.ruling["verdict"])


def test_c37_keys_that_exist_and_cannot_be_got_are_a_failed_load(tmp_path: Path) -> None:
    with serving(Script(fault="load_failed")) as server:
        driven = run_gate(tmp_path, server)
    assert (3, "LOAD_FAILED") == (driven.code, driven.reasons[0])


NEVER = ("tools", "response_format", "structured_outputs", "guided_json", "guided_grammar", "stop", "messages", "echo")


def test_c38_no_request_asks_for_structured_output(tmp_path: Path) -> None:
    with serving() as server:
        driven = run_gate(tmp_path, server)
        assert len(server.bodies) > 8
        assert [] == [json.dumps(body)[:200] for body in server.bodies if any(name in body for name in NEVER)]
    assert 0 == driven.code
