"""What is kept of a run beside its directory: enough to find it, compare it with others, and hold it to itself."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from kvgate.domain.fingerprint import Fingerprint, Versions, fingerprint_of
from kvgate.domain.plan import Plan, Purpose
from kvgate.domain.policy import Policy, PolicyName
from kvgate.domain.power import excluded_fault_rate
from kvgate.domain.ruling import RunVerdict
from kvgate.domain.soak import Clean
from kvgate.domain.verdict import Verdict


class State(str, Enum):
    """What became of a run's directory.

    KEPT: it is as it was when it was judged. UNFINISHED: it has no verdict.json; it goes on, or was cut off. GONE: it
    is not there any more. EDITED: a file of it is not what it was, or its verdict is not what its history gives.
    """

    KEPT = "kept"
    UNFINISHED = "unfinished"
    GONE = "gone"
    EDITED = "edited"


@dataclass(frozen=True, slots=True)
class PolicySays:
    """A run's verdict under one policy."""

    policy: PolicyName
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run came from: what its manifest says beside its plan. ``started_at`` is ISO 8601 in UTC."""

    run_id: str
    kvgate_version: str
    started_at: str
    config_path: str
    config_sha256: str


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run as the ledger has it. Verdicts are what the judge says of its history, never what a file says.

    ``clean`` are the clean groups of each tier by arm; ``not_applicable`` are tiers below the hit floor; ``asked`` is
    what its configuration asked to be sent, empty where that is not known.
    """

    origin: Origin
    verdict: Verdict
    says: tuple[PolicySays, ...]
    policy: Policy
    endpoint_lost: bool
    fingerprint: Fingerprint
    tiers: tuple[int, ...]
    not_applicable: tuple[int, ...]
    asked: tuple[str, ...]
    groups: int
    clean: tuple[Clean, ...]
    reasons: tuple[str, ...]

    @property
    def run_id(self) -> str:
        """The run's name, which no other run has."""
        return self.origin.run_id

    def under(self, policy: PolicyName) -> Verdict:
        """The run's verdict under a policy."""
        return next((each.verdict for each in self.says if each.policy is policy), Verdict.INCONCLUSIVE)

    @property
    def excluded_fault_rate(self) -> float:
        """What a PASS excludes in the weakest tier and arm: random faults above this share of requests."""
        return max((excluded_fault_rate(each.groups) for each in self.clean), default=1.0)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A run in the ledger: where it is, what became of it, and why it is not simply kept."""

    run: KeptRun
    place: str
    state: State
    why: str = ""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A folder that looks like a run directory and cannot be read, and why."""

    place: str
    why: str


@dataclass(frozen=True, slots=True)
class Imported:
    """A run that was found and is, or already was, in the ledger."""

    run_id: str
    source: str
    place: str


@dataclass(frozen=True, slots=True)
class Imports:
    """What became of all run directories that were found."""

    taken: tuple[Imported, ...]
    known: tuple[Imported, ...]
    broken: tuple[Unreadable, ...]


def kept_run(
    origin: Origin,
    plan: Plan,
    ruling: RunVerdict,
    versions: Versions,
    stated: Iterable[tuple[str, str]],
    asked: tuple[str, ...],
) -> KeptRun:
    """What is kept of a run, from its manifest's parts and what the judge says of its history."""
    return KeptRun(
        origin=origin,
        verdict=ruling.verdict,
        says=tuple(PolicySays(each.policy, each.verdict) for each in ruling.results),
        policy=plan.policy,
        endpoint_lost=ruling.endpoint_lost,
        fingerprint=fingerprint_of(plan, versions, stated),
        tiers=plan.tiers(),
        not_applicable=tuple(each.tier for each in ruling.not_applicable),
        asked=asked,
        groups=sum(1 for each in ruling.groups if each.purpose is Purpose.TIER and not each.replaced),
        clean=tuple(Clean(each.tier, each.arm, each.groups) for each in ruling.power),
        reasons=tuple(dict.fromkeys(each.reason.value for each in ruling.reasons)),
    )
