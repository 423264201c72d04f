"""Loading a trace: every complaint says file, line, key, value and remedy, as for a configuration."""

from pathlib import Path

import pytest

from kvgate.config.load import load_trace_with_digest
from kvgate.config.trace_schema import TraceFile, trace_of
from kvgate.domain.trace import Arrival, Kind, Spacing
from kvgate.errors import ConfigError

GOOD = """\
version: 1
seed: 7
slo: {first_token_s: 2}
parts:
  - name: unrelated
    kind: random
    count: 4
    prompt_tokens: 256
    arrival: {rate: 2.5}
  - name: chats
    kind: sessions
    count: 2
    turns: 3
    prompt_tokens: 256
    shared_tokens: 128
    increment_tokens: 64
    arrival: {concurrency: 2}
"""


def load(folder: Path, text: str) -> TraceFile:
    file = folder / "t.yaml"
    file.write_text(text, encoding="utf-8")
    return load_trace_with_digest(file)[0]


def test_a_good_file_is_loaded_with_every_default(tmp_path: Path) -> None:
    trace = trace_of(load(tmp_path, GOOD))
    assert (7, 32, 1) == (trace.seed, trace.max_tokens, trace.repeats)
    assert (2.0, None, None) == (trace.slo.first_token_s, trace.slo.between_tokens_s, trace.slo.total_s)
    unrelated, chats = trace.parts
    assert (Kind.RANDOM, 1, Arrival(2.5, Spacing.POISSON)) == (unrelated.kind, unrelated.turns, unrelated.arrival)
    assert (3, 384, Arrival(concurrency=2)) == (chats.turns, chats.longest, chats.arrival)


@pytest.mark.parametrize(("old", "new", "said"), [
    ("seed: 7", "sede: 7", "t.yaml:2: sede: there is no such key; did you mean 'seed'?"),
    ("seed: 7", "seed: x", 't.yaml:2: seed: "x" cannot be used'),
    ("version: 1", "version: 2", "t.yaml:1: version: 2 cannot be used"),
    ("    count: 4\n", "", "t.yaml:5: parts.0.count: is missing; it takes requests, or sessions"),
    ("count: 4", "count: yes", "t.yaml:7: parts.0.count: true cannot be used: a truth value is no number"),
    ("kind: random", "kind: chat", 't.yaml:6: parts.0.kind: "chat" cannot be used'),
    ("{rate: 2.5}", "{rate: 2.5, concurrency: 2}", "t.yaml:9: parts.0.arrival: .*either rate or concurrency"),
    ("{rate: 2.5}", "{}", "t.yaml:9: parts.0.arrival: .*either rate or concurrency"),
    ("{rate: 2.5}", "{rate: 2.5, spread: normal}", "t.yaml:9: parts.0.arrival.spread: .*poisson.*even"),
    ("{concurrency: 2}", "{concurrency: 2, spread: even}", "t.yaml:17: parts.1.arrival: .*spread: goes with rate"),
    ("kind: random", "kind: shared_prefix", "t.yaml:5: parts.0: .*shared_tokens: is missing"),
    ("kind: random", "kind: agent", "t.yaml:5: parts.0: .*turns: is missing with kind agent"),
    ("    turns: 3\n", "", "t.yaml:10: parts.1: .*turns: is missing with kind sessions"),
    ("shared_tokens: 128", "shared_tokens: 256", "t.yaml:10: parts.1: .*must be below prompt_tokens"),
    ("name: chats", "name: unrelated", "t.yaml:4: parts: .*two parts are named 'unrelated'"),
    ("first_token_s: 2", "first_token: 2", "t.yaml:3: slo.first_token: there is no such key; did you mean 'first_tok"),
])  # fmt: skip
def test_a_complaint_says_where_what_and_what_to_do(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert 1 == GOOD.count(old)
    with pytest.raises(ConfigError, match=said):
        load(tmp_path, GOOD.replace(old, new))


def test_a_missing_file_says_how_it_is_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file; give the path of a trace with --trace"):
        load_trace_with_digest(tmp_path / "none.yaml")
