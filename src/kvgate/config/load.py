"""Reading a configuration file; every complaint names file, line, key, value and remedy."""

import difflib
import hashlib
import json
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kvgate.config.ladder_schema import LadderConfig
from kvgate.config.schema import Config, PolicyConfig
from kvgate.config.templates import Value, filled
from kvgate.config.trace_schema import TraceFile
from kvgate.errors import ConfigError

_Lines = dict[tuple[str | int, ...], int]
_Root = TypeVar("_Root", bound=BaseModel)
LONGEST_VALUE = 60


def load_config(path: Path) -> Config:
    """The configuration in ``path``. Raises ConfigError with one sentence per complaint."""
    return load_config_with_digest(path)[0]


def load_config_with_digest(path: Path, values: Mapping[str, Value] | None = None) -> tuple[Config, str]:
    """The configuration in ``path``, read once, and the SHA-256 of what was read. Raises ConfigError.

    With ``values`` it is a template whose variables they fill, and the digest is of both.
    """
    content = _read(path, "give the path of a configuration with -c")
    digest = hashlib.sha256(content)
    if values is not None:
        digest.update(json.dumps(values, sort_keys=True).encode())
    return _checked(path, content.decode("utf-8"), Config, values), digest.hexdigest()


def load_ladder(path: Path) -> LadderConfig:
    """The ladder in ``path``. Raises ConfigError."""
    content = _read(path, "give the path of a ladder with --ladder")
    return _checked(path, content.decode("utf-8"), LadderConfig)


def load_trace_with_digest(path: Path) -> tuple[TraceFile, str]:
    """The trace in ``path``, read once, and the SHA-256 of what was read. Raises ConfigError."""
    content = _read(path, "give the path of a trace with --trace")
    return _checked(path, content.decode("utf-8"), TraceFile), hashlib.sha256(content).hexdigest()


def _read(path: Path, remedy: str) -> bytes:
    try:
        content = path.read_bytes()
        content.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; {remedy}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give a readable YAML file in UTF-8") from None
    return content


def _checked(path: Path, text: str, root: type[_Root], values: Mapping[str, Value] | None = None) -> _Root:
    data, lines = _parse(path, text)
    if values is not None:
        try:
            data = filled(data, values, "")
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        kind = "empty" if data is None else f"a {type(data).__name__}"
        start = next(iter(root.model_fields))
        raise ConfigError(f"{path}: the file is {kind}, not a mapping; start it with {_START.get(start, start)!r}")
    if root is Config and isinstance(data.get("policy"), str):
        data["policy"] = _policy_in(path, lines, data["policy"])
    try:
        return root.model_validate(data)
    except ValidationError as error:
        complaints = [_complaint(path, lines, each, root) for each in error.errors(include_url=False)]
        raise ConfigError("\n".join(dict.fromkeys(complaints))) from None


_START = {"version": "version: 1", "name": "name: calibrated"}


def _policy_in(path: Path, lines: _Lines, given: str) -> dict[str, Any]:
    """The keys of a policy that is kept in a file of its own, beside the configuration or where its path says."""
    where = f"{path}:{lines.get(('policy',), 1)}: policy"
    file = path.parent / given
    content = _read(file, f"{where} names it; give the path from the configuration's folder, or the keys themselves")
    return _checked(file, content.decode("utf-8"), PolicyConfig).model_dump(exclude_unset=True, mode="json")


def config_schema() -> dict[str, Any]:
    """The JSON Schema of a configuration file."""
    schema = _schema(Config)
    named = {"type": "string", "description": "path of a file with these keys, from the configuration's folder"}
    keys = schema["properties"]
    keys["policy"] = {"anyOf": [keys["policy"], named], "description": keys["policy"]["description"]}
    return schema


def trace_schema() -> dict[str, Any]:
    """The JSON Schema of a trace file."""
    return _schema(TraceFile)


def ladder_schema() -> dict[str, Any]:
    """The JSON Schema of a ladder file."""
    return _schema(LadderConfig)


def _schema(root: type[BaseModel]) -> dict[str, Any]:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root.model_json_schema()}


def _parse(path: Path, text: str) -> tuple[Any, _Lines]:
    lines: _Lines = {}
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None:
            _walk(path, node, (), lines)
        return yaml.safe_load(text), lines
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not usable YAML: {' '.join(str(error).split())}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        problem = error.problem or error.context or "cannot be parsed"
        raise ConfigError(f"{where}: not valid YAML: {problem}; mend the indentation or quoting there") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


def _walk(path: Path, node: yaml.Node, place: tuple[str | int, ...], lines: _Lines) -> None:
    """Note the line of every key, and refuse keys given twice (YAML would silently keep the last)."""
    lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: dict[Hashable, int] = {}
        for key, value in node.value:
            name, line = key.value, key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{path}:{line}: a key is a list or mapping; keys are plain words")
            if name in seen:
                dotted = ".".join(map(str, (*place, name)))
                raise ConfigError(f"{path}:{line}: {dotted} is given twice (first on line {seen[name]}); keep one")
            seen[name] = line
            inner = (*place, name)
            lines[inner] = line
            _walk(path, value, inner, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            inner = (*place, index)
            lines[inner] = value.start_mark.line + 1
            _walk(path, value, inner, lines)


def _complaint(path: Path, lines: _Lines, error: ErrorDetails, root: type[BaseModel]) -> str:
    place = tuple(part for part in error["loc"] if (part in _known_parts(lines)) or isinstance(part, int))
    loc = error["loc"]
    line = next((lines[loc[:cut]] for cut in range(len(loc), -1, -1) if loc[:cut] in lines), 1)
    dotted = ".".join(map(str, place or loc)) or "the file"
    where = f"{path}:{line}: {dotted}"
    kind = error["type"]
    if kind == "extra_forbidden":
        return f"{where}: there is no such key{_did_you_mean(loc, root)}"
    if kind == "missing":
        return f"{path}:{line}: {'.'.join(map(str, loc))}: is missing; it takes {_expects(loc, root)}"
    message = error["msg"].removeprefix("Value error, ")
    value = json.dumps(error["input"], default=str, ensure_ascii=False)
    if loc[:2] == ("deployment", "auth") or "@" in value:
        # Somebody pasted a key where the name of a variable belongs, or a password into a URL.
        value = "the value (not shown)"
    shown = value if len(value) <= LONGEST_VALUE else value[: LONGEST_VALUE - 3] + "..."
    return f"{where}: {shown} cannot be used: {message}; it takes {_expects(loc, root)}"


def _known_parts(lines: _Lines) -> set[str | int]:
    return {part for place in lines for part in place}


def _models_at(loc: tuple[str | int, ...], root: type[BaseModel]) -> tuple[type[BaseModel], str | None]:
    """The section a location lies in, and the name of its field there."""
    model = root
    field: str | None = None
    for part in loc:
        if not isinstance(part, str):
            continue
        info = model.model_fields.get(part)
        if info is None:
            return model, field if field in model.model_fields else part
        field = part
        inner = _section(info.annotation)
        if inner is None:
            return model, field
        model = inner
    return model, field


def _section(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section(part)) is not None), None)


def _did_you_mean(loc: tuple[str | int, ...], root: type[BaseModel]) -> str:
    model, _ = _models_at(loc[:-1] if len(loc) > 1 else (), root)
    names = sorted(model.model_fields)
    close = difflib.get_close_matches(str(loc[-1]), names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(names)}"


def _expects(loc: tuple[str | int, ...], root: type[BaseModel]) -> str:
    model = root
    text = "a value"
    for part in loc:
        info = model.model_fields.get(part) if isinstance(part, str) else None
        if info is None:
            continue
        text = info.description or text
        model = _section(info.annotation) or model
    return text
