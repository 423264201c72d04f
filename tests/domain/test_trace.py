"""A trace: prompts of exact lengths that share what they are to share, and arrivals drawn once from the seed."""

from dataclasses import replace

import numpy as np
import pytest

from kvgate.config.families import load_family
from kvgate.domain.prompt import Lexicon, TooShortError
from kvgate.domain.trace import (
    FAMILIES,
    Arrival,
    Kind,
    Slo,
    Spacing,
    Trace,
    TraceLeg,
    TracePart,
    TracePrompts,
    arrivals_of,
    legs_of,
    nonce_of_run,
    planned,
)

RANDOM = TracePart("r", Kind.RANDOM, 20, 1, 200, 0, 0, Arrival(rate=2.0))
SHARED = TracePart("s", Kind.SHARED_PREFIX, 5, 1, 300, 250, 0, Arrival(rate=2.0, spacing=Spacing.EVEN))
SESSIONS = TracePart("c", Kind.SESSIONS, 3, 4, 200, 0, 50, Arrival(concurrency=2))
AGENT = TracePart("a", Kind.AGENT, 2, 3, 400, 300, 30, Arrival(rate=1.0))
TRACE = Trace(7, 16, 1, Slo(), (RANDOM, SHARED, SESSIONS, AGENT))


def prompts_of(trace: Trace = TRACE) -> TracePrompts:
    """Prompts of a tokenizer whose tokens are characters, with a token before every prompt."""
    keys = {(name, "en") for pair in FAMILIES.values() for name in pair}
    families = {key: load_family(*key) for key in keys}
    lexicons = {
        key: Lexicon({piece: tuple(map(ord, piece)) for piece in family.pieces()}, (1,))
        for key, family in families.items()
    }
    return TracePrompts(trace, families, lexicons)


def alike(
    one: "np.ndarray[tuple[int], np.dtype[np.int32]]", other: "np.ndarray[tuple[int], np.dtype[np.int32]]"
) -> int:
    """How many tokens two prompts have in common from their beginning."""
    differ = np.flatnonzero(one[: len(other)] != other[: len(one)])
    return int(differ[0]) if len(differ) else min(len(one), len(other))


@pytest.mark.parametrize("part", TRACE.parts, ids=lambda part: part.name)
def test_a_prompt_has_the_length_of_its_last_turn_whatever_the_nonce(part: TracePart) -> None:
    for nonce in ("000000000000", "999999999999", ""):
        assert part.longest == len(prompts_of().session(part, 0, nonce))


def test_random_prompts_share_what_stands_before_all_of_them_and_next_to_nothing_more() -> None:
    made = [prompts_of().session(RANDOM, number, "123456789012") for number in range(RANDOM.count)]
    head = len(prompts_of().head(RANDOM, ""))
    for number, one in enumerate(made):
        for other in made[:number]:
            assert head <= alike(one, other) < head + 6


def test_shared_prompts_are_alike_up_to_their_length_and_no_further() -> None:
    for part in (SHARED, AGENT):
        one, other = (prompts_of().session(part, number, "123456789012") for number in range(2))
        assert part.shared_tokens <= alike(one, other) < part.shared_tokens + 6


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    assert planned(prompts_of()) == planned(prompts_of())
    other = planned(prompts_of(replace(TRACE, seed=8)))
    assert not {each.sha256 for each in planned(prompts_of())} & {each.sha256 for each in other}


def test_the_plan_has_every_turn_with_its_length_and_no_two_prompts_alike() -> None:
    requests = planned(prompts_of())
    assert (
        20 + 5 + 12 + 6
        == len(requests)
        == len({each.id for each in requests})
        == len({each.sha256 for each in requests})
    )
    assert [200, 250, 300, 350] == [each.length for each in requests if (each.part, each.session) == ("c", 1)]
    assert {None} == {each.arrives_s for each in requests if each.turn or each.part == "c"}


def test_the_digest_is_of_what_does_not_change_from_run_to_run() -> None:
    """A nonce of another run changes the prompt, and nothing behind what stands before every prompt."""
    made = prompts_of()
    one, other = (made.session(RANDOM, 0, nonce_of_run(run)) for run in ("run-1", "run-2"))
    head = len(made.head(RANDOM, ""))
    assert one[:head].tolist() != other[:head].tolist()
    assert one[head:].tolist() == other[head:].tolist()


def test_arrivals_are_drawn_once_and_as_dense_as_asked() -> None:
    many = replace(RANDOM, count=2000)
    times = [each for each in arrivals_of(7, many) if each is not None]
    assert times == list(arrivals_of(7, many))
    assert 0.0 == times[0]
    gaps = np.diff(times)
    assert gaps.min() > 0.0
    assert 0.5 == pytest.approx(gaps.mean(), rel=0.1)
    # Of gaps by chance the spread is the mean.
    assert 0.5 == pytest.approx(gaps.std(), rel=0.15)
    assert (0.0, 0.5, 1.0, 1.5, 2.0) == arrivals_of(7, SHARED)


def test_every_other_repeat_goes_backwards() -> None:
    assert (TraceLeg(0, 0, 0), TraceLeg(1, 0, 1), TraceLeg(2, 1, 1), TraceLeg(3, 1, 0)) == legs_of(2, 2)


def test_a_prompt_without_room_is_refused() -> None:
    with pytest.raises(TooShortError, match="13 tokens stand before every prompt"):
        prompts_of().session(replace(SHARED, shared_tokens=13), 0, "")
