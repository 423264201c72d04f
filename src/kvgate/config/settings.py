"""Every key of the configuration with its default and what it means, as the schema has them."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kvgate.config.schema import Config

REQUIRED = "required"
NONE = "none"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key as it is written in a file, sections joined by dots; ``[]`` stands for each entry of a list."""

    key: str
    default: str
    meaning: str


def settings() -> tuple[Setting, ...]:
    """All keys in the order of the schema; sections themselves are left out unless they may be absent as a whole."""
    return tuple(_of(Config, ""))


def _of(model: type[BaseModel], prefix: str) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        inner, listed = _section(field.annotation)
        if inner is None or listed or field.default is None:
            yield Setting(prefix + name, _default(field), field.description or "")
        if inner is not None:
            yield from _of(inner, f"{prefix}{name}{'[]' if listed else ''}.")


def _section(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The section a field holds, if it holds one, and whether it holds a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for part in get_args(annotation):
        inner, listed = _section(part)
        if inner is not None:
            return inner, listed or get_origin(annotation) is list
    return None, False


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return REQUIRED
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return NONE
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    return _plain(value)


def _plain(value: object) -> str:
    if isinstance(value, BaseModel):
        return str({name: _plain(each) for name, each in value.model_dump().items()})
    if isinstance(value, Enum):
        return str(value.value)
    return str(value).lower() if isinstance(value, bool) else str(value)
