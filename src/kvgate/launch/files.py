"""Launch files of one deployment, read by kind into one description."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from kvgate.domain.preflight.deployment import BadText, Command, Engine, Ignore, Launch, PoolFile
from kvgate.domain.preflight.rules import BY_CODE
from kvgate.domain.preflight.setting import Settings, Spot
from kvgate.errors import ConfigError
from kvgate.launch.arguments import bad_texts, command_of, engine_of
from kvgate.launch.json_text import BadJsonError, read_json
from kvgate.launch.manifests import read_manifest
from kvgate.launch.shell import Script, read_shell
from kvgate.launch.words import Word, word_of

# Launch scripts are written by people; what is longer is something else.
MOST_BYTES = 4 * 1024 * 1024
# Keys by which a client's configuration of a Mooncake store is known.
_IGNORE = re.compile(r"#\s*kvgate:\s*ignore\[([^\]]*)\](.*)")
_OF_MOONCAKE = {"metadata_server", "master_server_address", "global_segment_size", "local_buffer_size"}


@dataclass(slots=True)
class _Read:
    engines: list[Engine] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    pool_files: list[PoolFile] = field(default_factory=list)
    bad: list[BadText] = field(default_factory=list)
    ignores: list[Ignore] = field(default_factory=list)


def read_launch(paths: list[Path]) -> Launch:
    """Read the files of one deployment. Raises ConfigError for a file that cannot be read or is of no known kind."""
    try:
        return _read_all(paths)
    except RecursionError:
        raise ConfigError(f"{', '.join(map(str, paths))}: nested too deeply to be a launch file") from None


def _read_all(paths: list[Path]) -> Launch:
    read = _Read()
    environment: dict[str, Word] = {}
    texts = [(path, _content(path)) for path in paths]
    for path, content in texts:
        if path.suffix == ".env" or path.name in (".env", "env"):
            values = read_shell(content).variables.values
            environment |= {name: word for name, word in values.items() if isinstance(word, Word)}
    for path, content in texts:
        if path.suffix == ".json":
            _read_json_file(read, str(path), content, 1)
        elif path.suffix == ".env" or path.name in (".env", "env"):
            continue
        elif path.suffix in (".yaml", ".yml"):
            for container in read_manifest(content, str(path)):
                _read_commands(read, str(path), container.script, environment)
        else:
            _read_commands(read, str(path), read_shell(content), environment)
        read.ignores += _ignores(str(path), content)
    return Launch(
        tuple(read.engines), tuple(read.commands), tuple(read.pool_files), tuple(read.bad), tuple(read.ignores)
    )


def _ignores(file: str, content: str) -> list[Ignore]:
    """Comments such as ``# kvgate: ignore[KV207] the container sets it``. Raises ConfigError without a reason."""
    found: list[Ignore] = []
    for number, line in enumerate(content.splitlines(), 1):
        hit = _IGNORE.search(line)
        if hit is None:
            continue
        codes = tuple(code.strip() for code in hit[1].split(","))
        if not hit[2].strip():
            raise ConfigError(f"{file}:{number}: `kvgate: ignore` has no reason; write why after the brackets")
        if unknown := [code for code in codes if code not in BY_CODE]:
            raise ConfigError(
                f"{file}:{number}: `kvgate: ignore` names {unknown[0]!r}, which is no rule; see `kvgate explain --list "
                "rules`"
            )
        found.append(Ignore(Spot(file, number), codes, hit[2].strip(), line.lstrip().startswith("#")))
    return found


def _content(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(
                f"{path}: is larger than {MOST_BYTES} bytes, so no launch file; give scripts and JSON files"
            )
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give a launch script or a pool's JSON file") from None
    if b"\0" in content:
        raise ConfigError(f"{path}: is no text; give a launch script or a pool's JSON file")
    return content.decode("utf-8", "replace")


def _read_commands(read: _Read, file: str, script: Script, environment: dict[str, Word]) -> None:
    read.bad += [
        BadText(Spot(file, line), repr(text), "is no shell syntax that is understood") for line, text in script.unread
    ]
    for each in script.commands:
        env = {**environment, **each.environment}
        engine = engine_of(each, env, file)
        command = command_of(each.words, env, file, each.line)
        if engine is not None:
            read.engines.append(engine)
        if command is not None:
            read.commands.append(command)
        if engine is not None or command is not None:
            # What a loop starts again and again is wrong once.
            read.bad += [bad for bad in bad_texts(each.words, file) if bad not in read.bad]
    for written in script.written:
        if written.name.endswith(".json"):
            _read_word(read, file, written.text)


def _read_json_file(read: _Read, file: str, content: str, line: int) -> None:
    _read_word(read, file, word_of(content, line), whole=True)


def _read_word(read: _Read, file: str, word: Word, whole: bool = False) -> None:
    try:
        setting = read_json(word, file)
    except BadJsonError as error:
        read.bad.append(
            BadText(Spot(file, error.line), "the file" if whole else "what is written", f"is no JSON: {error}")
        )
        return
    if _OF_MOONCAKE & set(setting.entries()):
        read.pool_files.append(PoolFile(setting.spot, Settings(setting.entries())))
    elif whole:
        known = ", ".join(sorted(_OF_MOONCAKE))
        raise ConfigError(f"{file}: is JSON of no kind that is known here; a pool's client has one of {known}")
