"""``kvgate soak``: the same gate round after round, for as long as is asked, on bounded disk."""

import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from kvgate.cli.event_loop import run_async
from kvgate.cli.exit_codes import ExitCode
from kvgate.cli.output import ListFormat, ProgressWatcher, out
from kvgate.cli.run import carry_out
from kvgate.config.load import load_config_with_digest
from kvgate.config.schema import Config
from kvgate.domain.judge import judge
from kvgate.domain.record import RunRecord
from kvgate.domain.soak import SoakRound, alpha_of, round_of, sum_up
from kvgate.domain.verdict import Verdict
from kvgate.errors import RemoteError
from kvgate.report.soak_document import SoakReport, print_soak, soak_json
from kvgate.store.run_directory import read_history, read_manifest, write_verdict
from kvgate.store.soak_directory import SoakDirectory, read_rounds


@dataclass(frozen=True, slots=True)
class Length:
    """How long a soak goes on: seconds, rounds at most (0: as many as fit), megabytes, and on after a FAIL or not."""

    seconds: float
    rounds: int
    megabytes: int
    keep_going: bool


@dataclass(slots=True)
class _End:
    """Why a soak ended, and whether the user stopped it or the deployment went away."""

    why: str = ""
    interrupted: bool = False
    lost: bool = False


def soak(path: Path, length: Length, form: ListFormat, quiet: bool) -> ExitCode:
    """Go on with rounds, and print what they say together."""
    config, digest = load_config_with_digest(path)
    soak_id = f"soak-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    directory = SoakDirectory.create(Path(config.output.directory) / soak_id, length.megabytes << 20)
    end = _End()
    with ProgressWatcher(quiet) as watcher:
        try:
            _rounds(config, (path, digest), directory, length, end, watcher)
        except KeyboardInterrupt:
            # Between two rounds, or before one had sent anything.
            end.why, end.interrupted = "stopped by the user", True
        watcher.said(f"kept in {directory.path}")
    code = report_soak(directory.path, config.deployment.name, end.why, form)
    if end.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.REMOTE if end.lost and code is not ExitCode.FAIL else code


def report_soak(path: Path, deployment: str, why: str, form: ListFormat) -> ExitCode:
    """Sum up what is on disk, print it, and return its exit code."""
    rounds = tuple(read_rounds(path))
    report = SoakReport(path.name, deployment, sum_up(rounds), rounds, why)
    if form is ListFormat.JSON:
        sys.stdout.write(soak_json(report))
    else:
        print_soak(report, out())
    codes = {Verdict.PASS: ExitCode.PASS, Verdict.FAIL: ExitCode.FAIL}
    return codes.get(report.summary.verdict, ExitCode.INCONCLUSIVE)


def _rounds(
    config: Config,
    source: tuple[Path, str],
    directory: SoakDirectory,
    length: Length,
    end: _End,
    watcher: ProgressWatcher,
) -> None:
    begun, longest, number = time.monotonic(), 0.0, 0
    while not end.why:
        number += 1
        at = time.monotonic() - begun
        watcher.said(f"round {number}, {at / 60:.1f} of {length.seconds / 60:.1f} minutes")
        try:
            ended = _round(config, source, directory, (number, at), end, watcher)
        except RemoteError as error:
            if number == 1:
                raise
            end.why, end.lost = f"round {number} could not begin: {error}", True
            return
        longest = max(longest, ended.seconds)
        roomy = directory.add(ended)
        watcher.said(f"round {number}: {ended.verdict.value}")
        left = length.seconds - (time.monotonic() - begun)
        if end.interrupted:
            end.why = "stopped by the user"
        elif ended.endpoint_lost:
            end.why, end.lost = f"the deployment went away in round {number}", True
        elif ended.verdict is Verdict.FAIL and not length.keep_going:
            end.why = f"stopped by the FAIL of round {number}"
        elif not roomy:
            end.why = f"rounds that did not pass take more than {length.megabytes} MB; nothing of them is dropped"
        elif number == length.rounds:
            end.why = f"all {number} rounds were done"
        elif longest > left:
            end.why = "no further round fits into the time"


def _round(
    config: Config,
    source: tuple[Path, str],
    directory: SoakDirectory,
    which: tuple[int, float],
    end: _End,
    watcher: ProgressWatcher,
) -> SoakRound:
    """One round: a whole run with prompts of its own and its share of alpha."""
    number, at = which
    seed = config.gate.seed + number - 1 if config.gate.seed is not None else None
    changed = config.model_copy(
        update={
            "gate": config.gate.model_copy(update={"seed": seed}),
            "policy": config.policy.model_copy(update={"alpha": alpha_of(config.policy.alpha, number)}),
            "output": config.output.model_copy(update={"directory": str(directory.path)}),
        }
    )
    begun = time.monotonic()
    path, end.interrupted = run_async(carry_out, changed, source, None, watcher)
    manifest = read_manifest(path)
    ruling = judge(manifest.plan, RunRecord(read_history(path)))
    write_verdict(path, ruling)
    return round_of(number, path.name, (at, time.monotonic() - begun), manifest.plan, ruling)
