"""What the user asks of a verdict."""

from dataclasses import dataclass
from enum import Enum


class PolicyName(str, Enum):
    """``calibrated`` allows measured noise on tolerant pairs; ``strict`` fails on any token difference."""

    CALIBRATED = "calibrated"
    STRICT = "strict"


class Grade(str, Enum):
    """How much a piece of evidence shows. SCHEDULED: looked up and admitted. ARRIVED: counted after the load."""

    SCHEDULED = "scheduled"
    ARRIVED = "arrived"


class Source(str, Enum):
    """What can confirm, beside the engine's counters, that a hit came by its path.

    REPLY: the cached tokens in the reply. LOG: lines of the engine's log. FIRST_TOKEN: the time to the first token,
    against the cold run's.
    """

    REPLY = "reply"
    LOG = "log"
    FIRST_TOKEN = "first_token"


@dataclass(frozen=True, slots=True)
class Policy:
    """Bounds in nats (differences of natural-logarithm probabilities) unless the name says otherwise.

    ``required_sources`` must confirm every hit from outside; all others may contradict. ``first_token_ratio`` is the
    largest share of the cold run's time to the first token that confirms one. ``max_fault_rate`` is the largest share
    of requests in which a PASS may leave random faults open, None for any.
    """

    name: PolicyName = PolicyName.CALIBRATED
    evidence: Grade = Grade.ARRIVED
    exercised_share: float = 0.95
    envelope_floor_nat: float = 0.1
    envelope_cap_nat: float = 0.5
    lossy_bound_nat: float | None = None
    accept_ids_only: bool = False
    accept_text_only: bool = False
    accept_unproven_alignment: bool = False
    alpha: float = 0.01
    min_output_tokens: int = 8
    required_sources: tuple[Source, ...] = ()
    first_token_ratio: float = 0.9
    max_fault_rate: float | None = None
