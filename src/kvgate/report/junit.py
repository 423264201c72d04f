"""The report as JUnit XML: a case per pair, and one for the run, so that nothing checked is never green."""

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from kvgate.domain.ruling import GroupVerdict, PairVerdict
from kvgate.domain.verdict import Verdict
from kvgate.report.document import Report


def report_junit(report: Report) -> str:
    """JUnit XML. FAIL is a failure, INCONCLUSIVE an error, NOT_APPLICABLE and replaced groups are skipped."""
    suite = TestSuite(f"kvgate {report.deployment.name}")
    suite.timestamp = report.started_at
    ruling = report.ruling
    run = _case(
        "run", "verdict", ruling.verdict, "; ".join(f"{each.reason.value}: {each.detail}" for each in ruling.reasons)
    )
    run.time = 0.0
    suite.add_testcase(run)
    for group in ruling.groups:
        for pair in group.pairs:
            suite.add_testcase(_pair_case(group, pair))
    for tier in ruling.not_applicable:
        suite.add_testcase(_case(f"tier {tier.tier}", "tier", Verdict.NOT_APPLICABLE, tier.detail))
    document = JUnitXml()
    document.add_testsuite(suite)
    suite.update_statistics()  # type: ignore[no-untyped-call]
    document.update_statistics()  # type: ignore[no-untyped-call]
    text: bytes = document.tostring()  # type: ignore[no-untyped-call]
    return text.decode() + "\n"


def _pair_case(group: GroupVerdict, pair: PairVerdict) -> TestCase:
    name = f"{pair.subject.value} vs {pair.baseline.value}"
    told = f"{pair.problem.reason.value}: {pair.problem.detail}" if pair.problem is not None else ""
    if group.replaced and pair.verdict is not Verdict.FAIL:
        return _case(name, group.id, Verdict.NOT_APPLICABLE, f"void and replaced: {told}")
    return _case(name, group.id, pair.verdict, told)


def _case(name: str, group: str, verdict: Verdict, told: str) -> TestCase:
    told = "".join(char if char.isprintable() else " " for char in told)  # XML 1.0 forbids control characters
    case = TestCase(name, classname=f"kvgate.{group}")
    outcome = {Verdict.FAIL: Failure, Verdict.INCONCLUSIVE: Error, Verdict.NOT_APPLICABLE: Skipped}.get(verdict)
    if outcome is not None:
        case.result = [outcome(told, verdict.value)]
    return case
