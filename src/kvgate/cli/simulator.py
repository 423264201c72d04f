"""``kvgate sim`` and ``kvgate selftest``: the embedded deployment, and the gate held against its faults."""

import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio
import yaml
from pydantic import TypeAdapter
from rich.table import Table

from kvgate.cli.event_loop import run_async
from kvgate.cli.exit_codes import ExitCode
from kvgate.cli.output import ListFormat, ProgressWatcher, out
from kvgate.cli.run import carry_out
from kvgate.config.load import load_config_with_digest
from kvgate.domain.judge import judge
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import RunVerdict
from kvgate.errors import ConfigError
from kvgate.sim.faults import BY_NAME, FAULTS, Fault
from kvgate.sim.node import Shape, make_deployment
from kvgate.sim.server import MODEL, serving
from kvgate.store.run_directory import read_history, read_manifest

# Benign shape noise shows at lengths that are not aligned only.
UNALIGNED = ("shape_noise_15", "shape_noise_45")


@dataclass(frozen=True, slots=True)
class SelfTest:
    """One fault, what a correct gate must say, and what this gate said."""

    fault: str
    sentence: str
    required: str
    verdict: str
    reasons: tuple[str, ...]
    right: bool
    seconds: float


def serve(port: int, fault: str) -> ExitCode:
    """Serve one embedded engine on loopback until interrupted."""
    run_async(_serve, port, _known(fault).name)
    return ExitCode.PASS


async def _serve(port: int, fault: str) -> None:
    deployment = make_deployment(Shape(), fault=fault)
    async with serving(deployment.nodes[0], port) as bound:
        out().print(f"serving model {MODEL} with fault {fault} at http://127.0.0.1:{bound} (Ctrl-C ends it)")
        await anyio.sleep_forever()


def list_faults(form: ListFormat) -> ExitCode:
    """List the fault table."""
    if form is ListFormat.JSON:
        rows = TypeAdapter(list[Fault]).dump_json(list(FAULTS), indent=1).decode()
        sys.stdout.write(rows + "\n")
        return ExitCode.PASS
    table = Table("fault", "what it does", "made after", "where", "required", "by reason of")
    for fault in FAULTS:
        table.add_row(fault.name, fault.sentence, fault.models, fault.where, fault.verdict, " ".join(fault.reasons))
    out().print(table)
    return ExitCode.PASS


def selftest(names: list[str], form: ListFormat) -> ExitCode:
    """Gate every fault (or those named) and hold the verdict against the required one."""
    chosen = [_known(name) for name in names] or list(FAULTS)
    results: list[SelfTest] = []
    with tempfile.TemporaryDirectory() as folder, ProgressWatcher(form is ListFormat.JSON) as watcher:
        for number, fault in enumerate(chosen, start=1):
            watcher.said(f"{number} of {len(chosen)}: {fault.name}")
            results.append(_test(fault, Path(folder)))
    wrong = [result for result in results if not result.right]
    if form is ListFormat.JSON:
        sys.stdout.write(TypeAdapter(list[SelfTest]).dump_json(results, indent=1).decode() + "\n")
    else:
        _print(results, wrong)
    return ExitCode.FAIL if wrong else ExitCode.PASS


def _test(fault: Fault, folder: Path) -> SelfTest:
    begun = time.monotonic()
    ruling = run_async(_gate, fault, folder / fault.name)
    reasons = tuple(problem.reason.value for problem in ruling.reasons)
    named = not fault.reasons or bool(set(reasons) & set(fault.reasons))
    return SelfTest(
        fault=fault.name,
        sentence=fault.sentence,
        required=fault.verdict,
        verdict=ruling.verdict.value,
        reasons=reasons,
        right=ruling.verdict.value == fault.verdict and named,
        seconds=round(time.monotonic() - begun, 2),
    )


async def _gate(fault: Fault, folder: Path) -> RunVerdict:
    """One run of the real gate against one embedded deployment, over real sockets."""
    deployment = make_deployment(Shape(), fault=fault.name)
    async with serving(deployment.nodes[0]) as port:
        path = _config(folder, port, aligned=fault.name not in UNALIGNED)
        config, digest = load_config_with_digest(path)
        run_path, _ = await carry_out(config, (path, digest), None, ProgressWatcher(quiet=True))
    return judge(read_manifest(run_path).plan, RunRecord(read_history(run_path)))


def _config(folder: Path, port: int, aligned: bool) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "version": 1,
        "deployment": {
            "name": "selftest",
            "model": MODEL,
            "endpoints": [{"name": "engine", "url": f"http://127.0.0.1:{port}"}],
        },
        "gate": {
            "tiers": [340, 980],
            "lengths": "aligned" if aligned else "exact",
            "groups_per_tier": 3,
            "boundaries": False,
            # Every deployment is new, so nonces may come again, and the same self-test gives the same result.
            "seed": 7,
        },
        "requests": {"max_tokens": 24},
        "limits": {"settle_s": 0.02, "put_deadline_s": 2.0, "evidence_s": 0.2},
        "output": {"directory": str(folder / "runs")},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def _known(name: str) -> Fault:
    if name not in BY_NAME:
        raise ConfigError(f"there is no fault {name!r}; `kvgate sim faults` lists them")
    return BY_NAME[name]


def _print(results: list[SelfTest], wrong: list[SelfTest]) -> None:
    table = Table("fault", "what it does", "required", "verdict", "reasons", "")
    for result in results:
        told = " ".join(reason for reason in result.reasons if reason != "TIER_NOT_COVERED")
        mark = "[green]right[/]" if result.right else "[red]WRONG[/]"
        table.add_row(result.fault, result.sentence, result.required, result.verdict, told, mark)
    console = out()
    console.print(table)
    seconds = sum(asdict(result)["seconds"] for result in results)
    console.print(f"{len(results) - len(wrong)} of {len(results)} right, {seconds:.0f} s (simulator, not an engine)")
