"""Running the user's hooks: argv lists, no shell, bounded in time and output."""

import os
import subprocess
from collections.abc import Mapping

import anyio

from kvgate.ports import HookResult

KEPT_OUTPUT = 4000


class ProcessHooks:
    """Runs hooks as child processes of this one. ``hidden`` are environment variables a hook does not get to see."""

    def __init__(self, hidden: tuple[str, ...] = ()) -> None:
        self._hidden = hidden

    async def run(self, argv: tuple[str, ...], environment: Mapping[str, str], limit_s: float) -> HookResult:
        """Run ``argv`` and wait; a hook that does not end in time is killed and has no exit code."""
        begun = anyio.current_time()
        try:
            with anyio.fail_after(limit_s):
                done = await anyio.run_process(
                    list(argv),
                    check=False,
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.STDOUT,
                    env={**self._inherited(), **environment},
                )
        except TimeoutError:
            return HookResult(None, anyio.current_time() - begun, f"did not end within {limit_s:g} s")
        except OSError as error:
            return HookResult(None, anyio.current_time() - begun, f"could not be started: {error}")
        output = done.stdout.decode(errors="replace")[-KEPT_OUTPUT:]
        return HookResult(done.returncode, anyio.current_time() - begun, output)

    def _inherited(self) -> dict[str, str]:
        """This process's environment without the secrets: a hook's output is kept on disk."""
        return {name: value for name, value in os.environ.items() if name not in self._hidden}
