"""A process that keeps a rung up for as long as whoever started it lives, and takes everything down again.

    python -m kvgate.engines.keeper SPEC.json

It runs the rung's ``up`` command, starts its processes, and waits. Its standard input is the leash: once that ends,
because kvgate closed it or was killed, even by SIGKILL, the processes are ended, with whatever they started in their
group, and ``down`` is run. It says what happens on standard output, a JSON object a line.
"""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, STDOUT, Process
from contextlib import suppress
from pathlib import Path
from typing import Any


async def keep(spec: dict[str, Any]) -> None:
    """Bring up what ``spec`` names, wait for the end of the leash, and take it down."""
    over = await _leash()
    started: list[tuple[str, Process]] = []
    try:
        if spec["up"] is not None and not await _command("up", spec["up"], spec, over):
            return
        for each in spec["processes"]:
            process = await _start(each["argv"], each["environment"], each["log"])
            started.append((each["name"], process))
        _say(event="up")
        watching = [asyncio.create_task(_watch(name, process)) for name, process in started]
        await over.wait()
        for task in watching:
            task.cancel()
    except OSError as error:
        _say(event="failed", detail=str(error))
    finally:
        for _, process in reversed(started):
            await _end(process, spec["grace_s"])
        if spec["down"] is not None:
            await _command("down", spec["down"], spec, None)
        _say(event="down")


async def _leash() -> asyncio.Event:
    """An event that is set once standard input ends, or a signal asks this process to end."""
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def read() -> None:
        while await reader.read(1024):
            pass
        over.set()

    over.reading = asyncio.create_task(read())  # type: ignore[attr-defined]  # kept, or it might be collected
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, over.set)
    return over


async def _command(name: str, argv: list[str], spec: dict[str, Any], over: asyncio.Event | None) -> bool:
    """Run a command to its end, or to its time limit or the end of the leash; whether it succeeded."""
    limit_s = spec[f"{name}_s"]
    try:
        process = await _start(argv, spec["environment"], spec["log"])
    except OSError as error:
        _say(event="failed", detail=f"{name} {argv}: could not be started: {error}")
        return False
    waiting = {asyncio.create_task(process.wait())}
    if over is not None:
        waiting.add(asyncio.create_task(over.wait()))
    _, left = await asyncio.wait(waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    if process.returncode is None:
        await _end(process, spec["grace_s"])
        late = over is None or not over.is_set()
        _say(event="failed", detail=f"{name} {argv}: {f'did not end within {limit_s:g} s' if late else 'broken off'}")
        return False
    for task in left:
        task.cancel()
    if process.returncode:
        _say(event="failed", detail=f"{name} {argv}: ended with {process.returncode}; its output is in {spec['log']}")
    return process.returncode == 0


async def _start(argv: list[str], environment: dict[str, str], log: str) -> Process:
    """Start a process in a session of its own, its output appended to ``log``."""
    with Path(log).open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=DEVNULL,
            stdout=output,
            stderr=STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )


async def _watch(name: str, process: Process) -> None:
    _say(event="ended", name=name, code=await process.wait())


async def _end(process: Process, grace_s: float) -> None:
    """End a process and its group: asked first, then killed. What it leaves behind in its group is killed, too."""
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if process.returncode is None:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), patience_s)


def _say(**told: object) -> None:
    # Nobody may be left to read it.
    with suppress(OSError):
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(keep(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
