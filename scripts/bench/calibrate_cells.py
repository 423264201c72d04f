"""What calibration measures, run by run: healthy engines, fault classes among noise, whole runs, rare faults."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from calibrate_noise import BY_LEVEL, LONGEST_S, Level
from calibrate_rare import BUDGETS, RARE, RarelyStruck, end_at_fail, rarely
from power_cells import FIRST_CLEAN_SEED, GROUPS_PER_TIER, REAL_TIERS, Wanted, divisor_of, run_gate
from power_gate import GateRun

from kvgate.domain.history import GroupStarted, RunStopped
from kvgate.domain.judge import judge
from kvgate.domain.noise import COLD_LOCAL, COLD_REPEAT, LOCAL_REPEAT
from kvgate.domain.reasons import Reason
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import RunVerdict
from kvgate.errors import KvgateError
from kvgate.sim.deployment import Deployment
from kvgate.sim.faults import BY_NAME, Fault
from kvgate.sim.presets import PRESETS, scaled

ALARMS, CLASSES, STOPS, RARELY = "alarms", "classes", "stops", "rare"
# Strikes lengths of another tier than the one that stands for all where one tier is enough.
BY_LENGTH = ("some_lengths",)
PARTS = (ALARMS, CLASSES, STOPS, RARELY)
# Clean runs cost least on this geometry; rare faults are planted in blocks of the plainest one.
CLEAN_PRESET, RARE_PRESET = "gdn-hybrid", "dense"
ONE_TIER = 16384
# Near ties stand among the first nine tokens, and a third of a run's time goes with the rest of an answer.
ALARM_TOKENS, RARE_TOKENS = 12, 12
HEALTHY = "healthy"
FEW_SEEDS = 20


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of the gate: for which part, with which fault, at which level of noise, and the seed."""

    part: str
    fault: str
    level: str
    seed: int

    @property
    def key(self) -> str:
        """A name that no other trial has; ``--rerun`` takes it."""
        return f"{self.part}/{self.fault}/{self.level}/{self.seed}"


def trial_named(key: str) -> Trial:
    """The trial of a key. Raises ValueError."""
    part, fault, level, seed = key.split("/")
    return Trial(part, fault, level, int(seed))


@dataclass(frozen=True, slots=True)
class Seen:
    """What one run gave.

    ``reasons`` are the ruling's, each with its detail. ``flips`` of ``pairs`` local answers have other token IDs than
    their cold ones, ``turns`` of ``repeats`` repeats (cold and local) other ones than what they repeat. ``groups`` were
    sent; ``stopped`` is whether the run ended early because two were grossly wrong. ``found_at`` is the number of
    groups after which the judge said FAIL, None where it never did or that was not looked at. ``budgets`` are, by the
    number of groups, what a run of so many would have said (``RarelyStruck``).
    """

    key: str
    part: str
    fault: str
    level: str
    seed: int
    verdict: str
    reasons: tuple[str, ...] = ()
    flips: int = 0
    pairs: int = 0
    turns: int = 0
    repeats: int = 0
    groups: int = 0
    stopped: bool = False
    loads: int = 0
    struck: int = 0
    batch: int = 0
    found_at: int | None = None
    budgets: dict[str, RarelyStruck] = field(default_factory=dict)
    cpu_s: float = 0.0
    error: str = ""


def alarm_trials(levels: Iterable[Level], runs: int) -> list[Trial]:
    """Full runs on healthy engines, seed by seed, so that what was measured until an interruption is of all levels."""
    every = list(levels)
    return [Trial(ALARMS, HEALTHY, level.name, FIRST_CLEAN_SEED + number) for number in range(runs) for level in every]


def class_trials(faults: Iterable[Fault], levels: Iterable[Level], seeds: int) -> list[Trial]:
    """Every class of fault at every level of noise."""
    every = list(levels)
    return [
        Trial(CLASSES, fault.name, level.name, seed) for fault in faults for level in every for seed in range(seeds)
    ]


def stop_trials(faults: Iterable[Fault], seeds: int) -> list[Trial]:
    """Full runs of every class on a quiet engine, for when they stop."""
    return [Trial(STOPS, fault.name, "quiet", seed) for fault in faults for seed in range(seeds)]


def rare_trials(seeds: int) -> list[Trial]:
    """Runs of one tier for every rare fault; those that are not random do much the same every time."""
    return [
        Trial(RARELY, each.name, "quiet", seed)
        for each in RARE
        for seed in range(seeds if each.share is not None else min(seeds, FEW_SEEDS))
    ]


def carry_out(trial: Trial) -> Seen:
    """Run the gate once, and judge."""
    begun = time.process_time()
    try:
        seen = _rarely(trial) if trial.part == RARELY else _whole(trial)
    except KvgateError as error:
        seen = Seen(trial.key, trial.part, trial.fault, trial.level, trial.seed, "none", error=str(error))
    return replace(seen, cpu_s=round(time.process_time() - begun, 3))


def _whole(trial: Trial) -> Seen:
    """A run that is judged once, at its end."""
    fault, level = BY_NAME[trial.fault], BY_LEVEL[trial.level]
    healthy = trial.part == ALARMS
    source = PRESETS[CLEAN_PRESET if healthy else fault.preset]
    divisor = divisor_of(source)
    preset = replace(scaled(source, divisor), speculation=fault.speculation)
    one_tier = trial.part == CLASSES and len(fault.tiers) <= 1 and fault.name not in BY_LENGTH
    gate: dict[str, object] = {
        "tiers": [tier // divisor for tier in ((ONE_TIER,) if one_tier else REAL_TIERS)],
        "lengths": level.lengths or fault.lengths,
        "groups_per_tier": GROUPS_PER_TIER,
        "seed": trial.seed,
        **({"pressure": {"concurrency": level.beside}} if level.beside else {}),
    }
    tokens = ALARM_TOKENS if healthy else Wanted(gate).max_tokens
    wanted = Wanted(gate, tokens, beside_s=LONGEST_S if level.beside else None)
    run, deployment = run_gate(fault, preset, level.on(fault.dials, trial.seed), wanted)
    ruling = judge(run.plan, RunRecord(run.kept.entries))
    return _seen(trial, run, deployment, ruling)


def _seen(trial: Trial, run: GateRun, deployment: Deployment, ruling: RunVerdict) -> Seen:
    floors = {floor.kind: floor for floor in ruling.noise}
    repeats = [floors[kind] for kind in (COLD_REPEAT, LOCAL_REPEAT) if kind in floors]
    local = floors.get(COLD_LOCAL)
    planned = {group.id for group in run.plan.groups}
    started = {entry.group.id for entry in run.kept.entries if isinstance(entry, GroupStarted)}
    stops = [entry for entry in run.kept.entries if isinstance(entry, RunStopped)]
    deeds = [deed for node in deployment.nodes.values() for deed in node.deeds]
    loads = [deed for deed in deeds if deed.external]
    return Seen(
        key=trial.key,
        part=trial.part,
        fault=trial.fault,
        level=trial.level,
        seed=trial.seed,
        verdict=ruling.verdict.value,
        reasons=tuple(f"{problem.reason.value}: {problem.detail}" for problem in ruling.reasons),
        flips=local.flips if local is not None else 0,
        pairs=local.pairs if local is not None else 0,
        turns=sum(floor.flips for floor in repeats),
        repeats=sum(floor.pairs for floor in repeats),
        groups=len(started & planned),
        stopped=any(entry.problem.reason is Reason.DIVERGED for entry in stops),
        loads=len(loads),
        struck=sum(1 for deed in loads if deed.spoilt),
        batch=max((deed.batch for deed in loads), default=0),
    )


def _rarely(trial: Trial) -> Seen:
    """A run with as many groups as the largest budget; it ends at the first group at which the judge says FAIL."""
    rare = rarely(trial.fault)
    fault = BY_NAME[rare.fault or rare.name]
    source = PRESETS[RARE_PRESET]
    divisor = divisor_of(source)
    budgets = [budget for budget in BUDGETS if budget <= rare.most]
    gate: dict[str, object] = {
        "tiers": [REAL_TIERS[0] // divisor],
        "groups_per_tier": max(budgets),
        "seed": trial.seed,
        # Budgets are cut out of one run, and a sentinel is asked where that ends.
        "sentinel": False,
        **({"pressure": {"concurrency": rare.beside, "cancel_share": rare.cancels}} if rare.beside else {}),
    }
    watcher, watching = end_at_fail()
    wanted = Wanted(gate, RARE_TOKENS, watching=watching, beside_s=LONGEST_S if rare.beside else None)
    run, deployment = run_gate(fault, scaled(source, divisor), rare.dials, wanted)
    found_at = watcher[0].ended(len(run.plan.groups))
    ruling = judge(run.plan, RunRecord(run.kept.entries))
    seen = _seen(trial, run, deployment, ruling)
    return replace(
        seen,
        # What was loaded before the groups is none of theirs.
        loads=seen.loads - watcher[0].loads_before,
        found_at=found_at,
        budgets={str(budget): watcher[0].of_a_run(budget) for budget in budgets},
    )
