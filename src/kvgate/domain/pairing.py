"""Setting up each pair for the decision table: which are exact, against which tolerance, after which controls."""

from dataclasses import dataclass

from kvgate.domain.divergence import Comparison, compare
from kvgate.domain.noise import COLD_LOCAL, COLD_REPEAT, LOCAL_REPEAT, Control, envelope_for
from kvgate.domain.observation import Observation, Outcome
from kvgate.domain.plan import PairKind, PairPlan, Plan
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.record import GroupRecord
from kvgate.domain.rows import PairView
from kvgate.domain.standing import Standing, repeats_of, standing_of


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group's arms, weighed once, with its own control comparisons."""

    record: GroupRecord
    standings: dict[Arm, Standing]
    repeats: dict[tuple[Arm, ...], tuple[Standing, ...]]
    controls: tuple[Control, ...]

    @property
    def shows_alignment(self) -> bool:
        """Whether an aligned group shows cold equal to local at exactly 0.0, both on their proven paths."""
        if not self.record.plan.aligned:
            return False
        return any(control.kind == COLD_LOCAL and control.comparison.exact for control in self.controls)


def view_group(plan: Plan, record: GroupRecord) -> GroupView:
    """Weigh every arm of a group and compare its controls."""
    standings: dict[Arm, Standing] = {}
    for step in record.plan.steps:
        standing = standing_of(plan, record, step.arm)
        if standing is not None:
            standings[step.arm] = standing
    repeats = {pair.repeats: repeats_of(plan, record, pair.repeats) for pair in record.plan.pairs}
    return GroupView(record, standings, repeats, _controls(record, standings))


def _controls(record: GroupRecord, standings: dict[Arm, Standing]) -> tuple[Control, ...]:
    kinds = (
        (LOCAL_REPEAT, Arm.LOCAL, Arm.LOCAL_REPEAT),
        (COLD_REPEAT, Arm.COLD, Arm.COLD_REPEAT),
        (COLD_LOCAL, Arm.COLD, Arm.LOCAL),
    )
    found: list[Control] = []
    for kind, one, other in kinds:
        comparison = _proven_comparison(standings.get(one), standings.get(other))
        if comparison is not None:
            found.append(Control(kind, record.plan.id, comparison))
    return tuple(found)


def _proven_comparison(one: Standing | None, other: Standing | None) -> Comparison | None:
    if one is None or other is None or not (one.proven and other.proven):
        return None
    left, right = answer(one), answer(other)
    return compare(left, right) if left is not None and right is not None else None


def answer(standing: Standing | None) -> Observation | None:
    """The complete answer of a standing, or None."""
    observation = standing.observation if standing is not None else None
    return observation if observation is not None and observation.ok else None


def recall(observation: Observation | None, asked: tuple[str, ...]) -> int:
    """How many of the asked codewords the answer's text holds."""
    if observation is None:
        return 0
    text = "".join(observation.text.split())
    return sum(1 for word in asked if "".join(word.split()) in text)


def build_view(
    plan: Plan, group: GroupView, pair: PairPlan, everyone: tuple[GroupView, ...]
) -> tuple[PairView, str | None]:
    """The table's view of one pair under the calibrated policy, and why it is not exact (None if it is)."""
    baseline, subject = group.standings.get(pair.baseline), group.standings.get(pair.subject)
    left, right = answer(baseline), answer(subject)
    comparison = compare(left, right) if left is not None and right is not None else None
    itself = (subject.arm, subject.number) if subject is not None else None
    repeats = tuple(each for each in group.repeats.get(pair.repeats, ()) if (each.arm, each.number) != itself)
    again = tuple(compare(left, each.observation) for each in repeats if left is not None and each.observation)
    why_not = _why_not_exact(group, pair, baseline, subject, everyone)
    controls = tuple(control for each in everyone for control in each.controls)
    proven = subject is not None and subject.proven
    view = PairView(
        plan=pair,
        baseline=baseline,
        subject=subject,
        repeats=repeats,
        comparison=comparison,
        repeat_comparisons=again,
        control=_control_of(group, pair),
        exact=why_not is None,
        envelope=envelope_for(group.record.plan.id, pair.kind, proven, controls, plan.policy),
        broken_off=_broken_off(group),
        leaks=_leaks(group, pair, repeats, everyone),
        lost_recall=_lost_recall(group, left, right, everyone),
        lost_again=sum(1 for each in repeats if _lost_recall(group, left, answer(each), everyone) > 0),
        policy=plan.policy,
        strict=False,
    )
    return view, why_not


def _broken_off(group: GroupView) -> Problem | None:
    """Why the group ended early, if one of its arms says so."""
    for standing in group.standings.values():
        if standing.void is not None:
            return standing.void
        observation = standing.observation
        if observation is not None and not observation.ok:
            refused = observation.outcome is Outcome.REFUSED
            reason = Reason.PROBE_REFUSED if refused else Reason.OBSERVATION_MISSING
            return Problem(reason, f"{standing.arm.value}: {observation.detail}")
        if standing.unproven is not None and standing.unproven.reason is Reason.NOT_COLD:
            return standing.unproven
    return None


def _control_of(group: GroupView, pair: PairPlan) -> Comparison | None:
    if pair.control is None:
        return None
    one, other = pair.control
    return _proven_comparison(group.standings.get(one), group.standings.get(other))


def _why_not_exact(
    group: GroupView,
    pair: PairPlan,
    baseline: Standing | None,
    subject: Standing | None,
    everyone: tuple[GroupView, ...],
) -> str | None:
    if baseline is None or subject is None or not (baseline.proven and subject.proven):
        return "a side's path is not proven"
    control = _control_of(group, pair)
    if pair.control is None:
        return "the baseline was not repeated"
    if control is None:
        return "the baseline's repeat did not come by its path"
    if not control.exact:
        return "the baseline's own repeat is not bit-equal"
    if pair.kind is PairKind.EXTERNAL_VS_LOCAL:
        if baseline.endpoint != subject.endpoint:
            return "baseline and subject were served by different endpoints"
        if baseline.shape is None or baseline.shape != subject.shape:
            return f"hit lengths differ: baseline {baseline.shape}, subject {subject.shape}"
        return None
    if not group.record.plan.aligned:
        return "the length is not aligned: the cold run ends on a chunk of another shape"
    others = any(each.shows_alignment for each in everyone if each.record.plan.id != group.record.plan.id)
    return None if others else "alignment is predicted, but no other group has proven it"


def _leaks(
    group: GroupView, pair: PairPlan, repeats: tuple[Standing, ...], everyone: tuple[GroupView, ...]
) -> tuple[str, ...]:
    answers = [(pair.baseline, answer(group.standings.get(pair.baseline)))]
    answers += [(pair.subject, answer(group.standings.get(pair.subject)))]
    answers += [(each.arm, answer(each)) for each in repeats]
    found: list[str] = []
    for arm, observation in answers:
        text = "".join(observation.text.split()) if observation is not None else ""
        found += [
            f"{arm.value} answers with the nonce of group {other.record.plan.id}"
            for other in everyone
            if other.record.plan.id != group.record.plan.id and other.record.plan.nonce in text
        ]
    return tuple(found)


def _lost_recall(
    group: GroupView, left: Observation | None, right: Observation | None, everyone: tuple[GroupView, ...]
) -> int:
    """Codewords the subject lost beyond the worst loss between any two control arms; 0 if recall is uninformative."""
    asked = group.record.plan.asked
    if not asked or left is None or right is None:
        return 0
    lost = recall(left, asked) - recall(right, asked)
    if lost <= 0:
        return 0
    return max(0, lost - max((_control_loss(each) for each in everyone), default=0))


def _control_loss(group: GroupView) -> int:
    arms = (Arm.COLD, Arm.COLD_REPEAT, Arm.LOCAL, Arm.LOCAL_REPEAT)
    counts = [recall(answer(group.standings[arm]), group.record.plan.asked) for arm in arms if arm in group.standings]
    return max(counts) - min(counts) if counts else 0
