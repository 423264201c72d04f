"""Running asynchronous work from a command."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


def run_async(work: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run ``work`` to its end. Ctrl-C raises KeyboardInterrupt whatever the Python version.

    Up to Python 3.10 an interrupt comes out of the event loop as the cancellation of its main task.
    """
    try:
        return anyio.run(work, *args)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
