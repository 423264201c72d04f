"""``kvgate demo``: three embedded prefill/decode deployments on a pool, gated one after the other, one minute."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from kvgate.cli.event_loop import run_async
from kvgate.cli.exit_codes import ExitCode
from kvgate.cli.output import ProgressWatcher, out
from kvgate.cli.run import carry_out
from kvgate.config.load import load_config_with_digest
from kvgate.domain.judge import judge
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import RunVerdict
from kvgate.errors import ConfigError
from kvgate.report.document import make_report
from kvgate.report.table import print_brief
from kvgate.sim.completions import MODEL
from kvgate.sim.deployment import make_deployment, serving
from kvgate.sim.memory import Memory
from kvgate.sim.network import make_weights
from kvgate.sim.presets import PRESETS
from kvgate.sim.topology import Topology
from kvgate.sim.words import Dictionary
from kvgate.store.run_directory import read_history, read_manifest, write_verdict

PRESET = "deepseek-v4-flash-32"
TIERS = (8192, 16384)


@dataclass(frozen=True, slots=True)
class Act:
    """One deployment of the demo: what is told of it beforehand, and the verdict it must get."""

    title: str
    told: str
    fault: str
    verdict: str


ACTS = (
    Act(
        "1. A healthy deployment",
        "Prefill, decode and a proxy, with an external pool on the prefill side. Nothing is wrong.",
        "healthy",
        "PASS",
    ),
    Act(
        "2. A pool that returns subtly wrong KV",
        "The same, but the last block of every load comes back as zeros (after LMCache #4984).\n"
        "The server answers HTTP 200, the text looks fine, counters and usage report a full hit.",
        "zero_last_block",
        "FAIL",
    ),
    Act(
        "3. A pool whose loads fail without a word",
        "The same, but loads fail, the engine only logs it and goes on with unfilled blocks\n"
        "(as in vllm-ascend #12522). Again HTTP 200, and counters that report a full hit.",
        "swallowed_failure",
        "FAIL",
    ),
)
INTRODUCTION = f"""\
Three deployments, embedded in kvgate: no engine, no GPU. A small network with the KV groups of
DeepSeek-V4-Flash (block 32) answers from the KV bytes it reads, over real HTTP. Each is gated at
{TIERS[0]} and {TIERS[1]} prompt tokens: every prompt is served cold, from the engine's own prefix cache
and from the pool, the engine's counters must prove it, and the answers are compared.
"""


def demo(keep: Path | None) -> ExitCode:
    """Gate the three deployments and print their reports; exit 1 if a verdict is not the one it must be."""
    if keep is not None and keep.exists() and not keep.is_dir():
        raise ConfigError(f"--keep {keep}: is a file; give the name of a folder")
    begun = time.monotonic()
    console = out()
    console.print(INTRODUCTION, markup=False)
    memory = Memory(make_weights(), Dictionary())
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="kvgate-demo-") as folder, ProgressWatcher(quiet=False) as watcher:
        for act in ACTS:
            console.rule(f"[bold]{act.title}", align="left")
            console.print(act.told + "\n", markup=False)
            ruling = run_async(_play, act, Path(folder), keep or Path(folder), memory, watcher)
            console.print("\n" + _token_ids_alone(ruling) + "\n", markup=False)
            wrong += ruling.verdict.value != act.verdict
    _print_end(time.monotonic() - begun, keep)
    return ExitCode.FAIL if wrong else ExitCode.PASS


async def _play(act: Act, folder: Path, runs: Path, memory: Memory, watcher: ProgressWatcher) -> RunVerdict:
    """Gate one deployment over real sockets and print its report."""
    deployment = make_deployment(PRESETS[PRESET], Topology.PD, act.fault, memory=memory)
    async with serving(deployment) as urls:
        path = folder / f"{act.fault}.yaml"
        path.write_text(yaml.safe_dump(_config(act, urls, runs)), encoding="utf-8")
        config, digest = load_config_with_digest(path)
        run_path, _ = await carry_out(config, (path, digest), None, watcher)
    manifest = read_manifest(run_path)
    ruling = judge(manifest.plan, RunRecord(read_history(run_path)))
    write_verdict(run_path, ruling)
    report = make_report(manifest.run_id, manifest.kvgate_version, manifest.started_at, manifest.plan, ruling)
    print_brief(report, out())
    return ruling


def _config(act: Act, urls: dict[str, str], runs: Path) -> dict[str, object]:
    endpoints = [{"name": name, "role": name, "url": urls[name]} for name in ("gateway", "prefill", "decode")]
    return {
        "version": 1,
        "deployment": {"name": act.fault, "model": MODEL, "endpoints": endpoints, "alike": True},
        "gate": {"tiers": list(TIERS), "groups_per_tier": 3, "boundaries": False, "short_control": False, "seed": 7},
        "limits": {"settle_s": 0.02, "put_deadline_s": 2.0, "evidence_s": 1.0},
        "output": {"directory": str(runs)},
    }


def _token_ids_alone(ruling: RunVerdict) -> str:
    """What comparing token IDs, and nothing else, would have said of the same answers."""
    pairs = [pair for group in ruling.groups for pair in group.pairs if pair.ids_equal is not None]
    differing = sum(not pair.ids_equal for pair in pairs)
    if differing:
        return f"Token IDs alone: {differing} of {len(pairs)} comparisons differ. A token-ID check sees this one, too."
    text = f"Token IDs alone: all {len(pairs)} comparisons are equal"
    return f"{text}. A token-ID check calls this deployment fine." if ruling.verdict.value == "FAIL" else f"{text}."


def _print_end(seconds: float, keep: Path | None) -> None:
    kept = f"The three runs are kept in {keep}; `kvgate judge RUN` judges one again.\n" if keep is not None else ""
    out().rule(align="left")
    out().print(
        f"{kept}Done in {seconds:.0f} s. These are simulator figures. To go on:\n"
        "  kvgate sim faults                         what else can be planted\n"
        "  kvgate selftest                           the gate held against all of it\n"
        "  kvgate sim serve --fault no_recurrent     one deployment, to gate by hand\n"
        "  kvgate run -c gate.yaml                   your own deployment (README: Run the gate)",
        markup=False,
        highlight=False,
    )
