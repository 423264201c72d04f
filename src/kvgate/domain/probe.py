"""One fully specified request, and its place in a comparison."""

from dataclasses import dataclass
from enum import Enum


class Path(str, Enum):
    """How a request's prompt KV came to be."""

    COLD = "cold"
    LOCAL = "local"
    EXTERNAL = "external"
    MIXED = "mixed"
    TRANSFER = "transfer"


class Arm(str, Enum):
    """A probe's place in a comparison."""

    WARMUP = "warmup"
    COLD = "cold"
    COLD_REPEAT = "cold_repeat"
    POPULATE = "populate"
    LOCAL = "local"
    LOCAL_REPEAT = "local_repeat"
    EXTERNAL = "external"
    EXTERNAL_REPEAT = "external_repeat"
    PREFILL_DIRECT = "prefill_direct"
    PREFILL_DIRECT_REPEAT = "prefill_direct_repeat"
    TWO_LEG = "two_leg"
    TWO_LEG_REPEAT = "two_leg_repeat"
    THIRD = "third"
    MIXED_POPULATE = "mixed_populate"
    MIXED_HEAD = "mixed_head"
    MIXED = "mixed"
    BRANCH_LOCAL = "branch_local"
    BRANCH_LOCAL_REPEAT = "branch_local_repeat"
    BRANCH = "branch"
    ISOLATION = "isolation"
    REFERENCE = "reference"
    CONTINUATION_COLD = "continuation_cold"
    CONTINUATION_LOCAL = "continuation_local"
    CONTINUATION_LOCAL_REPEAT = "continuation_local_repeat"
    CONTINUATION = "continuation"
    CANARY = "canary"
    SENTINEL = "sentinel"
    CHURN = "churn"
    OUTAGE = "outage"
    OUTAGE_REPEAT = "outage_repeat"
    RESTORE = "restore"
    RECOVERED = "recovered"
    STORE_LOCAL = "store_local"
    STORE_LOCAL_REPEAT = "store_local_repeat"
    STORE_EXTERNAL = "store_external"
    STORE_EXTERNAL_REPEAT = "store_external_repeat"
    STORE_MIXED = "store_mixed"

    @property
    def path(self) -> Path:
        """The path this arm is meant to take."""
        return _PATHS[self]


_PATHS = {
    Arm.WARMUP: Path.COLD,
    Arm.COLD: Path.COLD,
    Arm.COLD_REPEAT: Path.COLD,
    Arm.POPULATE: Path.COLD,
    Arm.LOCAL: Path.LOCAL,
    Arm.LOCAL_REPEAT: Path.LOCAL,
    Arm.EXTERNAL: Path.EXTERNAL,
    Arm.EXTERNAL_REPEAT: Path.EXTERNAL,
    Arm.PREFILL_DIRECT: Path.LOCAL,
    Arm.PREFILL_DIRECT_REPEAT: Path.LOCAL,
    Arm.TWO_LEG: Path.LOCAL,
    Arm.TWO_LEG_REPEAT: Path.LOCAL,
    Arm.THIRD: Path.LOCAL,
    Arm.MIXED_POPULATE: Path.COLD,
    Arm.MIXED_HEAD: Path.EXTERNAL,
    Arm.MIXED: Path.MIXED,
    Arm.BRANCH_LOCAL: Path.LOCAL,
    Arm.BRANCH_LOCAL_REPEAT: Path.LOCAL,
    Arm.BRANCH: Path.EXTERNAL,
    Arm.ISOLATION: Path.COLD,
    Arm.REFERENCE: Path.COLD,
    Arm.CONTINUATION_COLD: Path.COLD,
    Arm.CONTINUATION_LOCAL: Path.LOCAL,
    Arm.CONTINUATION_LOCAL_REPEAT: Path.LOCAL,
    Arm.CONTINUATION: Path.EXTERNAL,
    Arm.CANARY: Path.COLD,
    Arm.SENTINEL: Path.COLD,
    Arm.CHURN: Path.COLD,
    Arm.OUTAGE: Path.COLD,
    Arm.OUTAGE_REPEAT: Path.COLD,
    Arm.RESTORE: Path.COLD,
    Arm.RECOVERED: Path.EXTERNAL,
    Arm.STORE_LOCAL: Path.COLD,
    Arm.STORE_LOCAL_REPEAT: Path.COLD,
    Arm.STORE_EXTERNAL: Path.COLD,
    Arm.STORE_EXTERNAL_REPEAT: Path.COLD,
    Arm.STORE_MIXED: Path.COLD,
}

# Paths on which a store is read.
FROM_OUTSIDE = (Path.EXTERNAL, Path.MIXED)
# Arms whose KV was computed where they are served: the only ones that may be held against others as local hits. In
# the order in which they are sent, before anything is loaded from outside.
LOCAL_BASELINES = (
    Arm.LOCAL,
    Arm.LOCAL_REPEAT,
    Arm.TWO_LEG,
    Arm.TWO_LEG_REPEAT,
    Arm.PREFILL_DIRECT,
    Arm.PREFILL_DIRECT_REPEAT,
    Arm.BRANCH_LOCAL,
    Arm.BRANCH_LOCAL_REPEAT,
    Arm.CONTINUATION_LOCAL,
    Arm.CONTINUATION_LOCAL_REPEAT,
)
# Arms that are sent while the pool is away.
WHILE_AWAY = (Arm.OUTAGE, Arm.OUTAGE_REPEAT)
# Arms a configuration may name; the others come with them or with the route.
TO_CHOOSE_FROM = (
    Arm.COLD,
    Arm.COLD_REPEAT,
    Arm.LOCAL,
    Arm.LOCAL_REPEAT,
    Arm.EXTERNAL,
    Arm.EXTERNAL_REPEAT,
    Arm.THIRD,
    Arm.MIXED,
    Arm.BRANCH,
    Arm.CONTINUATION,
    Arm.ISOLATION,
    Arm.REFERENCE,
)


class Part(str, Enum):
    """Which of a group's prompts a probe carries.

    HEAD is a beginning of the whole prompt, STORED another, of which the whole one reuses all; BRANCH that beginning,
    or another, with another tail; CONTINUED the whole prompt, the cold answer to it, and a new tail.
    """

    WHOLE = "whole"
    HEAD = "head"
    STORED = "stored"
    BRANCH = "branch"
    CONTINUED = "continued"


@dataclass(frozen=True, slots=True)
class Probe:
    """One request. ``length`` is in prompt tokens; ``salt`` is None where the engine ignores salts.

    ``rank`` is the data-parallel rank it is pinned to, None if it is not.
    """

    id: str
    group: str
    arm: Arm
    attempt: int
    endpoint: str
    salt: str | None
    length: int
    max_tokens: int
    prompt_sha256: str
    rank: int | None = None


def probe_id(group: str, arm: Arm, attempt: int) -> str:
    """The name of one attempt at one arm, unique within a run."""
    return f"{group}.{arm.value}.{attempt}"
