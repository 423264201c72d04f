"""Going on while a run is undecided: it settles what few groups cannot, costs nothing where all is decided, and keeps
to the budget."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvgate.domain.history import GroupStarted, ProbeSent
from kvgate.domain.plan import Purpose
from kvgate.domain.power import rounds_for
from kvgate.domain.reasons import Reason
from kvgate.domain.verdict import Verdict
from kvgate.sim.deployment import Deployment
from kvgate.sim.dials import Dials
from tests.gate.test_arms import USUAL, gated
from tests.gate.test_pressure import entries

NOISY = Dials(run_noise=0.003)


def going_on(more: int, **more_keys: Any) -> Any:
    """A change of the configuration: so many more groups while the run is undecided."""

    def change(_deployment: Deployment, content: dict[str, Any], _urls: dict[str, str]) -> None:
        content["gate"] |= {"groups_per_tier": 3, "more_groups": more}
        for section, keys in more_keys.items():
            content[section] = content.get(section, {}) | keys

    return change


def sent(folder: Path) -> list[str]:
    """The groups that were sent, by name."""
    started = (entry for entry in entries(folder) if isinstance(entry, GroupStarted))
    return [entry.group.id for entry in started if entry.group.purpose is Purpose.TIER]


@pytest.mark.parametrize(("planned", "more", "rounds"), [
    (3, 0, ()),
    (3, 2, (2,)),
    (3, 3, (3,)),
    (3, 9, (3, 6)),
    (3, 10, (3, 6, 1)),
    (1, 7, (1, 2, 4)),
])  # fmt: skip
def test_each_round_doubles_what_there_is(planned: int, more: int, rounds: tuple[int, ...]) -> None:
    assert rounds == rounds_for(planned, more)


@pytest.mark.parametrize(("more", "verdict", "groups"), [(0, Verdict.PASS, 3), (27, Verdict.FAIL, 24)])
def test_loads_that_drift_further_every_time_are_convicted_by_going_on(
    more: int, verdict: Verdict, groups: int, tmp_path: Path
) -> None:
    """Three groups cannot show it (the control); a healthy engine of the same noise follows below."""
    _, ruling = gated(tmp_path, "noisy_load_on_noisy", USUAL, dials=NOISY, change=going_on(more))
    assert verdict is ruling.verdict, ruling.reasons
    assert len(sent(tmp_path)) <= groups
    if verdict is Verdict.FAIL:
        assert Reason.EXCESS_DIVERGENCE is ruling.reasons[0].reason
        assert len(sent(tmp_path)) > 3
        assert 0.01 / 4 / 5 == ruling.tests[0].level, "four tests, five looks (3, 6, 12, 24 and 30 groups)"


def test_the_same_noise_on_a_healthy_engine_stays_a_pass(tmp_path: Path) -> None:
    _, ruling = gated(tmp_path, "healthy", USUAL, dials=NOISY, change=going_on(27))
    assert Verdict.PASS is ruling.verdict, ruling.reasons


@pytest.mark.parametrize(("fault", "verdict"), [("healthy", Verdict.PASS), ("zero_block", Verdict.FAIL)])
def test_what_is_decided_is_not_gone_on_with(fault: str, verdict: Verdict, tmp_path: Path) -> None:
    plan, ruling = gated(tmp_path, fault, USUAL, change=going_on(9))
    assert verdict is ruling.verdict
    assert len(sent(tmp_path)) <= 3
    assert any("at most" in note and "undecided" in note for note in plan.notes), "the plan says what it may cost"


def test_what_differed_once_and_not_again_is_gone_on_with(tmp_path: Path) -> None:
    """Noise far beyond the cap: nothing can be decided, and the run says so after all its rounds. Nor is it stopped as
    if what differs grossly were found: local hits differ as grossly from each other."""
    _, ruling = gated(tmp_path, "healthy", USUAL, dials=Dials(run_noise=1.0), change=going_on(3))
    assert Verdict.INCONCLUSIVE is ruling.verdict, ruling.reasons
    counts = Counter(name.rsplit("-", 2)[-2] if "-r" in name else "planned" for name in sent(tmp_path))
    assert {"planned": 3, "r1": 3} == dict(counts)


def test_the_sentinel_is_asked_after_the_last_round_as_well(tmp_path: Path) -> None:
    gated(tmp_path, "noisy_load_on_noisy", USUAL, dials=NOISY, change=going_on(3, gate={"sentinel": True}))
    probes = [entry.probe for entry in entries(tmp_path) if isinstance(entry, ProbeSent)]
    assert probes[-1].group.startswith("sentinel")
    assert any("-r1-" in probe.group for probe in probes)


def test_requests_are_a_budget_too(tmp_path: Path) -> None:
    change = going_on(27, budget={"requests": 30})
    _, ruling = gated(tmp_path, "noisy_load_on_noisy", USUAL, dials=NOISY, change=change)
    assert Reason.BUDGET_EXHAUSTED is ruling.reasons[0].reason
    assert Verdict.INCONCLUSIVE is ruling.verdict
    assert 30 == sum(isinstance(entry, ProbeSent) for entry in entries(tmp_path))
