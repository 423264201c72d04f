"""Everything that came back for one probe. Never a judgement."""

import math
from dataclasses import dataclass
from enum import Enum


class Outcome(str, Enum):
    """How the exchange ended: a complete answer, a definite refusal, or neither."""

    OK = "OK"
    REFUSED = "REFUSED"
    LOST = "LOST"


@dataclass(frozen=True, slots=True)
class Usage:
    """The server's own token counts. The cached ones are None where the server did not say (not zero).

    ``local_cached_tokens`` and ``external_cached_tokens`` are the engine's own split of ``cached_tokens``.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    local_cached_tokens: int | None = None
    external_cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds since the request was sent; None where there was no such moment.

    ``pieces_s`` is when each piece of a stream came that held output, None where that was not kept.
    """

    first_token_s: float | None
    total_s: float
    pieces_s: tuple[float, ...] | None = None


# The mark of a refusal that is none: HTTP 200 with nothing in it.
EMPTY_BODY = "empty-body"
# The mark of a request that the gate itself broke off.
BROKEN_OFF = "broken-off"
# Marks that say why the token IDs, or the logprobs, are not to be trusted although they came.
ID_MARKS = {
    "ids-ambiguous": "the lists of token IDs may each hold what is new or all there is so far, and no count settles it",
    "ids-contradict": "the reply carries two lists of its token IDs that differ",
    "restarted": "the reply begins anew in its middle, as if a proxy had asked twice",
}
LOGPROB_MARKS = {"logprobs-misplaced": "the logprobs are named after other tokens than the reply's"}


@dataclass(frozen=True, slots=True)
class Leg:
    """What one engine said to its part of a request that was sent in two legs."""

    endpoint: str
    outcome: Outcome
    detail: str
    status: int | None
    token_ids: tuple[int, ...] | None
    usage: Usage | None
    timing: Timing | None


@dataclass(frozen=True, slots=True)
class Observation:
    """One reply as it came.

    ``token_ids`` has n entries, or is None where the server gave none; ``logprobs`` are the chosen tokens'
    (natural logarithm, n entries); ``top_ids`` and ``top_logprobs`` are n rows of the k most likely tokens.
    ``prompt_echoed`` is whether the prompt IDs the server says it saw equal those sent; None if it said nothing.
    ``echo_sha256`` is the digest of the prompt it says it saw where that is another than the one sent.
    ``transfer`` are the parameters (JSON) by which a decode engine may fetch this prompt's KV, where there were any.
    ``legs`` are the parts of a request that was sent in two, first prefill's.
    ``marks`` are things worth knowing that are no error: ``retried``, ``recomputed``, ``no-done-marker``,
    ``prompt-repeated`` (and cut off), ``broken-off`` (by the gate itself), and those of ``ID_MARKS`` and
    ``LOGPROB_MARKS``, which forbid trusting a part.
    """

    outcome: Outcome
    detail: str = ""
    status: int | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float | None, ...] | None = None
    top_ids: tuple[tuple[int, ...], ...] | None = None
    top_logprobs: tuple[tuple[float | None, ...], ...] | None = None
    text: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    prompt_echoed: bool | None = None
    echo_sha256: str | None = None
    timing: Timing | None = None
    marks: tuple[str, ...] = ()
    transfer: str | None = None
    legs: tuple[Leg, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether a complete answer came back."""
        return self.outcome is Outcome.OK

    def id_problem(self) -> str | None:
        """Why the token IDs cannot be trusted as the whole answer, or None if they can."""
        if self.token_ids is None:
            return "the reply carries no token IDs"
        if self.marks and (told := _first(self.marks, ID_MARKS)) is not None:
            return told
        if self.usage is not None and self.usage.completion_tokens != len(self.token_ids):
            return f"the reply carries {len(self.token_ids)} token IDs, its usage says {self.usage.completion_tokens}"
        return None

    def logprob_problem(self) -> str | None:
        """Why the logprobs cannot be compared, or None if they can. All-zero logprobs are a known lie."""
        if self.logprobs is None or self.top_ids is None or self.top_logprobs is None:
            return "the reply carries no logprobs"
        count = len(self.token_ids or ())
        if not len(self.logprobs) == len(self.top_ids) == len(self.top_logprobs) == count:
            return f"the reply carries {len(self.logprobs)} logprobs for {count} token IDs"
        if self.marks and (told := _first(self.marks, LOGPROB_MARKS)) is not None:
            return told
        if count > 1 and all(value == 0.0 for value in self.logprobs):
            return "every logprob is exactly 0.0"
        return None

    def has_non_finite_logprobs(self) -> bool:
        """Whether a logprob is missing, NaN or infinite: the mark of NaN in the logits."""
        return any(value is None or not math.isfinite(value) for value in self.logprobs or ())


def _first(marks: tuple[str, ...], meanings: dict[str, str]) -> str | None:
    return next((meanings[mark] for mark in marks if mark in meanings), None)
