"""Written histories of small differences: when chance explains them, and which side is the odd one."""

from dataclasses import replace

from kvgate.domain.observation import Observation
from kvgate.domain.probe import Arm
from kvgate.domain.recipe import pairs_of
from tests.domain.judging import NOISY, OTHER, both
from tests.domain.making import ARMS, Answers, answer, group_plan, run_plan
from tests.domain.recorded_arms import as_planned, every_arm, plan_with_reference
from tests.domain.recorded_case import Case, Given, Readings, history, of_run
from tests.domain.recorded_pairs import LOCALS, QUIET, STRICT, neighbours

ONCE: Answers = {Arm.EXTERNAL: answer(shift=0.02)}
UNLIKE: Answers = {Arm.EXTERNAL: answer(shift=0.02), Arm.EXTERNAL_REPEAT: answer(shift=0.03)}
SAME, OTHERWISE = answer(shift=0.02), answer()


def thrice(each: Observation) -> Given:
    """Three loads with this answer."""
    return {Arm.EXTERNAL: each, Arm.EXTERNAL_REPEAT: [each, each]}


TWO_OF_THREE: Given = {Arm.EXTERNAL: SAME, Arm.EXTERNAL_REPEAT: [OTHERWISE, SAME]}
THREE_OF_FOUR: Given = {Arm.EXTERNAL: SAME, Arm.EXTERNAL_REPEAT: [OTHERWISE, SAME, SAME]}
UNLIKE_THREE: Given = {Arm.EXTERNAL: SAME, Arm.EXTERNAL_REPEAT: [answer(shift=0.03), answer(shift=0.04)]}
FLIP_ONCE: Answers = {Arm.EXTERNAL: answer(OTHER)}
# Cold runs end on a chunk of another shape, and loads differ from local hits by next to nothing.
OTHER_SHAPE: Given = {
    **dict.fromkeys((Arm.COLD, Arm.COLD_REPEAT), answer(shift=0.3)),
    **both(answer(shift=0.02)),
}


def few_controls(name: str, required: str) -> Case:
    """One group without a repeat of its cold run, whose two loads drift."""
    made = group_plan(arms=ARMS - {Arm.COLD_REPEAT})
    return of_run(name, required, run_plan(made), history(made, both(answer(shift=0.02))))


def branches(name: str, required: str, repeated: bool = True, others: Given = QUIET) -> Case:
    """Three loads of a branch that drift alike from its own local hit, beside ten groups of which one answers so."""
    full = every_arm()
    steps = tuple(step for step in full.steps if repeated or step.arm is not Arm.BRANCH_LOCAL_REPEAT)
    made = replace(full, steps=steps, pairs=pairs_of(steps))
    beside = [group_plan(f"g{number}", nonce=f"00000000002{number % 10}") for number in range(2, 12)]
    readings: Readings = {step.arm: as_planned(made, step) for step in made.steps}
    odd: Given = {Arm.BRANCH: [answer(shift=0.02)] * 3}
    histories = [history(each, others if each is beside[0] else {}) for each in beside]
    plan = replace(plan_with_reference(), groups=(made, *beside))
    return of_run(name, required, plan, history(made, odd, readings), *histories)


CASES: tuple[Case, ...] = (
    neighbours("a little noise about, drift once", "INCONCLUSIVE UNSTABLE", ONCE, NOISY, *[QUIET] * 9),
    neighbours("a little noise about, unlike drifts", "INCONCLUSIVE UNSTABLE", UNLIKE, NOISY, *[QUIET] * 9),
    neighbours(
        "a little noise about, drift twice", "INCONCLUSIVE UNSTABLE", both(answer(shift=0.02)), NOISY, *[QUIET] * 9
    ),
    neighbours(
        "a little noise about, drift three times", "FAIL DRIFT", thrice(answer(shift=0.02)), NOISY, *[QUIET] * 9
    ),
    neighbours("no noise about, drift twice of two", "FAIL DRIFT", both(answer(shift=0.02)), QUIET),
    neighbours("no noise about, drift once of two", "INCONCLUSIVE UNSTABLE", ONCE, *[QUIET] * 9),
    neighbours("no noise about, drift in two of three", "INCONCLUSIVE UNSTABLE", TWO_OF_THREE, QUIET),
    neighbours("no noise about, drift in three of four", "FAIL DRIFT", THREE_OF_FOUR, QUIET),
    neighbours("no noise about, three unlike drifts", "FAIL DRIFT", UNLIKE_THREE, QUIET),
    neighbours("a little noise about, other tokens once", "INCONCLUSIVE UNSTABLE", FLIP_ONCE, NOISY, *[QUIET] * 9),
    neighbours(
        "a little noise about, other tokens once, strict",
        "FAIL TOKENS_DIFFER",
        FLIP_ONCE,
        NOISY,
        *[QUIET] * 9,
        policy=STRICT,
    ),
    neighbours(
        "a little noise about, drift once, strict", "INCONCLUSIVE UNSTABLE", ONCE, NOISY, *[QUIET] * 9, policy=STRICT
    ),
    neighbours("a little noise about, other tokens twice", "FAIL DIVERGED", both(answer(OTHER)), NOISY, *[QUIET] * 9),
    neighbours("a little more than a little noise about", "PASS", both(answer(shift=0.02)), NOISY, *[QUIET] * 8),
    neighbours("much noise about", "PASS", both(answer(shift=0.02)), NOISY, QUIET, QUIET),
    neighbours(
        "much noise about, of cold runs only",
        "INCONCLUSIVE UNSTABLE",
        both(answer(shift=0.02)),
        *[{Arm.COLD_REPEAT: answer(shift=0.02)}] * 3,
    ),
    neighbours(
        "much noise about, of cold runs only, and the same drift three times",
        "FAIL DRIFT",
        thrice(answer(shift=0.02)),
        *[{Arm.COLD_REPEAT: answer(shift=0.02)}] * 3,
    ),
    neighbours(
        "much noise about, of cold runs only, and its own among them",
        "INCONCLUSIVE UNSTABLE",
        {**thrice(answer(shift=0.02)), Arm.COLD_REPEAT: answer(shift=0.02)},
        *[{Arm.COLD_REPEAT: answer(shift=0.02)}] * 3,
    ),
    neighbours(
        "much noise about, of cold runs only, and three unlike drifts",
        "INCONCLUSIVE UNSTABLE",
        {Arm.EXTERNAL: answer(shift=0.01), Arm.EXTERNAL_REPEAT: [answer(shift=0.02), answer(shift=0.03)]},
        *[{Arm.COLD_REPEAT: answer(shift=0.02)}] * 3,
    ),
    neighbours("its own noise is not the others'", "FAIL DRIFT", both(answer(shift=0.02)), QUIET, QUIET),
    # Whose side is odd.
    neighbours(
        "loads of one bit more than a local hit that no cold run can be equal to", "FAIL DRIFT", OTHER_SHAPE, QUIET
    ),
    neighbours(
        "the local hit and its repeat alone differ where cold runs must be equal",
        "INCONCLUSIVE UNSTABLE",
        dict.fromkeys(LOCALS, answer(shift=0.02)),
        QUIET,
        QUIET,
        aligned=True,
    ),
    few_controls("one repeat in all, drift twice", "INCONCLUSIVE UNSTABLE TIER_NOT_COVERED"),
    branches("the branch's own hit is not repeated, and may be the odd one", "INCONCLUSIVE UNSTABLE", repeated=False),
    branches("the branch's own hit is repeated", "FAIL DRIFT", repeated=True),
    branches(
        "no other path backs a branch's hit, and a repeat somewhere is odd", "INCONCLUSIVE UNSTABLE", others=NOISY
    ),
)
