"""What may be odd about an engine without being wrong: noise, latency, start-up lag."""

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
    flight. ``near_ties`` is the share of prompts with a near tie that nothing decides otherwise.
    ``preempted_every`` preempts every so-manieth request, which is computed again.
    ``compute_per_1k_s`` is taken per thousand prompt tokens that are computed, ``latency_per_1k_s`` of all.
    ``prefill_drops`` is how many tokens a prefill engine leaves off a prompt's end for decode to compute.
    Engines write their logs into ``log_folder``, if there is one; with ``log_denies_loads`` they say that nothing is to
    be loaded, whatever is. With ``tells_split`` a reply tells how many cached tokens were the engine's own and how many
    came from outside; with ``foreign`` somebody else uses the engine all the time.
    """

    flip_share: float = 0.0
    tie_nat: float = 0.02
    shape_noise: float = 0.03
    near_ties: float = 0.0
    run_noise: float = 0.0
    run_share: float = 1.0
    batch_noise: float = 0.0
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
        self._tie_at = 1 + self._seed % 8 if self._flips or lot < dials.near_ties else None
        runs = np.random.default_rng((at.request, 1)).random() < dials.run_share
        self._noisy_run = bool(runs) and dials.run_noise > 0.0

    def apply(self, logits: Floats, position: int) -> Floats:
        """The logits at one output position as this answer has them."""
        dials, at = self._dials, self._at
        long_chunk = at.last_chunk > at.granule
        # The same two tokens whatever the noise: they are chosen before it, and set after it.
        tie = _two_likeliest(logits) if position == self._tie_at else None
        if self._flips:
            logits = logits + self._drawn(dials.shape_noise, position, 2 + at.last_chunk)
        if tie is not None:
            swap = ((self._seed >> 4) % 2 == 0) != (self._flips and long_chunk)
            logits = _tied(logits, dials.tie_nat, tie[::-1] if swap else tie)
        if self._noisy_run:
            logits = logits + self._drawn(dials.run_noise, position, 3, at.request)
        if at.batch > 1 and dials.batch_noise > 0.0:
            logits = logits + self._drawn(dials.batch_noise, position, 5, at.batch)
        return logits

    def _drawn(self, nat: float, *key: int) -> Floats:
        # Bounded, so that noise decides near ties and nothing else.
        random = np.random.default_rng((self._seed, *key))
        drawn: Floats = random.random(VOCABULARY, dtype=np.float32)
        drawn -= np.float32(0.5)
        drawn *= np.float32(nat)
        return drawn


def _two_likeliest(logits: Floats) -> tuple[int, int]:
    first, second = np.argsort(-logits, kind="stable")[:2]
    return int(first), int(second)


def _tied(logits: Floats, nat: float, tie: tuple[int, int]) -> Floats:
    """Two tokens brought close at the top, in this order."""
    tied: Floats = logits.copy()
    top = max(float(logits[tie[0]]), float(logits[tie[1]]))
    tied[tie[0]], tied[tie[1]] = top, top - nat
    return tied
