"""What one attempt at one arm is worth: which path its evidence shows, and what speaks against using it."""

from dataclasses import dataclass, replace

from kvgate.domain.deployment import Role
from kvgate.domain.evidence import VOIDING, WEAKENING, Evidence, exercised_problem, read_evidence, transfer_problem
from kvgate.domain.history import DropOutcome
from kvgate.domain.observation import Observation, Outcome
from kvgate.domain.plan import ArmStep, GroupPlan, Plan, Route
from kvgate.domain.probe import Arm, Path
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.record import Attempt, GroupRecord


@dataclass(frozen=True, slots=True)
class Standing:
    """One attempt, weighed.

    ``number`` is the attempt's place, from 0. ``void`` says why it neither acquits nor convicts; ``unproven`` why
    its path is not shown; ``weak`` what else forbids a PASS. ``shape`` is how many prompt tokens were reused,
    None if unknown.
    """

    arm: Arm
    number: int
    endpoint: str
    observation: Observation | None
    evidence: Evidence
    void: Problem | None
    unproven: Problem | None
    weak: tuple[Problem, ...]
    attempts: int = 1
    refusals: int = 0
    refused_with: str = ""

    @property
    def shape(self) -> int | None:
        """Prompt tokens that were reused rather than computed."""
        if self.evidence.local is None or self.evidence.external is None:
            return None
        return self.evidence.local + self.evidence.external

    @property
    def proven(self) -> bool:
        """Whether it came by its path and nothing speaks against using it."""
        return self.observation is not None and self.observation.ok and not self.void and not self.unproven


def weigh(plan: Plan, group: GroupPlan, step: ArmStep, attempt: Attempt, number: int = 0) -> Standing:
    """The standing of one attempt; worked out once, since the plan and the step of an attempt never change."""
    if not isinstance(attempt.weighed, Standing):
        attempt.weighed = _weigh(plan, group, step, attempt, number)
    return attempt.weighed


def _weigh(plan: Plan, group: GroupPlan, step: ArmStep, attempt: Attempt, number: int) -> Standing:
    evidence = read_evidence(
        group.length,
        attempt.before,
        attempt.after,
        attempt.observation,
        plan.by_source_grade,
        attempt.counters_detail,
    )
    expected = group.expected_external if step.path is Path.EXTERNAL else group.expected_local
    unproven = exercised_problem(step.path, expected, evidence, plan.policy)
    if unproven is None and step.path is Path.EXTERNAL:
        unproven = _undropped(step, attempt, evidence)
    # A prefill engine that is asked alone transfers nothing; every other answer was transferred.
    through = plan.route is not Route.DIRECT and plan.deployment.endpoint(step.endpoint).role is not Role.PREFILL
    if unproven is None and through:
        unproven = transfer_problem(group.length, evidence, plan.policy)
    own = group.step(Arm.COLD)
    fresh = step.salt is not None and own is not None and own.salt != step.salt
    if unproven is not None and step.path is Path.COLD and unproven.reason is Reason.NOT_COLD and fresh:
        unproven = Problem(Reason.SALT_IGNORED, unproven.detail)
    weak = [problem for problem in evidence.problems if problem.reason in WEAKENING]
    observation = attempt.observation
    if observation is not None and observation.prompt_echoed is False:
        weak.append(Problem(Reason.PROMPT_CHANGED, "the prompt IDs in the reply are not those sent"))
    cut = _cut_short(observation, plan.max_tokens)
    if cut is not None:
        weak.append(Problem(Reason.IDS_INCOMPLETE, cut))
    return Standing(
        arm=step.arm,
        number=number,
        endpoint=step.endpoint,
        observation=observation,
        evidence=evidence,
        void=_void(attempt, evidence),
        unproven=unproven,
        weak=tuple(weak),
    )


def _cut_short(observation: Observation | None, max_tokens: int) -> str | None:
    """An answer that says it ended at its length limit must have that length, whether or not usage came with it."""
    if observation is None or not observation.ok or observation.finish_reason != "length":
        return None
    count = len(observation.token_ids) if observation.token_ids is not None else None
    if count is None or count >= max_tokens:
        return None
    return f"the answer ended at its length limit of {max_tokens} with {count} token IDs"


def _undropped(step: ArmStep, attempt: Attempt, evidence: Evidence) -> Problem | None:
    """Without counters a drop that was not confirmed leaves the path unknown; with them, they decide."""
    if step.drop_local and attempt.drop is not DropOutcome.DROPPED and evidence.local is None:
        return Problem(Reason.LOCAL_NOT_DROPPED, attempt.drop_detail or "the drop was not confirmed")
    return None


def _void(attempt: Attempt, evidence: Evidence) -> Problem | None:
    for hook in attempt.hooks:
        if hook.exit_code != 0:
            ended = "ran out of time or could not start" if hook.exit_code is None else f"exit {hook.exit_code}"
            last_line = hook.output.strip().splitlines()[-1:] or ["no output"]
            return Problem(Reason.HOOK_FAILED, f"{hook.name}: {ended}: {last_line[0]}")
    if attempt.observation is not None and "recomputed" in attempt.observation.marks:
        return Problem(Reason.RECOMPUTED, "the reply is marked as recomputed")
    return evidence.first(*VOIDING)


# Arms that must be local hits, in the order in which they are sent.
_LOCAL_ARMS = (Arm.LOCAL, Arm.LOCAL_REPEAT, Arm.PREFILL_DIRECT, Arm.PREFILL_DIRECT_REPEAT)


def standing_of(plan: Plan, record: GroupRecord, arm: Arm) -> Standing | None:
    """The standing of an arm: its first proven attempt, else its last; None if it was never tried."""
    step = record.plan.step(arm)
    attempts = record.of(arm)
    if step is None or not attempts:
        return None
    weighed = [weigh(plan, record.plan, step, attempt, number) for number, attempt in enumerate(attempts)]
    if step.path is Path.LOCAL:
        weighed = _before_contamination(plan, record, weighed)
    chosen = next((standing for standing in weighed if standing.proven), weighed[-1])
    refused = [
        each.observation.detail
        for each in weighed
        if each.observation is not None and each.observation.outcome is Outcome.REFUSED
    ]
    return replace(chosen, attempts=len(attempts), refusals=len(refused), refused_with=refused[-1] if refused else "")


def _before_contamination(plan: Plan, record: GroupRecord, weighed: list[Standing]) -> list[Standing]:
    """Local hits after an external load hold what was loaded: they are no baseline (design §3.2)."""
    found: list[Standing] = []
    before = _LOCAL_ARMS[: _LOCAL_ARMS.index(weighed[0].arm)]
    loaded = any(standing.evidence.external for standing in repeats_of(plan, record, before))
    for standing in weighed:
        problem = Problem(Reason.BASELINE_NOT_LOCAL, "an earlier attempt loaded this prompt from outside")
        found.append(replace(standing, unproven=standing.unproven or problem) if loaded else standing)
        loaded = loaded or bool(standing.evidence.external)
    return found


def repeats_of(plan: Plan, record: GroupRecord, arms: tuple[Arm, ...]) -> tuple[Standing, ...]:
    """Every attempt at these arms that got an answer and is not void, arm by arm, oldest first."""
    found: list[Standing] = []
    for arm in arms:
        step = record.plan.step(arm)
        if step is not None:
            found += [weigh(plan, record.plan, step, each, number) for number, each in enumerate(record.of(arm))]
    return tuple(each for each in found if each.observation is not None and each.observation.ok and not each.void)
