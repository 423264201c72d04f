"""Runs that belong together, for instance the shards of a matrix in CI: what they say as one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvgate.domain.fingerprint import Fingerprint
from kvgate.domain.kept import KeptRun
from kvgate.domain.policy import PolicyName
from kvgate.domain.power import excluded_fault_rate
from kvgate.domain.probe import Arm
from kvgate.domain.soak import Excluded
from kvgate.domain.verdict import Verdict, merge


@dataclass(frozen=True, slots=True)
class Shard:
    """One run of those that were put together."""

    run_id: str
    started_at: str
    verdict: Verdict
    policy: PolicyName
    tiers: tuple[int, ...]
    groups: int
    reasons: tuple[str, ...]
    endpoint_lost: bool


@dataclass(frozen=True, slots=True)
class Merged:
    """What runs of one deployment say together.

    ``verdict`` is the worst of them. ``excluded`` is what the clean groups of those that passed exclude at 95 %.
    ``open_tiers`` were tested in no run that passed; ``not_applicable`` can be tested in none.
    """

    verdict: Verdict
    deployment: Fingerprint
    endpoint_lost: bool
    shards: tuple[Shard, ...]
    tiers: tuple[int, ...]
    open_tiers: tuple[int, ...]
    not_applicable: tuple[int, ...]
    groups: int
    excluded: tuple[Excluded, ...]
    notes: tuple[str, ...]


class UnlikeError(ValueError):
    """Runs that are not of one deployment; says which two and in what."""


def merged(runs: Sequence[KeptRun]) -> Merged:
    """All runs together, each once; in whatever order they are given. Raises UnlikeError."""
    once = {each.run_id: each for each in runs}
    ordered = sorted(once.values(), key=lambda each: (each.origin.started_at, each.run_id))
    _check_alike(ordered)
    passed = [each for each in ordered if each.verdict is Verdict.PASS]
    groups: Counter[tuple[int, Arm]] = Counter()
    for clean in (clean for each in passed for clean in each.clean):
        groups[clean.tier, clean.arm] += clean.groups
    tiers = sorted({tier for each in ordered for tier in each.tiers})
    covered = {tier for each in passed for tier in each.tiers}
    never = sorted({tier for each in ordered for tier in each.not_applicable} - set(tiers))
    return Merged(
        verdict=merge(each.verdict for each in ordered),
        deployment=_together(ordered),
        endpoint_lost=any(each.endpoint_lost for each in ordered),
        shards=tuple(map(_shard, ordered)),
        tiers=tuple(tiers),
        open_tiers=tuple(tier for tier in tiers if tier not in covered),
        not_applicable=tuple(never),
        groups=sum(each.groups for each in ordered),
        excluded=tuple(
            Excluded(tier, arm, count, excluded_fault_rate(count)) for (tier, arm), count in sorted(groups.items())
        ),
        notes=_notes(ordered),
    )


def _check_alike(runs: Sequence[KeptRun]) -> None:
    """Refuse runs of which a trait is known to differ. One that does not tell goes with any, so all are compared."""
    seen: dict[str, tuple[KeptRun, str]] = {}
    for run in runs:
        for each in run.fingerprint.traits:
            if each.value is None:
                continue
            first, value = seen.setdefault(each.name, (run, each.value))
            if value != each.value:
                raise UnlikeError(
                    f"{each.name}: run {first.run_id} has {value!r}, run {run.run_id} has {each.value!r}; merge runs "
                    "of one deployment"
                )


def _together(runs: Sequence[KeptRun]) -> Fingerprint:
    found = runs[0].fingerprint if runs else Fingerprint(())
    for each in runs[1:]:
        found = found.completed(each.fingerprint)
    return found


def _shard(run: KeptRun) -> Shard:
    return Shard(
        run_id=run.run_id,
        started_at=run.origin.started_at,
        verdict=run.verdict,
        policy=run.policy.name,
        tiers=run.tiers,
        groups=run.groups,
        reasons=run.reasons if run.verdict is not Verdict.PASS else (),
        endpoint_lost=run.endpoint_lost,
    )


def _notes(runs: Sequence[KeptRun]) -> tuple[str, ...]:
    notes: list[str] = []
    if len({each.policy for each in runs}) > 1:
        notes.append("the runs were judged by policies that differ; each verdict is that of its own run's policy")
    partly = sorted(
        {
            each.name
            for run in runs
            for each in run.fingerprint.traits
            if each.value is None and any(other.fingerprint.value(each.name) is not None for other in runs)
        }
    )
    if partly:
        notes.append(f"known of some of the runs only: {', '.join(partly)}")
    return tuple(notes)
