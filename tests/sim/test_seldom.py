"""Faults that strike seldom, late, or only in an engine that is short of room."""

from itertools import count, pairwise

import pytest

from kvgate.sim.deployment import make_deployment
from kvgate.sim.dials import Dials
from kvgate.sim.planting import MANY_LOADS, lot_of
from kvgate.sim.presets import PRESETS, scaled
from tests.sim.driving import SCALE, ask, memory, prompt


def struck(fault: str, loads: int) -> list[bool]:
    """Of so many loads of as many prompts, which ones are changed."""
    node = make_deployment(scaled(PRESETS["dense"], SCALE), fault=fault, memory=memory()).nodes["engine"]
    for seed in range(loads):
        ids = prompt(536, seed)
        ask(node, ids, tokens=1)
        node.drop_local()
        ask(node, ids, tokens=1)
    return [deed.spoilt > 0 for deed in node.deeds if deed.external]


def test_a_share_of_the_loads_is_wrong_at_random_and_the_same_ones_every_time() -> None:
    found = struck("one_in_ten", 200)
    assert 10 <= sum(found) <= 32
    gaps = {later - earlier for earlier, later in pairwise(place for place, each in enumerate(found) if each)}
    assert len(gaps) > 5
    assert found[:40] == struck("one_in_ten", 40)
    lots = [lot_of(prompt(536), number) for number in range(4000)]
    assert 25 <= sum(lot < 0.01 for lot in lots) <= 58


def test_loads_are_wrong_after_the_hundredth() -> None:
    assert [False] * MANY_LOADS + [True] * 5 == struck("after_many", MANY_LOADS + 5)


@pytest.mark.parametrize("room", [0, 1 << 20])
def test_loads_are_wrong_once_the_pool_has_dropped_something_since_they_were_put(room: int) -> None:
    preset = scaled(PRESETS["dense"], SCALE)
    # Every look at the clock finds the last lease over: what was looked up is dropped like anything else.
    clock, dials = count(0, 100).__next__, Dials(pool_bytes=room)
    deployment = make_deployment(preset, fault="while_evicting", dials=dials, clock=clock, memory=memory())
    node = deployment.nodes["engine"]
    spoilt = []
    for seed in range(6):
        ids = prompt(536, seed)
        ask(node, ids, tokens=1)
        node.drop_local()
        ask(node, ids, tokens=1)
        assert node.deeds[-1].external
        spoilt.append(node.deeds[-1].spoilt > 0)
    # A prompt takes a quarter of the room.
    assert [False] * 3 + [bool(room)] * 3 == spoilt
    assert bool(room) == (deployment.pool.dropped > 0)
