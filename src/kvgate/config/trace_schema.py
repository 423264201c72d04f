"""The trace file's schema: which requests are sent when. Unknown keys are refused; every field says what it expects."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from kvgate.config.values import Name, Real, Section, Whole
from kvgate.domain.trace import Arrival, Kind, Slo, Spacing, Trace, TracePart

# Prompts below this have no room for what stands before every prompt.
SHORTEST = 64
_Length = Annotated[Whole, Field(ge=SHORTEST, le=16_777_216)]
_Seconds = Annotated[Real, Field(gt=0, le=86_400)]
MOST_REQUESTS = 100_000
# Kinds whose requests belong to sessions of several turns.
IN_TURNS = (Kind.SESSIONS, Kind.AGENT)


class ArrivalConfig(Section):
    """When requests, or sessions, start."""

    rate: Annotated[Real, Field(gt=0, le=10_000)] | None = Field(
        None, description="requests a second (sessions a second for sessions and agent), whatever is answered"
    )
    spread: Spacing = Field(Spacing.POISSON, description="poisson (by chance) or even; with rate only")
    concurrency: Annotated[Whole, Field(ge=1, le=4096)] | None = Field(
        None, description="requests (or sessions) at a time, the next as soon as one ends"
    )

    @model_validator(mode="after")
    def _one_way(self) -> "ArrivalConfig":
        if (self.rate is None) == (self.concurrency is None):
            raise ValueError("give either rate or concurrency, and only one of them")
        if self.rate is None and "spread" in self.model_fields_set:
            raise ValueError("spread: goes with rate; leave it out beside concurrency")
        return self


class SloConfig(Section):
    """What an answer must keep to count as good, in seconds; leave out what does not matter."""

    first_token_s: _Seconds | None = Field(None, description="seconds to the first token, at most")
    between_tokens_s: _Seconds | None = Field(
        None, description="seconds between two tokens, at most, as the mean of one answer"
    )
    total_s: _Seconds | None = Field(None, description="seconds to the end of the answer, at most")


class TraceRequestsConfig(Section):
    """What is asked of every request."""

    max_tokens: Annotated[Whole, Field(ge=1, le=4096)] = Field(32, description="output tokens, 1 to 4096")


class PartConfig(Section):
    """One request set."""

    name: Name = Field(description="short name used in the report, for instance 'chats'")
    kind: Kind = Field(
        description="random (next to nothing in common), shared_prefix (all begin alike), sessions (each turn is all "
        "earlier turns and more) or agent (the same, long beginning, short increments)"
    )
    count: Annotated[Whole, Field(ge=1, le=MOST_REQUESTS)] = Field(
        description="requests, or sessions for the kinds sessions and agent"
    )
    turns: Annotated[Whole, Field(ge=2, le=1000)] | None = Field(
        None, description="requests of each session, 2 or more; for sessions and agent"
    )
    prompt_tokens: _Length = Field(description=f"prompt tokens of a request, or of a first turn, {SHORTEST} or more")
    shared_tokens: _Length | None = Field(
        None, description="prompt tokens that all begin with; for shared_prefix, and if wanted for sessions and agent"
    )
    increment_tokens: Annotated[Whole, Field(ge=1, le=16_777_216)] | None = Field(
        None, description="prompt tokens that each further turn adds, answer and all; for sessions and agent"
    )
    think_s: Annotated[Real, Field(ge=0, le=3600)] = Field(
        0.0, description="seconds between an answer and the next turn; for sessions and agent"
    )
    language: Literal["en", "zh"] = Field("en", description="en or zh")
    arrival: ArrivalConfig = Field(description="{rate: a second, spread: poisson|even} or {concurrency: at a time}")

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "PartConfig":
        in_turns = self.kind in IN_TURNS
        for name in ("turns", "increment_tokens"):
            if (getattr(self, name) is not None) != in_turns:
                raise ValueError(f"{name}: {'is missing' if in_turns else 'does not go'} with kind {self.kind.value}")
        if self.think_s and not in_turns:
            raise ValueError(f"think_s: does not go with kind {self.kind.value}")
        if self.kind is Kind.SHARED_PREFIX and self.shared_tokens is None:
            raise ValueError("shared_tokens: is missing with kind shared_prefix")
        if self.kind is Kind.RANDOM and self.shared_tokens is not None:
            raise ValueError("shared_tokens: does not go with kind random")
        if self.shared_tokens is not None and self.shared_tokens >= self.prompt_tokens:
            raise ValueError(
                f"shared_tokens ({self.shared_tokens}) must be below prompt_tokens ({self.prompt_tokens}), which "
                "include them"
            )
        return self


class TraceFile(Section):
    """A kvgate trace: what `kvgate measure` sends to every deployment."""

    version: Literal[1] = Field(description="version of this format: 1")
    seed: Annotated[Whole, Field(ge=0, lt=2**63)] = Field(
        description="seed of prompts and arrivals, a whole number; the same seed gives the same trace"
    )
    repeats: Annotated[Whole, Field(ge=1, le=100)] = Field(
        1, description="times the whole is sent to each deployment, every other time in the opposite order"
    )
    requests: TraceRequestsConfig = Field(
        default_factory=lambda: TraceRequestsConfig.model_validate({}), description="what is asked of every request"
    )
    slo: SloConfig = Field(
        default_factory=lambda: SloConfig.model_validate({}), description="first_token_s, between_tokens_s, total_s"
    )
    parts: Annotated[list[PartConfig], Field(min_length=1)] = Field(
        description="list of request sets, sent one after the other"
    )

    @field_validator("parts")
    @classmethod
    def _names_differ(cls, parts: list[PartConfig]) -> list[PartConfig]:
        names = [part.name for part in parts]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two parts are named {twice[0]!r}; give each its own name")
        requests = sum(part.count * (part.turns or 1) for part in parts)
        if requests > MOST_REQUESTS:
            raise ValueError(f"{requests} requests are more than {MOST_REQUESTS}; make several traces of them")
        return parts


def trace_of(file: TraceFile) -> Trace:
    """The trace that a file describes."""
    slo = Slo(file.slo.first_token_s, file.slo.between_tokens_s, file.slo.total_s)
    parts = tuple(
        TracePart(
            name=part.name,
            kind=part.kind,
            count=part.count,
            turns=part.turns or 1,
            prompt_tokens=part.prompt_tokens,
            shared_tokens=part.shared_tokens or 0,
            increment_tokens=part.increment_tokens or 0,
            arrival=Arrival(part.arrival.rate, part.arrival.spread, part.arrival.concurrency),
            think_s=part.think_s,
            language=part.language,
        )
        for part in file.parts
    )
    return Trace(file.seed, file.requests.max_tokens, file.repeats, slo, parts)
