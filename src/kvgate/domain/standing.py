"""What one attempt at one arm is worth: which path its evidence shows, and what speaks against using it."""

from dataclasses import dataclass, replace

from kvgate.domain.deployment import Role
from kvgate.domain.evidence import (
    VOIDING,
    WEAKENING,
    Beside,
    Evidence,
    by_the_reply,
    exercised_problem,
    read_evidence,
    transfer_problem,
    unconfirmed,
    with_log,
)
from kvgate.domain.history import DropOutcome
from kvgate.domain.observation import EMPTY_BODY, Observation, Outcome
from kvgate.domain.plan import ArmStep, GroupPlan, Plan, length_of
from kvgate.domain.policy import Source
from kvgate.domain.probe import FROM_OUTSIDE, LOCAL_BASELINES, WHILE_AWAY, Arm, Part, Path
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.record import Attempt, GroupRecord


@dataclass(frozen=True, slots=True)
class Standing:
    """One attempt, weighed.

    ``number`` is the attempt's place, from 0. ``void`` says why it neither acquits nor convicts; ``unproven`` why
    its path is not shown; ``weak`` what else forbids a PASS. ``pinned`` is the data-parallel rank that was asked for.
    ``empty`` is whether its refusals were HTTP 200 with nothing in it. ``shape`` is how many prompt tokens were reused,
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
    pinned: int | None = None
    attempts: int = 1
    refusals: int = 0
    refused_with: str = ""
    empty: bool = False

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
    length = length_of(group, step)
    left_off = length - plan.counted_length(length, step.endpoint)
    least, most = attempt.beside
    others = most // plan.churn[0].length if plan.churn else 0
    evidence = read_evidence(
        length,
        attempt.before,
        attempt.after,
        attempt.observation,
        plan.by_source_grade,
        attempt.counters_detail,
        left_off,
        # What prefill leaves off every prompt is counted by nobody.
        Beside(others, max(0, least - left_off * others), most),
    )
    evidence = by_the_reply(evidence, attempt.observation, length, plan.policy)
    if step.arm is Arm.REFERENCE:
        # Whatever else it serves and however it counts: a prompt with a nonce of its own is new to it.
        evidence = replace(evidence, problems=())
    unproven = _unproven(plan, group, step, attempt, evidence)
    # What the log says forbids a PASS, and does not excuse a wrong answer: a failed load may be what made it wrong.
    evidence = with_log(evidence, attempt.log, attempt.probe.id if attempt.probe is not None else "")
    if unproven is None and step.path in FROM_OUTSIDE:
        unproven = unconfirmed(
            plan.policy, evidence, attempt.observation, sum(group.expected(step)), attempt.log_detail
        )
    if unproven is not None and unproven.reason is Reason.EXTERNAL_MISS:
        unproven = evidence.first(Reason.LOAD_FAILED) or unproven
    # That loads fail while the pool is away is what is asked for.
    expected = (Reason.LOAD_FAILED,) if step.arm in WHILE_AWAY else ()
    weak = [each for each in evidence.problems if each.reason in WEAKENING and each.reason not in expected]
    observation, void = attempt.observation, _void(plan, step, attempt, evidence)
    if observation is not None and observation.prompt_echoed is False:
        # Counters that do not add up are no wonder then, and nobody else's doing.
        unproven = Problem(Reason.PROMPT_CHANGED, "the prompt IDs in the reply are not those sent")
        void = None if void is not None and void.reason is Reason.FOREIGN_TRAFFIC else void
    cut = _cut_short(observation, plan.max_tokens)
    if cut is not None:
        weak.append(Problem(Reason.IDS_INCOMPLETE, cut))
    return Standing(
        arm=step.arm,
        number=number,
        endpoint=step.endpoint,
        observation=observation,
        evidence=evidence,
        void=void,
        unproven=unproven,
        weak=tuple(weak),
        pinned=step.rank,
    )


def _unproven(plan: Plan, group: GroupPlan, step: ArmStep, attempt: Attempt, evidence: Evidence) -> Problem | None:
    """Why the attempt is not shown to have come by its path, or None if it is."""
    if step.arm is Arm.REFERENCE and not (evidence.local or evidence.external):
        return None
    found = exercised_problem(step.path, group.expected(step), evidence, plan.policy)
    if found is None and step.path is Path.EXTERNAL:
        found = _undropped(step, attempt, evidence)
    if found is None and step.part is Part.CONTINUED and step.path is not Path.COLD:
        found = _not_decodes(group, step, evidence)
    # A prefill engine that is asked alone transfers nothing; every other answer was transferred.
    if found is None and plan.transfers(step.endpoint):
        found = transfer_problem(length_of(group, step), evidence, plan.policy)
    company = plan.company(group, step)
    if found is None and attempt.company < company:
        found = Problem(Reason.PRESSURE_MISSING, f"{attempt.company} of {company} requests were in flight beside it")
    if found is None:
        return None
    if found.reason is Reason.NOT_COLD and step.arm in WHILE_AWAY:
        return Problem(Reason.OUTAGE_MISSING, found.detail)
    if found.reason in (Reason.EXTERNAL_MISS, Reason.PATH_NOT_EXERCISED) and step.arm is Arm.RECOVERED:
        return Problem(Reason.NOT_RECOVERED, found.detail)
    if found.reason is Reason.BASELINE_NOT_LOCAL and step.arm not in LOCAL_BASELINES:
        return Problem(Reason.PATH_NOT_EXERCISED, found.detail)
    if found.reason is Reason.NOT_COLD and _under_fresh_salt(group, step):
        return Problem(Reason.SALT_IGNORED, found.detail)
    return found


def _not_decodes(group: GroupPlan, step: ArmStep, evidence: Evidence) -> Problem | None:
    """Why what was reused is not what decode wrote: no more than the prompt, or more than the answer can have left."""
    reused, most = (evidence.local or 0) + (evidence.external or 0), sum(group.expected(step))
    if group.length < reused <= most:
        return None
    detail = f"{reused} tokens were reused, of which decode wrote those from {group.length} to {most}"
    return Problem(Reason.PATH_NOT_EXERCISED, detail)


def _under_fresh_salt(group: GroupPlan, step: ArmStep) -> bool:
    own = group.step(Arm.COLD)
    return step.salt is not None and own is not None and own.salt != step.salt


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


def _void(plan: Plan, step: ArmStep, attempt: Attempt, evidence: Evidence) -> Problem | None:
    for hook in attempt.hooks:
        if hook.exit_code != 0:
            ended = "ran out of time or could not start" if hook.exit_code is None else f"exit {hook.exit_code}"
            last_line = hook.output.strip().splitlines()[-1:] or ["no output"]
            return Problem(Reason.HOOK_FAILED, f"{hook.name}: {ended}: {last_line[0]}")
    if attempt.observation is not None and "recomputed" in attempt.observation.marks:
        return Problem(Reason.RECOMPUTED, "the reply is marked as recomputed")
    return _off_rank(plan, step, evidence) or evidence.first(*VOIDING)


def _off_rank(plan: Plan, step: ArmStep, evidence: Evidence) -> Problem | None:
    """Another rank than was asked for, by the arm or, leg by leg, by the endpoint; a gateway chooses for itself."""
    endpoints = {endpoint.name: endpoint for endpoint in plan.deployment.endpoints}
    asked = endpoints.get(step.endpoint)
    if asked is not None and asked.role is Role.GATEWAY:
        return None
    for served in (evidence.rank, evidence.decode_rank):
        name, _, rank = (served or "").rpartition("/")
        if name not in endpoints:
            name, rank = step.endpoint, served or ""
        pinned = endpoints[name].rank if name in endpoints else None
        wanted = step.rank if step.rank is not None else pinned
        if served is not None and wanted is not None and rank != str(wanted):
            return Problem(Reason.RANK_CHANGED, f"{name}: rank {wanted} was asked for, rank {rank} served")
    return None


def standing_of(plan: Plan, record: GroupRecord, arm: Arm) -> Standing | None:
    """The standing of an arm: its first proven attempt, else its last; None if it was never tried."""
    step = record.plan.step(arm)
    attempts = record.of(arm)
    if step is None or not attempts:
        return None
    weighed = [weigh(plan, record.plan, step, attempt, number) for number, attempt in enumerate(attempts)]
    if step.path is Path.COLD:
        weighed = _after_losses(weighed)
    if arm in LOCAL_BASELINES:
        weighed = _before_contamination(plan, record, weighed)
    if arm is Arm.CONTINUATION:
        weighed = _until_computed(weighed)
    if step.path in FROM_OUTSIDE and step.part is Part.WHOLE:
        weighed = [_timed(plan, record, each) for each in weighed]
    chosen = next((standing for standing in weighed if standing.proven), weighed[-1])
    refused = [
        each.observation
        for each in weighed
        if each.observation is not None and each.observation.outcome is Outcome.REFUSED
    ]
    if not refused:
        return replace(chosen, attempts=len(attempts))
    return replace(
        chosen,
        attempts=len(attempts),
        refusals=len(refused),
        refused_with=refused[-1].detail,
        empty=EMPTY_BODY in refused[-1].marks,
    )


# A hit that is said to have been a miss, and yet took less than this share of the cold run's time, is worth a word.
_QUICK = 0.5


def _timed(plan: Plan, record: GroupRecord, standing: Standing) -> Standing:
    """The same standing, held against the cold run's time to the first token: it corroborates, and proves nothing."""
    cold = next((each.observation for each in record.of(Arm.COLD) if each.ok), None)
    slow, quick = _first_token(cold), _first_token(standing.observation)
    ratio = quick / slow if slow and quick is not None else None
    found, policy = standing.unproven, plan.policy
    if found is None and Source.FIRST_TOKEN in policy.required_sources:
        if ratio is None or ratio > policy.first_token_ratio:
            took = "is not known" if ratio is None else f"took {ratio:.2f} of the cold run's time"
            detail = f"policy.required_sources: the first token {took}, more than {policy.first_token_ratio:g}"
            return replace(standing, unproven=Problem(Reason.EVIDENCE_MISSING, detail))
    elif found is not None and ratio is not None:
        return replace(standing, unproven=_with_a_word(found, ratio))
    return standing


def _with_a_word(found: Problem, ratio: float) -> Problem:
    """A miss that came as soon as a hit is told to be one."""
    if found.reason not in _MISSES or ratio >= _QUICK:
        return found
    return Problem(found.reason, f"{found.detail}; yet the first token took {ratio:.2f} of the cold run's time")


_MISSES = (Reason.EXTERNAL_MISS, Reason.PATH_NOT_EXERCISED, Reason.SENSOR_CONFLICT)


def _first_token(observation: Observation | None) -> float | None:
    return observation.timing.first_token_s if observation is not None and observation.timing is not None else None


def _until_computed(weighed: list[Standing]) -> list[Standing]:
    """What an attempt did not load it computed and stored: later ones load that, and not what decode wrote."""
    missed = next((number for number, each in enumerate(weighed) if each.unproven is not None), len(weighed))
    why = Problem(Reason.PATH_NOT_EXERCISED, "an earlier attempt computed and stored what decode had written")
    later = [replace(each, unproven=each.unproven or why) for each in weighed[missed + 1 :]]
    return [*weighed[: missed + 1], *later]


def _after_losses(weighed: list[Standing]) -> list[Standing]:
    """An attempt that was lost may have been computed all the same: what the next one finds is its own."""
    found: list[Standing] = []
    lost: Standing | None = None
    for standing in weighed:
        hit = standing.unproven is not None and standing.unproven.reason in (Reason.NOT_COLD, Reason.SALT_IGNORED)
        if lost is not None and hit:
            told = lost.observation.detail if lost.observation is not None else "cut off"
            problem = Problem(Reason.OBSERVATION_MISSING, f"the first attempt was lost ({told}), the next found its KV")
            found.append(replace(standing, unproven=problem))
            continue
        if standing.observation is None or not standing.observation.ok:
            lost = standing
        found.append(standing)
    return found


def _before_contamination(plan: Plan, record: GroupRecord, weighed: list[Standing]) -> list[Standing]:
    """Local hits after an external load hold what was loaded: they are no baseline (design §3.2)."""
    found: list[Standing] = []
    before = LOCAL_BASELINES[: LOCAL_BASELINES.index(weighed[0].arm)]
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
