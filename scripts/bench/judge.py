"""How fast a run is judged: tokens of the record per second, with and without reading it from disk.

A real session against the scripted server writes one group per tier; its entries are multiplied under new group
names into a run of the wanted size, so that they have exactly the shape a session writes. Two counts are printed.
"Record tokens" are prompt and output tokens of all answers, which is what a run is sized by (the judge never sees a
prompt's IDs, it sees that many tokens accounted for). "Output tokens" are the ones it holds against each other, one
by one, with their top-5 logprobs.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
from gate_run import RUN_ID, Work, open_session, prepare
from server import ROOT

from kvgate.domain.history import (
    CacheDropped,
    CountersRead,
    Entry,
    GroupStarted,
    ProbeAnswered,
    ProbeSent,
    RunCompleted,
    RunStopped,
)
from kvgate.domain.judge import judge
from kvgate.domain.plan import GroupPlan, Plan
from kvgate.domain.probe import Arm
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import RunVerdict
from kvgate.store.run_directory import HISTORY, Manifest, RunDirectory, read_history

sys.path.insert(0, str(ROOT))

from tests.scripted.server import Script, serving

LIMIT = 1_000_000
FULL = (4096, 8192, 16384, 32768, 65536, 131072)


@dataclass(frozen=True, slots=True)
class Shape:
    """A run to judge. ``fault`` is what the server does to external answers; only ``gated`` shapes decide."""

    name: str
    tiers: tuple[int, ...]
    copies: int
    max_tokens: int
    fault: str = ""
    gated: bool = False


SHAPES = (
    Shape("full run, 4K-131K", FULL, 10, 32, gated=True),
    Shape("full run, answers drift", FULL, 10, 32, fault="drift"),
    Shape("full run, answers differ", FULL, 10, 32, fault="diverge"),
    Shape("output-heavy, 4K x 512 out", (4096,), 30, 512),
)


@dataclass(frozen=True, slots=True)
class Record:
    """A plan with a history that fits it, and what the history holds."""

    plan: Plan
    entries: tuple[Entry, ...]
    groups: int
    answers: int
    prompt_tokens: int
    output_tokens: int


def one_of_each(shape: Shape) -> tuple[Plan, list[Entry]]:
    """What a session writes for one group per tier."""
    script = Script(block=128, chunk=8192, max_model_len=200_000)
    with serving(script) as server:
        server.keep_bodies = False
        work: Work = anyio.run(prepare, server.url, shape.tiers, 1, shape.max_tokens)
        script.fault = shape.fault
        # One group at a time: a session stops early at gross differences, and all tiers are wanted here.
        alone = [replace(work, plan=replace(work.plan, groups=(group,))) for group in work.plan.groups]
        return work.plan, [entry for each in alone for entry in anyio.run(entries_of, each)]


async def entries_of(work: Work) -> list[Entry]:
    """The entries one session writes."""
    async with open_session(work) as (session, _, path):
        await session.run()
        return list(read_history(path))


def renamed(entry: Entry, owner: dict[str, str], number: int) -> Entry | None:
    """The entry as the ``number``-th copy of its group wrote it; None for what belongs to no group."""
    if isinstance(entry, GroupStarted):
        return replace(entry, group=copied(entry.group, number))
    if isinstance(entry, ProbeSent):
        if entry.probe.arm is Arm.WARMUP:
            return None
        owner[entry.probe.id] = f"c{number}-{entry.probe.id}"
        probe = replace(entry.probe, id=owner[entry.probe.id], group=f"c{number}-{entry.probe.group}")
        return replace(entry, probe=probe)
    if isinstance(entry, ProbeAnswered):
        return replace(entry, probe_id=owner[entry.probe_id]) if entry.probe_id in owner else None
    if isinstance(entry, (CountersRead, CacheDropped)):
        return replace(entry, group=f"c{number}-{entry.group}")
    return None if isinstance(entry, (RunCompleted, RunStopped)) else entry


def copied(group: GroupPlan, number: int) -> GroupPlan:
    """The group under a new name, with a nonce of its own."""
    return replace(group, id=f"c{number}-{group.id}", nonce=f"{number:04d}{group.nonce[4:]}")


def multiply(plan: Plan, entries: list[Entry], copies: int) -> Record:
    """A run of ``copies`` groups per tier."""
    owner: dict[str, str] = {}
    many = [renamed(entry, owner, number) for number in range(copies) for entry in entries]
    kept = (*(entry for entry in many if entry is not None), RunCompleted(1.0))
    groups = tuple(copied(group, number) for number in range(copies) for group in plan.groups)
    answers = [entry.observation for entry in kept if isinstance(entry, ProbeAnswered)]
    usages = [answer.usage for answer in answers if answer.usage is not None]
    return Record(
        plan=replace(plan, groups=groups),
        entries=kept,
        groups=len(groups),
        answers=len(answers),
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        output_tokens=sum(usage.completion_tokens for usage in usages),
    )


def seconds(work: Callable[[], RunVerdict]) -> float:
    """CPU seconds of one call."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def measure(shape: Shape, repetitions: int) -> bool:
    """Print a shape's rows; False if it is gated and too slow."""
    record = multiply(*one_of_each(shape), shape.copies)
    with tempfile.TemporaryDirectory(prefix="kvgate-bench-") as folder:
        directory = RunDirectory.create(Path(folder), Manifest(RUN_ID, "0", "", "", "", record.plan, (), {}))
        for entry in record.entries:
            directory.append(entry)
        directory.close()
        size = (directory.path / HISTORY).stat().st_size / 2**20
        ways: dict[str, Callable[[], RunVerdict]] = {
            "judge": lambda: judge(record.plan, RunRecord(record.entries)),
            "read history + judge": lambda: judge(record.plan, RunRecord(read_history(directory.path))),
        }
        ruled = {way: work() for way, work in ways.items()}
        spent: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(repetitions):
            for way, work in ways.items():
                spent[way].append(seconds(work))
    if len(set(ruled.values())) != 1:
        raise RuntimeError("judging what was read from disk gives another ruling than judging what was written")
    verdict = ruled["judge"].verdict.name
    print(
        f"{shape.name}: {record.groups} groups, {record.answers} answers, {record.prompt_tokens} prompt + "
        f"{record.output_tokens} output tokens, history {size:.1f} MiB, verdict {verdict}"
    )
    both = record.prompt_tokens + record.output_tokens
    for way, times in spent.items():
        median = statistics.median(times)
        print(
            f"  {way:24} {1000 * median:10.1f} {1000 * min(times):10.1f} {both / median / 1e6:14.2f} "
            f"{record.output_tokens / median / 1e6:14.3f}"
        )
    return not shape.gated or both / statistics.median(spent["read history + judge"]) >= LIMIT


def main() -> int:
    """Measure every shape; 1 if the full run is judged too slowly."""
    parser = argparse.ArgumentParser(description="How many tokens of a record are judged per second")
    parser.add_argument("--repetitions", type=int, default=5)
    asked = parser.parse_args()
    print(f"  {'':24} {'median ms':>10} {'best ms':>10} {'record Mtok/s':>14} {'output Mtok/s':>14}")
    results = [measure(shape, asked.repetitions) for shape in SHAPES]
    limit = f"{LIMIT / 1e6:g} M record tokens (prompt + output) per second, reading included, on the full run"
    print(f"judge: {'ok' if all(results) else 'FAILED'} (required: {limit})")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
