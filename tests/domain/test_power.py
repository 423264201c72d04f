"""Power figures against hand-computed values."""

import pytest

from kvgate.domain.power import excess_p_value, excluded_fault_rate, groups_for
from kvgate.domain.reasons import REASONS, Reason
from kvgate.domain.verdict import Verdict, merge


@pytest.mark.parametrize(("groups", "rate"), [(0, 1.0), (3, 0.63), (29, 0.10), (299, 0.01)])
def test_n_clean_groups_exclude_the_rates_of_the_design(groups: int, rate: float) -> None:
    assert pytest.approx(rate, abs=0.005) == excluded_fault_rate(groups)


def test_excess_is_fishers_exact_test() -> None:
    # 3 of 3 against 0 of 3: one of C(6,3) = 20 tables is as extreme.
    assert pytest.approx(1 / 20) == excess_p_value(3, 3, 0, 3)
    assert pytest.approx(1.0) == excess_p_value(0, 5, 5, 5)
    assert 1.0 == excess_p_value(3, 3, 0, 0)


def test_the_worst_verdict_wins_and_nothing_is_inconclusive() -> None:
    assert Verdict.INCONCLUSIVE is merge([])
    assert Verdict.INCONCLUSIVE is merge([Verdict.NOT_APPLICABLE])
    assert Verdict.PASS is merge([Verdict.PASS, Verdict.NOT_APPLICABLE])
    assert Verdict.INCONCLUSIVE is merge([Verdict.PASS, Verdict.INCONCLUSIVE])
    assert Verdict.FAIL is merge([Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL])


def test_every_reason_has_one_sentence_of_meaning_and_one_of_advice() -> None:
    assert set(Reason) == set(REASONS)
    assert all(text.meaning.endswith(".") and text.advice.endswith(".") for text in REASONS.values())


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.64, 0.95, 0.99])
def test_as_many_groups_as_are_asked_for_exclude_the_rate_and_one_fewer_does_not(rate: float) -> None:
    needed = groups_for(rate)
    assert excluded_fault_rate(needed) <= rate < excluded_fault_rate(needed - 1)
