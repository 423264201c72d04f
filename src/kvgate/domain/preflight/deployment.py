"""A deployment as its launch files describe it: engines, their connectors, and the pool beside them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kvgate.domain.preflight.setting import Setting, Settings, Spot, text, truth, whole

TRANSFER = "kv-transfer-config"
PRODUCER, CONSUMER, BOTH = "kv_producer", "kv_consumer", "kv_both"
# Connectors that read and write a shared pool, and those that move KV from prefill to decode.
POOLS = ("AscendStoreConnector", "MooncakeConnectorStoreV1", "MooncakeStoreConnector", "LMCacheConnectorV1")
POOLS_OF_ASCEND = ("AscendStoreConnector", "MooncakeConnectorStoreV1")
PEERS = ("MooncakeConnectorV1", "MooncakeHybridConnector", "MooncakeLayerwiseConnector", "MooncakeConnector")
# Models whose layers keep more than one kind of KV (compressed, recurrent, windowed), by the name of their checkpoint.
SEVERAL_GROUPS = re.compile(r"deepseek[-_]?v4|qwen3[-_.]?next|qwen3[-_.]?[5-9]|gemma[-_]?3|gpt[-_]?oss", re.IGNORECASE)
DEEPSEEK_V4 = re.compile(r"deepseek[-_]?v4", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Connector:
    """A KV connector of an engine; ``child`` of a MultiConnector, in its order."""

    setting: Setting
    child: bool

    @property
    def spot(self) -> Spot:
        """Where its name stands, else where it begins."""
        named = self.setting.at("kv_connector")
        return named.spot if named is not None else self.setting.spot

    @property
    def name(self) -> str | None:
        """Its name; None if it is not told."""
        return text(self.setting.at("kv_connector"))

    @property
    def role(self) -> str | None:
        """Its role; None if it is not told."""
        return text(self.setting.at("kv_role"))

    def option(self, *path: str) -> Setting | None:
        """What stands under these keys of its kv_connector_extra_config."""
        return self.setting.at("kv_connector_extra_config", *path)

    @property
    def backend(self) -> str | None:
        """The store behind an AscendStoreConnector, in lower case; ``mooncake`` where none is named."""
        given = self.option("backend")
        if given is None:
            return "mooncake"
        told = text(given)
        return told.lower() if told is not None else None


@dataclass(frozen=True, slots=True)
class Engine:
    """One ``vllm serve`` command line. ``given`` are positional arguments, ``env`` what its script set before it."""

    spot: Spot
    flags: Settings
    env: Settings
    given: tuple[Setting, ...] = ()

    @property
    def model(self) -> Setting | None:
        """The checkpoint it serves."""
        return self.flags.get("model") or (self.given[0] if self.given else None)

    @property
    def transfer(self) -> Setting | None:
        """Its --kv-transfer-config."""
        return self.flags.get(TRANSFER)

    def connectors(self) -> Iterator[Connector]:
        """Its connector, or the children of its MultiConnector, in order."""
        if self.transfer is None:
            return
        children = self.transfer.at("kv_connector_extra_config", "connectors")
        if children is None:
            yield Connector(self.transfer, child=False)
            return
        for each in children.items():
            yield Connector(each, child=True)

    @property
    def role(self) -> str | None:
        """What it is in the transfer: the role of its top connector; None if it has none or it is not told."""
        return text(self.transfer.at("kv_role")) if self.transfer is not None else None

    def size(self, flag: str, default: int = 1) -> int | None:
        """A parallel size; the default where the flag is not given, None where its value is not told."""
        given = self.flags.get(flag)
        return default if given is None else whole(given)

    def named(self, pattern: re.Pattern[str]) -> bool | None:
        """Whether the checkpoint's name, or the served name, matches; None if neither is told."""
        served = self.flags.get("served-model-name")
        names = [told for told in (text(self.model), text(served)) if told is not None]
        if any(pattern.search(name) for name in names):
            return True
        return False if text(self.model) is not None else None

    def on(self, flag: str, default: bool | None = None) -> bool | None:
        """Whether a switch is on, --flag or --no-flag; the default where neither is given."""
        given, off = self.flags.get(flag), self.flags.get(f"no-{flag}")
        if off is not None and (given is None or given.spot.line <= off.spot.line):
            return not truth(off) if truth(off) is not None else None
        return default if given is None else truth(given)

    def pools(self) -> Iterator[Connector]:
        """Its connectors to a shared pool."""
        return (each for each in self.connectors() if each.name in POOLS)


@dataclass(frozen=True, slots=True)
class Command:
    """Another command line of the deployment (mooncake_master)."""

    name: str
    spot: Spot
    flags: Settings
    env: Settings


@dataclass(frozen=True, slots=True)
class PoolFile:
    """A configuration file of a pool's client (mooncake.json)."""

    spot: Spot
    settings: Settings


@dataclass(frozen=True, slots=True)
class BadText:
    """What looks like a value and is none: text that is no JSON, or a variable that was never filled in."""

    spot: Spot
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Ignore:
    """A comment that takes findings back, with its reason: of its own line, or (``whole_file``) of its file."""

    spot: Spot
    codes: tuple[str, ...]
    reason: str
    whole_file: bool

    def covers(self, code: str, spot: Spot) -> bool:
        """Whether a finding of this rule at this place is taken back."""
        return code in self.codes and spot.file == self.spot.file and (self.whole_file or spot.line == self.spot.line)


@dataclass(frozen=True, slots=True)
class Launch:
    """All that was read of one deployment, and what could not be."""

    engines: tuple[Engine, ...] = ()
    commands: tuple[Command, ...] = ()
    pool_files: tuple[PoolFile, ...] = ()
    bad: tuple[BadText, ...] = ()
    ignores: tuple[Ignore, ...] = ()

    def masters(self) -> Iterator[Command]:
        """The Mooncake masters."""
        return (each for each in self.commands if each.name == "mooncake_master")
