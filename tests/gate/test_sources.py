"""The whole tool against embedded deployments that write logs: what further sources confirm, contradict and explain."""

import sys
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from kvgate.domain.reasons import Reason
from kvgate.domain.verdict import Verdict
from kvgate.errors import ConfigError
from kvgate.sim.deployment import Deployment
from kvgate.sim.dials import Dials
from kvgate.sim.topology import Topology
from tests.gate.test_arms import USUAL, Change, gated


def reading_logs(folder: Path, *sources: str, **policy: Any) -> Change:
    """Name the log of every engine in the configuration, and the sources that must confirm."""

    def change(_deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
        for endpoint in content["deployment"]["endpoints"]:
            if endpoint["role"] != "gateway":
                endpoint["log"] = str(folder / "logs" / f"{endpoint['name']}.log")
        content["policy"] |= {"required_sources": list(sources), **policy}

    return change


def writing_logs(folder: Path, **dials: Any) -> Dials:
    return Dials(log_folder=str(folder / "logs"), **dials)


@pytest.mark.parametrize("topology", [Topology.COMBINED, Topology.PD])
def test_log_and_reply_confirm_what_was_loaded(tmp_path: Path, topology: Topology) -> None:
    sources = ("log", "reply") if topology is Topology.COMBINED else ("log",)
    change = reading_logs(tmp_path, *sources)
    _, ruling = gated(tmp_path, arms=USUAL, change=change, dials=writing_logs(tmp_path), topology=topology)
    assert ruling.verdict is Verdict.PASS


def test_c31_a_log_that_denies_the_load_forbids_a_pass(tmp_path: Path) -> None:
    dials = writing_logs(tmp_path, log_denies_loads=True)
    _, ruling = gated(tmp_path, arms=USUAL, change=reading_logs(tmp_path), dials=dials)
    assert (Verdict.INCONCLUSIVE, Reason.SENSOR_CONFLICT) == (ruling.verdict, ruling.reasons[0].reason)
    assert "need to load: 0" in ruling.reasons[0].detail


def test_a_swallowed_failure_is_quoted_where_the_pool_only_missed(tmp_path: Path) -> None:
    change = reading_logs(tmp_path)
    _, ruling = gated(tmp_path, "silent_recompute", USUAL, change, dials=writing_logs(tmp_path))
    assert (Verdict.INCONCLUSIVE, Reason.LOAD_FAILED) == (ruling.verdict, ruling.reasons[0].reason)


def test_a_swallowed_failure_does_not_excuse_what_came_of_it(tmp_path: Path) -> None:
    change = reading_logs(tmp_path)
    _, ruling = gated(tmp_path, "swallowed_failure", USUAL, change, dials=writing_logs(tmp_path))
    assert ruling.verdict is Verdict.FAIL


def test_without_the_required_lines_nothing_passes(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "engine.log").write_text("nothing of interest\n")
    _, ruling = gated(tmp_path, arms=USUAL, change=reading_logs(tmp_path, "log"))
    assert (Verdict.INCONCLUSIVE, Reason.EVIDENCE_MISSING) == (ruling.verdict, ruling.reasons[0].reason)


def test_a_first_token_as_late_as_cold_confirms_nothing(tmp_path: Path) -> None:
    change = reading_logs(tmp_path, "first_token", first_token_ratio=0.01)
    _, ruling = gated(tmp_path, arms=USUAL, change=change, dials=writing_logs(tmp_path, latency_s=0.05))
    assert (Verdict.INCONCLUSIVE, Reason.EVIDENCE_MISSING) == (ruling.verdict, ruling.reasons[0].reason)
    assert "of the cold run's time" in ruling.reasons[0].detail


def test_a_log_that_cannot_be_read_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the log of engine cannot be read .*No such file"):
        gated(tmp_path, arms=USUAL, change=reading_logs(tmp_path))


def test_a_log_that_lags_is_waited_for_where_it_must_confirm(tmp_path: Path) -> None:
    """As through `kubectl logs -f`: lines come some tenths of a second after they were written."""
    ended = Event()

    def lag() -> None:
        lengths: list[int] = []
        while not ended.wait(0.05):
            written, passed_on = (tmp_path / "logs" / name for name in ("engine.log", "late.log"))
            lengths.append(written.stat().st_size)
            known, due = passed_on.stat().st_size, lengths[max(0, len(lengths) - 7)]
            with passed_on.open("ab") as file:
                file.write(written.read_bytes()[known:due])

    def change(deployment: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
        reading_logs(tmp_path, "log")(deployment, content, urls)
        content["deployment"]["endpoints"][0]["log"] = str(tmp_path / "logs" / "late.log")
        content["limits"]["evidence_s"] = 3.0
        (tmp_path / "logs" / "late.log").touch()
        copying.start()

    copying = Thread(target=lag)
    try:
        _, ruling = gated(tmp_path, arms=USUAL, change=change, dials=writing_logs(tmp_path))
    finally:
        ended.set()
        copying.join()
    assert ruling.verdict is Verdict.PASS, ruling.reasons


def test_a_log_that_goes_away_is_told(tmp_path: Path) -> None:
    def change(deployment: Deployment, content: dict[str, Any], urls: dict[str, str]) -> None:
        reading_logs(tmp_path)(deployment, content, urls)
        gone = "import pathlib, sys; pathlib.Path(sys.argv[1]).unlink(missing_ok=True)"
        path = content["deployment"]["endpoints"][0]["log"]
        # The engine writes when it loads, and so makes the file again.
        content["hooks"] = {"before_arm": {"cold": [sys.executable, "-c", gone, path]}}

    _, ruling = gated(tmp_path, arms=USUAL, change=change, dials=writing_logs(tmp_path))
    assert any("the log could not be read beside" in note for note in ruling.notes)
