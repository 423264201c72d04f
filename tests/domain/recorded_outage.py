"""Histories of a group for which the pool is taken away and brought back, beside a usual one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvgate.domain.counters import Counters
from kvgate.domain.observation import EMPTY_BODY, Observation
from kvgate.domain.outage import outage_pairs, outage_steps
from kvgate.domain.plan import Purpose
from kvgate.domain.policy import Policy
from kvgate.domain.probe import WHILE_AWAY, Arm, Path
from tests.domain.judging import OTHER
from tests.domain.making import BY_PATH, LENGTH, answer, counters, group_plan, lost, refused, run_plan
from tests.domain.recorded_case import Case, Try, attempts, history, of_run

COLD = counters(LENGTH, 0, 0)
# A load that was looked up, and did not arrive: the counters of look-ups have moved.
BEGUN = counters(LENGTH, 0, 0, external_hits=80)


def away(
    name: str,
    required: str,
    said: Mapping[Arm, Observation] | None = None,
    readings: Mapping[Arm, Counters] | None = None,
    *,
    reached: Sequence[Arm] | None = None,
    again: Mapping[Arm, Sequence[Observation]] | None = None,
    hooks: Mapping[Arm, int] | None = None,
    policy: Policy | None = None,
) -> Case:
    """``said`` is answered and counted otherwise than as it should; ``again`` by a second attempt, too."""
    steps = outage_steps("a")
    made = replace(
        group_plan("o1", nonce="000000000009"), purpose=Purpose.OUTAGE, steps=steps, pairs=outage_pairs(), aligned=False
    )
    tries: dict[Arm, list[Try]] = {}
    for step in steps:
        if reached is not None and step.arm not in reached:
            tries[step.arm] = []
            continue
        answers = (again or {}).get(step.arm) or [(said or {}).get(step.arm, answer())]
        after = (readings or {}).get(step.arm, BY_PATH[step.path])
        ran = [("pool_down", code, "") for arm, code in (hooks or {}).items() if arm is step.arm]
        tries[step.arm] = [Try(each, after, hooks=tuple(ran)) for each in answers]
    usual = group_plan("g1")
    return of_run(
        f"outage: {name}", required, run_plan(usual, made, policy=policy), history(usual), attempts(made, tries)
    )


def both(seen: Observation) -> dict[Arm, Observation]:
    return dict.fromkeys(WHILE_AWAY, seen)


NOTHING = replace(refused("HTTP 200 with nothing in it"), status=200, marks=(EMPTY_BODY,))
LOSSY = Policy(lossy_bound_nat=0.05)
TWICE = {arm: [refused(), refused()] for arm in WHILE_AWAY}
EXTERNAL = BY_PATH[Path.EXTERNAL]
CASES: tuple[Case, ...] = (
    away("computed, and served again", "PASS"),
    # A clean error is no wrong answer; one that is answered when asked again is compared.
    away("refused", "PASS", again=TWICE),
    away("refused once", "PASS", again={Arm.OUTAGE: [refused(), answer()]}),
    away(
        "refused once, then wrong",
        "FAIL DIVERGED",
        {Arm.OUTAGE_REPEAT: answer(OTHER)},
        again={Arm.OUTAGE: [refused(), answer(OTHER)]},
    ),
    away(
        "refused once, then wrong, and then refused",
        "FAIL DIVERGED_INTERMITTENT",
        again={Arm.OUTAGE: [refused(), answer(OTHER)], Arm.OUTAGE_REPEAT: [refused(), refused()]},
    ),
    away("refused once, then never", "INCONCLUSIVE OBSERVATION_MISSING", again={Arm.OUTAGE: [refused(), lost()]}),
    away("200 with nothing in it", "FAIL EMPTY", again={arm: [NOTHING, NOTHING] for arm in WHILE_AWAY}),
    away("no answer in time", "INCONCLUSIVE OBSERVATION_MISSING", again={arm: [lost(), lost()] for arm in WHILE_AWAY}),
    # Two cold runs of an engine that repeats itself are equal to the last bit.
    away("wrong", "FAIL DIVERGED", both(answer(OTHER))),
    away("wrong the second time", "FAIL DIVERGED_INTERMITTENT", {Arm.OUTAGE_REPEAT: answer(OTHER)}),
    away("a drift", "FAIL DRIFT", both(answer(shift=0.02))),
    away(
        "a drift, and the store is lossy", "FAIL DRIFT", both(answer(shift=0.02)), policy=Policy(lossy_bound_nat=0.05)
    ),
    away("cold runs drift themselves", "PASS", {**both(answer(shift=0.02)), Arm.COLD_REPEAT: answer(shift=0.01)}),
    # What is computed again after a load that was begun has another shape.
    away("a drift after a load was begun", "PASS", both(answer(shift=0.02)), dict.fromkeys(WHILE_AWAY, BEGUN)),
    away("wrong after a load was begun", "FAIL DIVERGED", both(answer(OTHER)), dict.fromkeys(WHILE_AWAY, BEGUN)),
    # Nothing is shown where the pool was not away, does not serve before, or not again.
    away("it still serves", "INCONCLUSIVE OUTAGE_MISSING", {}, dict.fromkeys(WHILE_AWAY, EXTERNAL)),
    away("it still serves, and wrong", "FAIL DIVERGED", both(answer(OTHER)), dict.fromkeys(WHILE_AWAY, EXTERNAL)),
    away("the local cache still serves", "INCONCLUSIVE OUTAGE_MISSING", {}, {Arm.OUTAGE: BY_PATH[Path.LOCAL]}),
    away("it did not serve before", "INCONCLUSIVE EXTERNAL_MISS", {}, {Arm.EXTERNAL: COLD}),
    away("it does not serve again", "INCONCLUSIVE NOT_RECOVERED", {}, {Arm.RECOVERED: COLD}),
    away(
        "it serves again, and wrong",
        "FAIL DIVERGED",
        {Arm.RECOVERED: answer(OTHER)},
        again={Arm.RECOVERED: [answer(OTHER), answer(OTHER)]},
    ),
    away(
        "the hook failed",
        "INCONCLUSIVE HOOK_FAILED",
        {},
        reached=[Arm.COLD, Arm.COLD_REPEAT, Arm.EXTERNAL, Arm.OUTAGE],
        hooks={Arm.OUTAGE: 1},
    ),
    away(
        "never brought back",
        "INCONCLUSIVE OBSERVATION_MISSING",
        reached=[Arm.COLD, Arm.COLD_REPEAT, Arm.EXTERNAL, *WHILE_AWAY],
    ),
)
