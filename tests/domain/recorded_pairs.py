"""Written histories of a group among its neighbours: what makes a pair exact, and what tolerance others inform."""

from dataclasses import replace

from kvgate.domain.policy import Policy, PolicyName
from kvgate.domain.probe import Arm
from tests.domain.judging import OTHER, SUBJECTS, both, near_tie
from tests.domain.making import (
    ARMS,
    LENGTH,
    TOKENS,
    Answers,
    answer,
    counters,
    group_plan,
    run_plan,
)
from tests.domain.recorded_answers import listed
from tests.domain.recorded_case import Case, Given, Readings, bare, history, of_one, of_run
from tests.domain.recorded_evidence import COLD, open_by

LOCALS = (Arm.LOCAL, Arm.LOCAL_REPEAT)
HITS = (*LOCALS, *SUBJECTS)
STRICT = Policy(name=PolicyName.STRICT)


def hits(observation: object) -> Answers:
    return dict.fromkeys(HITS, observation)  # type: ignore[arg-type]


# What informs others: repeats, and a cold run against a local hit.
BYSTANDER = ARMS - {*SUBJECTS}


def neighbours(name: str, required: str, *each: Given, aligned: bool = False, policy: Policy | None = None) -> Case:
    """A run of as many groups as there are answers; the first is a full one, the others have no external arms."""
    groups = [
        group_plan(f"g{number}", aligned=aligned, arms=BYSTANDER if number else ARMS) for number in range(len(each))
    ]
    histories = [history(group, answers) for group, answers in zip(groups, each, strict=True)]
    return of_run(name, required, run_plan(*groups, policy=policy), *histories)


QUIET: Answers = {}
SAVED_WRONG = hits(answer(shift=0.01))
ALIGNMENT = (
    neighbours("aligned, saved wrong, and alone", "INCONCLUSIVE ALIGNMENT_UNPROVEN", SAVED_WRONG, aligned=True),
    neighbours(
        "aligned, saved wrong, and proven by another",
        "INCONCLUSIVE UNSTABLE ALIGNMENT_UNPROVEN",
        SAVED_WRONG,
        QUIET,
        aligned=True,
    ),
    neighbours(
        "aligned, saved wrong, half of the others show it",
        "INCONCLUSIVE ALIGNMENT_UNPROVEN",
        *[SAVED_WRONG] * 2,
        QUIET,
        aligned=True,
    ),
    neighbours(
        "aligned, two saved wrong, most of the others show it",
        "FAIL DRIFT UNSTABLE",
        SAVED_WRONG,
        SAVED_WRONG,
        *[QUIET] * 3,
        aligned=True,
    ),
    neighbours(
        "aligned, saved wrong, most of the others show it",
        "INCONCLUSIVE UNSTABLE",
        SAVED_WRONG,
        QUIET,
        QUIET,
        aligned=True,
    ),
    neighbours(
        "aligned, one lucky group",
        "INCONCLUSIVE ALIGNMENT_UNPROVEN",
        QUIET,
        *[hits(answer(shift=0.2))] * 3,
        aligned=True,
    ),
    neighbours(
        "aligned, all saved wrong, accepted",
        "PASS",
        *[SAVED_WRONG] * 3,
        aligned=True,
        policy=Policy(accept_unproven_alignment=True),
    ),
    neighbours(
        "aligned, noisy when cold", "PASS", *[{**SAVED_WRONG, Arm.COLD_REPEAT: answer(shift=0.02)}] * 3, aligned=True
    ),
    neighbours("aligned, saved with other tokens", "FAIL DIVERGED", hits(answer(OTHER)), QUIET, QUIET, aligned=True),
    neighbours("not aligned, saved a little wrong", "PASS", SAVED_WRONG, QUIET, QUIET),
    neighbours("not aligned, saved with other tokens", "FAIL DIVERGED", hits(answer(OTHER)), QUIET, QUIET),
)


def mixed(name: str, required: str, *each: tuple[bool, Given], policy: Policy | None = None) -> Case:
    """A run of groups some of which are aligned."""
    groups = [
        group_plan(f"g{number}", aligned=aligned, arms=BYSTANDER if number else ARMS)
        for number, (aligned, _) in enumerate(each)
    ]
    histories = [history(group, answers) for group, (_, answers) in zip(groups, each, strict=True)]
    return of_run(f"mixed lengths: {name}", required, run_plan(*groups, policy=policy), *histories)


YES, NO = True, False
COLD_LOUD: Answers = {Arm.COLD_REPEAT: answer(shift=0.02)}
MIXED = (
    mixed("saved wrong, not aligned, and others are", "PASS", (NO, SAVED_WRONG), (YES, QUIET), (YES, QUIET)),
    mixed(
        "saved wrong, aligned, and others are not",
        "INCONCLUSIVE UNSTABLE",
        (YES, SAVED_WRONG),
        (YES, QUIET),
        (YES, QUIET),
        (NO, QUIET),
        (NO, QUIET),
    ),
    mixed(
        "saved wrong, aligned, and only one other is",
        "INCONCLUSIVE UNSTABLE ALIGNMENT_UNPROVEN",
        (YES, SAVED_WRONG),
        (YES, QUIET),
        (NO, QUIET),
        (NO, QUIET),
    ),
    mixed("one is aligned", "PASS", (NO, QUIET), (YES, QUIET)),
    mixed(
        "saved wrong, cold runs of others noisy",
        "PASS",
        (YES, SAVED_WRONG),
        (YES, QUIET),
        (YES, QUIET),
        (YES, COLD_LOUD),
    ),
    mixed(
        "saved wrong, inside a declared loss",
        "INCONCLUSIVE UNSTABLE",
        (YES, SAVED_WRONG),
        (YES, QUIET),
        (YES, QUIET),
        policy=Policy(lossy_bound_nat=0.1),
    ),
    mixed(
        "saved so that a near tie flips, inside a declared loss",
        "INCONCLUSIVE UNSTABLE",
        (YES, {**dict.fromkeys(ARMS, answer(gap=0.05)), **hits(near_tie())}),
        (YES, QUIET),
        (YES, QUIET),
        policy=Policy(lossy_bound_nat=0.5),
    ),
    mixed(
        "ten groups, one noisy when cold, all saved wrong",
        "INCONCLUSIVE ALIGNMENT_UNPROVEN",
        *[(YES, SAVED_WRONG)] * 9,
        (YES, {**SAVED_WRONG, **COLD_LOUD}),
    ),
)


def unequal(name: str, required: str, answers: Given) -> Case:
    """An aligned group whose local hits are shorter than its external ones, beside two quiet ones."""
    groups = [group_plan(f"g{number}", aligned=True) for number in range(3)]
    groups[0] = replace(groups[0], expected_local=48)
    local = dict.fromkeys(LOCALS, counters(LENGTH - 48, 48, 0))
    return of_run(name, required, run_plan(*groups), history(groups[0], answers, local), *map(history, groups[1:]))


NO_REPEATS = [group_plan(f"g{number}", aligned=True, arms=ARMS - {Arm.COLD_REPEAT}) for number in range(3)]
UNEQUAL = (
    unequal("longer external hits that drift", "FAIL DRIFT", both(answer(shift=0.02))),
    unequal("shorter local hits that drift", "INCONCLUSIVE UNSTABLE", dict.fromkeys(LOCALS, answer(shift=0.02))),
    of_run(
        "aligned, all saved wrong, and no cold repeats",
        "PASS",
        run_plan(*NO_REPEATS),
        *(history(group, SAVED_WRONG) for group in NO_REPEATS),
    ),
)


def at_lengths(name: str, required: str, readings: Readings, answers: Given, aligned: bool = True) -> Case:
    """A group with other hit lengths beside two quiet ones."""
    groups = [group_plan(f"g{number}", aligned=aligned) for number in range(3)]
    rest = [history(group) for group in groups[1:]]
    return of_run(name, required, run_plan(*groups), history(groups[0], answers, readings), *rest)


SHORTER = counters(LENGTH - 78, 0, 78)
LENGTHS = (
    at_lengths("shorter external hits", "PASS", dict.fromkeys(SUBJECTS, SHORTER), both(answer(shift=0.02))),
    at_lengths(
        "shorter external hits, other tokens", "FAIL DIVERGED", dict.fromkeys(SUBJECTS, SHORTER), both(answer(OTHER))
    ),
    at_lengths(
        "shorter local hits",
        "INCONCLUSIVE UNSTABLE",
        dict.fromkeys(LOCALS, counters(LENGTH - 78, 78, 0)),
        hits(answer(shift=0.02)),
    ),
    at_lengths(
        "all hits shorter",
        "FAIL DRIFT",
        {**dict.fromkeys(LOCALS, counters(LENGTH - 78, 78, 0)), **dict.fromkeys(SUBJECTS, SHORTER)},
        both(answer(shift=0.02)),
    ),
    at_lengths(
        "a local hit of unknown length",
        "INCONCLUSIVE COUNTERS_UNREADABLE UNSTABLE",
        {Arm.LOCAL: None},
        both(answer(shift=0.02)),
    ),
)


def loud(shift: float) -> Answers:
    return {Arm.LOCAL_REPEAT: answer(shift=-shift)}


def cold_loud(shift: float) -> Answers:
    return {Arm.COLD_REPEAT: answer(shift=-shift)}


def flipping(gap: float) -> Answers:
    """A local repeat that is a near tie."""
    tied: Answers = dict.fromkeys(ARMS, answer(gap=gap))
    other = replace(near_tie(), text="again")
    return {**tied, Arm.LOCAL_REPEAT: other}


def pulling(before: tuple[float, float], after: tuple[float, float]) -> Answers:
    """A local repeat that flips from token 104 to 1104; each side with its logprobs of the two."""
    left = listed(4, (104, 1104), before)
    right = listed(4, (1104, 104), (after[1], after[0]), answer((*TOKENS[:4], 1104, *TOKENS[5:])))
    return {**dict.fromkeys(ARMS, left), Arm.LOCAL_REPEAT: right}


def pulled() -> Answers:
    """Loads that flip from token 104 to 1104, 0.6 nat apart, and a local repeat that drifts by 0.3."""
    left = listed(4, (104, 1104), (-0.5, -1.1))
    right = listed(4, (1104, 104), (-0.5, -1.1), answer((*TOKENS[:4], 1104, *TOKENS[5:])))
    return {**dict.fromkeys(ARMS, left), **both(right), Arm.LOCAL_REPEAT: listed(4, (104, 1104), (-0.8, -1.4))}


# Another token that is in nobody's list, 0.01 nat off up to there.
WILD = answer((*TOKENS[:4], 9, *TOKENS[5:]), shift=-0.01)


# The first group's external hits drift; its own repeat is not exact, so the envelope decides.
def enveloped(name: str, required: str, shift: float, *others: Given, own: float = 0.01) -> Case:
    return neighbours(f"envelope: {name}", required, {**loud(own), **both(answer(shift=-shift))}, *others)


ENVELOPE = (
    enveloped("the baseline's gap informs", "PASS", 0.28, *[pulling((-0.5, -0.6), (-0.55, -0.55))] * 8),
    enveloped("the subject's gap informs", "PASS", 0.28, *[pulling((-0.55, -0.55), (-0.6, -0.5))] * 8),
    enveloped(
        "flips to tokens that are not listed inform by their drift",
        "PASS",
        0.45,
        *[{Arm.LOCAL_REPEAT: answer(OTHER)}] * 8,
    ),
    neighbours(
        "envelope: neighbours without logprobs",
        "PASS",
        *[dict.fromkeys(ARMS, bare(answer()))] * 9,
        policy=Policy(accept_ids_only=True),
    ),
    enveloped("the cap where seven inform it", "PASS", 0.45, *[loud(0.02)] * 7),
    enveloped("three times the loudest of eight", "FAIL DIVERGED", 0.45, *[loud(0.02)] * 8),
    enveloped("at least the floor", "PASS", 0.0999, *[loud(0.02)] * 8),
    enveloped("just over the floor", "FAIL DIVERGED", 0.11, *[loud(0.02)] * 8),
    enveloped("inside three times the loudest", "PASS", 0.29, loud(0.1), *[loud(0.02)] * 7),
    enveloped("beyond three times the loudest", "FAIL DIVERGED", 0.31, loud(0.1), *[loud(0.02)] * 7),
    enveloped("at most the cap", "INCONCLUSIVE UNSTABLE", 0.55, *[loud(0.4)] * 8),
    enveloped("repeats of two come near the cap", "INCONCLUSIVE UNSTABLE", 0.55, loud(0.4), loud(0.2)),
    enveloped("repeats of one come near the cap", "FAIL DIVERGED", 0.55, loud(0.4)),
    enveloped("three times the loudest repeat", "INCONCLUSIVE UNSTABLE", 1.19, *[loud(0.4)] * 8),
    enveloped("beyond three times the loudest repeat", "FAIL DIVERGED", 1.21, *[loud(0.4)] * 8),
    enveloped("cold repeats near the cap", "INCONCLUSIVE UNSTABLE", 0.55, *[cold_loud(0.4)] * 2),
    enveloped("repeats that are no near tie at all", "INCONCLUSIVE UNSTABLE", 9.0, *[{Arm.LOCAL_REPEAT: WILD}] * 2),
    neighbours(
        "envelope: nor are loads",
        "INCONCLUSIVE UNSTABLE",
        {**loud(0.01), **both(WILD)},
        *[{Arm.LOCAL_REPEAT: WILD}] * 2,
    ),
    neighbours(
        "envelope: cold against hits leaves nothing undecided",
        "FAIL DIVERGED",
        hits(answer(shift=-0.55)),
        hits(answer(shift=-0.55)),
    ),
    neighbours("envelope: a flip beyond it", "INCONCLUSIVE UNSTABLE", pulled(), loud(0.3)),
    neighbours("envelope: a flip beyond it, strict", "FAIL TOKENS_DIFFER", pulled(), loud(0.3), policy=STRICT),
    enveloped("quiet neighbours do not inform", "PASS", 0.45, *[loud(0.02)] * 7, QUIET),
    enveloped("its own noise does not inform", "FAIL DIVERGED", 0.45, *[loud(0.02)] * 8, own=0.3),
    enveloped("cold noise does not inform hits", "FAIL DIVERGED", 0.45, *[cold_loud(0.02)] * 8),
    neighbours(
        "envelope: cold noise informs cold pairs", "FAIL DIVERGED", hits(answer(shift=-0.45)), *[cold_loud(0.02)] * 8
    ),
    neighbours(
        "envelope: noise of hits does not inform cold pairs", "PASS", hits(answer(shift=-0.45)), *[loud(0.02)] * 8
    ),
    neighbours(
        "envelope: local hits inform cold pairs",
        "FAIL DIVERGED",
        hits(answer(shift=-0.45)),
        *[hits(answer(shift=-0.02))] * 8,
    ),
    enveloped("flips inform by their gap", "PASS", 0.28, *[flipping(0.1)] * 8),
)

UNPROVEN_SUBJECT = (
    of_run(
        "envelope: the cap where the path is unproven",
        "INCONCLUSIVE EXTERNAL_MISS",
        run_plan(*(group_plan(f"g{number}") for number in range(9))),
        history(group_plan("g0"), {**loud(0.01), **both(answer(shift=-0.45))}, dict.fromkeys(SUBJECTS, COLD)),
        *(history(group_plan(f"g{number}"), loud(0.02)) for number in range(1, 9)),
    ),
    of_one("garbage on an unproven path", "FAIL DIVERGED", both(answer(OTHER)), dict.fromkeys(SUBJECTS, COLD)),
    of_one(
        "a little drift on an unproven path",
        open_by("EXTERNAL_MISS"),
        both(answer(shift=0.4)),
        dict.fromkeys(SUBJECTS, COLD),
    ),
    of_one("drift on an unproven path", "FAIL DIVERGED", both(answer(shift=-0.7)), dict.fromkeys(SUBJECTS, COLD)),
)

CASES: tuple[Case, ...] = (
    *ALIGNMENT,
    *MIXED,
    *UNEQUAL,
    *LENGTHS,
    *ENVELOPE,
    *UNPROVEN_SUBJECT,
)
