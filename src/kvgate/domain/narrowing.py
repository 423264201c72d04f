"""Narrowing a failure down: at which length it begins, and which block is wrong. A pure function of what was seen.

Two searches, one after the other (``bracket``): over prompt lengths, each a full group of its own; then, at the
shortest failing length, over how much of the prompt is loaded. What counts at each place is the kind of pair that
failed, and a pair that passes counts only where it was as sharp as the one that failed.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvgate.domain.bracket import CONFIRMED, Found, Search, Tried, found, next_place
from kvgate.domain.narrow_groups import Model, can_shrink
from kvgate.domain.narrow_result import (
    BlockFound,
    BlockResult,
    LengthResult,
    NarrowResult,
    Step,
    told_of_block,
    told_of_length,
)
from kvgate.domain.plan import GroupPlan, PairKind, Plan, Purpose
from kvgate.domain.policy import PolicyName
from kvgate.domain.probe import Arm
from kvgate.domain.ruling import GroupVerdict, PairVerdict, RunVerdict
from kvgate.domain.verdict import Verdict

# The most groups that are sent for each of the two questions, unless more are asked for.
MOST_GROUPS = 8
_BY_LENGTH = (Purpose.TIER, Purpose.BOUNDARY)


class NothingToNarrowError(ValueError):
    """No failure of a group stands in the record; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What failed in the run: the kind of pair, whether it was one that must be exact, and what is known by length.

    ``seen`` are (granules reused, verdict, length) of the run's groups.
    """

    kind: PairKind
    exact: bool
    attribution: str
    seen: tuple[tuple[int, Verdict, int], ...]


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The question: which failure, with which groups it is narrowed down, and how many each search may send."""

    failure: Failure
    model: Model
    most: int = MOST_GROUPS

    @property
    def stride(self) -> int:
        """Granules between two lengths: where a cold run is the baseline, only aligned lengths are as sharp."""
        geometry = self.model.plan.geometry
        if self.failure.kind.of_hits or not self.failure.exact:
            return 1
        return math.lcm(geometry.chunk, geometry.granule) // geometry.granule


def failure_in(plan: Plan, ruling: RunVerdict) -> Failure:
    """What failed in a run. Raises NothingToNarrowError."""
    counted = [group for group in ruling.groups if not group.replaced and group.purpose in _BY_LENGTH]
    failing = [group for group in counted if _verdict(plan, group) is Verdict.FAIL and any(map(_fails, group.pairs))]
    if not failing:
        others = [group.id for group in ruling.groups if _verdict(plan, group) is Verdict.FAIL]
        told = f"; group {others[0]} fails, which is no matter of length" if others else ""
        raise NothingToNarrowError(
            f"no group of a tier or a boundary length fails (the run is {ruling.verdict.value}){told}; give a run in "
            "which one does"
        )
    shortest = min(failing, key=lambda group: (group.expected_external, group.length))
    pairs = [pair for pair in shortest.pairs if _fails(pair)]
    first = min(pairs, key=_foremost)
    alike = [pair for pair in pairs if pair.kind is first.kind]
    exact = any(pair.exact for pair in alike)
    granule = plan.geometry.granule
    seen = tuple(
        (group.expected_external // granule, shown(group, first.kind, exact), group.length) for group in counted
    )
    return Failure(first.kind, exact, first.attribution or "", seen)


def _verdict(plan: Plan, group: GroupVerdict) -> Verdict:
    return group.strict if plan.policy.name is PolicyName.STRICT else group.verdict


def _fails(pair: PairVerdict) -> bool:
    return pair.verdict is Verdict.FAIL


def _foremost(pair: PairVerdict) -> tuple[bool, int]:
    """The pair that says most: two hits of one length before any other, a load before all."""
    return not pair.kind.of_hits, list(PairKind).index(pair.kind)


def shown(group: GroupVerdict, kind: PairKind, exact: bool) -> Verdict:
    """What a group shows of the failure: it is there, it is not, or neither.

    A pair that passes within a tolerance does not acquit what an exact one would have convicted.
    """
    alike = [pair for pair in group.pairs if pair.kind is kind]
    if any(map(_fails, alike)):
        return Verdict.FAIL
    clean = [pair for pair in alike if pair.verdict is Verdict.PASS and (pair.exact or not exact)]
    return Verdict.PASS if alike and len(clean) == len(alike) else Verdict.INCONCLUSIVE


def shown_by_load(group: GroupVerdict, exact: bool) -> Verdict:
    """The same where a part is loaded: only a load of just that part speaks of it."""
    alike = [pair for pair in group.pairs if pair.kind is PairKind.EXTERNAL_VS_LOCAL and not pair.stray]
    arms = {arm.arm: arm.external for arm in group.arms}
    as_asked = [pair for pair in alike if arms.get(pair.subject) == group.expected_external]
    if any(_fails(pair) and pair.shape_matched for pair in as_asked):
        return Verdict.FAIL
    clean = [pair for pair in as_asked if pair.verdict is Verdict.PASS and (pair.exact or not exact)]
    return Verdict.PASS if alike and len(clean) == len(alike) else Verdict.INCONCLUSIVE


def next_group(narrowing: Narrowing, ruling: RunVerdict) -> GroupPlan | None:
    """The group to send next, by the ruling on all that were sent; None if both searches are at their end."""
    search, model = length_search(narrowing, ruling), narrowing.model
    place = next_place(search)
    if place is not None:
        return model.of_length(place, _number(ruling, Purpose.TIER, place * model.plan.geometry.granule))
    if _why_no_block(narrowing, search):
        return None
    length = _length_at(narrowing, ruling, search.fails or 0)
    place = next_place(block_search(narrowing, ruling))
    if place is None:
        return None
    return model.of_load(length, place, _number(ruling, Purpose.BLOCK, place * model.plan.geometry.granule))


def _number(ruling: RunVerdict, purpose: Purpose, hit: int) -> int:
    return 1 + sum((group.purpose, group.expected_external) == (purpose, hit) for group in ruling.groups)


def _sent(ruling: RunVerdict, purpose: Purpose) -> Iterator[GroupVerdict]:
    return (group for group in ruling.groups if group.purpose is purpose and not group.replaced)


def _replaced(ruling: RunVerdict, purpose: Purpose) -> int:
    """Void groups were sent, too, and are counted."""
    return sum(group.purpose is purpose and group.replaced for group in ruling.groups)


def length_search(narrowing: Narrowing, ruling: RunVerdict) -> Search:
    """What is known of lengths, in granules that are reused."""
    failure, granule = narrowing.failure, narrowing.model.plan.geometry.granule
    then = (Tried(place, verdict, now=False) for place, verdict, _ in failure.seen)
    now = (
        Tried(group.expected_external // granule, shown(group, failure.kind, failure.exact))
        for group in _sent(ruling, Purpose.TIER)
    )
    stride = narrowing.stride
    first = -(-narrowing.model.shortest() // stride) * stride
    most = narrowing.most - _replaced(ruling, Purpose.TIER)
    return Search((*then, *now), first, stride, most)


def block_search(narrowing: Narrowing, ruling: RunVerdict) -> Search:
    """What is known of how much is loaded, in granules: nothing loaded is nothing wrong, all of it fails."""
    fails = length_search(narrowing, ruling).fails or 0
    granule = narrowing.model.plan.geometry.granule
    known = (*[Tried(0, Verdict.PASS, now=False)] * CONFIRMED, Tried(fails, Verdict.FAIL, now=False))
    now = (
        Tried(group.expected_external // granule, shown_by_load(group, narrowing.failure.exact))
        for group in _sent(ruling, Purpose.BLOCK)
    )
    return Search((*known, *now), 1, 1, narrowing.most - _replaced(ruling, Purpose.BLOCK))


def _why_no_block(narrowing: Narrowing, search: Search) -> str:
    """Why no block is looked for; empty if one is."""
    if found(search) in (Found.NOT_BY_PLACE, Found.GONE) or search.fails is None:
        return "the failure does not come every time at one length, so loading less of it would show nothing"
    if narrowing.failure.kind is not PairKind.EXTERNAL_VS_LOCAL:
        return f"what fails is {narrowing.failure.kind.value}, and only loads held against local hits can be shortened"
    return can_shrink(narrowing.model.group, narrowing.model.plan)


def _length_at(narrowing: Narrowing, ruling: RunVerdict, place: int) -> int:
    """The length that was sent at a place: now, or in the run."""
    hit = place * narrowing.model.plan.geometry.granule
    now = (group.length for group in _sent(ruling, Purpose.TIER) if group.expected_external == hit)
    then = (length for each, _, length in narrowing.failure.seen if each == place)
    return next(now, None) or next(then, None) or narrowing.model.length_of(place)


def result_of(narrowing: Narrowing, ruling: RunVerdict) -> NarrowResult:
    """What both searches came to."""
    length = _length_result(narrowing, ruling)
    return NarrowResult(
        kind=narrowing.failure.kind,
        attribution=narrowing.failure.attribution,
        length=length,
        block=_block_result(narrowing, ruling),
        steps=tuple(_steps(narrowing, ruling)),
    )


def _length_result(narrowing: Narrowing, ruling: RunVerdict) -> LengthResult:
    search = length_search(narrowing, ruling)

    def lengths(places: Iterable[int]) -> tuple[int, ...]:
        return tuple(_length_at(narrowing, ruling, place) for place in places)

    low, fails = search.passes, search.fails
    result = LengthResult(
        found=found(search),
        passes=lengths([low])[0] if low is not None else None,
        fails=lengths([fails])[0] if fails is not None else None,
        step=search.stride * narrowing.model.plan.geometry.granule,
        passes_shown=search.count(low, Verdict.PASS) if low is not None else 0,
        fails_shown=search.count(fails, Verdict.FAIL) if fails is not None else 0,
        unknown=lengths(search.unknown),
        passes_above=lengths(search.passes_above),
        groups=search.sent + _replaced(ruling, Purpose.TIER),
        said="",
    )
    return told_of_length(result)


def _block_result(narrowing: Narrowing, ruling: RunVerdict) -> BlockResult:
    lengths = length_search(narrowing, ruling)
    why = _why_no_block(narrowing, lengths)
    place, granule = lengths.fails or 0, narrowing.model.plan.geometry.granule
    length = _length_at(narrowing, ruling, place)
    search = block_search(narrowing, ruling)
    sent = search.sent + _replaced(ruling, Purpose.BLOCK)
    if why:
        return told_of_block(BlockResult(BlockFound.NOT_ASKED, length, granule, place, None, None, None, 0, why))
    low, fails = search.passes, search.fails
    alone = _alone(narrowing, ruling, fails)
    result = BlockResult(
        found=_block_found(search, alone),
        length=length,
        granule=granule,
        loaded=place,
        first=low,
        last=fails - 1 if fails is not None else None,
        alone=alone,
        groups=sent,
        said="",
        unknown=search.unknown,
    )
    return told_of_block(result)


def _block_found(search: Search, alone: bool | None) -> BlockFound:
    came_to = found(search)
    if came_to in (Found.NOT_BY_PLACE, Found.GONE, Found.UNDECIDED, Found.ALL_FAIL) or search.passes_above:
        return BlockFound.UNDECIDED
    if search.fails == 1:
        return BlockFound.EVERY_LOAD if came_to is Found.BRACKETED else BlockFound.UNDECIDED
    if alone is False:
        return BlockFound.NOT_ONE_BLOCK
    return BlockFound.NAMED if came_to is Found.BRACKETED and alone else BlockFound.RANGE


def _alone(narrowing: Narrowing, ruling: RunVerdict, place: int | None) -> bool | None:
    """Whether the last granule of that load is wrong also where it is loaded alone, behind what is there already."""
    hit = (place or 0) * narrowing.model.plan.geometry.granule
    pairs = [
        pair
        for group in _sent(ruling, Purpose.BLOCK)
        if group.expected_external == hit
        for pair in group.pairs
        if pair.kind is PairKind.MIXED_VS_LOCAL and pair.subject is Arm.MIXED
    ]
    if any(map(_fails, pairs)):
        return True
    sharp = [pair for pair in pairs if pair.exact or not narrowing.failure.exact]
    return False if sharp and all(pair.verdict is Verdict.PASS for pair in sharp) else None


def _steps(narrowing: Narrowing, ruling: RunVerdict) -> Iterator[Step]:
    failure, granule = narrowing.failure, narrowing.model.plan.geometry.granule
    for group in ruling.groups:
        loads = group.purpose is Purpose.BLOCK
        verdict = shown_by_load(group, failure.exact) if loads else shown(group, failure.kind, failure.exact)
        why = next((f"{each.reason.value}: {each.detail}" for each in group.reasons), "")
        place = group.expected_external // granule
        told = "" if verdict is Verdict.PASS else why
        yield Step(group.id, group.length, place, loads, verdict, group.replaced, told)
