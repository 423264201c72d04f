"""What is measured, cell by cell: a fault class, a tier and a seed, or a clean run at a level of noise."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from power_gate import GateRun, JumpingLoop, Kept, LoopClock, config_for, gate, run_jumping
from power_rules import RULES, judged_by

from kvgate.domain.history import GroupStarted
from kvgate.domain.judge import judge
from kvgate.domain.noise import COLD_LOCAL
from kvgate.domain.observation import Observation
from kvgate.domain.pairing import recall
from kvgate.domain.plan import Plan
from kvgate.domain.probe import Arm
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import RunVerdict
from kvgate.domain.verdict import Verdict
from kvgate.errors import KvgateError
from kvgate.ports import Watcher
from kvgate.sim.deployment import Deployment, make_deployment
from kvgate.sim.dials import Dials
from kvgate.sim.faults import BY_NAME, FAULTS, Fault
from kvgate.sim.memory import Memory
from kvgate.sim.node import Node, Request
from kvgate.sim.presets import PRESETS, Preset, scaled
from kvgate.sim.topology import Topology

REAL_TIERS = (8192, 16384, 32768, 65536, 131072)
REAL_LENGTH, REAL_SEEDS = 16384, 5
DIVISORS = (64, 32, 16)
SMALLEST_BLOCK = 2
GROUPS_PER_TIER = 3
NOISE_LEVELS = (0.0, 0.15, 0.45)
SHORTEST_TIER = 128
# Loads are struck by their number on the engine, so these classes are met at another number with every cell.
BY_NUMBER = ("every_other", "one_in_three")
LOADS_A_RUN = 9
NEED_A_STREAM = ("broken_stream",)
CLASS, VACUOUS, CLEAN, REAL, WHOLE = "class", "vacuous", "clean", "real", "whole"
FIRST_CLEAN_SEED = 1000
REUSED = (Arm.LOCAL, Arm.LOCAL_REPEAT, Arm.EXTERNAL, Arm.EXTERNAL_REPEAT)

_MEMORY: list[Memory] = []


@dataclass(frozen=True, slots=True)
class Task:
    """One run of the gate: what it is for, the deployment's fault and preset, divided by how much, tiers and seed.

    ``lengths`` are chosen as in ``gate.lengths``. ``earlier`` loads were served before the gate came.
    """

    kind: str
    fault: str
    preset: str
    divisor: int
    tiers: tuple[int, ...]
    seed: int
    lengths: str = "aligned"
    flip_share: float = 0.0
    earlier: int = 0

    @property
    def key(self) -> str:
        """A name that no other task has."""
        tiers = ",".join(map(str, self.tiers))
        return (
            f"{self.kind}/{self.fault}/{self.preset}/{self.divisor}/{tiers}/{self.seed}/{self.lengths}/"
            f"{self.flip_share}/{self.earlier}"
        )


@dataclass(frozen=True, slots=True)
class Result:
    """What one run gave. Token counts are prompt tokens of the scaled geometry, as the engines know them.

    ``tier`` is the real tier the first of the task's stands for. ``applicable`` is whether any group was planned,
    ``present`` whether the fault can strike at these lengths, ``struck`` and ``loads`` how many loads were changed and
    made. ``shown`` is whether any reused answer differs from the cold one in anything at all, be it the last bit of a
    logprob: nobody can find what does not show. ``groups``, ``sent`` and ``computed`` are up to the first group at
    which the verdict was FAIL (None where it never was). ``rules`` are the verdicts of today's rules by name.
    ``flipped`` of ``flippable`` groups have other token IDs in the local answer than in the cold one; ``recalled`` of
    ``asked`` codewords stand in cold answers.
    """

    key: str
    kind: str
    fault: str
    preset: str
    divisor: int
    tier: int
    seed: int
    lengths: str
    flip_share: float
    verdict: str
    reasons: tuple[str, ...]
    applicable: bool
    present: bool
    length: int
    loads: int
    struck: int
    shown: bool
    groups: int | None
    sent: int | None
    computed: int | None
    sent_in_all: int
    computed_in_all: int
    rules: dict[str, str]
    flippable: int
    flipped: int
    asked: int
    recalled: int
    cpu_s: float
    error: str = ""


def classes() -> list[Fault]:
    """The rows a gate must fail, on one engine, without traffic the gate does not send."""
    return [fault for fault in FAULTS if fault.verdict == "FAIL" and _in_reach(fault)]


def vacuous() -> list[Fault]:
    """The rows where there is nothing to pass: the path never ran, sensors lie, or the answer is no evidence."""
    return [fault for fault in FAULTS if fault.verdict == "INCONCLUSIVE" and _in_reach(fault)]


def _in_reach(fault: Fault) -> bool:
    # Nor what only arms or canaries bring out that the usual gate, which is measured here, does not send.
    asked = fault.needs or fault.arms or fault.canaries or fault.pressure or fault.outage
    return not asked and fault.topology is not Topology.PD


def divisor_of(preset: Preset) -> int:
    """The largest divisor that leaves whole blocks of two tokens or more: parts of a block can then be wrong."""
    return next(each for each in DIVISORS if preset.block % each == 0 and preset.block // each >= SMALLEST_BLOCK)


def fault_tasks(faults: Iterable[Fault], kind: str, seeds: int, tiers: tuple[int, ...] = REAL_TIERS) -> list[Task]:
    """A task per class, tier and seed."""
    tasks: list[Task] = []
    for fault in faults:
        divisor = divisor_of(PRESETS[fault.preset])
        for seed in range(seeds):
            for place, tier in enumerate(tiers):
                number = seed * len(REAL_TIERS) + place
                earlier = LOADS_A_RUN * number if fault.name in BY_NUMBER else 0
                task = Task(kind, fault.name, fault.preset, divisor, (tier // divisor,), seed, fault.lengths)
                tasks.append(replace(task, earlier=earlier))
    return tasks


def whole_run_tasks(faults: Iterable[Fault], seeds: int) -> list[Task]:
    """Runs over all five tiers, for the classes that strike by number or show over more groups than a cell has."""
    return [
        Task(WHOLE, fault.name, fault.preset, divisor, tuple(tier // divisor for tier in REAL_TIERS), seed)
        for fault in faults
        if fault.name in (*BY_NUMBER, "after_some") or len(fault.tiers) > 1
        for divisor in (divisor_of(PRESETS[fault.preset]),)
        for seed in range(seeds)
    ]


def real_length_tasks(faults: Iterable[Fault], seeds: int = REAL_SEEDS) -> list[Task]:
    """Runs of the real geometry, at 16384 tokens or the shortest length that can be a hit."""
    return [
        Task(REAL, fault.name, fault.preset, 1, (max(REAL_LENGTH, 2 * PRESETS[fault.preset].retention),), seed)
        for fault in faults
        for seed in range(seeds)
    ]


def clean_tasks(count: int, lengths: str, presets: tuple[str, ...] = ("dense",)) -> list[Task]:
    """Runs over all five tiers of engines on which nothing is wrong, ``count`` per level of noise and preset."""
    return [
        Task(
            CLEAN,
            "healthy",
            preset,
            divisor,
            tuple(tier // divisor for tier in REAL_TIERS),
            FIRST_CLEAN_SEED + number,
            lengths,
            level,
        )
        for preset in presets
        for divisor in (divisor_of(PRESETS[preset]),)
        for number in range(count)
        for level in NOISE_LEVELS
    ]


def carry_out(task: Task) -> Result:
    """Run the gate once, judge its record, and hold today's rules against the same record."""
    begun = time.process_time()
    fault = BY_NAME[task.fault]
    preset = PRESETS[task.preset] if task.divisor == 1 else scaled(PRESETS[task.preset], task.divisor)
    preset = replace(preset, speculation=fault.speculation)
    dials = replace(fault.dials, flip_share=task.flip_share or fault.dials.flip_share)
    wanted = {"tiers": list(task.tiers), "lengths": task.lengths, "groups_per_tier": GROUPS_PER_TIER, "seed": task.seed}
    try:
        run, deployment = run_gate(fault, preset, dials, Wanted(wanted, earlier=task.earlier))
    except KvgateError as error:
        return _failed(task, str(error), time.process_time() - begun)
    return _result(task, preset, run, deployment, begun)


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a run is made: what ``gate`` says in its configuration, output tokens, loads that were served before.

    ``watching`` makes somebody who looks on and may end the run; with ``beside_s``, requests beside the groups' own
    last so long and are not computed.
    """

    gate: dict[str, object]
    max_tokens: int = 32
    earlier: int = 0
    watching: Callable[[Plan, Kept, Deployment], Watcher] | None = None
    beside_s: float | None = None


def run_gate(fault: Fault, preset: Preset, dials: Dials, wanted: Wanted) -> tuple[GateRun, Deployment]:
    """One run of the gate on a new deployment. Raises KvgateError where the gate cannot run."""
    deployments: list[Deployment] = []

    async def work(loop: JumpingLoop) -> GateRun:
        deployment = _deployment(fault, preset, dials, loop)
        deployments.append(deployment)
        serve_loads(next(iter(deployment.nodes.values())), wanted.earlier)
        stream = fault.name in NEED_A_STREAM
        config = config_for(tuple(deployment.nodes), wanted.gate, fault.declared, stream, wanted.max_tokens)
        look = wanted.watching
        watching = (lambda plan, kept: look(plan, kept, deployment)) if look is not None else None
        return await gate(deployment, config, LoopClock(loop), watching, wanted.beside_s)

    return run_jumping(work), deployments[0]


def _deployment(fault: Fault, preset: Preset, dials: Dials, loop: JumpingLoop) -> Deployment:
    if not _MEMORY:
        # Weights and words are the same for every deployment of this process.
        _MEMORY.append(Memory())
    return make_deployment(preset, fault.topology, fault.name, dials, clock=loop.time, memory=_MEMORY[0])


def serve_loads(node: Node, count: int) -> None:
    """Let an engine serve so many loads from its pool, as it will have before a gate comes to it."""
    if not count:
        return
    ids = [3 + number % 97 for number in range(2 * node.preset.step + 1)]
    for _ in range(count + 1):
        node.complete(Request(ids, salt="earlier", max_tokens=1))
        node.drop_local()


def _result(task: Task, preset: Preset, run: GateRun, deployment: Deployment, begun: float) -> Result:
    record = RunRecord(run.kept.entries)
    ruling = judge(run.plan, record)
    found = _first_failing(run) if ruling.verdict is Verdict.FAIL else (None, None, None)
    loads = [deed for node in deployment.nodes.values() for deed in node.deeds if deed.external][task.earlier :]
    groups = run.plan.groups
    length = min((group.length for group in groups), default=0)
    sent, computed = run.kept.costs[-1] if run.kept.costs else (0, 0)
    flips = next((floor for floor in ruling.noise if floor.kind == COLD_LOCAL), None)
    asked, recalled = _recall(record)
    return Result(
        key=task.key,
        kind=task.kind,
        fault=task.fault,
        preset=task.preset,
        divisor=task.divisor,
        tier=task.tiers[0] * task.divisor,
        seed=task.seed,
        lengths=task.lengths,
        flip_share=task.flip_share,
        verdict=ruling.verdict.value,
        reasons=_told(ruling),
        applicable=bool(groups) or bool(run.plan.obstacles),
        present=task.fault != "long_only" or length > preset.max_model_len // 16,
        length=length,
        loads=len(loads),
        struck=sum(1 for deed in loads if deed.spoilt),
        shown=shows(record),
        groups=found[0],
        sent=found[1],
        computed=found[2],
        sent_in_all=sent,
        computed_in_all=computed,
        rules={rule.name: judged_by(rule, record) for rule in RULES},
        flippable=flips.pairs if flips is not None else 0,
        flipped=flips.flips if flips is not None else 0,
        asked=asked,
        recalled=recalled,
        cpu_s=round(time.process_time() - begun, 3),
    )


def _first_failing(run: GateRun) -> tuple[int | None, int | None, int | None]:
    """Groups, sent and computed prompt tokens after which the judge says FAIL: the record cut off after each group."""
    kept = run.kept
    beside = {group.id for group in (*run.plan.canaries, *run.plan.sentinels)}
    started = ((place, entry) for place, entry in enumerate(kept.entries) if isinstance(entry, GroupStarted))
    starts = [place for place, entry in started if entry.group.id not in beside]
    for number, end in enumerate([*starts[1:], len(kept.entries)], start=1):
        if judge(run.plan, RunRecord(kept.entries[:end])).verdict is Verdict.FAIL:
            return number, *kept.costs[end - 1]
    return None, None, None


def shows(record: RunRecord) -> bool:
    """Whether an answer on reused KV differs from its group's cold answer in anything but its timing."""
    for group in record.groups.values():
        cold = next((each.observation for each in group.of(Arm.COLD)), None)
        reused = [each.observation for arm in REUSED for each in group.of(arm)]
        if cold is not None and any(each is not None and _told_by(each) != _told_by(cold) for each in reused):
            return True
    return False


def _told_by(seen: Observation) -> Observation:
    # What a server counts differs between a cold run and a hit, rightly.
    return replace(seen, timing=None, usage=None)


def _recall(record: RunRecord) -> tuple[int, int]:
    """Codewords asked for in groups whose cold run was answered, and how many of them it held."""
    answered: list[tuple[Observation, tuple[str, ...]]] = []
    for group in record.groups.values():
        first = next(iter(group.of(Arm.COLD)), None)
        if first is not None and first.observation is not None and first.observation.ok:
            answered.append((first.observation, group.plan.asked))
    return sum(len(asked) for _, asked in answered), sum(recall(seen, asked) for seen, asked in answered)


def _told(ruling: RunVerdict) -> tuple[str, ...]:
    return tuple(problem.reason.value for problem in ruling.reasons)


def _failed(task: Task, error: str, cpu_s: float) -> Result:
    """A gate that could not run gave no verdict."""
    return Result(
        key=task.key,
        kind=task.kind,
        fault=task.fault,
        preset=task.preset,
        divisor=task.divisor,
        tier=task.tiers[0] * task.divisor,
        seed=task.seed,
        lengths=task.lengths,
        flip_share=task.flip_share,
        verdict="none",
        reasons=(),
        applicable=True,
        present=True,
        length=0,
        loads=0,
        struck=0,
        shown=False,
        groups=None,
        sent=None,
        computed=None,
        sent_in_all=0,
        computed_in_all=0,
        rules={},
        flippable=0,
        flipped=0,
        asked=0,
        recalled=0,
        cpu_s=round(cpu_s, 3),
        error=error,
    )
