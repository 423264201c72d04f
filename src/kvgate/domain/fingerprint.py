"""Which deployment a run was about: its traits by name, an unknown one marked so, and one digest of them all.

Addresses are no trait: a deployment that is started again elsewhere is the same one. Nor is what was sent to it: a
PASS of few tiers and one of many are about one deployment.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvgate.domain.deployment import Deployment
from kvgate.domain.geometry import Geometry
from kvgate.domain.plan import Plan

FORMAT = "kvgate.fingerprint/1"
UNKNOWN = "unknown"
SIZES = (
    "block_size",
    "granule",
    "chunk",
    "max_model_len",
    "retention_interval",
    "speculation_granules",
    "prefill_drops",
)
# What only the operator can say, and what the engines say of themselves where they are asked.
STATED = ("checkpoint", "quantisation", "device", "topology", "parallelism", "backend")
COMPONENTS = ("vllm-ascend", "cann", "torch-npu", "mooncake")
TOLD = ("server.version", "server.prefix_caching", "server.speculation", *(f"geometry.{name}" for name in SIZES))
_TOLD_PREFIXES = ("server.", "geometry.")

Versions = tuple[tuple[str, str | None, str], ...]


@dataclass(frozen=True, slots=True)
class Trait:
    """One thing that makes a deployment this one; ``value`` is None where it is not known."""

    name: str
    value: str | None

    @property
    def told(self) -> bool:
        """Whether engines say it of themselves, so that it is only known of a deployment that was asked."""
        return is_told(self.name)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """All traits of a deployment, by name."""

    traits: tuple[Trait, ...]

    @property
    def canonical(self) -> str:
        """The one JSON text that these traits have; what is unknown is named as such."""
        known = {each.name: each.value for each in self.traits if each.value is not None}
        unknown = sorted(each.name for each in self.traits if each.value is None)
        whole = {"format": FORMAT, "known": known, "unknown": unknown}
        return json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @property
    def sha256(self) -> str:
        """The digest of the canonical text, in hex."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    def value(self, name: str) -> str | None:
        """A trait's value, None where it is not known or there is no such trait."""
        return next((each.value for each in self.traits if each.name == name), None)

    def completed(self, other: "Fingerprint") -> "Fingerprint":
        """The same with what engines tell taken from another one, where it is not known here."""
        names = dict.fromkeys(each.name for each in (*self.traits, *other.traits))
        found = {name: self.value(name) for name in names}
        for each in other.traits:
            if each.told and found[each.name] is None:
                found[each.name] = each.value
        return fingerprint(found)


@dataclass(frozen=True, slots=True)
class Difference:
    """A trait in which a run's deployment is not the one that is wanted."""

    name: str
    wanted: str | None
    found: str | None

    @property
    def told(self) -> bool:
        """Whether engines say it of themselves."""
        return is_told(self.name)

    @property
    def sure(self) -> bool:
        """Whether both sides are known, so that the two are surely not one deployment."""
        return self.wanted is not None and self.found is not None


def is_told(name: str) -> bool:
    """Whether a trait is one that engines say of themselves."""
    return name.startswith(_TOLD_PREFIXES)


def fingerprint(values: Mapping[str, str | None]) -> Fingerprint:
    """A fingerprint of these traits, in the order of their names."""
    return Fingerprint(tuple(Trait(name, values[name]) for name in sorted(values)))


def fingerprint_of(plan: Plan, versions: Versions, stated: Iterable[tuple[str, str]]) -> Fingerprint:
    """The deployment of a run, by its plan, the versions it recorded and what else was stated or told of it."""
    values = standing() | traits_of(plan.deployment, plan.salts_honoured) | sizes_of(plan.geometry)
    for component, version, _ in versions:
        name = "server.version" if component == "vllm" else component if component in STATED else f"version.{component}"
        values[name] = version
    return fingerprint(values | dict(stated))


def standing() -> dict[str, str | None]:
    """The traits that every deployment has, all of them unknown."""
    versions = (f"version.{name}" for name in COMPONENTS)
    return dict.fromkeys((*STATED, *versions, *TOLD, "deployment.ranks", "requests.endpoint"))


def traits_of(deployment: Deployment, salts_honoured: bool) -> dict[str, str | None]:
    """What a configuration says of a deployment."""
    roles = [each.role.value + (f"@{each.rank}" if each.rank is not None else "") for each in deployment.endpoints]
    alike = {True: "true", False: "false", None: "not said"}[deployment.alike]
    return {
        "deployment.name": deployment.name,
        "deployment.engine": deployment.engine,
        "deployment.model": deployment.model,
        "deployment.endpoints": " + ".join(sorted(roles)),
        "deployment.alike": alike,
        "deployment.salts": "honoured" if salts_honoured else "ignored",
    }


def sizes_of(geometry: Geometry) -> dict[str, str | None]:
    """A geometry's sizes."""
    return {f"geometry.{name}": str(getattr(geometry, name)) for name in SIZES}


def differences(wanted: Fingerprint, found: Fingerprint) -> tuple[Difference, ...]:
    """Where a run's deployment is not shown to be the one that is wanted.

    What engines tell is not compared where the wanted deployment was not asked. Everything else must be equal, and what
    is wanted must be known of the run.
    """
    names = sorted({each.name for each in (*wanted.traits, *found.traits)})
    pairs = [Difference(name, wanted.value(name), found.value(name)) for name in names]
    return tuple(each for each in pairs if each.wanted != each.found and not (each.wanted is None and each.told))
