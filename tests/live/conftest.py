"""The lab as fixtures: one deployment at a time, started and stopped by the lab's own commands."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.lab import ROOT, Lab


@contextmanager
def standing(stack: str, folder: Path) -> Iterator[Lab]:
    """A stack of the lab, up for as long as the block runs."""
    subprocess.run([ROOT / "scripts/lab/up", stack], check=True, cwd=ROOT)
    try:
        yield Lab(folder)
    finally:
        subprocess.run([ROOT / "scripts/lab/down", stack], check=True, cwd=ROOT)


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The stack that the test module names in ``STACK``."""
    with standing(request.module.STACK, tmp_path_factory.mktemp("lab")) as found:
        yield found
