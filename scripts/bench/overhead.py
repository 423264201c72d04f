"""kvgate's client-side CPU time per request against a bare httpx loop, and its memory over many groups.

One run measures everything. For each prompt length:

1. A real ``Session`` (HttpEngine, RunDirectory on disk, real clock) goes through a real plan once, unmeasured, and
   every HTTP request it makes is recorded: completions, metrics reads, cache drops.
2. Then legs alternate, each against a server made to forget everything: the same session again; a bare loop that
   replays exactly those requests with ``json=`` per request (what a plain user writes); the same loop with bodies
   encoded beforehand (the least anybody can do); and the control, a session with extra work.

CPU time is this process's (user and system); the server is another process. A ratio is the median over repetitions
of leg / bare within the repetition. What decides is the session against the loop with ``json=``; the rest is for the
reader. The control has to break the limit, or the benchmark could not fail.
"""

import argparse
import asyncio
import cProfile
import gc
import json
import os
import pstats
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
from gate_run import QuietWatcher, Work, open_session, prepare
from server import FORGET, server_process

from kvgate.domain.history import ProbeSent
from kvgate.domain.judge import judge
from kvgate.domain.observation import Observation
from kvgate.domain.probe import Arm, Probe
from kvgate.domain.record import RunRecord
from kvgate.domain.verdict import Verdict
from kvgate.ports import Body, CounterReading, DropReply, Engine
from kvgate.store.run_directory import read_history

LIMIT = 1.15
MEMORY_BOUND_MIB = 4.0
EARLY, LATE = 10, 100
SESSION, BARE, ENCODED, CONTROL = "kvgate session", "bare, json=", "bare, pre-encoded", "control (handicapped)"


@dataclass(frozen=True, slots=True)
class Shape:
    """One row of the benchmark: prompt tokens, groups and repetitions."""

    name: str
    length: int
    groups: int
    repetitions: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """One HTTP request a session made. ``document`` is the body as a plain user holds it."""

    method: str
    path: str
    content: bytes
    document: dict[str, Any] | None

    @property
    def streams(self) -> bool:
        """Whether it is a completion."""
        return self.document is not None and bool(self.document.get("stream"))


class Burdened:
    """An engine that wastes a fixed amount of CPU with every probe."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self._engine = engine
        self._seconds = seconds

    @property
    def name(self) -> str:
        """The endpoint's name."""
        return self._engine.name

    def encode(self, ids: Any) -> Body:
        """Pass on."""
        return self._engine.encode(ids)

    async def complete(self, probe: Probe, body: Body) -> Observation:
        """Waste time, then pass on."""
        until = time.process_time() + self._seconds
        while time.process_time() < until:
            pass
        return await self._engine.complete(probe, body)

    async def drop_local(self) -> DropReply:
        """Pass on."""
        return await self._engine.drop_local()

    async def read_counters(self) -> CounterReading:
        """Pass on."""
        return await self._engine.read_counters()

    async def alive(self) -> bool:
        """Pass on."""
        return await self._engine.alive()


async def forget(url: str) -> None:
    """Empty the server's caches and counters."""
    async with httpx.AsyncClient(trust_env=False) as client:
        (await client.post(url + FORGET)).raise_for_status()


async def cpu_of(work: Callable[[], Awaitable[None]]) -> float:
    """CPU seconds of this process while ``work`` runs; what is already in memory is hidden from the collector."""
    gc.collect()
    gc.freeze()
    begun = time.process_time()
    await work()
    spent = time.process_time() - begun
    gc.unfreeze()
    return spent


async def record_session(work: Work) -> tuple[list[Recorded], int]:
    """Every request of one session, and how many history entries it wrote. The run has to be a clean PASS."""
    await forget(work.url)
    seen: list[tuple[str, str, bytes]] = []

    async def keep(request: httpx.Request) -> None:
        seen.append((request.method, request.url.raw_path.decode(), await request.aread()))

    async with open_session(work) as (session, connection, path):
        for link in connection.links:
            link.client.event_hooks["request"].append(keep)
        await session.run()
        verdict = judge(work.plan, RunRecord(read_history(path))).verdict
        entries = (path / "history.jsonl").read_bytes().count(b"\n")
    if verdict is not Verdict.PASS:
        raise RuntimeError(f"the session that is to be measured ended with {verdict.name}, not PASS")
    prompts: dict[tuple[int, ...], list[int]] = {}
    recorded = []
    for method, path_sent, content in seen:
        document = json.loads(content) if content else None
        if document and "prompt" in document:
            document["prompt"] = prompts.setdefault(tuple(document["prompt"]), document["prompt"])
        recorded.append(Recorded(method, path_sent, content, document))
    return recorded, entries


async def session_leg(work: Work, entries: int, burden: float = 0.0) -> float:
    """CPU seconds of one whole session."""
    await forget(work.url)

    def wrap(engine: Engine) -> Engine:
        return Burdened(engine, burden) if burden else engine

    async with open_session(work, wrap=wrap) as (session, _, path):
        spent = await cpu_of(session.run)
        written = (path / "history.jsonl").read_bytes().count(b"\n")
    if written != entries:
        raise RuntimeError(f"a session wrote {written} entries, the recorded one {entries}: they did different work")
    return spent


async def bare_leg(work: Work, recorded: list[Recorded], encoded: bool) -> float:
    """CPU seconds of replaying the recorded requests and decoding every reply."""
    await forget(work.url)
    async with httpx.AsyncClient(base_url=work.url, timeout=600.0, trust_env=False) as client:
        return await cpu_of(lambda: replay(client, recorded, encoded))


async def replay(client: httpx.AsyncClient, recorded: list[Recorded], encoded: bool) -> None:
    """The bare loop."""
    kind = {"Content-Type": "application/json"}
    for each in recorded:
        sent: dict[str, Any] = {"json": each.document} if each.document is not None else {}
        if encoded and each.document is not None:
            sent = {"content": each.content, "headers": kind}
        if each.streams:
            chunks = []
            async with client.stream(each.method, each.path, **sent) as response:
                response.raise_for_status()
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        chunks.append(json.loads(line[6:]))  # noqa: PERF401 - what a plain user writes
            if not chunks:
                raise RuntimeError("a completion came back empty")
            continue
        response = await client.request(each.method, each.path, **sent)
        response.raise_for_status()
        if response.headers["content-type"].startswith("application/json"):
            response.json()
        elif not response.text:
            raise RuntimeError(f"{each.path} came back empty")


async def measure(shape: Shape, url: str, handicap: bool) -> dict[str, list[float]]:
    """CPU milliseconds per completion, by leg, one figure for each repetition."""
    work = await prepare(url, (shape.length,), shape.groups)
    recorded, entries = await record_session(work)
    probes = sum(each.streams for each in recorded)
    print(
        f"{shape.name}: {shape.groups} groups, {probes} completions, {len(recorded)} HTTP requests, "
        f"{shape.repetitions} repetitions",
        flush=True,
    )
    # One throw-away round warms caches and says how much a handicap of one bare request for each probe is.
    burden = await bare_leg(work, recorded, encoded=False) / probes
    await session_leg(work, entries)
    legs: dict[str, Callable[[], Awaitable[float]]] = {
        SESSION: lambda: session_leg(work, entries, burden if handicap else 0.0),
        BARE: lambda: bare_leg(work, recorded, encoded=False),
        ENCODED: lambda: bare_leg(work, recorded, encoded=True),
        CONTROL: lambda: session_leg(work, entries, burden),
    }
    spent: dict[str, list[float]] = {name: [] for name in legs}
    names = list(legs)
    for number in range(shape.repetitions):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            spent[name].append(await legs[name]() * 1000.0 / probes)
    return spent


def ratios(spent: dict[str, list[float]], leg: str, base: str = BARE) -> list[float]:
    """Leg / base within each repetition."""
    return [one / other for one, other in zip(spent[leg], spent[base], strict=True)]


def report(shape: Shape, spent: dict[str, list[float]]) -> list[str]:
    """Print a shape's rows; returns what is wrong with them."""
    titles = f"{'CPU ms/completion':>18} {'/ bare json=':>13} {'range':>14} {'of minima':>10} {'/ encoded':>10}"
    print(f"\n  {shape.name + ' prompts':24} {titles}")
    for leg, figures in spent.items():
        per = ratios(spent, leg)
        spread = f"{min(per):.2f} to {max(per):.2f}"
        # Other work on the machine only ever adds time, so the quotient of minima shows what the median hides.
        least = min(figures) / min(spent[BARE])
        against = statistics.median(ratios(spent, leg, ENCODED))
        cells = f"{statistics.median(figures):18.2f} {statistics.median(per):13.3f} {spread:>14} {least:10.3f}"
        print(f"  {leg:24} {cells} {against:10.3f}")
    print(flush=True)
    wrong = []
    ratio = statistics.median(ratios(spent, SESSION))
    control = statistics.median(ratios(spent, CONTROL))
    if ratio > LIMIT:
        wrong.append(f"{shape.name}: ratio {ratio:.3f} is above {LIMIT}")
    if control <= LIMIT:
        wrong.append(
            f"{shape.name}: the control's ratio {control:.3f} is not above {LIMIT}: this benchmark cannot fail"
        )
    return wrong


# -- memory ---------------------------------------------------------------------------------------------------------
def rss_mib() -> float:
    """Resident memory of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def memory_child(url: str, length: int, leak: bool) -> None:
    """In a process of its own: one session over LATE groups; prints RSS and CPU after EARLY and LATE groups as JSON."""
    work = await prepare(url, (length,), LATE)
    await forget(url)
    marks: list[tuple[int, float, float]] = []
    leaked: list[bytes] = []

    def on_group(index: int) -> None:
        marks.append((index - 1, rss_mib(), time.process_time()))
        if leak:
            leaked.append(b"x" * (4 * length))

    async with open_session(work, QuietWatcher(on_group)) as (session, _, path):
        begun = time.monotonic()
        await session.run()
        marks.append((LATE, rss_mib(), time.process_time()))
        wall = time.monotonic() - begun
        history = (path / "history.jsonl").stat().st_size / 2**20
        completed = session.record.completed
        probes = sum(isinstance(entry, ProbeSent) and entry.probe.arm is not Arm.WARMUP for entry in read_history(path))
    complete = completed and probes == sum(len(group.steps) for group in work.plan.groups)
    print(json.dumps({"marks": marks, "wall": wall, "history": history, "complete": complete}))


def memory(url: str, length: int, leak: bool) -> list[str]:
    """Run the child, print its row; returns what is wrong."""
    extra = ["--handicap"] if leak else []
    argv = [sys.executable, __file__, "--memory-child", url, str(length), *extra]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    told = json.loads(done.stdout)
    rss = {int(group): value for group, value, _ in told["marks"]}
    cpu = {int(group): value for group, _, value in told["marks"]}
    growth = rss[LATE] - rss[EARLY]
    early, late = (1000 * (cpu[end] - cpu[end - 10]) / 10 for end in (EARLY, LATE))
    print(
        f"  memory, {LATE} groups of {length} tokens ({told['wall']:.0f} s, history {told['history']:.1f} MiB on disk)"
    )
    print(f"  {'RSS before the first group':44} {rss[0]:8.1f} MiB")
    print(f"  {f'RSS after group {EARLY}':44} {rss[EARLY]:8.1f} MiB")
    print(f"  {f'RSS after group {LATE}':44} {rss[LATE]:8.1f} MiB")
    print(f"  {'growth (bound ' + str(MEMORY_BOUND_MIB) + ' MiB)':44} {growth:8.1f} MiB")
    print(f"  {'CPU per group, groups 1-10 and 91-100':44} {early:8.1f} and {late:.1f} ms ({late / early:.2f}x)\n")
    wrong = []
    if not told["complete"]:
        wrong.append("memory: the session did not send every arm of every group once, so the figures mean nothing")
    if growth > MEMORY_BOUND_MIB:
        wrong.append(f"memory: grew by {growth:.1f} MiB from group {EARLY} to {LATE}, the bound is {MEMORY_BOUND_MIB}")
    return wrong


async def profile(shape: Shape, url: str) -> None:
    """Where a session spends its CPU."""
    work = await prepare(url, (shape.length,), shape.groups)
    await forget(url)
    async with open_session(work) as (session, _, _):
        profiler = cProfile.Profile()
        profiler.enable()
        await session.run()
        profiler.disable()
    stats = pstats.Stats(profiler)
    stats.sort_stats("tottime").print_stats(35)
    stats.sort_stats("cumulative").print_stats(30)
    stats.print_stats("kvgate|httpx_sse|pydantic|json", 60)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="kvgate's CPU per request against a bare httpx loop, and its memory")
    parser.add_argument("--handicap", action="store_true", help="waste CPU and memory on purpose: has to exit with 1")
    parser.add_argument("--quick", action="store_true", help="fewer groups and repetitions, no memory run")
    parser.add_argument("--profile", choices=("1K", "64K"), help="print a profile of one session instead")
    parser.add_argument("--memory-child", nargs=2, metavar=("URL", "LENGTH"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Measure, print, and say by the exit code whether the limits hold."""
    asked = arguments()
    if asked.memory_child:
        asyncio.run(memory_child(asked.memory_child[0], int(asked.memory_child[1]), asked.handicap))
        return 0
    shapes = (Shape("1K", 1024, 24, 7), Shape("64K", 65536, 4, 5))
    if asked.quick:
        shapes = (Shape("1K", 1024, 10, 3), Shape("64K", 65536, 2, 3))
    wrong: list[str] = []
    with server_process() as url:
        if asked.profile:
            anyio.run(profile, next(shape for shape in shapes if shape.name == asked.profile), url)
            return 0
        for shape in shapes:
            wrong += report(shape, anyio.run(measure, shape, url, asked.handicap))
        if not asked.quick:
            wrong += memory(url, 65536, asked.handicap)
    for line in wrong:
        print(f"FAILED {line}")
    print("overhead: " + ("FAILED" if wrong else f"ok (every ratio at most {LIMIT}, memory flat)"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
