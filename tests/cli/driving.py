"""Driving the real command line, in process where that is enough, against scripted servers."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from kvgate.cli.app import app
from tests.scripted.server import ScriptedServer


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def config_data(folder: Path, *urls: str, **sections: object) -> dict[str, Any]:
    """A small configuration: one tier of 512 tokens, two groups. Sections are merged in, None takes one out."""
    names = "abcdefgh"
    data: dict[str, Any] = {
        "version": 1,
        "deployment": {
            "name": "d",
            "model": "m",
            "endpoints": [{"name": names[at], "url": url} for at, url in enumerate(urls)],
        },
        "gate": {"tiers": [512], "groups_per_tier": 2, "boundaries": False, "families": [{"family": "prose"}]},
        "requests": {"max_tokens": 16, "connect_s": 5},
        "limits": {"settle_s": 0, "evidence_s": 0.3},
        "output": {"directory": str(folder / "runs")},
    }
    for name, value in sections.items():
        if isinstance(value, Mapping) and isinstance(data.get(name), dict):
            data[name] = {**data[name], **value}
        elif value is None:
            data.pop(name, None)
        else:
            data[name] = value
    return data


def config_file(folder: Path, *servers: ScriptedServer, **sections: object) -> Path:
    """Write a configuration for these servers."""
    file = folder / "config.yaml"
    data = config_data(folder, *(server.url for server in servers), **sections)
    file.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return file


def kvgate(*argv: str | Path, env: Mapping[str, str] | None = None) -> Ended:
    """Run a command in this process."""
    result = CliRunner(env=env).invoke(app, [str(each) for each in argv])
    return Ended(result.exit_code, result.stdout, result.stderr)


def command(*argv: str | Path) -> list[str]:
    """The command line of a process of its own."""
    return [sys.executable, "-m", "kvgate", *map(str, argv)]


def kvgate_process(*argv: str | Path, env: Mapping[str, str] | None = None, seconds: float = 60.0) -> Ended:
    """Run a command in a process of its own."""
    done = subprocess.run(
        command(*argv),
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=seconds,
        env={**os.environ, **(env or {})},
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def only_run(folder: Path) -> Path:
    """The one run directory made under ``folder``."""
    (run,) = (folder / "runs").glob("[0-9]*")
    return run
