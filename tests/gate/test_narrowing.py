"""The whole tool after a FAIL: the length at which it begins, the block that is wrong, and no claim it has not seen."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.cli.event_loop import run_async
from kvgate.cli.narrow import carry_out_narrowing
from kvgate.cli.output import ProgressWatcher
from kvgate.cli.run import carry_out
from kvgate.cli.selftest import config_for
from kvgate.config.load import load_config_with_digest
from kvgate.domain.bracket import Found
from kvgate.domain.narrow_result import BlockFound, NarrowResult
from kvgate.errors import ConfigError
from kvgate.sim.deployment import Deployment, make_deployment, serving
from kvgate.sim.dials import QUIET, Dials
from kvgate.sim.faults import BY_NAME
from kvgate.sim.planting import ON_LOAD, Loading, Objects
from kvgate.sim.presets import PRESETS, scaled
from kvgate.sim.topology import Topology

GRANULE = 8
QUIETLY = ProgressWatcher(quiet=True)
Between = Callable[[Deployment], None]


@dataclass(frozen=True)
class Case:
    """A deployment with a fault, what is gated of it, and what happens to it before it is narrowed down."""

    fault: str
    dials: Dials = QUIET
    tiers: tuple[int, ...] = (147, 531)
    preset: str = "dense"
    topology: Topology = Topology.COMBINED
    most: int = 8
    more: dict[str, Any] = field(default_factory=dict)
    between: Between = lambda _: None


def narrowed(case: Case, folder: Path) -> NarrowResult:
    """Gate it, and narrow down what failed."""
    return run_async(_narrowed, case, folder)


async def _narrowed(case: Case, folder: Path) -> NarrowResult:
    preset = scaled(PRESETS[case.preset], 16)
    deployment = make_deployment(preset, case.topology, case.fault, case.dials)
    async with serving(deployment) as urls:
        content: dict[str, Any] = config_for(BY_NAME["healthy"], urls, folder)
        content["gate"] |= {"tiers": list(case.tiers), "groups_per_tier": 2, "sentinel": False}
        content |= case.more
        path = folder / "gate.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        config, digest = load_config_with_digest(path)
        run, _ = await carry_out(config, (path, digest), None, QUIETLY)
        case.between(deployment)
        _, _, report = await carry_out_narrowing(run, config, (path, digest), case.most, QUIETLY)
    return report.result


def from_length(first: int, last: int = 10_000) -> Dials:
    return Dials(struck_lengths=((first, last),))


def struck(*ranges: tuple[int, int]) -> Callable[[int], bool]:
    return lambda length: any(first <= length <= last for first, last in ranges)


def claims_hold(result: NarrowResult, fails: Callable[[int], bool]) -> None:
    """Whatever is said of a length was so."""
    length = result.length
    assert length.passes is None or not fails(length.passes), length.said
    assert length.fails is None or fails(length.fails), length.said
    assert not any(map(fails, length.passes_above)), length.said
    assert length.groups <= 8


@pytest.mark.parametrize("first", [160, 419])
def test_the_length_from_which_it_fails_is_bracketed_to_one_granule(first: int, tmp_path: Path) -> None:
    result = narrowed(Case("some_lengths", from_length(first), tiers=(147, 531)), tmp_path)
    length = result.length
    assert Found.BRACKETED is length.found, length.said
    assert length.passes is not None
    assert length.fails is not None
    assert length.passes < first <= length.fails
    assert GRANULE == length.fails - length.passes == length.step
    assert length.groups <= 8
    assert f"{length.passes} tokens pass and {length.fails} fail" in length.said
    # The control: at that length every load is wrong, however short, and no block is named for it.
    assert BlockFound.EVERY_LOAD is result.block.found, result.block.said


def test_a_failure_that_is_not_monotone_in_length_is_not_called_so(tmp_path: Path) -> None:
    ranges = ((195, 227), (259, 291))
    result = narrowed(Case("some_lengths", Dials(struck_lengths=ranges), tiers=(147, 275, 371)), tmp_path)
    claims_hold(result, struck(*ranges))
    assert "pass again, so it is not every longer prompt" in result.length.said


@pytest.mark.parametrize(("broken", "said"), [((0, 0), ""), ((196, 226), "stayed INCONCLUSIVE")], ids=["none", "some"])
def test_lengths_that_cannot_be_judged_are_stepped_around_and_named(
    broken: tuple[int, int], said: str, tmp_path: Path
) -> None:
    """A hook that fails at some lengths makes them inconclusive; without it the same search ends at one granule."""
    code = f"import os, sys; sys.exit({broken[0]} <= int(os.environ['KVGATE_LENGTH']) <= {broken[1]})"
    hooks = {"hooks": {"before_arm": {"external": [sys.executable, "-c", code]}}}
    result = narrowed(Case("some_lengths", from_length(211), more=hooks, tiers=(147, 275), most=9), tmp_path)
    length = result.length
    assert length.passes is not None
    assert length.fails is not None
    assert length.passes < 211 <= length.fails
    between = range(length.passes + GRANULE, length.fails, GRANULE)
    assert tuple(between) == length.unknown, length.said
    assert all(broken[0] <= each <= broken[1] for each in between)
    assert (Found.NARROWED if said else Found.BRACKETED) is length.found
    assert said in length.said


def mended(deployment: Deployment) -> None:
    for node in deployment.nodes.values():
        node.fault = "healthy"


def test_what_does_not_fail_any_more_is_said_to_be_gone(tmp_path: Path) -> None:
    result = narrowed(Case("one_block", tiers=(147,), between=mended), tmp_path)
    assert (Found.GONE, True) == (result.length.found, result.gone)
    assert BlockFound.NOT_ASKED is result.block.found
    assert 1 == result.length.groups


def test_a_run_that_passed_has_nothing_to_be_narrowed_down(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no group of a tier or a boundary length fails \(the run is PASS.*give a run"
    ):
        narrowed(Case("healthy", tiers=(147,)), tmp_path)


def test_what_fails_now_and_then_is_laid_at_no_length_and_no_block(tmp_path: Path) -> None:
    result = narrowed(Case("one_in_three", tiers=(147, 275)), tmp_path)
    assert result.length.found not in (Found.BRACKETED, Found.ALL_FAIL), result.length.said
    assert result.block.found not in (BlockFound.NAMED, BlockFound.NOT_ONE_BLOCK), result.block.said


BLOCKS = [1, 7, 12, 16]


@pytest.mark.parametrize(
    ("block", "topology", "preset"),
    [
        *((block, Topology.COMBINED, "dense") for block in BLOCKS),
        (9, Topology.PAIR, "dense"),
        (5, Topology.PD, "dense"),
        (11, Topology.COMBINED, "swa-hybrid"),
    ],
)
def test_the_block_that_is_wrong_is_named(block: int, topology: Topology, preset: str, tmp_path: Path) -> None:
    result = narrowed(Case("one_block", Dials(struck_block=block), (147,), preset, topology), tmp_path)
    named = result.block
    assert BlockFound.NAMED is named.found, (named.said, result.length.said)
    assert (block, block, True) == (named.first, named.last, named.alone)
    assert f"block {block} (from 0, {GRANULE} tokens each" in named.said


@pytest.mark.parametrize("fault", ["zero_block", "wrong_scale"])
def test_where_every_load_is_wrong_no_block_is_claimed(fault: str, tmp_path: Path) -> None:
    """The middle of what is loaded moves with it, and a scale is wrong everywhere: neither is told from block 0."""
    result = narrowed(Case(fault, tiers=(147,)), tmp_path)
    assert BlockFound.EVERY_LOAD is result.block.found, result.block.said
    assert Found.ALL_FAIL is result.length.found


def test_what_hangs_on_how_much_is_loaded_is_laid_at_no_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads of more than 80 tokens are wrong in their first block. Blocks that are loaded alone are right."""

    def long_loads(objects: Objects, loading: Loading) -> None:
        if loading.hit - loading.local > 80:
            ON_LOAD["zero_first_block"](objects, loading)

    monkeypatch.setitem(ON_LOAD, "one_block", long_loads)
    result = narrowed(Case("one_block", tiers=(147,)), tmp_path)
    assert BlockFound.NOT_ONE_BLOCK is result.block.found, result.block.said
    assert (10, 10, False) == (result.block.first, result.block.last, result.block.alone)
