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


def weaker(found: Policy, wanted: Policy) -> tuple[str, ...]:
    """In what a policy lets pass more than another one, one phrase each; the names of policies are not compared."""
    more = (
        ("exercised_share", found.exercised_share < wanted.exercised_share),
        ("envelope_floor_nat", found.envelope_floor_nat > wanted.envelope_floor_nat),
        ("envelope_cap_nat", found.envelope_cap_nat > wanted.envelope_cap_nat),
        ("lossy_bound_nat", (found.lossy_bound_nat or 0.0) > (wanted.lossy_bound_nat or 0.0)),
        ("accept_ids_only", found.accept_ids_only and not wanted.accept_ids_only),
        ("accept_text_only", found.accept_text_only and not wanted.accept_text_only),
        ("accept_unproven_alignment", found.accept_unproven_alignment and not wanted.accept_unproven_alignment),
        ("alpha", found.alpha < wanted.alpha),
        ("min_output_tokens", found.min_output_tokens < wanted.min_output_tokens),
        ("first_token_ratio", found.first_token_ratio > wanted.first_token_ratio),
    )
    names = [name for name, is_so in more if is_so]
    phrases = [f"{name} {_said(getattr(found, name))}, not {_said(getattr(wanted, name))}" for name in names]
    if found.evidence is Grade.SCHEDULED and wanted.evidence is Grade.ARRIVED:
        phrases.insert(0, "evidence scheduled, not arrived")
    left_out = [each.value for each in wanted.required_sources if each not in found.required_sources]
    return (*phrases, *(f"required_sources without {each}" for each in left_out))


def _said(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
