"""The demo as a new user runs it: three deployments, three reports, and what token IDs alone would have missed."""

import json
from pathlib import Path

from typer.testing import CliRunner

from kvgate.cli.app import app


def test_the_demo_shows_a_pass_and_two_failures_one_of_them_unseen_by_token_ids(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["demo", "--keep", str(tmp_path / "runs")])
    assert 0 == done.exit_code, done.output
    acts = done.stdout.split("\n1. ")[1].split("\n2. ")
    healthy, (subtle, gross) = acts[0], acts[1].split("\n3. ")
    assert "PASS  healthy" in healthy
    assert "Token IDs alone: all 36 comparisons are equal." in healthy
    assert "FAIL  zero_last_block" in subtle
    assert "DRIFT" in subtle
    assert "A token-ID check calls this deployment fine." in subtle
    assert "FAIL  swallowed_failure" in gross
    assert "DEGENERATE  The answer repeats itself" in gross
    assert "What to do:" in subtle
    assert "kvgate run -c gate.yaml" in gross
    kept = sorted((tmp_path / "runs").glob("*/verdict.json"))
    verdicts = [json.loads(each.read_text(encoding="utf-8"))["verdict"] for each in kept]
    assert ["FAIL", "FAIL", "PASS"] == sorted(verdicts)


def test_runs_are_not_kept_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = CliRunner().invoke(app, ["demo", "--keep", str(tmp_path / "file")])
    assert 2 == done.exit_code
    assert "is a file" in done.stderr
