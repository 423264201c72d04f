"""The commands for before the first request: their options, and nothing else."""

from pathlib import Path
from typing import Annotated

import typer

from kvgate.cli.exit_codes import ExitCode, guarded
from kvgate.cli.lint import LintFormat


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(lint)


@guarded
def lint(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="All launch files of one deployment: shell scripts, .env files, mooncake.json. Nothing is executed.",
        ),
    ],
    select: Annotated[
        list[str] | None, typer.Option("--select", metavar="CODE", help="Only rules that begin so (KV2, KV105).")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option("--ignore", metavar="CODE", help="All but these.")] = None,
    output: Annotated[
        LintFormat, typer.Option("--format", help="What to print on standard output.")
    ] = LintFormat.TABLE,
) -> ExitCode:
    """Find what is wrong in launch files before anything is started: 0 clean, 1 findings, 2 a file cannot be read."""
    from kvgate.cli.lint import lint_files

    return lint_files(files, select or [], ignore or [], output)
