"""Kubernetes and compose manifests: the containers in them, with their command lines and environments.

A container that runs a shell gets its script read as one. ``$(NAME)`` is filled from the container's environment as
Kubernetes does; what comes from elsewhere (``valueFrom``, config maps) stays unknown.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from kvgate.domain.preflight.setting import Unknown
from kvgate.errors import ConfigError
from kvgate.launch.shell import Script, ShellCommand, read_shell
from kvgate.launch.words import Piece, Word, word_of

_FILLED = re.compile(r"\$\((\w+)\)")
_SHELLS = ("sh", "bash", "dash", "ash")
# What a shell's options that take a script look like: -c, -lc, -exc.
_SCRIPT_OPTION = re.compile(r"-[a-z]*c")


@dataclass(frozen=True, slots=True)
class Container:
    """What one container starts."""

    script: Script


def read_manifest(content: str, file: str) -> list[Container]:
    """The containers of a manifest; none if it is no manifest. Raises ConfigError where it is no YAML."""
    try:
        documents = list(yaml.compose_all(content, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{file}:{mark.line + 1}" if mark is not None else file
        raise ConfigError(f"{place}: is no YAML: {getattr(error, 'problem', error)}") from None
    return [container for document in documents if document is not None for container in _containers(document)]


def _containers(node: yaml.Node) -> Iterator[Container]:
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _containers(each)
    if not isinstance(node, yaml.MappingNode):
        return
    entries = _entries(node)
    for name, inner in entries.items():
        if name in ("containers", "initContainers") and isinstance(inner, yaml.SequenceNode):
            yield from (_pod_container(each) for each in inner.value if isinstance(each, yaml.MappingNode))
        elif name == "services" and isinstance(inner, yaml.MappingNode):
            services = [service for _, service in inner.value if isinstance(service, yaml.MappingNode)]
            yield from (_service(each) for each in services)
        else:
            yield from _containers(inner)


def _entries(node: yaml.Node | None) -> dict[str, yaml.Node]:
    return {str(key.value): value for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}


def _line(node: yaml.Node) -> int:
    # The text of a block scalar begins on the line after its mark.
    return int(node.start_mark.line) + (2 if getattr(node, "style", None) in ("|", ">") else 1)


def _pod_container(node: yaml.MappingNode) -> Container:
    entries = _entries(node)
    environment: dict[str, Word] = {}
    variables = entries.get("env")
    for each in variables.value if isinstance(variables, yaml.SequenceNode) else ():
        told = _entries(each)
        name = told.get("name")
        if name is not None:
            environment[str(name.value)] = _variable(str(name.value), told.get("value"), each)
    words = [_filled(word, environment) for part in ("command", "args") for word in _items(entries.get(part))]
    return _container(words, environment)


def _service(node: yaml.MappingNode) -> Container:
    entries = _entries(node)
    environment: dict[str, Word] = {}
    variables = entries.get("environment")
    if isinstance(variables, yaml.SequenceNode):
        for each in variables.value:
            name, given, value = str(each.value).partition("=")
            environment[name] = word_of(value, _line(each)) if given else _unknown(name, _line(each))
    else:
        environment = {name: _variable(name, value, value) for name, value in _entries(variables).items()}
    words: list[Word] = []
    for part in ("entrypoint", "command"):
        given_words = entries.get(part)
        if isinstance(given_words, yaml.ScalarNode):
            # A string is split as a shell does.
            script = read_shell("\n" * (_line(given_words) - 1) + str(given_words.value).replace("\n", " "))
            words += [word for command in script.commands[:1] for word in command.words]
        else:
            words += _items(given_words)
    return _container(words, environment)


def _variable(name: str, value: yaml.Node | None, at: yaml.Node) -> Word:
    if isinstance(value, yaml.ScalarNode) and value.value != "":
        return word_of(str(value.value), _line(value))
    return _unknown(name, _line(at))


def _unknown(name: str, line: int) -> Word:
    return Word((Piece(Unknown(name), line),), line)


def _items(node: yaml.Node | None) -> list[Word]:
    if not isinstance(node, yaml.SequenceNode):
        return []
    return [word_of(str(each.value), _line(each)) for each in node.value if isinstance(each, yaml.ScalarNode)]


def _filled(word: Word, environment: dict[str, Word]) -> Word:
    """The word with ``$(NAME)`` filled in; a name that the container does not set stays as it is, as in Kubernetes."""
    text, pieces, place = word.known or "", list[Piece](), 0
    for found in _FILLED.finditer(text):
        value = environment.get(found[1])
        if value is None:
            continue
        pieces += [Piece(text[place : found.start()], word.line), *value.pieces]
        place = found.end()
    if place < len(text) or not pieces:
        pieces.append(Piece(text[place:], word.line + text.count("\n", 0, place)))
    return Word(tuple(piece for piece in pieces if piece.text != "") or (Piece("", word.line),), word.line)


def _container(words: list[Word], environment: dict[str, Word]) -> Container:
    script = _shell_script(words)
    if script is not None:
        return Container(read_shell("\n" * (script.line - 1) + (script.known or ""), environment))
    commands = [ShellCommand(tuple(words), dict(environment), words[0].line)] if words else []
    return Container(Script(commands))


def _shell_script(words: list[Word]) -> Word | None:
    """What a shell is given to run, if a shell it is."""
    if not words or (words[0].known or "").rpartition("/")[2] not in _SHELLS:
        return None
    for place, word in enumerate(words[1:-1], 1):
        if _SCRIPT_OPTION.fullmatch(word.known or ""):
            return words[place + 1]
    return None
