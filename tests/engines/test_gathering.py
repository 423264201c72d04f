"""Lists that hold what is new and lists that hold all so far: told apart where they can be, marked where not."""

from collections.abc import Sequence

import pytest

from kvgate.domain.divergence import compare
from kvgate.domain.observation import Observation, Outcome
from kvgate.engines.gathering import Gathered
from tests.engines.loopback import SENT, chunk, hear, scores, usage

Rows = Sequence[Sequence[tuple[int, float]]]


def stream(
    ids: Sequence[Sequence[int] | None],
    rows: Sequence[Rows] | None = None,
    count: int | None = None,
    finish: str = "stop",
) -> Observation:
    """What is read of a stream whose chunks hold these lists of IDs and of logprob rows."""
    events: list[object] = []
    for number, part in enumerate(ids):
        more = {"logprobs": scores(*rows[number])} if rows is not None else {}
        last = number == len(ids) - 1
        events.append(chunk(None if part is None else list(part), "x", finish if last else None, **more))
    if count is not None:
        events.append(usage(count))
    return hear(*events)


def row(token: int, value: float = -0.5) -> list[tuple[int, float]]:
    return [(token, value)]


@pytest.mark.parametrize(
    ("lists", "count", "expected"),
    [
        ([[1], [2], [3]], 3, (1, 2, 3)),
        ([[1], [1, 2], [1, 2, 3]], 3, (1, 2, 3)),
        ([[1], [1, 2], [1, 2], [], [1, 2, 3]], 3, (1, 2, 3)),
        ([[7], [7, 7]], 2, (7, 7)),
        ([[7], [7, 7]], 3, (7, 7, 7)),
        ([[7], [7], [7]], 1, (7,)),
        ([[7], [7], [7]], 3, (7, 7, 7)),
        ([[7], [7, 7], [8]], 4, (7, 7, 7, 8)),
        ([[], [7], [], [7, 7], []], 3, (7, 7, 7)),
        ([[1, 2]], 2, (1, 2)),
        ([[5, 5], [5]], 3, (5, 5, 5)),
    ],
    ids=str,
)
def test_usage_settles_what_the_lists_leave_open(lists: list[list[int]], count: int, expected: tuple[int, ...]) -> None:
    seen = stream(lists, count=count)
    assert (Outcome.OK, expected, None, ()) == (seen.outcome, seen.token_ids, seen.id_problem(), seen.marks)


def test_without_usage_the_length_asked_for_settles_it() -> None:
    """16 tokens are asked for: an answer that ended at its length has as many."""
    assert (7,) * 16 == stream([[7]] * 16, finish="length").token_ids
    grown = stream([[7] * number for number in range(1, 17)], finish="length")
    assert ((7,) * 16, None) == (grown.token_ids, grown.id_problem())


def test_without_usage_logprobs_that_are_not_in_doubt_settle_it() -> None:
    added = stream([[7], [7, 7]], rows=[[row(7, -0.5)], [row(7, -0.25), row(7, -1.0)]])
    assert ((7, 7, 7), (-0.5, -0.25, -1.0), None) == (added.token_ids, added.logprobs, added.id_problem())
    grown = stream([[7], [7, 7]], rows=[[row(7, -0.5)], [row(7, -0.25)]])
    assert ((7, 7), (-0.5, -0.25), None) == (grown.token_ids, grown.logprobs, grown.id_problem())


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("lists", [[[7], [7, 7]], [[7], [7]], [[1], [1, 2], [1, 2, 3]]], ids=str)
def test_what_nothing_settles_is_a_problem_of_the_reply(lists: list[list[int]], finish: str) -> None:
    rows = [[row(token) for token in part] for part in lists]
    for seen in (stream(lists, finish=finish), stream(lists, rows=rows, finish=finish), stream(lists, count=9)):
        assert Outcome.OK is seen.outcome
        assert "no count settles it" in str(seen.id_problem())


@pytest.mark.parametrize("ids_grow", [False, True])
@pytest.mark.parametrize("logprobs_grow", [False, True])
@pytest.mark.parametrize("tokens", [(1, 2, 3), (7, 7, 7), (7, 7, 8)], ids=str)
def test_ids_and_logprobs_may_each_be_sent_in_either_way(
    tokens: tuple[int, ...], ids_grow: bool, logprobs_grow: bool
) -> None:
    """Also IDs as what is new and logprobs as all so far (SG#21583)."""
    every = [row(token, -0.5 - place) for place, token in enumerate(tokens)]
    ids = [tokens[: at + 1] if ids_grow else tokens[at : at + 1] for at in range(3)]
    rows = [every[: at + 1] if logprobs_grow else every[at : at + 1] for at in range(3)]
    seen = stream(ids, rows=rows, count=3)
    assert (tokens, (-0.5, -1.5, -2.5)) == (seen.token_ids, seen.logprobs)
    assert (None, None) == (seen.id_problem(), seen.logprob_problem())


def test_ids_from_logprob_keys_are_told_apart_like_others() -> None:
    every = [row(7, -0.5), row(7, -0.5), row(8, -1.0)]
    added = stream([None] * 3, rows=[[each] for each in every], count=3)
    grown = stream([None] * 3, rows=[every[:number] for number in (1, 2, 3)], count=3)
    assert ((7, 7, 8), (7, 7, 8)) == (added.token_ids, grown.token_ids)
    open_ended = stream([None] * 2, rows=[every[:1], every[:2]])
    assert "no count settles it" in str(open_ended.id_problem())


def test_rewritten_lists_are_not_taken_for_growing_ones() -> None:
    """Text held back for a stop string: the lists do not begin with one another, so their sum contradicts usage."""
    seen = stream([[1], [1, 2, 3], [1, 2, 4, 5]], count=4)
    assert "8 token IDs, its usage says 4" in str(seen.id_problem())


def test_answers_in_doubt_are_never_held_to_be_the_same() -> None:
    """The mark outlives the record: a judge that reads it later sees the doubt, too."""
    one, other = (stream([[7], [7, 7]], rows=[[row(7)], [row(7), row(7)]]) for _ in range(2))
    assert ("ids-ambiguous",) == one.marks
    assert compare(one, other).ids_equal
    assert one.id_problem()
    assert other.id_problem()


def test_an_endless_growing_stream_is_cut_off() -> None:
    """Growing lists count by their length, not by their sum; repeated ones bring nothing new."""
    grown = stream([list(range(number)) for number in range(1, 17)], count=16)
    assert (Outcome.OK, 16) == (grown.outcome, len(grown.token_ids or ()))
    endless = stream([list(range(number)) for number in range(1, 120)], count=16)
    assert (Outcome.REFUSED, True) == (endless.outcome, "goes on after" in endless.detail)
    repeated = stream([[7]] * 120, count=16)
    assert (Outcome.REFUSED, True) == (repeated.outcome, "goes on after" in repeated.detail)


def test_a_gathered_list_tells_what_is_new() -> None:
    gathered: Gathered[int] = Gathered()
    assert [True, False, True, False, True] == [gathered.add(part) for part in ([1], [1], [1, 2], [], [3])]
    assert ([1, 1, 1, 2, 3], False) == (gathered.items, gathered.ambiguous)


def test_half_understood_counts_are_refused() -> None:
    for count in (True, -1, 1.5, 1e300, [1], 1 << 40):
        seen = hear(chunk([1], "a", "stop"), {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": count}})
        assert Outcome.REFUSED is seen.outcome
    for fine in (1, 1.0, "1"):
        seen = hear(chunk([1], "a", "stop"), {"choices": [], "usage": {"completion_tokens": fine}})
        assert None is seen.id_problem()


def test_ids_that_are_no_whole_numbers_are_refused_and_not_rounded() -> None:
    for ids in ([1.5], [1.0], ["1"], [True], [None], "12", {"0": 1}, [-1], [1 << 31], [[1]]):
        assert Outcome.REFUSED is hear(chunk(ids, "a", "stop"), usage(1)).outcome


def test_errors_that_are_empty_do_not_spoil_a_good_chunk() -> None:
    empty: list[object] = ["", False, None, {}, []]
    for nothing in empty:
        seen = hear({**chunk([1], "a", "stop", prompt_token_ids=list(SENT)), "error": nothing}, usage(1))
        assert (Outcome.OK, (1,)) == (seen.outcome, seen.token_ids)
