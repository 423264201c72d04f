"""``kvgate check``: whether a valid PASS is stored for exactly this deployment."""

import math
import shlex
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from kvgate import __version__
from kvgate.cli.event_loop import run_async
from kvgate.cli.exit_codes import ExitCode
from kvgate.cli.identity import asked_in, deployment_asked, deployment_said
from kvgate.cli.output import ListFormat, out
from kvgate.cli.rules import rules_of
from kvgate.cli.wiring import connect
from kvgate.config.load import load_config
from kvgate.config.schema import Config
from kvgate.domain.clearance import Candidate, Clearance, Lack, Wanted, clearance
from kvgate.domain.fingerprint import Fingerprint
from kvgate.domain.kept import LedgerRow, State, Unreadable
from kvgate.domain.policy import PolicyName
from kvgate.domain.power import groups_for
from kvgate.errors import RecordError
from kvgate.report.ledger_document import CheckReport, report_json
from kvgate.report.ledger_table import print_check
from kvgate.store.finding import find
from kvgate.store.keeping import seconds_of, sync
from kvgate.store.ledger import Ledger

# What the default of three groups per tier excludes, and a little: one group, a smoke run, is not enough.
DEFAULT_FAULT_RATE = 0.64


@dataclass(frozen=True, slots=True)
class Terms:
    """What a PASS must be, where the configuration does not say; None for what it says."""

    folder: Path | None
    max_age_s: float
    policy: PolicyName | None
    max_fault_rate: float | None
    live: bool


def check(path: Path, terms: Terms, form: ListFormat) -> ExitCode:
    """Say whether the deployment is cleared, and if not, what is missing."""
    config = load_config(path)
    deployment = run_async(_ask, config) if terms.live else deployment_said(config)
    wanted = _wanted(config, terms, deployment)
    folder = terms.folder or Path(config.output.directory)
    candidates, broken = _candidates(folder, wanted)
    found = clearance(wanted, candidates)
    report = CheckReport(
        config=str(path),
        folder=str(folder),
        live=terms.live,
        policy=wanted.policy.name,
        max_fault_rate=wanted.max_fault_rate,
        max_age_s=wanted.max_age_s,
        clearance=found,
        fingerprint_sha256=found.deployment.sha256,
        remedy=_remedy(path, config, terms, wanted, (found, candidates)),
        broken=broken,
    )
    if form is ListFormat.JSON:
        sys.stdout.write(report_json(report))
    else:
        print_check(report, out())
    return ExitCode.PASS if found.cleared else ExitCode.FAIL


async def _ask(config: Config) -> Fingerprint:
    async with connect(config, "check", bare=True) as connection:
        return await deployment_asked(connection)


def _wanted(config: Config, terms: Terms, deployment: Fingerprint) -> Wanted:
    policy, _, _ = rules_of(config, terms.policy)
    rate = terms.max_fault_rate or config.policy.max_fault_rate or DEFAULT_FAULT_RATE
    return Wanted(
        deployment=deployment,
        policy=policy,
        tiers=tuple(sorted(set(config.gate.tiers))),
        asked=asked_in(config),
        max_fault_rate=rate,
        max_age_s=terms.max_age_s,
    )


def _candidates(folder: Path, wanted: Wanted) -> tuple[list[Candidate], tuple[Unreadable, ...]]:
    """Stored runs with their age. Those that may count are judged again, from their histories."""
    if not folder.is_dir():
        return [], ()
    with Ledger.of(folder) as ledger:
        broken = sync(ledger, __version__, thorough=True)
        rows = ledger.rows()
    now, name = time.time(), wanted.deployment.value("deployment.name")
    found: list[Candidate] = []
    for row in rows:
        began = seconds_of(row.run.origin.started_at)
        age = now - began if began is not None else math.inf
        ours = row.run.fingerprint.value("deployment.name") == name and age <= wanted.max_age_s
        found.append(Candidate(_again(row) if ours and row.state is not State.GONE else row, age))
    return found, broken


def _again(row: LedgerRow) -> LedgerRow:
    """The same run by its directory alone: a ledger is an index, and may have been written by anybody."""
    if row.state is State.EDITED:
        # What it was when it was taken in stands against it; what it is now does not stand for it.
        return row
    try:
        now = find(Path(row.place), __version__)
    except RecordError as error:
        return replace(row, state=State.EDITED, why=str(error))
    if now.run.origin != row.run.origin:
        return replace(row, state=State.EDITED, why="the ledger has another run in its place")
    return LedgerRow(now.run, row.place, now.state, now.why)


def _remedy(path: Path, config: Config, terms: Terms, wanted: Wanted, result: tuple[Clearance, list[Candidate]]) -> str:
    """The command that would produce what is missing; empty if nothing is."""
    found, candidates = result
    if found.cleared:
        return ""
    lacks = {each.lack for each in found.lacking}
    command = f"kvgate run -c {shlex.quote(str(path))}"
    if terms.policy is not None:
        command += f" --policy {terms.policy.value}"
    needed = groups_for(wanted.max_fault_rate)
    if lacks == {Lack.UNFINISHED}:
        # Its history is whole and only waits for a verdict; the newest such run is the one that was named.
        open_ones = [each for each in candidates if each.row.state is State.UNFINISHED]
        return f"kvgate judge {shlex.quote(min(open_ones, key=lambda each: each.age_s).row.place)}"
    if Lack.TOO_FEW_GROUPS in lacks and config.gate.groups_per_tier < needed:
        return f"gate.groups_per_tier: {needed} in {path}, then {command}"
    return command
