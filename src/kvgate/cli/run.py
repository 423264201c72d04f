"""``kvgate run``: connect, explore, plan, carry out, judge, report."""

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from kvgate import __version__
from kvgate.cli.clock import RealClock
from kvgate.cli.event_loop import run_async
from kvgate.cli.exit_codes import ExitCode, exit_code
from kvgate.cli.exploring import Explored, draw_seed, explore, plan_for
from kvgate.cli.identity import asked_in, stated_in, told_by
from kvgate.cli.interrupting import until_done_or_interrupted
from kvgate.cli.output import Format, ProgressWatcher, emit
from kvgate.cli.recording import enter
from kvgate.cli.reproducing import tell_reproducer
from kvgate.cli.wiring import Connection, connect
from kvgate.config.load import load_config_with_digest
from kvgate.config.schema import Config
from kvgate.domain.fingerprint import COMPONENTS
from kvgate.domain.judge import judge
from kvgate.domain.plan import Plan
from kvgate.domain.planning import Prompts
from kvgate.domain.policy import PolicyName
from kvgate.domain.record import RunRecord
from kvgate.engines.hooks import ProcessHooks
from kvgate.errors import ConfigError
from kvgate.gate.course import AS_PLANNED, Course
from kvgate.gate.line import Outside
from kvgate.gate.lookout import Eye
from kvgate.gate.session import Session, Settings
from kvgate.report.document import make_report
from kvgate.report.junit import report_junit
from kvgate.store.run_directory import Manifest, RunDirectory, read_history, read_manifest, write_verdict

# What seed 002 §12 wants recorded and the endpoints do not tell this version of kvgate.
UNTOLD = (*COMPONENTS, "checkpoint", "quantisation", "device", "topology")


@dataclass(frozen=True, slots=True)
class Decided:
    """What is carried out: a plan, where its prompts come from, and how it goes otherwise than the plan says."""

    plan: Plan
    prompts: Prompts
    course: Course = AS_PLANNED


Decide = Callable[[Connection, Explored], Decided]


def run_gate(path: Path, policy: PolicyName | None, form: Format, junit: Path | None, quiet: bool) -> ExitCode:
    """Run the gate and print its report."""
    config, digest = load_config_with_digest(path)
    if junit is not None and not junit.parent.is_dir():
        raise ConfigError(f"--junit {junit}: the folder {junit.parent} does not exist; make it first")
    if junit is not None and junit.is_dir():
        raise ConfigError(f"--junit {junit}: is a folder; give the name of a file")
    with ProgressWatcher(quiet) as watcher:
        run_path, interrupted = run_async(carry_out, config, (path, digest), policy, watcher)
    # Judged from what is on disk, as `kvgate judge` does: the record is the only input.
    manifest = read_manifest(run_path)
    ruling = judge(manifest.plan, RunRecord(read_history(run_path)))
    write_verdict(run_path, ruling)
    enter(run_path, manifest, ruling)
    report = make_report(manifest.run_id, manifest.kvgate_version, manifest.started_at, manifest.plan, ruling)
    if junit is not None:
        _write_junit(junit, report_junit(report))
    emit(report, form)
    for told in tell_reproducer(run_path, manifest, ruling, config):
        watcher.said(told)
    watcher.said(f"kept in {run_path}")
    return exit_code(ruling, interrupted)


def _write_junit(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--junit {path}: cannot be written ({error.strerror}); the run is kept, and `kvgate report RUN --format "
            "junit` prints the same"
        ) from None


async def carry_out(
    config: Config, source: tuple[Path, str], policy: PolicyName | None, watcher: ProgressWatcher
) -> tuple[Path, bool]:
    """Connect, explore, plan and carry out; ``source`` is where the configuration came from and its SHA-256.

    Returns the run directory and whether the user stopped it.
    """

    def planned(connection: Connection, explored: Explored) -> Decided:
        return Decided(plan_for(connection, explored, policy), explored.prompts)

    return await carry_out_decided(config, source, planned, watcher)


async def carry_out_decided(
    config: Config, source: tuple[Path, str], decide: Decide, watcher: ProgressWatcher
) -> tuple[Path, bool]:
    """The same, where ``decide`` says what is carried out once it is known what the deployment is."""
    run_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    async with connect(config, run_id) as connection:
        watcher.said(f"asking {config.deployment.name} what it can prove")
        explored = await explore(connection, draw_seed(config), active=True)
        decided = decide(connection, explored)
        plan = decided.plan
        told = await told_by(connection, explored.facts)
        manifest = _manifest(run_id, source, plan, explored, (config, told))
        directory = RunDirectory.create(Path(config.output.directory), manifest)
        watcher.said(
            f"run {run_id}: {len(plan.groups)} groups, {plan.computed_tokens()} prompt tokens to compute, "
            f"{plan.sent_tokens()} to send"
        )
        session = _session(connection, decided, run_id, directory, watcher)
        try:
            interrupted = await until_done_or_interrupted(session)
        finally:
            try:
                await session.undo()
            finally:
                directory.close()
    return directory.path, interrupted


def _session(
    connection: Connection,
    decided: Decided,
    run_id: str,
    directory: RunDirectory,
    watcher: ProgressWatcher,
) -> Session:
    config = connection.config
    settings = Settings(
        before_arm={arm: tuple(argv) for arm, argv in config.hooks.before_arm.items()},
        after_arm={arm: tuple(argv) for arm, argv in config.hooks.after_arm.items()},
        hook_s=config.hooks.timeout_s,
        evidence_s=config.limits.evidence_s,
        restart=tuple(config.hooks.restart or ()),
        pool_down=tuple(config.hooks.pool_down or ()),
        pool_up=tuple(config.hooks.pool_up or ()),
        eye=Eye(config.limits.watch_s, config.limits.release_s),
    )
    hidden = (config.deployment.auth.bearer_env,) if config.deployment.auth is not None else ()
    outside = Outside(connection.engines(), ProcessHooks(hidden), directory, RealClock(), watcher)
    return Session(decided.plan, run_id, decided.prompts, outside, settings, decided.course)


def _manifest(
    run_id: str,
    source: tuple[Path, str],
    plan: Plan,
    explored: Explored,
    known: tuple[Config, dict[str, str]],
) -> Manifest:
    """What is written before the first probe; ``known`` is what was configured, and what engines told of themselves."""
    facts, (config, told) = explored.facts, known
    stated = stated_in(config)
    versions: list[tuple[str, str | None, str]] = [
        ("vllm", facts.version, "" if facts.version else "the server does not say"),
        *(_version(name, stated) for name in UNTOLD),
    ]
    lexicons = explored.prompts.lexicons.values()
    pieces = {piece: list(ids) for lexicon in lexicons for piece, ids in lexicon.ids.items()}
    return Manifest(
        run_id=run_id,
        kvgate_version=__version__,
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        config_path=os.fspath(source[0]),
        config_sha256=source[1],
        plan=plan,
        versions=tuple(versions),
        lexicon=pieces,
        stated=tuple(sorted((stated | told).items())),
        asked=asked_in(config),
    )


def _version(name: str, stated: dict[str, str]) -> tuple[str, str | None, str]:
    found = stated.get(name) or stated.get(f"version.{name}")
    return name, found, "" if found else "the endpoints do not tell it, and deployment.facts does not say it"
