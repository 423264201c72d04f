"""Histories with further sources: lines of the engine's log, cached tokens in replies, times to the first token."""

from collections.abc import Mapping
from dataclasses import replace

from kvgate.domain.log import LogLine, LogWord
from kvgate.domain.observation import EMPTY_BODY, Leg, Observation, Outcome, Timing, Usage
from kvgate.domain.policy import Policy, Source
from kvgate.domain.probe import Arm
from tests.domain.judging import OTHER, SUBJECTS
from tests.domain.making import ARMS, HIT, LENGTH, answer, counters, group_plan, refused, run_plan, with_usage
from tests.domain.recorded_case import Case, Try, attempts, of_one, of_run

FAILURE = "KV load failed for hybrid request x. Skip invalid-block fallback"
HIT_OTHERS = LogLine(LogWord.LOOKED_UP, "Reqid: cmpl-other-0, hit 9, need to load: 9", "cmpl-other-0", 9, 9)
STARTED = LogLine(LogWord.LOOKED_UP, "Reqid: cmpl-third-0, hit 9, need to load: 9", "cmpl-third-0", 9, 9)
EMPTY_TWICE = [replace(refused("HTTP 200, but no answer: it is empty"), marks=(EMPTY_BODY,))] * 2


def looked_up(arm: Arm, load: int, hit: int = HIT) -> LogLine:
    name = f"cmpl-kvgate-run-g1.{arm.value}.0-0"
    return LogLine(LogWord.LOOKED_UP, f"Reqid: {name}, hit tokens: {hit}, need to load: {load}", name, hit, load)


def needing(*sources: Source) -> Policy:
    return Policy(required_sources=sources)


def logged(
    name: str,
    required: str,
    lines: Mapping[Arm, tuple[LogLine, ...]],
    said: Observation | None = None,
    policy: Policy | None = None,
    external: int = HIT,
) -> Case:
    """One group whose external arms answer as given, beside what the log got meanwhile."""
    group = group_plan(arms=ARMS)
    after = counters(LENGTH - external, 0, external)
    tries = {arm: (Try(said or answer(), after, log=lines.get(arm)),) for arm in SUBJECTS}
    return of_run(name, required, run_plan(group, policy=policy), attempts(group, tries))


def both(*lines: LogLine) -> dict[Arm, tuple[LogLine, ...]]:
    return dict.fromkeys(SUBJECTS, lines)


LOADS = {arm: (looked_up(arm, HIT), looked_up(arm, HIT)) for arm in SUBJECTS}
LOG = (
    logged("log: it tells of the loads", "PASS", LOADS, policy=needing(Source.LOG)),
    logged("log: not asked for and silent", "PASS", both()),
    logged(
        "log: asked for and silent",
        "INCONCLUSIVE EVIDENCE_MISSING TIER_NOT_COVERED",
        both(),
        policy=needing(Source.LOG),
    ),
    logged(
        "log: asked for and not read", "INCONCLUSIVE EVIDENCE_MISSING TIER_NOT_COVERED", {}, policy=needing(Source.LOG)
    ),
    logged(
        "c31 log: a hit of which nothing needs to be loaded, counted as loaded",
        "INCONCLUSIVE SENSOR_CONFLICT TIER_NOT_COVERED",
        {arm: (looked_up(arm, 0), looked_up(arm, 0)) for arm in SUBJECTS},
    ),
    logged(
        "c31 log: a hit of which nothing needs to be loaded is no load",
        "INCONCLUSIVE EVIDENCE_MISSING TIER_NOT_COVERED",
        {arm: (looked_up(arm, 0), HIT_OTHERS) for arm in SUBJECTS},
        policy=Policy(required_sources=(Source.LOG,)),
    ),
    logged("log: a late line of another probe denies nothing", "PASS", both(looked_up(Arm.LOCAL, 0))),
    logged(
        "log: a late line of another probe confirms nothing",
        "INCONCLUSIVE EVIDENCE_MISSING TIER_NOT_COVERED",
        both(looked_up(Arm.LOCAL, HIT)),
        policy=needing(Source.LOG),
    ),
    logged(
        "log: a load that failed",
        "INCONCLUSIVE LOAD_FAILED TIER_NOT_COVERED",
        both(LogLine(LogWord.LOAD_FAILED, FAILURE)),
    ),
    logged(
        "log: a load that failed and was counted all the same excuses nothing",
        "FAIL DIVERGED",
        both(LogLine(LogWord.LOAD_FAILED, FAILURE)),
        said=answer(OTHER),
    ),
    logged(
        "log: a failure explains a miss",
        "INCONCLUSIVE LOAD_FAILED TIER_NOT_COVERED",
        both(LogLine(LogWord.LOAD_FAILED, FAILURE)),
        external=0,
    ),
    logged(
        "log: a failure of this request by name",
        "INCONCLUSIVE LOAD_FAILED TIER_NOT_COVERED",
        {
            arm: (looked_up(arm, HIT), replace(looked_up(arm, 0), word=LogWord.LOAD_FAILED, load=None))
            for arm in SUBJECTS
        },
    ),
    logged(
        "log: a load under a proxy's name, and a failure under none",
        "INCONCLUSIVE LOAD_FAILED TIER_NOT_COVERED",
        both(HIT_OTHERS, LogLine(LogWord.LOAD_FAILED, FAILURE)),
        policy=needing(Source.LOG),
    ),
    logged(
        "log: what happened to others",
        "PASS",
        {arm: (looked_up(arm, HIT), replace(HIT_OTHERS, word=LogWord.LOAD_FAILED), STARTED) for arm in SUBJECTS},
        policy=needing(Source.LOG),
    ),
    logged("log: under a proxy's name, and only that", "PASS", both(HIT_OTHERS), policy=needing(Source.LOG)),
    logged(
        "log: two requests, neither of them known",
        "INCONCLUSIVE EVIDENCE_MISSING TIER_NOT_COVERED",
        both(HIT_OTHERS, STARTED),
        policy=needing(Source.LOG),
    ),
    logged(
        "log: less was retrieved than was to be loaded: nothing",
        "INCONCLUSIVE SENSOR_CONFLICT TIER_NOT_COVERED",
        {arm: (looked_up(arm, HIT), replace(looked_up(arm, 0), word=LogWord.RETRIEVED)) for arm in SUBJECTS},
    ),
)

CACHED = {arm: with_usage(answer(), len(answer().token_ids or ()), HIT) for arm in SUBJECTS}


def in_two_legs(cached: int) -> Observation:
    """An answer by two legs: the first reply says how many tokens were cached, the second how many were transferred."""
    first = Leg("prefill", Outcome.OK, "", 200, None, Usage(LENGTH, 1, cached), None)
    whole = Usage(LENGTH, len(answer().token_ids or ()), LENGTH - 1)
    return replace(answer(), usage=whole, legs=(first,))


# Behind a decode engine cached tokens are the transfer's, so they contradict no counter.
DECODED = {
    arm: counters(LENGTH - HIT, 0, HIT, decode_prompt=LENGTH, transferred=LENGTH - 1, decode_local=0)
    for arm in SUBJECTS
}
REPLY = (
    of_one(
        "reply: the first of two legs tells of the loads",
        "PASS",
        dict.fromkeys(SUBJECTS, in_two_legs(HIT)),
        DECODED,
        policy=needing(Source.REPLY),
    ),
    of_one(
        "reply: the second of two legs tells of the transfer",
        "INCONCLUSIVE EVIDENCE_MISSING TIER_NOT_COVERED",
        dict.fromkeys(SUBJECTS, in_two_legs(0)),
        DECODED,
        policy=needing(Source.REPLY),
    ),
    of_one("reply: it tells of the loads", "PASS", CACHED, policy=needing(Source.REPLY)),
    of_one(
        "reply: asked for and silent",
        "INCONCLUSIVE EVIDENCE_MISSING TIER_NOT_COVERED",
        policy=needing(Source.REPLY),
    ),
)


def taking(cold: float | None, hit: float | None) -> dict[Arm, Observation]:
    """Answers by the time to their first token."""
    slow, quick = (replace(answer(), timing=Timing(each, 9.0)) for each in (cold, hit))
    return {Arm.COLD: slow, **dict.fromkeys(SUBJECTS, quick)}


MISSED = {arm: counters(LENGTH, 0, 0) for arm in SUBJECTS}
TIMES = (
    of_one("first token: soon enough", "PASS", taking(1.0, 0.9), policy=needing(Source.FIRST_TOKEN)),
    of_one(
        "first token: as late as cold",
        "INCONCLUSIVE EVIDENCE_MISSING TIER_NOT_COVERED",
        taking(1.0, 0.91),
        policy=needing(Source.FIRST_TOKEN),
    ),
    of_one(
        "first token: not known",
        "INCONCLUSIVE EVIDENCE_MISSING TIER_NOT_COVERED",
        taking(None, 0.1),
        policy=needing(Source.FIRST_TOKEN),
    ),
    of_one("first token: late, and nobody asked", "PASS", taking(1.0, 2.0)),
    of_one(
        "f14 first token: quick, and yet a miss",
        "INCONCLUSIVE EXTERNAL_MISS TIER_NOT_COVERED",
        taking(1.0, 0.2),
        MISSED,
    ),
)


def broken_off(name: str, required: str, answers: list[Observation]) -> Case:
    """One group of which only the cold arm was sent."""
    group = group_plan(arms=ARMS)
    tries: dict[Arm, tuple[Try, ...]] = {step.arm: () for step in group.steps}
    tries[Arm.COLD] = tuple(map(Try, answers))
    return of_run(name, required, run_plan(group), attempts(group, tries))


EMPTY = (
    of_one("row 3: an empty baseline", "INCONCLUSIVE EMPTY TIER_NOT_COVERED", {Arm.COLD: EMPTY_TWICE}),
    broken_off("row 2: an empty baseline, and nothing after it", "INCONCLUSIVE EMPTY TIER_NOT_COVERED", EMPTY_TWICE),
    broken_off(
        "row 2: a refused baseline, and no more",
        "INCONCLUSIVE PROBE_REFUSED TIER_NOT_COVERED",
        [refused()] * 2,
    ),
    of_one("row 3: an empty local baseline", "FAIL EMPTY", {Arm.LOCAL: EMPTY_TWICE}),
)

CASES = (*LOG, *REPLY, *TIMES, *EMPTY)
