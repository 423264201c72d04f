"""The commands that keep a record of runs and ask it: their options, and nothing else."""

from pathlib import Path
from typing import Annotated

import typer

from kvgate.cli.exit_codes import ExitCode, guarded
from kvgate.cli.output import ListFormat, MatrixFormat
from kvgate.domain.policy import PolicyName

RUNS = Path("kvgate-runs")
InOption = Annotated[
    Path, typer.Option("--in", metavar="DIR", help="Folder of run directories (output.directory); its ledger is used.")
]
ListOption = Annotated[ListFormat, typer.Option("--format", help="What to print on standard output.")]


def add_to(app: typer.Typer) -> None:
    """Register the commands, in the order in which help lists them."""
    for command in (history, matrix, check, merge, prune):
        app.command()(command)
    app.command("import")(import_runs)


@guarded
def history(
    folder: InOption = RUNS,
    deployment: Annotated[str | None, typer.Option("--deployment", help="Only runs of this deployment.")] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Make the ledger again from the run directories first.")
    ] = False,
    output: ListOption = ListFormat.TABLE,
) -> ExitCode:
    """List stored runs, oldest first, and what became of their directories."""
    from kvgate.cli.stored import show_history

    return show_history(folder, deployment, rebuild, output)


@guarded
def matrix(
    folder: InOption = RUNS,
    rows: Annotated[str, typer.Option("--rows", metavar="DIM", help="Dimension that goes down.")] = "deployment",
    columns: Annotated[
        str, typer.Option("--columns", metavar="DIM", help="Dimension that goes across.")
    ] = "server.version",
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="DIM=VALUE", help="Only runs that have this."),
    ] = None,
    output: Annotated[MatrixFormat, typer.Option("--format", help="What to print on standard output.")] = (
        MatrixFormat.TABLE
    ),
) -> ExitCode:
    """Show which combinations of model, device, versions and features were gated, and with which verdict."""
    from kvgate.cli.stored import show_matrix

    return show_matrix(folder, (rows, columns), where or [], output)


@guarded
def check(
    config: Annotated[Path, typer.Option("--config", "-c", help="Configuration file (YAML).")],
    folder: Annotated[
        Path | None, typer.Option("--in", metavar="DIR", help="Folder of run directories; default output.directory.")
    ] = None,
    max_age: Annotated[
        str, typer.Option("--max-age", metavar="DURATION", help="How old a PASS may be: 12h, 14d.")
    ] = "14d",
    policy: Annotated[PolicyName | None, typer.Option("--policy", help="The policy a PASS must be of.")] = None,
    max_fault_rate: Annotated[
        float | None,
        typer.Option(
            "--max-fault-rate",
            min=0.003,
            max=0.999,
            help="Share of requests in which random faults may stay open; default policy.max_fault_rate, else 0.64 "
            "(3 groups per tier).",
        ),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Also ask the deployment what it is now.")] = False,
    output: ListOption = ListFormat.TABLE,
) -> ExitCode:
    """Exit 0 only if a valid PASS is stored for exactly this deployment, else 1, with what is missing."""
    from kvgate.cli.clearing import Terms
    from kvgate.cli.clearing import check as check_clearance
    from kvgate.cli.duration import seconds_in

    terms = Terms(folder, seconds_in(max_age, "--max-age"), policy, max_fault_rate, live)
    return check_clearance(config, terms, output)


@guarded
def merge(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories of one deployment.")],
    output: ListOption = ListFormat.TABLE,
) -> ExitCode:
    """Say what the runs of several shards show together; the exit code is the worst of theirs."""
    from kvgate.cli.merging import merge_runs

    return merge_runs(runs, output)


@guarded
def prune(
    keep_days: Annotated[int, typer.Option("--keep-days", min=1, help="Runs that began longer ago are deleted.")],
    folder: InOption = RUNS,
    keep_failures: Annotated[bool, typer.Option("--keep-failures", help="Keep every FAIL, however old.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    output: ListOption = ListFormat.TABLE,
) -> ExitCode:
    """Delete old run directories, and take them out of the ledger."""
    from kvgate.cli.stored import prune_runs

    return prune_runs(folder, keep_days, (keep_failures, dry_run), output)


@guarded
def import_runs(
    sources: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders that hold run directories.")],
    folder: InOption = RUNS,
    index: Annotated[
        bool, typer.Option("--index", help="Leave the run directories where they are; by default they are copied.")
    ] = False,
    output: ListOption = ListFormat.TABLE,
) -> ExitCode:
    """Take in run directories from elsewhere, for instance artefacts of CI jobs, at any depth; each run once."""
    from kvgate.cli.stored import take_in_runs

    return take_in_runs(folder, sources, index, output)
