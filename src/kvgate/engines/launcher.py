"""Bringing a rung up and taking it down again, through a keeper that outlives this process if need be."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from kvgate.errors import RemoteError
from kvgate.ports import HookResult, Hooks

# How long a keeper may take to say that it is done, beyond what it was given to end processes and run `down`.
SPARE_S = 10.0
READY_PAUSE_S = 1.0
LISTENING_PAUSE_S = 0.05
# Of a ready check that is asked again and again, one that hangs must not take all the time.
READY_ONCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Served:
    """A process that serves while its rung is tried."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Bringing:
    """How a rung is brought up and taken down; times in seconds."""

    up: tuple[str, ...] | None
    processes: tuple[Served, ...]
    ready: tuple[str, ...] | None
    down: tuple[str, ...] | None
    environment: Mapping[str, str]
    up_s: float
    ready_s: float
    down_s: float
    grace_s: float

    @property
    def nothing(self) -> bool:
        """Whether the rung is there already."""
        return self.up is None and not self.processes and self.down is None


@dataclass(slots=True)
class Launcher:
    """Keeps one rung up. ``log`` is where the output of its commands goes, each process's beside it."""

    bringing: Bringing
    log: Path
    hidden: tuple[str, ...] = ()
    _keeper: "subprocess.Popen[bytes] | None" = None
    _told: list[dict[str, object]] = field(default_factory=list)
    _rest: bytes = b""

    async def up(self) -> None:
        """Bring the rung up. Raises RemoteError if that fails; what was started is taken down by ``down``."""
        if self.bringing.nothing:
            return
        spec = self.log.with_suffix(".json")
        spec.write_text(json.dumps(self._spec()), encoding="utf-8")
        # Not the event loop's: that kills what still runs when it is closed, and nobody would be left to clear up.
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "kvgate.engines.keeper", str(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            # By inheritance, not by the file: what is in the environment may be secret, and files are kept.
            env={name: value for name, value in os.environ.items() if name not in self.hidden},
            # Ctrl-C is for kvgate, which then takes the rung down.
            start_new_session=True,
        )
        deadline = time.monotonic() + self.bringing.up_s + SPARE_S
        while not self._has("up") and self._hear() and time.monotonic() < deadline:
            await anyio.sleep(LISTENING_PAUSE_S)
        if not self._has("up"):
            raise RemoteError(f"the rung did not come up: {self._failure()}")

    async def ready(self, hooks: Hooks, alive: Callable[[], Awaitable[bool]]) -> None:
        """Wait until the endpoints answer and the ready command succeeds. Raises RemoteError if that takes too long."""
        deadline, last = time.monotonic() + self.bringing.ready_s, "the endpoints do not answer"
        while True:
            gone = self.gone()
            if gone is not None:
                raise RemoteError(f"the rung did not become ready: {gone}")
            if await alive():
                result = await self._asked(hooks)
                if result is None or result.exit_code == 0:
                    return
                last = f"{self.bringing.ready}: code {result.exit_code}, {result.output.strip()[-200:]}"
            if time.monotonic() > deadline:
                raise RemoteError(f"the rung did not become ready within {self.bringing.ready_s:g} s: {last}")
            await anyio.sleep(READY_PAUSE_S)

    def gone(self) -> str | None:
        """Which of its processes has ended although nobody asked it to, None if none has."""
        if self._keeper is None:
            return None
        self._hear()
        ended = next((told for told in self._told if told["event"] == "ended"), None)
        return (
            f"{ended['name']} ended with code {ended['code']}; see {self._log_of(str(ended['name']))}"
            if ended
            else None
        )

    async def down(self) -> str | None:
        """Take the rung down and wait for it; what went wrong, if anything did."""
        keeper = self._keeper
        if keeper is None:
            return None
        limit_s = self.bringing.down_s + (len(self.bringing.processes) + 1) * self.bringing.grace_s + SPARE_S
        if keeper.stdin is not None:
            keeper.stdin.close()
        # From here on the keeper clears up, whatever becomes of this process.
        deadline = time.monotonic() + limit_s
        with anyio.CancelScope(shield=True):
            while (self._hear() or keeper.poll() is None) and time.monotonic() < deadline:
                await anyio.sleep(LISTENING_PAUSE_S)
        self._keeper = None
        if keeper.stdout is not None:
            keeper.stdout.close()
        if keeper.poll() is None:
            return f"the rung was not taken down within {limit_s:g} s; look for what it left running"
        failed = [str(told["detail"]) for told in self._told if told["event"] == "failed"]
        return next((each for each in failed if each.startswith("down ")), None)

    async def _asked(self, hooks: Hooks) -> HookResult | None:
        if self.bringing.ready is None:
            return None
        return await hooks.run(self.bringing.ready, self.bringing.environment, READY_ONCE_S)

    def _hear(self) -> bool:
        """Take in what the keeper has said since; whether it may say more. Does not wait."""
        keeper = self._keeper
        if keeper is None or keeper.stdout is None:
            return False
        os.set_blocking(keeper.stdout.fileno(), False)
        said: bytes | None = b""
        while said := keeper.stdout.read():
            self._rest += said
        *lines, self._rest = self._rest.split(b"\n")
        self._told += [json.loads(line) for line in lines]
        # Nothing to be read now is None, the end of it is empty.
        return said is None

    def _has(self, event: str) -> bool:
        return any(told["event"] == event for told in self._told)

    def _failure(self) -> str:
        failed = (str(told["detail"]) for told in self._told if told["event"] == "failed")
        return next(failed, f"`up` did not end within {self.bringing.up_s:g} s; its output is in {self.log}")

    def _log_of(self, name: str) -> Path:
        return self.log.with_name(f"{self.log.stem}-{name}.log")

    def _spec(self) -> dict[str, object]:
        return {
            "up": self.bringing.up,
            "down": self.bringing.down,
            "processes": [
                {
                    "name": each.name,
                    "argv": each.argv,
                    "environment": {**self.bringing.environment, **each.environment},
                    "log": str(self._log_of(each.name)),
                }
                for each in self.bringing.processes
            ],
            "environment": dict(self.bringing.environment),
            "log": str(self.log),
            "up_s": self.bringing.up_s,
            "down_s": self.bringing.down_s,
            "grace_s": self.bringing.grace_s,
        }
