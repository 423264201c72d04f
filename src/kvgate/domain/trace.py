"""A trace: which prompts arrive when. Made from a seed, so that every deployment gets the same one.

A session's prompts are beginnings of one token sequence: each turn is all earlier turns and what is new. What stands
where the answers would be is part of that sequence, too, so the trace does not hang on what a deployment answers.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from kvgate.domain.prompt import NONCE_DIGITS, Family, Ids, Lexicon, TooShortError, digest, drawn, passage


class Kind(str, Enum):
    """What the prompts of a part have in common."""

    RANDOM = "random"
    SHARED_PREFIX = "shared_prefix"
    SESSIONS = "sessions"
    AGENT = "agent"


class Spacing(str, Enum):
    """How arrivals are spaced: by chance, as users come who know nothing of each other, or evenly."""

    POISSON = "poisson"
    EVEN = "even"


# The families that what is shared, and what is a request's own, is made of.
FAMILIES = {
    Kind.RANDOM: ("random", "random"),
    Kind.SHARED_PREFIX: ("shared_prefix", "prose"),
    Kind.SESSIONS: ("chat", "chat"),
    Kind.AGENT: ("agent", "agent"),
}


@dataclass(frozen=True, slots=True)
class Arrival:
    """When sessions start: ``rate`` of them a second, or ``concurrency`` at a time, each after an earlier one ended."""

    rate: float | None = None
    spacing: Spacing = Spacing.POISSON
    concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class TracePart:
    """A set of requests. Lengths are in prompt tokens, ``think_s`` in seconds between an answer and the next turn.

    There are ``count`` sessions of ``turns`` requests; where each request stands alone, a session is one request. The
    first prompt has ``prompt_tokens``, of which ``shared_tokens`` are those of every session; each further turn adds
    ``increment_tokens``.
    """

    name: str
    kind: Kind
    count: int
    turns: int
    prompt_tokens: int
    shared_tokens: int
    increment_tokens: int
    arrival: Arrival
    think_s: float = 0.0
    language: str = "en"

    def length(self, turn: int) -> int:
        """Prompt tokens of a turn, counted from 0."""
        return self.prompt_tokens + turn * self.increment_tokens

    @property
    def longest(self) -> int:
        """Prompt tokens of the last turn."""
        return self.length(self.turns - 1)

    def families(self) -> tuple[tuple[str, str], ...]:
        """The families, by name and language, of what is shared and of what is not."""
        shared, own = FAMILIES[self.kind]
        return (shared, self.language), (own, self.language)


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must keep, in seconds; None asks nothing. ``between_tokens_s`` is the mean of one answer."""

    first_token_s: float | None = None
    between_tokens_s: float | None = None
    total_s: float | None = None

    @property
    def given(self) -> bool:
        """Whether it asks for anything."""
        return (self.first_token_s, self.between_tokens_s, self.total_s) != (None, None, None)


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything that is sent, and what is asked of the answers; the whole of it ``repeats`` times."""

    seed: int
    max_tokens: int
    repeats: int
    slo: Slo
    parts: tuple[TracePart, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """One request of the trace. Its name is unique within the trace, its session within its part.

    ``arrives_s`` is in seconds after its part began; None for what waits for an answer. ``sha256`` is the digest of
    its token IDs without the beginning that is new in every run.
    """

    id: str
    part: str
    session: int
    turn: int
    arrives_s: float | None
    length: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TracePrompts:
    """Makes the prompts of a trace from families and lexicons, both by (family, language)."""

    trace: Trace
    families: Mapping[tuple[str, str], Family]
    lexicons: Mapping[tuple[str, str], Lexicon]

    def head(self, part: TracePart, nonce: str) -> list[int]:
        """What a prompt begins with: what the tokenizer puts there, and a nonce; as long for every nonce."""
        key = part.families()[0]
        lexicon, filler = self.lexicons[key], self.families[key].padding
        width = NONCE_DIGITS * max(len(lexicon.ids[digit]) for digit in "0123456789")
        ids = [token for digit in nonce for token in lexicon.ids[digit]]
        while len(ids) < width:
            ids.extend(lexicon.ids[filler[0]])
        return [*lexicon.prefix, *ids[:width]]

    def session(self, part: TracePart, number: int, nonce: str) -> Ids:
        """The tokens of a session's last prompt, of which the earlier ones are beginnings. Raises TooShortError."""
        shared, own = part.families()
        seeded = f"{self.trace.seed}/{part.name}"
        ids = self.head(part, nonce)
        least = part.shared_tokens or part.prompt_tokens
        if len(ids) >= least:
            raise TooShortError(f"{len(ids)} tokens stand before every prompt, {least} leave no room for more")
        if part.shared_tokens:
            ids += self._passage(shared, f"{seeded}/shared", part.shared_tokens - len(ids))
        ids += self._passage(own, f"{seeded}/{number}", part.prompt_tokens - len(ids))
        for turn in range(1, part.turns):
            ids += self._passage(own, f"{seeded}/{number}/{turn}", part.increment_tokens)
        return np.array(ids, dtype=np.int32)

    def _passage(self, key: tuple[str, str], name: str, length: int) -> list[int]:
        return passage(self.families[key], self.lexicons[key], name, length)


def planned(prompts: TracePrompts) -> tuple[Planned, ...]:
    """Every request, part by part, session by session. Raises TooShortError where a prompt cannot be made."""
    return tuple(request for part in prompts.trace.parts for request in _planned_in(prompts, part))


def _planned_in(prompts: TracePrompts, part: TracePart) -> Iterator[Planned]:
    arrivals = arrivals_of(prompts.trace.seed, part)
    for session in range(part.count):
        start = len(prompts.head(part, ""))
        whole = prompts.session(part, session, "")
        for turn in range(part.turns):
            length = part.length(turn)
            yield Planned(
                id=f"{part.name}.{session}.{turn}",
                part=part.name,
                session=session,
                turn=turn,
                arrives_s=arrivals[session] if turn == 0 else None,
                length=length,
                sha256=digest(whole[start:length]),
            )


def arrivals_of(seed: int, part: TracePart) -> tuple[float | None, ...]:
    """When each session starts, in seconds after the first; None where that hangs on answers."""
    arrival = part.arrival
    if arrival.rate is None:
        return (None,) * part.count
    chance = drawn(f"{seed}/{part.name}/arrivals")
    times, now = [], 0.0
    for _ in range(part.count):
        times.append(round(now, 6))
        share = (next(chance) + 0.5) / 2**32
        now += (-math.log(share) if arrival.spacing is Spacing.POISSON else 1.0) / arrival.rate
    return tuple(times)


def nonce_of_run(name: str) -> str:
    """The digits that every prompt of a run, or of a part of it, begins with."""
    chance = drawn(name)
    return "".join(str(next(chance) % 10) for _ in range(NONCE_DIGITS))


@dataclass(frozen=True, slots=True)
class TraceLeg:
    """The whole trace, once, on one deployment (by its place in the configuration's order)."""

    number: int
    repeat: int
    deployment: int


def legs_of(deployments: int, repeats: int) -> tuple[TraceLeg, ...]:
    """All legs in the order they are sent: every other repeat backwards, so that drift does not favour one."""
    order: list[tuple[int, int]] = []
    for repeat in range(repeats):
        turn = list(range(deployments))
        order += [(repeat, each) for each in (reversed(turn) if repeat % 2 else turn)]
    return tuple(TraceLeg(number, *each) for number, each in enumerate(order))
