"""Clopper-Pearson bounds of a proportion, each one-sided at 95 %, from the exact binomial tail."""

import math

CONFIDENCE = 0.95
STEPS = 60


def tail(hits: int, count: int, share: float) -> float:
    """The probability of at least ``hits`` among ``count`` independent trials that each hit with ``share``."""
    if hits <= 0:
        return 1.0
    if share <= 0.0 or hits > count:
        return 0.0
    if share >= 1.0:
        return 1.0
    whole = math.lgamma(count + 1)
    terms = (
        whole - math.lgamma(k + 1) - math.lgamma(count - k + 1) + k * math.log(share) + (count - k) * math.log1p(-share)
        for k in range(hits, count + 1)
    )
    return min(1.0, math.fsum(math.exp(term) for term in terms))


def lower_bound(hits: int, count: int, confidence: float = CONFIDENCE) -> float:
    """The smallest share that does not make ``hits`` or more of ``count`` unlikely; 0.0 for none."""
    if hits == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(hits, count, middle) < 1.0 - confidence else (low, middle)
    return low


def upper_bound(hits: int, count: int, confidence: float = CONFIDENCE) -> float:
    """The largest share that does not make ``hits`` or fewer of ``count`` unlikely; 1.0 where nothing was tried."""
    return 1.0 - lower_bound(count - hits, count, confidence) if count else 1.0
