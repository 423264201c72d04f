"""``kvgate compare``: two run directories side by side, offline."""

import sys
from dataclasses import replace
from pathlib import Path

from kvgate.cli.exit_codes import ExitCode
from kvgate.cli.output import ListFormat, out
from kvgate.domain.comparing import compare_runs
from kvgate.domain.judge import judge
from kvgate.domain.record import RunRecord
from kvgate.domain.verdict import Verdict
from kvgate.report.compare_document import ComparedRun, CompareReport, compare_json, print_compare
from kvgate.store.run_directory import Manifest, read_history, read_manifest


def compare(first: Path, second: Path, form: ListFormat) -> ExitCode:
    """Judge both runs by the policy of the first, and print what became of it."""
    before, after = read_manifest(first), read_manifest(second)
    policy = before.plan.policy
    judged = tuple(
        (plan, judge(plan, RunRecord(read_history(path))))
        for path, plan in ((first, before.plan), (second, replace(after.plan, policy=policy)))
    )
    notes = [f"{name}: {one} and {other}" for name, one, other in _versions(before, after) if one != other]
    if after.plan.policy != policy:
        notes.append("the runs had different policies; both are judged by that of the first")
    comparison = compare_runs(judged[0], judged[1])
    report = CompareReport(_run(before), _run(after), comparison.verdict, comparison, tuple(notes))
    if form is ListFormat.JSON:
        sys.stdout.write(compare_json(report))
    else:
        print_compare(report, out())
    codes = {Verdict.PASS: ExitCode.PASS, Verdict.FAIL: ExitCode.FAIL}
    return codes.get(report.verdict, ExitCode.INCONCLUSIVE)


def _run(manifest: Manifest) -> ComparedRun:
    name = manifest.plan.deployment.name
    return ComparedRun(manifest.run_id, manifest.kvgate_version, manifest.started_at, name, manifest.versions)


def _versions(before: Manifest, after: Manifest) -> list[tuple[str, str, str]]:
    """Versions of the stack that both or one of them knows, and kvgate's."""
    left, right = ({name: version or "unknown" for name, version, _ in each.versions} for each in (before, after))
    named = [(name, left.get(name, "unknown"), right.get(name, "unknown")) for name in {**left, **right}]
    return [*named, ("kvgate", before.kvgate_version, after.kvgate_version)]
