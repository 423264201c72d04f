"""What control pairs showed in this run, and the tolerance that follows for pairs that are not exact."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kvgate.domain.divergence import Comparison
from kvgate.domain.plan import PairKind
from kvgate.domain.policy import Policy

MIN_INFORMING_GROUPS = 8
MARGIN = 3.0
# How many exact repeats show that an engine answers alike whatever else is in its batch. One whose answers hang on that
# gives the same bits again in the same company: two loads that agree, against two local hits that agree, are one in
# three by chance alone, so six groups (cold and local repeats) have to speak against it.
CROWD_CONTROLS = 12


# The kinds of control: repeats of local hits, of cold runs, and a cold run against a local hit.
LOCAL_REPEAT = "local_vs_local_repeat"
COLD_REPEAT = "cold_vs_cold_repeat"
TWO_LEG_REPEAT = "two_leg_vs_two_leg_repeat"
COLD_LOCAL = PairKind.LOCAL_VS_COLD.value
# The same where nothing is kept locally: equality to the last bit shows the alignment; a difference informs nobody.
COLD_EXTERNAL = PairKind.EXTERNAL_VS_COLD.value
_REPEATS = (LOCAL_REPEAT, COLD_REPEAT, TWO_LEG_REPEAT)
# What was transferred against what prefill answers alone: shows whether the two engines answer alike.
DIRECT_LOCAL = PairKind.TRANSFER_VS_DIRECT.value


def controls_of(kind: PairKind) -> tuple[str, ...]:
    """The repeats that show how noisy the baselines of a kind of pair are; a gateway's own noise excuses no gateway."""
    if kind is PairKind.GATEWAY_VS_TWO_LEG:
        return (TWO_LEG_REPEAT,)
    return (LOCAL_REPEAT,) if kind.of_hits else (COLD_REPEAT,)


@dataclass(frozen=True, slots=True)
class Control:
    """One control comparison: its kind, its group, what was seen, and how many others were in flight."""

    kind: str
    group: str
    comparison: Comparison
    level: int | None = None


def repeats_exact(controls: Iterable[Control]) -> list[bool]:
    """Of every repeat of a local hit or a cold run, whether it was exact."""
    return [each.comparison.exact for each in controls if each.kind in (COLD_REPEAT, LOCAL_REPEAT)]


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """All controls of one kind: how many, how many exact, how many flipped, and the drift seen (nats).

    ``level`` is how many other requests were in flight, None where all groups have the same company.
    """

    kind: str
    pairs: int
    exact: int
    flips: int
    max_drift: float | None
    median_drift: float | None
    level: int | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """The tolerance (nats) for one pair and how many groups inform it.

    ``undecided`` is how far sides may be apart (nats) without being held against the subject, if that is further: an
    engine whose own repeats come near the tolerance goes beyond it by chance.
    """

    nat: float
    informed_by: int
    undecided: float = 0.0


def noise_floor(kind: str, controls: Iterable[Control], level: int | None = None) -> NoiseFloor | None:
    """The floor of one kind of control at one level of pressure, None if there was none."""
    seen = [control.comparison for control in controls if (control.kind, control.level) == (kind, level)]
    if not seen:
        return None
    drifts = sorted(each.max_drift for each in seen if each.max_drift is not None)
    return NoiseFloor(
        kind=kind,
        pairs=len(seen),
        exact=sum(1 for each in seen if each.exact),
        flips=sum(1 for each in seen if not each.ids_equal),
        max_drift=drifts[-1] if drifts else None,
        median_drift=drifts[len(drifts) // 2] if drifts else None,
        level=level,
    )


def envelope_for(group: str, kind: PairKind, proven: bool, controls: Iterable[Control], policy: Policy) -> Envelope:
    """The benign envelope of a pair of ``group``, from what controls of other groups showed.

    Hits are informed by repeats of hits (same shape), pairs with a cold side by cold repeats and cold-vs-local
    pairs. Only controls that are not exact inform: shape noise is sporadic (on a healthy bf16 engine most prompts
    show 0.0 and some 0.25 nat), so quiet neighbours say nothing about how loud it gets, and the loudest group of
    a run always exceeds the others. Hence the margin, and the cap wherever fewer than 8 groups inform it or the
    subject's path is unproven. Only true repeats say what stays undecided: a cold run held against a hit may show the
    fault itself.
    """
    kinds = controls_of(kind)
    if not kind.of_hits:
        kinds = (*kinds, COLD_LOCAL)
    others = [
        control
        for control in controls
        if control.group != group and control.kind in kinds and not control.comparison.exact
    ]
    informing = len({control.group for control in others})
    # What goes through the transfer, repeats and all, does not excuse the transfer.
    alone = kind is not PairKind.TRANSFER_VS_DIRECT
    repeats = controls_of(kind) if kind is PairKind.GATEWAY_VS_TWO_LEG else _REPEATS
    undecided = MARGIN * _second_loudest(each for each in controls if each.kind in repeats) if alone else 0.0
    if not proven or informing < MIN_INFORMING_GROUPS:
        return Envelope(policy.envelope_cap_nat, informing, undecided)
    largest = MARGIN * max(_spread(control.comparison) for control in others)
    return Envelope(min(max(largest, policy.envelope_floor_nat), policy.envelope_cap_nat), informing, undecided)


def _second_loudest(repeats: Iterable[Control]) -> float:
    """How far the repeats of the second loudest group are apart (nats): one group alone may be odd, a noisy engine is
    noisy in most; 0.0 if there are no two."""
    loudest: dict[str, float] = {}
    for each in repeats:
        loudest[each.group] = max(loudest.get(each.group, 0.0), furthest(each.comparison))
    return sorted((0.0, 0.0, *loudest.values()))[-2]


def furthest(comparison: Comparison) -> float:
    """The smallest tolerance (nats) that explains a repeat; infinite where its tokens are no near tie at all."""
    explained = comparison.drift is None or comparison.within(math.inf)
    return _spread(comparison) if explained else math.inf


def _spread(comparison: Comparison) -> float:
    """How far a control's sides were apart (nats): its drift, or the gap of a flip if that is wider."""
    gaps = [0.0 if comparison.max_drift is None else comparison.max_drift]
    if comparison.divergence is not None:
        gaps += [
            gap
            for gap in (comparison.divergence.gap_in_baseline, comparison.divergence.gap_in_subject)
            if gap is not None
        ]
    return max(gaps)
