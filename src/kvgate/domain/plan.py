"""What will be sent, in which order, and which answers will be held against which."""

from dataclasses import dataclass
from enum import Enum

from kvgate.domain.deployment import Capabilities, Deployment, Role
from kvgate.domain.geometry import Geometry
from kvgate.domain.policy import Grade, Policy
from kvgate.domain.probe import Arm, Part, Path
from kvgate.domain.reasons import Problem


class Forcing(str, Enum):
    """How a repeat is kept from being a local hit (design §3.3)."""

    RESET_LOCAL = "reset_local"
    OTHER_INSTANCE = "other_instance"
    OTHER_RANK = "other_rank"
    NO_LOCAL = "no_local"
    EVICT = "evict"
    RESTART = "restart"

    @property
    def two_readers(self) -> bool:
        """Whether one engine fills the pool and another reads it, so that nothing has to be dropped."""
        return self in (Forcing.OTHER_INSTANCE, Forcing.OTHER_RANK)

    @property
    def drops(self) -> bool:
        """Whether the same engine is made to forget the prompt."""
        return self in (Forcing.RESET_LOCAL, Forcing.EVICT, Forcing.RESTART)


class Route(str, Enum):
    """How requests reach the engine: straight, through the deployment's own gateway, or first to prefill and then,
    with what it returned, to decode."""

    DIRECT = "direct"
    GATEWAY = "gateway"
    TWO_LEG = "two_leg"


class Purpose(str, Enum):
    """Why a group is there."""

    TIER = "tier"
    BOUNDARY = "boundary"
    CONTINUATION = "continuation"
    SHORT_CONTROL = "short_control"
    CANARY = "canary"
    SENTINEL = "sentinel"
    CHURN = "churn"
    OUTAGE = "outage"
    BLOCK = "block"


class PairKind(str, Enum):
    """Which subject is held against which baseline."""

    EXTERNAL_VS_LOCAL = "external_vs_local"
    EXTERNAL_VS_COLD = "external_vs_cold"
    LOCAL_VS_COLD = "local_vs_cold"
    COLD_VS_COLD_REPEAT = "cold_vs_cold_repeat"
    TRANSFER_VS_DIRECT = "transfer_vs_direct"
    GATEWAY_VS_TWO_LEG = "gateway_vs_two_leg"
    THIRD_VS_LOCAL = "third_vs_local"
    MIXED_VS_LOCAL = "mixed_vs_local"
    BRANCH_VS_LOCAL = "branch_vs_local"
    ISOLATION_VS_COLD = "isolation_vs_cold"
    COLD_VS_REFERENCE = "cold_vs_reference"
    CONTINUATION_VS_COLD = "continuation_vs_cold"
    CONTINUATION_VS_LOCAL = "continuation_vs_local"
    OUTAGE_VS_COLD = "outage_vs_cold"
    RECOVERED_VS_COLD = "recovered_vs_cold"

    @property
    def loads(self) -> bool:
        """Whether the subject may hold what went through a store, and lost precision there."""
        return self not in (PairKind.LOCAL_VS_COLD, PairKind.OUTAGE_VS_COLD)

    @property
    def of_hits(self) -> bool:
        """Whether both sides reuse KV, so that repeats of local hits are what tells of their noise."""
        return self in _OF_HITS


_OF_HITS = frozenset(
    (
        PairKind.EXTERNAL_VS_LOCAL,
        PairKind.TRANSFER_VS_DIRECT,
        PairKind.GATEWAY_VS_TWO_LEG,
        PairKind.THIRD_VS_LOCAL,
        PairKind.MIXED_VS_LOCAL,
        PairKind.BRANCH_VS_LOCAL,
        PairKind.CONTINUATION_VS_LOCAL,
    )
)


@dataclass(frozen=True, slots=True)
class ArmStep:
    """One arm of a group: where it is sent, under which salt, by which path it must come.

    ``drop_local`` drops the endpoint's local cache first; ``settle`` waits for asynchronous puts first.
    ``salt`` is a letter; the salt sent is made of run, group and letter. None sends no salt. ``part`` is which of the
    group's prompts is sent, ``rank`` the data-parallel rank it is pinned to.
    """

    arm: Arm
    endpoint: str
    path: Path
    salt: str | None
    drop_local: bool = False
    settle: bool = False
    part: Part = Part.WHOLE
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class PairPlan:
    """One comparison of a group.

    ``repeats`` are the arms that show whether a difference comes again. ``control`` is the baseline's own
    repeat; None where it cannot exist. A pair that is not ``required`` may convict and need not acquit.
    """

    kind: PairKind
    baseline: Arm
    subject: Arm
    repeats: tuple[Arm, ...]
    control: tuple[Arm, Arm] | None
    required: bool = True


@dataclass(frozen=True, slots=True)
class PartSize:
    """One of a group's prompts beside the whole one: its length and its predicted hits, in tokens."""

    part: Part
    length: int
    expected_local: int
    expected_external: int


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """All arms of one prompt at one tier. Lengths and hits in prompt tokens.

    ``sizes`` are those of its other prompts; a part without a size is not sent. ``nonce`` is the text the prompt
    starts with; ``asked`` the codewords the answer should hold. ``patience``
    multiplies the time given to asynchronous puts. ``level`` is how many other requests are in flight beside each of
    its own, None for all that there are.
    """

    id: str
    tier: int
    length: int
    purpose: Purpose
    family: str
    language: str
    aligned: bool
    expected_local: int
    expected_external: int
    nonce: str
    asked: tuple[str, ...]
    prompt_sha256: str
    steps: tuple[ArmStep, ...]
    pairs: tuple[PairPlan, ...]
    patience: float = 1.0
    level: int | None = None
    sizes: tuple[PartSize, ...] = ()

    def size(self, part: Part) -> PartSize | None:
        """The size of one of the group's prompts, None if it has no such prompt."""
        if part is Part.WHOLE:
            return PartSize(part, self.length, self.expected_local, self.expected_external)
        return next((size for size in self.sizes if size.part is part), None)

    def expected(self, step: ArmStep) -> tuple[int, int]:
        """Predicted tokens from the local cache and from outside, if the step's probe comes by its path."""
        size = self.size(step.part)
        if size is None or step.path is Path.COLD:
            return 0, 0
        if step.path is Path.MIXED:
            head = self.size(Part.HEAD)
            local = head.expected_external if head is not None else 0
            return local, max(0, size.expected_external - local)
        return (size.expected_local, 0) if step.path is Path.LOCAL else (0, size.expected_external)

    def step(self, arm: Arm) -> ArmStep | None:
        """The step of an arm, or None if the group has no such arm."""
        return next((step for step in self.steps if step.arm is arm), None)


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """A tier that cannot be tested on this deployment, with the number that says why."""

    tier: int
    hit_floor: int
    detail: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds and counts that bound one arm."""

    settle_s: float = 1.0
    put_deadline_s: float = 30.0
    external_attempts: int = 4
    local_attempts: int = 2
    lost_retries: int = 1
    subject_repeats: int = 3
    hopeless_groups: int = 2


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds of a whole run: computed prompt tokens, minutes, groups that may replace void ones, and requests."""

    computed_tokens: int
    minutes: float
    replacements: int
    requests: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything decided before the first probe. ``obstacles`` forbid running; ``notes`` are told to the reader.

    ``flood_tokens`` is how many prompt tokens drive everything else out of the engine's cache (forcing evict).
    ``canaries`` are sent all at once, after the groups; nothing but a leak is looked for in their answers.
    ``sentinels`` are asked before, between and after the groups, ``sentinel_asks`` times each.
    ``churn`` are in flight all the while that a group's request is, as many as its level says, again and again under
    new salts, each client ``pause_s`` after its last one in the mean; ``between`` two requests of a group so many are
    sent with a common beginning. ``cancel_share`` is the share of all of them that the gate breaks off.
    ``rounds`` is how many groups a tier are added, round by round, while the run is undecided.
    """

    seed: int
    deployment: Deployment
    geometry: Geometry
    capabilities: tuple[Capabilities, ...]
    forcing: Forcing
    salts_honoured: bool
    by_source_grade: Grade
    policy: Policy
    limits: Limits
    budget: Budget
    max_tokens: int
    groups: tuple[GroupPlan, ...]
    not_applicable: tuple[NotApplicable, ...]
    obstacles: tuple[Problem, ...]
    notes: tuple[str, ...]
    route: Route = Route.DIRECT
    flood_tokens: int = 0
    canaries: tuple[GroupPlan, ...] = ()
    sentinels: tuple[GroupPlan, ...] = ()
    sentinel_asks: int = 0
    churn: tuple[GroupPlan, ...] = ()
    cancel_share: float = 0.0
    pause_s: float = 0.0
    between: int = 0
    rounds: tuple[int, ...] = ()

    @property
    def looks(self) -> int:
        """How often the run may be looked at to see whether it is decided."""
        return 1 + len(self.rounds)

    def can_forget(self, endpoint: str) -> bool:
        """Whether the engine can be made to forget a prompt it holds, so that it can be asked to load it again."""
        if self.forcing in (Forcing.NO_LOCAL, Forcing.EVICT, Forcing.RESTART):
            return True
        return any(each.endpoint == endpoint and each.reset_local for each in self.capabilities)

    def tiers(self) -> tuple[int, ...]:
        """The tiers that groups stand for, shortest first."""
        return tuple(sorted({group.tier for group in self.groups if group.purpose is Purpose.TIER}))

    def counted_length(self, length: int, endpoint: str) -> int:
        """How many tokens of a prompt the engines count that prefill it: all, or all but what prefill leaves off."""
        return length - self.geometry.prefill_drops if self.transfers(endpoint) else length

    def transfers(self, endpoint: str) -> bool:
        """Whether answers of this endpoint are given by a decode engine that got its KV from another."""
        if self.route is Route.DIRECT or not self.deployment.with_role(Role.DECODE):
            return False
        return self.deployment.endpoint(endpoint).role not in (Role.PREFILL, Role.REFERENCE)

    def computed_tokens(self) -> int:
        """Prompt tokens the plan makes the engine compute (not served from a cache)."""
        groups = (*self.groups, *self.canaries, *self.sentinels * self.sentinel_asks)
        own = sum(computed_tokens(group, step) for group in groups for step in group.steps)
        return own + self.flooded_tokens() + self.churned_tokens()

    def group_tokens(self, group: GroupPlan) -> int:
        """Prompt tokens one group makes the engine compute, with what is in flight beside it and what drives it out."""
        own = sum(computed_tokens(group, step) + self.flood_tokens * step.drop_local for step in group.steps)
        return own + self._churned(group)

    def flooded_tokens(self) -> int:
        """Prompt tokens that do nothing but drive others out of the engine's cache."""
        return self.flood_tokens * sum(step.drop_local for group in self.groups for step in group.steps)

    def company(self, group: GroupPlan, step: ArmStep) -> int:
        """How many other requests a group's request is sent among. The reference is somebody else's engine."""
        level = len(self.churn) if group.level is None else group.level
        return level if step.arm is not Arm.REFERENCE else 0

    def _churned(self, group: GroupPlan) -> int:
        """Prompt tokens of what is sent beside and between a group's requests, at least: each of them once."""
        each = self.churn[0].length if self.churn else 0
        return each * sum(self.company(group, step) + self.between * self.stirred(step) for step in group.steps)

    def stirred(self, step: ArmStep) -> bool:
        """Whether others are sent before a group's request, and have ended when it is sent."""
        return self.between > 0 and step.arm is not Arm.REFERENCE

    def churned_tokens(self) -> int:
        """Prompt tokens of what is sent beside and between the groups' requests, at least: each of them once."""
        return sum(map(self._churned, self.groups))

    def warmup_group(self) -> GroupPlan | None:
        """The group whose family and length the warm-up prompts have; None for an empty plan."""
        return min(self.groups, key=lambda group: group.length, default=None)

    def sent_tokens(self) -> int:
        """Prompt tokens the plan sends."""
        groups = (*self.groups, *self.canaries, *self.sentinels * self.sentinel_asks)
        return self.churned_tokens() + sum(length_of(group, step) for group in groups for step in group.steps)


def warmup_name(endpoint: str) -> str:
    """What an endpoint's warm-up prompt is called; no group bears such a name."""
    return f"warmup-{endpoint}"


def length_of(group: GroupPlan, step: ArmStep) -> int:
    """Prompt tokens one arm sends."""
    size = group.size(step.part)
    return size.length if size is not None else group.length


def computed_tokens(group: GroupPlan, step: ArmStep) -> int:
    """Prompt tokens one arm makes the engine compute if it comes by its path."""
    return length_of(group, step) - sum(group.expected(step))
