"""``kvgate merge``: what the runs of several shards show together."""

import sys
from pathlib import Path

from kvgate import __version__
from kvgate.cli.exit_codes import ExitCode
from kvgate.cli.output import ListFormat, out
from kvgate.domain.kept import KeptRun, State
from kvgate.domain.shards import Merged, UnlikeError, merged
from kvgate.domain.verdict import Verdict
from kvgate.errors import ConfigError
from kvgate.report.ledger_document import MergeReport, report_json
from kvgate.report.ledger_table import print_merged
from kvgate.store.finding import Digests, find


def merge_runs(paths: list[Path], form: ListFormat) -> ExitCode:
    """Read runs, judge each from its history, and say what they show together."""
    runs, doubts, seen = list[KeptRun](), list[str](), dict[str, tuple[Path, Digests]]()
    for path in paths:
        each = find(path, __version__)
        first = seen.setdefault(each.run.run_id, (path, each.digests))
        if first[1].changed(each.digests):
            raise ConfigError(
                f"merge: {first[0]} and {path} are both run {each.run.run_id}, and their files differ; leave out the "
                "one that was edited"
            )
        if each.state is State.EDITED:
            doubts.append(f"{path}: {each.why}; what counts is the history")
        runs.append(each.run)
    try:
        together = merged(runs)
    except UnlikeError as error:
        raise ConfigError(f"merge: {error}") from None
    report = MergeReport(together, tuple(dict.fromkeys(doubts)))
    if form is ListFormat.JSON:
        sys.stdout.write(report_json(report))
    else:
        print_merged(report, out())
    return _code(together)


def _code(together: Merged) -> ExitCode:
    if together.verdict is Verdict.FAIL:
        return ExitCode.FAIL
    if together.endpoint_lost:
        return ExitCode.REMOTE
    return ExitCode.PASS if together.verdict is Verdict.PASS else ExitCode.INCONCLUSIVE
