"""Durations as people write them."""

import re

from kvgate.errors import ConfigError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds_in(text: str, option: str) -> float:
    """Seconds of a duration such as 30m, 8h or 2d; ``option`` is what it was given by. Raises ConfigError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None or not float(found[1]):
        raise ConfigError(f"{option} {text}: is no duration; give a number with s, m, h or d, for instance 30m or 8h")
    return float(found[1]) * _UNITS[found[2]]
