"""Comparing two answers: where their token IDs part, of which kind, and how far the logprobs drift before that."""

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from kvgate.domain.observation import Observation

MAX_SHIFT = 8
MIN_SHIFT_OVERLAP = 8
MAX_PERIOD = 4
MIN_REPETITION = 12


class DivergenceClass(str, Enum):
    """The kinds of divergence (design §3.5)."""

    TOKEN = "TOKEN"
    SHIFT = "SHIFT"
    FIRST_TOKEN = "FIRST_TOKEN"
    TRUNCATED = "TRUNCATED"
    EMPTY = "EMPTY"
    DEGENERATE = "DEGENERATE"


_AFTER_A_TIE = (DivergenceClass.TOKEN, DivergenceClass.SHIFT, DivergenceClass.DEGENERATE)


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where and how two ID sequences part.

    ``index`` is the first differing position. Ranks are 0-based places of the *other* side's token in a
    side's top-k, None outside it. ``gap_*`` is how much likelier (nats) a side held its own token than the
    other side's. ``shift`` is set for SHIFT and FIRST_TOKEN: the subject lags by that many positions.
    """

    index: int
    kind: DivergenceClass
    baseline_token: int | None
    subject_token: int | None
    rank_in_baseline: int | None = None
    rank_in_subject: int | None = None
    gap_in_baseline: float | None = None
    gap_in_subject: float | None = None
    shift: int = 0

    def is_near_tie(self, envelope: float) -> bool:
        """Whether each token is in the other side's top-k with both gaps inside ``envelope`` (nats).

        What follows a near tie has another context, so it may well repeat itself or run shifted.
        """
        if self.kind not in _AFTER_A_TIE or self.gap_in_baseline is None or self.gap_in_subject is None:
            return False
        return self.gap_in_baseline <= envelope and self.gap_in_subject <= envelope


@dataclass(frozen=True, slots=True)
class Drift:
    """|Δlogprob| in nats over the chosen tokens and the shared top-k, up to and including the divergence.

    The position of the divergence still has the same context on both sides; later ones do not.
    ``positions`` is how many positions were compared, ``share`` the share of them with any drift, ``first_index`` the
    first such.
    """

    maximum: float
    share: float
    positions: int
    first_index: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A subject held against a baseline. ``drift`` is None where the logprobs cannot be compared."""

    ids_equal: bool
    divergence: Divergence | None
    drift: Drift | None
    drift_problem: str | None = None

    @property
    def exact(self) -> bool:
        """Equal IDs and a drift of exactly 0.0; False where the drift is unknown."""
        return self.ids_equal and self.drift is not None and self.drift.maximum == 0.0

    @property
    def max_drift(self) -> float | None:
        """The largest drift in nats, None if unknown."""
        return None if self.drift is None else self.drift.maximum

    def within(self, envelope: float) -> bool:
        """Whether the difference, if any, is one that ``envelope`` (nats) explains."""
        if self.drift is not None and not self.drift.maximum <= envelope:
            return False
        if self.ids_equal:
            return True
        return self.divergence is not None and self.divergence.is_near_tie(envelope)


def compare(baseline: Observation, subject: Observation) -> Comparison:
    """Hold ``subject`` against ``baseline``; both must be OK and carry token IDs (or text if neither does)."""
    left, right = baseline.token_ids, subject.token_ids
    if left is None or right is None:
        equal = baseline.text == subject.text
        return Comparison(equal, None, None, "the replies carry no token IDs")
    ids_equal = left == right
    index = _first_difference(left, right)
    divergence = None if ids_equal else _classify(baseline, subject, index)
    problem = baseline.logprob_problem() or subject.logprob_problem() or _incomparable(baseline, subject, index)
    drift = None if problem else _drift(baseline, subject, index)
    return Comparison(ids_equal, divergence, drift, problem)


def _incomparable(baseline: Observation, subject: Observation, index: int) -> str | None:
    """Logprobs that are no numbers on both sides, or listed on one only, must not count as equal."""
    upto = index + 1
    chosen = zip((baseline.logprobs or ())[:upto], (subject.logprobs or ())[:upto], strict=False)
    if any(one is None and other is None for one, other in chosen):
        return "a logprob is no number on both sides"
    rows = zip((baseline.top_ids or ())[:upto], (subject.top_ids or ())[:upto], strict=False)
    if any(not one or not other for one, other in rows):
        return "the most likely tokens are not listed at every position"
    return None


def _first_difference(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    if left == right:
        return len(left)
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


def _classify(baseline: Observation, subject: Observation, index: int) -> Divergence:
    left, right = baseline.token_ids or (), subject.token_ids or ()
    mine = left[index] if index < len(left) else None
    theirs = right[index] if index < len(right) else None
    kind, shift = _kind(left, right)
    rank_left, gap_left = _standing(baseline, index, mine, theirs)
    rank_right, gap_right = _standing(subject, index, theirs, mine)
    return Divergence(index, kind, mine, theirs, rank_left, rank_right, gap_left, gap_right, shift)


def _kind(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[DivergenceClass, int]:
    if not right:
        return DivergenceClass.EMPTY, 0
    if len(right) < len(left) and left[: len(right)] == right:
        return DivergenceClass.TRUNCATED, 0
    lost = len(left) > MIN_SHIFT_OVERLAP and right[: len(left) - 1] == left[1 : 1 + len(right)]
    doubled = len(right) > MIN_SHIFT_OVERLAP and right[1:] == left[: len(right) - 1] and right[0] == left[0]
    if is_degenerate(right) and not is_degenerate(left):
        return DivergenceClass.DEGENERATE, 0
    if (lost or doubled) and not is_degenerate(right):
        # A looping text is its own neighbour; that is no lost token.
        return DivergenceClass.FIRST_TOKEN, 1 if doubled else -1
    for shift in (step for size in range(1, MAX_SHIFT + 1) for step in (size, -size)):
        ours = left[: len(left) - shift] if shift > 0 else left[-shift:]
        other = right[shift:] if shift > 0 else right[: len(right) + shift]
        overlap = min(len(ours), len(other))
        if overlap >= MIN_SHIFT_OVERLAP and ours[:overlap] == other[:overlap] and not is_degenerate(ours):
            return DivergenceClass.SHIFT, shift
    return DivergenceClass.TOKEN, 0


def is_degenerate(ids: tuple[int, ...]) -> bool:
    """Whether the end of ``ids`` (at least 12 tokens) repeats with a period of at most 4."""
    for period in range(1, MAX_PERIOD + 1):
        tail = ids[-MIN_REPETITION:]
        if len(tail) == MIN_REPETITION and tail[period:] == tail[:-period]:
            return True
    return False


def _standing(side: Observation, index: int, own: int | None, other: int | None) -> tuple[int | None, float | None]:
    """Rank of ``other`` in the side's top-k at ``index``, and how much likelier the side held its own token.

    Both None where the side does not list ``other`` (it is then less likely than all that are listed).
    """
    if own is None or other is None or side.top_ids is None or side.top_logprobs is None:
        return None, None
    if index >= len(side.top_ids) or other not in side.top_ids[index]:
        return None, None
    row, values = side.top_ids[index], side.top_logprobs[index]
    rank = row.index(other)
    theirs = values[rank]
    mine = values[row.index(own)] if own in row else (side.logprobs or ())[index]
    if mine is None or theirs is None:
        return rank, None
    gap = mine - theirs
    return rank, gap if math.isfinite(gap) else None


def _drift(baseline: Observation, subject: Observation, index: int) -> Drift:
    left, right = baseline.token_ids or (), subject.token_ids or ()
    count = min(len(left), len(right), index + 1)
    same = (
        baseline.logprobs == subject.logprobs
        and baseline.top_ids == subject.top_ids
        and baseline.top_logprobs == subject.top_logprobs
    )
    if count == 0 or (same and left == right):
        # Most pairs of a healthy run are equal to the last bit.
        return Drift(0.0, 0.0, count, None)
    shared = min(index, count)
    chosen = np.zeros(count)
    chosen[:shared] = _apart(_row(baseline.logprobs, shared), _row(subject.logprobs, shared))
    per_position = np.maximum(chosen, _top_drift(baseline, subject, count))
    moved = np.flatnonzero(per_position > 0.0)
    return Drift(
        maximum=float(per_position.max()),
        share=float(moved.size / count),
        positions=count,
        first_index=int(moved[0]) if moved.size else None,
    )


_Floats = npt.NDArray[np.float64]


def _row(values: tuple[float | None, ...] | None, count: int) -> _Floats:
    return np.array((values or ())[:count], dtype=np.float64)


def _apart(left: _Floats, right: _Floats) -> _Floats:
    """|left - right|; infinite where just one side is not a number, 0 where both are the same non-number."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(left - right)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    apart[same] = 0.0
    apart[np.isnan(apart)] = np.inf
    return apart


def _top_drift(baseline: Observation, subject: Observation, count: int) -> _Floats:
    """Per position, the largest drift among the tokens of both top-k; shape (count,).

    A token that only one side lists is, on the other, at most as likely as the least likely token listed there;
    what it exceeds that by is a lower bound of its drift.
    """
    ids_left, values_left = _matrix(baseline, count)
    ids_right, values_right = _matrix(subject, count)
    match = (ids_left[:, :, None] == ids_right[:, None, :]) & (ids_left[:, :, None] >= 0)
    apart = _apart(
        np.broadcast_to(values_left[:, :, None], match.shape).copy(),
        np.broadcast_to(values_right[:, None, :], match.shape),
    )
    listed = np.where(match, apart, 0.0).max(axis=(1, 2))
    alone = np.maximum(
        _unlisted(ids_left, values_left, match.any(axis=2), (ids_right, values_right, _chosen(subject, count))),
        _unlisted(ids_right, values_right, match.any(axis=1), (ids_left, values_left, _chosen(baseline, count))),
    )
    return np.asarray(np.maximum(listed, alone), dtype=np.float64)


def _chosen(side: Observation, count: int) -> npt.NDArray[np.int64]:
    return np.array((side.token_ids or ())[:count], dtype=np.int64)


def _unlisted(
    ids: npt.NDArray[np.int64],
    values: _Floats,
    matched: npt.NDArray[np.bool_],
    other: tuple[npt.NDArray[np.int64], _Floats, npt.NDArray[np.int64]],
) -> _Floats:
    """Per position, by how much the likeliest token that only this side lists exceeds the other side's least likely."""
    other_ids, other_values, other_chosen = other
    filled = np.where(other_ids >= 0, np.nan_to_num(other_values, nan=-np.inf), np.inf)
    # An engine lists the chosen token also where it is none of the likeliest (a penalty, say); it bounds nothing.
    extra = (other_ids == other_chosen[:, None]) & (filled < filled[:, :1])
    least = np.where(extra, np.inf, filled).min(axis=1)
    mine = np.where((ids >= 0) & ~matched, np.nan_to_num(values, nan=-np.inf), -np.inf).max(axis=1)
    with np.errstate(invalid="ignore"):
        above = mine - least
    return np.asarray(np.where(np.isfinite(mine) & np.isfinite(least), np.maximum(above, 0.0), 0.0))


def _matrix(side: Observation, count: int) -> tuple[npt.NDArray[np.int64], _Floats]:
    """Top-k IDs and logprobs as rectangles of shape (count, k); short rows are filled with ID -1."""
    rows, values = (side.top_ids or ())[:count], (side.top_logprobs or ())[:count]
    width = max((len(row) for row in rows), default=0) or 1
    if all(len(row) == width for row in rows):
        return np.array(rows, dtype=np.int64), np.array(values, dtype=np.float64)
    ids = np.full((count, width), -1, dtype=np.int64)
    logprobs = np.zeros((count, width))
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        ids[place, : len(row)] = row
        logprobs[place, : len(row)] = np.array(value, dtype=np.float64)
    return ids, logprobs
