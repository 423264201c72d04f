"""Two runs side by side: what was right and is not any more, where logprobs moved, and how long requests took.

Like is held against like only: the same tier, arm and path. What has no counterpart is named with the reason. Times are
told and not judged: a run sends one request at a time, and few of them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from kvgate.domain.plan import PairKind, Plan, Purpose
from kvgate.domain.policy import PolicyName
from kvgate.domain.probe import Arm, Path
from kvgate.domain.ruling import GroupVerdict, PairVerdict, PathTiming, RunVerdict, Spread
from kvgate.domain.verdict import Verdict, merge

# By how much what a hit reuses may differ for its times to be held against each other.
SAME_REUSE = 0.05
# How many times as large or small a drift has to be to be worth a word.
MOVED = 2.0
_BESIDE = (Purpose.CANARY, Purpose.SENTINEL, Purpose.CHURN)


class Change(str, Enum):
    """What became of a verdict.

    REGRESSED: it passed and fails. UNPROVEN: it was decided and is not, or it fails and was not decided: no comparison
    tells which of the runs is to blame. IMPROVED: it passes and did not. SAME: neither.
    """

    REGRESSED = "REGRESSED"
    UNPROVEN = "UNPROVEN"
    IMPROVED = "IMPROVED"
    SAME = "SAME"


class DriftChange(str, Enum):
    """What became of the largest drift of a pair."""

    APPEARED = "appeared"
    GONE = "gone"
    LARGER = "larger"
    SMALLER = "smaller"
    SAME = "same"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Side:
    """What the groups of one run show together. ``exact`` is whether every pair had to be bit-equal; drift in nat."""

    verdict: Verdict
    groups: int
    lengths: tuple[int, ...]
    exact: bool
    max_drift: float | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ComparedPair:
    """One comparison of one tier in both runs."""

    tier: int
    kind: PairKind
    subject: Arm
    before: Side
    after: Side
    change: Change
    drift: DriftChange
    why: str


@dataclass(frozen=True, slots=True)
class ComparedPath:
    """Times of one path at one tier in both runs, in seconds. Ratios are after by before, above 1 is slower."""

    tier: int
    path: Path
    before: PathTiming
    after: PathTiming
    first_token_ratio: float | None
    between_tokens_ratio: float | None
    total_ratio: float | None


@dataclass(frozen=True, slots=True)
class NotCompared:
    """What has no counterpart in the other run, or none that is like it."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Everything two runs say of each other. ``verdicts`` are those of the whole runs, before and after."""

    verdicts: tuple[Verdict, Verdict]
    change: Change
    pairs: tuple[ComparedPair, ...]
    paths: tuple[ComparedPath, ...]
    not_compared: tuple[NotCompared, ...]
    differences: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """FAIL: something regressed. INCONCLUSIVE: nothing could be compared, or something is not proven any more."""
        changes = {self.change, *(pair.change for pair in self.pairs)}
        if Change.REGRESSED in changes:
            return Verdict.FAIL
        return Verdict.PASS if self.pairs and Change.UNPROVEN not in changes else Verdict.INCONCLUSIVE


Judged = tuple[Plan, RunVerdict]


def compare_runs(before: Judged, after: Judged) -> RunComparison:
    """Two runs, both judged by one policy."""
    verdicts = (before[1].verdict, after[1].verdict)
    differences = tuple(_differences(before[0], after[0]))
    one, other = before[0].deployment.model, after[0].deployment.model
    if one != other:
        why = f"the first is a run of model {one!r}, the second of {other!r}"
        return RunComparison(verdicts, Change.UNPROVEN, (), (), (NotCompared("the runs", why),), differences)
    left, right = (_by_pair(*judged) for judged in (before, after))
    pairs = tuple(_compared(key, left[key], right[key]) for key in left if key in right)
    lacking = [
        *(NotCompared(_named(key), "only the first run has it") for key in left if key not in right),
        *(NotCompared(_named(key), "only the second run has it") for key in right if key not in left),
    ]
    paths = [_paths(key, before, after) for key in _timed(before[1], after[1])]
    return RunComparison(
        verdicts=verdicts,
        change=change_of(*verdicts),
        pairs=pairs,
        paths=tuple(each for each in paths if isinstance(each, ComparedPath)),
        not_compared=(*lacking, *(each for each in paths if isinstance(each, NotCompared))),
        differences=differences,
    )


def change_of(before: Verdict, after: Verdict) -> Change:
    """What became of a verdict."""
    if before is after:
        return Change.SAME
    if after is Verdict.PASS:
        return Change.IMPROVED
    return Change.REGRESSED if (before, after) == (Verdict.PASS, Verdict.FAIL) else Change.UNPROVEN


_Key = tuple[int, PairKind, Arm]


def _named(key: _Key) -> str:
    tier, kind, subject = key
    return f"tier {tier}, {subject.value} ({kind.value})"


def _by_pair(plan: Plan, ruling: RunVerdict) -> dict[_Key, Side]:
    """What each comparison of each tier shows; a group that was replaced counts where it fails."""
    strict = plan.policy.name is PolicyName.STRICT
    found: dict[_Key, list[tuple[GroupVerdict, PairVerdict]]] = {}
    for group in ruling.groups:
        failed = (group.strict if strict else group.verdict) is Verdict.FAIL
        if group.purpose in _BESIDE or (group.replaced and not failed):
            continue
        for pair in group.pairs:
            if pair.required or pair.verdict is Verdict.FAIL:
                found.setdefault((group.tier, pair.kind, pair.subject), []).append((group, pair))
    return {key: _side(members) for key, members in sorted(found.items(), key=lambda item: _order(item[0]))}


def _order(key: _Key) -> tuple[int, int, int]:
    return key[0], list(PairKind).index(key[1]), list(Arm).index(key[2])


def _side(members: list[tuple[GroupVerdict, PairVerdict]]) -> Side:
    drifts = [pair.max_drift for _, pair in members if pair.max_drift is not None]
    reasons = (pair.problem.reason.value for _, pair in members if pair.problem is not None)
    return Side(
        verdict=merge(pair.verdict for _, pair in members),
        groups=len({group.id for group, _ in members}),
        lengths=tuple(sorted({group.length for group, _ in members})),
        exact=all(pair.exact for _, pair in members),
        max_drift=max(drifts, default=None),
        reasons=tuple(dict.fromkeys(reasons)),
    )


def _compared(key: _Key, before: Side, after: Side) -> ComparedPair:
    tier, kind, subject = key
    notes = []
    if before.lengths != after.lengths:
        notes.append(f"lengths differ: {_listed(before.lengths)} and {_listed(after.lengths)} tokens")
    if before.exact is not after.exact:
        sharper, other = ("first", "second") if before.exact else ("second", "first")
        notes.append(f"in the {sharper} run it had to be exactly equal, in the {other} a tolerance was left")
    return ComparedPair(
        tier=tier,
        kind=kind,
        subject=subject,
        before=before,
        after=after,
        change=change_of(before.verdict, after.verdict),
        drift=_drift_change(before.max_drift, after.max_drift),
        why="; ".join(notes),
    )


def _listed(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))


def _drift_change(before: float | None, after: float | None) -> DriftChange:
    if before is None or after is None:
        return DriftChange.UNKNOWN
    if before == after:
        return DriftChange.SAME
    if before == 0.0:
        return DriftChange.APPEARED
    if after == 0.0:
        return DriftChange.GONE
    if after > MOVED * before:
        return DriftChange.LARGER
    return DriftChange.SMALLER if before > MOVED * after else DriftChange.SAME


def _timed(before: RunVerdict, after: RunVerdict) -> Iterator[tuple[int, Path]]:
    """Every tier and path of which one of the runs has times."""
    yield from dict.fromkeys((each.tier, each.path) for each in (*before.timing, *after.timing))


def _paths(key: tuple[int, Path], before: Judged, after: Judged) -> ComparedPath | NotCompared:
    tier, path = key
    one, other = (
        next((each for each in ruling.timing if (each.tier, each.path) == key), None) for _, ruling in (before, after)
    )
    what = f"times of tier {tier}, {path.value}"
    if one is None or other is None:
        return NotCompared(what, f"only the {'second' if one is None else 'first'} run has proven requests of it")
    why = _unlike(tier, before[0], after[0]) or _reuse_unlike(one, other)
    if why:
        return NotCompared(what, why)
    return ComparedPath(
        tier=tier,
        path=path,
        before=one,
        after=other,
        first_token_ratio=_ratio(one.first_token, other.first_token),
        between_tokens_ratio=_ratio(one.between_tokens, other.between_tokens),
        total_ratio=_ratio(one.total, other.total),
    )


def _unlike(tier: int, before: Plan, after: Plan) -> str:
    """Why requests of a tier did not ask the same of both; empty if they did."""
    for what, one, other in (
        ("output tokens", before.max_tokens, after.max_tokens),
        ("prompt tokens", _lengths(before, tier), _lengths(after, tier)),
        ("requests in flight beside", _levels(before, tier), _levels(after, tier)),
        ("the route", before.route.value, after.route.value),
    ):
        if one != other:
            return f"{what} differ: {_told(one)} and {_told(other)}"
    return ""


def _told(value: object) -> str:
    return _listed(value) if isinstance(value, tuple) else str(value)


def _lengths(plan: Plan, tier: int) -> tuple[int, ...]:
    groups = (group for group in plan.groups if (group.tier, group.purpose) == (tier, Purpose.TIER))
    return tuple(sorted({group.length for group in groups}))


def _levels(plan: Plan, tier: int) -> tuple[int, ...]:
    groups = (group for group in plan.groups if (group.tier, group.purpose) == (tier, Purpose.TIER))
    return tuple(sorted({len(plan.churn) if group.level is None else group.level for group in groups}))


def _reuse_unlike(before: PathTiming, after: PathTiming) -> str:
    one, other = (each.reused_tokens / each.probes for each in (before, after))
    if abs(one - other) <= SAME_REUSE * max(one, other):
        return ""
    return f"what is reused differs: {one:.0f} and {other:.0f} tokens a request"


def _ratio(before: Spread | None, after: Spread | None) -> float | None:
    """The second median by the first."""
    if before is None or after is None or before.p50 <= 0.0:
        return None
    return after.p50 / before.p50


def _differences(before: Plan, after: Plan) -> Iterator[str]:
    """In what the runs differ beside their answers."""
    left, right = before.geometry, after.geometry
    for what, one, other in (
        ("engine", before.deployment.engine, after.deployment.engine),
        ("granule", left.granule, right.granule),
        ("chunk", left.chunk, right.chunk),
        ("retention interval", left.retention_interval, right.retention_interval),
        ("speculation granules", left.speculation_granules, right.speculation_granules),
        ("forcing", before.forcing.value, after.forcing.value),
        ("route", before.route.value, after.route.value),
        ("output tokens", before.max_tokens, after.max_tokens),
        ("salts honoured", before.salts_honoured, after.salts_honoured),
        ("endpoints", len(before.deployment.endpoints), len(after.deployment.endpoints)),
    ):
        if one != other:
            yield f"{what}: {one} and {other}"
