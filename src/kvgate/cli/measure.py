"""``kvgate measure``: the same trace to several deployments, one after the other, and their figures side by side."""

import secrets
import sys
import time
from contextlib import AsyncExitStack
from datetime import datetime, timezone
from pathlib import Path

from kvgate import __version__
from kvgate.cli.clock import RealClock
from kvgate.cli.event_loop import run_async
from kvgate.cli.exit_codes import ExitCode
from kvgate.cli.exploring import tokenised
from kvgate.cli.interrupting import until_done_or_interrupted
from kvgate.cli.output import ListFormat, ProgressWatcher, out
from kvgate.cli.wiring import Connection, connect
from kvgate.config.load import load_config_with_digest, load_trace_with_digest
from kvgate.config.schema import Config
from kvgate.config.trace_schema import trace_of
from kvgate.domain.deployment import Role
from kvgate.domain.hindrances import Obstacle
from kvgate.domain.measured import MeasuredDeployment, MeasurePlan
from kvgate.domain.prompt import TooShortError
from kvgate.domain.trace import Planned, Trace, TracePrompts, planned
from kvgate.errors import ConfigError
from kvgate.gate.measuring import MeasureOutside, Measuring, Target
from kvgate.ports import Engine
from kvgate.report.measure_document import MeasureReport, make_measure_report, measure_json
from kvgate.report.measure_table import print_measure
from kvgate.store.measure_directory import MeasureDirectory, MeasureManifest, read_measure, read_requests

# Engines whose counters tell where prompt tokens came from.
COUNTING = (Role.COMBINED, Role.PREFILL, Role.DECODE)
# Deployments that tokenise more of the texts than this share in another way do not serve one model.
OTHER_TOKENS = 0.1

Sources = list[tuple[Path, Config, str]]


def measure(configs: list[Path], trace: Path | None, record: Path | None, form: ListFormat, quiet: bool) -> ExitCode:
    """Measure, or report a measurement again, and print the figures."""
    if record is not None:
        if configs or trace is not None:
            raise ConfigError("measure: --from reports a record again; leave -c and --trace out")
        return _print(record, form, interrupted=False)
    if not configs or trace is None:
        raise ConfigError("measure: give one or more configurations with -c and a trace with --trace, or --from DIR")
    sources = [(path, *load_config_with_digest(path)) for path in configs]
    _check_alike(sources)
    file, digest = load_trace_with_digest(trace)
    with ProgressWatcher(quiet) as watcher:
        path, interrupted = run_async(carry_out, sources, trace_of(file), (trace, digest), watcher)
    code = _print(path, form, interrupted)
    watcher.said(f"kept in {path}")
    return code


def _print(path: Path, form: ListFormat, interrupted: bool) -> ExitCode:
    """Report from what is on disk, whether it has just been measured or long ago."""
    manifest = read_measure(path)
    report = make_measure_report(
        manifest.run_id, manifest.kvgate_version, manifest.started_at, manifest.plan, read_requests(path)
    )
    if form is ListFormat.JSON:
        sys.stdout.write(measure_json(report))
    else:
        print_measure(report, out())
    return ExitCode.INTERRUPTED if interrupted else _code(report)


def _code(report: MeasureReport) -> ExitCode:
    if any(each.obstacle is Obstacle.WENT_AWAY for each in report.hindrances):
        return ExitCode.REMOTE
    return ExitCode.INCONCLUSIVE if report.hindrances else ExitCode.PASS


def _check_alike(sources: Sources) -> None:
    """Requests must be the same for all. Raises ConfigError."""
    for path, config, _ in sources:
        requests, first = config.requests, sources[0][1].requests
        if requests.endpoint != "completions":
            raise ConfigError(f"{path}: requests.endpoint: {requests.endpoint} cannot be measured; set completions")
        for name in ("stream", "ignore_eos"):
            if getattr(requests, name) != getattr(first, name):
                raise ConfigError(
                    f"{path}: requests.{name}: differs from that of {sources[0][0]}; send all deployments the same"
                )


async def carry_out(
    sources: Sources, trace: Trace, origin: tuple[Path, str], watcher: ProgressWatcher
) -> tuple[Path, bool]:
    """Connect to all, make the trace, and send it; ``origin`` is where the trace came from and its SHA-256.

    Returns the directory of the record and whether the user stopped it.
    """
    run_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connect(each, run_id, bare=True)) for _, each, _ in sources]
        watcher.said(f"asking {len(connections)} deployments what they serve")
        prompts, notes = await _prompts(connections, trace)
        labels = _labels(connections)
        deployments = tuple(
            MeasuredDeployment(
                label=label,
                deployment=connection.deployment,
                entries=tuple(engine.name for engine in connection.front()),
                salts_honoured=connection.config.deployment.salts == "honoured",
                by_source_grade=connection.dialect.by_source_grade,
                config_path=str(source[0]),
                config_sha256=source[2],
            )
            for label, connection, source in zip(labels, connections, sources, strict=True)
        )
        plan = MeasurePlan(trace, _planned(prompts, origin[0]), deployments, tuple(notes))
        manifest = MeasureManifest(
            run_id=run_id,
            kvgate_version=__version__,
            started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            trace_path=str(origin[0]),
            trace_sha256=origin[1],
            plan=plan,
        )
        directory = MeasureDirectory.create(Path(sources[0][1].output.directory), manifest)
        tokens = sum(each.length for each in plan.planned)
        watcher.said(
            f"run {run_id}: {len(plan.planned)} requests of {tokens} prompt tokens, {trace.repeats} times to each"
        )
        outside = MeasureOutside(tuple(map(_target, connections)), directory, RealClock(), watcher)
        try:
            interrupted = await until_done_or_interrupted(Measuring(plan, run_id, prompts, outside))
        finally:
            directory.close()
    return directory.path, interrupted


def _planned(prompts: TracePrompts, path: Path) -> tuple[Planned, ...]:
    try:
        return planned(prompts)
    except TooShortError as error:
        raise ConfigError(f"{path}: parts: {error}; make prompt_tokens and shared_tokens longer") from None


def _labels(connections: list[Connection]) -> list[str]:
    """Names of deployments, told apart by number where two are named alike: one may be measured against itself."""
    labels: list[str] = []
    for connection in connections:
        name = connection.deployment.name
        same = sum(each.deployment.name == name for each in connections[: len(labels)])
        labels.append(f"{name}#{same + 1}" if same else name)
    return labels


def _target(connection: Connection) -> Target:
    engines: list[tuple[Role, Engine]] = [
        (link.endpoint.role, link.engine) for link in connection.links if link.endpoint.role in COUNTING
    ]
    return Target(connection.front(), tuple(engines), connection.config.limits.evidence_s)


async def _prompts(connections: list[Connection], trace: Trace) -> tuple[TracePrompts, list[str]]:
    """What prompts are made from, as the first deployment tokenises it; the others must do so alike.

    Raises ConfigError or RemoteError.
    """
    keys = tuple(dict.fromkeys(key for part in trace.parts for key in part.families()))
    first, notes = None, list[str]()
    for connection in connections:
        await _check_serves(connection, trace)
        source = await tokenised(connection, keys, trace.seed)
        first = first or source
        mine, theirs = ({key: one.lexicons[key].ids for key in keys} for one in (source, first))
        pieces = [(key, piece) for key in keys for piece in mine[key]]
        other = sum(mine[key][piece] != theirs[key][piece] for key, piece in pieces)
        if other > OTHER_TOKENS * len(pieces):
            raise ConfigError(
                f"deployment.model: {connection.deployment.name} turns {other} of {len(pieces)} texts into other "
                f"tokens than {connections[0].deployment.name}; measure deployments of one model"
            )
        if connection.front_in_two_legs():
            notes.append(
                f"{connection.deployment.name}: kvgate sends both legs itself, so no gateway's time is in its figures"
            )
    if first is None:
        raise ConfigError("measure: give one or more configurations with -c")
    return TracePrompts(trace, first.families, first.lexicons), notes


async def _check_serves(connection: Connection, trace: Trace) -> None:
    """Whether every engine serves the model, and prompts as long as the trace's. Raises ConfigError or RemoteError."""
    deployment = connection.deployment
    for link in connection.links:
        if link.endpoint.role not in COUNTING:
            continue
        facts = await link.discovery.facts()
        if deployment.model not in facts.models:
            raise ConfigError(
                f"deployment.model: {link.endpoint.name} does not serve {deployment.model!r}; it serves "
                f"{', '.join(facts.models) or 'nothing'}; use one of these names"
            )
        limit = connection.config.deployment.geometry.max_model_len or facts.max_model_len
        part = max(trace.parts, key=lambda part: part.longest)
        if limit is not None and part.longest + trace.max_tokens > limit:
            raise ConfigError(
                f"parts: {part.name} has a prompt of {part.longest} tokens and {trace.max_tokens} to answer, "
                f"{link.endpoint.name} of {deployment.name} takes {limit}; shorten the part"
            )
