"""Running the user's hooks: argv lists, no shell, bounded in time and output."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

import anyio

from kvgate.ports import HookResult

KEPT_OUTPUT = 4000


class ProcessHooks:
    """Runs hooks as child processes of this one. ``hidden`` are environment variables a hook does not get to see."""

    def __init__(self, hidden: tuple[str, ...] = ()) -> None:
        self._hidden = hidden

    async def run(self, argv: tuple[str, ...], environment: Mapping[str, str], limit_s: float) -> HookResult:
        """Run ``argv`` and wait for it; one that does not end in time is killed, with its children, and has no code.

        Its output goes to a file, so that a server it leaves running does not keep us waiting for the end of a pipe.
        """
        begun = anyio.current_time()
        with tempfile.TemporaryFile() as output:
            try:
                process = await anyio.open_process(
                    list(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**self._inherited(), **environment},
                    start_new_session=True,
                )
            except OSError as error:
                return HookResult(None, anyio.current_time() - begun, f"could not be started: {error}")
            with anyio.move_on_after(limit_s):
                await process.wait()
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
                return HookResult(None, anyio.current_time() - begun, f"did not end within {limit_s:g} s")
            return HookResult(process.returncode, anyio.current_time() - begun, _tail(output))

    def _inherited(self) -> dict[str, str]:
        """This process's environment without the secrets: a hook's output is kept on disk."""
        return {name: value for name, value in os.environ.items() if name not in self._hidden}


def _tail(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - KEPT_OUTPUT))
    return output.read().decode(errors="replace")
