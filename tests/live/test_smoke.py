"""The live smoke of CI: one deployment, healthy, corrupted, emptied and killed."""

import subprocess
import time

import pytest

from tests.live.lab import ROOT, Lab, hooks, proves_external

STACK = "mooncake"
pytestmark = [pytest.mark.live, pytest.mark.smoke]


def test_the_doctor_finds_geometry_and_evidence(lab: Lab) -> None:
    config = ROOT / "configs/lab/vllm-mooncake.yaml"
    done = subprocess.run(
        [".venv/bin/kvgate", "doctor", "-c", str(config)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "block_size                 32   from vllm:cache_config_info" in done.stdout
    assert "can prove what the configuration asks for" in done.stdout


def test_a_healthy_pool_passes_with_every_floor_at_zero(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-mooncake", gate={"groups_per_tier": 1}))
    assert gated.code == 0
    proves_external(gated)
    assert gated.floor("local_vs_local_repeat")["max_drift"] == 0.0
    assert all(pair["exact"] and pair["max_drift"] == 0.0 for pair in gated.pairs("external", "local"))
    again = subprocess.run([".venv/bin/kvgate", "judge", str(gated.run), "--check"], cwd=ROOT, check=False)
    assert again.returncode == 0


@pytest.mark.parametrize("fault", ["swap_two", "zero_one"])
def test_corrupted_objects_fail_with_the_external_path_named(lab: Lab, fault: str) -> None:
    gated = lab.gate(lab.config("vllm-mooncake", gate={"tiers": [256], "groups_per_tier": 1}, hooks=hooks(fault)))
    assert gated.code == 1
    assert any("external path" in (pair["attribution"] or "") for pair in gated.pairs("external", "local"))
    if fault == "swap_two":
        # Full attention does not mind the order of blocks: token IDs stay equal, and only drift shows it.
        assert [True] == [pair["ids_equal"] for pair in gated.pairs("external", "local")]
        assert gated.reasons == ["DRIFT"]


def test_an_emptied_pool_is_a_miss_and_never_a_pass(lab: Lab) -> None:
    config = lab.config(
        "vllm-mooncake",
        gate={"tiers": [256], "groups_per_tier": 1},
        hooks=hooks("remove_all"),
        limits={"external_attempts": 2},
    )
    gated = lab.gate(config)
    assert gated.code == 3
    assert gated.reasons[0] == "EXTERNAL_MISS"


def test_a_server_killed_in_mid_run_is_remote_trouble_with_a_readable_record(lab: Lab) -> None:
    config = lab.config("vllm-mooncake", gate={"tiers": [512], "groups_per_tier": 2})
    argv = [".venv/bin/kvgate", "run", "-c", str(config), "-q"]
    gate = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # Wait for the first answer of a group, not for a time: then the kill is in mid-run by construction.
    runs = lab.folder / "runs"
    before = set(runs.glob("[0-9]*"))
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        fresh = [run for run in set(runs.glob("[0-9]*")) - before if (run / "history.jsonl").exists()]
        if fresh and '"t512-1.cold.0","observation"' in (fresh[0] / "history.jsonl").read_text():
            break
        time.sleep(0.2)
    subprocess.run([ROOT / "scripts/lab/down", STACK], check=True, cwd=ROOT)
    out, err = gate.communicate(timeout=300)
    assert gate.returncode == 4, err
    assert "ENDPOINT_LOST" in out
    assert "Traceback" not in err
    run = next(iter(set(runs.glob("[0-9]*")) - before))
    assert subprocess.run([".venv/bin/kvgate", "judge", str(run), "--check"], cwd=ROOT, check=False).returncode == 4
