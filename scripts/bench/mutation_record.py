"""Recording the stored part of the corpus: every fault of the self-test, and the scripted deployments of the tests.

Each run is a real one, of the real gate against a server on loopback. What is kept is its manifest (without the token
IDs of the texts, which no judge reads) and its history, each entry as it was written.
"""

import json
import lzma
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvgate.cli import selftest
from kvgate.cli.event_loop import run_async
from kvgate.domain.judge import judge
from kvgate.domain.record import RunRecord
from kvgate.sim.faults import FAULTS
from kvgate.store.run_directory import HISTORY, MANIFEST, read_history, read_manifest
from tests.domain.recorded import HISTORIES, STORED
from tests.domain.recorded_case import told
from tests.driving import gate
from tests.gate.test_verdicts import FAULTY, HEALTHY, UNPROVED


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was made, where it is, and what it must be judged as: a verdict, and one of the reasons if any."""

    name: str
    verdict: str
    reasons: tuple[str, ...]
    folder: Path


def record() -> int:
    """Make every run anew; 1 if one is not judged as it must be, and then nothing is written."""
    wrong = 0
    contents: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory(prefix="kvgate-record-") as folder:
        for source, runs in ((STORED[0], simulated), (STORED[1], scripted)):
            lines: list[bytes] = []
            for run in runs(Path(folder) / source):
                said = told(judge(read_manifest(run.folder).plan, RunRecord(read_history(run.folder))))
                verdict, *reasons = said.split()
                right = verdict == run.verdict and (not run.reasons or bool(set(reasons) & set(run.reasons)))
                print(f"{'right' if right else 'WRONG'}: {run.name}: {said}", file=sys.stderr, flush=True)
                wrong += not right
                lines += packed(run, said)
            contents[source] = lzma.compress(b"\n".join(lines), preset=9)
    if wrong:
        return 1
    HISTORIES.mkdir(exist_ok=True)
    for source, content in contents.items():
        (HISTORIES / source).write_bytes(content)
        print(f"{HISTORIES / source}: {len(content)} bytes")
    return 0


def packed(run: Run, said: str) -> list[bytes]:
    """A run as lines: what it is, its manifest, its history."""
    manifest = json.loads((run.folder / MANIFEST).read_bytes())
    entries = (run.folder / HISTORY).read_bytes().splitlines()
    head = {"case": run.name, "required": said, "entries": len(entries)}
    return [json.dumps(head).encode(), json.dumps(manifest | {"lexicon": {}}).encode(), *entries]


def simulated(folder: Path) -> Iterator[Run]:
    """The gate against every fault of the embedded deployment that the gate's own traffic brings out."""
    for fault in FAULTS:
        if not fault.needs:
            place = folder / fault.name
            place.mkdir(parents=True)
            run_async(selftest._gate, fault, place)  # noqa: SLF001 - the very run of the self-test, but kept
            yield Run(f"simulator: {fault.name}", fault.verdict, fault.reasons, only_run(place))


def scripted(folder: Path) -> Iterator[Run]:
    """The gate against the scripted deployments that its tests are made of."""
    cases = [
        *((name, script, changes, "PASS", ()) for name, script, changes in HEALTHY),
        *((name, script, changes, "FAIL", (reason,)) for name, script, changes, reason in FAULTY),
        *((name, script, changes, "INCONCLUSIVE", (reason,)) for name, script, changes, reason in UNPROVED),
    ]
    for number, (name, script, changes, verdict, reasons) in enumerate(cases):
        place = folder / str(number)
        place.mkdir(parents=True)
        gate(place, script, **changes)
        yield Run(f"scripted: {name}", verdict, reasons, only_run(place))


def only_run(folder: Path) -> Path:
    """The one run directory the gate made under a folder."""
    (run,) = (folder / "runs").glob("[0-9]*")
    return run
