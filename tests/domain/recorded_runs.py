"""Written histories of whole runs: what was cut off, stopped, replaced, left open."""

from dataclasses import replace

from kvgate.domain.history import CountersRead, Entry, HookRan, Moment, ProbeAnswered, RunCompleted, RunStopped, Waited
from kvgate.domain.observation import Timing
from kvgate.domain.plan import Plan, Purpose
from kvgate.domain.policy import Policy, PolicyName
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Problem, Reason
from tests.domain.judging import OTHER, SUBJECTS, TIED, both, near_tie
from tests.domain.making import (
    ARMS,
    EMPTY,
    HIT,
    LENGTH,
    Answers,
    answer,
    counters,
    group_plan,
    lost,
    refused,
    run_plan,
)
from tests.domain.recorded_case import Case, Given, Readings, Try, attempts, history, of_run
from tests.domain.recorded_evidence import COLD, EXTERNAL, LOCAL

GROUP, SECOND = group_plan(), group_plan("g2")
TIED_ONCE: Answers = {**TIED, Arm.LOCAL_REPEAT: answer(shift=0.02, gap=0.05), **both(near_tie())}
STRICT = Policy(name=PolicyName.STRICT)
PREEMPTED: Readings = {Arm.COLD_REPEAT: counters(LENGTH, 0, 0, preemptions=1)}
CLEAN = history(GROUP)
WRONG = history(GROUP, both(answer(OTHER)))
PLAN = run_plan(GROUP)


def raw(name: str, required: str, plan: Plan, entries: list[Entry]) -> Case:
    """A history just as given, also without an end."""
    return Case(name, plan, tuple(entries), required)


def stopped(reason: Reason) -> RunStopped:
    return RunStopped(1.0, Problem(reason, "stopped"))


def first_answers(count: int) -> list[Entry]:
    """The clean history up to its ``count``-th answer, that included."""
    places = [number for number, entry in enumerate(CLEAN) if entry.kind == "probe_answered"]
    return CLEAN[: places[count - 1] + 1]


WARM = CountersRead(0.0, "a", "warmup-a", Arm.WARMUP, 0, Moment.BEFORE, EMPTY)
HOOK = HookRan(0.0, "before_arm", "warmup-a", Arm.WARMUP, 0, ("true",), 0, 0.0, "")
STRANGE = ProbeAnswered(0.0, "nobody.cold.0", answer(OTHER))
ENDS = (
    raw("entries of a warm-up", "PASS", PLAN, [WARM, HOOK, *CLEAN, RunCompleted(1.0)]),
    raw("an answer to an unknown probe", "PASS", PLAN, [STRANGE, *CLEAN, RunCompleted(1.0)]),
    raw("cut while it waited", "INCONCLUSIVE INTERRUPTED", PLAN, [*CLEAN, Waited(1.0, 1.0, "puts")]),
    raw(
        "cut before counters were read",
        "INCONCLUSIVE OBSERVATION_MISSING INTERRUPTED TIER_NOT_COVERED",
        PLAN,
        [CLEAN[0], CLEAN[2]],
    ),
    raw(
        "an answer that is missing between two readings",
        "INCONCLUSIVE OBSERVATION_MISSING TIER_NOT_COVERED",
        PLAN,
        [*CLEAN[:3], *CLEAN[4:], RunCompleted(1.0)],
    ),
    raw(
        "stopped early by drift",
        "FAIL DRIFT",
        PLAN,
        [*history(GROUP, both(answer(shift=0.02))), stopped(Reason.DIVERGED)],
    ),
    raw(
        "stopped early by drift in one of two groups",
        "FAIL DRIFT",
        run_plan(GROUP, SECOND),
        [*history(GROUP, both(answer(shift=0.02))), *history(SECOND), stopped(Reason.DIVERGED)],
    ),
    raw(
        "stopped early by what only strict fails",
        "INCONCLUSIVE DIVERGED",
        PLAN,
        [*history(GROUP, TIED_ONCE), stopped(Reason.DIVERGED)],
    ),
    raw(
        "stopped early, and nothing was shown",
        "INCONCLUSIVE DIVERGED EXTERNAL_MISS TIER_NOT_COVERED",
        PLAN,
        [*history(GROUP, {}, dict.fromkeys(SUBJECTS, COLD)), stopped(Reason.DIVERGED)],
    ),
    raw("nothing at all", "INCONCLUSIVE INTERRUPTED TIER_NOT_COVERED", PLAN, []),
    raw("nothing planned", "INCONCLUSIVE INTERRUPTED NOTHING_CHECKED", run_plan(), []),
    raw("nothing planned, completed", "INCONCLUSIVE NOTHING_CHECKED", run_plan(), [RunCompleted(1.0)]),
    raw("only begun", "INCONCLUSIVE OBSERVATION_MISSING INTERRUPTED TIER_NOT_COVERED", PLAN, CLEAN[:1]),
    raw(
        "cut before the first answer", "INCONCLUSIVE OBSERVATION_MISSING INTERRUPTED TIER_NOT_COVERED", PLAN, CLEAN[:3]
    ),
    raw("cut after cold", "INCONCLUSIVE OBSERVATION_MISSING INTERRUPTED TIER_NOT_COVERED", PLAN, first_answers(1)),
    raw(
        "cut after local",
        "INCONCLUSIVE COUNTERS_UNREADABLE OBSERVATION_MISSING INTERRUPTED TIER_NOT_COVERED",
        PLAN,
        first_answers(2),
    ),
    raw(
        "cut after local repeat",
        "INCONCLUSIVE OBSERVATION_MISSING INTERRUPTED TIER_NOT_COVERED",
        PLAN,
        first_answers(3),
    ),
    raw(
        "cut after external",
        "INCONCLUSIVE COUNTERS_UNREADABLE OBSERVATION_MISSING INTERRUPTED TIER_NOT_COVERED",
        PLAN,
        first_answers(4),
    ),
    raw(
        "cut after external repeat",
        "INCONCLUSIVE COUNTERS_UNREADABLE OBSERVATION_MISSING INTERRUPTED TIER_NOT_COVERED",
        PLAN,
        first_answers(5),
    ),
    raw(
        "cut while external was sent",
        "INCONCLUSIVE OBSERVATION_MISSING INTERRUPTED TIER_NOT_COVERED",
        PLAN,
        first_answers(4)[:-1],
    ),
    raw("cut before the end", "INCONCLUSIVE INTERRUPTED", PLAN, CLEAN),
    raw("cut after a fault was found", "FAIL DIVERGED INTERRUPTED", PLAN, WRONG),
    raw("stopped early by a fault", "FAIL DIVERGED", PLAN, [*WRONG, stopped(Reason.DIVERGED)]),
    raw("stopped early, and no fault", "INCONCLUSIVE DIVERGED", PLAN, [*CLEAN, stopped(Reason.DIVERGED)]),
    raw("out of budget", "INCONCLUSIVE BUDGET_EXHAUSTED", PLAN, [*CLEAN, stopped(Reason.BUDGET_EXHAUSTED)]),
    raw(
        "out of budget, and a fault", "FAIL DIVERGED BUDGET_EXHAUSTED", PLAN, [*WRONG, stopped(Reason.BUDGET_EXHAUSTED)]
    ),
    raw(
        "the endpoint went away",
        "INCONCLUSIVE ENDPOINT_LOST COUNTERS_UNREADABLE OBSERVATION_MISSING TIER_NOT_COVERED",
        PLAN,
        [*first_answers(2), stopped(Reason.ENDPOINT_LOST)],
    ),
    raw(
        "interrupted by hand",
        "INCONCLUSIVE INTERRUPTED",
        PLAN,
        [*CLEAN, stopped(Reason.INTERRUPTED), RunCompleted(2.0)],
    ),
    raw(
        "hopeless",
        "INCONCLUSIVE EXTERNAL_MISS TIER_NOT_COVERED",
        PLAN,
        [*history(GROUP, {}, dict.fromkeys(SUBJECTS, COLD)), stopped(Reason.EXTERNAL_MISS)],
    ),
)

UNTOLD = replace(answer(), timing=None)
SLOW = replace(answer(), timing=Timing(0.7, 0.9))
STREAMLESS = replace(answer(), timing=Timing(None, 0.4))
TIMES = (
    of_run("answers that took unlike times", "PASS", PLAN, history(GROUP, {Arm.LOCAL: SLOW, Arm.COLD_REPEAT: SLOW})),
    of_run("an answer whose time is unknown", "PASS", PLAN, history(GROUP, {Arm.LOCAL: UNTOLD})),
    of_run(
        "answers without a first token's time",
        "PASS",
        PLAN,
        history(GROUP, {Arm.COLD: STREAMLESS, Arm.COLD_REPEAT: STREAMLESS, Arm.LOCAL: STREAMLESS}),
    ),
)

ALONE = group_plan(arms=frozenset((Arm.COLD,)))
BREAKS = (
    of_run("a group without pairs", "INCONCLUSIVE TIER_NOT_COVERED", run_plan(ALONE), history(ALONE)),
    of_run(
        "a cold repeat that was a hit, and all hits wrong",
        "FAIL DIVERGED SALT_IGNORED",
        PLAN,
        history(
            GROUP, dict.fromkeys((Arm.LOCAL, Arm.LOCAL_REPEAT, *SUBJECTS), answer(OTHER)), {Arm.COLD_REPEAT: LOCAL}
        ),
    ),
    of_run(
        "ended by a cold run that was a hit",
        "INCONCLUSIVE NOT_COLD TIER_NOT_COVERED",
        PLAN,
        attempts(GROUP, {Arm.COLD: [Try(after=LOCAL)], **dict.fromkeys(ARMS - {Arm.COLD}, ())}),
    ),
    of_run(
        "ended by a refused local hit",
        "FAIL SUBJECT_REFUSED PROBE_REFUSED",
        PLAN,
        attempts(
            GROUP, {Arm.LOCAL: [Try(refused()), Try(refused())], **dict.fromkeys(ARMS - {Arm.COLD, Arm.LOCAL}, ())}
        ),
    ),
    of_run(
        "ended by a lost local hit",
        "INCONCLUSIVE OBSERVATION_MISSING TIER_NOT_COVERED",
        PLAN,
        attempts(GROUP, {Arm.LOCAL: [Try(lost()), Try(lost())], **dict.fromkeys(ARMS - {Arm.COLD, Arm.LOCAL}, ())}),
    ),
    of_run(
        "ended by a void local hit",
        "INCONCLUSIVE PREEMPTED TIER_NOT_COVERED",
        PLAN,
        attempts(
            GROUP,
            {
                Arm.LOCAL: [Try(after=counters(LENGTH - HIT, HIT, 0, preemptions=1))],
                **dict.fromkeys(ARMS - {Arm.COLD, Arm.LOCAL}, ()),
            },
        ),
    ),
    of_run(
        "ended by an external load that was to be local",
        "INCONCLUSIVE BASELINE_NOT_LOCAL OBSERVATION_MISSING TIER_NOT_COVERED",
        PLAN,
        attempts(GROUP, {Arm.LOCAL: [Try(after=EXTERNAL)], **dict.fromkeys(ARMS - {Arm.COLD, Arm.LOCAL}, ())}),
    ),
    of_run(
        "ended for no reason told",
        "INCONCLUSIVE OBSERVATION_MISSING TIER_NOT_COVERED",
        PLAN,
        attempts(GROUP, dict.fromkeys(ARMS - {Arm.COLD, Arm.LOCAL}, ())),
    ),
)

STAND_IN = group_plan("g1+1")
REPLACED = (
    of_run("a clean group replaced", "PASS", PLAN, history(GROUP), history(STAND_IN, replaces="g1")),
    of_run("a void group replaced", "PASS", PLAN, history(GROUP, {}, PREEMPTED), history(STAND_IN, replaces="g1")),
    of_run(
        "a void group replaced by a wrong one",
        "FAIL DIVERGED",
        PLAN,
        history(GROUP, {}, PREEMPTED),
        history(STAND_IN, both(answer(OTHER)), replaces="g1"),
    ),
    of_run(
        "a wrong group replaced by a clean one",
        "FAIL DIVERGED PREEMPTED",
        PLAN,
        history(GROUP, both(answer(OTHER)), PREEMPTED),
        history(STAND_IN, replaces="g1"),
    ),
    of_run(
        "a group wrong under strict replaced by a clean one",
        "FAIL TOKENS_DIFFER PREEMPTED",
        replace(PLAN, policy=STRICT),
        history(GROUP, {**TIED, Arm.LOCAL_REPEAT: answer(shift=0.02, gap=0.05), **both(near_tie())}, PREEMPTED),
        history(STAND_IN, replaces="g1"),
    ),
    of_run(
        "the same under calibrated",
        "PASS",
        PLAN,
        history(GROUP, {**TIED, Arm.LOCAL_REPEAT: answer(shift=0.02, gap=0.05), **both(near_tie())}, PREEMPTED),
        history(STAND_IN, replaces="g1"),
    ),
    of_run(
        "a replaced group leaks into another",
        "FAIL LEAK",
        PLAN,
        history(replace(GROUP, nonce="222222222222"), {}, PREEMPTED),
        history(STAND_IN, {Arm.EXTERNAL: answer(text="222222222222")}, replaces="g1"),
    ),
    of_run(
        "noise of a replaced group does not inform",
        "FAIL DRIFT",
        PLAN,
        history(GROUP, {Arm.LOCAL_REPEAT: answer(shift=0.02)}, PREEMPTED),
        history(STAND_IN, both(answer(shift=0.02)), replaces="g1"),
    ),
)

NEAR, FAR = group_plan("g1", tier=99), group_plan("g2", tier=200)
BOUNDARY = replace(group_plan("b1", tier=99), purpose=Purpose.BOUNDARY)
TIERS = (
    of_run("a tier that was not sent", "INCONCLUSIVE TIER_NOT_COVERED", run_plan(NEAR, FAR), history(NEAR)),
    of_run("two tiers", "PASS", run_plan(NEAR, FAR), history(NEAR), history(FAR)),
    of_run(
        "a tier left open",
        "INCONCLUSIVE EXTERNAL_MISS TIER_NOT_COVERED",
        run_plan(NEAR, FAR),
        history(NEAR),
        history(FAR, {}, dict.fromkeys(SUBJECTS, COLD)),
    ),
    of_run(
        "a tier left open, and a fault",
        "FAIL DIVERGED EXTERNAL_MISS TIER_NOT_COVERED",
        run_plan(NEAR, FAR),
        history(NEAR, both(answer(OTHER))),
        history(FAR, {}, dict.fromkeys(SUBJECTS, COLD)),
    ),
    of_run(
        "one group of a tier left open",
        "INCONCLUSIVE EXTERNAL_MISS",
        run_plan(NEAR, replace(FAR, tier=99)),
        history(NEAR),
        history(replace(FAR, tier=99), {}, dict.fromkeys(SUBJECTS, COLD)),
    ),
    of_run("a boundary stands for no tier", "INCONCLUSIVE NOTHING_CHECKED", run_plan(BOUNDARY), history(BOUNDARY)),
    of_run(
        "a boundary does not cover a tier", "INCONCLUSIVE TIER_NOT_COVERED", run_plan(NEAR, BOUNDARY), history(BOUNDARY)
    ),
    of_run(
        "a wrong boundary",
        "FAIL DIVERGED",
        run_plan(NEAR, BOUNDARY),
        history(NEAR),
        history(BOUNDARY, both(answer(OTHER))),
    ),
    of_run(
        "lengths of different groups",
        "PASS",
        run_plan(NEAR, replace(FAR, tier=99)),
        history(NEAR),
        history(replace(FAR, tier=99, length=LENGTH)),
    ),
)

OBSTACLE = (Problem(Reason.RESET_UNAVAILABLE, "no reset"),)
OBSTACLES = (
    raw("an obstacle", "INCONCLUSIVE RESET_UNAVAILABLE", replace(run_plan(), obstacles=OBSTACLE), []),
    raw("an obstacle, and groups planned", "INCONCLUSIVE RESET_UNAVAILABLE", replace(PLAN, obstacles=OBSTACLE), []),
    raw(
        "an obstacle, and a clean group",
        "INCONCLUSIVE RESET_UNAVAILABLE",
        replace(PLAN, obstacles=OBSTACLE),
        [*CLEAN, RunCompleted(1.0)],
    ),
    raw(
        "an obstacle, and a fault",
        "FAIL DIVERGED RESET_UNAVAILABLE",
        replace(PLAN, obstacles=OBSTACLE),
        [*WRONG, RunCompleted(1.0)],
    ),
)


def demanding(name: str, required: str, rate: float, groups: int, given: Given | None = None, **more: object) -> Case:
    """So many clean groups of a tier, of which the last answers as given, under a policy that asks for power."""
    names = [f"g{number}" for number in range(groups)]
    planned = [group_plan(each, nonce=f"00000000000{each[1:]}") for each in names]
    planned[-1] = replace(planned[-1], **more)  # type: ignore[arg-type]
    histories = [history(group, given if group is planned[-1] else None) for group in planned]
    return of_run(f"power: {name}", required, run_plan(*planned, policy=Policy(max_fault_rate=rate)), *histories)


# Three clean groups leave 63.2 % open, two 77.6 %.
DEMANDING = (
    demanding("enough", "PASS", 0.64, 3),
    demanding("not quite enough", "INCONCLUSIVE POWER_TOO_LOW", 0.63, 3),
    demanding("enough but for one", "INCONCLUSIVE OBSERVATION_MISSING POWER_TOO_LOW", 0.64, 3, {Arm.COLD: lost()}),
    demanding("a boundary is no further group", "INCONCLUSIVE POWER_TOO_LOW", 0.64, 3, purpose=Purpose.BOUNDARY),
    demanding("another tier has too few", "INCONCLUSIVE POWER_TOO_LOW", 0.78, 3, tier=4096),
    demanding("too few, and a fault", "FAIL DIVERGED POWER_TOO_LOW", 0.64, 3, both(answer(OTHER))),
)

CASES: tuple[Case, ...] = (
    *DEMANDING,
    *ENDS,
    *TIMES,
    *BREAKS,
    *REPLACED,
    *TIERS,
    *OBSTACLES,
)
