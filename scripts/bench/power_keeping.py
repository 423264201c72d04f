"""Results of long measurements: kept line by line, so that one that was interrupted goes on where it was."""

import contextlib
import dataclasses
import hashlib
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import IO, Any, TypeVar

import kvgate

TOLD_EVERY_S = 30.0
Task = TypeVar("Task")
Result = TypeVar("Result")


def fingerprint(measuring: Iterable[str]) -> str:
    """A digest of the source that is measured: the package, and the files of this folder that measure."""
    digest = hashlib.sha256()
    here, package = Path(__file__).parent, Path(kvgate.__file__).parent
    for file in (*sorted(package.rglob("*.py")), *(here / name for name in measuring)):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def rows_of(file: Path | None) -> list[dict[str, Any]]:
    """The lines of a file of results; one that was being written when the run was stopped is left out."""
    rows: list[dict[str, Any]] = []
    for line in file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue  # cut off, or empty
    return rows


def appending(file: Path) -> IO[str]:
    """A file of results to go on with, on a line of its own."""
    cut_off = file.exists() and not file.read_bytes().endswith(b"\n")
    opened = file.open("a", encoding="utf-8")
    opened.write("\n" if cut_off else "")
    return opened


def measured(work: Callable[[Task], Result], tasks: list[Task], jobs: int) -> Iterator[Result]:
    """Results as they come, in the order of the tasks."""
    if jobs <= 1 or len(tasks) <= 1:
        yield from map(work, tasks)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(work, tasks, chunksize=4)


def watched(results: Iterable[Any], count: int, keep: IO[str] | None, source: str) -> Iterator[Any]:
    """The same results (with a ``key``), each written down as it comes, with a line of progress now and then."""
    begun = told = time.monotonic()
    for number, result in enumerate(results, start=1):
        if keep is not None:
            keep.write(json.dumps({"source": source, **dataclasses.asdict(result)}) + "\n")
            keep.flush()
        if time.monotonic() - told > TOLD_EVERY_S:
            told = time.monotonic()
            left = (told - begun) / number * (count - number) / 60
            print(f"{number} of {count}, {result.key}, about {left:.0f} min left", file=sys.stderr)
        yield result


def measure_rest(
    work: Callable[[Task], Result], rest: list[Task], jobs: int, keep: Path | None, source: str
) -> Iterator[Result]:
    """The results of what is not yet known, each kept in a file if there is one."""
    with contextlib.nullcontext() if keep is None else appending(keep) as opened:
        yield from watched(measured(work, rest, jobs), len(rest), opened, source)
