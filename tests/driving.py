"""Driving the whole tool in this process: a configuration file, the real command line, a scripted deployment."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from kvgate.cli.app import app
from tests.scripted.server import Script, ScriptedServer, serving

QUICK_LIMITS = {"settle_s": 0.01, "put_deadline_s": 2.0, "evidence_s": 0.1}
QUICK_GATE = {"tiers": [400], "groups_per_tier": 2, "boundaries": False}


@dataclass(frozen=True)
class Driven:
    """How one command ended."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.stdout)
        return report

    @property
    def ruling(self) -> dict[str, Any]:
        ruling: dict[str, Any] = self.report["ruling"]
        return ruling

    @property
    def reasons(self) -> list[str]:
        return [problem["reason"] for problem in self.ruling["reasons"]]

    @property
    def run(self) -> Path:
        (run,) = (self.folder / "runs").glob("[0-9]*")
        return run

    def pairs(self, subject: str, baseline: str) -> list[dict[str, Any]]:
        return [
            pair
            for group in self.ruling["groups"]
            for pair in group["pairs"]
            if (pair["subject"], pair["baseline"]) == (subject, baseline)
        ]


def write_config(folder: Path, servers: Sequence[ScriptedServer], changes: dict[str, dict[str, Any]]) -> Path:
    """A quick configuration for scripted servers, with sections updated."""
    names = ("writer", "reader", "third")
    endpoints = [{"name": name, "url": server.url} for name, server in zip(names, servers, strict=False)]
    content: dict[str, Any] = {
        "version": 1,
        "deployment": {"name": "scripted", "model": "m", "endpoints": endpoints},
        "gate": dict(QUICK_GATE),
        "limits": dict(QUICK_LIMITS),
        "requests": {"max_tokens": 16},
        "output": {"directory": str(folder / "runs")},
    }
    for section, values in changes.items():
        content[section] = {**content.get(section, {}), **values}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def kvgate(folder: Path, *arguments: str) -> Driven:
    """Run one command."""
    done = CliRunner().invoke(app, list(arguments))
    return Driven(done.exit_code, done.stdout, done.stderr, folder)


def gate(folder: Path, script: Script | None = None, *options: str, **changes: dict[str, Any]) -> Driven:
    """Run the gate on one scripted server and report in JSON."""
    with serving(script) as server:
        config = write_config(folder, [server], changes)
        return kvgate(folder, "run", "-c", str(config), "--format", "json", "-q", *options)
