"""``kvgate history``, ``matrix``, ``import`` and ``prune``: everything that works on the ledger."""

import sys
from pathlib import Path

from kvgate import __version__
from kvgate.cli.exit_codes import ExitCode
from kvgate.cli.output import ListFormat, MatrixFormat, out
from kvgate.domain.kept import LedgerRow, Unreadable
from kvgate.domain.matrix import NoDimensionError, matrix
from kvgate.errors import ConfigError, RecordError
from kvgate.report.ledger_document import HistoryReport, ImportReport, MatrixReport, PruneReport, report_json
from kvgate.report.ledger_table import print_history, print_imports, print_matrix, print_pruned
from kvgate.report.matrix_pages import matrix_html, matrix_markdown
from kvgate.store.keeping import old_runs, sync, take_away, take_in
from kvgate.store.ledger import Ledger, discard


def show_history(folder: Path, deployment: str | None, rebuild: bool, form: ListFormat) -> ExitCode:
    """List the runs of a folder."""
    check_folder(folder)
    if rebuild:
        _clear(folder)
    rows, broken = rows_of(folder)
    if deployment is not None:
        rows = tuple(row for row in rows if row.run.fingerprint.value("deployment.name") == deployment)
    report = HistoryReport(str(folder), rows, broken)
    if form is ListFormat.JSON:
        sys.stdout.write(report_json(report))
    else:
        print_history(report, out())
    return ExitCode.PASS


def rows_of(folder: Path) -> tuple[tuple[LedgerRow, ...], tuple[Unreadable, ...]]:
    """Every run of a folder, after the ledger was brought into step with it, and what could not be read."""
    with Ledger.of(folder) as ledger:
        broken = sync(ledger, __version__)
        return ledger.rows(), broken


def check_folder(folder: Path) -> None:
    """Refuse a folder that is none. Raises RecordError."""
    if not folder.is_dir():
        raise RecordError(f"--in {folder}: is no folder; give the one that output.directory names")


def _clear(folder: Path) -> None:
    """Empty the ledger, or take it away where it is none any more."""
    try:
        with Ledger.of(folder) as ledger:
            ledger.forget_all()
    except RecordError:
        discard(folder)


def show_matrix(folder: Path, dimensions: tuple[str, str], where: list[str], form: MatrixFormat) -> ExitCode:
    """Print the matrix of a folder's runs; ``dimensions`` go down and across."""
    check_folder(folder)
    conditions: list[tuple[str, str]] = []
    for given in where:
        name, is_one, value = given.partition("=")
        if not is_one or not name:
            raise ConfigError(f"--where {given}: is no condition; give DIM=VALUE, for instance device=A3")
        conditions.append((name, value))
    rows, broken = rows_of(folder)
    try:
        table = matrix(rows, *dimensions, conditions)
    except NoDimensionError as error:
        raise ConfigError(f"matrix: {error}") from None
    report = MatrixReport(str(folder), table, broken)
    if form is MatrixFormat.JSON:
        sys.stdout.write(report_json(report))
    elif form is MatrixFormat.MARKDOWN:
        sys.stdout.write(matrix_markdown(report))
    elif form is MatrixFormat.HTML:
        sys.stdout.write(matrix_html(report))
    else:
        print_matrix(report, out())
    return ExitCode.PASS


def take_in_runs(folder: Path, sources: list[Path], index: bool, form: ListFormat) -> ExitCode:
    """Take in run directories from elsewhere."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--in {folder}: cannot be made ({error.strerror}); give a folder you may write to") from None
    with Ledger.of(folder) as ledger:
        imports = take_in(ledger, tuple(sources), __version__, copies=not index)
    report = ImportReport(str(folder), imports)
    if form is ListFormat.JSON:
        sys.stdout.write(report_json(report))
    else:
        print_imports(report, out())
    return ExitCode.PASS if imports.taken or imports.known else ExitCode.USAGE


def prune_runs(folder: Path, days: int, how: tuple[bool, bool], form: ListFormat) -> ExitCode:
    """Delete old runs; ``how`` is whether failures are kept, and whether this is a dry run."""
    check_folder(folder)
    keep_failures, dry_run = how
    with Ledger.of(folder) as ledger:
        broken = sync(ledger, __version__)
        rows = old_runs(ledger, days, keep_failures)
        if not dry_run:
            take_away(ledger, rows)
    report = PruneReport(str(folder), dry_run, rows, broken)
    if form is ListFormat.JSON:
        sys.stdout.write(report_json(report))
    else:
        print_pruned(report, out())
    return ExitCode.PASS
