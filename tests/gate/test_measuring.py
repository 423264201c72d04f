"""The whole of `kvgate measure` over sockets: the trace really is the same, and what a pool saves really shows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgate.domain.measured import RequestAnswered
from kvgate.sim.dials import Dials
from kvgate.sim.topology import Topology
from kvgate.store.measure_directory import read_measure
from tests.measuring import (
    ARRIVAL,
    config,
    entries,
    figures,
    measure,
    of_parts,
    only_record,
    report,
    sent_by_leg,
    starts,
    trace,
)
from tests.scripted.server import Pool, Script, serving
from tests.sim.driving import deployed, served

SIM = {"deployment": {"model": "sim"}}
CHATS = {
    "kind": "sessions",
    "count": 3,
    "turns": 8,
    "prompt_tokens": 512,
    "increment_tokens": 512,
    "arrival": {"concurrency": 3},
}


def sim_config(folder: Path, name: str, urls: dict[str, str], *engines: str, **more: Any) -> Path:
    return config(folder, name, *(urls[each] for each in engines), **{**SIM, **more})


# -- the same trace ----------------------------------------------------------------------------------------------
def test_every_deployment_gets_the_same_prompts_at_the_same_times_under_other_salts(tmp_path: Path) -> None:
    sent = trace(tmp_path, {"count": 20}, {"name": "c", **CHATS, "turns": 2, "prompt_tokens": 128}, repeats=2)
    with serving() as one, serving() as other:
        ended = measure(sent, config(tmp_path, "one", one.url), config(tmp_path, "other", other.url))
        assert 0 == ended.code, ended.err
        assert [body.keys() for body in one.bodies] == [body.keys() for body in other.bodies]
    legs = sent_by_leg(tmp_path)
    assert [20] * 4 == [len(each) for each in legs]
    assert 1 == len({tuple((each.sha256, each.due_s, each.length) for each in leg) for leg in legs})
    planned = [each for each in read_measure(only_record(tmp_path)).plan.planned if each.part == "p"]
    assert [each.arrives_s for each in planned] == [each.due_s for each in legs[0]]
    # Arrivals are by chance, kept to, and not one at a time.
    begun = {each.leg: each.at for each in starts(tmp_path) if each.part == "p"}
    late = [each.at - begun[each.leg] - (each.due_s or 0.0) for leg in legs for each in leg]
    assert 0.0 <= min(late) <= max(late) < 0.5
    assert 8 == len({each.salt for each in starts(tmp_path)})
    assert 1 == len({each.nonce for each in starts(tmp_path)})


def test_turns_wait_for_the_answer_before(tmp_path: Path) -> None:
    with serving() as server:
        sent = trace(tmp_path, {**CHATS, "turns": 3, "prompt_tokens": 128, "arrival": ARRIVAL})
        assert 0 == measure(sent, config(tmp_path, "one", server.url)).code
    sent_at = {each.request: each.at for leg in sent_by_leg(tmp_path) for each in leg}
    ended_at = {each.request: each.at for each in entries(tmp_path) if isinstance(each, RequestAnswered)}
    for session in range(3):
        for turn in range(2):
            assert ended_at[f"p.{session}.{turn}"] <= sent_at[f"p.{session}.{turn + 1}"]


def test_requests_are_such_as_users_send(tmp_path: Path) -> None:
    with serving() as server:
        assert 0 == measure(trace(tmp_path, {}), config(tmp_path, "one", server.url)).code
        asked = {name for body in server.bodies for name in body}
        assert all(body["stream"] and 4 == body["max_tokens"] for body in server.bodies)
    assert not {"logprobs", "return_token_ids", "return_tokens_as_token_ids"} & asked


def test_a_closed_loop_has_so_many_in_flight_and_no_more(tmp_path: Path) -> None:
    with served(deployed(dials=Dials(latency_s=0.05))) as urls:
        made = sim_config(tmp_path, "one", urls, "engine")
        ended = measure(trace(tmp_path, {"count": 9, "arrival": {"concurrency": 3}}), made)
    assert 0 == ended.code, ended.err
    now, most = 0, 0
    for entry in (each for each in entries(tmp_path) if getattr(each, "part", "") == "p"):
        now += {"request_sent": 1, "request_answered": -1}.get(entry.kind, 0)
        most = max(most, now)
    assert 3 == most
    assert "so many requests at a time" in " ".join(report(ended)["notes"])


# -- nothing left over -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("honoured", [True, False])
def test_nothing_that_an_earlier_run_or_another_deployment_left_is_a_hit(tmp_path: Path, honoured: bool) -> None:
    """Two deployments on one pool, each measured twice, and the whole a second time."""
    pool = Pool()
    script = Script(pool=pool, salts_honoured=honoured)
    salts: dict[str, Any] = {"deployment": {"salts": "honoured" if honoured else "ignored"}}
    sent = trace(tmp_path, {}, repeats=2)
    with serving(script) as one, serving(replace(script)) as other:
        made = config(tmp_path, "one", one.url, **salts), config(tmp_path, "other", other.url, **salts)
        for _ in range(2):
            ended = measure(sent, *made)
            assert 0 == ended.code, ended.err
            for each in figures(ended).values():
                assert 0 == each["tokens"]["local"] + each["tokens"]["external"]
        assert all(("cache_salt" in body) == honoured for body in one.bodies)
    assert pool.keys


def test_salts_that_are_ignored_though_honoured_was_said_are_noticed(tmp_path: Path) -> None:
    with serving(Script(salts_honoured=False)) as server:
        made = config(tmp_path, "one", server.url)
        ended = measure(trace(tmp_path, {}, repeats=2), made)
    assert 3 == ended.code
    assert ["salts_ignored"] == [each["obstacle"] for each in report(ended)["hindrances"]]
    assert "set deployment.salts: ignored" in " ".join(report(ended)["notes"])


# -- what a pool saves -------------------------------------------------------------------------------------------
def test_a_pool_saves_what_another_engine_has_computed(tmp_path: Path) -> None:
    """Turns go to two engines by turns: without a pool each computes what only the other has seen."""
    pair: dict[str, Any] = {"dials": Dials(compute_per_1k_s=0.2), "topology": Topology.PAIR}
    with served(deployed(**pair, fault="no_pool")) as alone, served(deployed(**pair)) as pooled:
        made = [sim_config(tmp_path, name, urls, "a", "b") for name, urls in (("alone", alone), ("pooled", pooled))]
        ended = measure(trace(tmp_path, CHATS), *made)
    assert 0 == ended.code, ended.err
    (saving,) = report(ended)["savings"]
    assert (24, True) == (saving["pairs"], saving["shown"]), saving
    assert saving["ratio"] < 0.8
    assert "pooled answers" in saving["sentence"]
    tokens = {name: each["tokens"] for name, each in figures(ended).items()}
    assert 0 == tokens["alone"]["external"] < tokens["pooled"]["external"]
    assert tokens["pooled"]["computed"] < tokens["alone"]["computed"]
    for each in tokens.values():
        assert each["sent"] == each["counted"] == each["computed"] + each["local"] + each["external"]


def test_two_equal_deployments_show_no_difference(tmp_path: Path) -> None:
    """The control of the test above, on engines whose times hardly hang on this machine."""
    dials, part = Dials(compute_per_1k_s=0.2, latency_per_token_s=0.002), {"prompt_tokens": 512, "arrival": {"rate": 8}}
    with served(deployed(dials=dials)) as one, served(deployed(dials=dials)) as other:
        made = [sim_config(tmp_path, name, urls, "engine") for name, urls in (("one", one), ("other", other))]
        ended = measure(trace(tmp_path, part, repeats=3), *made)
    assert 0 == ended.code, ended.err
    (saving,) = report(ended)["savings"]
    assert (30, False) == (saving["pairs"], saving["shown"]), saving
    # On a busy machine the repeats may disagree; that is said, and nothing is shown either way.
    assert saving["sentence"].startswith(("no difference shown", "undecided"))
    # Streams at some pace: as many gaps as there are tokens after the first.
    assert 30 * 3 == figures(ended)["one"]["gaps"]["count"]


def test_a_deployment_may_be_measured_against_itself(tmp_path: Path) -> None:
    with serving() as server:
        made = config(tmp_path, "one", server.url)
        assert {"one", "one#2"} == figures(measure(trace(tmp_path, {}), made, made)).keys()


def test_a_gateways_engines_are_all_read(tmp_path: Path) -> None:
    with served(deployed(topology=Topology.PD)) as urls:
        made = config(tmp_path, "pd", deployment=of_parts(urls, "gateway", "prefill", "decode"))
        ended = measure(trace(tmp_path, CHATS), made)
    assert 0 == ended.code, ended.err
    figured = figures(ended)["pd"]
    tokens = figured["tokens"]
    assert tokens["sent"] == tokens["counted"] == tokens["transferred"]
    # On one prefill engine the turns before are in its own cache.
    assert 0 < tokens["local"] < tokens["sent"]
    assert figured["answered"] == figured["planned"] == 24


def test_a_deployment_without_a_gateway_is_measured_in_two_legs_and_that_is_told(tmp_path: Path) -> None:
    with served(deployed(topology=Topology.PD)) as urls:
        made = config(tmp_path, "pd", deployment=of_parts(urls, "prefill", "decode"))
        ended = measure(trace(tmp_path, {}), made)
    assert 0 == ended.code, ended.err
    assert "both legs itself" in " ".join(report(ended)["notes"])
    assert 10 == figures(ended)["pd"]["gaps"]["count"] / 3


# -- what cannot be measured -------------------------------------------------------------------------------------
def test_a_deployment_that_dies_on_the_way_leaves_a_record_and_the_other_is_measured(tmp_path: Path) -> None:
    with serving(Script(die_after=8)) as dying, serving() as good:
        made = config(tmp_path, "dying", dying.url), config(tmp_path, "good", good.url)
        ended = measure(trace(tmp_path, {}, repeats=2), *made)
    assert 4 == ended.code, ended.err
    assert "dying: a stopped answering" in " ".join(each["detail"] for each in report(ended)["hindrances"])
    found = figures(ended)
    assert (20, 20) == (found["good"]["answered"], found["good"]["planned"])
    # Three of the eight were the warm-up, one was to see whether salts are kept.
    assert 4 == found["dying"]["answered"]
    assert 20 == sum(found["dying"][name] for name in ("answered", "refused", "lost", "unsent"))


def test_others_who_use_an_engine_are_noticed(tmp_path: Path) -> None:
    with serving(Script(foreign=50)) as server:
        ended = measure(trace(tmp_path, {}), config(tmp_path, "one", server.url))
    assert 3 == ended.code
    assert ["foreign_traffic"] == [each["obstacle"] for each in report(ended)["hindrances"]]


def test_a_deployment_that_does_not_stream_tells_no_first_token(tmp_path: Path) -> None:
    with serving() as server:
        ended = measure(trace(tmp_path, {}), config(tmp_path, "one", server.url, requests={"stream": False}))
    assert 3 == ended.code
    assert ["no_first_token"] == [each["obstacle"] for each in report(ended)["hindrances"]]
    assert None is figures(ended)["one"]["first_token"]


def test_counters_that_cannot_be_read_are_unknown_and_times_are_there(tmp_path: Path) -> None:
    with serving(Script(metrics="missing")) as server:
        ended = measure(trace(tmp_path, {}), config(tmp_path, "one", server.url))
    assert 0 == ended.code, ended.err
    found = figures(ended)["one"]
    assert (None, 10) == (found["tokens"]["local"], found["first_token"]["count"])
