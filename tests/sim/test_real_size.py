"""Real lengths: fast enough to be tried, and one bad object among thousands is seen, in every KV group."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from kvgate.cli.app import app
from kvgate.cli.selftest import config_for
from kvgate.sim.faults import BY_NAME
from kvgate.sim.kv import Place, block_hashes, name_of, places_needed
from kvgate.sim.presets import PRESETS
from tests.sim.driving import answer_at, ask, deployed, drift, engine, prompt, served

LONG = 65536
MIDDLE = 40_000


@pytest.mark.parametrize("name", PRESETS)
def test_131072_tokens_take_seconds(name: str) -> None:
    node = engine(PRESETS[name])
    ids = prompt(131072)
    begun = time.process_time()
    reply = ask(node, ids, tokens=2)
    # Of processor time, so that a busy machine does not count.
    assert time.process_time() - begun < 10.0
    assert answer_at(ids, tokens=2) == reply.ids


class Hit:
    """One prompt of which 65536 tokens are a hit, answered from the engine's own cache."""

    def __init__(self, name: str, tail: int = 19, source: int = MIDDLE) -> None:
        self.preset = PRESETS[name]
        self.deployment = deployed(self.preset)
        self.node = self.deployment.nodes["engine"]
        self.ids = prompt(LONG + tail, source=source)
        ask(self.node, self.ids, tokens=1)
        self.local = ask(self.node, self.ids, tokens=2)
        assert LONG == self.node.deeds[-1].local
        self.places = places_needed(self.preset, 0, LONG)
        self._hashes = block_hashes(np.array(self.ids), "", self.preset.block)

    def places_of(self, group: str) -> list[Place]:
        return [place for place in self.places if place.group == group]

    def around(self, group: str) -> Place:
        """The object of a group that holds the answer, or the last one where the group holds nothing of it."""
        found = [place for place in self.places_of(group) if place.end > MIDDLE + 8]
        return found[0] if len(found) < len(self.places_of(group)) else found[-1]

    def drift_without(self, place: Place) -> float:
        """Drift of an external hit of which one object is zeros, against the local one."""
        stored = self.deployment.pool.objects[name_of(place, self._hashes, self.preset)]
        kept, stored.arrays = stored.arrays, {key: np.zeros_like(array) for key, array in stored.arrays.items()}
        self.node.drop_local()
        external = ask(self.node, self.ids, tokens=2)
        stored.arrays = kept
        assert (0, LONG) == (self.node.deeds[-1].local, self.node.deeds[-1].external)
        return drift(self.local, external)


def test_one_bad_block_of_512_changes_the_logprobs_wherever_it_is() -> None:
    """Also where the answer stands elsewhere: attention weighs every block a little."""
    hit = Hit("dense")
    blocks = hit.places_of("full")
    assert (512, 128) == (len(blocks), hit.preset.block)
    drifts = {number: hit.drift_without(blocks[number]) for number in (0, 1, 100, 255, 312, 400, 510, 511)}
    assert {} == {number: value for number, value in drifts.items() if not value > 0.0}
    # Most of them are far too small to change a token: this is what a comparison of token IDs never sees.
    assert sum(value < 0.1 for value in drifts.values()) >= 6


@pytest.mark.parametrize("name", PRESETS)
def test_one_bad_object_of_any_group_changes_the_logprobs(name: str) -> None:
    # A compressor of 128 tokens reads its state when its next entry is complete, 128 tokens behind the hit.
    hit = Hit(name, tail=128 if 128 in PRESETS[name].compressed else 19)
    drifts = {group: hit.drift_without(hit.around(group)) for group in hit.preset.groups()}
    assert {} == {group: value for group, value in drifts.items() if not value > 0.0}


# A state that waits for more tokens than there are, and decayed sums that have faded below the last bit of a float.
@pytest.mark.parametrize(
    ("name", "group", "tail"),
    [("deepseek-v4-flash", "carry128", 100), ("gdn-hybrid", "recurrent", 250), ("deepseek-v4.1", "ngram", 250)],
)
def test_a_state_that_the_answer_does_not_reach_is_dead_bytes(name: str, group: str, tail: int) -> None:
    hit = Hit(name, tail)
    assert 0.0 == hit.drift_without(hit.around(group))


def test_the_gate_fails_a_real_length_with_one_bad_block(tmp_path: Path) -> None:
    fault = BY_NAME["zero_block"]
    with served(deployed(PRESETS["dense"], fault=fault.name)) as urls:
        config = config_for(fault, urls, tmp_path)
        config["gate"] = {**config["gate"], "tiers": [LONG], "groups_per_tier": 1}  # type: ignore[dict-item]
        config["requests"] = {"max_tokens": 8}
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        done = CliRunner().invoke(app, ["run", "-c", str(path), "--format", "json", "-q"])
    assert 1 == done.exit_code, done.output
    ruling = json.loads(done.stdout)["ruling"]
    assert {"DIVERGED", "DRIFT"} & {problem["reason"] for problem in ruling["reasons"]}
