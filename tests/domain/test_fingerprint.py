"""Which deployment a run was about: one digest for one set of traits, and unknown is no value."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvgate.domain.fingerprint import differences, fingerprint, fingerprint_of
from kvgate.domain.plan import Plan
from kvgate.domain.policy import Grade, Policy, Source, weaker
from tests.domain.making import group_plan, run_plan

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
values = st.dictionaries(st.text(max_size=8), st.none() | st.text(max_size=8), max_size=8)


@QUICK
@given(values)
def test_the_digest_depends_on_the_traits_and_not_on_their_order(given_ones: dict[str, str | None]) -> None:
    again = fingerprint(dict(reversed(given_ones.items())))
    assert fingerprint(given_ones).sha256 == again.sha256
    whole = json.loads(again.canonical)
    assert {name: value for name, value in given_ones.items() if value is not None} == whole["known"]
    assert sorted(name for name, value in given_ones.items() if value is None) == whole["unknown"]


@QUICK
@given(values, st.text(max_size=8), st.none() | st.text(max_size=8))
def test_another_value_is_another_digest(given_ones: dict[str, str | None], name: str, value: str | None) -> None:
    other = given_ones | {name: value}
    assert (fingerprint(given_ones).sha256 == fingerprint(other).sha256) is (given_ones == other)


def test_the_canonical_text_stays_what_it_is() -> None:
    """A digest that somebody wrote down must mean the same tomorrow."""
    one = fingerprint({"device": "A3", "checkpoint": None, "deployment.name": "Größe"})
    assert (
        '{"format":"kvgate.fingerprint/1","known":{"deployment.name":"Gr\\u00f6\\u00dfe","device":"A3"},'
        '"unknown":["checkpoint"]}'
    ) == one.canonical
    assert "a1289afc9debef93" == one.sha256[:16]


def plan() -> Plan:
    return run_plan(group_plan())


@pytest.mark.parametrize("name", ["block_size", "granule", "chunk", "max_model_len", "retention_interval"])
def test_every_size_is_a_trait(name: str) -> None:
    geometry = replace(plan().geometry, **{name: 12_345})  # type: ignore[arg-type]
    other = replace(plan(), geometry=geometry)
    one, two = (fingerprint_of(each, (), ()) for each in (plan(), other))
    assert [f"geometry.{name}"] == [each.name for each in differences(one, two)]


def test_an_address_is_no_trait_and_a_role_is() -> None:
    endpoint = plan().deployment.endpoints[0]
    moved = replace(plan().deployment, endpoints=(replace(endpoint, name="z", url="http://elsewhere"),))
    assert fingerprint_of(plan(), (), ()).sha256 == fingerprint_of(replace(plan(), deployment=moved), (), ()).sha256
    two = replace(plan().deployment, endpoints=(endpoint, replace(endpoint, name="b")))
    found = differences(fingerprint_of(plan(), (), ()), fingerprint_of(replace(plan(), deployment=two), (), ()))
    assert [("deployment.endpoints", "combined", "combined + combined")] == [
        (each.name, each.wanted, each.found) for each in found
    ]


def test_what_engines_tell_is_compared_only_where_they_were_asked() -> None:
    said = fingerprint({"device": "A3", "server.version": None, "checkpoint": None})
    found = fingerprint({"device": "A3", "server.version": "1", "checkpoint": None})
    assert () == differences(said, found)
    assert found == said.completed(found)
    asked = fingerprint({"device": "A3", "server.version": "2", "checkpoint": None})
    assert [("server.version", True)] == [(each.name, each.sure) for each in differences(asked, found)]
    unsure = fingerprint({"device": None, "server.version": "1", "checkpoint": None})
    assert [("device", False)] == [(each.name, each.sure) for each in differences(found, unsure)], "unknown is not A3"


@pytest.mark.parametrize(("change", "said"), [
    ({"evidence": Grade.SCHEDULED}, "evidence scheduled, not arrived"),
    ({"exercised_share": 0.9}, "exercised_share 0.9, not 0.95"),
    ({"envelope_floor_nat": 0.2}, "envelope_floor_nat 0.2, not 0.1"),
    ({"envelope_cap_nat": 0.6}, "envelope_cap_nat 0.6, not 0.5"),
    ({"lossy_bound_nat": 0.1}, "lossy_bound_nat 0.1, not none"),
    ({"accept_ids_only": True}, "accept_ids_only true, not false"),
    ({"accept_text_only": True}, "accept_text_only true, not false"),
    ({"accept_unproven_alignment": True}, "accept_unproven_alignment true, not false"),
    ({"alpha": 0.001}, "alpha 0.001, not 0.01"),
    ({"min_output_tokens": 4}, "min_output_tokens 4, not 8"),
    ({"first_token_ratio": 1.0}, "first_token_ratio 1.0, not 0.9"),
], ids=lambda value: str(value)[:30])  # fmt: skip
def test_a_policy_that_lets_more_pass_is_weaker_and_the_other_way_round_is_not(
    change: dict[str, object], said: str
) -> None:
    other = replace(Policy(), **change)  # type: ignore[arg-type]
    assert (said,) == weaker(other, Policy())
    assert () == weaker(Policy(), other)
    assert () == weaker(other, other)


def test_a_source_that_need_not_confirm_is_weaker() -> None:
    asked = Policy(required_sources=(Source.LOG,))
    assert ("required_sources without log",) == weaker(Policy(), asked)
    assert () == weaker(asked, Policy())
