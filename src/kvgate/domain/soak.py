"""Many rounds of one gate: what they say together, and whether anything moves while they go on.

Each round is a run of its own, judged by itself. That a healthy soak fails by the tests over whole runs must not become
the likelier the longer it goes on: the k-th round's share of the policy's alpha is 1 / (k (k + 1)), which adds up to
one over any number of rounds.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvgate.domain.plan import Plan
from kvgate.domain.power import excluded_fault_rate
from kvgate.domain.probe import Arm, Path
from kvgate.domain.reasons import Problem
from kvgate.domain.ruling import RunVerdict
from kvgate.domain.verdict import Verdict, merge

# Rounds below which no trend is told, and how improbable it has to be if nothing moves.
FEWEST_ROUNDS = 8
TREND_ALPHA = 0.01
# A trend is worth a word if it adds up to this share of where it began.
WORTH = 0.1


@dataclass(frozen=True, slots=True)
class Clean:
    """How many clean groups a tier had for one arm."""

    tier: int
    arm: Arm
    groups: int


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The median time to the first token of a tier by one path, in seconds."""

    tier: int
    path: Path
    seconds: float


@dataclass(frozen=True, slots=True)
class SoakRound:
    """One round. ``kept`` is whether its directory still holds its history; rounds that passed may be dropped."""

    number: int
    run_id: str
    at_s: float
    seconds: float
    verdict: Verdict
    reasons: tuple[Problem, ...]
    clean: tuple[Clean, ...]
    first_token: tuple[FirstToken, ...]
    computed_tokens: int
    alpha: float
    endpoint_lost: bool
    released: bool | None
    kept: bool = True


@dataclass(frozen=True, slots=True)
class Excluded:
    """What the clean groups of the rounds that passed exclude at 95 %: random faults in more than this share of
    requests."""

    tier: int
    arm: Arm
    groups: int
    excluded_fault_rate: float


@dataclass(frozen=True, slots=True)
class Trend:
    """Something that moves all the while: from where to where (seconds, medians of the first and last quarter), and how
    probable that is if nothing moves (Mann-Kendall, normal approximation)."""

    tier: int
    path: Path
    first_s: float
    last_s: float
    p_value: float


@dataclass(frozen=True, slots=True)
class Soak:
    """What all rounds say together."""

    verdict: Verdict
    rounds: int
    by_verdict: tuple[tuple[Verdict, int], ...]
    reasons: tuple[Problem, ...]
    excluded: tuple[Excluded, ...]
    trends: tuple[Trend, ...]
    computed_tokens: int
    seconds: float


def alpha_of(alpha: float, number: int) -> float:
    """The share of a soak's alpha that its round of that number (from 1) has."""
    return alpha / (number * (number + 1))


def round_of(number: int, run_id: str, times: tuple[float, float], plan: Plan, ruling: RunVerdict) -> SoakRound:
    """A round from its ruling; ``times`` are when it began and how long it took, in seconds."""
    told = [each.released for each in ruling.signals if each.released is not None]
    return SoakRound(
        number=number,
        run_id=run_id,
        at_s=times[0],
        seconds=times[1],
        verdict=ruling.verdict,
        reasons=ruling.reasons,
        clean=tuple(Clean(each.tier, each.arm, each.groups) for each in ruling.power),
        first_token=tuple(
            FirstToken(each.tier, each.path, each.first_token.p50)
            for each in ruling.timing
            if each.first_token is not None
        ),
        computed_tokens=ruling.computed_tokens,
        alpha=plan.policy.alpha,
        endpoint_lost=ruling.endpoint_lost,
        released=all(told) if told else None,
    )


def sum_up(rounds: Sequence[SoakRound]) -> Soak:
    """All rounds together: the worst verdict, every reason once with its round, and what their clean groups exclude."""
    counts = Counter(each.verdict for each in rounds)
    reasons: dict[tuple[Verdict, object], Problem] = {}
    for each in sorted(rounds, key=lambda one: one.verdict is not Verdict.FAIL):
        for problem in each.reasons if each.verdict is not Verdict.PASS else ():
            told = replace(problem, detail=f"round {each.number} ({each.run_id}): {problem.detail}")
            reasons.setdefault((each.verdict, problem.reason), told)
    groups: Counter[tuple[int, Arm]] = Counter()
    for each in (one for one in rounds if one.verdict is Verdict.PASS):
        groups.update({(clean.tier, clean.arm): clean.groups for clean in each.clean})
    return Soak(
        verdict=merge(each.verdict for each in rounds),
        rounds=len(rounds),
        by_verdict=tuple((verdict, counts[verdict]) for verdict in Verdict if counts[verdict]),
        reasons=tuple(reasons.values()),
        excluded=tuple(
            Excluded(tier, arm, count, excluded_fault_rate(count)) for (tier, arm), count in sorted(groups.items())
        ),
        trends=_trends(rounds),
        computed_tokens=sum(each.computed_tokens for each in rounds),
        seconds=sum(each.seconds for each in rounds),
    )


def _trends(rounds: Sequence[SoakRound]) -> tuple[Trend, ...]:
    series: dict[tuple[int, Path], list[float]] = {}
    for each in rounds:
        for told in each.first_token:
            series.setdefault((told.tier, told.path), []).append(told.seconds)
    level = TREND_ALPHA / max(1, len(series))
    found: list[Trend] = []
    for (tier, path), values in series.items():
        quarter = max(1, len(values) // 4)
        first, last = _median(values[:quarter]), _median(values[-quarter:])
        p_value = kendall_p_value(values)
        if len(values) >= FEWEST_ROUNDS and p_value < level and abs(last - first) > WORTH * first:
            found.append(Trend(tier, path, first, last, p_value))
    return tuple(found)


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def kendall_p_value(values: Sequence[float]) -> float:
    """Two-sided p-value of the Mann-Kendall test for a trend, by its normal approximation with ties counted as none."""
    count = len(values)
    if count < 2:
        return 1.0
    rising = sum(
        (later > earlier) - (later < earlier) for place, earlier in enumerate(values) for later in values[place + 1 :]
    )
    spread = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    corrected = max(0, abs(rising) - 1) / spread
    return math.erfc(corrected / math.sqrt(2))
