"""A group put in view: its arms, each weighed once, and the comparisons among its own baselines."""

from dataclasses import dataclass

from kvgate.domain.divergence import Comparison, compare
from kvgate.domain.noise import (
    COLD_EXTERNAL,
    COLD_LOCAL,
    COLD_REPEAT,
    DIRECT_LOCAL,
    LOCAL_REPEAT,
    TWO_LEG_REPEAT,
    Control,
)
from kvgate.domain.observation import Observation
from kvgate.domain.plan import Plan
from kvgate.domain.probe import Arm
from kvgate.domain.record import GroupRecord
from kvgate.domain.standing import Standing, repeats_of, standing_of

# Controls that show at aligned lengths whether a hit must equal a cold run.
ALIGNED_PAIRS = (COLD_LOCAL, COLD_EXTERNAL)


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group's arms, weighed once, with its own control comparisons."""

    record: GroupRecord
    standings: dict[Arm, Standing]
    repeats: dict[tuple[Arm, ...], tuple[Standing, ...]]
    controls: tuple[Control, ...]
    leaks: tuple[str, ...] = ()

    @property
    def shows_alignment(self) -> bool:
        """Whether an aligned group shows cold equal to a hit at exactly 0.0, both on their proven paths."""
        if not self.record.plan.aligned:
            return False
        return any(control.kind in ALIGNED_PAIRS and control.comparison.exact for control in self.controls)


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
    kinds: tuple[tuple[str, Arm, Arm], ...] = (
        (LOCAL_REPEAT, Arm.LOCAL, Arm.LOCAL_REPEAT),
        (COLD_REPEAT, Arm.COLD, Arm.COLD_REPEAT),
        (TWO_LEG_REPEAT, Arm.TWO_LEG, Arm.TWO_LEG_REPEAT),
        (COLD_LOCAL, Arm.COLD, Arm.LOCAL),
        (DIRECT_LOCAL, Arm.PREFILL_DIRECT, Arm.TWO_LEG if Arm.TWO_LEG in standings else Arm.LOCAL),
    )
    if Arm.LOCAL not in standings:
        kinds = (*kinds, (COLD_EXTERNAL, Arm.COLD, Arm.EXTERNAL))
    found: list[Control] = []
    for kind, one, other in kinds:
        if kind == DIRECT_LOCAL and computed(record, standings.get(one)) != 1:
            continue
        comparison = proven_comparison(standings.get(one), standings.get(other))
        if comparison is not None:
            found.append(Control(kind, record.plan.id, comparison, record.plan.level))
    return tuple(found)


def computed(record: GroupRecord, standing: Standing | None) -> int | None:
    """Prompt tokens that were computed for an answer; a decode engine computes the last one, whatever prefill did."""
    return record.plan.length - standing.shape if standing is not None and standing.shape is not None else None


def proven_comparison(one: Standing | None, other: Standing | None) -> Comparison | None:
    """Two answers held against each other, if both came by their paths; else None."""
    if one is None or other is None or not (one.proven and other.proven):
        return None
    left, right = answer(one), answer(other)
    return compare(left, right) if left is not None and right is not None else None


def answer(standing: Standing | None) -> Observation | None:
    """The complete answer of a standing, or None."""
    observation = standing.observation if standing is not None else None
    return observation if observation is not None and observation.ok else None
