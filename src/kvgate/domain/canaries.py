"""Prompts that are sent all at once, to see whether requests get into each other; nothing else is asked of them."""

from kvgate.domain.group_view import GroupView
from kvgate.domain.plan import Plan, Purpose
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.record import RunRecord

# How often each canary is sent: the second time the engine's caches serve it, and the others beside it.
WAVES = 2


def are_canaries(view: GroupView) -> bool:
    """Whether a group is a canary: it has no pairs, and its only verdict is a leak."""
    return view.record.plan.purpose is Purpose.CANARY


def stands_beside(view: GroupView) -> bool:
    """Whether a group is none of those that are judged by their pairs."""
    return view.record.plan.purpose in (Purpose.CANARY, Purpose.SENTINEL, Purpose.CHURN)


def leaked(views: tuple[GroupView, ...]) -> Problem | None:
    """The first prompt sent beside the groups whose answer belongs to another request, or None."""
    for view in views:
        if view.leaks and stands_beside(view):
            together = "" if view.record.plan.purpose is Purpose.SENTINEL else ", sent with others at once"
            return Problem(Reason.LEAK, f"{view.record.plan.id}{together}: {view.leaks[0]}")
    return None


def unanswered(plan: Plan, run: RunRecord, views: tuple[GroupView, ...]) -> Problem | None:
    """Why canaries that were asked for show nothing, or None if they do. A run that was stopped says so itself."""
    answered, wanted = _answered(views), len(plan.canaries) * WAVES
    if answered == wanted or not run.completed:
        return None
    return Problem(Reason.OBSERVATION_MISSING, f"{answered} of {wanted} canaries sent at once were answered")


def _answered(views: tuple[GroupView, ...]) -> int:
    return sum(attempt.ok for view in filter(are_canaries, views) for attempt in view.record.of(Arm.CANARY))


def canary_notes(plan: Plan, views: tuple[GroupView, ...]) -> tuple[str, ...]:
    """What the canaries showed; an answer that did not come shows nothing."""
    if not plan.canaries:
        return ()
    count, wanted = _answered(views), len(plan.canaries) * WAVES
    told = f"{len(plan.canaries)} canaries at once, {WAVES} times: {count} of {wanted} were answered"
    return (f"{told}, none of them with another's nonce" if count and leaked(views) is None else told,)
