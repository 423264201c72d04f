"""The prompt families: their texts, kept in ``prompts/`` beside the source and inside the installed package."""

import re
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvgate.domain.prompt import Family
from kvgate.errors import ConfigError

_SLOT = re.compile(r"(\{nonce\}|\{shelf\}|\{word\})")
_Texts = Annotated[list[str], Field(min_length=8)]


class _FamilyFile(BaseModel):
    """One file of ``prompts/``: templates with slots, words, sentences and padding words."""

    model_config = ConfigDict(extra="forbid")

    header: str
    record: str = ""
    question: str
    shared: bool = False
    words: list[str] = []
    sentences: _Texts
    padding: _Texts


def load_family(name: str, language: str) -> Family:
    """The family of that name in that language. Raises ConfigError if its file is missing or malformed."""
    file = _folder() / f"{name}.{language}.yaml"
    try:
        content = _FamilyFile.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ConfigError(f"{file}: kvgate has no family {name!r} in language {language!r}") from None
    except (ValidationError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: the family file is malformed: {' '.join(str(error).split())}") from None
    return Family(
        name=name,
        language=language,
        header=_pieces(content.header),
        record=_pieces(content.record),
        question=_pieces(content.question),
        words=tuple(content.words),
        sentences=tuple(content.sentences),
        padding=tuple(content.padding),
        shared=content.shared,
    )


def _pieces(template: str) -> tuple[str, ...]:
    return tuple(piece for piece in _SLOT.split(template) if piece)


def _folder() -> Path:
    packaged = Path(__file__).parents[1] / "prompts"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "prompts"
