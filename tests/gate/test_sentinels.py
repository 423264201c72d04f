"""What is asked again and again beside the groups: where, how long, again where it was lost, and what it may not do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.driving import kvgate, write_config
from tests.engines.test_field_log_f import decaying
from tests.gate.test_arms import USUAL, gated, two_ranks
from tests.scripted.server import Script, ScriptedServer, serving

BUSY = b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"


def of_a_sentinel(body: dict[str, Any]) -> bool:
    return "-sentinel-" in str(body.get("cache_salt"))


def busy_at(server: ScriptedServer, struck: Callable[[int], bool]) -> Callable[[dict[str, Any]], bytes | None]:
    """A server that answers 503 to those of the sentinel's requests, from 1, that are struck."""

    def answer(body: dict[str, Any]) -> bytes | None:
        count = sum(map(of_a_sentinel, server.bodies))
        return BUSY if of_a_sentinel(body) and struck(count) else None

    return answer


@pytest.mark.parametrize(
    ("name", "struck", "code"),
    [
        ("the first", lambda count: count == 1, 0),
        ("the last", lambda count: count == 4, 0),
        ("every one", lambda _: True, 3),
        ("all after the group", lambda count: count > 2, 3),
    ],
)
def test_one_that_is_lost_is_asked_again_and_none_at_all_is_no_pass(
    tmp_path: Path, name: str, struck: Callable[[int], bool], code: int
) -> None:
    with serving(Script()) as server:
        server.script.completion = busy_at(server, struck)
        config = write_config(tmp_path, [server], {"gate": {"groups_per_tier": 1}})
        driven = kvgate(tmp_path, "run", "-c", str(config), "--format", "json", "-q")
    assert code == driven.code, (name, driven.reasons)
    assert code == 0 or "OBSERVATION_MISSING" in driven.reasons


def test_every_rank_has_one_of_its_own(tmp_path: Path) -> None:
    plan, ruling = gated(tmp_path, arms=USUAL, change=two_ranks, ranks=2)
    assert "PASS" == ruling.verdict.value
    assert [0, 1] == [sentinel.steps[0].rank for sentinel in plan.sentinels]
    assert 2 == sum("answered one prompt alike" in note for note in ruling.notes)


@pytest.mark.parametrize(
    ("gate", "deployment", "told"),
    [
        ({}, {}, ""),
        ({"sentinel": False}, {}, ""),
        ({}, {"salts": "ignored"}, "salts are ignored"),
    ],
)
def test_the_plan_says_where_there_is_none(
    tmp_path: Path, gate: dict[str, Any], deployment: dict[str, Any], told: str
) -> None:
    with serving(Script(salts_honoured=not told)) as server:
        config = write_config(tmp_path, [server], {"gate": gate, "deployment": deployment})
        plan = kvgate(tmp_path, "plan", "-c", str(config), "--format", "json").report
    notes = [note for note in plan["notes"] if "afresh again and again" in note]
    assert bool(told) == bool(notes)
    assert all(told in note for note in notes)
    assert (not gate and not told) == bool(plan["sentinels"])


def test_somebody_elses_tokens_are_not_charged_to_the_budget(tmp_path: Path) -> None:
    with serving(Script(foreign=50_000)) as server:
        changes = {"gate": {"groups_per_tier": 1}, "budget": {"computed_tokens": 20_000}}
        driven = kvgate(tmp_path, "run", "-c", str(write_config(tmp_path, [server], changes)), "--format", "json", "-q")
    # Every group is void, and none of it was asked for by the gate.
    assert 3 == driven.code
    assert "BUDGET_EXHAUSTED" not in driven.reasons
    assert "FOREIGN_TRAFFIC" in driven.reasons


def test_who_gives_up_early_still_asks_whether_it_is_the_engine(tmp_path: Path) -> None:
    # There is no pool, so the third group is not sent; meanwhile the engine went wrong.
    with serving(Script(pool=None), decaying(8)) as server:
        config = write_config(tmp_path, [server], {"gate": {"groups_per_tier": 3}})
        driven = kvgate(tmp_path, "run", "-c", str(config), "--format", "json", "-q")
    assert 2 == len(driven.ruling["groups"])
    assert (1, "ANSWERS_CHANGED") == (driven.code, driven.reasons[0])
    assert driven.ruling["onset"]["right_until"] <= 8 < driven.ruling["onset"]["wrong_from"]
