"""Printing: formats, consoles, progress."""

import sys
from enum import Enum

from rich.console import Console
from rich.status import Status

from kvgate.report.document import Report, report_json
from kvgate.report.junit import report_junit
from kvgate.report.table import print_report

PLAIN_WIDTH = 160


class Format(str, Enum):
    """Renderings of a report."""

    TABLE = "table"
    JSON = "json"
    JUNIT = "junit"


class LintFormat(str, Enum):
    """What ``lint`` prints."""

    TABLE = "table"
    JSON = "json"
    GITHUB = "github"


class ListFormat(str, Enum):
    """Renderings of everything else."""

    TABLE = "table"
    JSON = "json"


class MatrixFormat(str, Enum):
    """Renderings of a matrix."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"


class _Console(Console):
    """A console that does not turn a closed pipe into exit 1, which would read as FAIL."""

    def on_broken_pipe(self) -> None:
        """Let the error through; the command's guard knows what to do with it."""
        raise BrokenPipeError


def out() -> Console:
    """Standard output; wide where nobody's terminal sets a width, so that CI logs are not folded."""
    console = _Console(highlight=False)
    return console if console.is_terminal else _Console(highlight=False, width=PLAIN_WIDTH)


def emit(report: Report, form: Format) -> None:
    """Print a report on standard output."""
    if form is Format.JSON:
        sys.stdout.write(report_json(report))
    elif form is Format.JUNIT:
        sys.stdout.write(report_junit(report))
    else:
        print_report(report, out())


class ProgressWatcher:
    """Tells the user how far a run is: one live line on a terminal, plain lines elsewhere, nothing if quiet."""

    def __init__(self, quiet: bool) -> None:
        self._console = _Console(stderr=True, highlight=False, quiet=quiet)
        self._live: Status | None = None
        self._where = ""

    def __enter__(self) -> "ProgressWatcher":
        if self._console.is_terminal:
            self._live = self._console.status("starting")
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def group_started(self, index: int, count: int, group_id: str, length: int) -> None:
        """A group begins."""
        self._where = f"group {index} of {count}, {group_id}, {length} tokens"
        self._show(self._where)

    def arm_started(self, group_id: str, arm: str, attempt: int) -> None:
        """An arm is about to be sent."""
        again = f" (attempt {attempt + 1})" if attempt else ""
        if self._live is not None:
            self._live.update(f"{self._where}: {arm}{again}")
        elif attempt:
            self._console.print(f"  {group_id}: {arm}{again}", markup=False, soft_wrap=True)

    def said(self, text: str) -> None:
        """Something worth a line happened."""
        self._console.print(text, markup=False, soft_wrap=True)

    def _show(self, text: str) -> None:
        if self._live is not None:
            self._live.update(text)
        else:
            self._console.print(text, markup=False, soft_wrap=True)
