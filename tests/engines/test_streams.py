"""Many streams at once, each answer its own prompt's: the bench of that name in small, and its controls."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "scripts" / "bench" / "streams.py"


def run(*options: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(BENCH), "--count", "20", "--length", "4096", *options]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


def test_twenty_streams_each_get_their_own_answer_within_the_memory_bound() -> None:
    done = run()
    assert (0, "") == (done.returncode, done.stderr), done.stdout
    assert "answers wrong or lost, or a bound broken: 0" in done.stdout


@pytest.mark.parametrize(
    ("control", "told"),
    [
        ("swap", "holds the answer to another prompt"),
        ("lose", "is lost: the answer ended without a finish reason"),
        ("leak", "is above the bound"),
    ],
)
def test_what_the_bench_must_find_it_finds(control: str, told: str) -> None:
    done = run("--control", control)
    assert (1, True) == (done.returncode, told in done.stdout), done.stdout + done.stderr
