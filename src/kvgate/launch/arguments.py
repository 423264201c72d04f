"""Command lines of engines and pools: flags by their whole names, JSON values read."""

import re
from collections.abc import Mapping, Sequence

from kvgate.domain.preflight.deployment import BadText, Command, Engine
from kvgate.domain.preflight.setting import Setting, Settings, Spot, Unknown
from kvgate.launch.json_text import BadJsonError, check_json, read_json
from kvgate.launch.shell import ShellCommand
from kvgate.launch.words import Word

SHORT = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-dcp": "decode-context-parallel-size",
    "-pcp": "prefill-context-parallel-size",
    "-q": "quantization",
    "-sc": "speculative-config",
    "-cc": "compilation-config",
    "-ep": "enable-expert-parallel",
}
JSON_FLAGS = (
    "kv-transfer-config",
    "speculative-config",
    "additional-config",
    "compilation-config",
    "hf-overrides",
    "kv-events-config",
)
_FLAG = re.compile(r"(--?[A-Za-z][\w.-]*)(=)?", re.DOTALL)
# A dollar and a name between single quotes: the shell fills in nothing there.
_NEVER_FILLED = re.compile(r"\$\{?[A-Za-z_]\w*\}?")


def engine_of(command: ShellCommand, environment: Mapping[str, Word], file: str) -> Engine | None:
    """The engine that a command line starts; None if it starts none."""
    words = command.words
    place = _after_program(words)
    if place is None:
        return None
    flags, given = read_flags(words[place:], file)
    env = {**_inline(words[:place]), **environment}
    settings = Settings({name: word.setting(file) for name, word in env.items()}, command.read_in)
    return Engine(Spot(file, command.line), flags, settings, given)


def command_of(words: Sequence[Word], environment: Mapping[str, Word], file: str, line: int) -> Command | None:
    """The mooncake_master that a command line starts; None if it starts none."""
    for place, word in enumerate(words):
        if (word.known or "").rpartition("/")[2] == "mooncake_master":
            flags, _ = read_flags(words[place + 1 :], file, underscores=True)
            env = Settings({name: each.setting(file) for name, each in environment.items()})
            return Command("mooncake_master", Spot(file, line), flags, env)
    return None


def _after_program(words: Sequence[Word]) -> int | None:
    """Where the arguments of ``vllm serve`` or of the API server's module begin."""
    known = [word.known or "" for word in words]
    for place, text in enumerate(known):
        following = known[place + 1] if place + 1 < len(known) else ""
        if text.rpartition("/")[2] == "vllm" and following == "serve":
            return place + 2
        if text == "-m" and following.startswith("vllm.entrypoints.") and "api_server" in following:
            return place + 2
        if text.endswith("vllm/entrypoints/openai/api_server.py"):
            return place + 1
    return None


def _inline(words: Sequence[Word]) -> dict[str, Word]:
    """What ``env NAME=VALUE`` and ``docker run -e NAME=VALUE`` set before the program."""
    found: dict[str, Word] = {}
    for word in words:
        name = re.match(r"(?:-e|--env=)?([A-Z_][A-Z0-9_]*)=", word.begins)
        if name is not None:
            found[name[1]] = word.after(name.end())
    return found


def read_flags(words: Sequence[Word], file: str, underscores: bool = False) -> tuple[Settings, tuple[Setting, ...]]:
    """Flags by name, the last one of a name, and what is no flag. A flag without a value is true."""
    named: dict[str, Setting] = {}
    given: list[Setting] = []
    more: list[Unknown] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag = _FLAG.match(word.begins)
        if flag is None:
            if word.known is None and not word.begins:
                # "$EXTRA_ARGS" may hold any flag; as the first word it is the checkpoint as a rule.
                if given or named:
                    more.append(word.unknown)
                else:
                    given.append(word.setting(file))
            else:
                given.append(word.setting(file))
            continue
        name = _whole_name(flag[1], underscores)
        if flag[2]:
            value = _value(name, word.after(flag.end()), file)
        elif rest and not _is_flag(rest[0]):
            value = _value(name, rest.pop(0), file)
            if _is_list(name):
                while rest and not _is_flag(rest[0]):
                    rest.pop(0)
        else:
            value = Setting(True, Spot(file, word.line))
        _set(named, name, value)
    return Settings(named, tuple(more)), tuple(given)


def _whole_name(flag: str, underscores: bool) -> str:
    bare = SHORT.get(flag, flag.lstrip("-"))
    first, dot, path = bare.partition(".")
    return (first.replace("-", "_") if underscores else first.replace("_", "-")) + dot + path


def _is_flag(word: Word) -> bool:
    return re.match(r"--?[A-Za-z]", word.begins) is not None


def _is_list(name: str) -> bool:
    return name in ("served-model-name", "api-key", "allowed-origins", "lora-modules")


def _value(name: str, word: Word, file: str) -> Setting:
    if name.partition(".")[0] in JSON_FLAGS and "." not in name and word.begins.lstrip().startswith("{"):
        try:
            return read_json(word, file)
        except BadJsonError:
            return word.setting(file)
    return word.setting(file)


def _set(named: dict[str, Setting], name: str, value: Setting) -> None:
    """Set a flag; ``--kv-transfer-config.kv_role x`` sets a key of the JSON flag."""
    first, _, path = name.partition(".")
    if not path or first not in JSON_FLAGS:
        named[name] = value
        return
    outer = named.get(first, Setting({}, value.spot))
    named[first] = _with(outer, path.split("."), value)


def _with(outer: Setting, path: Sequence[str], value: Setting) -> Setting:
    if not path:
        return value
    inner = outer.entries().get(path[0], Setting({}, value.spot))
    return Setting({**outer.entries(), path[0]: _with(inner, path[1:], value)}, outer.spot, outer.partial)


def bad_texts(words: Sequence[Word], file: str) -> list[BadText]:
    """JSON flags whose value is no JSON, and variables between single quotes, which the shell does not fill in."""
    found: list[BadText] = []
    for place, word in enumerate(words):
        value = _json_value(words, place)
        if value is not None:
            try:
                check_json(value[1])
            except BadJsonError as error:
                found.append(BadText(Spot(file, error.line), f"--{value[0]}", f"is no JSON: {error}"))
        marked = word.marked()
        for hit in _NEVER_FILLED.finditer(marked.text):
            if all(marked.literal[hit.start() : hit.end()]):
                spot = Spot(file, marked.lines[hit.start()])
                found.append(BadText(spot, hit[0], "stands between single quotes, where the shell fills in nothing"))
    return found


def _json_value(words: Sequence[Word], place: int) -> tuple[str, Word] | None:
    """The name and the value of a flag that takes JSON, if there is one here and something of it is told."""
    flag = _FLAG.match(words[place].begins)
    name = _whole_name(flag[1], underscores=False) if flag is not None else ""
    if flag is None or name not in JSON_FLAGS:
        return None
    value = words[place].after(flag.end()) if flag[2] else words[place + 1] if place + 1 < len(words) else None
    told = value is not None and (value.known is not None or value.begins)
    return (name, value) if value is not None and told else None
