"""Figures checked by hand on written records: times, SLO, tokens by path, and what stood in the way."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvgate.domain.figures import PartFigures, figures_of
from kvgate.domain.hindrances import Hindrance, Obstacle, hindrances_of, notes_of
from kvgate.domain.measured import EngineCounted, LegBroken, MeasureEntry, MeasurePlan, RequestSent, put_in_order
from kvgate.domain.observation import Observation, Timing
from kvgate.domain.savings import Saving, savings_of, sign_test
from kvgate.domain.trace import Kind, Slo
from tests.domain.measuring import LOST, REFUSED, Leg, answered, plan, record

SLO = Slo(first_token_s=0.5, between_tokens_s=0.05, total_s=1.0)


def figured(made: MeasurePlan, *legs: Leg) -> PartFigures:
    """The figures of a plan's one part on its first deployment."""
    return figures_of(made, put_in_order(record(made, *legs)))[0]


def hindered(made: MeasurePlan, entries: Sequence[MeasureEntry]) -> list[Hindrance]:
    kept = put_in_order(entries)
    return list(hindrances_of(made, kept, figures_of(made, kept)))


def noted(made: MeasurePlan, *legs: Leg) -> str:
    return "\n".join(notes_of(made, figures_of(made, put_in_order(record(made, *legs)))))


# -- SLO and goodput ---------------------------------------------------------------------------------------------
def test_slo_and_goodput_by_hand() -> None:
    """Ten requests in 10 s: five good, one late in each way, one refused, one lost."""
    seen = [
        *(answered(0.2) for _ in range(5)),
        answered(0.6),  # first token late
        answered(0.2, gap=0.06),  # 0.06 s between tokens, though done in 0.44 s
        answered(0.2, tail=0.9),  # 1.14 s in all
        REFUSED,
        LOST,
    ]
    found = figured(plan(10, "a", slo=SLO), Leg(list(seen), (1000, 0, 0)))
    assert (10, 8, 1, 1, 0) == (found.planned, found.answered, found.refused, found.lost, found.unsent)
    assert (5, 0.5, 0.5) == (found.within_slo, found.attainment, found.goodput_per_s)
    assert (10.0, 0.8) == (found.seconds, found.answered_per_s)


def test_percentiles_by_hand() -> None:
    found = figured(plan(101, "a"), Leg([answered(0.1 + number / 1000) for number in range(101)]))
    assert found.first_token is not None
    assert (0.15, 0.195, 0.199) == pytest.approx((found.first_token.p50, found.first_token.p95, found.first_token.p99))
    assert found.gaps is not None
    assert found.between_tokens is not None
    assert (404, 101) == (found.gaps.count, found.between_tokens.count)
    assert 0.01 == pytest.approx(found.between_tokens.p99)


def test_a_gap_shows_what_the_mean_hides() -> None:
    stutter = Timing(0.1, 0.5, (0.1, 0.11, 0.12, 0.5))
    found = figured(plan(1, "a"), Leg([replace(answered(0.1, pieces=4), timing=stutter)]))
    assert found.gaps is not None
    assert found.between_tokens is not None
    assert (0.38, 0.4 / 3) == pytest.approx((found.gaps.p99, found.between_tokens.p50), rel=0.03)


def test_without_an_slo_there_is_no_goodput() -> None:
    found = figured(plan(1, "a"), Leg([answered(0.1)]))
    assert (None, None, None) == (found.within_slo, found.attainment, found.goodput_per_s)


def test_an_slo_on_what_is_not_told_is_unknown_and_not_missed() -> None:
    whole = replace(answered(0.1), timing=Timing(None, 0.3))
    found = figured(plan(1, "a", slo=Slo(first_token_s=1.0)), Leg([whole]))
    assert (None, None) == (found.attainment, found.first_token)
    assert 1.0 == figured(plan(1, "a", slo=Slo(total_s=1.0)), Leg([whole])).attainment


def test_an_answer_of_one_token_has_nothing_between_tokens_to_be_late() -> None:
    found = figured(plan(1, "a", slo=SLO), Leg([answered(0.1, pieces=1)]))
    assert 1.0 == found.attainment


def test_the_warm_up_is_in_no_figure() -> None:
    made = plan(1, "a")
    entries = record(made, Leg([answered(0.1)]))
    cold = RequestSent(0.0, 0, "", "warm-up.e.0", "e", 100, "0", None)
    kept = put_in_order([entries[0], cold, *entries[1:]])
    assert (1, 1) == (figures_of(made, kept)[0].answered, len(kept.parts))


# -- tokens by path ----------------------------------------------------------------------------------------------
def test_tokens_by_path_are_what_the_counters_moved_by() -> None:
    tokens = figured(plan(3, "a"), Leg([answered(0.1)] * 3, (120, 80, 100))).tokens
    assert (300, 300, 120, 80, 100) == (tokens.sent, tokens.counted, tokens.computed, tokens.local, tokens.external)
    assert None is tokens.transferred


def test_what_cannot_be_read_is_unknown_and_not_zero() -> None:
    made = plan(1, "a")
    tokens = figured(made, Leg([answered(0.1)])).tokens
    assert (None, None, None) == (tokens.computed, tokens.local, tokens.external)
    assert "HTTP 404" in tokens.why_unknown
    assert "tokens by path are unknown" in noted(made, Leg([answered(0.1)]))


def test_one_repeat_that_is_unknown_leaves_the_whole_unknown() -> None:
    tokens = figured(plan(1, "a", repeats=2), Leg([answered(0.1)], (100, 0, 0)), Leg([answered(0.1)])).tokens
    assert None is tokens.computed
    both = figured(plan(1, "a", repeats=2), *[Leg([answered(0.1)], (100, 0, 0))] * 2).tokens
    assert 200 == both.computed


def test_counters_of_a_process_that_was_started_anew_are_unknown() -> None:
    made = plan(1, "a")
    entries = record(made, Leg([answered(0.1)], (100, 0, 0)))
    for number, each in enumerate(entries):
        if isinstance(each, EngineCounted) and each.counters is not None:
            entries[number] = replace(each, counters=replace(each.counters, started=1e9 + each.at))
    tokens = figures_of(made, put_in_order(entries))[0].tokens
    assert (None, "the server process was started anew") == (tokens.computed, tokens.why_unknown)


# -- what stood in the way ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("counted", "foreign"), [((300, 0, 0), False), ((290, 0, 0), False), ((301, 0, 0), True)])
def test_counters_that_move_by_more_than_was_sent_show_others(counted: tuple[int, int, int], foreign: bool) -> None:
    made = plan(3, "a")
    found = hindered(made, record(made, Leg([answered(0.1)] * 3, counted)))
    assert [Obstacle.FOREIGN_TRAFFIC] * foreign == [each.obstacle for each in found]


def test_what_was_lost_may_have_been_counted_or_not() -> None:
    made = plan(3, "a")
    for counted in (200, 300):
        entries = record(made, Leg([answered(0.1), answered(0.1), LOST], (counted, 0, 0)))
        assert [] == hindered(made, entries)


def test_what_was_sent_twice_may_be_counted_twice() -> None:
    made = plan(1, "a")
    again = replace(answered(0.1), marks=("retried",))
    assert [] == hindered(made, record(made, Leg([again], (200, 0, 0))))


def test_fewer_than_half_answered_is_no_measurement() -> None:
    made = plan(4, "a")
    (told,) = hindered(made, record(made, Leg([answered(0.1), REFUSED, REFUSED, LOST], (100, 0, 0))))
    assert (Obstacle.MOSTLY_UNANSWERED, True) == (told.obstacle, "HTTP 400: no" in told.detail)
    assert [] == hindered(made, record(made, Leg([answered(0.1), answered(0.1), REFUSED, LOST], (200, 0, 0))))


def test_answers_that_were_not_streamed_tell_no_first_token() -> None:
    made = plan(1, "a")
    whole = replace(answered(0.1), timing=Timing(None, 0.3))
    (told,) = hindered(made, record(made, Leg([whole], (100, 0, 0))))
    assert (Obstacle.NO_FIRST_TOKEN, True) == (told.obstacle, "requests.stream" in told.detail)


def test_a_record_that_was_cut_off_says_so_and_counts_what_is_missing() -> None:
    made = plan(3, "a")
    entries = record(made, Leg([answered(0.1), answered(0.1), None], (200, 0, 0)))[:-3]
    assert [Obstacle.CUT_OFF] == [each.obstacle for each in hindered(made, entries)]
    found = figures_of(made, put_in_order(entries))[0]
    assert (2, 1, 0) == (found.answered, found.lost, found.unsent)


def test_a_deployment_that_went_away_is_named() -> None:
    made = plan(2, "a")
    entries = record(made, Leg([answered(0.1)], (100, 0, 0), unsent=1))
    found = hindered(made, [*entries[:-1], LegBroken(50.0, 0, "e stopped answering"), entries[-1]])
    assert [(Obstacle.WENT_AWAY, "a: e stopped answering")] == [(each.obstacle, each.detail) for each in found]


def test_notes_say_what_the_figures_do_not() -> None:
    made = plan(2, "a", "b")
    good = Leg([answered(0.1)] * 2, (200, 0, 0))
    told = noted(made, good, Leg([answered(0.1)] * 2, (50, 150, 0), late=0.3))
    assert "set repeats: 2" in told
    assert "p on b: kvgate itself sent a request up to 0.30 s late" in told
    assert "p on b: 150 prompt tokens were reused where next to nothing is alike" in told
    assert "salts" not in noted(plan(2, "a", kind=Kind.SESSIONS), Leg([answered(0.1)] * 2, (50, 150, 0)))
    assert "name every engine behind the gateway" in noted(plan(2, "a"), Leg([answered(0.1)] * 2, (100, 0, 0)))


# -- one deployment against the first ----------------------------------------------------------------------------
def saved(base: list[Observation | None], other: list[Observation | None]) -> Saving:
    made = plan(len(base), "combined", "pd-pool")
    (found,) = savings_of(made, put_in_order(record(made, Leg(base), Leg(other))))
    return found


def firsts(*seconds: float) -> list[Observation | None]:
    return [answered(each) for each in seconds]


def test_the_sign_test_is_exact() -> None:
    assert 2 / 2**8 == sign_test(8, 0) == sign_test(0, 8)
    assert 2 * (1 + 10 + 45) / 2**10 == sign_test(8, 2)
    assert (1.0, 1.0) == (sign_test(5, 5), sign_test(0, 0))


def test_what_is_sooner_is_said_with_its_factor() -> None:
    base = [0.4 + number / 100 for number in range(20)]
    other = [each / 2 for each in base[:18]] + [each * 1.1 for each in base[18:]]
    found = saved(firsts(*base), firsts(*other))
    assert (20, 18, 2, True) == (found.pairs, found.sooner, found.later, found.shown)
    assert (0.5, 0.5, 0.5) == pytest.approx((found.ratio, found.low, found.high))
    assert (
        "pd-pool answers 2.0 times as fast as combined (2.0 to 2.0), sooner in 18 of 20 requests, measured once"
        == found.sentence
    )


def test_what_is_later_is_said_too() -> None:
    base = [0.4 + number / 100 for number in range(20)]
    found = saved(firsts(*base), firsts(*(each * 1.5 for each in base)))
    assert (
        "pd-pool takes 1.5 times as long as combined (1.5 to 1.5), later in 20 of 20 requests, measured once"
        == found.sentence
    )


@pytest.mark.parametrize(
    "ratios",
    [
        [0.5, 1.5] * 10,  # as often sooner as later
        [0.98] * 20,  # always sooner, by next to nothing
        [0.5] * 7,  # too few
    ],
    ids=["even", "small", "few"],
)
def test_what_may_be_chance_is_no_difference(ratios: list[float]) -> None:
    found = saved(firsts(*[0.4] * len(ratios)), firsts(*(0.4 * each for each in ratios)))
    assert (False, True) == (found.shown, found.sentence.startswith("no difference shown between pd-pool and combined"))
    assert ("too few" in found.sentence) == (len(ratios) == 7)


def by_repeat(*ratios: float) -> Saving:
    """Twenty requests that take ``ratios`` of the baseline's time, repeat by repeat."""
    made = plan(20, "a", "b", repeats=len(ratios))
    legs: list[Leg] = []
    for number, ratio in enumerate(ratios):
        both = [Leg(firsts(*[0.4] * 20)), Leg(firsts(*[0.4 * ratio] * 20))]
        legs += reversed(both) if number % 2 else both
    (found,) = savings_of(made, put_in_order(record(made, *legs)))
    return found


@pytest.mark.parametrize(("ratios", "shown"), [
    ((0.5,), True),
    ((0.50, 0.52), True),
    ((0.50, 0.90), False),  # always sooner, but it is the legs that differ
    ((0.50, 1.20), False),
    ((0.50, 0.60, 0.55), True),
    ((1.50, 1.45, 1.55), True),
])  # fmt: skip
def test_repeats_must_agree(ratios: tuple[float, ...], shown: bool) -> None:
    """Forty requests of two legs are no forty witnesses: what befalls a leg befalls all of its requests."""
    found = by_repeat(*ratios)
    assert ratios == pytest.approx(found.by_repeat)
    assert shown == found.shown
    assert (len(ratios) == 1) == found.sentence.endswith(", measured once")


def test_repeats_that_disagree_are_told() -> None:
    told = "undecided between b and a: b sooner in 40 of 40 requests, but the repeats differ (ratios 0.50, 0.90)"
    assert f"{told}; set more repeats" == by_repeat(0.5, 0.9).sentence


def test_only_what_both_answered_is_paired() -> None:
    found = saved([*firsts(0.4, 0.4), REFUSED, None], [answered(0.2), LOST, answered(0.2), answered(0.2)])
    assert (1, 3) == (found.pairs, found.unpaired)


def test_nothing_in_common_cannot_be_compared() -> None:
    found = saved([REFUSED], firsts(0.2))
    assert (None, "cannot be compared" in found.sentence) == (found.ratio, True)


def test_sessions_are_drawn_whole() -> None:
    """One session of twelve quick turns weighs as one: it cannot make an interval narrow by its number of turns."""
    made = plan(24, "a", "b")
    sessions = tuple(replace(each, session=number // 12) for number, each in enumerate(made.planned))
    base, other = Leg(firsts(*[0.4] * 24)), Leg(firsts(*[0.2] * 12, *[0.6] * 12))
    entries = put_in_order(record(made, base, other))
    (apart,) = savings_of(made, entries)
    (together,) = savings_of(replace(made, planned=sessions), entries)
    assert (0.5, 1.5) == pytest.approx((together.low, together.high))
    assert apart.pairs == together.pairs == 24
