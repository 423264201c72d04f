"""``kvgate replay``: one group of a run exactly again, or an audit of what that run left in the pool."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from kvgate.cli.event_loop import run_async
from kvgate.cli.exit_codes import ExitCode, exit_code
from kvgate.cli.exploring import Explored
from kvgate.cli.output import Format, ProgressWatcher, emit
from kvgate.cli.reproducing import judged, replay_of
from kvgate.cli.run import Decided, carry_out_decided
from kvgate.cli.wiring import Connection
from kvgate.config.load import load_config_with_digest
from kvgate.config.schema import Config
from kvgate.domain.record import RunRecord
from kvgate.domain.replay import NothingToReplayError, Replay, as_sharp_as_it_may, audit_of, kept_prompts, re_pointed
from kvgate.errors import ConfigError, RecordError
from kvgate.gate.course import AS_PLANNED, Course
from kvgate.report.document import make_report
from kvgate.store.replay_file import read_replay
from kvgate.store.run_directory import MANIFEST, read_history, read_manifest, write_verdict


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for."""

    target: Path
    group: str | None
    same_keys: bool
    config: Path | None


@dataclass(frozen=True, slots=True)
class _Found:
    """What is replayed, and the configuration with where it came from and its SHA-256."""

    replay: Replay
    config: Config
    source: tuple[Path, str]


def replay(asked: Asked, form: Format, quiet: bool) -> ExitCode:
    """Send the group again, judge it as it was judged, and print the report."""
    try:
        found = _in_run(asked) if asked.target.is_dir() else _in_file(asked)
    except NothingToReplayError as error:
        raise ConfigError(f"{asked.target}: {error}") from None

    def decide(connection: Connection, explored: Explored) -> Decided:
        try:
            return _decided(found.replay, asked.same_keys, connection, explored)
        except NothingToReplayError as error:
            raise ConfigError(f"{asked.target}: {error}") from None

    with ProgressWatcher(quiet) as watcher:
        path, interrupted = run_async(carry_out_decided, found.config, found.source, decide, watcher)
        manifest = read_manifest(path)
        ruling = judged(manifest, path)
        write_verdict(path, ruling)
        report = make_report(manifest.run_id, manifest.kvgate_version, manifest.started_at, manifest.plan, ruling)
        emit(report, form)
        if asked.same_keys and not _as_then(path, found.replay):
            watcher.said(
                "the engine does not answer this prompt as it did then (another build, or another configuration), so "
                "only what is grossly wrong in the pool would show"
            )
        watcher.said(f"kept in {path}")
    return exit_code(ruling, interrupted)


def _as_then(path: Path, replay: Replay) -> bool:
    """Whether the audit could compare exactly: its pairs have controls only then."""
    group = RunRecord(read_history(path)).groups.get(replay.group.id)
    return group is None or all(pair.control is not None for pair in group.plan.pairs)


def _decided(replay: Replay, same_keys: bool, connection: Connection, explored: Explored) -> Decided:
    granule, now = replay.plan.geometry.granule, explored.geometry.granule
    if granule != now:
        raise NothingToReplayError(
            f"its hits come in granules of {granule} tokens, those of {connection.deployment.name} in {now}; replay it "
            "on a deployment with the same block sizes"
        )
    plan = replace(re_pointed(replay.plan, connection.deployment), capabilities=explored.capabilities)
    prompts = kept_prompts(replay)
    note = f"replays group {replay.group.id} of run {replay.run_id}; one group does not prove that lengths are aligned"
    if not same_keys:
        return Decided(replace(plan, notes=(note, *plan.notes)), prompts, AS_PLANNED)
    # The connection's own run is new, so its name makes a salt that was never sent.
    plan, recalled = audit_of(replay, plan, connection.run_id)
    told = (
        f"loads read what run {replay.run_id} left; its cold and local answers are those recorded then, not sent again"
    )
    course = Course(
        adapt=lambda record, group: as_sharp_as_it_may(replay, record, group),
        salts_of=replay.run_id,
        recalled={replay.group.id: recalled},
    )
    return Decided(replace(plan, notes=(note, told, *plan.notes)), prompts, course)


def _in_run(asked: Asked) -> _Found:
    """A group of a run directory, with the configuration given, else the one the run was made with."""
    manifest = read_manifest(asked.target)
    found, _ = replay_of(asked.target, manifest, judged(manifest, asked.target), asked.group)
    file = asked.config or Path(manifest.config_path)
    try:
        config, digest = load_config_with_digest(file)
    except ConfigError as error:
        if asked.config is not None:
            raise
        raise ConfigError(f"{asked.target / MANIFEST}: the run's configuration: {error}; give one with -c") from None
    if asked.config is None and digest != manifest.config_sha256:
        raise ConfigError(
            f"{file}: was changed since run {manifest.run_id}, so it may be of another deployment; give it with -c if "
            "that is meant"
        )
    return _Found(found, config, (file, digest))


def _in_file(asked: Asked) -> _Found:
    """A replay file, with the configuration given, else the one in it."""
    content = read_replay(asked.target)
    if asked.group is not None and asked.group != content.group:
        raise NothingToReplayError(f"holds group {content.group}, not {asked.group}; leave --group out")
    if asked.config is not None:
        config, digest = load_config_with_digest(asked.config)
        return _Found(content.replay(), config, (asked.config, digest))
    try:
        config = Config.model_validate(content.config)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RecordError(f"{asked.target}: config: {where}: {first['msg']}; give a configuration with -c") from None
    return _Found(content.replay(), config, (asked.target, hashlib.sha256(asked.target.read_bytes()).hexdigest()))
