"""Benign oddities: noise that hangs on shapes, runs and batches, near ties, preemptions."""

from dataclasses import replace

import pytest

from kvgate.sim.answers import Reply
from kvgate.sim.dials import Dials
from kvgate.sim.node import Node
from kvgate.sim.presets import PRESETS, scaled
from tests.sim.driving import Answers, ask, by_each_path, drift, engine, prompt

PROMPTS = 200
# Hits of a preset with blocks of 8 and chunks of 512 tokens: 515 is aligned (hit 512), 550 is not (hit 544).
ALIGNED, UNALIGNED = 515, 550


def answers_of(node: Node, length: int, count: int) -> list[Answers]:
    """Prompts of one length on every path, answered far enough for every near tie."""
    return [by_each_path(node, prompt(length, seed), tokens=10, top=2) for seed in range(count)]


def flipped(one: Reply, other: Reply) -> bool:
    return one.ids != other.ids


def test_so_many_answers_flip_between_cold_and_hit_and_none_between_hits() -> None:
    answers = answers_of(engine(dials=Dials(flip_share=0.45)), UNALIGNED, PROMPTS)
    flips = sum(flipped(each.cold, each.local) for each in answers)
    assert 0.38 <= flips / PROMPTS <= 0.52
    assert all(each.local.rows == each.external.rows for each in answers)
    # An answer that does not flip does not drift either: noise stays with its prompts.
    assert flips == sum(each.cold.rows != each.local.rows for each in answers)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (1.0, 40)])
def test_none_and_all_of_the_answers_flip_where_the_dial_says_so(share: float, expected: int) -> None:
    answers = answers_of(engine(dials=Dials(flip_share=share)), UNALIGNED, 40)
    assert expected == sum(flipped(each.cold, each.local) for each in answers)


@pytest.mark.parametrize(("preset", "length"), [("dense", ALIGNED), ("gdn-hybrid", 531), ("deepseek-v4-flash-32", 531)])
def test_nothing_differs_at_aligned_lengths(preset: str, length: int) -> None:
    for each in answers_of(engine(preset, dials=Dials(flip_share=1.0)), length, 10):
        assert each.cold.rows == each.local.rows == each.external.rows


def test_lengths_behave_as_on_the_real_engine_with_chunks_of_320() -> None:
    """The three lengths of facts/vllm-cpu-lab.md, section 5c: block 32, chunk 320."""
    preset = replace(scaled(PRESETS["dense"], 4), chunk=320)
    equal = {}
    for length in (659, 840, 801):
        answers = by_each_path(engine(preset, dials=Dials(flip_share=1.0)), prompt(length), tokens=10)
        assert answers.local.rows == answers.external.rows
        equal[length] = not flipped(answers.cold, answers.local)
    assert {659: True, 840: False, 801: False} == equal


def test_a_flip_is_a_near_tie_and_drift_before_it_is_small() -> None:
    dials = Dials(flip_share=1.0, tie_nat=0.02, shape_noise=0.03)
    for each in answers_of(engine(dials=dials), UNALIGNED, 10):
        at = next(
            number for number, pair in enumerate(zip(each.cold.ids, each.local.ids, strict=True)) if len({*pair}) > 1
        )
        for reply in (each.cold, each.local):
            (first, likeliest), (second, next_one) = reply.rows[at]
            assert {each.cold.ids[at], each.local.ids[at]} == {first, second}
            assert 0.02 == pytest.approx(likeliest - next_one, abs=1e-5)
        before = (replace(reply, rows=reply.rows[:at]) for reply in (each.cold, each.local))
        assert 0.0 < drift(*before) < 0.03


def test_run_noise_is_drawn_anew_for_every_request() -> None:
    node = engine(dials=Dials(run_noise=0.02))
    ids = prompt(ALIGNED)
    replies = [ask(node, ids) for _ in range(4)]
    drifts = [drift(one, other) for one in replies for other in replies if one is not other]
    assert 0.0 < min(drifts) <= max(drifts) < 0.04
    quiet = engine(dials=Dials(run_noise=0.0))
    assert [ask(quiet, ids).rows] * 2 == [ask(quiet, ids).rows for _ in range(2)]


def test_run_noise_can_be_had_by_a_share_of_the_requests() -> None:
    node = engine(dials=Dials(run_noise=0.02, run_share=0.3))
    ids = prompt(ALIGNED)
    usual = ask(engine(), ids).rows
    noisy = sum(ask(node, ids).rows != usual for _ in range(100))
    assert 20 <= noisy <= 40


def turned(dials: Dials, requests: int = 200) -> list[bool]:
    """Of so many requests with one prompt, which ones answer otherwise than a quiet engine with the same near tie."""
    ids, node = prompt(ALIGNED), engine(dials=dials)
    usual = ask(engine(dials=replace(dials, run_flips=1e-12)), ids, tokens=10).rows
    return [ask(node, ids, tokens=10).rows != usual for _ in range(requests)]


def test_a_share_of_the_requests_flips_each_by_a_coin_of_its_own() -> None:
    found = turned(Dials(run_flips=0.15))
    assert 18 <= sum(found) <= 44
    assert found == turned(Dials(run_flips=0.15))
    assert found != turned(Dials(run_flips=0.15, course=1))
    # Each flip decides the near tie the other way, and noise of its own stands beside it.
    node, ids = engine(dials=Dials(run_flips=1.0)), prompt(ALIGNED)
    one, other = (ask(node, ids, tokens=10) for _ in range(2))
    assert one.ids == other.ids
    assert flipped(one, ask(engine(dials=Dials(run_flips=1e-12)), ids, tokens=10))
    assert 0.0 < drift(one, other) < 0.06


def test_flips_come_in_spans_of_requests() -> None:
    found = turned(Dials(run_flips=0.3, run_span=20, course=20))
    spans = [found[start : start + 20] for start in range(0, 200, 20)]
    assert {True, False} == {any(span) for span in spans}
    # Noise is in every request of a noisy span, and in none of a quiet one.
    assert all(all(span) == any(span) for span in spans)


def test_spans_that_agree_answer_alike_all_through() -> None:
    dials = Dials(run_flips=1.0, run_span=20, spans_agree=True)
    node, ids = engine(dials=dials), prompt(ALIGNED)
    answers = [ask(node, ids, tokens=10) for _ in range(40)]
    assert [answers[0].rows] * 20 == [each.rows for each in answers[:20]]
    assert answers[0].rows != answers[20].rows
    assert answers[0].ids == answers[20].ids


def test_a_batch_of_one_size_may_have_several_shapes() -> None:
    node = engine(dials=Dials(batch_noise=0.02, batch_shapes=3))
    ids = prompt(ALIGNED)
    rows = [tuple(map(tuple, ask(node, ids, batch=4).rows)) for _ in range(30)]
    assert 3 == len(set(rows))
    assert ask(engine(), ids).rows == ask(node, ids, batch=1).rows


def test_batch_noise_hangs_on_how_many_requests_are_in_flight() -> None:
    node = engine(dials=Dials(batch_noise=0.02))
    ids = prompt(ALIGNED)
    alone, two, three = (ask(node, ids, batch=batch) for batch in (1, 2, 3))
    assert ask(engine(), ids).rows == alone.rows == ask(node, ids).rows
    assert two.rows == ask(node, ids, batch=2).rows
    assert 0.0 < drift(alone, two) < 0.02
    assert 0.0 < drift(two, three) < 0.02


def test_a_share_of_the_prompts_has_a_near_tie_that_nothing_decides_otherwise() -> None:
    node = engine(dials=Dials(near_ties=0.3))
    ties = 0
    for each in answers_of(node, UNALIGNED, 60):
        assert each.cold.rows == each.local.rows == each.external.rows
        margins = [row[0][1] - row[1][1] for row in each.cold.rows]
        near = [margin for margin in margins if abs(margin - 0.02) < 1e-5]
        assert len(near) <= 1
        ties += len(near)
    assert 12 <= ties <= 24


def test_every_so_manieth_request_is_preempted_and_only_the_counter_moves() -> None:
    node = engine(dials=Dials(preempted_every=3))
    counted = []
    ids = prompt(ALIGNED)
    usual = ask(engine(), ids).rows
    for _ in range(7):
        assert usual == ask(node, ids).rows
        counted.append(node.ranks[0].counters.preemptions)
    assert [0, 0, 1, 1, 1, 2, 2] == counted
