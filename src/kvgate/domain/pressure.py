"""Requests that are in flight beside those of the groups: whether they were there, and what became of them."""

from kvgate.domain.group_view import GroupView
from kvgate.domain.observation import BROKEN_OFF, Observation
from kvgate.domain.plan import Plan, Purpose
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Problem, Reason

# The largest share of them that may be refused or lost: a server that turns most of them away is not under pressure.
FAILED_SHARE = 0.1


def _answers(views: tuple[GroupView, ...]) -> list[Observation]:
    return [
        attempt.observation
        for view in views
        if view.record.plan.purpose is Purpose.CHURN
        for attempt in view.record.of(Arm.CHURN)
        if attempt.observation is not None
    ]


def _failed(answers: list[Observation]) -> list[Observation]:
    return [each for each in answers if not each.ok and BROKEN_OFF not in each.marks]


def unpressed(views: tuple[GroupView, ...]) -> Problem | None:
    """Why the engine was not under pressure although requests were sent, or None if it was."""
    answers = _answers(views)
    failed = _failed(answers)
    if len(failed) <= FAILED_SHARE * len(answers):
        return None
    detail = f"{len(failed)} of {len(answers)} requests sent beside the groups failed: {failed[0].detail}"
    return Problem(Reason.PRESSURE_MISSING, detail)


def pressure_notes(plan: Plan, views: tuple[GroupView, ...]) -> tuple[str, ...]:
    """What was in flight beside the groups' requests."""
    if not plan.churn:
        return ()
    answers = _answers(views)
    answered = sum(each.ok for each in answers)
    broken_off = sum(BROKEN_OFF in each.marks for each in answers)
    failed = _failed(answers)
    why = f" ({failed[0].detail})" if failed else ""
    told = f"{answered} answered, {broken_off} broken off by kvgate, {len(failed)} failed{why}"
    levels = sorted({plan.company(group, group.steps[0]) for group in plan.groups})
    beside = " or ".join(map(str, levels))
    between = f", and {plan.between} with a common beginning sent before it" if plan.between else ""
    return (
        f"under pressure: {beside} requests of {plan.churn[0].length} tokens in flight beside every request "
        f"of a group{between}, {len(answers)} in all: {told}",
    )
