"""One prompt that is computed afresh again and again while a run lasts: whether the engine still is what it was.

An engine that goes wrong for good after some requests gives cold, local and external answers that agree with each
other. Only its own earlier answers show it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvgate.domain.canaries import stands_beside
from kvgate.domain.divergence import Comparison, compare
from kvgate.domain.group_view import GroupView
from kvgate.domain.observation import Observation
from kvgate.domain.plan import GroupPlan, Plan, Purpose
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import Onset

# How often each sentinel is asked before the first group and after the last: one answer alone may be chance.
BEFORE = 2
AFTER = 2


@dataclass(frozen=True, slots=True)
class _Asked:
    """The answers of one sentinel that can be compared, each with its request's number, oldest first."""

    group: GroupPlan
    answers: tuple[tuple[int, Observation], ...]

    @property
    def enough(self) -> bool:
        return len(self.answers) >= BEFORE + AFTER


def asks_after(groups: Sequence[GroupPlan], done: int) -> int:
    """How often sentinels are asked once ``done`` groups are through: at the end, and wherever a tier is done."""
    if done >= len(groups):
        return AFTER
    last, following = groups[done - 1], groups[done]
    return int(last.purpose is Purpose.TIER and (last.purpose, last.tier) != (following.purpose, following.tier))


def asked_in_all(groups: Sequence[GroupPlan]) -> int:
    """How often each sentinel is asked in a whole run."""
    return BEFORE + sum(asks_after(groups, done) for done in range(1, len(groups) + 1))


def are_sentinels(view: GroupView) -> bool:
    """Whether a group is a sentinel: it has no pairs, and is held against itself only."""
    return view.record.plan.purpose is Purpose.SENTINEL


def onset(plan: Plan, run: RunRecord, views: tuple[GroupView, ...]) -> Onset | None:
    """The first change for good that a sentinel shows, or None.

    What is for good is known once the sentinel was asked after the last group; a run that goes on cannot tell.
    """
    if not run.completed and run.stopped is None:
        return None
    for asked in _all(views):
        first = _first_other(plan, asked)
        if first is None or not BEFORE <= first <= len(asked.answers) - AFTER or not _to_the_end(asked, views):
            continue
        if _for_good(plan, asked, first):
            return _onset(asked, first, views)
    return None


def unsteady(plan: Plan, run: RunRecord, views: tuple[GroupView, ...]) -> Problem | None:
    """Why sentinels do not show that the engine stayed the same, or None if they do.

    A run that was stopped says so itself.
    """
    if onset(plan, run, views) is not None:
        return None
    for asked in _all(views):
        first = _first_other(plan, asked)
        if first is not None:
            told = f"{asked.group.id}: request {asked.answers[first][0]} was answered otherwise than those before it"
            return Problem(Reason.UNSTABLE, f"{told}, which is not shown to be for good")
    enough = sum(asked.enough and _to_the_end(asked, views) for asked in _all(views))
    if run.completed and enough < len(plan.sentinels):
        told = f"{enough} of {len(plan.sentinels)} sentinels were answered often enough, and after the last group"
        return Problem(Reason.OBSERVATION_MISSING, told)
    return None


def changed(found: Onset) -> Problem:
    """An onset as the reason of a FAIL."""
    between = f" ({', '.join(found.groups)} in between)" if found.groups else ""
    return Problem(
        Reason.ANSWERS_CHANGED,
        f"{found.endpoint} answered the same prompt, computed afresh, alike up to request {found.right_until} of the "
        f"run and otherwise from request {found.wrong_from} on{between}",
    )


def sentinel_notes(plan: Plan, views: tuple[GroupView, ...]) -> tuple[str, ...]:
    """What the sentinels showed where nothing changed."""
    told: list[str] = []
    for asked in _all(views):
        if asked.enough and _first_other(plan, asked) is None:
            first, last = asked.answers[0][0], asked.answers[-1][0]
            told.append(
                f"{asked.group.steps[0].endpoint} answered one prompt alike {len(asked.answers)} times, computed "
                f"afresh, from request {first} to {last} of the run{_drift(asked)}"
            )
    return tuple(told)


def _drift(asked: _Asked) -> str:
    drifts = [compare(asked.answers[0][1], answer).max_drift for _, answer in asked.answers[1:]]
    seen = [drift for drift in drifts if drift is not None]
    return f" (largest drift {max(seen):.2g} nat)" if seen and max(seen) > 0 else ""


def _all(views: tuple[GroupView, ...]) -> tuple[_Asked, ...]:
    return tuple(
        _Asked(
            view.record.plan,
            tuple(
                (attempt.number, attempt.observation)
                for attempt in view.record.of(Arm.SENTINEL)
                if attempt.observation is not None and _comparable(attempt.observation)
            ),
        )
        for view in filter(are_sentinels, views)
    )


def _comparable(seen: Observation) -> bool:
    """Whether it is a whole answer. Text alone can be compared; IDs that are not all there cannot."""
    return seen.ok and (seen.token_ids is None or not seen.id_problem())


def _compared(asked: _Asked) -> list[Comparison]:
    """Every answer against the first; the first against itself."""
    return [compare(asked.answers[0][1], answer) for _, answer in asked.answers]


def _first_other(plan: Plan, asked: _Asked) -> int | None:
    """The place of the first answer that is not like the first one."""
    compared = _compared(asked)
    bound = plan.policy.envelope_cap_nat
    return next((place for place, each in enumerate(compared) if not each.within(bound)), None)


def _for_good(plan: Plan, asked: _Asked, first: int) -> bool:
    """Whether no answer from that place on is like the first one."""
    compared = _compared(asked)
    bound = plan.policy.envelope_cap_nat
    # Without logprobs a benign flip looks like any other difference, so nothing is convicted.
    return all(each.max_drift is not None and not each.within(bound) for each in compared[first:])


def _to_the_end(asked: _Asked, views: tuple[GroupView, ...]) -> bool:
    """Whether the sentinel was answered after the last group."""
    return asked.answers[-1][0] > max((_ended(view) for view in views if not stands_beside(view)), default=0)


def _onset(asked: _Asked, first: int, views: tuple[GroupView, ...]) -> Onset:
    right, wrong = asked.answers[first - 1][0], asked.answers[first][0]
    between = [view.record.plan.id for view in views if not are_sentinels(view) and _ended(view) in range(right, wrong)]
    return Onset(asked.group.steps[0].endpoint, right, wrong, tuple(between))


def _ended(view: GroupView) -> int:
    """The number of a group's last request, 0 if it never had one."""
    return max((each.number for attempts in view.record.attempts.values() for each in attempts), default=0)
