"""How a run may go otherwise than its plan alone says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvgate.domain.history import Entry
from kvgate.domain.plan import GroupPlan
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import RunVerdict


@dataclass(frozen=True, slots=True)
class Course:
    """What comes after the planned groups, under which salts they are sent, and what is not sent again.

    ``adapt`` gives a planned group the shape in which it is sent, by what was recorded so far. ``further`` tells from
    the ruling on all that was sent which group comes next, None once there is none.
    ``salts_of`` is the run whose salts are sent, so that what it left in the pool is read; None for the run's own.
    ``recalled`` are entries of that run, by group, that stand for arms which are not sent again.
    """

    adapt: Callable[[RunRecord, GroupPlan], GroupPlan] | None = None
    further: Callable[[RunVerdict], GroupPlan | None] | None = None
    salts_of: str | None = None
    recalled: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)


AS_PLANNED = Course()
