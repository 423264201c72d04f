"""The serving system under test, and what it was found able to show."""

from dataclasses import dataclass
from enum import Enum


class Role(str, Enum):
    """What an endpoint is to the deployment."""

    GATEWAY = "gateway"
    PREFILL = "prefill"
    DECODE = "decode"
    COMBINED = "combined"
    REFERENCE = "reference"
    POOL = "pool"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One base URL with a role. The name is how plans, records and reports call it.

    ``rank`` is the data-parallel rank that every request is pinned to which the gate itself sends there, None if none.
    """

    name: str
    role: Role
    url: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """One serving system, named, with everything known about it before a request is sent.

    ``alike`` is whether prefill and decode engines run the same build in the same way, None if nobody says.
    """

    name: str
    engine: str
    model: str
    endpoints: tuple[Endpoint, ...]
    alike: bool | None = None

    def endpoint(self, name: str) -> Endpoint:
        """The endpoint of that name; KeyError if the deployment has none."""
        for endpoint in self.endpoints:
            if endpoint.name == name:
                return endpoint
        raise KeyError(name)

    def with_role(self, role: Role) -> tuple[Endpoint, ...]:
        """All endpoints of a role, in the order of the configuration."""
        return tuple(endpoint for endpoint in self.endpoints if endpoint.role is role)


class AnswerGrade(str, Enum):
    """Which evidence of the answer the endpoint gives: A (IDs and logprobs), B (IDs), C (text only)."""

    A = "A"
    B = "B"
    C = "C"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one endpoint was found able to do, each by asking it; None where it was not asked.

    Source: the capability probe of `kvgate.engines` (one short request), plus GET requests.
    """

    endpoint: str
    token_ids: bool | None = None
    logprobs: bool | None = None
    echoes_prompt_ids: bool | None = None
    salt: bool | None = None
    reset_local: bool | None = None
    counters: bool | None = None
    tokens_by_source: bool | None = None
    cached_tokens: bool | None = None
    version: str | None = None
    details: tuple[str, ...] = ()

    @property
    def answer_grade(self) -> AnswerGrade:
        """The grade of answer evidence (design §5)."""
        if self.token_ids and self.logprobs:
            return AnswerGrade.A
        return AnswerGrade.B if self.token_ids else AnswerGrade.C
