"""Written histories of prefill/decode deployments: requests through the gateway, and prefill answering alone."""

from dataclasses import replace

from kvgate.domain.counters import Counter, Counters
from kvgate.domain.deployment import Deployment, Endpoint, Role
from kvgate.domain.history import Entry
from kvgate.domain.plan import Forcing, GroupPlan, Plan, Route
from kvgate.domain.policy import Policy
from kvgate.domain.probe import Arm, Path
from kvgate.domain.recipe import Parts, arm_steps, pairs_of
from tests.domain.judging import OTHER, SUBJECTS
from tests.domain.making import (
    ARMS,
    BY_PATH,
    LENGTH,
    TOKENS,
    Answers,
    answer,
    counters,
    group_plan,
    run_plan,
    with_usage,
)
from tests.domain.recorded_case import Case, Given, Readings, history, of_run
from tests.domain.recorded_evidence import open_by, without

DIRECT = (Arm.PREFILL_DIRECT, Arm.PREFILL_DIRECT_REPEAT)
THROUGH = frozenset(ARMS)
# Decode computes the last token alone; where prefill does so, too, their answers can be bit-equal.
HIT = LENGTH - 1


def split(path: Path, hit: int = HIT) -> tuple[int, int, int]:
    """Tokens that P computed, found in its own cache, and got from outside."""
    reused = {Path.COLD: (LENGTH, 0, 0), Path.LOCAL: (LENGTH - hit, hit, 0), Path.EXTERNAL: (LENGTH - hit, 0, hit)}
    return reused[path]


def passed_on(path: Path, hit: int = HIT, **more: int) -> Counters:
    """What P and D count of one request by a path: D gets all but the last token by transfer."""
    decode = {"decode_prompt": LENGTH, "decode_computed": 1, "decode_local": 0, "transferred": LENGTH - 1}
    return counters(*split(path, hit), rank="0", **(decode | more))


def group(name: str = "g1") -> GroupPlan:
    steps = arm_steps(Forcing.RESET_LOCAL, Parts("g", "g", "p"), ARMS, salts_honoured=True, reader_drops=True)
    made = group_plan(name)
    return replace(made, steps=steps, pairs=pairs_of(steps), expected_local=HIT, expected_external=HIT)


def plan_of(*groups: GroupPlan, alike: bool | None = True, policy: Policy | None = None) -> Plan:
    endpoints = (
        Endpoint("g", Role.GATEWAY, "http://127.0.0.1:1"),
        Endpoint("p", Role.PREFILL, "http://127.0.0.1:2"),
        Endpoint("d", Role.DECODE, "http://127.0.0.1:3"),
    )
    deployment = Deployment("pd", "vllm", "m", endpoints, alike)
    return replace(run_plan(*groups, policy=policy), deployment=deployment, route=Route.GATEWAY)


def passed(made: GroupPlan, answers: Given | None = None, readings: Readings | None = None) -> list[Entry]:
    """The history of one group whose requests came through the gateway as they should."""
    alone = counters(*split(Path.LOCAL))
    base: Readings = {step.arm: passed_on(step.path) if step.endpoint == "g" else alone for step in made.steps}
    return history(made, answers, {**base, **(readings or {})})


def through(
    name: str,
    required: str,
    answers: Given | None = None,
    readings: Readings | None = None,
    alike: bool | None = True,
    others: tuple[Given, ...] = (),
) -> Case:
    """A run through the gateway: the group, and others beside it."""
    beside = [group(f"o{number}") for number in range(len(others))]
    histories = [passed(made, given) for made, given in zip(beside, others, strict=True)]
    plan = plan_of(group(), *beside, alike=alike)
    return of_run(f"gateway: {name}", required, plan, passed(group(), answers, readings), *histories)


def transferred(name: str, required: str, **more: int) -> Case:
    """External hits for which the decode engine counts something else."""
    return through(name, required, {}, {arm: passed_on(Path.EXTERNAL, **more) for arm in SUBJECTS})


def lenient(name: str, required: str, moved: int) -> Case:
    """External hits of which half suffices, and so many tokens transferred."""
    made = group()
    plan = plan_of(made, policy=Policy(exercised_share=0.5))
    readings = dict.fromkeys(SUBJECTS, passed_on(Path.EXTERNAL, transferred=moved))
    return of_run(f"gateway: {name}", required, plan, passed(made, {}, readings))


APART: Answers = dict.fromkeys(DIRECT, answer(shift=0.02))
FAR: Answers = dict.fromkeys(DIRECT, answer(OTHER))
QUIET: Answers = {}

TRANSFER = (
    lenient("just half transferred, where half is enough", "PASS", 49),
    lenient("less than half transferred, where half is enough", open_by("TRANSFER_NOT_EXERCISED"), 48),
    through(
        "transferred tokens are not counted",
        open_by("TRANSFER_NOT_EXERCISED"),
        {},
        dict.fromkeys(SUBJECTS, without(passed_on(Path.EXTERNAL), Counter.TRANSFERRED)),
    ),
    through(
        "decode's own hits are not counted",
        open_by("TRANSFER_NOT_EXERCISED"),
        {},
        dict.fromkeys(SUBJECTS, without(passed_on(Path.EXTERNAL), Counter.DECODE_LOCAL)),
    ),
    through("equal", "PASS"),
    transferred("all but one token transferred", "PASS", transferred=LENGTH - 1),
    transferred("all tokens transferred", "PASS", transferred=LENGTH),
    transferred("just enough transferred", "PASS", transferred=94),
    transferred("one token too few transferred", open_by("TRANSFER_NOT_EXERCISED"), transferred=93),
    transferred("nothing transferred", open_by("TRANSFER_NOT_EXERCISED"), transferred=0),
    transferred("more transferred than sent", "INCONCLUSIVE FOREIGN_TRAFFIC TIER_NOT_COVERED", transferred=LENGTH + 1),
    transferred("decode hits its own cache", open_by("TRANSFER_NOT_EXERCISED"), decode_local=1),
    through(
        "decode counts nothing",
        open_by("TRANSFER_NOT_EXERCISED"),
        {},
        dict.fromkeys(SUBJECTS, counters(*split(Path.EXTERNAL))),
    ),
    through(
        "decode counts nothing at the cold run",
        "INCONCLUSIVE TRANSFER_NOT_EXERCISED TIER_NOT_COVERED",
        {},
        {Arm.COLD: BY_PATH[Path.COLD]},
    ),
    through(
        "decode counts nothing at the local hit",
        "INCONCLUSIVE TRANSFER_NOT_EXERCISED TIER_NOT_COVERED",
        {},
        {Arm.LOCAL: counters(*split(Path.LOCAL))},
    ),
    through(
        "cached tokens of somebody behind the gateway",
        "PASS",
        dict.fromkeys(SUBJECTS, with_usage(answer(), len(TOKENS), LENGTH - 1)),
    ),
    through(
        "cached tokens of prefill alone",
        "INCONCLUSIVE SENSOR_CONFLICT TIER_NOT_COVERED",
        dict.fromkeys(DIRECT, with_usage(answer(), len(TOKENS), LENGTH - 2)),
    ),
    through(
        "not local, and not transferred",
        "INCONCLUSIVE BASELINE_NOT_LOCAL TIER_NOT_COVERED",
        {},
        {Arm.LOCAL: passed_on(Path.COLD, transferred=0)},
    ),
)

# Prefill alone computes three tokens at once, decode one: another shape, whose rounding may differ.
THREE_AT_ONCE: Readings = {
    **dict.fromkeys((Arm.LOCAL, Arm.LOCAL_REPEAT), passed_on(Path.LOCAL, LENGTH - 3)),
    **dict.fromkeys(DIRECT, counters(*split(Path.LOCAL, LENGTH - 3))),
}

SHAPES = (
    through("drift by the transfer, prefill alone computes more than decode", "PASS", APART, THREE_AT_ONCE),
    through(
        "drift by the transfer, prefill alone computes more, engines not said to be alike",
        "PASS",
        APART,
        THREE_AT_ONCE,
        alike=None,
    ),
    through("other tokens by the transfer, prefill alone computes more", "FAIL DIVERGED", FAR, THREE_AT_ONCE),
)

ALIKE = (
    through("drift from the pool", "FAIL DRIFT", dict.fromkeys(SUBJECTS, answer(shift=0.02))),
    through("drift by the transfer", "FAIL DRIFT", APART),
    through("other tokens by the transfer", "FAIL DIVERGED", FAR),
    through("drift by the transfer, engines not said to be alike", "INCONCLUSIVE TRANSFER_UNPROVEN", APART, alike=None),
    through(
        "drift by the transfer, as of others",
        "INCONCLUSIVE TRANSFER_UNPROVEN",
        APART,
        alike=None,
        others=(APART, APART),
    ),
    through("drift by the transfer, not so of others", "FAIL DRIFT", APART, alike=None, others=(QUIET, QUIET)),
    through(
        "drift by the transfer, not so of half the others",
        "INCONCLUSIVE TRANSFER_UNPROVEN",
        APART,
        alike=None,
        others=(QUIET, APART),
    ),
    through("drift by the transfer, engines said to differ", "PASS", APART, alike=False),
    through("other tokens, engines said to differ", "FAIL DIVERGED", FAR, alike=False),
    through(
        "drift by the transfer, prefill noisy, too",
        "INCONCLUSIVE TRANSFER_UNPROVEN",
        {**APART, DIRECT[1]: answer(shift=0.04)},
        alike=None,
    ),
    through(
        "drift by the transfer, local hits noisy, too",
        "PASS",
        {**APART, Arm.LOCAL_REPEAT: answer(shift=0.04)},
        alike=None,
    ),
    through(
        "another hit length of prefill alone",
        "PASS",
        APART,
        dict.fromkeys((Arm.LOCAL, Arm.LOCAL_REPEAT), passed_on(Path.LOCAL, LENGTH - 3)),
    ),
    through(
        "prefill alone was a miss",
        "INCONCLUSIVE BASELINE_NOT_LOCAL TIER_NOT_COVERED",
        APART,
        dict.fromkeys(DIRECT, counters(LENGTH, 0, 0)),
    ),
    through(
        "prefill alone is no longer reached",
        "INCONCLUSIVE COUNTERS_UNREADABLE TIER_NOT_COVERED",
        {},
        dict.fromkeys(DIRECT),
    ),
)


def envelope(name: str, required: str, noisy: Arm) -> Case:
    """A group whose own repeats are noisy, among eight whose repeats of one kind are a little noisy."""
    own: Answers = {
        Arm.LOCAL: answer(shift=-0.45),
        Arm.LOCAL_REPEAT: answer(shift=-0.45),
        DIRECT[1]: answer(shift=0.01),
        **dict.fromkeys(SUBJECTS, answer(shift=-0.45)),
    }
    return through(name, required, own, alike=False, others=({noisy: answer(shift=-0.02)},) * 8)


def aligned() -> Case:
    """Drift by the transfer at an aligned length that others prove; nobody says that the engines are alike."""
    made = [replace(group(f"g{number}"), aligned=True) for number in range(3)]
    histories = [passed(each, APART) for each in made]
    return of_run(
        "gateway: aligned, drift by every transfer",
        "INCONCLUSIVE TRANSFER_UNPROVEN",
        plan_of(*made, alike=None),
        *histories,
    )


ENVELOPE = (
    aligned(),
    envelope("repeats of hits inform the transfer", "FAIL DIVERGED", Arm.LOCAL_REPEAT),
    envelope("cold repeats do not inform the transfer", "FAIL DIVERGED", Arm.COLD_REPEAT),
)


def leaving_off(name: str, required: str, prefilled: int) -> Case:
    """A run whose prefill side leaves the last token to decode, and counts so many tokens of every prompt."""
    made, decode = (
        group(),
        {"decode_prompt": LENGTH, "decode_computed": 1, "decode_local": 0, "transferred": LENGTH - 1},
    )
    # Where prefill has one token less, a hit is that much shorter; it computes what is then left.
    hit = HIT - 1
    by_path = {Path.COLD: (0, 0), Path.LOCAL: (hit, 0), Path.EXTERNAL: (0, hit)}
    readings: dict[Arm, Counters | None] = {
        step.arm: counters(prefilled - sum(by_path[step.path]), *by_path[step.path], rank="0", **decode)
        for step in made.steps
        if step.endpoint == "g"
    }
    plan = plan_of(replace(made, expected_local=hit, expected_external=hit))
    plan = replace(plan, geometry=replace(plan.geometry, prefill_drops=1))
    return of_run(f"gateway: {name}", required, plan, passed(plan.groups[0], {}, readings))


LEAVING_OFF = (
    leaving_off("prefill leaves a token to decode", "PASS", LENGTH - 1),
    leaving_off("prefill counts a token too many", "INCONCLUSIVE FOREIGN_TRAFFIC TIER_NOT_COVERED", LENGTH),
    leaving_off("prefill counts a token too few", "INCONCLUSIVE EVIDENCE_MISSING TIER_NOT_COVERED", LENGTH - 2),
)


# -- ranks, pinned leg by leg --------------------------------------------------------------------------------------
def on(reading: Counters, prefill: str, decode: str) -> Counters:
    """The same reading, each half of it under the name of the engine that counted it."""
    named = dict.fromkeys(DECODED, decode)
    return replace(
        reading, readings=tuple(replace(each, engine=named.get(each.counter, prefill)) for each in reading.readings)
    )


DECODED = (Counter.DECODE_PROMPT, Counter.DECODE_COMPUTED, Counter.DECODE_LOCAL, Counter.TRANSFERRED)


def pinned(
    name: str,
    required: str,
    served: tuple[str, str] = ("p/1", "d/0"),
    alone: str = "1",
    entry: str = "d",
    arms: tuple[Arm, ...] = SUBJECTS,
) -> Case:
    """Both legs pinned, prefill to rank 1 and decode to rank 0; who ``served`` those arms, and prefill ``alone``."""
    steps = arm_steps(Forcing.RESET_LOCAL, Parts(entry, entry, "p"), ARMS, salts_honoured=True, reader_drops=True)
    made = replace(group(), steps=steps, pairs=pairs_of(steps))
    plan = plan_of(made)
    ranks = {"p": 1, "d": 0}
    endpoints = tuple(
        replace(each, rank=ranks.get(each.name))
        for each in plan.deployment.endpoints
        if entry == "g" or each.name != "g"
    )
    plan = replace(
        plan,
        deployment=replace(plan.deployment, endpoints=endpoints),
        route=Route.GATEWAY if entry == "g" else Route.TWO_LEG,
    )
    readings: Readings = {
        step.arm: on(passed_on(step.path), *(served if step.arm in arms else ("p/1", "d/0")))
        if step.endpoint == entry
        else on(counters(*split(Path.LOCAL)), alone, alone)
        for step in steps
    }
    return of_run(f"ranks of legs: {name}", required, plan, history(made, {}, readings))


RANKS = (
    pinned("as asked for", "PASS"),
    pinned("prefill on another", open_by("RANK_CHANGED"), ("p/0", "d/0")),
    pinned("decode on another", open_by("RANK_CHANGED"), ("p/1", "d/1")),
    pinned("prefill alone on another", open_by("RANK_CHANGED"), alone="0"),
    pinned("a gateway chooses for itself", "PASS", ("p/0", "d/1"), entry="g", arms=tuple(ARMS)),
)

CASES: tuple[Case, ...] = (*LEAVING_OFF, *TRANSFER, *SHAPES, *ALIKE, *ENVELOPE, *RANKS)
