"""``kvgate narrow``: after a FAIL, at which length it begins and which block is wrong."""

import sys
from dataclasses import replace
from pathlib import Path

from kvgate.cli.event_loop import run_async
from kvgate.cli.exit_codes import ExitCode
from kvgate.cli.exploring import Explored, plan_for
from kvgate.cli.output import ListFormat, ProgressWatcher, out
from kvgate.cli.reproducing import judged, tell_reproducer
from kvgate.cli.run import Decided, carry_out_decided
from kvgate.cli.wiring import Connection
from kvgate.config.load import load_config_with_digest
from kvgate.config.schema import Config
from kvgate.domain.judge import judge
from kvgate.domain.narrow_groups import Model
from kvgate.domain.narrowing import Failure, Narrowing, NothingToNarrowError, failure_in, next_group, result_of
from kvgate.domain.plan import GroupPlan, Plan, Purpose
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import RunVerdict
from kvgate.errors import ConfigError
from kvgate.gate.course import Course
from kvgate.report.narrow_document import NarrowReport, narrow_json, print_narrow
from kvgate.store.run_directory import read_manifest, write_verdict


def narrow(run: Path, config_path: Path, most: int, form: ListFormat, quiet: bool) -> ExitCode:
    """Narrow the failure of a run down, and print what it came to."""
    config, digest = load_config_with_digest(config_path)
    with ProgressWatcher(quiet) as watcher:
        path, interrupted, report = run_async(carry_out_narrowing, run, config, (config_path, digest), most, watcher)
        if form is ListFormat.JSON:
            sys.stdout.write(narrow_json(report))
        else:
            print_narrow(report, out())
        manifest = read_manifest(path)
        ruling = judged(manifest, path)
        for told in tell_reproducer(path, manifest, ruling, config):
            watcher.said(told)
        watcher.said(f"kept in {path}")
    return _code(report, ruling, interrupted)


async def carry_out_narrowing(
    run: Path, config: Config, source: tuple[Path, str], most: int, watcher: ProgressWatcher
) -> tuple[Path, bool, NarrowReport]:
    """Send what narrows the failure of a run down, and judge it from what is on disk.

    Returns the directory of what was sent, whether the user stopped it, and what it came to. Raises ConfigError where
    nothing in the run can be narrowed down.
    """
    then = read_manifest(run)
    try:
        failure = failure_in(then.plan, judged(then, run))
    except NothingToNarrowError as error:
        raise ConfigError(f"{run}: {error}") from None
    asked: list[Narrowing] = []

    def decide(connection: Connection, explored: Explored) -> Decided:
        plan = plan_for(connection, explored, None)
        _check_same(run, then.plan, plan)
        narrowing = _narrowing(plan, failure, explored, most)
        asked.append(narrowing)
        note = f"narrows down what failed in run {then.run_id}: {failure.kind.value}"
        first = next_group(narrowing, judge(narrowing.model.plan, RunRecord()))
        decided = replace(narrowing.model.plan, groups=() if first is None else (first,), notes=(note, *plan.notes))
        return Decided(decided, explored.prompts, Course(further=lambda ruling: next_group(narrowing, ruling)))

    path, interrupted = await carry_out_decided(config, source, decide, watcher)
    manifest = read_manifest(path)
    ruling = judged(manifest, path)
    write_verdict(path, ruling)
    result = result_of(asked[0], ruling)
    return path, interrupted, NarrowReport(manifest.run_id, then.run_id, manifest.kvgate_version, result)


def _code(report: NarrowReport, ruling: RunVerdict, interrupted: bool) -> ExitCode:
    if interrupted:
        return ExitCode.INTERRUPTED
    if ruling.endpoint_lost:
        return ExitCode.REMOTE
    if report.result.gone:
        return ExitCode.PASS
    return ExitCode.FAIL if report.result.narrowed else ExitCode.INCONCLUSIVE


def _check_same(run: Path, then: Plan, now: Plan) -> None:
    """Lengths of another model or another granule would narrow down something else. Raises ConfigError."""
    for what, one, other in (
        ("deployment.model", then.deployment.model, now.deployment.model),
        ("deployment.geometry.granule", then.geometry.granule, now.geometry.granule),
        ("deployment.salts", then.salts_honoured, now.salts_honoured),
    ):
        if one != other:
            raise ConfigError(
                f"{what}: {run} was a run of {one!r}, this deployment has {other!r}; give the configuration of the "
                "deployment that failed"
            )
    if now.obstacles:
        raise ConfigError(f"{now.obstacles[0].reason.value}: {now.obstacles[0].detail}; `kvgate doctor` says more")


def _narrowing(plan: Plan, failure: Failure, explored: Explored, most: int) -> Narrowing:
    """The question, asked with groups of this plan: what runs beside and after all groups is left out."""
    tiers = [group for group in plan.groups if group.purpose is Purpose.TIER]
    if not tiers:
        raise ConfigError("gate.tiers: no tier can be an external hit on this deployment; name those that failed")
    longest: GroupPlan = max(tiers, key=lambda group: group.length)
    alone = replace(plan, groups=(), canaries=(), sentinels=(), rounds=(), not_applicable=())
    return Narrowing(failure, Model(alone, longest, explored.prompts), most)
