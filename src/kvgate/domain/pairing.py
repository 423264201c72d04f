"""Setting up each pair for the decision table: which are exact, against which tolerance, after which controls."""

from dataclasses import replace

from kvgate.domain.chance import TWICE, Loads, shown
from kvgate.domain.divergence import Comparison, compare
from kvgate.domain.group_view import ALIGNED_PAIRS, GroupView, answer, computed, proven_comparison
from kvgate.domain.noise import (
    CROWD_CONTROLS,
    DIRECT_LOCAL,
    Control,
    controls_of,
    envelope_for,
    repeats_exact,
)
from kvgate.domain.observation import EMPTY_BODY, Observation, Outcome
from kvgate.domain.pair_view import PairView
from kvgate.domain.plan import PairKind, PairPlan, Plan
from kvgate.domain.probe import Arm, Part
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.standing import Standing, repeats_of

# Up to this share of inexact controls a pair may still be exact, but a difference then has to come again bit by bit.
NOISY_SHARE = 0.1


def recall(observation: Observation, asked: tuple[str, ...]) -> int:
    """How many of the asked codewords the answer's text holds."""
    text = "".join(observation.text.split())
    return sum(1 for word in asked if "".join(word.split()) in text)


def build_view(
    plan: Plan, group: GroupView, pair: PairPlan, everyone: tuple[GroupView, ...], stray: Standing | None = None
) -> tuple[PairView, str | None]:
    """The table's view of one pair under the calibrated policy, and why it is not exact (None if it is).

    ``stray`` takes the subject's place: an attempt that is not the arm's standing one.
    """
    baseline, subject = group.standings.get(pair.baseline), stray or group.standings.get(pair.subject)
    left, right = answer(baseline), answer(subject)
    comparison = compare(left, right) if left is not None and right is not None else None
    itself = (subject.arm, subject.number) if subject is not None else None
    repeats = tuple(each for each in group.repeats.get(pair.repeats, ()) if (each.arm, each.number) != itself)
    again = tuple(compare(left, each.observation) for each in repeats if left is not None and each.observation)
    # Each level of pressure has its own noise.
    level = group.record.plan.level
    controls = tuple(control for each in everyone for control in each.controls if control.level == level)
    why_not = _why_not_exact(plan, group, pair, baseline, subject, everyone)
    if why_not is None and _noise_share(group, pair, controls) > NOISY_SHARE:
        why_not = "controls of this kind in other groups are not exact, so this one may be luck"
    proven = subject is not None and subject.proven
    envelope = envelope_for(group.record.plan.id, pair.kind, proven, controls, plan.policy)
    if pair.kind.loads and plan.policy.lossy_bound_nat is not None:
        envelope = replace(envelope, nat=max(envelope.nat, plan.policy.lossy_bound_nat))
    same_again, crowded = _same_again(right, repeats), _among_others(baseline, subject)
    repeated = repeats_exact(controls)
    too_few = crowded and len(repeated) < CROWD_CONTROLS
    if why_not is None and crowded and comparison is not None and not comparison.exact:
        comes_again = same_again and all(repeated)
        if not comes_again or (too_few and not comparison.within(envelope.nat)):
            why_not = "other requests were in flight, and too little shows that they change nothing"
    view = PairView(
        plan=pair,
        baseline=baseline,
        subject=subject,
        repeats=repeats,
        comparison=comparison,
        repeat_comparisons=again,
        control=_control_of(group, pair),
        control_problem=_control_problem(group, pair),
        against_repeat=_against_repeat(group, pair, right),
        exact=why_not is None,
        noisy=_noise_share(group, pair, controls) > 0.0 or crowded,
        same_again=same_again,
        too_few=too_few,
        shown=comparison is not None
        and not comparison.exact
        and not (crowded and (too_few or not same_again))
        and shown(
            group.record.plan.id, pair.kind, controls, _loads(pair, (group, everyone), left, (subject, *repeats))
        ),
        envelope=envelope,
        broken_off=_broken_off(group),
        leaks=group.leaks,
        lost_recall=_lost_recall(pair, (group, everyone), baseline, subject),
        lost_again=sum(1 for each in repeats if _lost_recall(pair, (group, everyone), baseline, each)),
        policy=plan.policy,
        strict=False,
    )
    return view, why_not


def _among_others(*sides: Standing | None) -> bool:
    """Whether others used the engine meanwhile: whoever shares a batch may drift a little, and not the same again."""
    return any(side is not None and side.evidence.busy for side in sides)


def strays_of(plan: Plan, group: GroupView) -> tuple[Standing, ...]:
    """External answers that are not their arm's standing one, yet held tokens from outside.

    Partial and repeated loads are answers of the path under test, too: they cannot acquit, but they can convict.
    """
    found = repeats_of(plan, group.record, (Arm.EXTERNAL, Arm.EXTERNAL_REPEAT))
    standing = {(each.arm, each.number) for each in group.standings.values()}
    return tuple(each for each in found if each.evidence.external and (each.arm, each.number) not in standing)


def _control_problem(group: GroupView, pair: PairPlan) -> Problem | None:
    """Why a planned control could not be taken; unknown noise is not the same as measured noise."""
    if pair.control is None or _control_of(group, pair) is not None:
        return None
    repeat = group.standings.get(pair.control[1])
    if repeat is None:
        return _broken_off(group) or Problem(Reason.OBSERVATION_MISSING, f"{pair.control[1].value} was not reached")
    problem = repeat.void or repeat.unproven
    return problem or Problem(Reason.OBSERVATION_MISSING, f"{repeat.arm.value} has no complete answer")


def _against_repeat(group: GroupView, pair: PairPlan, right: Observation | None) -> Comparison | None:
    """The subject held against the baseline's repeat instead of the baseline."""
    repeat = answer(group.standings.get(pair.control[1])) if pair.control is not None else None
    return compare(repeat, right) if repeat is not None and right is not None else None


def _noise_share(group: GroupView, pair: PairPlan, controls: tuple[Control, ...]) -> float:
    """The share of other groups' controls of the same kind that were not exact; then even an exact one may be luck."""
    kinds = controls_of(pair.kind)
    others = [each.comparison.exact for each in controls if each.kind in kinds and each.group != group.record.plan.id]
    return others.count(False) / len(others) if others else 0.0


def _same_again(right: Observation | None, repeats: tuple[Standing, ...]) -> int:
    """How many repeats are equal to the subject to the last bit: a fault comes again as it was, noise does not."""
    answers = [answer(each) for each in repeats]
    return sum(1 for each in answers if right is not None and each is not None and compare(right, each).exact)


def _loads(
    pair: PairPlan,
    groups: tuple[GroupView, tuple[GroupView, ...]],
    left: Observation | None,
    subjects: tuple[Standing | None, ...],
) -> Loads:
    """The subject and its repeats, in the order they were sent, against the baseline's answer."""
    order = [step.arm for step in groups[0].record.plan.steps]
    sent = sorted(filter(None, subjects), key=lambda each: (order.index(each.arm), each.number))
    seen = [answer(each) for each in sent]
    odd = tuple(not compare(left, each).exact for each in seen if left is not None and each is not None)
    return Loads(odd, 1 + _same_again(answer(subjects[0]), tuple(filter(None, subjects[1:]))), _backed(pair, *groups))


def _backed(pair: PairPlan, group: GroupView, everyone: tuple[GroupView, ...]) -> bool | None:
    """Whether something speaks for the baseline, so that it is not the odd one together with its repeat.

    A local hit is backed by a cold run that is equal to the last bit, and the other way round. Where a cold run stands
    alone against its hits, another group must show the same. None where nothing has to.
    """
    if pair.control is not None and pair.control[0] is not pair.baseline:
        return False
    if pair.baseline not in (Arm.LOCAL, Arm.COLD):
        return None
    seen = [each.comparison.exact for each in group.controls if each.kind in ALIGNED_PAIRS]
    if any(seen):
        return True
    if pair.baseline is Arm.COLD:
        return None if any(_stands_alone(pair, each) for each in everyone if each is not group) else False
    return False if seen and _must_agree(group, everyone) else None


def _must_agree(group: GroupView, everyone: tuple[GroupView, ...]) -> bool:
    return group.record.plan.aligned and proves_alignment(everyone, apart_from=group)


def _stands_alone(pair: PairPlan, group: GroupView) -> bool:
    """Whether both of a group's first answers differ from its cold one in this pair, too."""
    sides = [group.standings.get(arm) for arm in (pair.subject, *pair.repeats)][:TWICE]
    compared = [proven_comparison(group.standings.get(pair.baseline), side) for side in sides]
    return len(compared) == TWICE and all(each is not None and not each.exact for each in compared)


def _broken_off(group: GroupView) -> Problem | None:
    """Why the group ended early, if one of its arms says so."""
    for standing in group.standings.values():
        if standing.void is not None:
            return standing.void
        observation = standing.observation
        if observation is not None and not observation.ok:
            refused = observation.outcome is Outcome.REFUSED
            why = Reason.EMPTY if EMPTY_BODY in observation.marks else Reason.PROBE_REFUSED
            reason = why if refused else Reason.OBSERVATION_MISSING
            return Problem(reason, f"{standing.arm.value}: {observation.detail}")
        if standing.unproven is not None and standing.unproven.reason is Reason.NOT_COLD:
            return standing.unproven
    return None


def _control_of(group: GroupView, pair: PairPlan) -> Comparison | None:
    if pair.control is None:
        return None
    one, other = pair.control
    return proven_comparison(group.standings.get(one), group.standings.get(other))


def _why_not_exact(
    plan: Plan,
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
    return _why_another_shape(plan, group, pair, (baseline, subject), everyone)


def _why_another_shape(
    plan: Plan,
    group: GroupView,
    pair: PairPlan,
    sides: tuple[Standing, Standing],
    everyone: tuple[GroupView, ...],
) -> str | None:
    """Why baseline and subject may differ although nothing is wrong, or None if they may not."""
    baseline, subject = sides
    if pair.kind in _NEVER_EXACT:
        return _NEVER_EXACT[pair.kind]
    if pair.kind.of_hits:
        if baseline.shape is None or baseline.shape != subject.shape:
            return f"hit lengths differ: baseline {baseline.shape}, subject {subject.shape}"
        if pair.kind is PairKind.TRANSFER_VS_DIRECT:
            alone = computed(group.record, baseline)
            if alone != 1:
                return f"decode computes the last prompt token by itself, prefill alone {alone} at once"
            if plan.deployment.alike or _most_exact(DIRECT_LOCAL, everyone, group):
                return None
            return "prefill and decode are not said to be alike, and other groups do not show it"
        places = (baseline.endpoint, baseline.pinned), (subject.endpoint, subject.pinned)
        if pair.kind is not PairKind.GATEWAY_VS_TWO_LEG and places[0] != places[1]:
            return "baseline and subject were served by different endpoints"
        return None
    if pair.kind is PairKind.OUTAGE_VS_COLD:
        # Two cold runs have one shape, but for what is computed again after a load that was begun.
        begun = subject.evidence.first(Reason.LOAD_FAILED)
        return f"a load was begun: {begun.detail}" if begun is not None else None
    step = group.record.plan.step(pair.subject)
    expected = sum(group.record.plan.expected(step)) if step is not None else 0
    if subject.shape != expected:
        return f"the hit is not as long as predicted: {subject.shape} tokens, not {expected}"
    if not group.record.plan.aligned:
        return "the length is not aligned: the cold run ends on a chunk of another shape"
    return None if proves_alignment(everyone, apart_from=group) else "alignment is predicted, but not proven by others"


_NEVER_EXACT = {
    PairKind.ISOLATION_VS_COLD: "two cold runs are compared with tolerance",
    PairKind.COLD_VS_REFERENCE: "another deployment is compared with tolerance",
    PairKind.CONTINUATION_VS_COLD: "what decode wrote was computed in another shape",
}


def proves_alignment(everyone: tuple[GroupView, ...], apart_from: GroupView) -> bool:
    """Whether most of the other aligned groups show cold equal to a hit at exactly 0.0; a single one may be luck."""
    shown = [
        each.shows_alignment
        for each in everyone
        if each is not apart_from
        and each.record.plan.aligned
        and any(control.kind in ALIGNED_PAIRS for control in each.controls)
    ]
    return 2 * sum(shown) > len(shown)


def _most_exact(kind: str, everyone: tuple[GroupView, ...], apart_from: GroupView) -> bool:
    """Whether most controls of a kind in other groups are exact."""
    seen = [
        control.comparison.exact
        for each in everyone
        if each is not apart_from
        for control in each.controls
        if control.kind == kind
    ]
    return 2 * sum(seen) > len(seen)


def _lost_recall(
    pair: PairPlan, groups: tuple[GroupView, tuple[GroupView, ...]], baseline: Standing | None, subject: Standing | None
) -> int:
    """Codewords the subject lost beyond the worst loss between an arm and its repeat, in this group or another.

    Counted only where nothing but the bytes differs: in another shape, or on another engine, a healthy model may well
    flip, and lose a codeword each time. Where there are logprobs they tell more; the run looks at recall again.
    """
    group, everyone = groups
    left, right = answer(baseline), answer(subject)
    if (
        left is None
        or right is None
        or pair.kind not in _BY_ONE_ENGINE
        or not alike_but_for_the_bytes(baseline, subject)
    ):
        return 0
    step = group.record.plan.step(pair.subject)
    # Another prompt asks for something else.
    asked = group.record.plan.asked if step is None or step.part is Part.WHOLE else ()
    lost = recall(left, asked) - recall(right, asked)
    return max(0, lost - max(map(_control_loss, everyone)))


_BY_ONE_ENGINE = (PairKind.EXTERNAL_VS_LOCAL, PairKind.MIXED_VS_LOCAL, PairKind.THIRD_VS_LOCAL)


def alike_but_for_the_bytes(one: Standing | None, other: Standing | None) -> bool:
    """Whether both came by their paths on one quiet engine and reused equally many tokens."""
    if one is None or other is None or not (one.proven and other.proven) or one.evidence.busy or other.evidence.busy:
        return False
    return (one.endpoint, one.pinned, one.shape) == (other.endpoint, other.pinned, other.shape)


def _control_loss(group: GroupView) -> int:
    """The most codewords an arm lost against its own repeat; one that was not answered lost none."""
    asked = group.record.plan.asked
    losses = [0]
    for one, other in ((Arm.COLD, Arm.COLD_REPEAT), (Arm.LOCAL, Arm.LOCAL_REPEAT)):
        first, second = answer(group.standings.get(one)), answer(group.standings.get(other))
        if first is not None and second is not None:
            losses.append(abs(recall(first, asked) - recall(second, asked)))
    return max(losses)


def recall_lost_and_won(views: tuple[GroupView, ...]) -> tuple[int, int]:
    """In how many groups the external answer lost the codeword the cold one had, and in how many it won it."""
    lost = won = 0
    for view in views:
        asked = view.record.plan.asked
        cold, external = answer(view.standings.get(Arm.COLD)), answer(view.standings.get(Arm.EXTERNAL))
        if asked and cold is not None and external is not None:
            difference = recall(cold, asked) - recall(external, asked)
            lost += difference > 0
            won += difference < 0
    return lost, won
