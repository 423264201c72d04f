"""The commands for before the first request: their options, and nothing else."""

from pathlib import Path
from typing import Annotated

import typer

from kvgate.cli.exit_codes import ExitCode, guarded
from kvgate.cli.output import LintFormat, ListFormat


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(lint)
    app.command()(capacity)


@guarded
def lint(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="All launch files of one deployment: shell scripts, Kubernetes and compose manifests, .env files, "
            "mooncake.json. Nothing is executed.",
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


@guarded
def capacity(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG...", help="Logs of engines, from their start on.")],
    tier: Annotated[
        list[int] | None, typer.Option("--tier", min=1, help="Prompt tokens to reckon for; 4096 to 131072.")
    ] = None,
    output: Annotated[
        ListFormat, typer.Option("--format", help="What to print on standard output.")
    ] = ListFormat.TABLE,
) -> ExitCode:
    """Say how much KV engines hold, by their start-up logs, and what a prompt of each length takes of it."""
    from kvgate.cli.capacity import show_capacity

    return show_capacity(logs, tier or [], output)
