"""What a run as a whole leaves in doubt although no pair of it failed."""

from collections.abc import Iterable

from kvgate.domain.group_view import ALIGNED_PAIRS, GroupView
from kvgate.domain.noise import COLD_REPEAT, DIRECT_LOCAL, LOCAL_REPEAT, Control, repeats_exact
from kvgate.domain.pairing import NOISY_SHARE
from kvgate.domain.plan import Plan
from kvgate.domain.reasons import Problem, Reason


def doubts(plan: Plan, views: tuple[GroupView, ...]) -> tuple[Problem, ...]:
    """Predictions of equality that the run's own controls contradict: no fault is shown, and none excluded."""
    return (*_alignment(plan, views), *_transfer(plan, views))


def _alignment(plan: Plan, views: tuple[GroupView, ...]) -> tuple[Problem, ...]:
    """An engine that repeats itself to the last bit must do so at aligned lengths whichever way the KV came.

    Where most groups do not, the prediction is wrong or every prompt's KV was wrong when it was saved: a local and an
    external hit are then wrong alike, and a small fault lies within the tolerance that is left.
    """
    if plan.policy.accept_unproven_alignment:
        return ()
    busy = any(standing.evidence.busy for view in views for standing in view.standings.values())
    if busy and not all(repeats_exact(control for view in views for control in view.controls)):
        # Answers hang on what else is in the batch: cold runs that are equal by chance contradict nothing.
        return ()
    controls = [control for view in views if view.record.plan.aligned for control in view.controls]
    differing = _contradicted(ALIGNED_PAIRS, COLD_REPEAT, controls)
    if differing is None:
        return ()
    detail = f"the engine repeats cold runs exactly, yet at aligned lengths {differing} hits differ from them"
    return (Problem(Reason.ALIGNMENT_UNPROVEN, detail),)


def _transfer(plan: Plan, views: tuple[GroupView, ...]) -> tuple[Problem, ...]:
    """Prefill and decode engines that repeat themselves and differ: another build, or every transfer is wrong."""
    if plan.deployment.alike is not None:
        return ()
    differing = _contradicted((DIRECT_LOCAL,), LOCAL_REPEAT, [control for view in views for control in view.controls])
    if differing is None:
        return ()
    detail = f"the engines repeat themselves exactly, yet {differing} transferred answers differ from prefill alone"
    return (Problem(Reason.TRANSFER_UNPROVEN, detail),)


def _contradicted(kinds: tuple[str, ...], repeats: str, controls: Iterable[Control]) -> str | None:
    """How many of the controls of these kinds differ, where most do although the repeats are exact; else None."""
    every = tuple(controls)
    seen = [control.comparison.exact for control in every if control.kind in kinds]
    repeated = [control.comparison.exact for control in every if control.kind == repeats]
    repeats_itself = bool(repeated) and repeated.count(False) <= NOISY_SHARE * len(repeated)
    if not seen or not repeats_itself or 2 * seen.count(True) > len(seen):
        return None
    return f"{seen.count(False)} of {len(seen)}"
