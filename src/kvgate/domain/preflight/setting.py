"""Settings as launch files give them: values with the place they stand at, and names where a value is not known."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, order=True)
class Spot:
    """A place in a file; lines count from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that the file does not tell: the variable, or the command, that it hangs on."""

    name: str

    def __str__(self) -> str:
        return f"UNKNOWN ({self.name})"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value where it was set. A mapping and a list hold settings; ``partial`` says that a mapping has more entries
    than could be read, since something unknown stands among them."""

    value: "Scalar | Unknown | Mapping[str, Setting] | tuple[Setting, ...]"
    spot: Spot
    partial: bool = False

    @property
    def known(self) -> bool:
        """Whether the value is told."""
        return not isinstance(self.value, Unknown)

    def entries(self) -> "Mapping[str, Setting]":
        """The entries of a mapping; none of anything else."""
        return self.value if isinstance(self.value, Mapping) else {}

    def items(self) -> "tuple[Setting, ...]":
        """The items of a list; none of anything else."""
        return self.value if isinstance(self.value, tuple) else ()

    def at(self, *path: str) -> "Setting | None":
        """What stands under these keys."""
        found: Setting | None = self
        for key in path:
            found = found.entries().get(key) if found is not None else None
        return found

    def walk(self) -> "Iterator[Setting]":
        """This setting and all inside it."""
        yield self
        for inner in (*self.entries().values(), *self.items()):
            yield from inner.walk()


def truth(setting: Setting | None) -> bool | None:
    """The truth value of a switch as launch files write it; None if it is not told, or no truth value."""
    if setting is None:
        return None
    if isinstance(setting.value, bool):
        return setting.value
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    return words.get(str(setting.value).strip().lower()) if isinstance(setting.value, (str, int)) else None


def number(setting: Setting | None) -> float | None:
    """The number that a setting gives; None if it is not told, or no number."""
    if setting is None or isinstance(setting.value, bool) or not isinstance(setting.value, (str, int, float)):
        return None
    try:
        found = float(setting.value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def whole(setting: Setting | None) -> int | None:
    """The whole number that a setting gives; None if it is not told, or none."""
    found = number(setting)
    return int(found) if found is not None and found == int(found) else None


def text(setting: Setting | None) -> str | None:
    """The text that a setting gives; None if it is not told, or a mapping or list."""
    if setting is None or setting.value is None or isinstance(setting.value, (Unknown, Mapping, tuple)):
        return None
    return str(setting.value)


@dataclass(frozen=True, slots=True)
class Settings:
    """Named settings of one thing: the flags of a command, an environment, the keys of a file.

    ``more`` names what may set further ones, such as a variable among the arguments that nobody knows.
    """

    named: Mapping[str, Setting] = field(default_factory=dict)
    more: tuple[Unknown, ...] = ()

    def get(self, name: str) -> Setting | None:
        """The setting of this name, if it is given."""
        return self.named.get(name)
