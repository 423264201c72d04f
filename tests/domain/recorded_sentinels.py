"""Histories with a sentinel: one prompt that is computed afresh before, between and after two groups."""

from collections.abc import Sequence
from dataclasses import replace

from kvgate.domain.history import Entry, GroupStarted, ProbeAnswered, ProbeSent, RunCompleted, RunStopped
from kvgate.domain.observation import Observation
from kvgate.domain.plan import ArmStep, GroupPlan, Purpose, Route
from kvgate.domain.policy import Policy, PolicyName
from kvgate.domain.probe import Arm, Path, Probe, probe_id
from kvgate.domain.reasons import Problem, Reason
from tests.domain.judging import OTHER
from tests.domain.making import TOKENS, answer, group_plan, lost, run_plan, with_usage
from tests.domain.recorded_case import Case, Given, bare, history, of_run, text_only

STRICT = Policy(name=PolicyName.STRICT)
# Groups in whose place a sentinel's answer stands: two answers, a group, one answer, the other group, two answers.
PLACES = (0, 0, 1, 2, 2)
SAME, WRONG = answer(), answer(OTHER)


def sentinel(endpoint: str = "a") -> GroupPlan:
    step = ArmStep(Arm.SENTINEL, endpoint, Path.COLD, "a")
    group = group_plan(f"sentinel-{endpoint}", nonce="777777777777")
    return replace(group, purpose=Purpose.SENTINEL, steps=(step,), pairs=())


def asked(group: GroupPlan, number: int, said: Observation | None) -> list[Entry]:
    name, endpoint = probe_id(group.id, Arm.SENTINEL, number), group.steps[0].endpoint
    probe = Probe(name, group.id, Arm.SENTINEL, number, endpoint, None, group.length, len(TOKENS), "")
    return [ProbeSent(0.0, probe), *([ProbeAnswered(0.0, name, said)] if said is not None else [])]


def timeline(
    name: str,
    required: str,
    said: Sequence[Observation | None],
    *,
    policy: Policy | None = None,
    first: Given | None = None,
    second: Given | None = None,
    other: Sequence[Observation] = (),
    places: Sequence[int] = PLACES,
) -> Case:
    """Two groups, and what the sentinel said around them; ``other`` is what another endpoint's sentinel said."""
    groups = group_plan("g1"), group_plan("g2", nonce="000000000002")
    sentinels = [(sentinel(), said), *([(sentinel("b"), other)] if other else [])]
    found: list[Entry] = [GroupStarted(0.0, each) for each, _ in sentinels]
    for place in range(len(groups) + 1):
        for each, answers in sentinels:
            for number, (where, observation) in enumerate(zip(places, answers, strict=False)):
                found += asked(each, number, observation) if where == place else []
        if place < len(groups):
            found += history(groups[place], (first, second)[place])
    plan = replace(run_plan(*groups, policy=policy), sentinels=tuple(each for each, _ in sentinels))
    return of_run(f"sentinel: {name}", required, plan, found)


def behind(case: Case) -> Case:
    """The same, sent in two legs."""
    return replace(case, plan=replace(case.plan, route=Route.TWO_LEG))


def cut_off(name: str, required: str, *ends: Entry) -> Case:
    """A clean group after two answers, and an end before any other."""
    group, watched = group_plan("g1"), sentinel()
    begun = [GroupStarted(0.0, watched), *asked(watched, 0, SAME), *asked(watched, 1, SAME)]
    plan = replace(run_plan(group), sentinels=(watched,))
    return Case(f"sentinel: {name}", plan, (*begun, *history(group), *ends), required)


CHANGED, UNSTEADY, MISSING = "FAIL ANSWERS_CHANGED", "INCONCLUSIVE UNSTABLE", "INCONCLUSIVE OBSERVATION_MISSING"
SLIGHTLY, FURTHER, FAR = answer(shift=0.05), answer(shift=0.2), answer(shift=0.6)
GREEDY = answer(text="the number is 000000000002")
LATE, BROKEN = [SAME, SAME, SAME, WRONG, WRONG], {Arm.EXTERNAL: WRONG, Arm.EXTERNAL_REPEAT: WRONG}
LEAKING = answer(OTHER, text="000000000001")
OVER = RunStopped(1.0, Problem(Reason.BUDGET_EXHAUSTED, "over"))
TWO_WRONG = (*asked(sentinel(), 2, WRONG), *asked(sentinel(), 3, WRONG))
CASES = (
    timeline("what fails as it changes", f"{CHANGED} DIVERGED", LATE, second=BROKEN),
    timeline("what failed before", f"{CHANGED} DIVERGED", LATE, first=BROKEN),
    timeline("what fails on both sides of it", f"{CHANGED} DIVERGED", LATE, first=BROKEN, second=BROKEN),
    behind(timeline("what fails as it changes, in two legs", f"{CHANGED} DIVERGED", LATE, second=BROKEN)),
    timeline("a leak as it changes", "FAIL LEAK ANSWERS_CHANGED", LATE, second={Arm.EXTERNAL: LEAKING}),
    timeline("alike throughout", "PASS", [SAME] * 5),
    timeline("alike throughout, strict", "PASS", [SAME] * 5, policy=STRICT),
    timeline("wrong at the end", CHANGED, [SAME, SAME, SAME, WRONG, WRONG]),
    timeline("wrong at the end, strict", CHANGED, [SAME, SAME, SAME, WRONG, WRONG], policy=STRICT),
    timeline("wrong after the first group", CHANGED, [SAME, SAME, WRONG, WRONG, WRONG]),
    timeline("wrong in different ways", CHANGED, [SAME, SAME, SAME, WRONG, answer((*TOKENS[:3], *range(400, 413)))]),
    timeline("the last one only", UNSTEADY, [SAME, SAME, SAME, SAME, WRONG]),
    timeline("one in between only", UNSTEADY, [SAME, SAME, WRONG, SAME, SAME]),
    timeline("right again at last", UNSTEADY, [SAME, SAME, WRONG, WRONG, SAME]),
    timeline("from the second on", UNSTEADY, [SAME, WRONG, WRONG, WRONG, WRONG]),
    timeline("drifts a little", "PASS", [SAME, SAME, SAME, SLIGHTLY, SLIGHTLY]),
    timeline("drifts further, as where others came in meanwhile", "PASS", [SAME, SAME, SAME, FURTHER, FURTHER]),
    timeline("drifts far, after exact answers", CHANGED, [SAME, SAME, SAME, FAR, FAR]),
    timeline("drifts further, after inexact answers", "PASS", [SAME, SLIGHTLY, SAME, FURTHER, FURTHER]),
    timeline("drifts far, after inexact answers", CHANGED, [SAME, SLIGHTLY, SAME, FAR, FAR]),
    timeline("drifts far once, after inexact answers", UNSTEADY, [SAME, SLIGHTLY, FAR, SAME, SAME]),
    timeline("no logprobs, alike", "PASS", [bare(SAME)] * 5),
    timeline("no logprobs at the end", UNSTEADY, [bare(SAME), bare(SAME), bare(SAME), bare(WRONG), bare(WRONG)]),
    timeline("text only, alike", "PASS", [text_only("a b")] * 5),
    timeline("text only, another", UNSTEADY, [*[text_only("a b")] * 3, text_only("c"), text_only("c")]),
    timeline("held against the first answer", CHANGED, [SAME, SLIGHTLY, SAME, *[answer(shift=0.52)] * 2]),
    timeline("one never answered", "PASS", [SAME, SAME, None, SAME, SAME]),
    timeline("one lost", "PASS", [SAME, SAME, lost(), SAME, SAME]),
    timeline("none after the last group", MISSING, [*[SAME] * 4, lost(), lost()], places=(0, 0, 0, 1, 2, 2)),
    timeline("one after the last group", "PASS", [*[SAME] * 4, lost(), SAME], places=(0, 0, 0, 1, 2, 2)),
    timeline("two lost", MISSING, [SAME, SAME, lost(), lost(), SAME]),
    timeline("wrong at the end, one lost", CHANGED, [SAME, SAME, lost(), WRONG, WRONG]),
    timeline("too few were wrong at the end", UNSTEADY, [SAME, SAME, SAME, WRONG, lost()]),
    timeline("IDs that do not fit usage do not count", MISSING, [SAME, SAME, SAME, *[with_usage(WRONG, 3)] * 2]),
    timeline("its answer holds another's nonce", "FAIL LEAK", [SAME, SAME, SAME, SAME, GREEDY]),
    timeline("the second endpoint's is wrong", CHANGED, [SAME] * 5, other=[SAME, SAME, SAME, WRONG, WRONG]),
    timeline("the second endpoint's is unsteady", UNSTEADY, [SAME] * 5, other=[SAME, SAME, WRONG, SAME, SAME]),
    timeline("the second endpoint's was not asked enough", MISSING, [SAME] * 5, other=[SAME, SAME, SAME]),
    cut_off("interrupted", "INCONCLUSIVE INTERRUPTED"),
    # What is for good nobody knows before the end.
    cut_off("interrupted after two wrong answers", "INCONCLUSIVE INTERRUPTED UNSTABLE", *TWO_WRONG),
    cut_off(
        "stopped in a group after two wrong answers",
        "INCONCLUSIVE BUDGET_EXHAUSTED OBSERVATION_MISSING UNSTABLE",
        *TWO_WRONG,
        *history(group_plan("g2", nonce="000000000002"))[:3],
        OVER,
    ),
    cut_off("stopped after two wrong answers", f"{CHANGED} BUDGET_EXHAUSTED", *TWO_WRONG, OVER),
    cut_off("stopped", "INCONCLUSIVE BUDGET_EXHAUSTED", OVER),
    cut_off("completed all the same", MISSING, RunCompleted(1.0)),
    of_run(
        "sentinel: never asked",
        MISSING,
        replace(run_plan(group_plan("g1")), sentinels=(sentinel(),)),
        history(group_plan("g1")),
    ),
)


def between(case: Case) -> tuple[int, int, tuple[str, ...]] | None:
    """What a case's judgement says of the onset."""
    found = case.judged().onset
    return (found.right_until, found.wrong_from, found.groups) if found is not None else None
