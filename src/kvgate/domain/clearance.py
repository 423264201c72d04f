"""Whether a deployment may be switched on: what its stored runs lack to be a PASS for exactly it.

Runs that may be of this deployment are those that are not known to be of another. What engines tell of themselves is
taken from the newest of them where the deployment was not asked: whoever gated it last saw how it is. Only runs of
exactly that deployment count, and only those that are newer than the last FAIL of any that may be it.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kvgate.domain.fingerprint import UNKNOWN, Difference, Fingerprint, differences
from kvgate.domain.kept import LedgerRow, State
from kvgate.domain.policy import Policy, PolicyName, weaker
from kvgate.domain.power import excluded_fault_rate, groups_for
from kvgate.domain.probe import TO_CHOOSE_FROM, Arm
from kvgate.domain.soak import Excluded
from kvgate.domain.verdict import Verdict

DAY_S = 86_400.0
# Clocks of two machines may differ by so much.
CLOCKS_S = 600.0


class Lack(str, Enum):
    """Why a deployment is not cleared."""

    NO_RUN = "NO_RUN"
    OTHER_DEPLOYMENT = "OTHER_DEPLOYMENT"
    FAILED = "FAILED"
    INCONCLUSIVE = "INCONCLUSIVE"
    UNFINISHED = "UNFINISHED"
    EDITED = "EDITED"
    GONE = "GONE"
    TOO_OLD = "TOO_OLD"
    WEAKER_POLICY = "WEAKER_POLICY"
    NOT_ASKED = "NOT_ASKED"
    TIER_NOT_COVERED = "TIER_NOT_COVERED"
    TOO_FEW_GROUPS = "TOO_FEW_GROUPS"


@dataclass(frozen=True, slots=True)
class Lacking:
    """One thing that is missing, in a sentence."""

    lack: Lack
    detail: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a clearance takes. ``asked`` is what the configuration asks to be sent, by the names of `KeptRun.asked`."""

    deployment: Fingerprint
    policy: Policy
    tiers: tuple[int, ...]
    asked: tuple[str, ...]
    max_fault_rate: float
    max_age_s: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored run and how long ago it began, in seconds."""

    row: LedgerRow
    age_s: float

    @property
    def named(self) -> str:
        """How the run is called in a sentence."""
        return f"run {self.row.run.run_id}"


@dataclass(frozen=True, slots=True)
class Clearance:
    """What was found. ``deployment`` is what runs were held against, ``runs`` those that count.

    ``not_compared`` are traits that neither the deployment nor any run of it tells.
    """

    cleared: bool
    deployment: Fingerprint
    runs: tuple[str, ...]
    excluded: tuple[Excluded, ...]
    lacking: tuple[Lacking, ...]
    not_compared: tuple[str, ...]


def clearance(wanted: Wanted, candidates: Sequence[Candidate]) -> Clearance:
    """Whether these runs clear the deployment, and if not, everything that is missing."""
    newest_first = sorted(candidates, key=lambda each: each.age_s)
    maybe = [each for each in newest_first if not any(one.sure for one in _between(wanted.deployment, each))]
    deployment = wanted.deployment.completed(maybe[0].row.run.fingerprint) if maybe else wanted.deployment
    exact = [each for each in maybe if not _apart(deployment, each)]
    failed = next((each for each in maybe if each.row.run.under(wanted.policy.name) is Verdict.FAIL), None)
    told = {each.row.run.run_id: _obstacles(wanted, each, failed) for each in exact}
    good = [each for each in exact if not told[each.row.run.run_id]]
    lacking = _uncovered(wanted, good) if good else _of_the_nearest(wanted.policy.name, exact, told)
    if not exact:
        lacking = _of_others(deployment, newest_first, failed)
    return Clearance(
        cleared=not lacking,
        deployment=deployment,
        runs=tuple(each.row.run.run_id for each in good) if not lacking else (),
        excluded=_excluded(wanted, good),
        lacking=tuple(lacking),
        not_compared=tuple(each.name for each in deployment.traits if each.told and each.value is None),
    )


def _between(deployment: Fingerprint, candidate: Candidate) -> tuple[Difference, ...]:
    return differences(deployment, candidate.row.run.fingerprint)


def _obstacles(wanted: Wanted, each: Candidate, failed: Candidate | None) -> list[Lacking]:
    """Everything that keeps one run of exactly this deployment from counting."""
    row, name = each.row, wanted.policy.name
    verdict = row.run.under(name)
    found: list[Lacking] = []
    if verdict is Verdict.FAIL:
        why = ", ".join(row.run.reasons) or "see its report"
        found.append(Lacking(Lack.FAILED, f"{each.named}, {_ago(each)}, is FAIL under policy {name.value}: {why}"))
    elif failed is not None and failed.age_s <= each.age_s:
        found.append(Lacking(Lack.FAILED, f"{failed.named}, {_ago(failed)}, is FAIL, and {each.named} is no newer"))
    if verdict is Verdict.INCONCLUSIVE:
        why = ", ".join(row.run.reasons) or "see its report"
        found.append(
            Lacking(Lack.INCONCLUSIVE, f"{each.named}, {_ago(each)}, proved nothing under {name.value}: {why}")
        )
    states = {State.EDITED: Lack.EDITED, State.GONE: Lack.GONE, State.UNFINISHED: Lack.UNFINISHED}
    if row.state in states:
        found.append(Lacking(states[row.state], f"{each.named} in {row.place}: {row.why}"))
    if each.age_s < -CLOCKS_S:
        found.append(Lacking(Lack.TOO_OLD, f"{each.named} began in the future, so nobody knows how old it is"))
    if each.age_s > wanted.max_age_s:
        most = wanted.max_age_s / DAY_S
        found.append(Lacking(Lack.TOO_OLD, f"{each.named} began {_ago(each)}; at most {most:g} days are allowed"))
    found += [
        Lacking(Lack.WEAKER_POLICY, f"{each.named} was judged with {phrase}")
        for phrase in weaker(row.run.policy, wanted.policy)
    ]
    return found


def _ago(each: Candidate) -> str:
    days = max(0.0, each.age_s) / DAY_S
    if days == math.inf:
        return "nobody knows when"
    return f"{days:.1f} days ago" if days >= 1 else f"{24 * days:.1f} hours ago"


def _of_the_nearest(policy: PolicyName, exact: Sequence[Candidate], told: dict[str, list[Lacking]]) -> list[Lacking]:
    """What keeps the newest PASS of this deployment from counting, or, where there is none, its newest run."""
    passed = [each for each in exact if each.row.run.under(policy) is Verdict.PASS]
    return told[(passed or exact)[0].row.run.run_id] if exact else []


def _of_others(deployment: Fingerprint, every: Sequence[Candidate], failed: Candidate | None) -> list[Lacking]:
    """What is missing where no run is of exactly this deployment: in what the nearest one is another's."""
    if not every:
        return [Lacking(Lack.NO_RUN, f"no run of {_name(deployment)} is stored")]
    found: list[Lacking] = []
    if failed is not None:
        detail = f"{failed.named}, {_ago(failed)}, is FAIL and is not known to be of another deployment"
        found.append(Lacking(Lack.FAILED, detail))
    nearest = min(every, key=lambda each: (_other_name(deployment, each), len(_apart(deployment, each))))
    if _other_name(deployment, nearest):
        detail = f"no run of {_name(deployment)} is stored; there are {len(every)} of others"
        return [*found, Lacking(Lack.NO_RUN, detail)]
    return [*found, *(_unlike(nearest, each) for each in _apart(deployment, nearest))]


def _name(deployment: Fingerprint) -> str:
    return f"deployment {deployment.value('deployment.name')}"


def _other_name(deployment: Fingerprint, each: Candidate) -> bool:
    return each.row.run.fingerprint.value("deployment.name") != deployment.value("deployment.name")


def _apart(deployment: Fingerprint, each: Candidate) -> tuple[Difference, ...]:
    """All differences, also where the deployment that is wanted does not tell."""
    found = each.row.run.fingerprint
    names = sorted({one.name for one in (*deployment.traits, *found.traits)})
    pairs = [Difference(name, deployment.value(name), found.value(name)) for name in names]
    differing = [pair for pair in pairs if pair.wanted != pair.found]
    # What nobody told of this deployment is no difference that anybody could mend, as long as there is another.
    return tuple([pair for pair in differing if pair.wanted is not None or not pair.told] or differing)


def _unlike(nearest: Candidate, each: Difference) -> Lacking:
    run = f"{nearest.named} ({nearest.row.run.verdict.value}, {_ago(nearest)})"
    if each.wanted is None:
        detail = f"{each.name}: this deployment does not say it, {run} was gated with {each.found!r}"
    elif each.found is None:
        detail = f"{each.name}: this deployment has {each.wanted!r}, of {run} it is {UNKNOWN}"
    else:
        detail = f"{each.name}: this deployment has {each.wanted!r}, {run} was gated with {each.found!r}"
    return Lacking(Lack.OTHER_DEPLOYMENT, detail)


def _uncovered(wanted: Wanted, good: Sequence[Candidate]) -> list[Lacking]:
    """What the runs that count did not send, or not often enough."""
    found: dict[Lacking, None] = {}
    for tier in sorted(set(wanted.tiers)):
        runs = [each for each in good if tier in each.row.run.tiers]
        if not runs:
            if not any(tier in each.row.run.not_applicable for each in good):
                found[Lacking(Lack.TIER_NOT_COVERED, f"no run that counts has tier {tier}")] = None
            continue
        sent = {name for each in runs for name in each.row.run.asked}
        for name in (name for name in wanted.asked if name not in sent):
            found[Lacking(Lack.NOT_ASKED, f"the configuration asks for {name}, no run that counts did")] = None
    for each in _excluded(wanted, good):
        if each.excluded_fault_rate > wanted.max_fault_rate:
            detail = (
                f"tier {each.tier}, {each.arm.value}: {each.groups} clean groups leave random faults in up to "
                f"{100 * each.excluded_fault_rate:.2g}% of requests open; {groups_for(wanted.max_fault_rate)} are "
                f"needed for {100 * wanted.max_fault_rate:.2g}%"
            )
            found[Lacking(Lack.TOO_FEW_GROUPS, detail)] = None
    return list(found)


def _excluded(wanted: Wanted, good: Sequence[Candidate]) -> tuple[Excluded, ...]:
    """What the clean groups of all runs that count exclude together, for the tiers and arms that are wanted."""
    named = {f"arm {arm.value}" for arm in TO_CHOOSE_FROM} - set(wanted.asked)
    groups: Counter[tuple[int, Arm]] = Counter()
    for each in good:
        for clean in each.row.run.clean:
            if clean.tier in wanted.tiers and f"arm {clean.arm.value}" not in named:
                groups[clean.tier, clean.arm] += clean.groups
    return tuple(
        Excluded(tier, arm, count, excluded_fault_rate(count)) for (tier, arm), count in sorted(groups.items())
    )
