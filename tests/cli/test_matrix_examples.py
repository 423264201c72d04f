"""The examples of ``configs/matrix``, run as a CI system, Kubernetes and pytest would run them, on scripted servers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.driving import config_data, kvgate
from tests.scripted.server import Script, serving

MATRIX = Path(__file__).parents[2] / "configs/matrix"
FAULTY = {"healthy": Script(), "faulty": Script(fault="diverge")}
pytestmark = pytest.mark.parametrize("second", FAULTY)


def example(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((MATRIX / name).read_text(encoding="utf-8"))
    return content


def shard(path: Path, url: str, tier: int, runs: Path) -> None:
    """The configuration of one shard."""
    path.parent.mkdir(parents=True, exist_ok=True)
    gate = {"tiers": [tier], "groups_per_tier": 1, "boundaries": False, "sentinel": False}
    content = config_data(path.parent, url, gate=gate, output={"directory": str(runs)})
    path.write_text(yaml.safe_dump(content), encoding="utf-8")


def shell(script: str | list[str], folder: Path, **environment: str) -> tuple[int, str]:
    """Run what stands in an example, with this kvgate as the one on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    argv = script if isinstance(script, list) else ["bash", "-e", "-c", script]
    ended = subprocess.run(
        argv, cwd=folder, env={**os.environ, "PATH": path, **environment}, capture_output=True, text=True, check=False
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_a_ci_matrix_ends_with_the_worst_of_its_shards(second: str, tmp_path: Path) -> None:
    jobs = example("ci-matrix.yaml")["jobs"]
    names = jobs["shard"]["strategy"]["matrix"]["shard"]
    assert 1 == jobs["shard"]["strategy"]["max-parallel"]
    (gate,) = [step["run"] for step in jobs["shard"]["steps"] if "run" in step]
    (whole,) = [step["run"] for step in jobs["whole"]["steps"] if "run" in step]
    (kept,) = [step["with"]["path"] for step in jobs["shard"]["steps"] if "upload" in step.get("uses", "")]
    codes = []
    for name, script, tier in zip(names, (Script(), FAULTY[second]), (512, 1024), strict=True):
        machine = tmp_path / name
        with serving(script) as server:
            shard(machine / "gate/shards" / f"{name}.yaml", server.url, tier, Path("kvgate-runs"))
            codes.append(shell(gate.replace("${{ matrix.shard }}", name), machine)[0])
        shutil.copytree(machine / kept, tmp_path / "last/artefacts" / f"runs-{name}")
    code, told = shell(whole, tmp_path / "last")
    expected = 1 if second == "faulty" else 0
    assert ([0, expected], expected) == (codes, code), told


def test_an_indexed_job_ends_with_the_worst_of_its_pods(second: str, tmp_path: Path) -> None:
    spec = example("kubernetes-job.yaml")["spec"]
    assert ("Indexed", 1, 0) == (spec["completionMode"], spec["parallelism"], spec["backoffLimitPerIndex"])
    (container,) = spec["template"]["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    here = [each.replace(mounts["shards"], str(tmp_path / "shards")) for each in container["command"]]
    codes = []
    for index, script in zip(range(spec["completions"]), (Script(), FAULTY[second]), strict=True):
        with serving(script) as server:
            shard(tmp_path / f"shards/{index}.yaml", server.url, 512 * (index + 1), tmp_path / f"runs/{index}")
            codes.append(shell(here, tmp_path, JOB_COMPLETION_INDEX=str(index))[0])
    assert 0 == kvgate("import", tmp_path / "runs", "--in", tmp_path / "whole").code
    merged = kvgate("merge", *(tmp_path / "whole").glob("*-*-*"))
    expected = 1 if second == "faulty" else 0
    assert ([0, expected], expected) == (codes, merged.code), merged.out + merged.err


def test_tests_side_by_side_pass_only_if_each_shard_does(second: str, tmp_path: Path) -> None:
    test = tmp_path / "test_shards.py"
    shutil.copy(MATRIX / "shards_by_pytest.py", test)
    with serving() as one, serving(FAULTY[second]) as other:
        shard(tmp_path / "shards/a.yaml", one.url, 512, tmp_path / "runs")
        shard(tmp_path / "shards/b.yaml", other.url, 1024, tmp_path / "runs")
        argv = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", str(test)]
        code, told = shell(argv, tmp_path, KVGATE_SHARDS=str(tmp_path / "shards"))
    assert (1 if second == "faulty" else 0) == code, told
    assert ("2 passed" if second == "faulty" else "3 passed") in told
    merged = kvgate("merge", *(tmp_path / "runs").glob("[0-9]*-*-*"))
    assert code == merged.code, merged.out + merged.err
    (tmp_path / "none").mkdir()
    assert 0 != shell(argv, tmp_path, KVGATE_SHARDS=str(tmp_path / "none"))[0], "no shard is no pass"
