"""Whether a small difference where all should be bit-equal can be chance.

An engine may answer a few requests in a hundred a little otherwise (a near tie that falls the other way) and repeat
itself to the last bit in between. If each answer is odd with probability q, independently, then that both loads of one
of G groups are odd and K control answers of the run are not has a probability of at most G q^2 (1 - q)^K, which is
0.54 G / (K + 2)^2 at the worst q: 0.2 % for a default run of 15 groups (K = 60). One odd load of two would be 17 %.
Differences too large for a near tie need no such care.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kvgate.domain.noise import COLD_REPEAT, LOCAL_REPEAT, TWO_LEG_REPEAT, Control
from kvgate.domain.plan import PairKind
from kvgate.domain.power import sign_p_value

REPEATS = (LOCAL_REPEAT, COLD_REPEAT, TWO_LEG_REPEAT)
# Control answers that must agree, all of them, before two odd loads of two convict: those of two repeats.
ENOUGH_ANSWERS = 4
# Odd loads that convict where loads were sent again because one was odd, or where some control is odd, too.
THRICE = 3
TWICE = 2
# Of two ways to answer the rarer one is the odd one.
_RATES = np.linspace(0.0, 0.5, 501)[1:]


@dataclass(frozen=True, slots=True)
class Loads:
    """The loads that a pair is about.

    ``odd`` is, load by load in the order they were made, whether its answer differs from the baseline's; ``same`` is
    how many are equal to the one that is judged, itself among them. ``backed`` is whether another path's answer is
    equal to the baseline, so that it is not the baseline that is odd; None if no other path's has to be.
    """

    odd: tuple[bool, ...]
    same: int
    backed: bool | None


def shown(group: str, kind: PairKind, controls: Iterable[Control], loads: Loads) -> bool:
    """Whether a small difference in this group is no chance. A gateway's own noise excuses no gateway."""
    alone = kind is PairKind.GATEWAY_VS_TWO_LEG
    repeats = [each for each in controls if each.kind in REPEATS and (each.kind == TWO_LEG_REPEAT) is alone]
    if any(each.group == group and not each.comparison.exact for each in repeats):
        # Whatever changed in mid-group may have changed between the baseline and the loads.
        return False
    if not all(each.comparison.exact for each in repeats):
        return loads.same >= THRICE and loads.backed is True
    enough = 2 * len(repeats) >= (ENOUGH_ANSWERS if not alone else ENOUGH_ANSWERS // 2)
    # The first two were made whatever came of them; further ones are made only because something was odd.
    often = sum(loads.odd) >= THRICE or (len(loads.odd) >= TWICE and all(loads.odd[:TWICE]))
    return enough and often and loads.backed is not False


@dataclass(frozen=True, slots=True)
class Beside:
    """One group's loads beside its repeat of the local hit: whether each of the first two loads, and the repeat, is odd
    against that hit."""

    loads: tuple[bool, ...]
    repeat: bool


def odd_loads_p_value(groups: Iterable[Beside], noisy: bool = False) -> float:
    """How probable so many odd loads are if loads are odd as often as repeats of local hits are; 1.0 where none is odd.

    Where no repeat is odd, nor a cold one (``noisy``): the largest probability, over all rates at which single answers
    are odd, of so many odd loads and of repeats that all agree. Else an exact sign test (McNemar) over the groups in
    which either the first load or the repeat is odd: both are held against the same hit, so that either is as likely if
    nothing is wrong. Noise that comes in spells is thus counted once a group.
    """
    seen = [each for each in groups if each.loads]
    odd, loads = sum(sum(each.loads) for each in seen), sum(len(each.loads) for each in seen)
    if not odd:
        return 1.0
    if noisy or any(each.repeat for each in seen):
        more = sum(each.loads[0] and not each.repeat for each in seen)
        return sign_p_value(more, sum(each.repeat and not each.loads[0] for each in seen))
    ways = np.array([math.lgamma(loads + 1) - math.lgamma(k + 1) - math.lgamma(loads - k + 1) for k in range(odd)])
    rates = _RATES[:, None]
    fewer = np.exp(ways + np.arange(odd) * np.log(rates) + (loads - np.arange(odd)) * np.log1p(-rates)).sum(axis=1)
    # A repeat agrees where neither answer is odd, and where both are.
    agree = (1.0 - _RATES) ** 2 + _RATES**2
    both = np.clip(1.0 - fewer, 0.0, 1.0) * agree ** len(seen)
    return float(both.max())
