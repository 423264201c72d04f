"""Written histories of the decision table: each row beside a control that must not fire."""

from dataclasses import replace

from kvgate.domain.plan import warmup_name
from kvgate.domain.policy import Policy, PolicyName
from kvgate.domain.probe import Arm
from kvgate.domain.prompt import nonce_of
from tests.domain.judging import NOISY, OTHER, SUBJECTS, TIED, both, near_tie
from tests.domain.making import (
    ARMS,
    HIT,
    LENGTH,
    TOKENS,
    Answers,
    answer,
    counters,
    group_plan,
    lost,
    refused,
    run_plan,
    with_usage,
)
from tests.domain.recorded_case import Case, bare, history, of_one, of_run

MINE, THEIRS = group_plan("g1", nonce="111111111111"), group_plan("g2", nonce="222222222222")
STRICT = Policy(name=PolicyName.STRICT)
LOSSY = Policy(lossy_bound_nat=0.01)
TWICE = [refused(), refused()]
TIED_AND_NOISY: Answers = {**TIED, Arm.LOCAL_REPEAT: answer(shift=0.02, gap=0.05)}
BROKEN = replace(answer(), logprobs=(None, *(answer().logprobs or ())[1:]))


def said(text: str, required: str, name: str, arm: Arm = Arm.EXTERNAL) -> Case:
    """A run of two groups in which an arm of the first answers with a text."""
    mine: Answers = {arm: answer(text=text)}
    return of_run(name, required, run_plan(MINE, THEIRS), history(MINE, mine), history(THEIRS, {}))


LEAKS = (
    of_run(
        "row 1: the nonce of a warm-up prompt",
        "FAIL LEAK",
        run_plan(MINE),
        history(MINE, {Arm.EXTERNAL: answer(text=nonce_of(1, warmup_name("a"), ("codebook", "en")))}),
    ),
    said("it is 2222 2222 2222", "FAIL LEAK", "row 1: another group's nonce"),
    said("it is 111111111111", "PASS", "row 1: its own nonce"),
    said("22222222222", "PASS", "row 1: eleven digits of another nonce"),
    said("222222222222", "FAIL LEAK", "row 1: just the nonce"),
    said("2222-2222-2222", "PASS", "row 1: digits that do not stand together"),
    said("222222222222", "FAIL LEAK", "row 1: in a repeat", Arm.COLD_REPEAT),
    of_run(
        "row 1: a leak is told although the answer is void",
        "FAIL LEAK",
        run_plan(MINE, THEIRS),
        history(
            MINE,
            {Arm.EXTERNAL: [answer(text="222222222222"), answer(text="222222222222")]},
            {Arm.COLD: counters(LENGTH, 0, 0, preemptions=1)},
        ),
        history(THEIRS, {}),
    ),
)

MISSING = (
    of_one("row 2: cold lost", "INCONCLUSIVE OBSERVATION_MISSING TIER_NOT_COVERED", {Arm.COLD: lost()}),
    of_one("row 2: local lost", "INCONCLUSIVE OBSERVATION_MISSING TIER_NOT_COVERED", {Arm.LOCAL: lost()}),
    of_one("row 2: external lost", "INCONCLUSIVE OBSERVATION_MISSING TIER_NOT_COVERED", {Arm.EXTERNAL: lost()}),
    of_one("row 2: lost once, then answered", "PASS", {Arm.EXTERNAL: [lost(), answer()]}),
    of_one(
        "row 2: a lost repeat cannot reproduce",
        "FAIL DIVERGED_INTERMITTENT OBSERVATION_MISSING UNSTABLE",
        {Arm.EXTERNAL: answer(OTHER), Arm.EXTERNAL_REPEAT: lost()},
    ),
)

REFUSED = (
    of_one("row 3: subject refused twice", "FAIL SUBJECT_REFUSED", {Arm.EXTERNAL: TWICE}),
    of_one("row 3: repeat refused twice", "FAIL SUBJECT_REFUSED", {Arm.EXTERNAL_REPEAT: TWICE}),
    of_one("row 3: refused once", "INCONCLUSIVE PROBE_REFUSED TIER_NOT_COVERED", {Arm.EXTERNAL: refused()}),
    of_one(
        "row 3: refused, then answered",
        "INCONCLUSIVE PROBE_REFUSED TIER_NOT_COVERED",
        {Arm.EXTERNAL: [refused(), answer()]},
    ),
    of_one(
        "row 3: refused, then lost",
        "INCONCLUSIVE OBSERVATION_MISSING TIER_NOT_COVERED",
        {Arm.EXTERNAL: [refused(), lost()]},
    ),
    of_one("row 3: refused twice, then answered", "FAIL SUBJECT_REFUSED", {Arm.EXTERNAL: [*TWICE, answer()]}),
    of_one("row 3: baseline refused", "INCONCLUSIVE PROBE_REFUSED TIER_NOT_COVERED", {Arm.COLD: TWICE}),
    of_one("row 3: local baseline refused", "FAIL SUBJECT_REFUSED PROBE_REFUSED", {Arm.LOCAL: TWICE}),
    of_one("row 3: everything refused", "INCONCLUSIVE PROBE_REFUSED TIER_NOT_COVERED", dict.fromkeys(ARMS, TWICE)),
)

VOID = (
    of_one(
        "row 4: preempted subjects do not convict",
        "INCONCLUSIVE PREEMPTED TIER_NOT_COVERED",
        both(answer(OTHER)),
        {arm: counters(LENGTH - HIT, 0, HIT, preemptions=1) for arm in SUBJECTS},
    ),
    of_one(
        "row 4: a preempted baseline does not convict",
        "FAIL DIVERGED PREEMPTED",
        both(answer(OTHER)),
        {Arm.LOCAL: counters(LENGTH - HIT, HIT, 0, preemptions=1)},
    ),
    of_one(
        "row 4: a recomputed answer",
        "INCONCLUSIVE RECOMPUTED TIER_NOT_COVERED",
        both(replace(answer(OTHER), marks=("recomputed",))),
    ),
    of_one("row 4: another mark", "PASS", both(replace(answer(), marks=("retried",)))),
    of_one(
        "row 4: a contaminated local baseline",
        "FAIL DIVERGED BASELINE_NOT_LOCAL",
        both(answer(OTHER)),
        {Arm.LOCAL: counters(LENGTH - HIT, HIT - 16, 16)},
    ),
    of_one(
        "row 4: a cold baseline that was a hit",
        "FAIL DIVERGED NOT_COLD",
        both(answer(OTHER)),
        {Arm.COLD: counters(LENGTH - HIT, HIT, 0)},
    ),
    of_one(
        "row 4: an unknown baseline still convicts",
        "FAIL DIVERGED COUNTERS_UNREADABLE",
        both(answer(OTHER)),
        {Arm.LOCAL: None},
    ),
    of_one(
        "row 4: a change of rank",
        "INCONCLUSIVE RANK_CHANGED TIER_NOT_COVERED",
        both(answer(OTHER)),
        {
            arm: replace(
                counters(LENGTH - HIT, 0, HIT, rank="1"),
                readings=(
                    *counters(0, 0, 0, external_queries=0).readings,
                    *counters(LENGTH - HIT, 0, HIT, rank="1").readings,
                ),
            )
            for arm in SUBJECTS
        },
    ),
)

PROTOCOL_FAULTS = (
    ("empty", (), "EMPTY"),
    ("truncated", TOKENS[:10], "TRUNCATED"),
    ("first token doubled", (TOKENS[0], *TOKENS[:-1]), "FIRST_TOKEN"),
    ("first token lost", (*TOKENS[1:], 7), "FIRST_TOKEN"),
    ("repetition", (*TOKENS[:2], *[9] * 14), "DEGENERATE"),
)
# The repeat is answered twice: one answer like the first external one, one right.
AGAIN_OF_TWO = tuple(
    of_one(
        f"row 5: {name}, and again in one of two repeats",
        f"FAIL {reason}",
        {Arm.EXTERNAL: answer(ids), Arm.EXTERNAL_REPEAT: [answer(ids), answer()]},
    )
    for name, ids, reason in PROTOCOL_FAULTS
)
PROTOCOL = (
    *AGAIN_OF_TWO,
    *(of_one(f"row 5: {name}, twice", f"FAIL {reason}", both(answer(ids))) for name, ids, reason in PROTOCOL_FAULTS),
    *(
        of_one(f"row 5: {name}, once", f"INCONCLUSIVE {reason} TIER_NOT_COVERED", {Arm.EXTERNAL: answer(ids)})
        for name, ids, reason in PROTOCOL_FAULTS
    ),
    *(
        of_one(f"row 5: {name}, once, strict", "FAIL TOKENS_DIFFER", {Arm.EXTERNAL: answer(ids)}, policy=STRICT)
        for name, ids, _ in PROTOCOL_FAULTS[1:]
    ),
    of_one(
        "row 5: two kinds of fault",
        "FAIL DIVERGED_INTERMITTENT TRUNCATED",
        {Arm.EXTERNAL: answer(TOKENS[:10]), Arm.EXTERNAL_REPEAT: answer(OTHER)},
    ),
    of_one("row 5: no arm has tokens", "INCONCLUSIVE EMPTY TIER_NOT_COVERED", dict.fromkeys(ARMS, answer(()))),
    of_one(
        "row 5: only the baseline has no tokens",
        "FAIL DIVERGED EMPTY",
        dict.fromkeys((Arm.LOCAL, Arm.LOCAL_REPEAT), answer(())),
    ),
    of_one(
        "row 5: too few IDs",
        "INCONCLUSIVE IDS_INCOMPLETE TIER_NOT_COVERED",
        both(with_usage(answer(), len(TOKENS) + 1)),
    ),
    of_one(
        "row 5: too few IDs of the baseline",
        "INCONCLUSIVE IDS_INCOMPLETE TIER_NOT_COVERED",
        {arm: with_usage(answer(), len(TOKENS) + 1) for arm in (Arm.LOCAL, Arm.LOCAL_REPEAT)},
    ),
    of_one(
        "row 5: too few IDs beside a difference",
        "INCONCLUSIVE IDS_INCOMPLETE TIER_NOT_COVERED",
        both(with_usage(answer(OTHER), len(TOKENS) + 1)),
    ),
    of_one("row 5: repetition after a near tie", "PASS", {**TIED_AND_NOISY, **both(near_tie())}),
)

EXACT = (
    of_one("row 6: other tokens", "FAIL DIVERGED", both(answer(OTHER))),
    of_one("row 6: once", "FAIL DIVERGED_INTERMITTENT UNSTABLE", {Arm.EXTERNAL: answer(OTHER)}),
    of_one("row 6: once, the repeat", "FAIL DIVERGED_INTERMITTENT", {Arm.EXTERNAL_REPEAT: answer(OTHER)}),
    of_one("row 6: a near tie, too", "FAIL DIVERGED", {**TIED, **both(near_tie())}),
    of_one(
        "row 6: another token the second time",
        "FAIL DIVERGED DIVERGED_INTERMITTENT",
        {Arm.EXTERNAL: answer(OTHER), Arm.EXTERNAL_REPEAT: answer((*TOKENS[:4], 300, *OTHER[5:]))},
    ),
    of_one(
        "row 6: another place the second time",
        "FAIL DIVERGED DIVERGED_INTERMITTENT",
        {Arm.EXTERNAL: answer(OTHER), Arm.EXTERNAL_REPEAT: answer((*TOKENS[:5], *OTHER[4:-1]))},
    ),
    of_one(
        "row 6: the same token, then a loop",
        "FAIL DIVERGED DIVERGED_INTERMITTENT DEGENERATE",
        {Arm.EXTERNAL: answer(OTHER), Arm.EXTERNAL_REPEAT: answer((*TOKENS[:4], *[200] * 12))},
    ),
    of_one(
        "row 6: a void repeat does not reproduce",
        "FAIL DIVERGED_INTERMITTENT PREEMPTED UNSTABLE",
        both(answer(OTHER)),
        {Arm.EXTERNAL_REPEAT: counters(LENGTH - HIT, 0, HIT, preemptions=1)},
    ),
    of_one("row 7: a drift of next to nothing", "FAIL DRIFT", both(answer(shift=1e-9, at=3))),
    of_one("row 7: drift", "FAIL DRIFT", both(answer(shift=0.05, at=3))),
    of_one("row 7: drift, once", "INCONCLUSIVE UNSTABLE TIER_NOT_COVERED", {Arm.EXTERNAL: answer(shift=0.05, at=3)}),
    of_one("row 7: no number", "FAIL DIVERGED DRIFT", both(BROKEN)),
    of_one("row 7: declared loss inside its bound", "PASS", both(answer(shift=0.005)), policy=LOSSY),
    of_one("row 7: declared loss at its bound", "PASS", both(answer(shift=-0.5)), policy=Policy(lossy_bound_nat=0.5)),
    of_one("row 7: declared loss beyond its bound", "FAIL DRIFT", both(answer(shift=0.02)), policy=LOSSY),
    of_one(
        "row 6: declared loss that flips a near tie",
        "PASS",
        {**TIED, **both(near_tie())},
        policy=Policy(lossy_bound_nat=0.1),
    ),
    of_one(
        "row 6: declared loss that flips no near tie",
        "FAIL DIVERGED",
        {**TIED, **both(near_tie())},
        policy=Policy(lossy_bound_nat=0.01),
    ),
    of_one(
        "row 7: a loss is declared for the pool, not for local hits",
        "PASS",
        {arm: answer(shift=0.005) for arm in (Arm.LOCAL, Arm.LOCAL_REPEAT, *SUBJECTS)},
        policy=LOSSY,
    ),
)

TOLERANT = (
    of_one(
        "row 8: declared loss beyond the envelope",
        "PASS",
        {**NOISY, **both(answer(shift=-0.7))},
        policy=Policy(lossy_bound_nat=0.8),
    ),
    of_one(
        "row 8: a loss is declared for the pool, not for local hits",
        "FAIL DIVERGED",
        {arm: answer(shift=-0.7) for arm in (Arm.LOCAL, Arm.LOCAL_REPEAT, *SUBJECTS)},
        policy=Policy(lossy_bound_nat=0.8),
    ),
    of_one(
        "row 8: a subject between the baseline and its odd repeat",
        "PASS",
        {Arm.LOCAL_REPEAT: answer(shift=-0.7), **both(answer(shift=-0.35))},
    ),
    of_one(
        "row 8: a control of next to nothing is not exact",
        "PASS",
        {Arm.LOCAL_REPEAT: answer(shift=1e-9), **both(answer(shift=0.02))},
    ),
    of_one("row 9: drift inside the envelope", "PASS", {**NOISY, **both(answer(shift=0.3))}),
    of_one("row 9: drift at the cap", "PASS", {**NOISY, **both(answer(shift=-0.5))}),
    of_one("row 8: drift beyond the envelope", "FAIL DIVERGED", {**NOISY, **both(answer(shift=0.7))}),
    of_one(
        "row 8: drift beyond, once",
        "INCONCLUSIVE UNSTABLE TIER_NOT_COVERED",
        {**NOISY, Arm.EXTERNAL: answer(shift=0.7)},
    ),
    of_one(
        "row 8: drift beyond, once, strict",
        "INCONCLUSIVE UNSTABLE TIER_NOT_COVERED",
        {**NOISY, Arm.EXTERNAL: answer(shift=0.7)},
        policy=STRICT,
    ),
    of_one("row 9: a near tie", "PASS", {**TIED_AND_NOISY, **both(near_tie())}),
    of_one("row 9: a near tie, strict", "FAIL TOKENS_DIFFER", {**TIED_AND_NOISY, **both(near_tie())}, policy=STRICT),
    of_one("row 8: a wide gap", "FAIL DIVERGED", {**NOISY, **both(answer(OTHER))}),
    of_one("row 8: a wide gap, once", "INCONCLUSIVE UNSTABLE TIER_NOT_COVERED", {**NOISY, Arm.EXTERNAL: answer(OTHER)}),
    of_one(
        "row 8: a wide gap, once, strict", "FAIL TOKENS_DIFFER", {**NOISY, Arm.EXTERNAL: answer(OTHER)}, policy=STRICT
    ),
    of_one("row 8: the baseline alone is odd", "INCONCLUSIVE UNSTABLE TIER_NOT_COVERED", {Arm.LOCAL: answer(OTHER)}),
    of_one(
        "row 8: baseline and subject are odd",
        "FAIL DIVERGED UNSTABLE",
        {Arm.LOCAL: answer(OTHER), **both(answer(shift=0.7))},
    ),
    of_one(
        "row 8: a flip without logprobs",
        "INCONCLUSIVE LOGPROBS_UNUSABLE TIER_NOT_COVERED",
        {**dict.fromkeys(ARMS, bare(answer())), **both(bare(answer(OTHER)))},
        policy=Policy(accept_ids_only=True),
    ),
)

CASES: tuple[Case, ...] = (
    of_one("equal answers by proven paths", "PASS"),
    of_one("equal answers by proven paths, strict", "PASS", policy=STRICT),
    *LEAKS,
    *MISSING,
    *REFUSED,
    *VOID,
    *PROTOCOL,
    *EXACT,
    *TOLERANT,
)
