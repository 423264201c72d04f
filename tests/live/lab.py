"""Driving the gate against the lab: the real command, a real configuration, the JSON report."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
RUN_LIMIT_S = 900


@dataclass(frozen=True)
class Gated:
    """What one run of the gate ended with."""

    code: int
    report: dict[str, Any]
    run: Path
    stderr: str

    @property
    def ruling(self) -> dict[str, Any]:
        ruling: dict[str, Any] = self.report["ruling"]
        return ruling

    @property
    def reasons(self) -> list[str]:
        return [problem["reason"] for problem in self.ruling["reasons"]]

    def policy(self, name: str) -> dict[str, Any]:
        return next(result for result in self.ruling["results"] if result["policy"] == name)

    def pairs(self, subject: str, baseline: str) -> list[dict[str, Any]]:
        return [
            pair
            for group in self.ruling["groups"]
            for pair in group["pairs"]
            if (pair["subject"], pair["baseline"]) == (subject, baseline)
        ]

    def floor(self, kind: str) -> dict[str, Any]:
        return next(floor for floor in self.ruling["noise"] if floor["kind"] == kind)


class Lab:
    """Runs the gate with a configuration of ``configs/lab``, changed where a test says so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def config(self, name: str, **changes: dict[str, Any]) -> Path:
        """A copy of a lab configuration with sections updated; hooks are given relative to the repository."""
        content = yaml.safe_load((ROOT / "configs/lab" / f"{name}.yaml").read_text())
        for section, values in changes.items():
            content[section] = {**content.get(section, {}), **values}
        content["output"] = {"directory": str(self.folder / "runs")}
        self.count += 1
        path = self.folder / f"{self.count}-{name}.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    def gate(self, config: Path, *options: str) -> Gated:
        """Run the gate and read its report; prints the table, which pytest shows when a test fails."""
        argv = [sys.executable, "-m", "kvgate", "run", "-c", str(config), "--format", "json", *options]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)
        print(done.stderr)
        if not done.stdout:
            return Gated(done.returncode, {}, self.folder, done.stderr)
        report = json.loads(done.stdout)
        run = self.folder / "runs" / report["run_id"]
        table = subprocess.run(
            [sys.executable, "-m", "kvgate", "report", str(run)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        print(table.stdout)
        return Gated(done.returncode, report, run, done.stderr)


def proves_external(gated: Gated, share: float = 0.95) -> None:
    """Every group's external arms brought at least ``share`` of the expected tokens; there must be some."""
    arms = [
        (group["expected_external"], arm)
        for group in gated.ruling["groups"]
        for arm in group["arms"]
        if arm["arm"].startswith("external")
    ]
    assert arms
    for expected, arm in arms:
        assert expected > 0
        assert arm["proven"], arm
        assert arm["external"] >= share * expected


def hooks(fault: str, where: str = "mooncake") -> dict[str, Any]:
    """Hooks that plant a fault before the first external arm of every group."""
    before: dict[str, list[str]] = {"external": ["scripts/lab/plant", where, fault]}
    if where == "mooncake":
        before["cold"] = ["scripts/lab/plant", "mooncake", "note"]
    return {"before_arm": before, "timeout_s": 120}
