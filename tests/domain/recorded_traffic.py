"""Histories of an engine that others use all the time, whose replies tell local from external cached tokens."""

from collections.abc import Mapping
from dataclasses import replace

from kvgate.domain.counters import Counters
from kvgate.domain.observation import Observation, Usage
from kvgate.domain.policy import Grade, Policy
from kvgate.domain.probe import Arm, Path
from tests.domain.judging import OTHER, SUBJECTS
from tests.domain.making import EMPTY, HIT, LENGTH, TOKENS, answer, counters, group_plan, run_plan
from tests.domain.recorded_case import Case, Readings, Try, attempts, history, of_run
from tests.domain.recorded_evidence import open_by

CONTENT = Policy(evidence=Grade.SCHEDULED)
Told = tuple[int | None, int | None]
BY_PATH: dict[Path, Told] = {Path.COLD: (0, 0), Path.LOCAL: (HIT, 0), Path.EXTERNAL: (0, HIT)}


def told(split: Told, cached: int | None = None, ids: tuple[int, ...] = TOKENS) -> Observation:
    return replace(answer(ids), usage=Usage(LENGTH, len(ids), cached, *split))


def crowd(path: Path, **more: int) -> Counters:
    """The request's own tokens and somebody else's, of which 160 came from outside."""
    local, external = (each or 0 for each in BY_PATH[path])
    computed = LENGTH - local - external
    return counters(computed + 512, local, external + 160, "0", external_queries=1000, **more)


def crowded(
    name: str,
    required: str,
    said: Mapping[Arm, Observation] | None = None,
    policy: Policy = CONTENT,
    more: Mapping[Arm, Counters] | None = None,
) -> Case:
    group = group_plan()
    answers = {step.arm: told(BY_PATH[step.path]) for step in group.steps} | dict(said or {})
    readings: Readings = {step.arm: crowd(step.path) for step in group.steps} | dict(more or {})
    return of_run(f"crowd: {name}", required, run_plan(group, policy=policy), history(group, answers, readings))


def both(said: Observation) -> dict[Arm, Observation]:
    return dict.fromkeys(SUBJECTS, said)


def off(nat: float) -> Observation:
    """An external answer that drifts by so much."""
    return replace(answer(shift=nat), usage=Usage(LENGTH, len(TOKENS), None, 0, HIT))


def anew() -> Case:
    """Another process answers after the request than before it, and its counters cannot be held against each other."""
    group = group_plan()
    tries = {
        step.arm: [Try(told(BY_PATH[step.path]), crowd(step.path), before=replace(EMPTY, started=-0.5))]
        for step in group.steps
    }
    plan = run_plan(group, policy=CONTENT)
    return of_run("crowd: a server that was started anew", open_by("COUNTER_RESET"), plan, attempts(group, tries))


CASES = (
    anew(),
    crowded("replies tell the path", "PASS"),
    crowded("replies tell the path, arrival is asked for", open_by("FOREIGN_TRAFFIC"), policy=Policy()),
    crowded("no reply tells", open_by("FOREIGN_TRAFFIC"), dict.fromkeys(Arm, answer())),
    crowded("half of the split", open_by("FOREIGN_TRAFFIC"), both(told((None, HIT)))),
    crowded("the other half", open_by("FOREIGN_TRAFFIC"), both(told((0, None)))),
    crowded("the sum fits", "PASS", both(told((0, HIT), HIT))),
    crowded("the sum does not fit", open_by("SENSOR_CONFLICT"), both(told((0, HIT), HIT + 1))),
    crowded("a miss", open_by("PATH_NOT_EXERCISED"), both(told((0, 0)))),
    crowded("a local hit", open_by("LOCAL_NOT_DROPPED"), both(told((HIT, 0)))),
    crowded("more than the prompt", open_by("SENSOR_CONFLICT"), both(told((0, LENGTH + 1)))),
    crowded(
        "more of its own than everybody's",
        open_by("SENSOR_CONFLICT"),
        {Arm.LOCAL: told((HIT, 0))},
        more={Arm.LOCAL: counters(LENGTH + 512, HIT - 1, 160)},
    ),
    # A load that failed, and another process that answers, still show.
    *(
        crowded(name, open_by("LOAD_FAILED"), more=dict.fromkeys(SUBJECTS, crowd(Path.EXTERNAL, **how)))
        for name, how in (("failed keys", {"failed_loads": 5}), ("look-ups hit more than came", {"external_hits": 500}))
    ),
    # Whoever shares a batch may drift a little, even the same again: one group cannot tell that from wrong bytes.
    crowded("a little drift", "PASS", {Arm.EXTERNAL: off(0.01), Arm.EXTERNAL_REPEAT: off(0.02)}),
    crowded("a little drift, the same again", open_by("UNSTABLE"), both(off(0.01))),
    crowded("a wrong answer", "FAIL DIVERGED", both(told((0, HIT), ids=OTHER))),
    crowded("a cold run that reused", open_by("NOT_COLD"), {Arm.COLD: told((16, 0))}),
    crowded(
        "more from outside than everybody got",
        open_by("SENSOR_CONFLICT"),
        more=dict.fromkeys(SUBJECTS, counters(LENGTH + 512, 0, HIT - 1)),
    ),
    crowded(
        "just what everybody got",
        "PASS",
        more=dict.fromkeys(SUBJECTS, counters(LENGTH + 512, 0, HIT)),
    ),
    crowded(
        "preempted",
        open_by("PREEMPTED"),
        more=dict.fromkeys(SUBJECTS, crowd(Path.EXTERNAL, preemptions=1)),
    ),
)
