"""Variables in configuration files and argument lists: ``${name}``, filled from a rung's values, never by a shell."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.errors import ConfigError

Value = str | int | float | bool | tuple[str, ...]
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def filled(given: Any, values: Mapping[str, Value], where: str) -> Any:
    """``given`` with every ``${name}`` replaced, in whatever it is nested in.

    A string that is nothing but one variable becomes its value, of the value's own type; in a list, a list of strings
    takes its place. Raises ConfigError for a variable that has no value, with ``where`` it stands.
    """
    if isinstance(given, str):
        return _string(given, values, where)
    if isinstance(given, Mapping):
        return {key: filled(value, values, f"{where}.{key}" if where else str(key)) for key, value in given.items()}
    if isinstance(given, Sequence):
        found: list[Any] = []
        for number, each in enumerate(given):
            value = filled(each, values, f"{where}[{number}]")
            found += list(value) if isinstance(value, tuple) else [value]
        return found
    return given


def argv_of(given: Sequence[str], values: Mapping[str, Value], where: str) -> tuple[str, ...]:
    """An argument list with its variables filled. Raises ConfigError."""
    return tuple(map(str, filled(given, values, where)))


def _string(given: str, values: Mapping[str, Value], where: str) -> Any:
    alone = _VARIABLE.fullmatch(given)
    if alone is not None:
        return _value(alone[1], values, where)

    def text(found: re.Match[str]) -> str:
        value = _value(found[1], values, where)
        if isinstance(value, tuple):
            raise ConfigError(
                f"{where}: ${{{found[1]}}} is a list, and stands inside {given!r}; let it be an argument of its own"
            )
        return str(value)

    return _VARIABLE.sub(text, given)


def _value(name: str, values: Mapping[str, Value], where: str) -> Value:
    if name not in values:
        known = ", ".join(sorted(values)) or "none"
        raise ConfigError(f"{where}: ${{{name}}} has no value; give it one in every rung's values (known: {known})")
    return values[name]
