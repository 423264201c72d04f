"""What lint found: as a document with a schema, for a terminal, and as annotations of a CI system."""

from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from pydantic import TypeAdapter
from rich.console import Console
from rich.text import Text

from kvgate.domain.preflight.rule import Severity
from kvgate.domain.preflight.rules import Linted

_STYLE = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


@dataclass(frozen=True, slots=True)
class Told:
    """One finding. ``what`` says why it matters, ``remedy`` what to do, ``source`` where it is known from."""

    code: str
    name: str
    severity: Severity
    file: str
    line: int
    said: str
    what: str
    remedy: str
    source: str
    versions: str


@dataclass(frozen=True, slots=True)
class NotDecided:
    """What a rule could not decide, and the unknown value it hangs on."""

    code: str
    file: str
    line: int
    unknown: str


@dataclass(frozen=True, slots=True)
class TakenBack:
    """A finding that a comment in the file took back, and its reason."""

    code: str
    file: str
    line: int
    said: str
    reason: str


@dataclass(frozen=True, slots=True)
class LintReport:
    """Everything a reader of a lint may want; ``format`` is versioned."""

    files: tuple[str, ...]
    engines: int
    rules: int
    findings: tuple[Told, ...]
    undecided: tuple[NotDecided, ...]
    ignored: tuple[TakenBack, ...]
    format: Literal["kvgate.lint/1"] = "kvgate.lint/1"

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong; what is only to be known does not count."""
        return all(each.severity is Severity.INFO for each in self.findings)


_REPORT: TypeAdapter[LintReport] = TypeAdapter(LintReport)


def lint_report(files: tuple[str, ...], engines: int, rules: int, linted: Linted) -> LintReport:
    """The report of what was found in these files."""
    told = tuple(
        Told(
            each.rule.code,
            each.rule.name,
            each.rule.severity,
            each.spot.file,
            each.spot.line,
            each.said,
            each.rule.what,
            each.rule.remedy,
            each.rule.source,
            each.rule.versions,
        )
        for each in linted.findings
    )
    doubts = tuple(
        NotDecided(each.rule.code, each.spot.file, each.spot.line, each.unknown.name) for each in linted.doubts
    )
    taken = tuple(
        TakenBack(each.rule.code, each.spot.file, each.spot.line, each.said, by.reason) for each, by in linted.ignored
    )
    return LintReport(files, engines, rules, told, doubts, taken)


def lint_json(report: LintReport) -> str:
    """The JSON report."""
    return _REPORT.dump_json(report, indent=1).decode() + "\n"


def lint_schema() -> dict[str, Any]:
    """The JSON Schema of the JSON report."""
    schema = _REPORT.json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def lint_annotations(report: LintReport) -> str:
    """Workflow commands of GitHub Actions, a line for each finding."""
    words = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
    return "".join(
        f"::{words[each.severity]} file={_property(each.file)},line={each.line},title={_property(each.code)}::"
        f"{_message(f'{each.said}. {each.remedy}')}\n"
        for each in report.findings
    )


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def print_lint(report: LintReport, console: Console) -> None:
    """Findings by file, then what could not be decided and what was taken back, then the sum of it."""
    for file, group in groupby(report.findings, key=lambda each: each.file):
        console.print(f"\n{file}", markup=False, soft_wrap=True)
        for each in group:
            head = Text.assemble(
                f"  {each.line:>5}  ",
                (f"{each.severity.value:<7}", _STYLE[each.severity]),
                f" {each.code}  {each.said}",
            )
            console.print(head, soft_wrap=True)
            versions = f" (vllm-ascend {each.versions})" if each.versions else ""
            console.print(f"         {each.what}{versions}", markup=False, soft_wrap=True)
            console.print(f"         To mend it: {each.remedy}  [{each.source}]", markup=False, soft_wrap=True)
    for doubt in report.undecided:
        console.print(
            f"{doubt.file}:{doubt.line}: {doubt.code} not decided: {doubt.unknown} is not known here",
            markup=False,
            soft_wrap=True,
        )
    for taken in report.ignored:
        console.print(f"{taken.file}:{taken.line}: {taken.code} ignored: {taken.reason}", markup=False, soft_wrap=True)
    count = {severity: sum(each.severity is severity for each in report.findings) for severity in Severity}
    told = ", ".join(f"{number} {severity.value}{'' if number == 1 else 's'}" for severity, number in count.items())
    console.print(
        f"\n{told.replace('infos', 'info')}, {len(report.undecided)} not decided, {len(report.ignored)} ignored; "
        f"{report.engines} engines in {len(report.files)} files, {report.rules} rules",
        markup=False,
        soft_wrap=True,
    )
