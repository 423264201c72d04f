"""What engines tell while a run lasts: what to do is said at once, and an engine that does not let go is no PASS."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from kvgate.domain.counters import Counter, Counters, Gauge, Reading, Signal
from kvgate.domain.history import SignalsRead, When
from kvgate.domain.reasons import Reason
from kvgate.domain.record import RunRecord
from kvgate.domain.signals import alerts_on, held, signals_read, summaries, unreleased
from kvgate.domain.verdict import Verdict
from kvgate.sim.deployment import Deployment
from kvgate.sim.dials import Dials
from kvgate.sim.topology import Topology
from tests.gate.test_arms import USUAL, Heard, gated
from tests.gate.test_pressure import PACE, entries, pressed


def told(usage: float = 0.0, running: float = 0.0, waiting: float = 0.0, **counts: int) -> SignalsRead:
    gauges = (
        Gauge("0", Signal.KV_USAGE, usage),
        Gauge("0", Signal.RUNNING, running),
        Gauge("0", Signal.WAITING, waiting),
    )
    when = When.MEANWHILE
    return SignalsRead(0.0, "a", when, gauges, counts.get("preemptions", 0), counts.get("failed", 0))


@pytest.mark.parametrize(("read", "named"), [
    ([told(), told()], []),
    ([told(0.95), told(0.5)], []),
    ([told(), told(0.95)], []),
    ([told(), told(0.95), told(0.91)], ["kv_usage"]),
    ([told(), told(0.9), told(0.9)], []),
    ([told(), told(waiting=2), told(waiting=1)], ["waiting"]),
    ([told(), told(waiting=2), told(waiting=0)], []),
    ([told(preemptions=7), told(preemptions=7)], []),
    ([told(preemptions=7), told(preemptions=8)], ["preemptions"]),
    ([told(failed=1), told(failed=3)], ["failed_loads"]),
    ([told(0.95, waiting=1), told(0.99, waiting=3, preemptions=2)], ["kv_usage", "waiting", "preemptions"]),
])  # fmt: skip
def test_what_to_do_is_said_where_it_is_needed_and_nowhere_else(read: list[SignalsRead], named: list[str]) -> None:
    assert named == [each.name for each in alerts_on("a", read)]


def test_what_an_engine_does_not_tell_is_unknown() -> None:
    silent = SignalsRead(0.0, "a", When.MEANWHILE, (), None, None)
    run = RunRecord([silent, silent])
    (only,) = summaries(run)
    assert (None,) * 6 == (
        only.most_running,
        only.most_waiting,
        only.most_kv_usage,
        only.preemptions,
        only.failed_loads,
        only.released,
    )
    assert () == only.actions
    assert unreleased(run, ()) is None


def test_ranks_are_added_up_and_the_fullest_one_tells_how_full() -> None:
    gauges = (
        *(Gauge(rank, Signal.RUNNING, 2.0) for rank in "01"),
        Gauge("0", Signal.KV_USAGE, 0.2),
        Gauge("1", Signal.KV_USAGE, 0.7),
    )
    counts = tuple(Reading(rank, Counter.PREEMPTIONS, 3.0) for rank in "01")
    (only,) = summaries(RunRecord([signals_read(0.0, "a", When.BEFORE, Counters(counts, None, gauges))]))
    assert (4.0, 0.7, 0) == (only.most_running, only.most_kv_usage, only.preemptions)


@pytest.mark.parametrize(("before", "after", "words"), [
    (told(), told(), 0),
    (told(0.001), told(0.001), 0),
    (told(0.5, running=1), told(0.1), 0),
    (told(), told(0.002), 1),
    (told(), told(0.002, running=1, waiting=1), 3),
], ids=["nothing", "as before", "less than before", "blocks", "all"])  # fmt: skip
def test_what_is_still_held_is_what_was_not_held_before(before: SignalsRead, after: SignalsRead, words: int) -> None:
    assert words == len(held(before, after))


@pytest.mark.parametrize(("fault", "cancels", "verdict"), [
    ("not_released", 0.5, Verdict.INCONCLUSIVE),
    ("not_released", 0.0, Verdict.PASS),
    ("healthy", 0.5, Verdict.PASS),
], ids=["kept", "nobody left", "let go"])  # fmt: skip
def test_an_engine_that_keeps_what_its_clients_left_is_no_pass(
    fault: str, cancels: float, verdict: Verdict, tmp_path: Path
) -> None:
    def change(deployment: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
        pressed(3, cancel_share=cancels)(deployment, content, urls)
        # Looked at all the while, so that what is seen is no matter of chance.
        content["limits"]["watch_s"] = 0.05

    _, ruling = gated(tmp_path, fault, USUAL, dials=PACE, change=change)
    assert verdict is ruling.verdict, ruling.reasons
    (signals,) = ruling.signals
    assert (verdict is Verdict.PASS) is signals.released
    assert (signals.most_running or 0) >= 2, "the others in flight were seen"
    if verdict is not Verdict.PASS:
        assert Reason.NOT_RELEASED is ruling.reasons[0].reason


def test_an_engine_that_lets_go_late_is_waited_for(tmp_path: Path) -> None:
    heard = Heard()

    def change(deployment: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
        pressed(3, cancel_share=0.5)(deployment, content, urls)
        content["limits"]["release_s"] = 30

    dials = dataclasses.replace(PACE, lets_go_after_s=1.0)
    _, ruling = gated(tmp_path, arms=USUAL, dials=dials, change=change, watcher=heard)
    assert Verdict.PASS is ruling.verdict, ruling.reasons
    assert [True] == [each.released for each in ruling.signals]
    assert [line for line in heard.heard if line.startswith("waiting for engine to let go (requests running: ")], (
        heard.heard
    )


@pytest.mark.parametrize(("fault", "count"), [("preempted", 1), ("healthy", 0)])
def test_what_to_do_is_said_once_while_the_run_lasts(fault: str, count: int, tmp_path: Path) -> None:
    heard = Heard()

    def change(_deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
        content["limits"]["watch_s"] = 0.01

    _, ruling = gated(tmp_path, fault, USUAL, change=change, dials=Dials(latency_s=0.05), watcher=heard)
    said = [line for line in heard.heard if "were preempted: the KV cache is too small for what runs at once" in line]
    assert count == len(said), heard.heard
    assert count == len([action for each in ruling.signals for action in each.actions])


def test_nobody_looks_while_nothing_is_to_be_looked_at(tmp_path: Path) -> None:
    def change(_deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
        content["limits"]["watch_s"] = 0

    _, ruling = gated(tmp_path, arms=USUAL, change=change)
    seen = [entry for entry in entries(tmp_path) if isinstance(entry, SignalsRead)]
    assert [When.BEFORE, When.AFTER] == [entry.when for entry in seen], "before and after it is asked all the same"
    assert Verdict.PASS is ruling.verdict


def test_readings_that_tell_the_same_are_kept_twice_at_most(tmp_path: Path) -> None:
    """Twice, so that what lasts is told from a peak."""

    def change(_deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
        content["limits"]["watch_s"] = 0.01

    gated(tmp_path, arms=USUAL, change=change, dials=Dials(latency_s=0.05))
    seen = [entry for entry in entries(tmp_path) if isinstance(entry, SignalsRead)]
    assert 2 <= len(seen)
    kept = [(entry.gauges, entry.preemptions) for entry in seen if entry.when is not When.AFTER]
    assert not any(one == other == third for one, other, third in zip(kept, kept[1:], kept[2:], strict=False))


def test_of_a_gateway_the_engines_behind_it_are_asked(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, arms=USUAL, topology=Topology.PD)
    assert ["gateway"] == [each.endpoint for each in ruling.signals]
    first = next(entry for entry in entries(tmp_path) if isinstance(entry, SignalsRead))
    assert {"prefill/0", "decode/0"} == {gauge.engine for gauge in first.gauges}


def test_who_else_uses_the_engine_is_not_taken_for_one_that_keeps_what_it_held(tmp_path: Path) -> None:
    """The same reading convicts where nobody else was there (control above)."""

    def change(deployment: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
        # Short ones: what was broken off may have been counted or not, and must not make up for 512 tokens of others.
        pressed(2, cancel_share=0.3, tokens=128)(deployment, content, urls)

    _, ruling = gated(
        tmp_path, "not_released", USUAL, change=change, dials=Dials(latency_per_token_s=0.001, foreign=True)
    )
    seen = {arm.problem.reason for group in ruling.groups for arm in group.arms if arm.problem is not None}
    assert Reason.FOREIGN_TRAFFIC in seen
    assert Reason.NOT_RELEASED not in {problem.reason for problem in ruling.reasons}
