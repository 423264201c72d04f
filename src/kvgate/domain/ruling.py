"""What the judge says of a run: values only, in the shape of verdict.json."""

from dataclasses import dataclass

from kvgate.domain.noise import NoiseFloor
from kvgate.domain.plan import NotApplicable, PairKind, Purpose
from kvgate.domain.policy import Grade, PolicyName
from kvgate.domain.probe import Arm, Path
from kvgate.domain.reasons import Problem
from kvgate.domain.verdict import Verdict


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """One pair: what decided it, and token result and drift side by side.

    ``ids_equal``, ``first_difference`` and ``max_drift`` (nats) are None where there was nothing to compare;
    ``drift_share`` is the share of the compared output positions with any drift, ``first_drift`` the first such;
    ``drift_problem`` says why a drift is not a finite number. ``row`` is the deciding row of the decision table.
    ``attribution`` names the part a FAIL speaks against, ``blames`` the kind of pair that shows that part to be wrong:
    another one where this one's answers came through it. ``control_drift`` (nats) is that of the baseline against its
    own repeat. ``odd_baseline`` is whether the baseline is off its own
    repeat by more than the tolerance while the subject agrees with that repeat. ``shape_matched`` is whether both
    sides reused equally many tokens at one endpoint; ``stray`` marks an answer that is not its arm's standing one.
    """

    kind: PairKind
    baseline: Arm
    subject: Arm
    required: bool
    verdict: Verdict
    row: int
    problem: Problem | None
    annotations: tuple[Problem, ...]
    exact: bool
    why_not_exact: str | None
    ids_equal: bool | None
    first_difference: int | None
    divergence: str | None
    max_drift: float | None
    drift_share: float | None
    first_drift: int | None
    drift_problem: str | None
    control_exact: bool | None
    control_drift: float | None
    envelope: float
    attribution: str | None
    blames: PairKind | None = None
    odd_baseline: bool = False
    shape_matched: bool = False
    stray: bool = False


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """One arm: where its prompt tokens came from, by whose word, and how long it took."""

    arm: Arm
    endpoint: str
    path: Path
    proven: bool
    problem: Problem | None
    attempts: int
    computed: int | None
    local: int | None
    external: int | None
    loaded_bytes: int | None
    grade: Grade | None
    output_tokens: int | None
    first_token_s: float | None
    total_s: float | None


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """One group, under both policies. ``replaced`` groups are shown but not counted."""

    id: str
    tier: int
    length: int
    purpose: Purpose
    family: str
    aligned: bool
    verdict: Verdict
    strict: Verdict
    reasons: tuple[Problem, ...]
    strict_reasons: tuple[Problem, ...]
    pairs: tuple[PairVerdict, ...]
    arms: tuple[ArmSummary, ...]
    expected_external: int
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class TierPower:
    """What the clean groups of a tier exclude at 95 % for one arm: random per-request faults above this rate."""

    tier: int
    arm: Arm
    lengths: tuple[int, ...]
    path: Path
    groups: int
    excluded_fault_rate: float


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds: the 50th and 90th percentile, and the longest."""

    p50: float
    p90: float
    longest: float


@dataclass(frozen=True, slots=True)
class PathTiming:
    """How long the proven requests of a tier took by one path.

    ``between_tokens`` is each answer's mean time between two tokens. ``saved_s`` is how much sooner, in the median, the
    first token came than that of a cold run of the same tier (negative: later); None for the cold path itself.
    """

    tier: int
    path: Path
    probes: int
    first_token: Spread | None
    between_tokens: Spread | None
    total: Spread
    saved_s: float | None
    reused_tokens: int


@dataclass(frozen=True, slots=True)
class RunTest:
    """A test of what the groups of a run show together, exact and one-sided.

    ``rejects`` is whether it fails the run: ``p_value`` is below ``level``, its share of the policy's alpha, and what
    is ``seen`` is ``worth`` it.
    """

    name: str
    seen: str
    p_value: float
    level: float
    rejects: bool
    worth: bool = True


@dataclass(frozen=True, slots=True)
class SignalSummary:
    """What one endpoint told of itself while the run lasted; None is not told.

    Requests of all its engines together, the share of the KV cache of the fullest. ``released`` is whether it held no
    more after the last request than before the first group. ``actions`` are what an operator should do.
    """

    endpoint: str
    readings: int
    most_running: float | None
    most_waiting: float | None
    most_kv_usage: float | None
    preemptions: int | None
    failed_loads: int | None
    released: bool | None
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """The run's verdict under one policy."""

    policy: PolicyName
    verdict: Verdict
    reasons: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Onset:
    """From when on an endpoint answers otherwise. Requests are counted over the whole run, from 1.

    The last answer that was as before was that of request ``right_until``, the first that was not that of
    ``wrong_from``; ``groups`` are those that had requests in between.
    """

    endpoint: str
    right_until: int
    wrong_from: int
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The whole ruling. ``verdict`` and ``reasons`` are those of the policy asked for.

    ``onset`` is from when on an engine answered otherwise, None if that was not seen.
    """

    verdict: Verdict
    reasons: tuple[Problem, ...]
    policy: PolicyName
    results: tuple[PolicyResult, ...]
    endpoint_lost: bool
    alignment_proven: bool
    groups: tuple[GroupVerdict, ...]
    not_applicable: tuple[NotApplicable, ...]
    noise: tuple[NoiseFloor, ...]
    power: tuple[TierPower, ...]
    timing: tuple[PathTiming, ...]
    computed_tokens: int
    sent_tokens: int
    notes: tuple[str, ...]
    advice: tuple[str, ...]
    onset: Onset | None = None
    signals: tuple[SignalSummary, ...] = ()
    tests: tuple[RunTest, ...] = ()
