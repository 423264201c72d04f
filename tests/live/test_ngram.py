"""Speculation by n-grams over a Mooncake pool: several token IDs come in one chunk, and nothing else changes."""

import json
from pathlib import Path

import httpx
import pytest

from tests.live.conftest import standing
from tests.live.lab import hooks, proves_external

pytestmark = pytest.mark.live
SERVER = "http://127.0.0.1:8101"


def ids_by_chunk() -> list[int]:
    """How many token IDs the chunks of one streamed answer carry, to a prompt that repeats itself."""
    body = {"model": "m", "prompt": [404, 505, 606, 707] * 30, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "return_token_ids": True}
    reply = httpx.post(f"{SERVER}/v1/completions", json=body, timeout=120, trust_env=False)
    events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return [len(choice["token_ids"]) for choice in choices if choice.get("token_ids")]


@pytest.mark.parametrize("tokens", [1, 3, 7])
def test_speculation_passes_with_several_ids_in_a_chunk(tmp_path: Path, tokens: int) -> None:
    with standing(f"ngram-{tokens}", tmp_path) as lab:
        sizes = ids_by_chunk()
        gated = lab.gate(lab.config("vllm-ngram", gate={"tiers": [256]}))
        assert sum(sizes) == 24
        assert 1 < max(sizes) <= tokens + 1
        assert gated.code == 0
        proves_external(gated)
        assert all(pair["exact"] and pair["max_drift"] == 0.0 for pair in gated.pairs("external", "local"))
        if tokens == 3:
            broken = lab.gate(lab.config("vllm-ngram", gate={"tiers": [256]}, hooks=hooks("swap_two")))
            assert broken.code == 1
            assert any("external path" in (pair["attribution"] or "") for pair in broken.pairs("external", "local"))
