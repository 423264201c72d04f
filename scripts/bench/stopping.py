"""How often the rules of stopping and of chance err, by simulating answers instead of engines.

Every answer is odd by a coin of its own; whether a repeat agrees and whether a load differs follows from the coins. The
rules are the judge's own (``kvgate.domain.chance``, ``power``), so that a page of formulas is held against what the
code does.
"""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from power_page import fill

from kvgate.domain.chance import THRICE, Beside, Loads, odd_loads_p_value, shown
from kvgate.domain.divergence import compare
from kvgate.domain.excess import LOOKS
from kvgate.domain.noise import COLD_REPEAT, LOCAL_REPEAT, Control
from kvgate.domain.observation import Observation, Outcome
from kvgate.domain.plan import PairKind
from kvgate.domain.policy import Policy
from kvgate.domain.power import rounds_for, sign_p_value
from kvgate.gate.session import GROSS_GROUPS

RATES = (0.01, 0.03, 0.05, 0.1, 0.15, 0.3, 0.45)
ALPHA = Policy().alpha
MOST_LOADS = 4
LEVELS = (1.0, 0.5, 0.3, 0.2)


def _answer(shift: float) -> Observation:
    logprobs = tuple(-0.5 + shift for _ in range(8))
    ids = tuple(range(8))
    tops = tuple((value, value - 2.0) for value in logprobs)
    pairs = tuple((token, token + 100) for token in ids)
    return Observation(Outcome.OK, token_ids=ids, logprobs=logprobs, top_ids=pairs, top_logprobs=tops)


EXACT, INEXACT = compare(_answer(0.0), _answer(0.0)), compare(_answer(0.0), _answer(0.02))


class Group:
    """One group's answers: whether each of them is odd."""

    def __init__(self, name: str, coin: Callable[[], bool]) -> None:
        self.name = name
        local, local_again, cold, cold_again = (coin() for _ in range(4))
        pairs = ((LOCAL_REPEAT, local, local_again), (COLD_REPEAT, cold, cold_again))
        self.backed = local is cold
        self.controls = [Control(kind, name, EXACT if one is other else INEXACT) for kind, one, other in pairs]
        loads = [coin() != local, coin() != local]
        # As the gate does: more of them as long as one or two differ.
        while 0 < sum(loads) < THRICE and len(loads) < MOST_LOADS:
            loads.append(coin() != local)
        self.loads = tuple(loads)

    @property
    def beside(self) -> Beside:
        """The first two loads and the repeat of the local hit."""
        return Beside(self.loads[:2], not self.controls[0].comparison.exact)


def convicted(groups: list[Group]) -> bool:
    """Whether a small difference convicts in any group; odd answers are taken to be equal to the last bit."""
    controls = [control for group in groups for control in group.controls]
    odd_share = sum(not each.comparison.exact for each in controls) / len(controls)
    # Above a tenth the pairs are tolerant, and what is within the tolerance convicts nobody.
    if odd_share > 0.1:
        return False
    kind = PairKind.EXTERNAL_VS_LOCAL
    return any(
        group.loads[0] and shown(group.name, kind, controls, Loads(group.loads, sum(group.loads), group.backed))
        for group in groups
    )


def false_alarms(groups: int, rate: float, runs: int, seed: int) -> tuple[int, int]:
    """Of so many runs of healthy engines: how many a group fails, and how many the test of odd loads."""
    random = np.random.default_rng(seed)
    failed = tested = 0
    for _ in range(runs):
        made = [Group(str(number), lambda: bool(random.random() < rate)) for number in range(groups)]
        failed += convicted(made)
        tested += odd_loads_p_value(group.beside for group in made) < ALPHA / LOOKS
    return failed, tested


def looked_at(tiers: int, looks: int, runs: int, seed: int) -> int:
    """Of so many healthy runs in which loads drift further by chance half the time: how many any of the looks fails."""
    random = np.random.default_rng(seed)
    sizes = (3, *rounds_for(3, 3 * (2 ** (looks - 1) - 1)))
    failed = 0
    for _ in range(runs):
        further = random.random(sum(sizes) * tiers) < 0.5
        ends = np.cumsum(sizes) * tiers
        counts = [(int(further[:end].sum()), int(end)) for end in ends]
        failed += any(sign_p_value(more, end - more) < ALPHA / LOOKS / len(sizes) for more, end in counts)
    return failed


def groups_to_stop(share: float, runs: int, seed: int) -> tuple[float, float]:
    """Median and mean of the groups until so many are grossly wrong, where that share of them is."""
    random = np.random.default_rng(seed)
    draws = (
        GROSS_GROUPS + random.negative_binomial(GROSS_GROUPS, share, runs) if share < 1 else np.array([GROSS_GROUPS])
    )
    return float(np.median(draws)), float(draws.mean())


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(count: int, runs: int) -> str:
    """A share with its standard error."""
    share = count / runs
    return f"{100 * share:.2f} ± {100 * math.sqrt(share * (1 - share) / runs):.2f} %"


def main() -> int:
    """Simulate, print, and fill the page; 1 if a healthy run of 15 groups fails more often than alpha."""
    parser = argparse.ArgumentParser(
        description="How often the rules of stopping and of chance err (simulated answers)"
    )
    parser.add_argument("--runs", type=int, default=4000, help="runs per row")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="put the figures into this page")
    asked = parser.parse_args()
    runs = asked.runs
    rows: list[tuple[str, ...]] = []
    worst = 0
    for rate in RATES:
        cells = [false_alarms(groups, rate, runs, seed=1) for groups in (3, 15)]
        worst = max(worst, cells[1][0] + cells[1][1])
        rows.append((f"{100 * rate:g} %", *(percent(count, runs) for cell in cells for count in cell)))
    head = ("odd answers", "3 groups: a group", "3 groups: the test", "15 groups: a group", "15 groups: the test")
    parts = {"chance": table(head, rows)}
    looks = [
        (str(tiers), str(count), percent(looked_at(tiers, count, runs, 2), runs))
        for tiers in (1, 5)
        for count in (1, 2, 4)
    ]
    parts["looks"] = table(("tiers", "looks", "healthy runs that fail"), looks)
    stops = [
        (
            f"{100 * share:g} %",
            *(f"{value:.1f}" for value in groups_to_stop(share, 20_000, 3)),
            f"{GROSS_GROUPS / share:.1f}",
        )
        for share in LEVELS
    ]
    parts["stops"] = table(("groups grossly wrong", "median", "mean", "2 / share"), stops)
    print("\n\n".join(parts.values()))
    if asked.markdown is not None:
        fill(asked.markdown, parts)
    return int(worst > ALPHA * runs)


if __name__ == "__main__":
    sys.exit(main())
