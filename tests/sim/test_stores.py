"""Where KV lives between requests: what is dropped, held, seen late or packed, and that answers stay right."""

import numpy as np
import pytest

from kvgate.sim.dials import Dials
from kvgate.sim.kv import Arrays, block_hashes, longest_hit, name_of, places_between, places_needed
from kvgate.sim.node import RefusedError
from kvgate.sim.packing import pack, unpack
from kvgate.sim.presets import PRESETS
from kvgate.sim.store import LocalCache, Pool, size_of
from tests.sim.driving import Clock, ask, by_each_path, deployed, engine, prompt, small


def objects(*names: str) -> dict[str, Arrays]:
    """Objects of 100 bytes."""
    return {name: {"keys": np.full(25, len(name), np.float32)} for name in names}


# -- an engine's own cache ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PRESETS)
def test_a_prefix_cache_that_is_too_small_keeps_the_beginning_of_what_was_used_last(name: str) -> None:
    preset = small(name)
    length = 8 * preset.step + 1
    node = engine(preset, fault="no_pool")
    ids = prompt(length)
    cold = ask(node, ids)
    whole = size_of_cache(node.ranks[0].cache)
    ask(node, prompt(length, seed=2))
    assert 2 * whole == size_of_cache(node.ranks[0].cache)
    node.ranks[0].cache = LocalCache(capacity=whole * 3 // 2)
    assert [0, 0] == [ask(node, each).cached for each in (ids, prompt(length, seed=2))]
    part = ask(node, ids)
    assert 0 < part.cached < length - 1
    assert cold.rows == part.rows
    # What was used last has pushed the other prompt's end out in turn, and not its beginning.
    other = ask(node, prompt(length, seed=2))
    assert 0 < other.cached < length - 1
    assert ask(engine(preset), prompt(length, seed=2)).rows == other.rows


def size_of_cache(cache: LocalCache) -> int:
    return sum(size_of(arrays) for arrays in cache._objects.values())


def test_the_least_recently_used_object_goes_first() -> None:
    cache = LocalCache(capacity=250)
    for name, arrays in objects("a", "b").items():
        cache.keep(name, arrays)
    cache.get("a")
    cache.keep("c", objects("c")["c"])
    assert [True, False, True] == [name in cache for name in "abc"]
    cache.keep("a", objects("another")["another"])
    assert 1.0 == cache.get("a")["keys"][0], "what is held already is never overwritten"
    cache.drop()
    assert "a" not in cache


# -- the pool ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PRESETS)
def test_a_full_pool_drops_what_is_oldest_and_answers_stay_right(name: str) -> None:
    clock = Clock()
    deployment = deployed(name, clock=clock)
    node, pool = deployment.nodes["engine"], deployment.pool
    ids, other = (prompt(4 * node.preset.step + 1, seed=seed) for seed in (1, 2))
    first = by_each_path(node, ids)
    assert 4 * node.preset.step == first.external.cached
    pool.capacity = pool.size * 3 // 2
    clock.now += pool.lease_s + 1
    second = by_each_path(node, other)
    assert 4 * node.preset.step == second.external.cached
    assert pool.size <= pool.capacity
    node.drop_local()
    again = ask(node, ids)
    assert again.cached < 4 * node.preset.step
    assert first.cold.rows == again.rows


def test_what_a_look_up_has_found_is_not_evicted_before_its_lease_is_over() -> None:
    clock = Clock()
    pool = Pool(clock, capacity=250)
    pool.put(objects("a", "b"))
    assert {"a"} == pool.held(["a", "none"])
    pool.put(objects("c"))
    assert ["a", "c"] == list(pool.get(["a", "b", "c"]))
    pool.put(objects("d"))
    assert ["a", "d"] == list(pool.get(["a", "c", "d"])), "the one under lease is older and stays"
    clock.now += pool.lease_s
    pool.put(objects("e"))
    assert ["d", "e"] == list(pool.get(["a", "d", "e"]))
    assert 200 == pool.size


def test_everything_under_lease_may_stand_beyond_the_capacity() -> None:
    pool = Pool(Clock(), capacity=250)
    pool.put(objects("a", "b"))
    pool.held(["a", "b"])
    pool.put(objects("c", "d"))
    assert {"a", "b"} <= set(pool.objects)
    assert 200 == pool.size


def test_an_object_that_is_looked_up_counts_as_used() -> None:
    clock = Clock()
    pool = Pool(clock, capacity=350)
    pool.put(objects("a", "b", "c"))
    pool.held(["c", "a"])
    assert ["b", "c", "a"] == list(pool.objects), "in the order of the look-up, whatever the names"
    clock.now += pool.lease_s
    pool.put(objects("d", "e"))
    assert ["a", "d", "e"] == list(pool.objects)


def test_a_stored_object_is_never_overwritten_and_owns_its_bytes() -> None:
    pool = Pool(Clock())
    (arrays,) = objects("a").values()
    pool.put({"a": arrays})
    arrays["keys"].fill(9.0)
    pool.put({"a": arrays})
    assert 1.0 == pool.get(["a"])["a"]["keys"][0]
    pool.empty()
    assert ({}, 0) == (pool.get(["a"]), pool.size)


def test_a_put_can_be_found_only_when_its_lag_is_over() -> None:
    clock = Clock()
    node = engine(dials=Dials(put_lag_s=5.0), clock=clock)
    ids = prompt(401)
    cold = ask(node, ids)
    found = []
    for wait in (0.0, 4.9, 0.2):
        clock.now += wait
        node.drop_local()
        reply = ask(node, ids)
        assert cold.rows == reply.rows
        found.append(node.deeds[-1].external)
    assert [0, 0, 400] == found


def test_an_engine_that_starts_up_says_so() -> None:
    clock = Clock()
    node = engine(dials=Dials(start_up_s=3.0), clock=clock)
    with pytest.raises(RefusedError, match="starting up") as refused:
        ask(node, prompt(100))
    assert 503 == refused.value.status
    clock.now += 3.0
    assert 8 == len(ask(node, prompt(100)).ids)


# -- names and hits ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PRESETS)
def test_one_missing_object_makes_the_hit_shorter_and_leaves_the_answer_right(name: str) -> None:
    deployment = deployed(name)
    node, pool = deployment.nodes["engine"], deployment.pool
    ids = prompt(4 * node.preset.step + 1)
    cold = ask(node, ids)
    for group in node.preset.groups():
        chosen = next(key for key in reversed(pool.objects) if key.startswith(f"{group}/"))
        kept = pool.objects[chosen]
        pool.remove([chosen])
        node.drop_local()
        reply = ask(node, ids)
        assert 3 * node.preset.step == reply.cached, group
        assert cold.rows == reply.rows
        pool.objects[chosen] = kept


def test_a_hit_needs_whole_blocks_of_every_group_and_the_state_at_its_end() -> None:
    preset = small("deepseek-v4-flash-32")
    every, needed = set(places_between(preset, 0, 1024)), places_needed(preset, 0, 1024)
    assert set(needed) < every
    assert {"window", "carry4", "carry128"} == {place.group for place in every.difference(needed)}
    assert 1024 == longest_hit(preset, 1100, every.__contains__) == longest_hit(preset, 1100, needed.__contains__)
    for place in needed:
        assert 1024 > longest_hit(preset, 1100, every.difference({place}).__contains__), place
    assert 512 == longest_hit(preset, 1100, lambda place: place.group == "full", start=512)


def test_equal_names_mean_equal_prompts_up_to_there() -> None:
    preset = small("dense")
    places = [places_between(preset, 0, end)[-1] for end in (64, 56)]
    ids = np.array(prompt(64))
    first, last = ids.copy(), ids.copy()
    first[0] += 1
    last[63] += 1
    names = [
        [name_of(place, block_hashes(tokens, salt, preset.block), preset) for place in places]
        for tokens, salt in ((ids, ""), (ids, "salt"), (first, ""), (last, ""))
    ]
    assert 4 == len({one for one, _ in names})
    assert names[0][1] == names[3][1]
    assert 3 == len({other for _, other in names})


# -- packing -----------------------------------------------------------------------------------------------------
def test_objects_survive_their_packing_to_the_last_bit() -> None:
    deployment = deployed("deepseek-v4.1")
    ask(deployment.nodes["engine"], prompt(600))
    stored = {key: each.arrays for key, each in deployment.pool.objects.items()}
    again = unpack(pack(stored))
    assert list(stored) == list(again)
    for name, arrays in stored.items():
        for key, array in arrays.items():
            assert (array.dtype, array.shape, array.tobytes()) == (
                again[name][key].dtype,
                again[name][key].shape,
                again[name][key].tobytes(),
            )
    assert {} == unpack(pack({}))
    with pytest.raises(ValueError, match="Expecting value"):
        unpack(b"no packing")
