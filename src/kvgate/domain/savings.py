"""What reuse saved: each request's time to the first token held against the same request's on the first deployment."""

import math
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from kvgate.domain.figures import first_token_s
from kvgate.domain.measured import MeasurePlan, MeasureRecord, PartRecord
from kvgate.domain.trace import TracePart

# Error probability of one comparison's sign test; below eight pairs nothing can reach it.
ALPHA = 0.01
# A ratio nearer to 1 than this is called no difference, whatever the test says: the machine drifts as much.
SMALLEST_RATIO = 1.05
RESAMPLES = 2000
# Student's t, two-sided 95 %, by degrees of freedom from 1; beyond the last as at the last, which is a little wider.
STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Saving:
    """One deployment against the first in one part. ``ratio`` is its time to the first token over the other's, median.

    ``low`` and ``high`` bound the ratio at 95 %, by resampling whole sessions. ``sooner`` and ``later`` count requests,
    ``p_value`` is the exact two-sided sign test's. Requests not answered with a first token by both are ``unpaired``.
    ``by_repeat`` is the median ratio of each repeat. ``shown`` is whether all of it agrees on a difference.
    """

    part: str
    deployment: str
    baseline: str
    pairs: int
    unpaired: int
    sooner: int
    later: int
    ratio: float | None
    low: float | None
    high: float | None
    p_value: float | None
    by_repeat: tuple[float, ...]
    shown: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class _Pair:
    session: int
    repeat: int
    ratio: float


def savings_of(plan: MeasurePlan, record: MeasureRecord) -> tuple[Saving, ...]:
    """Every deployment but the first against the first, part by part."""
    return tuple(
        _saving(plan, record, part, number) for part in plan.trace.parts for number in range(1, len(plan.deployments))
    )


def _saving(plan: MeasurePlan, record: MeasureRecord, part: TracePart, number: int) -> Saving:
    pairs = _pairs(plan, record, part, number)
    planned = sum(request.part == part.name for request in plan.planned) * plan.trace.repeats
    ratios = np.array([pair.ratio for pair in pairs])
    sooner, later = int((ratios < 1.0).sum()), int((ratios > 1.0).sum())
    ratio = float(np.median(ratios)) if pairs else None
    bounds = _bounds(plan.trace.seed, pairs) if pairs else None
    p_value = sign_test(sooner, later) if pairs else None
    by_repeat = _by_repeat(pairs)
    deployment, baseline = plan.deployments[number].label, plan.deployments[0].label
    told = Saving(
        part=part.name,
        deployment=deployment,
        baseline=baseline,
        pairs=len(pairs),
        unpaired=planned - len(pairs),
        sooner=sooner,
        later=later,
        ratio=ratio,
        low=bounds[0] if bounds else None,
        high=bounds[1] if bounds else None,
        p_value=p_value,
        by_repeat=by_repeat,
        shown=False,
        sentence="",
    )
    told = replace(told, shown=_shown(told))
    return replace(told, sentence=_sentence(told))


def _pairs(plan: MeasurePlan, record: MeasureRecord, part: TracePart, number: int) -> list[_Pair]:
    """The requests that told a first token on both deployments, in the same repeat."""
    sessions = {request.id: request.session for request in plan.planned}
    baseline = {each.repeat: _first_tokens(each) for each in record.of(0, part.name)}
    found: list[_Pair] = []
    for each in record.of(number, part.name):
        others = baseline.get(each.repeat, {})
        found += [
            _Pair(sessions[name], each.repeat, took / others[name])
            for name, took in _first_tokens(each).items()
            if name in others
        ]
    return found


def _first_tokens(record: PartRecord) -> dict[str, float]:
    told = {name: first_token_s(seen) for name, seen in record.answered.items()}
    return {name: took for name, took in told.items() if took}


def sign_test(sooner: int, later: int) -> float:
    """The chance of a split at least as uneven, two-sided, if sooner and later were as likely: exact."""
    count = sooner + later
    tail = sum(math.comb(count, each) for each in range(min(sooner, later) + 1))
    return min(1.0, float(2 * tail / 2**count))


def _bounds(seed: int, pairs: list[_Pair]) -> tuple[float, float]:
    """The bootstrap interval of the median ratio. Sessions are drawn whole: their requests are not independent.

    The draws follow from the trace's seed, so the same record gives the same interval.
    """
    sessions: dict[int, list[float]] = defaultdict(list)
    for pair in pairs:
        sessions[pair.session].append(math.log(pair.ratio))
    members = [np.array(each) for each in sessions.values()]
    draws = np.random.default_rng(seed).integers(0, len(members), (RESAMPLES, len(members)))
    medians = [float(np.median(np.concatenate([members[each] for each in draw]))) for draw in draws]
    tail = (1.0 - CONFIDENCE) / 2
    low, high = (math.exp(float(np.quantile(medians, share))) for share in (tail, 1.0 - tail))
    return low, high


def _by_repeat(pairs: list[_Pair]) -> tuple[float, ...]:
    found: dict[int, list[float]] = defaultdict(list)
    for pair in pairs:
        found[pair.repeat].append(pair.ratio)
    return tuple(float(np.median(found[repeat])) for repeat in sorted(found))


def _shown(told: Saving) -> bool:
    """Whether test, interval, size and the repeats agree on a difference."""
    return _pooled_shows(told) and repeats_agree(told.by_repeat)


def _pooled_shows(told: Saving) -> bool:
    """Whether all requests together show a difference, as if the repeats were one."""
    if told.ratio is None or told.low is None or told.high is None or told.p_value is None:
        return False
    large = max(told.ratio, 1.0 / told.ratio) >= SMALLEST_RATIO
    return told.p_value < ALPHA and not told.low <= 1.0 <= told.high and large


def repeats_agree(by_repeat: tuple[float, ...]) -> bool:
    """Whether the repeats lie far enough from 1 for how far they lie apart: Student's t, on logarithms.

    All requests of one leg share the machine's mood, so it is the repeats that are independent of each other. One
    repeat contradicts nothing.
    """
    if len(by_repeat) < 2:
        return True
    logs = np.log(by_repeat)
    student = STUDENT[min(len(logs) - 1, len(STUDENT)) - 1]
    return bool(abs(logs.mean()) > student * logs.std(ddof=1) / math.sqrt(len(logs)))


def _sentence(told: Saving) -> str:
    names = f"{told.deployment} and {told.baseline}"
    if told.ratio is None or told.low is None or told.high is None:
        return f"{names} cannot be compared: no request has a first token from both"
    once = ", measured once" if len(told.by_repeat) == 1 else ""
    if not told.shown:
        sooner = f"{told.deployment} sooner in {_share(told, told.sooner)}"
        if _pooled_shows(told):
            ratios = ", ".join(f"{each:.2f}" for each in told.by_repeat)
            return f"undecided between {names}: {sooner}, but the repeats differ (ratios {ratios}); set more repeats"
        return f"no difference shown between {names}: {sooner}{_why_not(told)}"
    if told.ratio < 1.0:
        factors = f"{_times(1 / told.ratio)} times as fast as {told.baseline}"
        bounds = f"({_times(1 / told.high)} to {_times(1 / told.low)})"
        return f"{told.deployment} answers {factors} {bounds}, sooner in {_share(told, told.sooner)}{once}"
    factors = f"{_times(told.ratio)} times as long as {told.baseline}"
    bounds = f"({_times(told.low)} to {_times(told.high)})"
    return f"{told.deployment} takes {factors} {bounds}, later in {_share(told, told.later)}{once}"


def _share(told: Saving, count: int) -> str:
    return f"{count} of {told.pairs} requests"


def _why_not(told: Saving) -> str:
    if told.pairs and sign_test(0, told.pairs) >= ALPHA:
        return ", too few to show one"
    return f" (median ratio {told.ratio:.2f}, {told.low:.2f} to {told.high:.2f}, p {told.p_value:.2g})"


def _times(factor: float) -> str:
    return f"{factor:.2f}" if factor < 1.1 else f"{factor:.1f}"
