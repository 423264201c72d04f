"""A ladder of real engines, started and stopped by the lab's own commands; the pool is wrong from a level on."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.live.lab import ROOT, hooks

pytestmark = pytest.mark.live
LADDER = ROOT / "configs/ladders/lab-ngram.yaml"


def planted(folder: Path, first: int) -> Path:
    """The lab's ladder with a fault planted in the pool on its rungs from this one on."""
    ladder = yaml.safe_load(LADDER.read_text())
    gate = yaml.safe_load((LADDER.parent / ladder["gate"]).read_text())
    # Noting what is there changes nothing.
    gate["hooks"] = hooks("${plant}")
    gate["output"] = {"directory": str(folder / "runs")}
    (folder / "gate.yaml").write_text(yaml.safe_dump(gate))
    ladder["gate"] = "gate.yaml"
    for place, rung in enumerate(ladder["rungs"]):
        rung["values"]["plant"] = "swap_two" if place >= first else "note"
    path = folder / "ladder.yaml"
    path.write_text(yaml.safe_dump(ladder))
    return path


def running() -> list[str]:
    """Servers and pools of the lab that run now."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if "api_server" in line or "mooncake_master" in line]


def within(seconds: float, happens: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if happens():
            return True
        time.sleep(0.2)
    return happens()


def climbing(ladder: Path) -> list[str]:
    # A lab that runs in the background of a shell has Ctrl-C ignored, and what it starts inherits that.
    return [
        "env",
        "--default-signal=INT",
        sys.executable,
        "-m",
        "kvgate",
        "bisect",
        "--ladder",
        str(ladder),
        "--format",
        "json",
    ]


def test_a_fault_from_a_level_on_is_found_and_nothing_is_left_running(tmp_path: Path) -> None:
    argv = climbing(planted(tmp_path, 2))
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=3000, check=False)
    assert 1 == done.returncode, done.stderr
    climb: dict[str, Any] = json.loads(done.stdout)["climb"]
    assert "ngram 3 fails; ngram 1 below it passes" == climb["claims"][0]
    tried = {each["name"]: each["verdict"] for each in climb["tried"]}
    assert {"ngram 1": "PASS", "ngram 3": "FAIL", "ngram 7": "FAIL"} == tried
    assert {32} == {each["block"] for each in climb["tried"]}
    assert [] == running()


@pytest.mark.parametrize("when", ["while it comes up", "while it is gated"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
def test_nothing_is_left_running_after(tmp_path: Path, how: signal.Signals, when: str) -> None:
    assert within(120, lambda: running() == []), running()

    def begun() -> bool:
        if when == "while it comes up":
            return any("api_server" in line for line in running())
        return any(tmp_path.glob("runs/ladder-*/[0-9]*/history.jsonl"))

    with subprocess.Popen(climbing(planted(tmp_path, 2)), cwd=ROOT, stdout=subprocess.DEVNULL) as ladder:
        try:
            assert within(600, lambda: begun() or ladder.poll() is not None)
            assert ladder.poll() is None, "it is still at work"
            ladder.send_signal(how)
            assert {signal.SIGINT: 130, signal.SIGKILL: -9}[how] == ladder.wait(timeout=120)
        finally:
            ladder.kill()
    assert within(120, lambda: running() == []), running()
