"""How often ``kvgate narrow`` finds what was planted: one wrong block, or lengths from some length on.

Each case is an embedded deployment of its own with one fault at a place drawn at random; the gate runs, fails, and the
failure is narrowed down. What is claimed is held against what was planted.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from power_page import fill

from kvgate.cli.event_loop import run_async
from kvgate.cli.narrow import carry_out_narrowing
from kvgate.cli.output import ProgressWatcher
from kvgate.cli.run import carry_out
from kvgate.cli.selftest import config_for
from kvgate.config.load import load_config_with_digest
from kvgate.domain.narrow_result import BlockFound, NarrowResult
from kvgate.errors import ConfigError
from kvgate.sim.deployment import make_deployment, serving
from kvgate.sim.dials import Dials
from kvgate.sim.faults import BY_NAME
from kvgate.sim.kv import Arrays
from kvgate.sim.planting import ON_LOAD, Loading, Objects
from kvgate.sim.presets import PRESETS, scaled
from kvgate.sim.topology import Topology

SCALE, GRANULE = 16, 8
TIERS = (147, 275, 531)
MOST_GROUPS = 8
# Above the shortest length of which anything can be loaded, beside the question that ends every prompt.
SHORTEST = 80
ENOUGH = 0.9
DEPLOYMENTS = (
    ("dense", Topology.COMBINED),
    ("dense", Topology.PAIR),
    ("dense", Topology.PD),
    ("swa-hybrid", Topology.COMBINED),
)


def _zeros(arrays: Arrays) -> None:
    for array in arrays.values():
        array.fill(0)


def _half(arrays: Arrays) -> None:
    for array in arrays.values():
        array[..., : array.shape[-1] // 2] = 0


def _no_keys(arrays: Arrays) -> None:
    arrays["keys"].fill(0)


def _scaled(arrays: Arrays) -> None:
    arrays["values"] *= np.float32(1.5)


def _keys_rolled(arrays: Arrays) -> None:
    arrays["keys"][:] = np.roll(arrays["keys"], 1, axis=0)


KINDS: dict[str, Callable[[Arrays], None]] = {
    "zeroed": _zeros,
    "half of each row zeroed": _half,
    "keys zeroed": _no_keys,
    "values 1.5 times as large": _scaled,
    "keys a row off their values": _keys_rolled,
}
LENGTHS = "lengths from one on"


@dataclass(frozen=True, slots=True)
class Case:
    """What is planted: a kind, and the struck block or the first length that fails; where, and which tier is gated."""

    kind: str
    place: int
    preset: str
    topology: Topology
    tier: int


@dataclass(frozen=True, slots=True)
class Came:
    """What the search came to: found, near, wide, wrong, or nothing; with the sentence."""

    case: Case
    what: str
    said: str
    groups: int


def cases(count: int, seed: int) -> list[Case]:
    """So many of each kind, drawn at random. Block 0 is left out: it is told from no other load (EVERY_LOAD)."""
    random = np.random.default_rng(seed)
    made = []
    for kind in (*KINDS, LENGTHS):
        for number in range(count):
            preset, topology = DEPLOYMENTS[number % len(DEPLOYMENTS)]
            tier = int(random.choice(TIERS))
            last = tier // GRANULE - 2
            place = int(random.integers(1, last)) if kind != LENGTHS else int(random.integers(SHORTEST, tier - GRANULE))
            made.append(Case(kind, place, preset, topology, tier))
    return made


def planted(kind: str) -> Callable[[Objects, Loading], None]:
    """A plant that spoils the struck block in this way."""

    def plant(objects: Objects, loading: Loading) -> None:
        full = {place.number: arrays for place, arrays in objects.items() if place.group == "full"}
        if loading.struck in full:
            KINDS[kind](full[loading.struck])

    return plant


def tried(case: Case) -> Came:
    """Gate it, narrow it down, and say what that came to."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(open(os.devnull, "w")):
        return run_async(_tried, case, Path(folder))


async def _tried(case: Case, folder: Path) -> Came:
    by_length = case.kind == LENGTHS
    dials = Dials(struck_lengths=((case.place, 10_000),)) if by_length else Dials(struck_block=case.place)
    if not by_length:
        ON_LOAD["one_block"] = planted(case.kind)
    fault = "some_lengths" if by_length else "one_block"
    watcher = ProgressWatcher(quiet=True)
    async with serving(make_deployment(scaled(PRESETS[case.preset], SCALE), case.topology, fault, dials)) as urls:
        content = config_for(BY_NAME["healthy"], urls, folder)
        content["gate"] |= {"tiers": [case.tier], "groups_per_tier": 2, "sentinel": False}
        path = folder / "gate.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        config, digest = load_config_with_digest(path)
        run, _ = await carry_out(config, (path, digest), None, watcher)
        try:
            _, _, report = await carry_out_narrowing(run, config, (path, digest), MOST_GROUPS, watcher)
        except ConfigError as error:
            return Came(case, "not failed", str(error), 0)
    return _length_came(case, report.result) if by_length else _block_came(case, report.result)


def _length_came(case: Case, result: NarrowResult) -> Came:
    length = result.length
    low, high = length.passes, length.fails
    if (low is not None and low >= case.place) or (high is not None and high < case.place):
        what = "wrong"
    elif low is None or high is None:
        what = "nothing"
    else:
        what = "found" if high - low == length.step else "wide"
    return Came(case, what, length.said, length.groups)


def _block_came(case: Case, result: NarrowResult) -> Came:
    block = result.block
    first, last = block.first, block.last
    if block.found not in (BlockFound.NAMED, BlockFound.RANGE) or first is None or last is None:
        wrong = block.found in (BlockFound.EVERY_LOAD, BlockFound.NOT_ONE_BLOCK)
        what = "wrong" if wrong else "nothing"
    elif not first - 1 <= case.place <= last + 1:
        what = "wrong"
    elif first == last:
        what = "found" if case.place == first else "near"
    else:
        what = "wide"
    return Came(case, what, f"{result.length.said} | {block.said}", block.groups)


def table(came: list[Came]) -> str:
    """A markdown table: a row for each kind."""
    columns = ("found", "near", "wide", "nothing", "wrong", "not failed")
    names = ("exactly", "one beside", "a range", "nothing", "wrongly", "run did not fail")
    head = ("planted", "cases", *names, "groups: median, most")
    rows = [head, tuple("---" for _ in head)]
    for kind in (*KINDS, LENGTHS):
        own = [each for each in came if each.case.kind == kind]
        count = Counter(each.what for each in own)
        groups = [each.groups for each in own if each.groups] or [0]
        spent = f"{np.median(groups):g}, {max(groups)}"
        rows.append((kind, str(len(own)), *(str(count[each]) for each in columns), spent))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> int:
    """Try all cases, print the table, fill the page; 1 if a claim was wrong or too few were found."""
    parser = argparse.ArgumentParser(description="How often `kvgate narrow` finds what was planted")
    parser.add_argument("--cases", type=int, default=20, help="cases of each kind (default 20)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="put the figures into this page")
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.jobs) as pool:
        came = list(pool.map(tried, cases(asked.cases, asked.seed)))
    for each in came:
        if each.what != "found":
            print(f"{each.what}: {each.case}: {each.said}")
    print(table(came))
    if asked.markdown is not None:
        fill(asked.markdown, {"narrowing": table(came)})
    blocks = [each for each in came if each.case.kind != LENGTHS and each.what != "not failed"]
    named = sum(each.what in ("found", "near") for each in blocks)
    lengths = [each for each in came if each.case.kind == LENGTHS]
    bracketed = sum(each.what == "found" for each in lengths)
    wrong = sum(each.what == "wrong" for each in came)
    print(f"block named, give or take one: {named} of {len(blocks)}; length bracketed to one granule: {bracketed} of "
          f"{len(lengths)}; claimed wrongly: {wrong}")  # fmt: skip
    return 0 if wrong == 0 and named >= ENOUGH * len(blocks) and blocks else 1


if __name__ == "__main__":
    sys.exit(main())
