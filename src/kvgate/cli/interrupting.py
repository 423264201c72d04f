"""Work that Ctrl-C or SIGTERM ends with a record that can be used."""

import signal
from typing import Protocol

import anyio

from kvgate.domain.reasons import Problem, Reason


class Recorded(Protocol):
    """Work that keeps a record of itself."""

    async def run(self) -> None:
        """Do it to its end."""

    def stop(self, problem: Problem) -> None:
        """Record that it ended early."""


async def until_done_or_interrupted(work: Recorded) -> bool:
    """Do the work; Ctrl-C or SIGTERM ends it, and it records that. Returns whether it was stopped."""
    interrupted = False

    async def watch(scope: anyio.CancelScope) -> None:
        nonlocal interrupted
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                interrupted = True
                scope.cancel()
                return

    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, tasks.cancel_scope)
        try:
            await work.run()
        except Exception as error:  # noqa: BLE001 - carried out of the task group unwrapped, then raised
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if interrupted:
        work.stop(Problem(Reason.INTERRUPTED, "stopped by the user"))
    return interrupted
