"""The corpus: recorded histories, each with the verdict it requires, that the judge is held against.

A case is a plan with a history; nothing else is needed to judge it. Written cases stand in ``recorded_*.py``. Stored
ones lie in ``histories/``: ``scripts/bench/mutation --record`` records them from runs against the simulator and the
scripted server. A stored file is xz-packed JSON lines: for each case its name and what it requires, the manifest,
and the history. Runs against the same deployment have most numbers in common, so together they pack well.
"""

import json
import lzma
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from kvgate.store.run_directory import HISTORY, MANIFEST, read_history, read_manifest
from tests.domain import (
    recorded_answers,
    recorded_arms,
    recorded_attribution,
    recorded_canaries,
    recorded_chance,
    recorded_evidence,
    recorded_gateway,
    recorded_groups,
    recorded_logs,
    recorded_outage,
    recorded_pairs,
    recorded_pools,
    recorded_pressure,
    recorded_rows,
    recorded_runs,
    recorded_sentinels,
    recorded_ties,
    recorded_traffic,
)
from tests.domain.recorded_case import Case

HISTORIES = Path(__file__).parent / "histories"
STORED = ("simulator.jsonl.xz", "scripted.jsonl.xz")


def written() -> tuple[Case, ...]:
    """Every written case."""
    return (
        *recorded_rows.CASES,
        *recorded_evidence.CASES,
        *recorded_answers.CASES,
        *recorded_arms.CASES,
        *recorded_attribution.CASES,
        *recorded_canaries.CASES,
        *recorded_sentinels.CASES,
        *recorded_pressure.CASES,
        *recorded_outage.CASES,
        *recorded_traffic.CASES,
        *recorded_ties.CASES,
        *recorded_pairs.CASES,
        *recorded_chance.CASES,
        *recorded_groups.CASES,
        *recorded_gateway.CASES,
        *recorded_logs.CASES,
        *recorded_pools.CASES,
        *recorded_runs.CASES,
    )


def stored() -> tuple[Case, ...]:
    """Every stored case."""
    with tempfile.TemporaryDirectory() as folder:
        return tuple(case for file in STORED for case in _unpacked(HISTORIES / file, Path(folder)))


def every() -> tuple[Case, ...]:
    """All cases, the shortest first."""
    return tuple(sorted((*written(), *stored()), key=lambda case: len(case.entries)))


def _unpacked(file: Path, folder: Path) -> Iterator[Case]:
    lines = iter(lzma.decompress(file.read_bytes()).splitlines(keepends=True))
    for line in lines:
        head = json.loads(line)
        (folder / MANIFEST).write_bytes(next(lines))
        (folder / HISTORY).write_bytes(b"".join(islice(lines, head["entries"])))
        yield Case(head["case"], read_manifest(folder).plan, tuple(read_history(folder)), head["required"], stored=True)
