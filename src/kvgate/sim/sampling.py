"""From KV to tokens: the likeliest, or, at a temperature, drawn by the seed that came with the request."""

import numpy as np

from kvgate.sim.answers import Rows
from kvgate.sim.dials import Noise
from kvgate.sim.network import Floats, Sequence, Weights, append, logits_of


def generate(
    weights: Weights, sequence: Sequence, count: int, top: int, noise: Noise, warmth: tuple[float, int] = (0.0, 0)
) -> tuple[list[int], Rows]:
    """``count`` tokens and, for each, the likeliest ``top`` with their logprobs, the token itself first.

    ``warmth`` is temperature and seed. As in vLLM, logprobs are those before the temperature.
    """
    temperature, seed = warmth
    random = np.random.default_rng(seed)
    ids: list[int] = []
    rows: Rows = []
    for position in range(count):
        logits = noise.apply(logits_of(weights, sequence), position)
        peak = logits.max()
        logprobs = logits - peak - np.log(np.exp(logits - peak).sum())
        best = likeliest(logits, top)
        if temperature > 0.0:
            weighed = np.exp((logits - peak) / temperature)
            token = int(random.choice(len(logits), p=weighed / weighed.sum()))
            best = [token, *(each for each in best if each != token)]
        rows.append([(int(token), float(logprobs[token])) for token in best])
        ids.append(int(best[0]))
        append(weights, sequence, ids[-1])
    return ids, rows


def likeliest(logits: Floats, count: int) -> list[int]:
    """The ``count`` likeliest tokens, likeliest first; of equal ones the first. Cheaper than sorting a vocabulary."""
    left = logits.copy()
    best: list[int] = []
    for _ in range(count):
        best.append(int(left.argmax()))
        left[best[-1]] = -np.inf
    return best


def pieces(speculation: int, count: int, seed: int) -> tuple[int, ...]:
    """How many tokens each streamed piece carries: with speculation, a draft is accepted up to a point."""
    found: list[int] = []
    while count:
        accepted = 1 + (seed + len(found)) % (speculation + 1) if found else 1
        found.append(min(count, accepted))
        count -= found[-1]
    return tuple(found)
