"""What the decision table looks at: two answers of a group, their repeats, and what is known of the run's noise."""

from dataclasses import dataclass

from kvgate.domain.divergence import Comparison
from kvgate.domain.noise import Envelope
from kvgate.domain.observation import Observation
from kvgate.domain.plan import PairPlan
from kvgate.domain.policy import Policy
from kvgate.domain.reasons import Problem
from kvgate.domain.standing import Standing


@dataclass(frozen=True, slots=True)
class PairView:
    """Everything the table looks at for one pair.

    ``exact`` is whether the pair must be bit-equal: shape-matched, or alignment predicted and proven, and the baseline
    repeats to equal IDs and a drift of exactly 0.0.
    ``control`` is the baseline held against its own repeat; ``control_problem`` says why a planned one could not be
    taken; ``against_repeat`` is the subject held against that repeat. ``noisy`` is whether some of other groups'
    controls of the same kind were not exact, or others used the engine meanwhile; ``same_again`` is how many repeats
    equal the subject to the last bit, ``too_few`` whether others did and too few repeats show that they change nothing,
    ``shown`` whether a difference as small as a near tie is no chance.
    ``lost_recall`` counts codewords the subject lost beyond what controls lost, ``lost_again`` the repeats that lost
    some, too; both only where the sides have the same shape. ``broken_off`` says why the group ended early.
    ``repeats`` are further subjects, with their comparisons to the baseline.
    """

    plan: PairPlan
    baseline: Standing | None
    subject: Standing | None
    repeats: tuple[Standing, ...]
    comparison: Comparison | None
    repeat_comparisons: tuple[Comparison, ...]
    control: Comparison | None
    control_problem: Problem | None
    against_repeat: Comparison | None
    exact: bool
    noisy: bool
    same_again: int
    too_few: bool
    shown: bool
    envelope: Envelope
    broken_off: Problem | None
    leaks: tuple[str, ...]
    lost_recall: int
    lost_again: int
    policy: Policy
    strict: bool

    @property
    def sides(self) -> tuple[Standing, ...]:
        """Baseline and subject, as far as they were reached."""
        return tuple(side for side in (self.baseline, self.subject) if side is not None)

    @property
    def answers(self) -> tuple[Observation, ...]:
        """The whole answers of baseline and subject: two, or there is nothing to compare."""
        return tuple(side.observation for side in self.sides if side.observation is not None and side.observation.ok)

    def beyond(self, comparison: Comparison) -> bool:
        """Whether a difference is more than the envelope explains."""
        return not comparison.within(self.envelope.nat)
