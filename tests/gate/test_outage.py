"""The whole tool while hooks take the pool away and bring it back."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvgate.domain.history import HookRan, ProbeSent
from kvgate.domain.probe import WHILE_AWAY, Arm
from kvgate.domain.reasons import Reason
from kvgate.domain.verdict import Verdict
from kvgate.errors import ConfigError
from kvgate.sim.deployment import Deployment
from kvgate.sim.dials import Dials
from kvgate.sim.topology import Topology
from kvgate.store.run_directory import read_history
from tests.cli.driving import command, config_file, kvgate
from tests.gate.test_arms import USUAL, Change, blamed, gated
from tests.scripted.server import serving

WRITE = "import sys; open(sys.argv[1], 'a').write(sys.argv[2] + ' ')"


def switched(folder: Path, down: str = "", up: str = "") -> Change:
    """A change of the configuration: hooks that note what they do, take the pool away and bring it back.

    ``down`` and ``up`` are Python that each of them runs last.
    """

    def change(_deployment: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
        post = "; import urllib.request as r; r.urlopen(r.Request(sys.argv[3], method='POST'), timeout=10)"
        content["hooks"] = {
            f"pool_{name}": [
                sys.executable,
                "-c",
                f"{WRITE}{post}; {more}",
                str(folder / "did"),
                name,
                urls["pool"] + path,
            ]
            for name, path, more in (("down", "/leave", down), ("up", "/come_back", up))
        }

    return change


def did(folder: Path) -> list[str]:
    return (folder / "did").read_text(encoding="utf-8").split()


def test_a_healthy_deployment_computes_meanwhile_and_loads_again(tmp_path: Path) -> None:
    plan, ruling = gated(tmp_path, arms=USUAL, change=switched(tmp_path))
    assert ruling.verdict is Verdict.PASS, ruling.reasons
    last = ruling.groups[-1]
    arms = {arm.arm: arm for arm in last.arms}
    assert all(arm.proven for arm in last.arms)
    assert [0, 0] == [arms[arm].external for arm in WHILE_AWAY]
    assert plan.groups[-1].expected_external == arms[Arm.EXTERNAL].external == arms[Arm.RECOVERED].external
    assert {"outage_vs_cold", "recovered_vs_cold", "external_vs_cold"} == {pair.kind.value for pair in last.pairs}
    assert all(pair.exact for pair in last.pairs)
    ran = [entry for entry in read_history(next((tmp_path / "runs").glob("[0-9]*"))) if isinstance(entry, HookRan)]
    assert [("pool_down", "outage"), ("pool_up", "restore")] == [(each.name, each.arm.value) for each in ran]
    assert ["down", "up"] == did(tmp_path)


def test_an_outage_that_changes_answers_is_found_and_named(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, "outage_unnoticed", USUAL, change=switched(tmp_path))
    assert (Verdict.FAIL, {"outage"}) == (ruling.verdict, blamed(ruling))
    assert ["down", "up"] == did(tmp_path)
    _, quiet = gated(tmp_path / "quiet", "outage_unnoticed", USUAL)
    assert quiet.verdict is Verdict.PASS, "the control: while the pool is there nothing is wrong"


def test_a_clean_error_is_told_and_does_not_fail(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, "outage_refused", USUAL, change=switched(tmp_path))
    assert ruling.verdict is Verdict.PASS, ruling.reasons
    told = [note.reason for pair in ruling.groups[-1].pairs for note in pair.annotations]
    assert 2 == told.count(Reason.CLEAN_ERROR)


def test_a_pool_that_is_not_taken_away_shows_nothing(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, "outage_ignored", USUAL, change=switched(tmp_path))
    assert (Verdict.INCONCLUSIVE, Reason.OUTAGE_MISSING) == (ruling.verdict, ruling.reasons[0].reason)


def test_an_engine_that_does_not_come_back_to_the_pool_is_no_pass(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, "outage_for_good", USUAL, change=switched(tmp_path))
    assert (Verdict.INCONCLUSIVE, Reason.NOT_RECOVERED) == (ruling.verdict, ruling.reasons[0].reason)


def test_a_pool_whose_puts_come_late_is_waited_for(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, arms=USUAL, change=switched(tmp_path), dials=Dials(put_lag_s=0.15))
    assert ruling.verdict is Verdict.PASS, ruling.reasons
    recovered = next(arm for arm in ruling.groups[-1].arms if arm.arm is Arm.RECOVERED)
    assert recovered.proven
    assert recovered.attempts > 1


# -- what is taken away comes back -----------------------------------------------------------------------------
def test_the_pool_comes_back_after_a_hook_that_failed_half_way(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, arms=USUAL, change=switched(tmp_path, down="sys.exit('half way')"))
    assert (Verdict.INCONCLUSIVE, Reason.HOOK_FAILED) == (ruling.verdict, ruling.reasons[0].reason)
    assert "half way" in ruling.reasons[0].detail
    assert ["down", "up"] == did(tmp_path)
    record = list(read_history(next((tmp_path / "runs").glob("[0-9]*"))))
    back = next(at for at, entry in enumerate(record) if isinstance(entry, HookRan) and entry.name == "pool_up")
    assert any(isinstance(entry, ProbeSent) for entry in record[back:]), "before anything else is sent"


def test_a_pool_that_cannot_be_brought_back_is_told(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, arms=USUAL, change=switched(tmp_path, up="sys.exit('stuck')"))
    assert (Verdict.INCONCLUSIVE, Reason.HOOK_FAILED) == (ruling.verdict, ruling.reasons[0].reason)
    assert ["down", *["up"] * did(tmp_path).count("up")] == did(tmp_path)


def test_the_pool_comes_back_when_the_budget_runs_out(tmp_path: Path) -> None:
    def change(deployment: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
        switched(tmp_path, down="import time; time.sleep(2)")(deployment, content, urls)
        content["gate"]["groups_per_tier"] = 1
        content["budget"] = {"minutes": 0.03}

    _, ruling = gated(tmp_path, arms=USUAL, change=change)
    assert Reason.BUDGET_EXHAUSTED in {problem.reason for problem in ruling.reasons}
    assert ["down", "up"] == did(tmp_path)


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM])
def test_the_pool_comes_back_when_the_user_stops_the_run(tmp_path: Path, name: signal.Signals) -> None:
    noted = str(tmp_path / "did")
    slow = f"{WRITE}; import time; time.sleep(20)"
    hooks = {
        "pool_down": [sys.executable, "-c", slow, noted, "down"],
        "pool_up": [sys.executable, "-c", WRITE, noted, "up"],
    }
    with serving() as server:
        file = config_file(tmp_path, server, gate={"groups_per_tier": 1}, hooks=hooks)
        with subprocess.Popen(
            command("run", "-q", "-c", file), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            wait_for(lambda: (tmp_path / "did").exists() or process.poll() is not None)
            process.send_signal(name)
            _, err = process.communicate(timeout=30)
    assert (130, False) == (process.returncode, "Traceback" in err)
    assert ["down", "up"] == did(tmp_path)


def wait_for(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- what cannot be shown is refused ---------------------------------------------------------------------------
def test_one_hook_without_the_other_is_refused(tmp_path: Path) -> None:
    with serving() as server:
        ended = kvgate("run", "-q", "-c", config_file(tmp_path, server, hooks={"pool_down": ["true"]}))
    assert 2 == ended.code
    assert "pool_down stands without pool_up" in ended.err


@pytest.mark.parametrize(("made", "deployment"), [
    ({"topology": Topology.PD}, {}),
    ({"topology": Topology.PAIR}, {}),
    ({}, {"salts": "ignored"}),
], ids=["prefill and decode", "two readers", "no salts"])  # fmt: skip
def test_an_outage_that_cannot_be_shown_is_refused(
    made: dict[str, Any], deployment: dict[str, Any], tmp_path: Path
) -> None:
    def change(simulated: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
        switched(tmp_path)(simulated, content, urls)
        content["deployment"] |= deployment

    arms = [arm for arm in USUAL if arm != "cold_repeat"] if deployment else USUAL
    with pytest.raises(ConfigError, match=r"hooks\.pool_down: an outage is shown on one combined endpoint"):
        gated(tmp_path, arms=arms, change=change, **made)
