"""Whether a small difference can be chance: the rule, and the test over a run's loads."""

import pytest

from kvgate.domain.chance import Beside, Loads, odd_loads_p_value, shown
from kvgate.domain.divergence import compare
from kvgate.domain.noise import COLD_LOCAL, COLD_REPEAT, LOCAL_REPEAT, TWO_LEG_REPEAT, Control
from kvgate.domain.plan import PairKind
from tests.domain.making import answer

EXACT, INEXACT = compare(answer(), answer()), compare(answer(), answer(shift=0.02))
ONE, BOTH, THREE = (True, False), (True, True), (True, True, True)


def repeats(exact: int = 2, inexact: int = 0, kind: str = LOCAL_REPEAT) -> list[Control]:
    seen = [EXACT] * exact + [INEXACT] * inexact
    return [Control(kind, f"other{number}", comparison) for number, comparison in enumerate(seen)]


@pytest.mark.parametrize(("controls", "loads", "said"), [
    (repeats(2), Loads(BOTH, 2, True), True),
    (repeats(2), Loads(BOTH, 1, True), True),
    (repeats(2), Loads(BOTH, 2, None), True),
    (repeats(2), Loads(BOTH, 2, False), False),
    (repeats(1), Loads(BOTH, 2, True), False),
    (repeats(9), Loads(ONE, 1, True), False),
    (repeats(9), Loads((True, False, True), 2, True), False),
    (repeats(9), Loads((False, True, True, True), 3, True), True),
    (repeats(1), Loads(THREE, 1, True), False),
    (repeats(2), Loads(THREE, 1, True), True),
    (repeats(9, 1), Loads(BOTH, 2, True), False),
    (repeats(9, 1), Loads(THREE, 3, True), True),
    (repeats(9, 1), Loads(THREE, 2, True), False),
    (repeats(9, 1), Loads(THREE, 3, None), False),
    ([*repeats(9), Control(COLD_REPEAT, "mine", INEXACT)], Loads(THREE, 3, True), False),
    ([*repeats(9), Control(COLD_LOCAL, "other", INEXACT)], Loads(BOTH, 2, True), True),
    (repeats(9, kind=TWO_LEG_REPEAT), Loads(BOTH, 2, True), False),
])  # fmt: skip
def test_chance_has_to_be_excluded(controls: list[Control], loads: Loads, said: bool) -> None:
    assert said is shown("mine", PairKind.EXTERNAL_VS_LOCAL, controls, loads)


def test_a_gateways_own_noise_excuses_no_gateway() -> None:
    controls = [*repeats(1, kind=TWO_LEG_REPEAT), *repeats(0, 5)]
    assert shown("mine", PairKind.GATEWAY_VS_TWO_LEG, controls, Loads(BOTH, 2, None))
    assert not shown("mine", PairKind.EXTERNAL_VS_LOCAL, controls, Loads(BOTH, 2, None))


def test_odd_loads_beside_exact_repeats_are_as_probable_as_the_worst_rate_makes_them() -> None:
    """At the rate of one half, q (1 - 2 q + 2 q^2) of one load and one repeat is a quarter."""
    assert pytest.approx(0.25) == odd_loads_p_value([Beside((True,), False)])
    assert pytest.approx(0.5**12) == odd_loads_p_value([Beside((True,), False)] * 6)
    assert 1e-3 > odd_loads_p_value([Beside((True, True), False)] * 6)
    assert 0.1 < odd_loads_p_value([Beside((True, False), False)])


ODD, EVEN, NOISY = Beside((True, True), False), Beside((False, False), True), Beside((True, True), True)


@pytest.mark.parametrize(("groups", "p_value"), [
    ([], 1.0),
    ([Beside((False, False), False)], 1.0),
    ([Beside((), True)], 1.0),
    ([ODD] * 3 + [EVEN], 5 / 16),
    ([ODD] * 3 + [NOISY], 1 / 8),
    ([NOISY] * 4, 1.0),
    ([Beside((False, True), False)] * 4 + [NOISY], 1.0),
])  # fmt: skip
def test_odd_loads_beside_odd_repeats_are_counted_by_group(groups: list[Beside], p_value: float) -> None:
    """Only the first load is as good as a repeat: the second was held against the same hit once more."""
    assert pytest.approx(p_value) == odd_loads_p_value(groups)


def test_where_cold_repeats_are_odd_loads_are_counted_by_group_too() -> None:
    groups = [Beside((True, True), False)] * 3 + [Beside((False, False), False)] * 3
    assert pytest.approx(1 / 8) == odd_loads_p_value(groups, noisy=True)
    assert 0.02 > odd_loads_p_value(groups)
