"""``kvgate selftest``: the gate held against every fault of the embedded deployment."""

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import TypeAdapter
from rich.table import Table

from kvgate.cli.event_loop import run_async
from kvgate.cli.exit_codes import ExitCode
from kvgate.cli.output import ListFormat, ProgressWatcher, out
from kvgate.cli.run import carry_out
from kvgate.cli.simulator import known_fault
from kvgate.config.load import load_config_with_digest
from kvgate.domain.judge import judge
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import RunVerdict
from kvgate.domain.verdict import Verdict
from kvgate.errors import KvgateError
from kvgate.sim.completions import MODEL
from kvgate.sim.deployment import Deployment, make_deployment, serving
from kvgate.sim.faults import FAULTS, Fault
from kvgate.sim.presets import PRESETS, scaled
from kvgate.sim.topology import Topology
from kvgate.store.run_directory import read_history, read_manifest

SCALE = 16
USUAL_ARMS = ("cold", "cold_repeat", "local", "local_repeat", "external", "external_repeat")
TIERS = {"aligned": (531, 1043), "exact": (700, 980)}


@dataclass(frozen=True, slots=True)
class SelfTest:
    """One fault, what a correct gate must say, and what this gate said."""

    fault: str
    sentence: str
    required: str
    verdict: str
    reasons: tuple[str, ...]
    parts: tuple[str, ...]
    right: bool
    seconds: float


def selftest(names: list[str], form: ListFormat, jobs: int | None = None) -> ExitCode:
    """Gate every fault (or those named) and hold the verdict against the required one."""
    chosen = [known_fault(name) for name in names] or list(FAULTS)
    tested = [fault for fault in chosen if not fault.needs]
    begun = time.monotonic()
    results: list[SelfTest] = []
    with ProgressWatcher(form is ListFormat.JSON) as watcher, _testing(len(tested), jobs) as each:
        for number, result in enumerate(each(tested), start=1):
            watcher.said(f"{number} of {len(tested)}: {result.fault}")
            results.append(result)
    wrong = [result for result in results if not result.right]
    if form is ListFormat.JSON:
        sys.stdout.write(TypeAdapter(list[SelfTest]).dump_json(results, indent=1).decode() + "\n")
    else:
        _print(results, wrong, [fault for fault in chosen if fault.needs], time.monotonic() - begun)
    if not results:
        return ExitCode.INCONCLUSIVE
    return ExitCode.FAIL if wrong else ExitCode.PASS


@contextmanager
def _testing(count: int, jobs: int | None) -> Iterator[Callable[[list[Fault]], Iterable[SelfTest]]]:
    """Something that maps faults to their results, in order: in this process, or in several."""
    # Some faults are waited for (counters that never move): two more runs than cores fill that time.
    workers = min(jobs if jobs is not None else (os.cpu_count() or 1) + 2, count)
    if workers <= 1:
        yield lambda faults: map(check, faults)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        yield lambda faults: pool.map(check, faults)


def check(fault: Fault) -> SelfTest:
    """Gate one fault."""
    begun = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="kvgate-selftest-") as folder:
            ruling = run_async(_gate, fault, Path(folder))
        verdict, reasons = ruling.verdict.value, tuple(problem.reason.value for problem in ruling.reasons)
        parts = parts_blamed(ruling)
    except KvgateError as error:
        # A gate that could not run has given no verdict, which is never the one that is required.
        verdict, reasons, parts = "none", (str(error),), set()
    named = not fault.reasons or bool(set(reasons) & set(fault.reasons))
    # Groups that convict together blame no part, and requests that get into each other may do so in any; whoever
    # blames a part has to blame the right one.
    named_parts = parts - {"isolation"}
    blamed = not (fault.guilty and named_parts) or named_parts == {_DOORS[fault.guilty]}
    return SelfTest(
        fault=fault.name,
        sentence=fault.sentence,
        required=fault.verdict,
        verdict=verdict,
        reasons=reasons,
        parts=tuple(sorted(parts)),
        right=verdict == fault.verdict and named and blamed,
        seconds=round(time.monotonic() - begun, 2),
    )


# How the gate calls the part of the simulator that a fault's row names.
_DOORS = {"pool": "external path", "transfer": "transfer", "proxy": "gateway"}


def parts_blamed(ruling: RunVerdict) -> set[str]:
    """The parts that a ruling's failures speak against."""
    pairs = [pair for group in ruling.groups for pair in group.pairs if pair.verdict is Verdict.FAIL]
    return {pair.attribution.split(":")[0] for pair in pairs if pair.attribution is not None}


def deployment_for(fault: Fault, divisor: int = SCALE) -> Deployment:
    """The embedded deployment a fault shows on, its lengths divided."""
    preset = scaled(PRESETS[fault.preset], divisor, fault.speculation)
    return make_deployment(preset, fault.topology, fault.name, fault.dials, proxy=fault.proxy)


async def _gate(fault: Fault, folder: Path) -> RunVerdict:
    """One run of the real gate against one embedded deployment, over real sockets."""
    async with serving(deployment_for(fault)) as urls:
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(config_for(fault, urls, folder)), encoding="utf-8")
        config, digest = load_config_with_digest(path)
        run_path, _ = await carry_out(config, (path, digest), None, ProgressWatcher(quiet=True))
    return judge(read_manifest(run_path).plan, RunRecord(read_history(run_path)))


def config_for(fault: Fault, urls: dict[str, str], folder: Path) -> dict[str, object]:
    """The configuration that gates a fault's deployment."""
    roles = {"gateway": "gateway", "prefill": "prefill", "decode": "decode"}
    endpoints = [
        {"name": name, "role": roles.get(name.rstrip("23456789"), "combined"), "url": url}
        for name, url in urls.items()
        if name != "pool"
    ]
    return {
        "version": 1,
        "deployment": {"name": "selftest", "model": MODEL, "endpoints": endpoints, "alike": fault.alike},
        "gate": {
            "tiers": list(fault.tiers or TIERS[fault.lengths]),
            "lengths": fault.lengths,
            **({"arms": [*USUAL_ARMS, *fault.arms]} if fault.arms else {}),
            "groups_per_tier": 2 if fault.topology is Topology.PD else 3,
            "canaries": fault.canaries,
            **({"pressure": _pressure(fault)} if fault.pressure or fault.between else {}),
            # Asked where it must find something, and where it must not; elsewhere it only takes time.
            "sentinel": fault.where in ("engine", "control"),
            "boundaries": False,
            "short_control": False,
            # Every deployment is new, so nonces may come again, and the same self-test gives the same result.
            "seed": 7,
        },
        "policy": {"lossy_bound_nat": fault.declared},
        # Of an answer that is gone on from enough has to be reused to show; elsewhere it only takes time.
        "requests": {"max_tokens": 24 if "continuation" in fault.arms else 16},
        **({"hooks": _hooks(urls["pool"])} if fault.outage else {}),
        "limits": {"settle_s": 0.02, "put_deadline_s": 2.0, "evidence_s": 0.2, "release_s": 0.5},
        "output": {"directory": str(folder / "runs")},
    }


def _pressure(fault: Fault) -> dict[str, object]:
    return {"concurrency": fault.pressure, "cancel_share": fault.cancels, "between": fault.between}


def _hooks(pool: str) -> dict[str, list[str]]:
    """Commands that take the embedded pool away and bring it back."""
    post = "import sys, urllib.request as r; r.urlopen(r.Request(sys.argv[1], method='POST'), timeout=10)"
    return {f"pool_{way}": [sys.executable, "-c", post, pool + path] for way, path in _WAYS.items()}


_WAYS = {"down": "/leave", "up": "/come_back"}


def _print(results: list[SelfTest], wrong: list[SelfTest], left_out: Iterable[Fault], seconds: float) -> None:
    table = Table("fault", "what it does", "required", "verdict", "reasons", "")
    for result in results:
        told = " ".join(reason for reason in result.reasons if reason != "TIER_NOT_COVERED")
        mark = "[green]right[/]" if result.right else "[red]WRONG[/]"
        table.add_row(result.fault, result.sentence, result.required, result.verdict, told, mark)
    console = out()
    console.print(table)
    for fault in left_out:
        console.print(f"not tested: {fault.name}: it needs {fault.needs}, which this test does not send")
    console.print(f"{len(results) - len(wrong)} of {len(results)} right, {seconds:.0f} s (simulator, not an engine)")
