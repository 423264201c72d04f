"""What will be sent, in which order, and which answers will be held against which."""

from dataclasses import dataclass
from enum import Enum

from kvgate.domain.deployment import Capabilities, Deployment
from kvgate.domain.geometry import Geometry
from kvgate.domain.policy import Grade, Policy
from kvgate.domain.probe import Arm, Path
from kvgate.domain.reasons import Problem


class Forcing(str, Enum):
    """How a repeat is kept from being a local hit (design §3.3)."""

    RESET_LOCAL = "reset_local"
    OTHER_INSTANCE = "other_instance"


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
    SHORT_CONTROL = "short_control"


class PairKind(str, Enum):
    """Which subject is held against which baseline."""

    EXTERNAL_VS_LOCAL = "external_vs_local"
    EXTERNAL_VS_COLD = "external_vs_cold"
    LOCAL_VS_COLD = "local_vs_cold"
    COLD_VS_COLD_REPEAT = "cold_vs_cold_repeat"
    TRANSFER_VS_DIRECT = "transfer_vs_direct"


@dataclass(frozen=True, slots=True)
class ArmStep:
    """One arm of a group: where it is sent, under which salt, by which path it must come.

    ``drop_local`` drops the endpoint's local cache first; ``settle`` waits for asynchronous puts first.
    ``salt`` is a letter; the salt sent is made of run, group and letter. None sends no salt.
    """

    arm: Arm
    endpoint: str
    path: Path
    salt: str | None
    drop_local: bool = False
    settle: bool = False


@dataclass(frozen=True, slots=True)
class PairPlan:
    """One comparison of a group.

    ``repeats`` are the arms that show whether a difference comes again. ``control`` is the baseline's own
    repeat; None where it cannot exist.
    """

    kind: PairKind
    baseline: Arm
    subject: Arm
    repeats: tuple[Arm, ...]
    control: tuple[Arm, Arm] | None
    required: bool = True


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """All arms of one prompt at one tier. Lengths and hits in prompt tokens.

    ``nonce`` is the text the prompt starts with; ``asked`` the codewords the answer should hold. ``patience``
    multiplies the time given to asynchronous puts.
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
    """Bounds of a whole run: computed prompt tokens, minutes, and groups that may replace void ones."""

    computed_tokens: int
    minutes: float
    replacements: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything decided before the first probe. ``obstacles`` forbid running; ``notes`` are told to the reader."""

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

    def tiers(self) -> tuple[int, ...]:
        """The tiers that groups stand for, shortest first."""
        return tuple(sorted({group.tier for group in self.groups if group.purpose is Purpose.TIER}))

    def computed_tokens(self) -> int:
        """Prompt tokens the plan makes the engine compute (not served from a cache)."""
        return sum(computed_tokens(group, step) for group in self.groups for step in group.steps)

    def warmup_group(self) -> GroupPlan | None:
        """The group whose family and length the warm-up prompts have; None for an empty plan."""
        return min(self.groups, key=lambda group: group.length, default=None)

    def sent_tokens(self) -> int:
        """Prompt tokens the plan sends."""
        return sum(group.length * len(group.steps) for group in self.groups)


def warmup_name(endpoint: str) -> str:
    """What an endpoint's warm-up prompt is called; no group bears such a name."""
    return f"warmup-{endpoint}"


def computed_tokens(group: GroupPlan, step: ArmStep) -> int:
    """Prompt tokens one arm makes the engine compute if it comes by its path."""
    reused = {Path.LOCAL: group.expected_local, Path.EXTERNAL: group.expected_external}.get(step.path, 0)
    return group.length - reused
