"""The embedded engine's ground truth: the same answer to the last bit, whichever way the KV came to it."""

from dataclasses import replace

import numpy as np
import pytest

from kvgate.sim.answers import Reply
from kvgate.sim.node import Node, RefusedError
from kvgate.sim.presets import PRESETS, Preset, scaled
from kvgate.sim.topology import Topology
from tests.sim.driving import (
    QUESTION,
    answer_at,
    ask,
    by_each_path,
    deployed,
    drift,
    engine,
    memory,
    predicted,
    prompt,
    small,
)

# Distance between the lengths at which a hit can end, in prompt tokens.
STEPS = {
    "dense": 128,
    "deepseek-v4-flash": 16384,
    "deepseek-v4-flash-32": 4096,
    "deepseek-v4.1": 256,
    "gdn-hybrid": 512,
    "swa-hybrid": 128,
}


def lengths(preset: Preset) -> list[int]:
    """Aligned, unaligned and boundary lengths: around two and three steps, around a chunk, and somewhere."""
    step, chunk = preset.step, preset.chunk
    around = [edge + by for edge in (2 * step, 3 * step, 2 * max(step, chunk)) for by in (-1, 0, 1)]
    return sorted({length for length in (*around, 2 * max(step, chunk) + 19, 3 * step + step // 2, 700) if length > 20})


CASES = [(name, length) for name in PRESETS for length in lengths(small(name))]


def check_paths(preset: Preset, length: int, tokens: int = 8) -> Reply:
    """The same prompt on every path: equal answers, hits as long as the preset's rule says, counters that add up."""
    node, ids = engine(preset), prompt(length)
    answers = by_each_path(node, ids, "a", tokens, 20)
    fresh = ask(node, ids, "b", tokens, 20)
    assert answers.cold.rows == answers.local.rows == answers.external.rows == fresh.rows
    hit = predicted(preset, length)
    pooled = 0 if length < 2 * preset.retention else hit
    assert [(0, 0), (hit, 0), (0, pooled), (0, 0)] == [(deed.local, deed.external) for deed in node.deeds]
    assert [0, hit, pooled, 0] == [each.cached for each in (answers.cold, answers.local, answers.external, fresh)]
    assert all(length == deed.computed + deed.local + deed.external for deed in node.deeds)
    counters = node.ranks[0].counters
    assert (4 * length, 4 * length - hit - pooled) == (counters.prompt, counters.computed)
    assert (hit, pooled, pooled) == (counters.local, counters.external, counters.external_hits)
    assert (4, 4 * tokens, 0) == (counters.requests, counters.generated, counters.preemptions)
    return fresh


def test_hits_end_where_the_presets_say() -> None:
    assert {name: preset.step for name, preset in PRESETS.items()} == STEPS
    assert (4096, 16384) == (PRESETS["deepseek-v4-flash-32"].granule, PRESETS["deepseek-v4-flash"].granule)


@pytest.mark.parametrize(("name", "length"), CASES)
def test_every_path_gives_the_same_answer_to_the_last_bit(name: str, length: int) -> None:
    check_paths(small(name), length)


@pytest.mark.parametrize("speculation", [1, 3])
@pytest.mark.parametrize("name", ["dense", "deepseek-v4-flash-32", "gdn-hybrid"])
def test_a_hit_is_one_step_shorter_under_speculation(name: str, speculation: int) -> None:
    preset = small(name, speculation)
    for length in (3 * preset.step, 3 * preset.step + 1, 700):
        check_paths(preset, length)


@pytest.mark.parametrize(
    ("name", "length"), [*((name, 49152 + 19) for name in PRESETS), ("deepseek-v4-flash-32", 40000)]
)
def test_every_path_gives_the_same_answer_at_real_size(name: str, length: int) -> None:
    reply = check_paths(PRESETS[name], length, tokens=3)
    assert answer_at(prompt(length), tokens=3) == reply.ids


def test_the_pool_serves_nothing_below_twice_the_retention() -> None:
    preset = PRESETS["deepseek-v4-flash"]
    found = []
    for length in (32767, 32768, 32769):
        node = engine(preset)
        by_each_path(node, prompt(length), tokens=1, top=1)
        found.append((node.deeds[1].local, node.deeds[2].external))
    assert [(16384, 0), (16384, 16384), (32768, 32768)] == found


@pytest.mark.parametrize("name", PRESETS)
def test_a_local_prefix_and_an_external_tail_give_the_same_answer(name: str) -> None:
    nodes = deployed(name, topology=Topology.PAIR).nodes
    step = nodes["a"].preset.step
    length = 4 * step + step // 2 + 1
    ids = prompt(length)
    # What "b" computes first is its own; the rest of the prompt comes from what "a" puts into the pool later.
    ask(nodes["b"], ids[: 2 * step + 1])
    ask(nodes["a"], ids)
    mixed = ask(nodes["b"], ids)
    deed = nodes["b"].deeds[-1]
    assert (2 * step, 2 * step, length - 4 * step) == (deed.local, deed.external, deed.computed)
    assert ask(engine(name), ids).rows == mixed.rows


@pytest.mark.parametrize("name", PRESETS)
def test_two_engines_share_the_pool_and_nothing_else(name: str) -> None:
    nodes = deployed(name, topology=Topology.PAIR).nodes
    length = 2 * nodes["a"].preset.step + 19
    ids = prompt(length)
    assert ask(nodes["a"], ids).rows == ask(nodes["b"], ids).rows
    deed = nodes["b"].deeds[0]
    assert (0, predicted(nodes["a"].preset, length)) == (deed.local, deed.external)
    assert 0 == ask(Node(nodes["a"].preset, None, memory=memory()), ids).cached


def test_shards_choose_what_one_of_them_would_choose_alone() -> None:
    preset = small("deepseek-v4.1")
    ids = prompt(4000)
    assert ask(engine(preset), ids).rows == ask(engine(replace(preset, shards=1)), ids).rows
    assert ask(engine(preset), ids).rows != ask(engine(replace(preset, top_k=0)), ids).rows


@pytest.mark.parametrize("name", ["dense", "deepseek-v4-flash-32"])
def test_the_chunk_size_changes_nothing_without_noise(name: str) -> None:
    preset = small(name)
    ids = prompt(1000)
    answers = [by_each_path(engine(replace(preset, chunk=chunk)), ids) for chunk in (64, 500, 8192)]
    assert all(answers[0] == each for each in answers)


# An indexer scaled down to 32 positions does not find every record among 4096; at real size it does.
RECALLED = [(name, length) for name in PRESETS for length in (531, 4096) if (name, length) != ("deepseek-v4.1", 4096)]


@pytest.mark.parametrize(("name", "length"), RECALLED)
def test_what_followed_before_is_recalled_with_margins_like_a_language_models(name: str, length: int) -> None:
    margins: list[float] = []
    for source in (2, length // 2, length - 40):
        ids = prompt(length, source, source)
        reply = ask(engine(name), ids, tokens=12)
        assert answer_at(ids, source, 12) == reply.ids
        margins += [row[0][1] - row[1][1] for row in reply.rows]
    assert 2.0 < min(margins) < max(margins) < 12.0
    assert 4.0 < float(np.median(margins)) < 9.0


def test_records_of_a_codebook_are_recalled() -> None:
    syllables = ("ba", "de", "fi", "go", "lu", "mar", "nes", "pol", "rin", "tus")
    words = [first + second + third for first in syllables for second in syllables for third in syllables[:4]]
    records = [words[at : at + 4] for at in range(0, 400, 4)]
    book = "".join(f"The codeword of {key} is {' '.join(codes)}.\n" for key, *codes in records)
    node = engine(scaled(PRESETS["dense"], 8))
    for key, *codes in records[3::16]:
        ids = node.memory.words.tokenize(f"{book}The codeword of {key} is")
        assert f" {' '.join(codes)}.\nThe" == by_each_path(node, ids, tokens=6).external.text


@pytest.mark.parametrize("name", PRESETS)
def test_a_prompt_that_holds_the_answers_beginning_is_answered_with_its_rest(name: str) -> None:
    """Decoding token by token leaves the same KV as a prefill of the same tokens."""
    ids = prompt(300)
    reply = ask(engine(name), ids, tokens=40)
    for taken in (1, 2, 25):
        decoded = replace(reply, rows=reply.rows[taken : taken + 4])
        prefilled = ask(engine(name), [*ids, *reply.ids[:taken]], tokens=4)
        # A decayed sum takes the tokens of a prefill together and those of a decode one by one.
        assert drift(decoded, prefilled) <= (1e-5 if {"recurrent", "ngram"} & set(small(name).groups()) else 0.0)


@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize(("name", "group"), [("gdn-hybrid", "full"), ("deepseek-v4-flash-32", "window")])
def test_keys_right_behind_a_hit_are_made_of_the_bytes_that_were_loaded(name: str, group: str, behind: int) -> None:
    """So a wrong last block shows where the answer stands on its heels, and the block itself is hardly read."""
    deployment = deployed(name)
    node, step = deployment.nodes["engine"], small(name).step
    hit = 2 * step
    ids = prompt(hit + step - 1, source=hit - QUESTION + behind)
    ask(node, ids)
    local = ask(node, ids)
    assert (hit, answer_at(ids, hit - QUESTION + behind)) == (local.cached, local.ids)
    last = hit // node.preset.block - 1
    (stored,) = (each for key, each in deployment.pool.objects.items() if key.startswith(f"{group}/{last}:"))
    for array in stored.arrays.values():
        array[-2:] = 0.0
    node.drop_local()
    assert drift(local, ask(node, ids)) > 1.0


def test_what_cannot_be_answered_is_refused() -> None:
    node = engine()
    limit = node.preset.max_model_len
    for ids, tokens, expected in (
        (prompt(limit), 1, f"maximum context length is {limit}"),
        (prompt(limit - 7), 8, "maximum context length"),
        ([4096], 1, "outside the vocabulary"),
        ([-1], 1, "outside the vocabulary"),
        ([], 1, "empty"),
    ):
        with pytest.raises(RefusedError, match=expected) as refused:
            ask(node, ids, tokens=tokens)
        assert 400 == refused.value.status
    assert [] == node.deeds
    assert 8 == len(ask(node, prompt(limit - 8), tokens=8).ids)


def test_a_preset_whose_block_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ValueError, match="a block of 128 tokens cannot be divided by 7"):
        scaled(PRESETS["dense"], 7)
