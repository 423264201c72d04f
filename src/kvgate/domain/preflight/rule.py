"""What a rule is, and what it finds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from kvgate.domain.preflight.deployment import Launch
from kvgate.domain.preflight.setting import Setting, Spot, Unknown


class Severity(str, Enum):
    """ERROR: it does not start, or answers may be wrong. WARNING: it does not do what it looks like. INFO: to know."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Seen:
    """Something a rule found."""

    spot: Spot
    said: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """What a rule could not decide, and the unknown it hangs on."""

    spot: Spot
    unknown: Unknown


Found = Iterable[Seen | Undecided]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. ``versions`` are those of vllm-ascend it holds for, '' for all; ``source`` is where it is known from."""

    code: str
    name: str
    severity: Severity
    what: str
    remedy: str
    source: str
    check: Callable[[Launch], Found]
    versions: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found, for a report."""

    rule: Rule
    spot: Spot
    said: str


@dataclass(frozen=True, slots=True)
class Doubt:
    """What a rule could not decide, for a report."""

    rule: Rule
    spot: Spot
    unknown: Unknown


def undecided(setting: Setting | None) -> list[Undecided]:
    """One doubt if this setting is there and unknown."""
    if setting is not None and isinstance(setting.value, Unknown):
        return [Undecided(setting.spot, setting.value)]
    return []
