"""What runs say together: the worst of them, whatever their order, and never more than they say alone."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvgate.domain.fingerprint import fingerprint
from kvgate.domain.kept import KeptRun, Origin
from kvgate.domain.policy import Policy, PolicyName
from kvgate.domain.power import excluded_fault_rate
from kvgate.domain.probe import Arm
from kvgate.domain.shards import UnlikeError, merged
from kvgate.domain.soak import Clean
from kvgate.domain.verdict import Verdict, merge

TIERS = (512, 1024, 2048)
# The machine may be busy with other things, which is nothing to complain of.
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def a_run(number: int, verdict: Verdict = Verdict.PASS, clean: dict[int, int] | None = None, **traits: str) -> KeptRun:
    """A run of which only this is known: its verdict and the clean groups of each tier."""
    groups = {512: 3} if clean is None else clean
    return KeptRun(
        origin=Origin(f"r{number}", "0", f"2020-01-01T00:00:{number % 60:02d}+00:00", "", ""),
        verdict=verdict,
        says=(),
        policy=Policy(),
        endpoint_lost=False,
        fingerprint=fingerprint({"deployment.name": "d", "device": None, **traits}),
        tiers=tuple(sorted(groups)),
        not_applicable=(),
        asked=(),
        groups=sum(groups.values()),
        clean=tuple(Clean(tier, Arm.EXTERNAL, count) for tier, count in sorted(groups.items())),
        reasons=(),
    )


verdicts = st.sampled_from([Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL])
counts = st.dictionaries(st.sampled_from(TIERS), st.integers(0, 40), min_size=1)
shards = st.lists(st.tuples(verdicts, counts), min_size=1, max_size=5).map(
    lambda all_of_them: [a_run(number, *each) for number, each in enumerate(all_of_them)]
)


@QUICK
@given(shards)
def test_neither_order_nor_repetition_changes_anything(runs: list[KeptRun]) -> None:
    assert merged(runs) == merged(list(reversed(runs))) == merged([*runs[1:], *runs, *runs[:1]])


@QUICK
@given(shards)
def test_the_verdict_is_the_worst(runs: list[KeptRun]) -> None:
    assert merge(each.verdict for each in runs) is merged(runs).verdict


@QUICK
@given(shards, verdicts, counts)
def test_a_further_run_never_makes_it_better_and_never_takes_power_away(
    runs: list[KeptRun], verdict: Verdict, clean: dict[int, int]
) -> None:
    fewer, more = merged(runs), merged([*runs, a_run(len(runs), verdict, clean)])
    order = (Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL)
    assert order.index(fewer.verdict) <= order.index(more.verdict)
    now = {(each.tier, each.arm): each.excluded_fault_rate for each in more.excluded}
    assert all(now[each.tier, each.arm] <= each.excluded_fault_rate for each in fewer.excluded)
    assert set(fewer.tiers) <= set(more.tiers)


@QUICK
@given(shards)
def test_only_runs_that_passed_exclude_anything(runs: list[KeptRun]) -> None:
    passed = [each for each in runs if each.verdict is Verdict.PASS]
    found = {each.tier: each for each in merged(runs).excluded}
    for tier in TIERS:
        total = sum(clean.groups for run in passed for clean in run.clean if clean.tier == tier)
        assert total == (found[tier].groups if tier in found else 0)
        assert tier not in found or excluded_fault_rate(total) == found[tier].excluded_fault_rate


def test_runs_that_differ_in_what_is_known_of_both_are_refused_in_any_order() -> None:
    runs = [a_run(1), a_run(2, device="A2"), a_run(3, device="A3")]
    for order in itertools.permutations(runs):
        with pytest.raises(UnlikeError, match="device: run r2 has 'A2', run r3 has 'A3'"):
            merged(order)
    assert "known of some of the runs only: device" in merged(runs[:2]).notes[0]


def test_runs_of_policies_that_differ_are_said_to_be() -> None:
    strict = replace(a_run(2), policy=Policy(name=PolicyName.STRICT))
    assert any("policies that differ" in note for note in merged([a_run(1), strict]).notes)
    assert () == merged([a_run(1), a_run(3)]).notes
