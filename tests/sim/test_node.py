"""The embedded engine's ground truth: the same answer by every path, counters that tell its deeds, faults in bytes."""

import numpy as np
import pytest

from kvgate.sim.faults import BY_NAME, FAULTS
from kvgate.sim.network import VOCABULARY, Sequence, extend, generate, make_weights, resume
from kvgate.sim.node import Node, RefusedError, Shape, make_deployment
from kvgate.sim.planting import ON_LOAD
from kvgate.sim.words import Dictionary

WEIGHTS = make_weights()
SHAPE = Shape()


def prompt(length: int, seed: int = 1) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, VOCABULARY, length)]


@pytest.mark.parametrize("length", [33, 64, 65, 339, 801, 1300])
def test_cold_local_and_external_answers_are_equal_to_the_last_bit(length: int) -> None:
    node = make_deployment(SHAPE).nodes[0]
    ids = prompt(length)
    cold = node.complete(ids, "a", 16, 5)
    local = node.complete(ids, "a", 16, 5)
    node.drop_local()
    external = node.complete(ids, "a", 16, 5)
    fresh = node.complete(ids, "b", 16, 5)
    assert cold.rows == local.rows == external.rows == fresh.rows
    hit = (length - 1) // SHAPE.block * SHAPE.block
    assert [(0, 0), (hit, 0), (0, hit), (0, 0)] == [(deed.local, deed.external) for deed in node.deeds]
    assert node.counters.local == node.counters.external == hit
    assert node.counters.computed == 4 * length - 2 * hit


def test_records_are_recalled_and_margins_are_like_a_language_models() -> None:
    ids = np.array(prompt(4096))
    ids[-2:] = ids[1000:1002]
    sequence = Sequence.empty()
    extend(WEIGHTS, sequence, ids, SHAPE.block)
    answer, rows = generate(WEIGHTS, sequence, 6, 5)
    assert ids[1002:1008].tolist() == answer
    assert all(2.0 < row[0][1] - row[1][1] < 12.0 for row in rows)


def test_a_sequence_goes_on_from_any_block_as_if_it_had_never_stopped() -> None:
    ids = np.array(prompt(500))
    whole = Sequence.empty()
    blocks = extend(WEIGHTS, whole, ids, SHAPE.block)
    expected = generate(WEIGHTS, whole, 8, 5)
    for kept in (1, 7, 15):
        resumed = resume(blocks[:kept])
        extend(WEIGHTS, resumed, ids[resumed.length :], SHAPE.block)
        assert expected == generate(WEIGHTS, resumed, 8, 5)


@pytest.mark.parametrize("fault", [name for name in ON_LOAD if name not in ("after_some", "every_other", "long_only")])
def test_every_fault_of_the_bytes_changes_bytes_and_dead_ones_no_answer(fault: str) -> None:
    node = make_deployment(SHAPE, fault=fault).nodes[0]
    node.complete(prompt(700, seed=2), "x", 4, 5)
    ids = prompt(700)
    cold = node.complete(ids, "a", 16, 5)
    node.drop_local()
    external = node.complete(ids, "a", 16, 5)
    assert node.deeds[-1].spoilt > 0
    assert (fault == "dead_bytes") == (repr(cold.rows) == repr(external.rows))


def test_two_nodes_share_a_pool_and_nothing_else() -> None:
    writer, reader = make_deployment(SHAPE, nodes=2).nodes
    ids = prompt(400)
    assert writer.complete(ids, "a", 8, 5).rows == reader.complete(ids, "a", 8, 5).rows
    assert (0, 384) == (reader.deeds[0].local, reader.deeds[0].external)
    assert 0 == Node(SHAPE, None).complete(ids, "a", 8, 5).cached


def test_what_cannot_be_answered_is_refused() -> None:
    node = make_deployment(SHAPE).nodes[0]
    with pytest.raises(RefusedError, match="maximum context length"):
        node.complete(prompt(SHAPE.max_model_len), "", 1, 1)
    with pytest.raises(RefusedError, match="outside the vocabulary"):
        node.complete([VOCABULARY], "", 1, 1)


def test_text_survives_the_dictionary() -> None:
    words = Dictionary()
    text = "Shelf 0017: amber cedar elm.\nNext line, twice  spaced_out; 琥珀罗勒"
    assert text == words.text(words.tokenize(text))
    assert words.tokenize(text) == words.tokenize(text)


def test_the_table_names_each_fault_once_and_covers_what_the_code_plants() -> None:
    assert len(BY_NAME) == len(FAULTS) >= 36
    assert set(ON_LOAD) <= set(BY_NAME)
    assert {"FAIL", "INCONCLUSIVE", "PASS"} == {fault.verdict for fault in FAULTS}
    assert all(fault.reasons for fault in FAULTS if fault.verdict != "PASS")
