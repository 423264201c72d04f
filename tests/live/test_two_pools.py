"""Two pools behind one MultiConnector: a reset that says it emptied them, and did not."""

import httpx
import pytest

from tests.live.lab import Lab, hooks, proves_external

STACK = "two-pools"
pytestmark = pytest.mark.live

RESET = "http://127.0.0.1:8101/reset_prefix_cache?reset_external=true"
# Files on disk do not know salts.
IGNORED = {"salts": "ignored"}
ONE_GROUP = {"tiers": [256], "groups_per_tier": 1}


def test_a_reset_of_external_caches_is_no_proof_that_they_are_empty(lab: Lab) -> None:
    answer = httpx.post(RESET, json={}, timeout=60, trust_env=False)
    assert answer.json() == {"success": True}
    empty_one = {"before_arm": {"external": ["curl", "-sf", "-X", "POST", RESET]}, "timeout_s": 120}
    gated = lab.gate(lab.config("vllm-mooncake", gate=ONE_GROUP, hooks=empty_one, deployment=IGNORED))
    # The hook said success before every external arm; the hits came all the same, and right, from the second pool.
    proves_external(gated)
    assert gated.code == 0


def test_one_pool_emptied_behind_the_engine_is_made_up_for_by_the_other(lab: Lab) -> None:
    gated = lab.gate(lab.config("vllm-mooncake", gate=ONE_GROUP, hooks=hooks("remove_all"), deployment=IGNORED))
    proves_external(gated)
    assert gated.code == 0
