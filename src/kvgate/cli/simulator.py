"""``kvgate sim``: the embedded deployment, served to whoever wants to try something on it."""

import json
import sys
from dataclasses import dataclass, replace

import anyio
from pydantic import TypeAdapter
from rich.table import Table

from kvgate.cli.event_loop import run_async
from kvgate.cli.exit_codes import ExitCode
from kvgate.cli.output import ListFormat, out
from kvgate.errors import ConfigError
from kvgate.sim.completions import MODEL
from kvgate.sim.deployment import make_deployment, serving, serving_alone
from kvgate.sim.faults import BY_NAME, FAULTS, Fault
from kvgate.sim.presets import PRESETS, Preset, scaled
from kvgate.sim.topology import Part, ProxyKind, Topology


@dataclass(frozen=True, slots=True)
class Wanted:
    """The deployment that was asked for."""

    fault: Fault
    preset: Preset
    topology: Topology
    proxy: ProxyKind


def known(
    fault: str, preset: str | None, divisor: int, topology: Topology | None, proxy: ProxyKind | None = None
) -> Wanted:
    """What these names stand for. Raises ConfigError."""
    row = known_fault(fault)
    name = preset or row.preset
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    try:
        chosen = scaled(PRESETS[name], divisor, row.speculation)
    except ValueError as error:
        raise ConfigError(f"--divisor {divisor}: {error}") from None
    return Wanted(row, chosen, topology or row.topology, proxy or row.proxy)


def serve(port: int, wanted: Wanted, part: Part, peers: list[str], compute_per_1k_s: float = 0.0) -> ExitCode:
    """Serve on loopback until interrupted. ``peers`` are parts in other processes, as ``pool=http://...``.

    ``compute_per_1k_s`` are seconds per 1000 prompt tokens that are computed, beside what computing them takes.
    """
    elsewhere: dict[str, list[str]] = {}
    for peer in peers:
        name, _, url = peer.partition("=")
        if name not in ("pool", "prefill", "decode") or not url.startswith("http://"):
            raise ConfigError(
                f"--peer {peer}: must be pool=, prefill= or decode= and an address like http://127.0.0.1:1"
            )
        elsewhere.setdefault(name, []).append(url.rstrip("/"))
    if part is Part.PROXY and not (elsewhere.get("prefill") and elsewhere.get("decode")):
        raise ConfigError("--part proxy needs --peer prefill=URL and --peer decode=URL")
    dials = replace(wanted.fault.dials, compute_per_1k_s=compute_per_1k_s)
    run_async(_serve, port, replace(wanted, fault=replace(wanted.fault, dials=dials)), part, elsewhere)
    return ExitCode.PASS


async def _serve(port: int, wanted: Wanted, part: Part, elsewhere: dict[str, list[str]]) -> None:
    fault, preset = wanted.fault, wanted.preset
    if part is Part.ALL:
        whole = serving(make_deployment(preset, wanted.topology, fault.name, fault.dials, proxy=wanted.proxy), port)
    else:
        whole = serving_alone(part, preset, fault.name, fault.dials, port, elsewhere, wanted.proxy)
    try:
        async with whole as urls:
            out().print(f"model {MODEL}, preset {preset.name}, fault {fault.name} (Ctrl-C ends it)", soft_wrap=True)
            for name, url in urls.items():
                out().print(f"  {name:8} {url}", soft_wrap=True)
            await anyio.sleep_forever()
    except OSError as error:
        raise ConfigError(f"--port {port}: cannot be listened on ({error.strerror}); take another, or 0") from None


def list_faults(form: ListFormat) -> ExitCode:
    """List the fault table."""
    if form is ListFormat.JSON:
        sys.stdout.write(json.dumps(TypeAdapter(list[Fault]).dump_python(list(FAULTS), mode="json"), indent=1) + "\n")
        return ExitCode.PASS
    table = Table("fault", "what it does", "made after", "where", "guilty", "shows on", "required", "by reason of")
    for fault in FAULTS:
        place = [fault.preset] if fault.topology is Topology.COMBINED else [fault.preset, fault.topology.value]
        place += [] if fault.proxy is ProxyKind.ASCEND else [fault.proxy.value]
        required = fault.verdict if not fault.needs else f"{fault.verdict}, given {fault.needs}"
        reasons = " ".join(fault.reasons)
        table.add_row(
            fault.name, fault.sentence, fault.models, fault.where, fault.guilty, " ".join(place), required, reasons
        )
    out().print(table)
    return ExitCode.PASS


def known_fault(name: str) -> Fault:
    """The row of a fault. Raises ConfigError."""
    if name not in BY_NAME:
        raise ConfigError(f"there is no fault {name!r}; `kvgate sim faults` lists them")
    return BY_NAME[name]
