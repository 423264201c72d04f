"""The kinds of values a configuration holds, each refusing what is none with a sentence."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


def _no_truth_value(value: object) -> object:
    """YAML's yes and no are no numbers, though Python would take them for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("a truth value is no number")
    return value


Whole = Annotated[int, BeforeValidator(_no_truth_value)]
Real = Annotated[float, BeforeValidator(_no_truth_value)]
Tokens = Annotated[Whole, Field(ge=1, le=16_777_216)]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


def _usable_url(url: str) -> str:
    """A base URL with a host and a real port, and without a password, which would end up in records."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ValueError("a URL must not hold a user or password; name a key's variable in deployment.auth.bearer_env")
    try:
        port = parts.port
    except ValueError:
        raise ValueError("the port is no number between 1 and 65535") from None
    if not parts.hostname or port == 0:
        raise ValueError("the URL names no host, or port 0")
    try:
        parts.hostname.encode("ascii")
        parts.hostname.encode("idna")
    except UnicodeError:
        raise ValueError("the host is no plain host name or address") from None
    if "xn--" in parts.hostname.lower():
        raise ValueError("give the host as a plain name or address, not in punycode")
    return url


def no_null(text: str) -> str:
    """Paths and arguments end at a null byte; nobody means one."""
    if "\0" in text:
        raise ValueError("a null byte cannot stand in a path or argument")
    return text


Argv = Annotated[list[Annotated[str, AfterValidator(no_null)]], Field(min_length=1)]
Url = Annotated[str, Field(pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$"), AfterValidator(_usable_url)]


def _plainly(value: object) -> object:
    """A number or truth value as it is written; people write a degree of parallelism without quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


Fact = Annotated[str, BeforeValidator(_plainly), Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]


class Section(BaseModel):
    """A section: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
