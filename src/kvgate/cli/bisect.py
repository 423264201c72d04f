"""``kvgate bisect``: which rung of a ladder fails, each brought up, gated and taken down."""

import json
import re
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvgate.cli.event_loop import run_async
from kvgate.cli.exit_codes import ExitCode
from kvgate.cli.output import ListFormat, ProgressWatcher, out
from kvgate.cli.run import carry_out
from kvgate.cli.wiring import connect
from kvgate.config.ladder_schema import LadderConfig, RungConfig
from kvgate.config.load import load_config_with_digest, load_ladder
from kvgate.config.schema import Config
from kvgate.config.templates import Value, argv_of, filled
from kvgate.domain.acceptance import Accepts, accepted
from kvgate.domain.flags import next_flags
from kvgate.domain.judge import judge
from kvgate.domain.ladder import Mode, next_rung
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.record import RunRecord
from kvgate.domain.rungs import Climb, Figure, InvalidRung, Rung, RungTried, Speculation, climbed, debugged, why_invalid
from kvgate.domain.verdict import Verdict
from kvgate.engines.hooks import ProcessHooks
from kvgate.engines.launcher import Bringing, Launcher, Served
from kvgate.errors import RemoteError
from kvgate.ports import HookResult
from kvgate.report.ladder_document import LadderReport, ladder_json, print_ladder
from kvgate.store.ladder_directory import LadderDirectory
from kvgate.store.run_directory import read_history, read_manifest, write_verdict

READING_S = 60.0


@dataclass(slots=True)
class _Ladder:
    """A ladder that is being tried."""

    config: LadderConfig
    path: Path
    rungs: tuple[Rung, ...]
    invalid: tuple[InvalidRung, ...]
    directory: LadderDirectory
    watcher: ProgressWatcher
    tried: list[RungTried] = field(default_factory=list)
    interrupted: bool = False


def bisect(path: Path, form: ListFormat, quiet: bool) -> ExitCode:
    """Try rungs until it is known where they begin to fail, and print it."""
    config = load_ladder(path)
    rungs = rungs_of(config)
    invalid = tuple(
        InvalidRung(place, rung.name, rule)
        for place, rung in enumerate(rungs)
        if (rule := why_invalid(rung, rungs)) is not None
    )
    ladder_id = f"ladder-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    # Whatever a rung cannot be configured with is said before the first one is brought up.
    every = rungs or (_with(config, ()),)
    gates = [gate_of(config, path, rung)[0] for rung in every]
    for rung in every:
        bringing_of(config, rung, path)
        _asked(config, rung)
    directory = LadderDirectory.create(Path(gates[0].output.directory) / ladder_id)
    with ProgressWatcher(quiet) as watcher:
        ladder = _Ladder(config, path, rungs, invalid, directory, watcher)
        for each in invalid:
            watcher.said(f"{each.name}: INVALID_RUNG: {each.rule}")
        try:
            _try_all(ladder)
        except KeyboardInterrupt:
            ladder.interrupted = True
        watcher.said(f"kept in {directory.path}")
    climb = _summed_up(ladder)
    report = LadderReport(ladder_id, config.name, climb, "stopped by the user" if ladder.interrupted else "")
    if form is ListFormat.JSON:
        sys.stdout.write(ladder_json(report))
    else:
        print_ladder(report, out())
    if ladder.interrupted:
        return ExitCode.INTERRUPTED
    codes = {Verdict.PASS: ExitCode.PASS, Verdict.FAIL: ExitCode.FAIL}
    return codes.get(climb.verdict, ExitCode.INCONCLUSIVE)


def _summed_up(ladder: _Ladder) -> Climb:
    if ladder.config.flags is None:
        return climbed(ladder.rungs, ladder.tried, ladder.invalid, Mode(ladder.config.mode))
    names = [flag.name for flag in ladder.config.flags]
    if _next_flags(ladder) is None:
        return debugged(names, ladder.tried)
    return Climb(
        Mode.FLAGS, Verdict.INCONCLUSIVE, ("the search did not come to its end",), tuple(ladder.tried), (), None, None
    )


def _try_all(ladder: _Ladder) -> None:
    while not ladder.interrupted:
        rung = _next(ladder)
        if rung is None:
            return
        number = len(ladder.tried)
        ladder.watcher.said(f"rung {number + 1}: {rung.name}")
        place = ladder.rungs.index(rung) if ladder.config.flags is None else number
        tried = run_async(_try, ladder, rung, place)
        ladder.tried.append(tried)
        ladder.directory.add(tried)
        ladder.watcher.said(f"{rung.name}: {tried.verdict.value}")


def _next(ladder: _Ladder) -> Rung | None:
    if ladder.config.flags is not None:
        flags = _next_flags(ladder)
        return _with(ladder.config, tuple(sorted(flags))) if flags is not None else None
    invalid = {each.place for each in ladder.invalid}
    valid = tuple(place for place in range(len(ladder.rungs)) if place not in invalid)
    place = next_rung(valid, {each.place: each.verdict for each in ladder.tried}, Mode(ladder.config.mode))
    return ladder.rungs[place] if place is not None else None


def _next_flags(ladder: _Ladder) -> frozenset[str] | None:
    names = [flag.name for flag in ladder.config.flags or ()]
    return next_flags(names, {frozenset(each.flags): each.verdict for each in ladder.tried})


async def _try(ladder: _Ladder, rung: Rung, place: int) -> RungTried:
    """Bring one rung up, gate it, and take it down whatever happens."""
    gate, digest = gate_of(ladder.config, ladder.path, rung)
    source = ladder.path.parent / (rung.gate or ladder.config.gate), digest
    gate = gate.model_copy(update={"output": gate.output.model_copy(update={"directory": str(ladder.directory.path)})})
    log = ladder.directory.log_of(len(ladder.tried), rung.name)
    hidden = (gate.deployment.auth.bearer_env,) if gate.deployment.auth is not None else ()
    launcher = Launcher(bringing_of(ladder.config, rung, log), log, hidden)
    begun, up_s = time.monotonic(), 0.0
    try:
        try:
            await _bring_up(launcher, gate, hidden)
        finally:
            up_s = time.monotonic() - begun
        before = await _readings(ladder.config, rung, hidden)
        run, ladder.interrupted = await carry_out(gate, source, None, ladder.watcher)
        figures = _figures(ladder.config, before, await _readings(ladder.config, rung, hidden))
        tried = _judged(rung, place, run, (up_s, time.monotonic() - begun - up_s), log, figures)
        tried = unless_gone(accepted(tried, _accepts(ladder.config, rung)), launcher.gone())
    except RemoteError as error:
        gone = launcher.gone()
        problem = Problem(Reason.RUNG_NOT_UP, str(error) if gone is None else f"{error}; {gone}")
        times = (up_s, max(0.0, time.monotonic() - begun - up_s))
        tried = RungTried(
            place, rung.name, tuple(sorted(rung.flags)), Verdict.INCONCLUSIVE, (problem,), None, None, *times, str(log)
        )
    finally:
        left = await launcher.down()
        if left is not None:
            ladder.watcher.said(f"{rung.name}: {left}")
    return tried


def _accepts(config: LadderConfig, rung: Rung) -> list[Accepts]:
    asked = [each for given in config.rungs or () if given.name == rung.name for each in given.accept]
    return [Accepts(each.reading, each.of == "change", each.least, each.most) for each in asked]


def unless_gone(tried: RungTried, gone: str | None) -> RungTried:
    """What a rung shows if its processes were there to the end: else something else may have answered, such as a
    server of another rung that kept the port."""
    if gone is None:
        return tried
    problem = Problem(Reason.RUNG_NOT_UP, f"{gone}, so what answered may have been another rung's")
    return replace(tried, verdict=Verdict.INCONCLUSIVE, reasons=(problem, *tried.reasons))


async def _bring_up(launcher: Launcher, gate: Config, hidden: tuple[str, ...]) -> None:
    """Bring a rung up and wait until it is ready. Raises RemoteError, also if something answers in its place."""
    async with connect(gate, "ready") as connection:
        engines = tuple(connection.engines().values())

        async def alive() -> bool:
            return all([await engine.alive() for engine in engines])

        if launcher.bringing.processes and await alive():
            raise RemoteError(
                "the endpoints answer before the rung's processes are started; end what serves there, or give the "
                "rungs a port of their own"
            )
        await launcher.up()
        await launcher.ready(ProcessHooks(hidden), alive)


async def _readings(config: LadderConfig, rung: Rung, hidden: tuple[str, ...]) -> list[tuple[float | None, str]]:
    """What each of the commands tells now: the figure, or why there is none."""
    told: list[tuple[float | None, str]] = []
    for each, argv in zip(config.readings, _asked(config, rung), strict=True):
        result = await ProcessHooks(hidden).run(argv, {"KVGATE_RUNG": rung.name}, READING_S)
        found = re.search(each.pattern, result.output) if result.exit_code == 0 else None
        try:
            told.append((float(found[1]), "") if found is not None else (None, _why_not(each.name, result)))
        except (TypeError, ValueError):
            told.append((None, f"{each.name}: {found[1]!r} is no number" if found is not None else ""))
    return told


def _asked(config: LadderConfig, rung: Rung) -> list[tuple[str, ...]]:
    """The commands of the readings."""
    values = dict(rung.values)
    return [argv_of(each.argv, values, f"readings[{number}].argv") for number, each in enumerate(config.readings)]


def _why_not(name: str, result: HookResult) -> str:
    if result.exit_code == 0:
        return f"{name}: the pattern is nowhere in its output"
    return f"{name}: code {result.exit_code}: {result.output.strip()[-200:]}"


def _figures(
    config: LadderConfig, before: list[tuple[float | None, str]], after: list[tuple[float | None, str]]
) -> tuple[Figure, ...]:
    return tuple(
        Figure(each.name, each.unit, first[0], last[0], last[1] or first[1])
        for each, first, last in zip(config.readings, before, after, strict=True)
    )


def _judged(
    rung: Rung, place: int, run: Path, times: tuple[float, float], log: Path, figures: tuple[Figure, ...]
) -> RungTried:
    manifest = read_manifest(run)
    ruling = judge(manifest.plan, RunRecord(read_history(run)))
    write_verdict(run, ruling)
    return RungTried(
        place=place,
        name=rung.name,
        flags=tuple(sorted(rung.flags)),
        verdict=ruling.verdict,
        reasons=ruling.reasons,
        run_id=run.name,
        block=manifest.plan.geometry.block_size,
        up_s=times[0],
        gate_s=times[1],
        log=str(log) if log.exists() else None,
        figures=figures,
    )


# -- from the file to rungs -----------------------------------------------------------------------------------------
def rungs_of(config: LadderConfig) -> tuple[Rung, ...]:
    """The rungs of an ordered ladder, lowest first."""
    return tuple(_rung(config, each) for each in config.rungs or ())


def _rung(config: LadderConfig, given: RungConfig) -> Rung:
    said = given.speculation
    speculation = Speculation(**said.model_dump()) if said is not None else None
    return Rung(given.name, _pairs({**config.values, **given.values}), speculation, gate=given.gate or "")


def _with(config: LadderConfig, flags: tuple[str, ...]) -> Rung:
    """The rung on which just these flags are on."""
    values = dict(config.values)
    for flag in config.flags or ():
        values |= flag.on if flag.name in flags else flag.off
    return Rung(" + ".join(flags) or "no flag", _pairs(values), None, frozenset(flags))


def _pairs(values: Mapping[str, str | int | float | bool | list[str]]) -> tuple[tuple[str, Value], ...]:
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in values.items())


def gate_of(config: LadderConfig, path: Path, rung: Rung) -> tuple[Config, str]:
    """What gates a rung of the ladder in ``path``, and its digest. Raises ConfigError."""
    return load_config_with_digest(path.parent / (rung.gate or config.gate), dict(rung.values))


def bringing_of(config: LadderConfig, rung: Rung, log: Path) -> Bringing:
    """How a rung is brought up and taken down, its variables filled. Raises ConfigError."""
    values: dict[str, Value] = {**dict(rung.values), "rung": rung.name}
    told = {"KVGATE_RUNG": rung.name, "KVGATE_RUNG_VALUES": json.dumps(dict(rung.values)), "KVGATE_RUNG_LOG": str(log)}

    def argv(name: str) -> tuple[str, ...] | None:
        given = getattr(config, name)
        return argv_of(given, values, name) if given is not None else None

    def environment(given: Mapping[str, str], where: str) -> dict[str, str]:
        return {name: str(value) for name, value in filled(given, values, where).items()}

    return Bringing(
        up=argv("up"),
        processes=tuple(
            Served(
                each.name,
                argv_of(each.argv, values, f"processes[{number}].argv"),
                environment(each.environment, f"processes[{number}].environment"),
            )
            for number, each in enumerate(config.processes)
        ),
        ready=argv("ready"),
        down=argv("down"),
        environment={**environment(config.environment, "environment"), **told},
        **config.limits.model_dump(),
    )
