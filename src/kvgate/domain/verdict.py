"""PASS, INCONCLUSIVE, FAIL, and how they combine."""

from collections.abc import Iterable
from enum import Enum


class Verdict(str, Enum):
    """Ordered PASS < INCONCLUSIVE < FAIL; NOT_APPLICABLE takes no part."""

    PASS = "PASS"
    INCONCLUSIVE = "INCONCLUSIVE"
    FAIL = "FAIL"
    NOT_APPLICABLE = "NOT_APPLICABLE"


_FROM_GOOD_TO_BAD = (Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL)


def merge(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of them. Nothing checked is INCONCLUSIVE, never PASS."""
    counted = [verdict for verdict in verdicts if verdict is not Verdict.NOT_APPLICABLE]
    if not counted:
        return Verdict.INCONCLUSIVE
    return max(counted, key=_FROM_GOOD_TO_BAD.index)
