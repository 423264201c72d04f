"""The reproducer of a FAIL: it fails where the run failed, passes where nothing is wrong, and audits what was left."""

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from kvgate.cli.event_loop import run_async
from kvgate.cli.selftest import config_for
from kvgate.sim.deployment import Deployment, make_deployment, serving
from kvgate.sim.faults import BY_NAME
from kvgate.sim.memory import Memory
from kvgate.sim.network import make_weights
from kvgate.sim.presets import PRESETS, scaled
from kvgate.sim.topology import Topology
from kvgate.store.replay_file import replay_schema
from tests.cli.driving import Ended, kvgate, kvgate_process
from tests.scripted.server import serving as serving_script

SMALL = scaled(PRESETS["dense"], 16)


@dataclass(frozen=True)
class Bench:
    """A gated deployment: its run, and how commands are run while it serves."""

    deployment: Deployment
    folder: Path
    config: Path
    run: Path

    async def command(self, *argv: str | Path) -> Ended:
        """Run a command beside the deployment."""
        return await asyncio.to_thread(kvgate_process, *argv)

    @property
    def replay_file(self) -> Path:
        """The replay file of the run's reproducer."""
        (file,) = (self.run / "replay").glob("*.json")
        return file


Body = Callable[[Bench], Awaitable[None]]


def gated(folder: Path, fault: str, body: Body, topology: Topology = Topology.COMBINED, **sections: Any) -> None:
    """Gate a deployment with a fault, and go on with it."""
    run_async(_gated, folder, fault, body, topology, sections)


async def _gated(folder: Path, fault: str, body: Body, topology: Topology, sections: dict[str, Any]) -> None:
    deployment = make_deployment(SMALL, topology, fault)
    async with serving(deployment) as urls:
        file = config_of(folder, urls, sections)
        await asyncio.to_thread(kvgate_process, "run", "-q", "-c", file)
        await body(Bench(deployment, folder, file, next((folder / "runs").glob("[0-9]*"))))


def config_of(folder: Path, urls: dict[str, str], sections: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    content: dict[str, Any] = config_for(BY_NAME["healthy"], urls, folder)
    content["gate"] |= {"tiers": [147, 275], "groups_per_tier": 1, "sentinel": False, **sections.pop("gate", {})}
    content |= sections
    file = folder / "gate.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return file


async def script(file: Path, **env: str) -> tuple[int | None, str]:
    """Run the script of plain requests."""
    done = await asyncio.create_subprocess_exec(
        "bash",
        str(file),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={"PATH": "/usr/bin:/bin", **env},
    )
    said, _ = await done.communicate()
    return done.returncode, said.decode()


@pytest.mark.parametrize("topology", [Topology.COMBINED, Topology.PAIR, Topology.PD])
def test_the_reproducer_fails_on_the_faulty_deployment_and_passes_on_a_healthy_one(
    topology: Topology, tmp_path: Path
) -> None:
    async def body(bench: Bench) -> None:
        file = bench.replay_file
        faulty = await bench.command("replay", "-q", file)
        assert 1 == faulty.code, faulty.err
        assert "t147-1" in faulty.out
        async with serving(make_deployment(SMALL, topology)) as urls:
            other = config_of(bench.folder / "other", urls, {})
            healthy = await bench.command("replay", "-q", file, "-c", other)
        assert 0 == healthy.code, healthy.out + healthy.err

    gated(tmp_path, "one_block", body, topology)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the script takes curl")
@pytest.mark.parametrize("topology", [Topology.COMBINED, Topology.PAIR])
def test_the_script_of_plain_requests_does_the_same(topology: Topology, tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        plain = bench.replay_file.with_suffix(".sh")
        code, said = await script(plain)
        assert (1, True) == (code, "DIFFERENT" in said), said
        for node in bench.deployment.nodes.values():
            node.fault = "healthy"
        code, said = await script(plain)
        assert (0, True) == (code, "alike" in said), said

    gated(tmp_path, "one_block", body, topology)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the script takes curl")
def test_a_script_that_nobody_answers_is_no_verdict(tmp_path: Path) -> None:
    scripts: list[Path] = []

    async def body(bench: Bench) -> None:
        scripts.append(bench.replay_file.with_suffix(".sh"))

    gated(tmp_path, "one_block", body)
    code, said = run_async(script, scripts[0])
    assert (2, True) == (code, "no answer from http://127.0.0.1" in said), said


def test_a_replay_file_fits_its_schema_and_says_what_differed(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        content = json.loads(bench.replay_file.read_text(encoding="utf-8"))
        jsonschema.validate(content, replay_schema())
        assert "DRIFT" in content["differed"][0] or "DIVERGED" in content["differed"][0]
        assert content["plan"]["groups"][0]["length"] == len(content["prompts"]["whole"])
        assert ["combined"] == [each["role"] for each in content["endpoints"]]
        assert ["cold", "local"] == [each["arm"] for each in content["arms"]][:2]
        assert all(each["salt"].startswith(f"kvgate-{bench.run.name}-t147-1-") for each in content["arms"])

    gated(tmp_path, "one_block", body)


def test_every_arm_of_a_group_can_be_replayed(tmp_path: Path) -> None:
    """Also those that send other prompts than the whole one."""
    arms = ["cold", "cold_repeat", "local", "local_repeat", "external", "external_repeat", "third", "mixed", "branch"]

    async def body(bench: Bench) -> None:
        again = await bench.command("replay", "-q", bench.run, "--group", "t531-1", "--format", "json")
        assert 0 == again.code, json.loads(again.out)["ruling"]["reasons"]
        (group,) = json.loads(again.out)["ruling"]["groups"]
        assert {"mixed", "branch", "third"} <= {each["arm"] for each in group["arms"] if each["proven"]}
        missing = await bench.command("replay", "-q", bench.run)
        assert (2, True) == (missing.code, "no group of the run fails" in missing.err)

    gated(tmp_path, "healthy", body, gate={"arms": arms, "tiers": [531]})


def with_faults(deployment: Deployment, fault: str) -> None:
    for node in deployment.nodes.values():
        node.fault = fault
        node.drop_local()


@pytest.mark.parametrize("topology", [Topology.COMBINED, Topology.PAIR])
def test_poison_outlives_a_fix_and_is_found_under_the_keys_of_then(topology: Topology, tmp_path: Path) -> None:
    """Blocks that were stored wrong stay wrong once the engine is mended; new keys find nothing of it."""

    async def body(bench: Bench) -> None:
        with_faults(bench.deployment, "healthy")
        again = await bench.command("replay", "-q", bench.run)
        assert 0 == again.code, again.out
        audit = await bench.command("replay", "-q", bench.run, "--same-keys")
        assert 1 == audit.code, audit.out + audit.err
        assert "t147-1" in audit.out

    gated(tmp_path, "poisoned_put", body, topology)


def test_what_a_healthy_run_left_passes_its_audit(tmp_path: Path) -> None:
    """The control; and where nothing is left of it any more, nothing is proved."""

    async def body(bench: Bench) -> None:
        with_faults(bench.deployment, "healthy")
        group = ("--group", "t147-1", "--same-keys")
        audit = await bench.command("replay", bench.run, *group)
        assert 0 == audit.code, audit.out + audit.err
        assert "does not answer this prompt as it did then" not in audit.err
        bench.deployment.pool.empty()
        gone = await bench.command("replay", "-q", bench.run, *group)
        assert (3, True) == (gone.code, "PATH_NOT_EXERCISED" in gone.out or "EXTERNAL_MISS" in gone.out), gone.out

    gated(tmp_path, "healthy", body)


def test_another_build_is_not_taken_for_poison(tmp_path: Path) -> None:
    """Where the engine itself answers otherwise than then, that is said, and nothing has to be exact."""

    async def body(bench: Bench) -> None:
        with_faults(bench.deployment, "healthy")
        for node in bench.deployment.nodes.values():
            node.memory = Memory(make_weights(1), node.memory.words)
        audit = await bench.command("replay", bench.run, "--group", "t147-1", "--same-keys")
        assert "does not answer this prompt as it did then" in audit.err, audit.err

    gated(tmp_path, "healthy", body)


def test_bad_input_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        for argv, said in (
            ((bench.run, "--group", "t9-9"), "there is no group 't9-9'; the run has"),
            ((bench.replay_file, "--group", "t9-9"), "holds group t147-1, not t9-9"),
            ((tmp_path / "none.json",), "there is no such file; give a replay file"),
            ((bench.run / "manifest.json",), "this kvgate reads 'kvgate.replay/1'"),
        ):
            ended = await bench.command("replay", "-q", *argv)
            assert (2, True) == (ended.code, said in ended.err), ended.err
            assert 1 == len(ended.err.strip().splitlines())
        bench.config.write_text(bench.config.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
        ended = await bench.command("replay", "-q", bench.run)
        assert (2, True) == (ended.code, "was changed since run" in ended.err)
        again = await bench.command("replay", "-q", bench.run, "-c", bench.config)
        assert 1 == again.code

    gated(tmp_path, "one_block", body)


def test_no_secret_gets_into_a_reproducer(tmp_path: Path) -> None:
    from tests.cli.driving import config_file, only_run
    from tests.scripted.server import Script

    with serving_script(Script(fault="drift")) as server:
        file = config_file(tmp_path, server, deployment={"auth": {"bearer_env": "KVGATE_TEST_KEY"}})
        assert 1 == kvgate("run", "-q", "-c", file, env={"KVGATE_TEST_KEY": "sk-very-secret"}).code
    written = list((only_run(tmp_path) / "replay").iterdir())
    assert {".json", ".sh"} == {each.suffix for each in written}
    assert not any("sk-very-secret" in each.read_text(encoding="utf-8") for each in written)
    plain = next(each for each in written if each.suffix == ".sh")
    assert "${KVGATE_TEST_KEY:?" in plain.read_text(encoding="utf-8")
