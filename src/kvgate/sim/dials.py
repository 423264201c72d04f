"""What may be odd about an engine without being wrong: noise, latency, start-up lag; and where a fault strikes."""

import hashlib
from dataclasses import dataclass

import numpy as np

from kvgate.sim.network import VOCABULARY, Floats, Ids


@dataclass(frozen=True, slots=True)
class Dials:
    """Benign oddities. Noise in nat, times in seconds.

    ``flip_share`` is the share of prompts whose answers differ between a long last prefill chunk and a short one:
    they have a near tie (``tie_nat`` apart) that the shape decides, and ``shape_noise`` on all logits beside it.
    ``run_noise`` is drawn anew for ``run_share`` of the requests, ``batch_noise`` hangs on how many requests are in
    flight and, where a batch of one size has several ``batch_shapes``, on which of them a request meets.
    ``near_ties`` is the share of prompts with a near tie that nothing decides otherwise.
    ``run_flips`` is the share of requests that decide a near tie the other way, whatever their prompt and shape, with
    ``shape_noise`` on all logits beside it; every prompt has a near tie then. With a ``run_span`` above 1 it is the
    share of spans of so many requests in a row, in which every request carries that noise and a fair coin decides; with
    ``spans_agree`` the noise is the span's, and all of its requests decide the other way. What is drawn anew for each
    request or span is drawn otherwise on another ``course``.
    ``preempted_every`` preempts every so-manieth request, which is computed again.
    ``compute_per_1k_s`` is taken per thousand prompt tokens that are computed, ``latency_per_1k_s`` of all.
    ``prefill_drops`` is how many tokens a prefill engine leaves off a prompt's end for decode to compute.
    Engines write their logs into ``log_folder``, if there is one; with ``log_denies_loads`` they say that nothing is to
    be loaded, whatever is. With ``tells_split`` a reply tells how many cached tokens were the engine's own and how many
    came from outside; with ``foreign`` somebody else uses the engine all the time. ``pool_bytes`` is what the pool
    holds before it drops the oldest, 0 for no bound. Of a request whose client has gone away the engine lets go after
    ``lets_go_after_s``. ``struck_block`` and ``struck_lengths`` (first and last of each range) are where a fault
    strikes that strikes one block or some lengths only; without such a fault they do nothing.
    """

    flip_share: float = 0.0
    tie_nat: float = 0.02
    shape_noise: float = 0.03
    near_ties: float = 0.0
    run_noise: float = 0.0
    run_share: float = 1.0
    batch_noise: float = 0.0
    batch_shapes: int = 1
    run_flips: float = 0.0
    run_span: int = 1
    spans_agree: bool = False
    course: int = 0
    latency_s: float = 0.0
    latency_per_1k_s: float = 0.0
    latency_per_token_s: float = 0.0
    compute_per_1k_s: float = 0.0
    put_lag_s: float = 0.0
    start_up_s: float = 0.0
    preempted_every: int = 0
    prefill_drops: int = 0
    log_folder: str = ""
    log_denies_loads: bool = False
    tells_split: bool = False
    foreign: bool = False
    pool_bytes: int = 0
    lets_go_after_s: float = 0.0
    struck_block: int = 3
    struck_lengths: tuple[tuple[int, int], ...] = ((512, 639),)


QUIET = Dials()


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What noise may hang on: the prompt, the size of its last prefill chunk, and what else is going on."""

    prompt: Ids
    last_chunk: int
    granule: int
    batch: int
    request: int


class Noise:
    """The noise of one answer."""

    def __init__(self, dials: Dials, at: Circumstances) -> None:
        self._dials = dials
        self._at = at
        self._seed = int.from_bytes(hashlib.sha256(at.prompt.astype("<i4").tobytes()).digest()[:8], "big")
        lot = (self._seed >> 8) % 10_000 / 10_000
        self._flips = lot < dials.flip_share
        tied = self._flips or lot < dials.near_ties or dials.run_flips > 0.0
        self._tie_at = 1 + self._seed % 8 if tied else None
        runs = np.random.default_rng((at.request, 1)).random() < dials.run_share
        self._noisy_run = bool(runs) and dials.run_noise > 0.0
        self._unsteady, self._turns = _turn(dials, at.request)

    def apply(self, logits: Floats, position: int) -> Floats:
        """The logits at one output position as this answer has them."""
        dials, at = self._dials, self._at
        long_chunk = at.last_chunk > at.granule
        # The same two tokens whatever the noise: they are chosen before it, and set after it.
        tie = _two_likeliest(logits) if position == self._tie_at else None
        if self._flips:
            logits = logits + self._drawn(dials.shape_noise, position, 2 + at.last_chunk)
        if self._unsteady:
            number = _span_of(dials, at.request) if dials.spans_agree else at.request
            logits = logits + self._drawn(dials.shape_noise, position, 7, number, dials.course)
        if tie is not None:
            swap = ((self._seed >> 4) % 2 == 0) ^ (self._flips and long_chunk) ^ self._turns
            logits = _tied(logits, dials.tie_nat, tie[::-1] if swap else tie)
        if self._noisy_run:
            logits = logits + self._drawn(dials.run_noise, position, 3, at.request)
        if at.batch > 1 and dials.batch_noise > 0.0:
            logits = logits + self._drawn(dials.batch_noise, position, 5, at.batch, *self._shape())
        return logits

    def _shape(self) -> tuple[int, ...]:
        """Which of the shapes of a batch of its size this request meets, where there are several."""
        shapes = self._dials.batch_shapes
        if shapes <= 1:
            return ()
        return (int(np.random.default_rng((self._at.request, 11, self._dials.course)).integers(shapes)),)

    def _drawn(self, nat: float, *key: int) -> Floats:
        # Bounded, so that noise decides near ties and nothing else.
        random = np.random.default_rng((self._seed, *key))
        drawn: Floats = random.random(VOCABULARY, dtype=np.float32)
        drawn -= np.float32(0.5)
        drawn *= np.float32(nat)
        return drawn


def _turn(dials: Dials, request: int) -> tuple[bool, bool]:
    """Whether a request is noisy of itself, and whether its near tie is decided the other way."""
    if dials.run_flips <= 0.0:
        return False, False
    lot = np.random.default_rng((_span_of(dials, request), 9, dials.course)).random()
    if lot >= dials.run_flips:
        return False, False
    heads = np.random.default_rng((request, 13, dials.course)).random() < 0.5
    return True, dials.run_span <= 1 or dials.spans_agree or bool(heads)


def _span_of(dials: Dials, request: int) -> int:
    return (request + dials.course) // dials.run_span


def _two_likeliest(logits: Floats) -> tuple[int, int]:
    first, second = np.argsort(-logits, kind="stable")[:2]
    return int(first), int(second)


def _tied(logits: Floats, nat: float, tie: tuple[int, int]) -> Floats:
    """Two tokens brought close at the top, in this order."""
    tied: Floats = logits.copy()
    top = max(float(logits[tie[0]]), float(logits[tie[1]]))
    tied[tie[0]], tied[tie[1]] = top, top - nat
    return tied
