"""What a PASS excludes, and whether differences are more than controls explain."""

import math


def excluded_fault_rate(groups: int, confidence: float = 0.95) -> float:
    """The per-request fault rate above which ``groups`` clean ones would be unlikely: 1 - (1-c)^(1/n); 1.0 for none."""
    if groups <= 0:
        return 1.0
    return float(1.0 - (1.0 - confidence) ** (1.0 / groups))


def excess_p_value(subject_hits: int, subjects: int, control_hits: int, controls: int) -> float:
    """One-sided exact (hypergeometric) probability of at least ``subject_hits`` differences among the subjects.

    Given the margins, as in Fisher's test. 1.0 where either side is empty.
    """
    if subjects == 0 or controls == 0:
        return 1.0
    total, hits = subjects + controls, subject_hits + control_hits
    ways = math.comb(total, hits)
    upper = min(hits, subjects)
    tail = sum(math.comb(subjects, k) * math.comb(controls, hits - k) for k in range(subject_hits, upper + 1))
    return tail / ways
