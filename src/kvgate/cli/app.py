"""The Typer root: every command, its options, and nothing else."""

from pathlib import Path
from typing import Annotated

import typer

from kvgate import __version__
from kvgate.cli import preflight_commands, record_commands
from kvgate.cli.exit_codes import ExitCode, guarded
from kvgate.cli.output import Format, ListFormat
from kvgate.domain.policy import PolicyName
from kvgate.sim.topology import Part, ProxyKind, Topology

app = typer.Typer(
    name="kvgate",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help=(
        "Proves, before you switch it on, that reused KV cache gives the same answers as computed KV cache.\n\n"
        "Exit codes: 0 PASS, 1 FAIL, 2 usage or configuration, 3 INCONCLUSIVE, 4 could not run (remote), "
        "70 bug in kvgate, 130 interrupted."
    ),
)

ConfigPath = Annotated[Path, typer.Option("--config", "-c", help="Configuration file (YAML).")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory made by `kvgate run`.")]
PolicyOption = Annotated[PolicyName | None, typer.Option("--policy", help="Judge by this policy instead.")]
FormatOption = Annotated[Format, typer.Option("--format", help="What to print on standard output.")]
ListOption = Annotated[ListFormat, typer.Option("--format", help="What to print on standard output.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Gate a deployment's KV reuse."""


@app.command()
@guarded
def run(
    config: ConfigPath,
    policy: PolicyOption = None,
    output: FormatOption = Format.TABLE,
    junit: Annotated[Path | None, typer.Option("--junit", help="Also write JUnit XML to this file.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on standard error.")] = False,
) -> ExitCode:
    """Drive the deployment, prove which path served each request, and judge."""
    from kvgate.cli.run import run_gate

    return run_gate(config, policy, output, junit, quiet)


@app.command()
@guarded
def soak(
    config: ConfigPath,
    duration: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long: 30m, 8h, 2d.")],
    rounds: Annotated[int, typer.Option("--rounds", min=0, help="At most so many rounds; 0: as many as fit.")] = 0,
    megabytes: Annotated[
        int, typer.Option("--keep-mb", min=1, help="Rounds that passed are dropped, oldest first, above so much disk.")
    ] = 500,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Go on after a FAIL.")] = False,
    output: ListOption = ListFormat.TABLE,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on standard error.")] = False,
) -> ExitCode:
    """Gate the deployment round after round, for hours or days, on bounded disk."""
    from kvgate.cli.duration import seconds_in
    from kvgate.cli.soak import Length
    from kvgate.cli.soak import soak as go_on

    return go_on(config, Length(seconds_in(duration, "--for"), rounds, megabytes, keep_going), output, quiet)


@app.command()
@guarded
def bisect(
    ladder: Annotated[Path, typer.Option("--ladder", "-l", help="Ladder file (YAML).")],
    output: ListOption = ListFormat.TABLE,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on standard error.")] = False,
) -> ExitCode:
    """Find the rung of a ladder, or the set of flags, with which a deployment begins to fail."""
    from kvgate.cli.bisect import bisect as climb

    return climb(ladder, output, quiet)


@app.command()
@guarded
def plan(config: ConfigPath, output: ListOption = ListFormat.TABLE) -> ExitCode:
    """Dry run: what would be sent, what it costs, and what a PASS would exclude. Sends no completion."""
    from kvgate.cli.preview import show_plan

    return show_plan(config, output)


@app.command()
@guarded
def doctor(config: ConfigPath, output: ListOption = ListFormat.TABLE) -> ExitCode:
    """Find out what this deployment can prove: geometry, evidence, and a way to force each path."""
    from kvgate.cli.preview import show_doctor

    return show_doctor(config, output)


@app.command()
@guarded
def judge(
    run_directory: RunPath,
    policy: PolicyOption = None,
    output: FormatOption = Format.TABLE,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare with the stored verdict.json; exit 2 if they differ.")
    ] = False,
) -> ExitCode:
    """Judge a run again, offline, from its manifest and history."""
    from kvgate.cli.rejudge import judge_again

    return judge_again(run_directory, policy, output, check)


@app.command()
@guarded
def narrow(
    run_directory: RunPath,
    config: ConfigPath,
    groups: Annotated[
        int, typer.Option("--groups", min=1, max=64, help="At most so many more groups for each of the two questions.")
    ] = 8,
    output: ListOption = ListFormat.TABLE,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on standard error.")] = False,
) -> ExitCode:
    """After a FAIL: at which length it begins, and which block is wrong. Sends a few more groups."""
    from kvgate.cli.narrow import narrow as narrow_down

    return narrow_down(run_directory, config, groups, output, quiet)


@app.command()
@guarded
def replay(
    target: Annotated[
        Path, typer.Argument(metavar="FILE_OR_RUN", help="A replay file, or a run directory made by `kvgate run`.")
    ],
    group: Annotated[
        str | None, typer.Option("--group", metavar="ID", help="Which group of the run; else the shortest that fails.")
    ] = None,
    same_keys: Annotated[
        bool,
        typer.Option("--same-keys", help="Send the salts of then: audit what that run left in the pool."),
    ] = False,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Configuration of the deployment, if it is another one.")
    ] = None,
    output: FormatOption = Format.TABLE,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on standard error.")] = False,
) -> ExitCode:
    """Send one group of a run exactly again, and judge it the same."""
    from kvgate.cli.replay import Asked
    from kvgate.cli.replay import replay as send_again

    return send_again(Asked(target, group, same_keys, config), output, quiet)


@app.command()
@guarded
def compare(
    first: Annotated[Path, typer.Argument(metavar="RUN_A", help="The run directory that is compared with.")],
    second: Annotated[Path, typer.Argument(metavar="RUN_B", help="The run directory that may have regressed.")],
    output: ListOption = ListFormat.TABLE,
) -> ExitCode:
    """Hold two runs against each other, offline: regressions, drift, and times by path."""
    from kvgate.cli.comparing import compare as side_by_side

    return side_by_side(first, second, output)


@app.command()
@guarded
def report(run_directory: RunPath, output: FormatOption = Format.TABLE) -> ExitCode:
    """Print the report of a run. The exit code says whether it could be printed, not the verdict."""
    from kvgate.cli.rejudge import print_stored

    return print_stored(run_directory, output)


@app.command()
@guarded
def measure(
    config: Annotated[
        list[Path] | None,
        typer.Option("--config", "-c", help="Configuration of a running deployment; the first is the baseline."),
    ] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="What is sent when (YAML).")] = None,
    record: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Report a measurement again, offline.")
    ] = None,
    output: ListOption = ListFormat.TABLE,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on standard error.")] = False,
) -> ExitCode:
    """Send one trace to several deployments and hold their times against each other. No verdict on answers."""
    from kvgate.cli.measure import measure as run_measure

    return run_measure(config or [], trace, record, output, quiet)


@app.command()
@guarded
def explain(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="A reason (DRIFT), a setting (policy.alpha) or a fault (one_bit)."),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--list", help="List a table: reasons, settings, rules, faults or dialects.")
    ] = None,
    output: ListOption = ListFormat.TABLE,
) -> ExitCode:
    """Say what a code in a report, a setting or a fault means, and what to do about it."""
    from kvgate.cli.explain import explain_code

    return explain_code(code, table, output)


@app.command()
@guarded
def demo(
    keep: Annotated[Path | None, typer.Option("--keep", help="Keep the three runs in this folder.")] = None,
) -> ExitCode:
    """See it work, without an engine: three embedded deployments, one healthy and two broken, in a minute."""
    from kvgate.cli.demo import demo as run_demo

    return run_demo(keep)


@app.command()
@guarded
def selftest(
    faults: Annotated[list[str] | None, typer.Argument(metavar="[FAULT]...", help="Only these faults.")] = None,
    output: ListOption = ListFormat.TABLE,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Processes; by default cores + 2.")] = None,
) -> ExitCode:
    """Hold the gate against every fault of the embedded deployment; exit 1 if a verdict is not the required one."""
    from kvgate.cli.selftest import selftest as run_selftest

    return run_selftest(faults or [], output, jobs)


record_commands.add_to(app)
preflight_commands.add_to(app)

sim = typer.Typer(help="The embedded deployment: engines whose answers are computed from the KV bytes they read.")
app.add_typer(sim, name="sim", no_args_is_help=True)


@sim.command("serve")
@guarded
def sim_serve(  # noqa: PLR0913, PLR0917 - these are the options of one command
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="First port on loopback; 0: free ones.")] = 0,
    fault: Annotated[
        str, typer.Option("--fault", help="The fault to plant; `kvgate sim faults` lists them.")
    ] = "healthy",
    preset: Annotated[
        str | None, typer.Option("--preset", help="Geometry: dense, deepseek-v4-flash, gdn-hybrid, ...")
    ] = None,
    divisor: Annotated[int, typer.Option("--divisor", min=1, help="Divide every length of the geometry by this.")] = 1,
    topology: Annotated[Topology | None, typer.Option("--topology", help="The engines there are.")] = None,
    proxy: Annotated[
        ProxyKind | None,
        typer.Option(
            "--proxy",
            help="What stands before prefill and decode: vllm-ascend's load-balance proxy, its layerwise sibling "
            "(decode first), or a router like vllm-router.",
        ),
    ] = None,
    compute_per_1k: Annotated[
        float, typer.Option("--compute-per-1k", min=0.0, help="Seconds per 1000 prompt tokens that are computed.")
    ] = 0.0,
    part: Annotated[Part, typer.Option("--part", help="Serve only this part; the others run elsewhere.")] = Part.ALL,
    peer: Annotated[
        list[str] | None,
        typer.Option("--peer", metavar="PART=URL", help="Where another part runs: pool=, prefill= or decode=."),
    ] = None,
) -> ExitCode:
    """Serve an embedded deployment, or one part of one, on loopback."""
    from kvgate.cli.simulator import known, serve

    return serve(port, known(fault, preset, divisor, topology, proxy), part, peer or [], compute_per_1k)


@sim.command("faults")
@guarded
def sim_faults(output: ListOption = ListFormat.TABLE) -> ExitCode:
    """List the faults that can be planted, and what a correct gate must say of each."""
    from kvgate.cli.simulator import list_faults

    return list_faults(output)
