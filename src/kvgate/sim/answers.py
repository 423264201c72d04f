"""What an embedded engine answers, and the faults of answers whose prompt came (partly) from the pool."""

from collections.abc import Callable
from dataclasses import dataclass, replace

RECOMPUTING = ("decode_recomputes", "decode_recomputes_at_times", "decode_recomputes_router")
# Answers of so few tokens are through before anything can preempt them.
SHORT = 8
# Per output position, (token, logprob) pairs, likeliest first.
Rows = list[list[tuple[int, float]]]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: token IDs, rows of (token, logprob), text, cached prompt tokens as reported.

    ``steps`` says how many tokens each streamed piece carries. ``transfer`` are parameters for another engine.
    ``broken_after`` ends a stream with an error after so many pieces; ``stop_reason`` is what vLLM calls that.
    ``claimed`` is how many tokens the usage speaks of, where that is not their number; ``text_is_its_own`` whether the
    text is what the IDs say. ``split`` are the cached tokens from its own cache and from outside, None if not told.
    """

    ids: list[int]
    rows: Rows
    text: str
    cached: int
    finish_reason: str
    steps: tuple[int, ...] = ()
    transfer: dict[str, object] | None = None
    stop_reason: str | None = None
    broken_after: int | None = None
    claimed: int | None = None
    text_is_its_own: bool = True
    split: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Spoiling:
    """What a fault of answers may use: how another prompt began, and how to put token IDs into words."""

    foreign: str | None
    say: Callable[[list[int]], str]

    def again(self, reply: Reply, ids: list[int], rows: Rows, finish_reason: str = "length") -> Reply:
        """The reply with another answer."""
        return replace(reply, ids=ids, rows=rows, text=self.say(ids), finish_reason=finish_reason)


def _cut(reply: Reply, at: Spoiling) -> Reply:
    half = len(reply.ids) // 2
    return at.again(reply, reply.ids[:half], reply.rows[:half], "stop")


def _doubled(reply: Reply, at: Spoiling) -> Reply:
    ids, rows = reply.ids, reply.rows
    return at.again(reply, [ids[0], *ids[:-1]], [rows[0], *rows[:-1]]) if ids else reply


def _looping(reply: Reply, at: Spoiling) -> Reply:
    ids, rows = reply.ids, reply.rows
    more = max(0, len(ids) - 3)
    return at.again(reply, ids[:3] + ids[2:3] * more, rows[:3] + rows[2:3] * more)


def _ids_missing(reply: Reply, at: Spoiling) -> Reply:
    return replace(at.again(reply, reply.ids[:-2], reply.rows[:-2]), claimed=len(reply.ids))


def _zero_logprobs(reply: Reply, _: Spoiling) -> Reply:
    return replace(reply, rows=[[(token, 0.0) for token, _ in row] for row in reply.rows])


def _foreign(reply: Reply, at: Spoiling) -> Reply:
    return reply if at.foreign is None else replace(reply, text=at.foreign, text_is_its_own=False)


def preempted(fault: str, reply: Reply, at: Spoiling, number: int) -> Reply:
    """The first half of a reply whose request was preempted, as vllm-ascend's recompute scheduler ends it.

    The whole reply where no fault says so. ``number`` counts the requests before.
    """
    if fault not in RECOMPUTING or len(reply.ids) <= SHORT:
        return reply
    if fault == "decode_recomputes_at_times" and number % 2 == 0:
        return reply
    return replace(_cut(reply, at), stop_reason="recomputed")


ON_ANSWER: dict[str, Callable[[Reply, Spoiling], Reply]] = {
    "first_token_lost": lambda reply, at: at.again(reply, reply.ids[1:], reply.rows[1:]),
    "first_token_doubled": _doubled,
    "shifted_answer": lambda reply, at: at.again(reply, reply.ids[3:], reply.rows[3:]),
    "cut_answer": _cut,
    "empty_answer": lambda reply, at: at.again(reply, [], [], "stop"),
    "looping_answer": _looping,
    "broken_stream": lambda reply, _: replace(reply, broken_after=3),
    "recomputed": lambda reply, _: replace(reply, stop_reason="recomputed"),
    "ids_missing": _ids_missing,
    "zero_logprobs": _zero_logprobs,
    "leak_under_load": _foreign,
    "leak": _foreign,
}
