"""Histories with canaries: prompts sent all at once, whose answers may belong to each other and nothing else."""

from collections.abc import Mapping
from dataclasses import replace

from kvgate.domain.history import Entry, GroupStarted, ProbeAnswered, ProbeSent, RunCompleted, RunStopped
from kvgate.domain.observation import Observation
from kvgate.domain.plan import ArmStep, GroupPlan, Purpose
from kvgate.domain.policy import Policy, PolicyName
from kvgate.domain.probe import Arm, Path, Probe, probe_id
from kvgate.domain.reasons import Problem, Reason
from tests.domain.judging import OTHER
from tests.domain.making import TOKENS, answer, group_plan, lost, refused, run_plan
from tests.domain.recorded_case import Case, history, of_run

STEP = ArmStep(Arm.CANARY, "a", Path.COLD, "a")
STOPPED = RunStopped(1.0, Problem(Reason.BUDGET_EXHAUSTED, "over"))
STRICT = Policy(name=PolicyName.STRICT)


def canary(number: int) -> GroupPlan:
    group = group_plan(f"canary{number}", nonce=str(number) * 12)
    return replace(group, purpose=Purpose.CANARY, steps=(STEP,), pairs=(), prompt_sha256=f"sha{number}")


CANARIES = tuple(map(canary, (1, 2, 3)))


def cut_off(name: str, required: str, *ends: Entry) -> Case:
    """A clean group, and an end before any canary was sent."""
    group = group_plan("g1")
    return Case(name, replace(run_plan(group), canaries=CANARIES), (*history(group), *ends), required)


def sent(
    name: str, required: str, answers: Mapping[tuple[int, int], Observation], policy: Policy | None = None
) -> Case:
    """A clean group, then three canaries sent twice; ``answers`` are the odd ones by canary and wave, from 1 and 0."""
    group = group_plan("g1")
    found: list[Entry] = [GroupStarted(0.0, each) for each in CANARIES]
    for wave in (0, 1):
        for number, each in enumerate(CANARIES, start=1):
            probe_name = probe_id(each.id, Arm.CANARY, wave)
            probe = Probe(
                probe_name, each.id, Arm.CANARY, wave, "a", None, each.length, len(TOKENS), each.prompt_sha256
            )
            found += [
                ProbeSent(0.0, probe),
                ProbeAnswered(0.0, probe_name, answers.get((number, wave), answer())),
            ]
    plan = replace(run_plan(group, policy=policy), canaries=CANARIES)
    return of_run(name, required, plan, history(group), found)


FOREIGN = answer(text=f"the number is {CANARIES[2].nonce}")
CASES = (
    sent("canaries: each with its own answer", "PASS", {}),
    sent("canaries: they may differ from wave to wave", "PASS", {(1, 1): answer(OTHER)}),
    sent("canaries: its own nonce", "PASS", {(3, 0): FOREIGN}),
    sent("canaries: another's nonce", "FAIL LEAK", {(1, 0): FOREIGN}),
    sent("canaries: another's nonce, strict", "FAIL LEAK", {(1, 0): FOREIGN}, policy=STRICT),
    sent("canaries: another's nonce in the second wave", "FAIL LEAK", {(2, 1): FOREIGN}),
    sent("canaries: the answer to another's prompt", "FAIL LEAK", {(2, 1): replace(answer(), echo_sha256="sha3")}),
    sent("canaries: the answer to its own prompt", "PASS", {(3, 1): replace(answer(), echo_sha256="sha3")}),
    cut_off("canaries: interrupted before", "INCONCLUSIVE INTERRUPTED"),
    cut_off("canaries: stopped before", "INCONCLUSIVE BUDGET_EXHAUSTED", STOPPED),
    cut_off("canaries: never sent", "INCONCLUSIVE OBSERVATION_MISSING", RunCompleted(1.0)),
    sent("canaries: one lost", "INCONCLUSIVE OBSERVATION_MISSING", {(2, 0): lost()}),
    sent("canaries: one refused", "INCONCLUSIVE OBSERVATION_MISSING", {(2, 1): refused()}),
)
