"""How long requests took, by tier and by the path that their prompts' KV came by: what a hit saves or costs."""

from collections.abc import Iterable, Sequence

import numpy as np

from kvgate.domain.group_view import GroupView
from kvgate.domain.observation import Observation
from kvgate.domain.plan import Plan, Purpose
from kvgate.domain.probe import Arm, Path
from kvgate.domain.ruling import PathTiming, Spread
from kvgate.domain.standing import Standing

# Whole prompts answered by what users call; a prefill engine asked alone, say, has times of its own.
_TIMED = {
    Path.COLD: (Arm.COLD, Arm.COLD_REPEAT, Arm.POPULATE, Arm.MIXED_POPULATE, Arm.ISOLATION),
    Path.LOCAL: (Arm.LOCAL, Arm.LOCAL_REPEAT, Arm.THIRD),
    Path.EXTERNAL: (Arm.EXTERNAL, Arm.EXTERNAL_REPEAT),
    Path.MIXED: (Arm.MIXED,),
}


def timing_of(plan: Plan, views: tuple[GroupView, ...]) -> tuple[PathTiming, ...]:
    """The times of every tier's proven answers, path by path, cold first."""
    found: list[PathTiming] = []
    for tier in plan.tiers():
        members = [view for view in views if (view.record.plan.tier, view.record.plan.purpose) == (tier, Purpose.TIER)]
        cold: float | None = None
        for path, arms in _TIMED.items():
            proven = [each for view in members for each in view.standings.values() if each.proven and each.arm in arms]
            timed = _timed(tier, path, proven, cold)
            if timed is None:
                continue
            if path is Path.COLD and timed.first_token is not None:
                cold = timed.first_token.p50
            found.append(timed)
    return tuple(found)


def _timed(tier: int, path: Path, proven: Sequence[Standing], cold: float | None) -> PathTiming | None:
    answers = [each.observation for each in proven if each.observation is not None and each.observation.timing]
    total = _spread(answer.timing.total_s for answer in answers if answer.timing is not None)
    if total is None:
        return None
    first = _spread(_first(answer) for answer in answers)
    return PathTiming(
        tier=tier,
        path=path,
        probes=len(answers),
        first_token=first,
        between_tokens=_spread(_between(answer) for answer in answers),
        total=total,
        saved_s=cold - first.p50 if cold is not None and first is not None and path is not Path.COLD else None,
        reused_tokens=sum(each.shape or 0 for each in proven),
    )


def _first(answer: Observation) -> float | None:
    return answer.timing.first_token_s if answer.timing is not None else None


def _between(answer: Observation) -> float | None:
    """The mean time between two tokens of one answer."""
    first, count = _first(answer), len(answer.token_ids or ())
    if answer.timing is None or first is None or count < 2:
        return None
    return (answer.timing.total_s - first) / (count - 1)


def _spread(seconds: Iterable[float | None]) -> Spread | None:
    known = [each for each in seconds if each is not None]
    if not known:
        return None
    half, most = (float(np.quantile(known, share)) for share in (0.5, 0.9))
    return Spread(half, most, max(known))
