"""Histories in which several pairs fail at once, each with the one part that they must be laid at."""

from dataclasses import dataclass, replace

from kvgate.domain.plan import ArmStep, Forcing, GroupPlan, PartSize, Purpose
from kvgate.domain.probe import Arm, Part, Path
from kvgate.domain.recipe import Parts, arm_steps, continuation_steps, pairs_of
from tests.domain.judging import OTHER, SUBJECTS
from tests.domain.making import ARMS, LENGTH, TOKENS, Answers, answer, counters, group_plan, run_plan
from tests.domain.recorded_case import Case, Readings, history, of_run
from tests.domain.recorded_gateway import DIRECT, HIT, passed, passed_on, plan_of, split

GATEWAY = (Arm.COLD, Arm.COLD_REPEAT, Arm.LOCAL, Arm.LOCAL_REPEAT)
TWO_LEG = (Arm.TWO_LEG, Arm.TWO_LEG_REPEAT)
THIRD = (*TOKENS[:2], *range(300, 314))
LEAKED = answer(OTHER, text="222222222222")


@dataclass(frozen=True, slots=True)
class Laid:
    """A case, and which part each failing pair speaks against, by its subject."""

    case: Case
    parts: dict[str, str]


def group(name: str = "g1", nonce: str = "111111111111") -> GroupPlan:
    parts = Parts("g", "g", "p", two_leg="d")
    steps = arm_steps(Forcing.RESET_LOCAL, parts, ARMS, salts_honoured=True, reader_drops=True)
    made = group_plan(name, nonce=nonce)
    return replace(made, steps=steps, pairs=pairs_of(steps), expected_local=HIT, expected_external=HIT)


def each(arms: tuple[Arm, ...], tokens: tuple[int, ...]) -> Answers:
    return dict.fromkeys(arms, answer(tokens))


def laid(name: str, required: str, answers: Answers, parts: dict[str, str], others: Answers | None = None) -> Laid:
    """A group behind a gateway beside another, whose nonce a leak would show."""
    made, other = group(), group("g2", "222222222222")
    legs: Readings = {arm: passed_on(Path.LOCAL) for arm in TWO_LEG}
    alone: Readings = dict.fromkeys(DIRECT, counters(*split(Path.LOCAL)))
    histories = [passed(one, given, {**legs, **alone}) for one, given in ((made, answers), (other, others or {}))]
    return Laid(of_run(f"laid: {name}", required, plan_of(made, other), *histories), parts)


def turn() -> GroupPlan:
    """A group of a prompt and its continuation, at one engine."""
    steps: tuple[ArmStep, ...] = continuation_steps(Parts("a", "a"), salts_honoured=True, drops=True)
    made = group_plan("c1")
    sizes = (PartSize(Part.CONTINUED, LENGTH + 64, LENGTH + 32, LENGTH + 32),)
    return replace(made, purpose=Purpose.CONTINUATION, steps=steps, pairs=pairs_of(steps), sizes=sizes)


def continued(name: str, required: str, answers: Answers, parts: dict[str, str], others: Answers | None = None) -> Laid:
    whole, reused = LENGTH + 64, LENGTH + 32
    by_path = {
        Path.COLD: counters(whole, 0, 0, external_queries=whole),
        Path.LOCAL: counters(whole - reused, reused, 0, external_queries=whole - reused),
        Path.EXTERNAL: counters(whole - reused, 0, reused, external_queries=whole),
    }
    made = turn()
    readings: Readings = {step.arm: by_path[step.path] for step in made.steps if step.part is Part.CONTINUED}
    beside = group_plan("g1")
    return Laid(
        of_run(
            f"laid: {name}", required, run_plan(beside, made), history(beside, others), history(made, answers, readings)
        ),
        parts,
    )


WRONG_EVERYWHERE = each((*GATEWAY, *TWO_LEG, *SUBJECTS), OTHER)
WRONG_AT_THE_GATEWAY = each((*GATEWAY, *SUBJECTS), OTHER)
CASES_LAID = (
    laid("the pool alone", "FAIL DIVERGED", each(SUBJECTS, OTHER), {"external": "external path"}),
    laid("the transfer alone", "FAIL DIVERGED", WRONG_EVERYWHERE, {"two_leg": "transfer"}),
    laid("the gateway alone", "FAIL DIVERGED", WRONG_AT_THE_GATEWAY, {"local": "gateway"}),
    laid(
        "the pool, which came through a wrong transfer",
        "FAIL DIVERGED",
        {**WRONG_EVERYWHERE, **each(SUBJECTS, THIRD)},
        {"two_leg": "transfer", "external": "transfer", "external_repeat": "transfer"},
    ),
    laid(
        "the pool, which came through a wrong gateway",
        "FAIL DIVERGED",
        {**WRONG_AT_THE_GATEWAY, **each(SUBJECTS, THIRD)},
        {"local": "gateway", "external": "gateway"},
    ),
    laid(
        "transfer and gateway: the innermost",
        "FAIL DIVERGED",
        {**each(TWO_LEG, OTHER), **each((*GATEWAY, *SUBJECTS), THIRD)},
        {"two_leg": "transfer", "local": "transfer"},
    ),
    laid(
        "a leak is no other part's doing",
        "FAIL LEAK",
        {**WRONG_EVERYWHERE, **dict.fromkeys(SUBJECTS, LEAKED)},
        {"external": "isolation"},
    ),
    laid(
        "a leak stays one beside a wrong transfer",
        "FAIL LEAK DIVERGED",
        {Arm.EXTERNAL: LEAKED},
        {"external": "isolation", "two_leg": "transfer"},
        others=WRONG_EVERYWHERE,
    ),
    continued(
        "what decode wrote, and a pool that is wrong as well",
        "FAIL DIVERGED",
        each((Arm.CONTINUATION_LOCAL, Arm.CONTINUATION_LOCAL_REPEAT, Arm.CONTINUATION), OTHER),
        {"continuation_local": "local path", "external": "external path"},
        others=each(SUBJECTS, THIRD),
    ),
    continued(
        "what decode wrote, and what was loaded of it",
        "FAIL DIVERGED DIVERGED_INTERMITTENT",
        {
            **each((Arm.CONTINUATION_LOCAL, Arm.CONTINUATION_LOCAL_REPEAT), OTHER),
            Arm.CONTINUATION: answer(THIRD),
        },
        {"continuation_local": "local path", "continuation": "local path"},
    ),
)
CASES = tuple(each.case for each in CASES_LAID)
