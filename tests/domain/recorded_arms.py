"""Written histories of the arms beside the usual six, on one engine and past a gateway."""

from collections.abc import Sequence
from dataclasses import replace

from kvgate.domain.counters import Counters
from kvgate.domain.deployment import Deployment, Endpoint, Role
from kvgate.domain.observation import Observation
from kvgate.domain.plan import ArmStep, Forcing, GroupPlan, PartSize, Plan, Purpose, Route, length_of
from kvgate.domain.policy import Grade, Policy
from kvgate.domain.probe import Arm, Part, Path
from kvgate.domain.recipe import Parts, arm_steps, continuation_steps, pairs_of
from tests.domain.judging import OTHER
from tests.domain.making import ARMS, LENGTH, answer, counters, group_plan, lost, run_plan
from tests.domain.recorded_case import Case, Given, Readings, Try, attempts, bare, history, of_run
from tests.domain.recorded_evidence import open_by
from tests.domain.recorded_gateway import group as behind_gateway
from tests.domain.recorded_gateway import passed_on, plan_of, split

LATER = frozenset((Arm.THIRD, Arm.MIXED, Arm.BRANCH, Arm.ISOLATION, Arm.REFERENCE))
SIZES = (PartSize(Part.HEAD, 51, 48, 48), PartSize(Part.BRANCH, 64, 48, 48))


def every_arm() -> GroupPlan:
    parts = Parts("a", "a", reference="r")
    steps = arm_steps(Forcing.RESET_LOCAL, parts, ARMS | LATER, salts_honoured=True, reader_drops=True)
    return replace(group_plan(), steps=steps, pairs=pairs_of(steps), sizes=SIZES)


def plan_with_reference(policy: Policy | None = None) -> Plan:
    endpoints = (
        Endpoint("a", Role.COMBINED, "http://127.0.0.1:1"),
        Endpoint("r", Role.REFERENCE, "http://127.0.0.1:2"),
    )
    return replace(run_plan(every_arm(), policy=policy), deployment=Deployment("d", "vllm", "m", endpoints))


def as_planned(group: GroupPlan, step: ArmStep) -> Counters:
    local, external = group.expected(step)
    return counters(length_of(group, step) - local - external, local, external)


def armed(
    name: str,
    required: str,
    answers: Given | None = None,
    readings: Readings | None = None,
    policy: Policy | None = None,
) -> Case:
    """One group with every arm, each by its path unless told otherwise."""
    group = every_arm()
    base: Readings = {step.arm: as_planned(group, step) for step in group.steps}
    told = history(group, answers or {}, {**base, **(readings or {})})
    return of_run(f"arms: {name}", required, plan_with_reference(policy), told)


def mixed(local: int, external: int, **more: int) -> Readings:
    return {Arm.MIXED: counters(LENGTH - local - external, local, external, "0", **more)}


def twice(arm: Arm, **how: float) -> Given:
    return {arm: [answer(**how), answer(**how)]}  # type: ignore[arg-type]


BREACH = "FAIL ISOLATION SALT_IGNORED"
ONE_ENGINE = (
    armed("equal", "PASS"),
    *(armed(f"{arm.value} drifts", "FAIL DRIFT", twice(arm, shift=0.02)) for arm in (Arm.THIRD, Arm.MIXED, Arm.BRANCH)),
    *(armed(f"{arm.value} differs", "FAIL DIVERGED", {arm: [answer(OTHER)] * 2}) for arm in (Arm.THIRD, Arm.MIXED)),
    armed("third is no local hit", open_by("PATH_NOT_EXERCISED"), {}, {Arm.THIRD: counters(LENGTH, 0, 0)}),
    armed("mixed has too little from its own cache", open_by("PATH_NOT_EXERCISED"), {}, mixed(32, 48)),
    armed("mixed has too little from outside", open_by("PATH_NOT_EXERCISED"), {}, mixed(48, 16)),
    armed("mixed, and a load failed", open_by("LOAD_FAILED"), {}, mixed(48, 32, external_hits=48)),
    armed("another salt is served from outside", BREACH, {}, {Arm.ISOLATION: counters(19, 0, 80)}),
    armed("another salt is served locally", BREACH, {}, {Arm.ISOLATION: counters(19, 80, 0)}),
    # What a first attempt computed, a retry that nobody saw, or counters at odds with each other breach nothing.
    armed(
        "another salt, whose first attempt was lost",
        open_by("OBSERVATION_MISSING"),
        {Arm.ISOLATION: [lost(), answer()]},
        {Arm.ISOLATION: counters(19, 80, 0)},
    ),
    armed(
        "another salt, sent again by the client",
        "INCONCLUSIVE SALT_IGNORED TIER_NOT_COVERED",
        {Arm.ISOLATION: replace(answer(), marks=("retried",))},
        {Arm.ISOLATION: counters(19, 80, 0)},
    ),
    armed(
        "another salt, and counters at odds",
        "INCONCLUSIVE SALT_IGNORED TIER_NOT_COVERED",
        {},
        {Arm.ISOLATION: counters(19, 0, 80, "0", local_hits=16)},
    ),
    armed("another salt is not counted", open_by("COUNTERS_UNREADABLE"), {}, {Arm.ISOLATION: None}),
    armed("the reference differs", "FAIL DIVERGED", {Arm.REFERENCE: answer(OTHER)}),
    armed("the reference differs a little", "PASS", {Arm.REFERENCE: answer(shift=0.3)}),
    *(
        armed(
            f"{arm.value} loses the codewords",
            "FAIL DIVERGED",
            {
                **{step.arm: bare(answer(text="amber cedar elm")) for step in every_arm().steps},
                arm: [bare(answer(OTHER))] * 2,
            },
            policy=Policy(accept_ids_only=True),
        )
        for arm in (Arm.THIRD, Arm.MIXED)
    ),
    armed("the branch asks for something else", "INCONCLUSIVE LOGPROBS_UNUSABLE TIER_NOT_COVERED", {
        **{step.arm: bare(answer(text="amber cedar elm")) for step in every_arm().steps},
        Arm.BRANCH: [bare(answer(OTHER))] * 2,
    }),
    armed("the reference is not counted", "PASS", {}, {Arm.REFERENCE: None}),
    armed("the reference has other users", "PASS", {}, {Arm.REFERENCE: counters(3 * LENGTH, 0, 0)}),
    armed("the reference reuses something", open_by("NOT_COLD"), {}, {Arm.REFERENCE: counters(19, 80, 0)}),
    armed("a first cold attempt was lost", open_by("OBSERVATION_MISSING"), {Arm.COLD: [lost(), answer()]}, {
        Arm.COLD: counters(19, 80, 0)
    }),
)  # fmt: skip


def scheduled_only() -> Case:
    """Mixed loads whose counters show scheduling, where arrival is asked for."""
    group = every_arm()
    base: Readings = {step.arm: as_planned(group, step) for step in group.steps}
    plan = replace(plan_with_reference(), by_source_grade=Grade.SCHEDULED)
    return of_run("arms: scheduled only", open_by("EVIDENCE_TOO_WEAK"), plan, history(group, {}, base))


def aligned(name: str, required: str, drifts: Given) -> Case:
    """Two aligned groups, of which one has an arm that drifts a little."""
    groups = [replace(every_arm(), id=name, aligned=True, nonce=f"00000000000{name[1]}") for name in ("g1", "g2")]
    plan = replace(plan_with_reference(), groups=tuple(groups))
    base: Readings = {step.arm: as_planned(groups[0], step) for step in groups[0].steps}
    histories = [history(group, given, base) for group, given in zip(groups, (drifts, {}), strict=True)]
    return of_run(f"arms: {name} drifts a little at an aligned length", required, plan, *histories)


ALIGNED = (
    aligned("the local hit that a branch is held against", "PASS", {Arm.BRANCH_LOCAL: answer(shift=0.02)}),
    aligned("another salt", "PASS", {Arm.ISOLATION: answer(shift=0.02)}),
    aligned("the reference", "PASS", {Arm.REFERENCE: answer(shift=0.02)}),
    aligned("external", "FAIL DRIFT", dict.fromkeys((Arm.EXTERNAL, Arm.EXTERNAL_REPEAT), answer(shift=0.02))),
)


def no_local(name: str, required: str, *given: Given) -> Case:
    """Aligned groups where nothing is kept locally: that others are exact shows the alignment."""
    arms = ARMS - {Arm.LOCAL, Arm.LOCAL_REPEAT}
    groups = [
        group_plan(f"g{number}", aligned=True, arms=arms, nonce=f"00000000000{number}") for number in range(len(given))
    ]
    histories = [history(group, each) for group, each in zip(groups, given, strict=True)]
    return of_run(f"no local: {name}", required, run_plan(*groups), *histories)


SAVED_WRONG = dict.fromkeys((Arm.EXTERNAL, Arm.EXTERNAL_REPEAT), answer(shift=0.02))
NO_LOCAL = (
    no_local("all exact", "PASS", {}, {}, {}),
    no_local("one drifts, and others show the alignment", "INCONCLUSIVE UNSTABLE", SAVED_WRONG, {}, {}),
    no_local("two drift, and others show the alignment", "FAIL DRIFT", SAVED_WRONG, SAVED_WRONG, {}, {}, {}),
    no_local("most drift, so that none shows it", "INCONCLUSIVE ALIGNMENT_UNPROVEN", SAVED_WRONG, SAVED_WRONG, {}),
)


def turn() -> GroupPlan:
    """A long prompt and its continuation, of which decode wrote the tokens from 990 to 1024."""
    steps = continuation_steps(Parts("a", "a"), salts_honoured=True, drops=True)
    sizes = (PartSize(Part.CONTINUED, 1050, 1024, 1024),)
    return replace(
        group_plan("c1", aligned=True),
        purpose=Purpose.CONTINUATION,
        length=990,
        steps=steps,
        pairs=pairs_of(steps),
        sizes=sizes,
    )


def turned(
    name: str, required: str, reused: int, drift: float = 0.0, loads: Sequence[tuple[int, float]] | None = None
) -> Case:
    """A turn beside aligned groups; ``loads`` are what attempts at the load reused, and how far they drift."""
    made = turn()
    by_path = {
        Path.COLD: counters(1050, 0, 0, external_queries=1050),
        Path.LOCAL: counters(1050 - reused, reused, 0, external_queries=1050 - reused),
        Path.EXTERNAL: counters(1050 - reused, 0, reused, external_queries=1050),
    }
    readings: Readings = {
        step.arm: by_path[step.path] if step.part is Part.CONTINUED else counters(990, 0, 0, external_queries=990)
        for step in made.steps
    }
    hits = [step.arm for step in made.steps if step.part is Part.CONTINUED and step.path is not Path.COLD]
    answers = dict.fromkeys(hits, answer(shift=drift)) if drift else {}
    beside = [group_plan(f"g{number}", aligned=True, nonce=f"00000000000{number}") for number in (1, 2)]
    plan = run_plan(*beside, made)
    entries = history(made, answers, readings)
    if loads is not None:
        tries = {step.arm: [Try(answers.get(step.arm, answer()), readings[step.arm])] for step in made.steps}
        tries[Arm.CONTINUATION] = [
            Try(answer(shift=shift), counters(1050 - hit, 0, hit, external_queries=1050)) for hit, shift in loads
        ]
        entries = attempts(made, tries)
    return of_run(f"turn: {name}", required, plan, *map(history, beside), entries)


TURNS = (
    turned("one load of two drifts", "INCONCLUSIVE UNSTABLE", 1024, loads=[(1024, 0.02), (1024, 0.0)]),
    turned("the only load drifts", "INCONCLUSIVE UNSTABLE", 1024, loads=[(1024, 0.02)]),
    turned("all that decode wrote is reused", "PASS", 1024),
    turned("a part of what decode wrote is reused", "PASS", 1008),
    turned("what decode wrote has another shape", "PASS", 1024, drift=0.02),
    turned("only the prompt is reused", "INCONCLUSIVE PATH_NOT_EXERCISED", 990),
    turned("more is reused than there can be", "INCONCLUSIVE PATH_NOT_EXERCISED", 1040),
    turned("what decode wrote is loaded otherwise", "FAIL DRIFT", 1024, loads=[(1024, 0.02), (1024, 0.02)]),
    # What the first attempt missed it computed in another shape, and the second loads that.
    turned(
        "what decode wrote is missed, and then what was computed is loaded",
        "PASS",
        1024,
        loads=[(990, 0.02), (1024, 0.02)],
    ),
)


# -- past the gateway --------------------------------------------------------------------------------------------
def two_ways() -> GroupPlan:
    steps = arm_steps(Forcing.RESET_LOCAL, Parts("g", "g", "p", "d"), ARMS, salts_honoured=True, reader_drops=True)
    return replace(behind_gateway(), steps=steps, pairs=pairs_of(steps))


def past(name: str, required: str, answers: Given | None = None, readings: Readings | None = None) -> Case:
    """A run through the gateway, in two legs past it, and on prefill alone."""
    group = two_ways()
    alone = counters(*split(Path.LOCAL))
    base: Readings = {step.arm: alone if step.endpoint == "p" else passed_on(step.path) for step in group.steps}
    plan = plan_of(group)
    assert plan.route is Route.GATEWAY
    return of_run(f"two ways: {name}", required, plan, history(group, answers or {}, {**base, **(readings or {})}))


STRAIGHT = (Arm.TWO_LEG, Arm.TWO_LEG_REPEAT)
ASKED_OTHERWISE = replace(answer(OTHER), prompt_echoed=False)
WRONG, ODD = answer(OTHER), answer(tuple(reversed(OTHER)))
PAST_THE_GATEWAY = (
    past("equal", "PASS"),
    past("the gateway drifts", "FAIL DRIFT", dict.fromkeys(ARMS, answer(shift=0.02))),
    past("the gateway differs", "FAIL DIVERGED", dict.fromkeys(ARMS, WRONG)),
    # The two legs past it show that it is the gateway; of KV an answer to another prompt shows nothing.
    past("the gateway changes every prompt", open_by("PROMPT_CHANGED"), dict.fromkeys(ARMS, ASKED_OTHERWISE)),
    past("the transfer differs", "FAIL DIVERGED", dict.fromkeys((*ARMS, *STRAIGHT), WRONG)),
    past("two legs differ each time", "FAIL DIVERGED_INTERMITTENT UNSTABLE", {
        Arm.TWO_LEG: WRONG,
        Arm.TWO_LEG_REPEAT: ODD,
    }),
    *(
        past(f"{arm.value}: decode counts somebody else's", open_by("FOREIGN_TRAFFIC"), {}, {
            arm: passed_on(Path.LOCAL, decode_prompt=2 * LENGTH)
        })
        for arm in (Arm.LOCAL, Arm.TWO_LEG)
    ),
    past("decode computes it anew", open_by("TRANSFER_NOT_EXERCISED"), {}, {
        Arm.TWO_LEG: passed_on(Path.LOCAL, decode_computed=LENGTH)
    }),
    past("decode computes a little", "PASS", {}, {Arm.TWO_LEG: passed_on(Path.LOCAL, decode_computed=4)}),
)  # fmt: skip


def unquiet() -> Case:
    """A gateway that answers every prompt otherwise each time: its own noise must not excuse it."""
    groups = [replace(two_ways(), id=name, nonce=f"00000000000{name[1]}") for name in ("g1", "g2", "g3")]
    alone = counters(*split(Path.LOCAL))
    readings = {step.arm: alone if step.endpoint == "p" else passed_on(step.path) for step in groups[0].steps}
    answers: Given = {**dict.fromkeys(ARMS, answer(shift=0.05)), Arm.LOCAL_REPEAT: answer(shift=0.06)}
    histories = [history(group, answers, readings) for group in groups]
    return of_run("two ways: the gateway is noisy by itself", "FAIL DRIFT", plan_of(*groups), *histories)


def handed_over_wrong() -> Case:
    """Transfers that are wrong and never twice alike: what they do to every repeat is no excuse for them."""
    groups = [replace(two_ways(), id=name, nonce=f"00000000000{name[1]}") for name in ("g1", "g2", "g3")]
    alone = counters(*split(Path.LOCAL))
    readings = {step.arm: alone if step.endpoint == "p" else passed_on(step.path) for step in groups[0].steps}
    wrong = dict.fromkeys((*ARMS, Arm.TWO_LEG, Arm.TWO_LEG_REPEAT), answer(shift=0.6))
    answers: Given = {**wrong, Arm.LOCAL_REPEAT: answer(shift=0.9), Arm.TWO_LEG_REPEAT: answer(shift=0.9)}
    histories = [history(group, answers, readings) for group in groups]
    return of_run("two ways: transfers are wrong, each otherwise", "FAIL DIVERGED", plan_of(*groups), *histories)


def answered_wrong() -> Case:
    """A gateway whose answers are wrong and never twice alike, past which the engines are nearly quiet."""
    groups = [replace(two_ways(), id=name, nonce=f"00000000000{name[1]}") for name in ("g1", "g2", "g3")]
    alone = counters(*split(Path.LOCAL))
    readings = {step.arm: alone if step.endpoint == "p" else passed_on(step.path) for step in groups[0].steps}
    answers: Given = {
        **dict.fromkeys(ARMS, answer(shift=0.6)),
        Arm.LOCAL_REPEAT: answer(shift=0.9),
        Arm.TWO_LEG_REPEAT: answer(shift=0.01),
    }
    histories = [history(group, answers, readings) for group in groups]
    return of_run("two ways: the gateway is wrong, each time otherwise", "FAIL DIVERGED", plan_of(*groups), *histories)


# -- ranks -------------------------------------------------------------------------------------------------------
def pinned(name: str, required: str, served: str) -> Case:
    """The writer on rank 0, the reader on rank 1; ``served`` is the rank that served the external hit."""
    parts = Parts("a", "a", writer_rank=0, reader_rank=1)
    steps = arm_steps(Forcing.OTHER_RANK, parts, ARMS, salts_honoured=True, reader_drops=True)
    group = replace(group_plan(), steps=steps, pairs=pairs_of(steps))
    base = {step.arm: ranked(as_planned(group, step), str(step.rank)) for step in steps}
    base[Arm.EXTERNAL] = ranked(as_planned(group, steps[4]), served)
    plan = replace(run_plan(group), forcing=Forcing.OTHER_RANK)
    return of_run(f"ranks: {name}", required, plan, history(group, {}, base))


def ranked(reading: Counters, rank: str) -> Counters:
    return replace(reading, readings=tuple(replace(each, engine=rank) for each in reading.readings))


RANKS = (
    pinned("as asked for", "PASS", "1"),
    pinned("another than asked for", open_by("RANK_CHANGED"), "0"),
)


# -- answers to other prompts --------------------------------------------------------------------------------------
def mixed_up(name: str, required: str, echo: str) -> Case:
    """Two groups; one answer of the second comes with a prompt of that name."""
    groups = [group_plan(each, nonce=f"00000000000{each[1]}") for each in ("g1", "g2")]
    named = [replace(each, prompt_sha256=f"prompt of {each.id}") for each in groups]
    other = replace(answer(), prompt_echoed=False, echo_sha256=echo)
    return of_run(
        f"mixed up: {name}", required, run_plan(*named), history(named[0]), history(named[1], {Arm.EXTERNAL: other})
    )


ECHOES = (
    mixed_up("another group's prompt", "FAIL LEAK", "prompt of g1"),
    mixed_up("its own prompt, somehow", "INCONCLUSIVE PROMPT_CHANGED", "prompt of g2"),
    mixed_up("a prompt nobody sent", "INCONCLUSIVE PROMPT_CHANGED", "prompt of nobody"),
)


# -- cold answers that alone are far off ---------------------------------------------------------------------------
def odd_colds(name: str, required: str, *colds: Observation) -> Case:
    """A group for each cold answer; everything else agrees."""
    groups = [group_plan(f"g{number}", nonce=f"00000000000{number}") for number in range(len(colds))]
    histories = [history(group, {Arm.COLD: cold}) for group, cold in zip(groups, colds, strict=True)]
    return of_run(f"odd: {name}", required, run_plan(*groups), *histories)


FAR_OFF, SLIGHTLY_OFF = answer(OTHER), answer(shift=0.3)
ODD_COLDS = (
    odd_colds("both of two", "FAIL EXCESS_DIVERGENCE UNSTABLE TIER_NOT_COVERED", FAR_OFF, FAR_OFF),
    odd_colds("two of three", "FAIL EXCESS_DIVERGENCE UNSTABLE", FAR_OFF, FAR_OFF, answer()),
    odd_colds("one of one", "INCONCLUSIVE UNSTABLE TIER_NOT_COVERED", FAR_OFF),
    odd_colds("two of four", "INCONCLUSIVE UNSTABLE", FAR_OFF, FAR_OFF, answer(), answer()),
    odd_colds("both of two, a little", "PASS", SLIGHTLY_OFF, SLIGHTLY_OFF),
)

CHANGED = (
    armed("another prompt, counted as such", open_by("PROMPT_CHANGED"), {
        Arm.EXTERNAL: replace(answer(), prompt_echoed=False)
    }, {Arm.EXTERNAL: counters(LENGTH - 79, 0, 80)}),
)  # fmt: skip

CASES: tuple[Case, ...] = (
    *ONE_ENGINE,
    scheduled_only(),
    *ALIGNED,
    *NO_LOCAL,
    *TURNS,
    *PAST_THE_GATEWAY,
    unquiet(),
    handed_over_wrong(),
    answered_wrong(),
    *RANKS,
    *CHANGED,
    *ECHOES,
    *ODD_COLDS,
)
