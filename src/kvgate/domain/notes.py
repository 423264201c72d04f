"""What a reader should know of a run whatever its verdict is."""

from kvgate.domain.canaries import canary_notes
from kvgate.domain.deployment import Role
from kvgate.domain.group_view import GroupView
from kvgate.domain.plan import Plan
from kvgate.domain.pressure import pressure_notes
from kvgate.domain.reasons import Reason
from kvgate.domain.sentinels import sentinel_notes


def notes_on(
    plan: Plan, views: tuple[GroupView, ...], counted: tuple[GroupView, ...], alignment_proven: bool
) -> tuple[str, ...]:
    """All notes; ``counted`` are the groups that the verdict rests on, ``views`` also those replaced and canaries."""
    return (
        *pressure_notes(plan, views),
        *canary_notes(plan, views),
        *sentinel_notes(plan, views),
        *_idle_engines(plan, counted),
        *_sent_again(views),
        *_unread_logs(views),
        *_unshown_alignment(counted, alignment_proven),
    )


def _unshown_alignment(views: tuple[GroupView, ...], proven: bool) -> tuple[str, ...]:
    if proven or not any(view.record.plan.aligned for view in views):
        return ()
    return (f"{Reason.ALIGNMENT_UNPROVEN.value}: aligned lengths were chosen, but no group shows it",)


def _sent_again(views: tuple[GroupView, ...]) -> tuple[str, ...]:
    """How many requests were sent a second time because the connection broke before the first byte."""
    attempts = [each for view in views for arm in view.record.attempts.values() for each in arm]
    count = sum(each.observation is not None and "retried" in each.observation.marks for each in attempts)
    told = f"{count} of {len(attempts)} requests were sent again: the connection broke before a byte came"
    return (told,) if count else ()


def _unread_logs(views: tuple[GroupView, ...]) -> tuple[str, ...]:
    """Logs that were named and could not be read: what they may have said of failed loads is not known."""
    unread = [each.log_detail for view in views for arm in view.record.attempts.values() for each in arm]
    unread = [detail for detail in unread if detail]
    return (f"the log could not be read beside {len(unread)} requests: {unread[0]}",) if unread else ()


def _idle_engines(plan: Plan, views: tuple[GroupView, ...]) -> tuple[str, ...]:
    """Prefill engines behind a gateway that served nothing: whatever the verdict is, it is not about them."""
    engines = [endpoint.name for endpoint in plan.deployment.with_role(Role.PREFILL)]
    served = [
        standing.evidence.rank.split("/")[0]
        for view in views
        for standing in view.standings.values()
        if standing.evidence.rank is not None
    ]
    if len(engines) < 2 or not any(name in served for name in engines):
        return ()
    idle = [name for name in engines if name not in served]
    return tuple(f"{name} served none of the {len(served)} answers: this verdict is not about it" for name in idle)
