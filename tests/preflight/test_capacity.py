"""Start-up logs of every known format: the figures in them, and what is made of them."""

import json
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.domain.preflight.capacity import EngineCapacity, Told, Word, capacities, costs, unlike
from kvgate.launch.startup_log import told_by
from kvgate.report.capacity_document import capacity_schema
from tests.cli.driving import kvgate

LOGS = Path(__file__).parent / "logs"
# Recorded: the lab's vLLM 0.32 on CPU, a dense model and a hybrid.
LAB, HYBRID = ((LOGS / name).read_text(encoding="utf-8") for name in ("lab.log", "hybrid.log"))
# As the sources write them (facts: vllm-ascend §8): vllm-ascend 0.23 over two data-parallel engines of two ranks.
ASCEND = (LOGS / "ascend.log").read_text(encoding="utf-8")


def read(text: str) -> tuple[EngineCapacity, ...]:
    return capacities(told_by(text.splitlines()))


def test_the_lab_s_log_gives_what_the_server_reckoned() -> None:
    (engine,) = read(LAB)
    assert (23296, 11.38, 2048, "0.32.0", 512) == (
        *(engine.tokens, engine.concurrency, engine.longest),
        *(engine.version, engine.batch),
    )
    # SmolLM2-135M in fp32: 30 layers, keys and values, 3 heads of 64 numbers of 4 bytes.
    assert engine.per_token == pytest.approx(30 * 2 * 3 * 64 * 4, rel=1e-3)
    one, two = costs(engine, (1024, 2048, 4096))
    assert (1024, 2048) == (one.tier, two.tier), "longer prompts than it takes are left out"
    assert (2, 4) == (one.steps, two.steps)
    assert two.at_once == pytest.approx(11.375)
    assert two.gib == pytest.approx(1.0 / 11.375)
    assert () == engine.notes


def test_several_kinds_of_kv_are_said_to_make_the_figure_an_average() -> None:
    (engine,) = read(HYBRID)
    assert (640, 4, 2_064_699) == (engine.granule, engine.groups, engine.tokens)
    (note,) = engine.notes
    assert note.startswith("4 kinds of KV")


def test_each_data_parallel_engine_and_rank_is_told_apart() -> None:
    first, second = read(ASCEND)
    assert (("TP0 EP0", 20.5), ("TP1 EP1", 18.0)) == first.memory
    assert (1_000_000, 7.63, 131072, 4096) == (first.tokens, first.concurrency, first.longest, first.granule)
    assert (600_000, 4.58) == (second.tokens, second.concurrency)
    assert first.per_token == pytest.approx(18.0 * 2**30 / 1_000_000), "the smallest rank bounds all"
    assert "ranks differ" in first.notes[0]
    assert "20.50 GiB" in first.notes[0]
    assert () == second.notes
    told = unlike((first, second))
    assert told is not None
    assert "engine 1 holds 600000 tokens, engine 0 1000000" in told
    assert unlike((second, second)) is None


FEW = "Available KV cache memory: 2 GiB\nGPU KV cache size: 9 tokens\n"


@pytest.mark.parametrize(("lines", "said"), [
    ("GPU KV cache size: 1,000 tokens", "no rank tells its memory"),
    ("Available KV cache memory: 2 GiB", "how many tokens fit"),
    (f"{FEW}Maximum concurrency for 8 tokens per request: 1.12x", "fewer than two requests"),
    (f"{FEW}Layerwise KV cache reuse maps 4 layers; scale logical KV budget by 0.500.", "layers share buffers"),
])  # fmt: skip
def test_what_a_log_leaves_out_or_warns_of_is_noted(lines: str, said: str) -> None:
    (engine,) = read(lines)
    assert any(said in note for note in engine.notes), engine.notes


def test_of_two_starts_in_one_log_the_last_counts() -> None:
    (engine,) = read(LAB + LAB.replace("23,296", "46,592").replace("(1.0/", "(2.0/"))
    assert (46592, [2.0]) == (engine.tokens, [gib for _, gib in engine.memory])


def test_the_command(tmp_path: Path) -> None:
    log = tmp_path / "decode.log"
    log.write_text(ASCEND, encoding="utf-8")
    ended = kvgate("capacity", log, "--tier", "65536", "--format", "json")
    assert 0 == ended.code, ended.err
    content = json.loads(ended.out)
    jsonschema.validate(content, capacity_schema())
    (told,) = content["logs"]
    assert [(0, 65536), (1, 65536)] == [(each["engine"], each["tier"]) for each in told["costs"]]
    assert told["costs"][0]["gib"] == pytest.approx(18.0 * 65536 / 1_000_000)
    shown = kvgate("capacity", log).out
    assert "1,000,000" in shown
    assert "no promise of speed" in shown
    log.write_text("nothing of the kind\n", encoding="utf-8")
    silent, gone = kvgate("capacity", log), kvgate("capacity", tmp_path / "gone.log")
    assert (2, 2) == (silent.code, gone.code)
    assert "no line tells of KV memory" in silent.err
    assert "No such file" in gone.err


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(
    ["KV cache size: ", "1,2,3", " tokens", "Available KV cache memory: ", " GiB", "(Worker_DP", "_TP", "1", "9" * 30,
     " pid=", ")", "x", "\n", "Maximum concurrency for ", " tokens per request: ", ".", ",", "0", "lcm_block_size: "]
), max_size=30).map("".join))  # fmt: skip
def test_no_log_breaks_the_reader(text: str) -> None:
    for engine in capacities(told_by(text.splitlines())):
        assert isinstance(costs(engine, (1, 4096)), tuple)


def test_a_figure_keeps_its_line() -> None:
    assert Told(Word.TOKENS, 7.0, 2, "TP1", 2) in list(told_by(["", "(Worker_DP2_TP1 pid=1) KV cache size: 7 tokens"]))
