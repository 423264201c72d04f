"""Written histories of one group: its controls, strays, two endpoints, short controls, and codewords."""

from dataclasses import replace

from kvgate.domain.counters import Counters
from kvgate.domain.plan import Forcing, GroupPlan, PairKind, Purpose
from kvgate.domain.policy import Policy, PolicyName
from kvgate.domain.probe import Arm
from kvgate.domain.recipe import Parts, arm_steps, pairs_of, short_control_pairs, short_control_steps
from tests.domain.judging import OTHER, SUBJECTS, both
from tests.domain.making import (
    ARMS,
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
from tests.domain.recorded_case import Case, Given, Tries, Try, attempts, bare, history, of_one, of_run, text_only
from tests.domain.recorded_evidence import COLD, EXTERNAL, LOCAL, open_by, tried
from tests.domain.recorded_pairs import hits

LOCALS = (Arm.LOCAL, Arm.LOCAL_REPEAT)
STRICT = Policy(name=PolicyName.STRICT)

CONTROLS = (
    tried("no local hit was sent", open_by("OBSERVATION_MISSING"), {Arm.LOCAL: (), Arm.LOCAL_REPEAT: ()}),
    tried(
        "ended by a repeat that was refused",
        "FAIL SUBJECT_REFUSED PROBE_REFUSED",
        {Arm.EXTERNAL_REPEAT: [Try(refused()), Try(refused())], Arm.COLD_REPEAT: ()},
    ),
    of_one(
        "an unproven control",
        open_by("BASELINE_NOT_LOCAL"),
        both(answer(shift=0.4)),
        {Arm.LOCAL_REPEAT: counters(LENGTH - 48, 48, 0)},
    ),
    of_one(
        "a preempted control",
        "INCONCLUSIVE PREEMPTED TIER_NOT_COVERED",
        {},
        {Arm.LOCAL_REPEAT: counters(LENGTH - HIT, HIT, 0, preemptions=1)},
    ),
    of_one("a lost control", "INCONCLUSIVE OBSERVATION_MISSING TIER_NOT_COVERED", {Arm.LOCAL_REPEAT: lost()}),
    of_one(
        "a refused control",
        "INCONCLUSIVE OBSERVATION_MISSING TIER_NOT_COVERED",
        {Arm.COLD_REPEAT: [refused(), refused()]},
    ),
    tried("a control that was not reached", open_by("OBSERVATION_MISSING"), {Arm.COLD_REPEAT: ()}),
    tried(
        "a control that was cut off",
        "INCONCLUSIVE COUNTERS_UNREADABLE TIER_NOT_COVERED",
        {Arm.COLD_REPEAT: [Try(said=None)]},
    ),
    of_one("no local repeat planned", "PASS", both(answer(shift=0.3)), arms=ARMS - {Arm.LOCAL_REPEAT}),
    of_one("no cold repeat planned", "PASS", arms=ARMS - {Arm.COLD_REPEAT}),
    of_one("no local arms planned", "PASS", arms=ARMS - {*LOCALS}),
    of_one(
        "no external repeat planned, and a difference",
        "FAIL DIVERGED_INTERMITTENT UNSTABLE",
        {Arm.EXTERNAL: answer(OTHER)},
        arms=ARMS - {Arm.EXTERNAL_REPEAT},
    ),
    of_one("the control is odd, the subject agrees with the baseline", "PASS", {Arm.LOCAL_REPEAT: answer(OTHER)}),
    of_one(
        "control and subject agree against the baseline",
        "FAIL DIVERGED UNSTABLE",
        {Arm.LOCAL_REPEAT: answer(OTHER), **both(answer(OTHER))},
    ),
    of_one(
        "baseline, control and subject all differ",
        "FAIL DIVERGED",
        {Arm.LOCAL_REPEAT: answer((*range(400, 416),)), **both(answer(OTHER))},
    ),
)

PARTIAL = counters(LENGTH - 48, 0, 48)
STRAYS = (
    tried("a second external load that is right", "PASS", {Arm.EXTERNAL: [Try(), Try()]}),
    tried(
        "a local hit without counters after an external load",
        open_by("COUNTERS_UNREADABLE"),
        {Arm.LOCAL: [Try(after=EXTERNAL), Try(unread="404")]},
    ),
    tried(
        "a local hit two attempts after an external load",
        open_by("BASELINE_NOT_LOCAL"),
        {Arm.LOCAL: [Try(after=EXTERNAL), Try(after=COLD), Try()]},
    ),
    tried(
        "a partial load with a wrong answer",
        "INCONCLUSIVE UNSTABLE TIER_NOT_COVERED",
        {Arm.EXTERNAL: [Try(answer(OTHER), PARTIAL), Try()]},
    ),
    tried("a partial load with the right answer", "PASS", {Arm.EXTERNAL: [Try(after=PARTIAL), Try()]}),
    tried(
        "two partial loads with the same wrong answer",
        "INCONCLUSIVE UNSTABLE TIER_NOT_COVERED",
        {Arm.EXTERNAL: [Try(answer(OTHER), PARTIAL), Try(answer(OTHER), PARTIAL), Try()]},
    ),
    tried("a miss with a wrong answer", "PASS", {Arm.EXTERNAL: [Try(answer(OTHER), COLD), Try()]}),
    tried(
        "a later attempt that is wrong",
        "FAIL DIVERGED_INTERMITTENT UNSTABLE",
        {Arm.EXTERNAL: [Try(), Try(answer(OTHER))]},
    ),
    tried(
        "a later repeat that is wrong", "FAIL DIVERGED_INTERMITTENT", {Arm.EXTERNAL_REPEAT: [Try(), Try(answer(OTHER))]}
    ),
    tried(
        "a partial load with drift inside the envelope",
        "PASS",
        {Arm.EXTERNAL: [Try(answer(shift=0.3), PARTIAL), Try()]},
    ),
    tried(
        "a preempted load with a wrong answer",
        "PASS",
        {Arm.EXTERNAL: [Try(answer(OTHER), counters(LENGTH - 48, 0, 48, preemptions=1)), Try()]},
    ),
    tried("a lost attempt, then the right answer", "PASS", {Arm.EXTERNAL: [Try(lost()), Try()]}),
    tried(
        "a local hit after an external load", open_by("BASELINE_NOT_LOCAL"), {Arm.LOCAL: [Try(after=EXTERNAL), Try()]}
    ),
    tried(
        "a local repeat after an external load",
        "INCONCLUSIVE BASELINE_NOT_LOCAL TIER_NOT_COVERED",
        {Arm.LOCAL: [Try(), Try(after=EXTERNAL)]},
    ),
    tried(
        "a local repeat that loaded first",
        "INCONCLUSIVE BASELINE_NOT_LOCAL TIER_NOT_COVERED",
        {Arm.LOCAL_REPEAT: [Try(after=EXTERNAL), Try()]},
    ),
    tried("a local miss, then a hit", "PASS", {Arm.LOCAL: [Try(after=COLD), Try()]}),
)


def reader(name: str = "g1", drops: bool = True) -> GroupPlan:
    """A group of two endpoints: "a" writes, "b" reads."""
    steps = arm_steps(Forcing.OTHER_INSTANCE, Parts("a", "b"), ARMS, salts_honoured=True, reader_drops=drops)
    return replace(group_plan(name), steps=steps, pairs=pairs_of(steps))


def read(name: str, required: str, tries: Tries, drops: bool = True) -> Case:
    group = reader(drops=drops)
    return of_run(f"two endpoints: {name}", required, run_plan(group), attempts(group, tries))


def rank(reading: Counters, engine: str) -> Counters:
    return replace(reading, readings=tuple(replace(each, engine=engine) for each in reading.readings))


TWO = (
    read("equal", "PASS", {}),
    read("equal, with a second key space", "PASS", {}, drops=False),
    # The writer finds a prompt under a salt it has never seen: whoever shares the pool reads everybody's keys.
    read("populate is a hit", "INCONCLUSIVE SALT_IGNORED", {Arm.POPULATE: [Try(after=LOCAL)]}, drops=False),
    read("drift", "FAIL DRIFT", {arm: [Try(answer(shift=0.02))] for arm in SUBJECTS}),
    read("other tokens", "FAIL DIVERGED", {arm: [Try(answer(OTHER))] for arm in SUBJECTS}),
    read("refused", "FAIL SUBJECT_REFUSED", {Arm.EXTERNAL: [Try(refused()), Try(refused())]}),
    read("ranks of different endpoints", "PASS", {Arm.COLD: [Try(after=rank(COLD, "7"))]}),
    read(
        "ranks of one endpoint",
        "INCONCLUSIVE RANK_CHANGED TIER_NOT_COVERED",
        {arm: [Try(after=rank(EXTERNAL, "7"))] for arm in SUBJECTS},
    ),
)


def elsewhere() -> Case:
    """External hits that drift a little on an endpoint that is not the local hits'."""
    group = group_plan()
    steps = tuple(replace(step, endpoint="b") if step.arm in SUBJECTS else step for step in group.steps)
    moved = replace(group, steps=steps)
    tries = {arm: [Try(answer(shift=0.02))] for arm in SUBJECTS}
    return of_run("two endpoints: local hits on the other", "PASS", run_plan(moved), attempts(moved, tries))


def optional(name: str, required: str, kinds: tuple[PairKind, ...], tries: Tries, policy: Policy | None = None) -> Case:
    """A group in which the pairs of some kinds are not required."""
    group = group_plan()
    pairs = tuple(replace(pair, required=pair.kind not in kinds) for pair in group.pairs)
    made = replace(group, pairs=pairs)
    return of_run(f"not required: {name}", required, run_plan(made, policy=policy), attempts(made, tries))


WITH_COLD = (PairKind.EXTERNAL_VS_COLD, PairKind.LOCAL_VS_COLD)
WITH_LOCAL = (PairKind.EXTERNAL_VS_LOCAL, PairKind.LOCAL_VS_COLD)
ODD_COLD: Tries = {arm: [Try(answer(OTHER))] for arm in (Arm.COLD, Arm.COLD_REPEAT)}
OPTIONAL = (
    # A pair that need not acquit may convict all the same.
    optional("wrong cold pairs", "FAIL DIVERGED", WITH_COLD, ODD_COLD),
    optional("wrong cold pairs, strict", "FAIL DIVERGED", WITH_COLD, ODD_COLD, STRICT),
    optional("cold pairs that were lost", "PASS", WITH_COLD, {Arm.COLD_REPEAT: [Try(lost()), Try(lost())]}),
    optional(
        "wrong cold pairs, and wrong hits",
        "FAIL DIVERGED",
        WITH_COLD,
        {
            **ODD_COLD,
            **{arm: [Try(answer(shift=-0.7))] for arm in SUBJECTS},
            Arm.LOCAL_REPEAT: [Try(answer(shift=0.02))],
        },
    ),
    optional("local pairs without local hits", "PASS", WITH_LOCAL, {Arm.LOCAL: [Try(after=COLD)]}),
)


def short(
    name: str, required: str, tries: Tries, salts: bool = True, alone: bool = False, policy: Policy | None = None
) -> Case:
    """A short control beside a clean group."""
    steps = short_control_steps("a", salts)
    small = replace(group_plan("s1"), purpose=Purpose.SHORT_CONTROL, steps=steps, pairs=short_control_pairs())
    full = [] if alone else [group_plan()]
    histories = [attempts(group) for group in full]
    plan = run_plan(*full, small, policy=policy)
    return of_run(f"short control: {name}", required, plan, *histories, attempts(small, tries))


SHORT = (
    short("other tokens, strict", "FAIL TOKENS_DIFFER", {Arm.COLD_REPEAT: [Try(answer(OTHER))]}, policy=STRICT),
    short("cold twice", "PASS", {}),
    short("alone", "INCONCLUSIVE NOTHING_CHECKED", {}, alone=True),
    short("the second was a hit", "INCONCLUSIVE FLOOR_WRONG", {Arm.COLD_REPEAT: [Try(after=LOCAL)]}),
    short("the first was a hit", "INCONCLUSIVE FLOOR_WRONG", {Arm.COLD: [Try(after=LOCAL)]}),
    short("the first was a hit, unsalted", "INCONCLUSIVE FLOOR_WRONG", {Arm.COLD: [Try(after=LOCAL)]}, salts=False),
    short("a little drift", "PASS", {Arm.COLD_REPEAT: [Try(answer(shift=0.02))]}),
    short("other tokens", "INCONCLUSIVE UNSTABLE", {Arm.COLD_REPEAT: [Try(answer(OTHER))]}),
    short("no counters", "INCONCLUSIVE COUNTERS_UNREADABLE", {Arm.COLD_REPEAT: [Try(unread="404")]}),
)

SAID, SILENT = bare(answer(text="amber cedar elm")), bare(answer(OTHER, text="I do not know"))
IDS_ONLY, TEXT = Policy(accept_ids_only=True), Policy(accept_text_only=True)
ALL_SAID: Answers = dict.fromkeys(ARMS, SAID)


def recalled(name: str, required: str, answers: Given) -> Case:
    return of_one(f"recall: {name}", required, {**ALL_SAID, **answers}, policy=IDS_ONLY)


# Without logprobs answers that differ are undecided, unless codewords are lost, again and again, by hits alone.
UNDECIDED = "INCONCLUSIVE LOGPROBS_UNUSABLE TIER_NOT_COVERED"
FORGOTTEN = "FAIL DIVERGED LOGPROBS_UNUSABLE"
RECALL = (
    recalled("kept", "PASS", {}),
    recalled("lost", FORGOTTEN, both(SILENT)),
    recalled("lost once", UNDECIDED, {Arm.EXTERNAL: SILENT}),
    recalled("lost once, the repeat", UNDECIDED, {Arm.EXTERNAL_REPEAT: SILENT}),
    recalled("lost by a control, too", UNDECIDED, {**both(SILENT), Arm.COLD_REPEAT: SILENT}),
    recalled("lost by a local control, too", UNDECIDED, {**both(SILENT), Arm.LOCAL_REPEAT: SILENT}),
    recalled("won by a control", UNDECIDED, {**both(SILENT), Arm.COLD: SILENT}),
    recalled("lost by everything", "PASS", dict.fromkeys(ARMS, SILENT)),
    recalled("lost by hits", UNDECIDED, hits(SILENT)),
    recalled("won by hits", UNDECIDED, {Arm.COLD: SILENT, Arm.COLD_REPEAT: SILENT}),
    recalled("said in another way", "PASS", both(bare(answer(text="amber\ncedar  elm!")))),
    recalled("said in another way, by other tokens", UNDECIDED, both(bare(answer(OTHER, text="amber\ncedar  elm!")))),
    of_one(
        "recall: lost by hits that reused less",
        "INCONCLUSIVE LOGPROBS_UNUSABLE TIER_NOT_COVERED",
        {**ALL_SAID, **both(SILENT)},
        dict.fromkeys((Arm.EXTERNAL, Arm.EXTERNAL_REPEAT), counters(35, 0, 64)),
        policy=IDS_ONLY,
    ),
    of_one(
        "recall: lost, and nobody knows by which path",
        "INCONCLUSIVE COUNTERS_UNREADABLE LOGPROBS_UNUSABLE TIER_NOT_COVERED",
        {**ALL_SAID, **both(SILENT)},
        dict.fromkeys(ARMS),
        policy=IDS_ONLY,
    ),
    of_one(
        "recall: lost, and no IDs",
        "FAIL DIVERGED TEXT_ONLY",
        {**dict.fromkeys(ARMS, text_only("amber cedar elm")), **both(text_only("I do not know"))},
        policy=TEXT,
    ),
    of_one(
        "recall: lost, and logprobs are equal",
        "PASS",
        {**dict.fromkeys(ARMS, answer(text="amber cedar elm")), **both(answer())},
    ),
)


def recalled_beside(name: str, required: str, other: Given, *answers: Given) -> Case:
    """Groups that lose the codeword, and one more beside them."""
    groups = [group_plan(f"g{number}") for number in range(len(answers) + 1)]
    histories = [history(group, {**ALL_SAID, **each}) for group, each in zip(groups, (other, *answers), strict=True)]
    return of_run(f"recall: {name}", required, run_plan(*groups, policy=IDS_ONLY), *histories)


BESIDE = (
    recalled_beside(
        "lost, and by another group's control, too",
        "INCONCLUSIVE LOGPROBS_UNUSABLE",
        {Arm.COLD_REPEAT: SILENT},
        both(SILENT),
    ),
    recalled_beside("lost, and another group keeps it", FORGOTTEN, {}, both(SILENT)),
    # What was not answered has not lost anything: it excuses no subject.
    *(
        recalled_beside(
            f"lost, and {arm.value} is not answered",
            "FAIL DIVERGED OBSERVATION_MISSING LOGPROBS_UNUSABLE",
            {arm: lost()},
            both(SILENT),
        )
        for arm in (Arm.COLD, Arm.COLD_REPEAT)
    ),
    *(
        of_one(
            f"recall: lost, and no {arm.value} arm",
            FORGOTTEN if arm is not Arm.COLD else "FAIL DIVERGED",
            {**ALL_SAID, **both(SILENT)},
            policy=IDS_ONLY,
            arms=ARMS - {arm},
        )
        for arm in (Arm.COLD, Arm.COLD_REPEAT, Arm.LOCAL_REPEAT)
    ),
)

CASES: tuple[Case, ...] = (*CONTROLS, *STRAYS, *TWO, elsewhere(), *OPTIONAL, *SHORT, *RECALL, *BESIDE)
