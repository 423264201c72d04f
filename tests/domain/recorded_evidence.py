"""Written histories of the evidence: what the counters, the reply and the hooks say of the path of one arm."""

from collections.abc import Mapping
from dataclasses import replace

from kvgate.domain.counters import Counter, Counters, Reading
from kvgate.domain.history import DropOutcome
from kvgate.domain.observation import Observation, Usage
from kvgate.domain.policy import Grade, Policy
from kvgate.domain.probe import Arm
from tests.domain.judging import OTHER, SUBJECTS, both
from tests.domain.making import (
    ARMS,
    EMPTY,
    HIT,
    LENGTH,
    TOKENS,
    answer,
    counters,
    group_plan,
    lost,
    run_plan,
    with_usage,
)
from tests.domain.recorded_case import Case, Readings, Tries, Try, attempts, history, of_one, of_run

COLD = counters(LENGTH, 0, 0)
LOCAL = counters(LENGTH - HIT, HIT, 0)
EXTERNAL = counters(LENGTH - HIT, 0, HIT)
GROUP = group_plan()
LOCALS = (Arm.LOCAL, Arm.LOCAL_REPEAT)
# The path of every arm, by look-ups only, as older engines count them.
BY_HITS = (Counter.PROMPT_TOKENS, Counter.LOCAL_HITS, Counter.EXTERNAL_HITS, Counter.EXTERNAL_QUERIES)
SCHEDULED = Policy(evidence=Grade.SCHEDULED)


def open_by(reason: str) -> str:
    """A run whose only tier stays open for this reason."""
    return f"INCONCLUSIVE {reason} TIER_NOT_COVERED"


def only(reading: Counters, *kept: Counter) -> Counters:
    return replace(reading, readings=tuple(each for each in reading.readings if each.counter in kept))


def without(reading: Counters, *dropped: Counter) -> Counters:
    return replace(reading, readings=tuple(each for each in reading.readings if each.counter not in dropped))


def split_as(local: int | None, external: int | None) -> Observation:
    """The answer with the engine's own split of what was cached."""
    return replace(answer(), usage=Usage(LENGTH, len(TOKENS), None, local, external))


def split(one: Counters, other: Counters) -> Counters:
    """Two engines of one endpoint."""
    moved = tuple(replace(each, engine="1") for each in other.readings)
    return replace(one, readings=(*one.readings, *moved))


def by_arm(readings: Mapping[Arm, Counters]) -> Readings:
    base = {Arm.COLD: COLD, Arm.COLD_REPEAT: COLD, Arm.LOCAL: LOCAL, Arm.LOCAL_REPEAT: LOCAL}
    return {**base, **dict.fromkeys(SUBJECTS, EXTERNAL), **readings}


def everywhere(*kept: Counter) -> Readings:
    return {arm: only(reading or EMPTY, *kept) for arm, reading in by_arm({}).items()}


def subjects(name: str, required: str, reading: Counters | None) -> Case:
    """Both external arms with other counters."""
    return of_one(name, required, {}, dict.fromkeys(SUBJECTS, reading))


def at(name: str, required: str, arm: Arm, reading: Counters | None) -> Case:
    """One arm with other counters."""
    return of_one(name, required, {}, {arm: reading})


def tried(name: str, required: str, tries: Tries) -> Case:
    """A run of one group, attempt by attempt."""
    return of_run(name, required, run_plan(GROUP), attempts(GROUP, tries))


def by_hits(name: str, required: str, hit: int) -> Case:
    """External arms of which only look-ups are counted."""
    reading = counters(0, 0, 0, external_hits=hit, prompt_tokens=LENGTH)
    return of_one(
        name,
        required,
        {},
        {**everywhere(*BY_HITS), **dict.fromkeys(SUBJECTS, only(reading, *BY_HITS))},
        policy=SCHEDULED,
    )


def expecting(name: str, required: str, local: int, external: int, readings: Readings) -> Case:
    """A group whose local and external hits are not as long as elsewhere."""
    group = replace(GROUP, expected_local=local, expected_external=external)
    return of_run(name, required, run_plan(group), history(group, {}, readings))


SOURCES = (
    subjects("no counters", open_by("COUNTERS_UNREADABLE"), None),
    at("no counters at the cold run", open_by("COUNTERS_UNREADABLE"), Arm.COLD, None),
    at("no counters at the local hit", open_by("COUNTERS_UNREADABLE"), Arm.LOCAL, None),
    of_one("no counters at all", open_by("COUNTERS_UNREADABLE"), {}, dict.fromkeys(ARMS)),
    of_one(
        "no counters at all, and garbage", "FAIL DIVERGED COUNTERS_UNREADABLE", both(answer(OTHER)), dict.fromkeys(ARMS)
    ),
    tried("no reading before", open_by("COUNTERS_UNREADABLE"), {Arm.EXTERNAL: [Try(missed=True)]}),
    tried("a reading that could not be had", open_by("COUNTERS_UNREADABLE"), {Arm.EXTERNAL: [Try(unread="404")]}),
    subjects("none of the counters needed", open_by("COUNTERS_UNREADABLE"), only(EXTERNAL, Counter.PREEMPTIONS)),
    subjects("no external tokens by source", open_by("EVIDENCE_TOO_WEAK"), without(EXTERNAL, Counter.EXTERNAL)),
    subjects("no local tokens by source", open_by("EVIDENCE_TOO_WEAK"), without(EXTERNAL, Counter.LOCAL)),
    subjects("no computed tokens by source", open_by("EVIDENCE_TOO_WEAK"), without(EXTERNAL, Counter.COMPUTED)),
    of_one("look-ups only", open_by("EVIDENCE_TOO_WEAK"), {}, everywhere(*BY_HITS)),
    of_one("look-ups only, accepted", "PASS", {}, everywhere(*BY_HITS), policy=SCHEDULED),
    of_one(
        "look-ups only, and none in the local cache",
        open_by("COUNTERS_UNREADABLE"),
        {},
        everywhere(Counter.PROMPT_TOKENS, Counter.EXTERNAL_HITS),
        policy=SCHEDULED,
    ),
    of_one(
        "look-ups only, and none outside",
        open_by("PATH_NOT_EXERCISED"),
        {},
        everywhere(Counter.PROMPT_TOKENS, Counter.LOCAL_HITS),
        policy=SCHEDULED,
    ),
    subjects("bytes that were loaded", "PASS", counters(LENGTH - HIT, 0, HIT, loaded_bytes=4096)),
    by_hits("look-ups that hit the whole prompt", "PASS", LENGTH),
    by_hits("look-ups that hit more than the prompt", open_by("SENSOR_CONFLICT"), LENGTH + 16),
    of_run(
        "tokens by source that are scheduled only",
        open_by("EVIDENCE_TOO_WEAK"),
        replace(run_plan(GROUP), by_source_grade=Grade.SCHEDULED),
        attempts(GROUP),
    ),
    of_run(
        "tokens by source that are scheduled only, accepted",
        "PASS",
        replace(run_plan(GROUP, policy=SCHEDULED), by_source_grade=Grade.SCHEDULED),
        attempts(GROUP),
    ),
)

TRAFFIC = (
    subjects(
        "one token too many", open_by("FOREIGN_TRAFFIC"), counters(LENGTH - HIT, 0, HIT, prompt_tokens=LENGTH + 1)
    ),
    subjects(
        "one token too few", open_by("EVIDENCE_MISSING"), counters(LENGTH - HIT, 0, HIT, prompt_tokens=LENGTH - 1)
    ),
    at("one token too many, cold", open_by("FOREIGN_TRAFFIC"), Arm.COLD, counters(LENGTH + 1, 0, 0)),
    subjects("two engines at work", open_by("FOREIGN_TRAFFIC"), split(counters(9, 0, HIT), counters(10, 0, 0))),
    subjects("one token by another engine", open_by("FOREIGN_TRAFFIC"), split(counters(18, 0, HIT), counters(1, 0, 0))),
    subjects("another engine idle", "PASS", split(EXTERNAL, EMPTY)),
    subjects(
        "another engine without prompt tokens",
        "PASS",
        replace(EXTERNAL, readings=(*EXTERNAL.readings, Reading("1", Counter.PREEMPTIONS, 0.0))),
    ),
    subjects(
        "counted by local look-ups",
        "PASS",
        without(
            replace(EXTERNAL, readings=(*EXTERNAL.readings, Reading("0", Counter.LOCAL_QUERIES, LENGTH))),
            Counter.PROMPT_TOKENS,
        ),
    ),
    subjects(
        "counted by local look-ups, too many",
        open_by("FOREIGN_TRAFFIC"),
        without(
            replace(EXTERNAL, readings=(*EXTERNAL.readings, Reading("0", Counter.LOCAL_QUERIES, LENGTH + 1))),
            Counter.PROMPT_TOKENS,
        ),
    ),
    subjects("nothing counts the prompt", open_by("EVIDENCE_MISSING"), without(EXTERNAL, Counter.PROMPT_TOKENS)),
    subjects("stuck at zero", open_by("EVIDENCE_MISSING"), EMPTY),
    subjects("a preemption", open_by("PREEMPTED"), counters(LENGTH - HIT, 0, HIT, preemptions=1)),
    subjects("no count of preemptions", "PASS", without(EXTERNAL, Counter.PREEMPTIONS)),
)

RESETS = (
    subjects("counters fell", open_by("COUNTER_RESET"), counters(-5, 0, HIT, prompt_tokens=HIT - 5)),
    subjects("one counter fell by one", open_by("COUNTER_RESET"), counters(LENGTH - HIT, 0, HIT, preemptions=-1)),
    tried(
        "a counter vanished",
        open_by("COUNTER_RESET"),
        {Arm.EXTERNAL: [Try(before=replace(EMPTY, readings=(*EMPTY.readings, Reading("0", Counter.REQUESTS, 3.0))))]},
    ),
    tried("started anew", open_by("COUNTER_RESET"), {Arm.EXTERNAL: [Try(before=replace(EMPTY, started=-0.5))]}),
    tried("started a moment ago", "PASS", {Arm.EXTERNAL: [Try(before=replace(EMPTY, started=0.0))]}),
    tried("start unknown before", "PASS", {Arm.EXTERNAL: [Try(before=replace(EMPTY, started=None))]}),
    tried("start unknown after", "PASS", {Arm.EXTERNAL: [Try(after=replace(EXTERNAL, started=None), before=EMPTY)]}),
    tried(
        "a counter that is first seen afterwards, at zero",
        "PASS",
        {Arm.EXTERNAL: [Try(before=without(EMPTY, Counter.PREEMPTIONS))]},
    ),
    tried(
        "no hit is counted, the reply tells of one",
        open_by("SENSOR_CONFLICT"),
        {arm: [Try(replace(answer(), usage=Usage(LENGTH, len(TOKENS), HIT)), COLD)] for arm in SUBJECTS},
    ),
    tried(
        "started earlier than before: another process answers",
        open_by("COUNTER_RESET"),
        {Arm.EXTERNAL: [Try(before=replace(EMPTY, started=9.0))]},
    ),
    tried(
        "counters that do not begin at zero",
        "PASS",
        {
            Arm.EXTERNAL: [
                Try(
                    before=counters(500, 100, 200, preemptions=4),
                    after=counters(500 + LENGTH - HIT, 100, 200 + HIT, preemptions=4, external_queries=199),
                )
            ]
        },
    ),
)

CONFLICTS = (
    subjects("sources that do not add up", open_by("SENSOR_CONFLICT"), counters(LENGTH, 0, HIT, prompt_tokens=LENGTH)),
    at("look-ups hit more than came", open_by("LOAD_FAILED"), Arm.EXTERNAL, counters(LENGTH, 0, 0, external_hits=HIT)),
    at(
        "look-ups hit one token more than came",
        open_by("LOAD_FAILED"),
        Arm.EXTERNAL,
        counters(LENGTH - HIT, 0, HIT, external_hits=HIT + 1),
    ),
    at(
        "look-ups hit less than came",
        open_by("SENSOR_CONFLICT"),
        Arm.EXTERNAL,
        counters(LENGTH - HIT, 0, HIT, external_hits=HIT - 1),
    ),
    at("no look-ups outside", "PASS", Arm.EXTERNAL, without(EXTERNAL, Counter.EXTERNAL_HITS)),
    at("no look-ups in the local cache", "PASS", Arm.LOCAL, without(LOCAL, Counter.LOCAL_HITS)),
    at("failed keys", open_by("LOAD_FAILED"), Arm.EXTERNAL, counters(LENGTH - HIT, 0, HIT, failed_loads=1)),
    at("no failed keys", "PASS", Arm.EXTERNAL, counters(LENGTH - HIT, 0, HIT, failed_loads=0)),
    at("failed keys at the cold run", open_by("LOAD_FAILED"), Arm.COLD, counters(LENGTH, 0, 0, failed_loads=1)),
    at(
        "a failed load at the local hit",
        open_by("LOAD_FAILED"),
        Arm.LOCAL,
        counters(LENGTH - HIT, HIT, 0, external_hits=16),
    ),
    at(
        "local look-ups that no token shows",
        open_by("SENSOR_CONFLICT"),
        Arm.EXTERNAL,
        counters(LENGTH - HIT, 0, HIT, local_hits=16),
    ),
    at(
        "conflict at the baseline",
        open_by("SENSOR_CONFLICT"),
        Arm.LOCAL,
        counters(LENGTH - HIT, HIT, 0, local_hits=HIT - 1),
    ),
    at("conflict at the cold run", open_by("SENSOR_CONFLICT"), Arm.COLD, counters(LENGTH, 0, 0, local_hits=1)),
    of_one(
        "usage says more cached tokens", open_by("SENSOR_CONFLICT"), both(with_usage(answer(), len(TOKENS), HIT + 16))
    ),
    of_one("usage says fewer cached tokens", open_by("SENSOR_CONFLICT"), both(with_usage(answer(), len(TOKENS), 0))),
    of_one("usage tells the same split", "PASS", both(split_as(0, HIT))),
    of_one("usage tells of local tokens", open_by("SENSOR_CONFLICT"), both(split_as(HIT, 0))),
    of_one("usage tells of fewer external tokens", open_by("SENSOR_CONFLICT"), both(split_as(None, HIT - 16))),
    of_one("usage tells of external tokens only", "PASS", both(split_as(None, HIT))),
    of_one("usage says as many cached tokens", "PASS", both(with_usage(answer(), len(TOKENS), HIT))),
    of_one("usage agrees at the local hit", "PASS", {Arm.LOCAL: with_usage(answer(), len(TOKENS), HIT)}),
    of_one("no usage", "PASS", both(replace(answer(), usage=None))),
)


def unsalted(name: str, required: str) -> Case:
    """A group whose cold repeat has no salt, and is a hit."""
    steps = tuple(replace(step, salt=None) if step.arm is Arm.COLD_REPEAT else step for step in GROUP.steps)
    group = replace(GROUP, steps=steps)
    return of_run(name, required, run_plan(group), history(group, {}, {Arm.COLD_REPEAT: LOCAL}))


PATHS = (
    at("cold, and a local hit", open_by("NOT_COLD"), Arm.COLD, LOCAL),
    at("cold, and an external hit", open_by("NOT_COLD"), Arm.COLD, EXTERNAL),
    at("local, and a miss", open_by("BASELINE_NOT_LOCAL"), Arm.LOCAL, COLD),
    at("local, and just enough", "PASS", Arm.LOCAL, counters(LENGTH - 76, 76, 0)),
    at("local, and one token too few", open_by("BASELINE_NOT_LOCAL"), Arm.LOCAL, counters(LENGTH - 75, 75, 0)),
    at("local, and one token from outside", open_by("BASELINE_NOT_LOCAL"), Arm.LOCAL, counters(LENGTH - HIT, 79, 1)),
    subjects(
        "external, and nothing asked for", open_by("PATH_NOT_EXERCISED"), counters(LENGTH, 0, 0, external_queries=0)
    ),
    subjects(
        "external, and no look-ups counted", open_by("PATH_NOT_EXERCISED"), without(COLD, Counter.EXTERNAL_QUERIES)
    ),
    subjects("external, and a miss", open_by("EXTERNAL_MISS"), COLD),
    subjects("external, and one block too few", open_by("EXTERNAL_MISS"), counters(LENGTH - HIT + 16, 0, HIT - 16)),
    subjects(
        "external, one block too few, asked for unknown",
        open_by("EXTERNAL_MISS"),
        without(counters(LENGTH - HIT + 16, 0, HIT - 16), Counter.EXTERNAL_QUERIES),
    ),
    subjects("external, and just enough", "PASS", counters(LENGTH - 76, 0, 76)),
    subjects("external, and one token too few", open_by("EXTERNAL_MISS"), counters(LENGTH - 75, 0, 75)),
    expecting("one token expected, and there", "PASS", HIT, 1, dict.fromkeys(SUBJECTS, counters(LENGTH - 1, 0, 1))),
    expecting("shorter local hits expected", "PASS", 48, HIT, dict.fromkeys(LOCALS, counters(LENGTH - 48, 48, 0))),
    expecting("shorter external hits expected", "PASS", HIT, 48, dict.fromkeys(SUBJECTS, counters(LENGTH - 48, 0, 48))),
    subjects("external, and still local", open_by("LOCAL_NOT_DROPPED"), LOCAL),
    subjects("external, and one token local", open_by("LOCAL_NOT_DROPPED"), counters(LENGTH - HIT, 1, HIT - 1)),
    at("a cold repeat that was a hit", "INCONCLUSIVE SALT_IGNORED TIER_NOT_COVERED", Arm.COLD_REPEAT, LOCAL),
    unsalted("an unsalted cold repeat that was a hit", open_by("NOT_COLD")),
    of_one("no cold arm planned", "PASS", {}, arms=ARMS - {Arm.COLD}),
    at("a cold repeat from outside", "INCONCLUSIVE SALT_IGNORED TIER_NOT_COVERED", Arm.COLD_REPEAT, EXTERNAL),
)

REPLIES = (
    of_one(
        "another prompt echoed beside a conflict of counters",
        open_by("PROMPT_CHANGED"),
        both(replace(answer(), prompt_echoed=False)),
        dict.fromkeys(SUBJECTS, counters(LENGTH - HIT, 0, HIT, local_hits=16)),
    ),
    of_one("another prompt echoed", open_by("PROMPT_CHANGED"), both(replace(answer(), prompt_echoed=False))),
    of_one(
        "another prompt echoed, cold", open_by("PROMPT_CHANGED"), {Arm.COLD: replace(answer(), prompt_echoed=False)}
    ),
    of_one("the prompt echoed", "PASS", both(replace(answer(), prompt_echoed=True))),
    of_one(
        "all answers cut off at their length limit",
        open_by("IDS_INCOMPLETE"),
        dict.fromkeys(ARMS, replace(answer(TOKENS[:15]), usage=None)),
    ),
    of_one("all answers ended before", "PASS", dict.fromkeys(ARMS, replace(answer(TOKENS[:15]), finish_reason="stop"))),
    of_one("answers longer than asked for", "PASS", dict.fromkeys(ARMS, answer((*TOKENS, 500)))),
)

HOOKS = (
    tried("a hook that failed", open_by("HOOK_FAILED"), {Arm.EXTERNAL: [Try(hooks=(("before_arm", 1, "no"),))]}),
    tried("a hook that did not start", open_by("HOOK_FAILED"), {Arm.COLD: [Try(hooks=(("before_arm", None, ""),))]}),
    tried(
        "a hook that failed before a lost answer",
        open_by("HOOK_FAILED"),
        {Arm.EXTERNAL: [Try(lost(), hooks=(("before_arm", 1, "no"),))]},
    ),
    tried(
        "a hook that failed before a local hit was sent",
        open_by("HOOK_FAILED"),
        {Arm.LOCAL: [Try(None, hooks=(("before_arm", 1, "no"),))]},
    ),
    tried("a hook that ran", "PASS", {Arm.EXTERNAL: [Try(hooks=(("before_arm", 0, "done"),))]}),
    tried(
        "the second of two hooks failed",
        open_by("HOOK_FAILED"),
        {Arm.EXTERNAL: [Try(hooks=(("before_arm", 0, "done"), ("after_arm", 2, "line\nno")))]},
    ),
    tried("a drop that was refused, and counters", "PASS", {Arm.EXTERNAL: [Try(drop=DropOutcome.REFUSED)]}),
    tried(
        "a drop that was refused, and no counters",
        open_by("COUNTERS_UNREADABLE"),
        {Arm.EXTERNAL: [Try(drop=DropOutcome.REFUSED, unread="404")]},
    ),
    tried(
        "a drop that was confirmed, and no counters",
        open_by("COUNTERS_UNREADABLE"),
        {Arm.EXTERNAL: [Try(drop=DropOutcome.DROPPED, unread="404")]},
    ),
)

CASES: tuple[Case, ...] = (*SOURCES, *TRAFFIC, *RESETS, *CONFLICTS, *PATHS, *REPLIES, *HOOKS)
