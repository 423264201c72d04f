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
}


@dataclass(frozen=True, slots=True)
class Probe:
    """One request. ``length`` is in prompt tokens; ``salt`` is None where the engine ignores salts."""

    id: str
    group: str
    arm: Arm
    attempt: int
    endpoint: str
    salt: str | None
    length: int
    max_tokens: int
    prompt_sha256: str


def probe_id(group: str, arm: Arm, attempt: int) -> str:
    """The name of one attempt at one arm, unique within a run."""
    return f"{group}.{arm.value}.{attempt}"
