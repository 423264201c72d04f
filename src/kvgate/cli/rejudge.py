"""``kvgate judge`` and ``kvgate report``: everything that works on a run directory, offline."""

from dataclasses import replace
from pathlib import Path

from kvgate.cli.exit_codes import ExitCode, exit_code
from kvgate.cli.output import Format, emit, out
from kvgate.domain.judge import judge
from kvgate.domain.policy import PolicyName
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import RunVerdict
from kvgate.errors import ConfigError, RecordError
from kvgate.report.document import make_report
from kvgate.store.run_directory import (
    VERDICT,
    Manifest,
    read_history,
    read_manifest,
    verdict_bytes,
    write_verdict,
)


def judge_again(path: Path, policy: PolicyName | None, form: Format, check: bool) -> ExitCode:
    """Judge a stored run. Writes verdict.json if the run has none yet; never overwrites one."""
    if check and policy is not None:
        raise ConfigError("judge: --check compares with the stored verdict and its policy; leave --policy out")
    manifest, ruling = _judge(path, policy)
    stored = path / VERDICT
    if check:
        return _check(stored, ruling)
    if not stored.exists() and policy is None:
        write_verdict(path, ruling)
    emit(make_report(manifest.run_id, manifest.kvgate_version, manifest.started_at, manifest.plan, ruling), form)
    return exit_code(ruling)


def print_stored(path: Path, form: Format) -> ExitCode:
    """Print the report of a stored run."""
    manifest, ruling = _judge(path, None)
    emit(make_report(manifest.run_id, manifest.kvgate_version, manifest.started_at, manifest.plan, ruling), form)
    return ExitCode.PASS


def _judge(path: Path, policy: PolicyName | None) -> tuple[Manifest, RunVerdict]:
    manifest = read_manifest(path)
    plan = manifest.plan
    if policy is not None:
        plan = replace(plan, policy=replace(plan.policy, name=policy))
    return manifest, judge(plan, RunRecord(read_history(path)))


def _check(stored: Path, ruling: RunVerdict) -> ExitCode:
    try:
        kept = stored.read_bytes()
    except OSError:
        raise RecordError(f"{stored}: no stored verdict to compare with; judge without --check first") from None
    if kept != verdict_bytes(ruling):
        raise RecordError(f"{stored}: the stored verdict is not what manifest and history give; one was changed")
    out().print(f"{stored}: reproduced byte for byte: {ruling.verdict.value}", markup=False)
    return exit_code(ruling)
