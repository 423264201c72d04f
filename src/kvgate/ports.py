"""What the gate needs from the outside, as protocols. Edges implement them; tests hold fakes to the same contract."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kvgate.domain.counters import Counters
from kvgate.domain.history import DropOutcome, Entry
from kvgate.domain.log import LogLine
from kvgate.domain.measured import MeasureEntry
from kvgate.domain.observation import Observation
from kvgate.domain.probe import Probe
from kvgate.domain.prompt import Ids


@dataclass(frozen=True, slots=True)
class CounterReading:
    """Counters, or None with the reason they could not be read."""

    counters: Counters | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LogReading:
    """Known lines of a log, or None with the reason it could not be read."""

    lines: tuple[LogLine, ...] | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DropReply:
    """What the engine said to dropping its local cache."""

    outcome: DropOutcome
    detail: str


@dataclass(frozen=True, slots=True)
class HookResult:
    """How a hook ended; ``exit_code`` is None if it could not start or ran out of time."""

    exit_code: int | None
    seconds: float
    output: str


class Body(Protocol):
    """A prompt encoded once, to be sent under several salts."""

    @property
    def length(self) -> int:
        """Prompt tokens."""

    @property
    def encoded(self) -> bytes:
        """The prompt's token IDs as a JSON list."""


class Engine(Protocol):
    """One endpoint that answers requests. No method raises for what a server does: that is an Observation."""

    @property
    def name(self) -> str:
        """The endpoint's name in the deployment."""

    def encode(self, ids: Ids) -> Body:
        """Encode a prompt for this engine; done once per group."""

    async def complete(self, probe: Probe, body: Body) -> Observation:
        """Send one probe and wait for the whole answer."""

    async def drop_local(self) -> DropReply:
        """Ask the engine to drop its own prefix cache, and only that."""

    async def read_counters(self) -> CounterReading:
        """Read the engine's counters once."""

    async def read_log(self) -> LogReading | None:
        """Known lines of the engine's log since the last probe was sent; None if it has no log that can be read."""

    async def alive(self) -> bool:
        """Whether the endpoint answers at all."""


class Hooks(Protocol):
    """Runs the user's hooks."""

    async def run(self, argv: tuple[str, ...], environment: Mapping[str, str], limit_s: float) -> HookResult:
        """Run one hook without a shell and wait for it, at most ``limit_s`` seconds."""


class Sink(Protocol):
    """Takes history entries; each is on disk when ``append`` returns."""

    def append(self, entry: Entry) -> None:
        """Write one entry and flush it."""

    def keep_prompt(self, group: str, encoded: bytes) -> str:
        """Keep a group's prompt IDs (a JSON list) where hooks and people can read them; returns the place."""


class MeasureSink(Protocol):
    """Takes the entries of a measurement; each is on disk when ``append`` returns."""

    def append(self, entry: MeasureEntry) -> None:
        """Write one entry and flush it."""


class Clock(Protocol):
    """Time, so that tests need not wait."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class Watcher(Protocol):
    """Is told of progress; must not influence it."""

    def group_started(self, index: int, count: int, group_id: str, length: int) -> None:
        """A group begins."""

    def arm_started(self, group_id: str, arm: str, attempt: int) -> None:
        """An arm is about to be sent."""

    def said(self, text: str) -> None:
        """Something worth a line happened."""
