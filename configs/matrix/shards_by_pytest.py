"""A matrix of gates as tests, side by side, each configuration with engines of its own that are up already.

KVGATE_SHARDS=gate/shards pytest -n 4 shards_by_pytest.py && kvgate merge kvgate-runs/*-*-*/
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHARDS = sorted(Path(os.environ["KVGATE_SHARDS"]).glob("*.yaml"))


def test_there_are_shards() -> None:
    """No shard is no pass."""
    assert SHARDS


@pytest.mark.parametrize("shard", SHARDS, ids=lambda path: path.stem)
def test_shard(shard: Path) -> None:
    """Exit 0 alone is a PASS; what was seen stands in the test's output."""
    assert subprocess.run([sys.executable, "-m", "kvgate", "run", "-q", "-c", str(shard)], check=False).returncode == 0
