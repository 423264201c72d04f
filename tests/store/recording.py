"""Run directories by the dozen: copies of a real one under names of their own."""

import json
import shutil
from pathlib import Path

from kvgate import __version__
from kvgate.store.finding import Found, find


def copied(run: Path, folder: Path, name: str, **changed: object) -> Path:
    """A copy of a run directory under another name; ``changed`` are further fields of its manifest."""
    path = folder / name
    shutil.copytree(run, path)
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    manifest |= {"run_id": name, **changed}
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return path


def found_in(path: Path) -> Found:
    """What is found in a run directory."""
    return find(path, __version__)
