"""What to do next in a group, as a pure function of what was recorded of it so far."""

from dataclasses import dataclass

from kvgate.domain.chance import THRICE
from kvgate.domain.divergence import compare
from kvgate.domain.noise import MARGIN, furthest
from kvgate.domain.observation import Observation, Outcome
from kvgate.domain.plan import ArmStep, Forcing, PairKind, Plan, Purpose
from kvgate.domain.probe import LOCAL_BASELINES, WHILE_AWAY, Arm, Part, Path
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.record import Attempt, GroupRecord
from kvgate.domain.standing import Standing, repeats_of, standing_of, weigh

# A missing external hit may yet come: the put was not finished, or blocks were still held by the last request.
WORTH_WAITING = (Reason.EXTERNAL_MISS, Reason.LOCAL_NOT_DROPPED, Reason.NOT_RECOVERED)
# Reasons for which going on with further groups shows nothing new.
HOPELESS = (
    Reason.PATH_NOT_EXERCISED,
    Reason.EXTERNAL_MISS,
    Reason.LOCAL_NOT_DROPPED,
    Reason.TRANSFER_NOT_EXERCISED,
    Reason.COUNTERS_UNREADABLE,
    Reason.EVIDENCE_MISSING,
    Reason.LOAD_FAILED,
    Reason.HOOK_FAILED,
    Reason.BASELINE_NOT_LOCAL,
    Reason.PRESSURE_MISSING,
)


@dataclass(frozen=True, slots=True)
class Send:
    """The next attempt: at which arm, after dropping the local cache and waiting or not."""

    step: ArmStep
    attempt: int
    drop_local: bool
    wait_s: float
    why_wait: str


def next_send(plan: Plan, record: GroupRecord) -> Send | None:
    """The next attempt in this group, or None if the group is done (or cannot go on)."""
    for step in record.plan.steps:
        attempts = record.of(step.arm)
        if not attempts:
            wait = min(plan.limits.settle_s * record.plan.patience, _longest_wait(plan)) if step.settle else 0.0
            return Send(step, 0, step.drop_local, wait, "asynchronous puts" if wait else "")
        again = _again(plan, record, step, attempts)
        if isinstance(again, Send):
            return again
        if again:
            return None
    return _one_more_repeat(plan, record)


def _again(plan: Plan, record: GroupRecord, step: ArmStep, attempts: list[Attempt]) -> Send | bool:
    """A further attempt at this arm; True if the group ends here; False to go on to the next arm."""
    limits, count = plan.limits, len(attempts)
    last = attempts[-1]
    standing = weigh(plan, record.plan, step, last, count - 1)
    if standing.void is not None:
        return True
    if not last.ok:
        bad = sum(1 for each in attempts if not each.ok)
        retry = Send(step, count, step.drop_local or _drops(plan, step), 0.0, "")
        # A pool that was taken away is brought back by a later arm.
        return retry if bad <= limits.lost_retries else step.arm not in WHILE_AWAY
    if standing.unproven is None:
        return False
    if step.arm is Arm.COLD and record.plan.purpose is not Purpose.SHORT_CONTROL:
        return standing.unproven.reason is Reason.NOT_COLD
    if step.arm in LOCAL_BASELINES and standing.unproven.reason is Reason.BASELINE_NOT_LOCAL:
        if standing.evidence.external:
            # What was loaded now lies in the local cache: no baseline can be had from this prompt any more.
            return True
        # A prompt with another tail would find what its first attempt computed.
        if count < limits.local_attempts and step.part is Part.WHOLE:
            return Send(step, count, False, limits.settle_s, "the local cache")
        return False
    # A reader that missed has computed the prompt and put it there itself: hitting that would prove no sharing.
    same_engine = not plan.forcing.two_readers
    if (
        step.arm in (Arm.EXTERNAL, Arm.RECOVERED)
        and _worth_waiting(plan, standing.unproven.reason)
        and same_engine
        and _drops(plan, step)
    ):
        wait = limits.settle_s * 2.0**count
        waited = sum(limits.settle_s * 2.0**number for number in range(1, count + 1))
        if count < limits.external_attempts and waited <= limits.put_deadline_s:
            return Send(step, count, True, wait, "asynchronous puts")
    return False


def _worth_waiting(plan: Plan, reason: Reason) -> bool:
    """Whether the same arm may come by its path a little later.

    What floods the engine's own cache fills the pool as well. A prompt that is no longer there does not come back.
    """
    flooded = plan.forcing is Forcing.EVICT and reason is Reason.EXTERNAL_MISS
    return reason in WORTH_WAITING and not flooded


def _longest_wait(plan: Plan) -> float:
    return max(plan.limits.settle_s, plan.limits.put_deadline_s)


def _drops(plan: Plan, step: ArmStep) -> bool:
    """Whether the endpoint's local cache can be dropped, so that an external hit can be asked for again."""
    return step.path is Path.EXTERNAL and plan.can_forget(step.endpoint)


# Subjects that are sent again to see a difference again, and the arm that goes before each where there is one.
_REPEATED = {Arm.THIRD: None, Arm.MIXED: Arm.MIXED_HEAD, Arm.BRANCH: None, Arm.CONTINUATION: None}


def _one_more_repeat(plan: Plan, record: GroupRecord) -> Send | None:
    """A further repeat of the subject while one answer differs from its baseline and no other shows it again."""
    step = record.plan.step(Arm.EXTERNAL_REPEAT)
    if step is not None and _drops(plan, step) and len(record.of(step.arm)) < plan.limits.subject_repeats:
        for pair in record.plan.pairs:
            if pair.subject is Arm.EXTERNAL and _may_be_chance(plan, record, pair.baseline):
                return Send(step, len(record.of(step.arm)), True, 0.0, "")
    for pair in record.plan.pairs:
        if pair.subject is Arm.CONTINUATION and not _loaded_what_decode_wrote(plan, record):
            continue
        if pair.subject in _REPEATED and _odd(plan, record, pair.baseline, (pair.subject,)) == 1:
            return _again_once(plan, record, pair.subject)
    return None


def _may_be_chance(plan: Plan, record: GroupRecord, baseline: Arm) -> bool:
    """Whether loads differ from the baseline, and too few to tell a fault from chance (``chance.shown``)."""
    arms = (Arm.EXTERNAL, Arm.EXTERNAL_REPEAT)
    if not 1 <= _odd(plan, record, baseline, arms) < THRICE:
        return False
    held = standing_of(plan, record, baseline)
    loads = repeats_of(plan, record, arms)
    # What is far off convicts if it comes twice.
    return held is not None and sum(_differ(plan, held, each) for each in loads) < 2


def _odd(plan: Plan, record: GroupRecord, baseline: Arm, subjects: tuple[Arm, ...]) -> int:
    """How many of these answers differ from the baseline's in anything."""
    held = standing_of(plan, record, baseline)
    if held is None:
        return 0
    return sum(_drifts(held, each) for each in repeats_of(plan, record, subjects))


def _loaded_what_decode_wrote(plan: Plan, record: GroupRecord) -> bool:
    """Whether sending it again may load the same: an attempt that missed has computed it anew and stored that."""
    standing = standing_of(plan, record, Arm.CONTINUATION)
    return standing is not None and standing.proven


def _again_once(plan: Plan, record: GroupRecord, arm: Arm) -> Send | None:
    """The next step towards a second answer at this arm; None if it was sent again already, or cannot be."""
    step, before = record.plan.step(arm), _REPEATED[arm]
    count = len(record.of(arm))
    if step is None or count > 1 or (step.drop_local and not plan.can_forget(step.endpoint)):
        return None
    first = record.plan.step(before) if before is not None else None
    if first is not None and len(record.of(first.arm)) == count:
        return Send(first, count, True, 0.0, "") if plan.can_forget(first.endpoint) else None
    return Send(step, count, step.drop_local, 0.0, "")


def _differ(plan: Plan, baseline: Standing, subject: Standing) -> bool:
    left, right = _answers(baseline, subject)
    return left is not None and right is not None and not compare(left, right).within(plan.policy.envelope_cap_nat)


def _drifts(baseline: Standing, subject: Standing) -> bool:
    """Whether the answers differ in anything: hits are cheap to send again, and most engines repeat hits exactly."""
    left, right = _answers(baseline, subject)
    return left is not None and right is not None and not compare(left, right).exact


def _answers(baseline: Standing, subject: Standing) -> tuple[Observation | None, Observation | None]:
    pair = (baseline.observation, subject.observation)
    return pair if all(each is not None and each.ok for each in pair) else (None, None)


def is_void(plan: Plan, record: GroupRecord) -> bool:
    """Whether the group can neither acquit nor convict through no fault of the path, and may be replaced.

    A subject that is lost or refused is no such case: that may well be the fault.
    """
    if record.plan.purpose is Purpose.OUTAGE:
        # Nobody takes the pool away a second time unasked.
        return False
    standings = {
        step.arm: (step, standing)
        for step in record.plan.steps
        if (standing := standing_of(plan, record, step.arm)) is not None
    }
    if any(_lost_or_refused(record, step) for step, _ in standings.values() if _loads(step)):
        return False
    ranks: dict[tuple[str, int | None], set[str]] = {}
    for step, standing in standings.values():
        if step.path is not Path.COLD and standing.evidence.rank is not None:
            ranks.setdefault((step.endpoint, step.rank), set()).add(standing.evidence.rank)
    if any(len(each) > 1 for each in ranks.values()):
        return True
    return any(_is_void(plan, record, step, standing) for step, standing in standings.values())


def _loads(step: ArmStep) -> bool:
    return step.path in (Path.EXTERNAL, Path.MIXED)


def _lost_or_refused(record: GroupRecord, step: ArmStep) -> bool:
    return any(attempt.observation is not None and not attempt.ok for attempt in record.of(step.arm))


def _is_void(plan: Plan, record: GroupRecord, step: ArmStep, standing: Standing) -> bool:
    if standing.void is not None:
        return standing.void.reason is not Reason.HOOK_FAILED
    if standing.observation is None or standing.observation.outcome is Outcome.LOST:
        return not _loads(step)
    if _missed_for_good(plan, step, standing):
        return True
    held_against = step.arm in LOCAL_BASELINES or step.arm in (Arm.COLD, Arm.POPULATE, Arm.CONTINUATION_COLD)
    baseline = held_against and record.plan.purpose is not Purpose.SHORT_CONTROL
    return (
        baseline
        and standing.unproven is not None
        and standing.unproven.reason in (Reason.NOT_COLD, Reason.BASELINE_NOT_LOCAL, Reason.OBSERVATION_MISSING)
    )


def _missed_for_good(plan: Plan, step: ArmStep, standing: Standing) -> bool:
    """A reader's miss cannot be repeated with the same prompt; another prompt and more patience may show a slow put."""
    missed = standing.unproven is not None and standing.unproven.reason is Reason.EXTERNAL_MISS
    return missed and step.arm is Arm.EXTERNAL and plan.forcing.two_readers


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What a finished group says about going on: was its external path shown, if not why, and is it grossly wrong."""

    exercised: bool
    why_not: Problem | None
    gross: bool


def outcome_of(plan: Plan, record: GroupRecord) -> GroupOutcome | None:
    """The outcome of a finished group; None for groups that say nothing about the external path."""
    if record.plan.purpose in (Purpose.SHORT_CONTROL, Purpose.CONTINUATION, Purpose.OUTAGE):
        return None
    subject = standing_of(plan, record, Arm.EXTERNAL) or standing_of(plan, record, Arm.COLD)
    if subject is None:
        return None
    if subject.proven and subject.arm is Arm.EXTERNAL:
        return GroupOutcome(True, None, _is_gross(plan, record))
    local = standing_of(plan, record, Arm.LOCAL)
    why = subject.void or subject.unproven or (local.unproven if local is not None else None)
    return GroupOutcome(False, why, False)


def hopeless(plan: Plan, outcomes: list[GroupOutcome]) -> Problem | None:
    """The reason no group so far could show its subject's path, once enough have tried; None while any did."""
    if any(outcome.exercised for outcome in outcomes):
        return None
    seen = [outcome.why_not for outcome in outcomes if outcome.why_not and outcome.why_not.reason in HOPELESS]
    return seen[-1] if len(seen) >= plan.limits.hopeless_groups else None


def _is_gross(plan: Plan, record: GroupRecord) -> bool:
    pair = next((each for each in record.plan.pairs if each.kind is PairKind.EXTERNAL_VS_LOCAL), None)
    if pair is None:
        return False
    baseline, subject = (standing_of(plan, record, arm) for arm in (pair.baseline, pair.subject))
    if baseline is None or subject is None or not (baseline.proven and subject.proven):
        return False
    control = standing_of(plan, record, Arm.LOCAL_REPEAT)
    same, again = _answers(baseline, control) if control is not None else (None, None)
    # Where local hits differ as much from each other it is the engine, and every group shows something else.
    noise = MARGIN * furthest(compare(same, again)) if same is not None and again is not None else 0.0
    sides = (subject, *repeats_of(plan, record, pair.repeats))
    return sum(1 for side in sides if _grossly(plan, baseline, side, noise)) >= 2


def _grossly(plan: Plan, baseline: Standing, subject: Standing, noise: float) -> bool:
    left, right = _answers(baseline, subject)
    # Answers whose IDs are not all there differ for a reason that is not the KV: the judge leaves them undecided.
    if left is None or right is None or left.id_problem() or right.id_problem():
        return False
    bound = max(plan.policy.envelope_cap_nat, plan.policy.lossy_bound_nat or 0.0, noise)
    return not compare(left, right).within(bound)
