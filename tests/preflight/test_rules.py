"""Every rule on the deployment that breaks it and on the one that does not; and whole configurations."""

import json
import re
from pathlib import Path

import pytest

from kvgate.domain.preflight.rule import Severity
from kvgate.domain.preflight.rules import BY_CODE, RULES, Linted, lint
from kvgate.launch.files import read_launch
from tests.preflight.examples import EXAMPLES, Files, drafting, filed, peer, serve, store


def linted(folder: Path, files: Files) -> Linted:
    paths = []
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
        paths.append(folder / name)
    return lint(read_launch(paths))


def codes(found: Linted) -> set[str]:
    return {each.rule.code for each in found.findings}


def test_every_rule_has_examples_and_a_code_of_its_own() -> None:
    assert [rule.code for rule in RULES] == sorted(EXAMPLES)
    assert len(RULES) == len({rule.code for rule in RULES}) == len({rule.name for rule in RULES})
    for rule in RULES:
        assert rule.what.endswith(".")
        assert rule.remedy.endswith((".", ")"))
        assert rule.source


@pytest.mark.parametrize("code", EXAMPLES)
def test_a_rule_finds_what_breaks_it_and_nothing_else(code: str, tmp_path: Path) -> None:
    wrong, right = EXAMPLES[code]
    found = linted(tmp_path, wrong)
    mine = [each for each in found.findings if each.rule.code == code]
    assert mine, [each.said for each in found.findings]
    text = (tmp_path / Path(mine[0].spot.file).name).read_text()
    assert 1 <= mine[0].spot.line <= len(text.splitlines())
    after = linted(tmp_path, right)
    assert code not in codes(after), [each.said for each in after.findings]
    assert not [doubt for doubt in after.doubts if doubt.rule.code == code]
    # The two differ in this only: the right one is not wrong in another way.
    new = codes(after) - codes(found)
    assert all(BY_CODE[each].severity is Severity.INFO for each in new), new


@pytest.mark.parametrize("code", [
    "KV101", "KV105", "KV106", "KV109", "KV203", "KV205", "KV208", "KV209", "KV213", "KV301", "KV305", "KV401", "KV404",
])  # fmt: skip
def test_what_hangs_on_an_unknown_value_is_said_to_be_undecided(code: str, tmp_path: Path) -> None:
    """The value that breaks the rule is taken from a variable that nobody set."""
    told = {
        "KV101": ('"AscendStoreConector"', '"\'"$NAME"\'"'),
        "KV105": ("true", "'$NAME'"),
        "KV106": ("/models/DeepSeek-V4-Flash", "$NAME"),
        "KV109": ("vllm serve /models/DeepSeek-V4-Flash", "vllm serve /models/DeepSeek-V4-Flash a $NAME"),
        "KV203": ("sha256_cbor", "$NAME"),
        "KV205": ("--block-size 64", "--block-size $NAME"),
        "KV208": ('"Ascend"', '"${NAME}"'),
        "KV209": ('"1GiB"', '"${NAME}"'),
        "KV213": ("--port 50051", "--default_kv_lease_ttl=$NAME"),
        "KV301": ("-tp 8", "-tp $NAME"),
        "KV305": ('"30004"', "\"'$NAME'\""),
        "KV401": (": 3}", ": '$NAME'}"),
        "KV404": ("true", "'$NAME'"),
    }[code]
    wrong, _ = EXAMPLES[code]
    files = {name: text.replace(*told) for name, text in wrong.items()}
    assert files != wrong
    if "mooncake.json" in files:
        files["serve.sh"] += f"cat > /tmp/mooncake.json <<EOF\n{files.pop('mooncake.json')}\nEOF\n"
    found = linted(tmp_path, files)
    assert code not in codes(found), [each.said for each in found.findings]
    assert code in {doubt.rule.code for doubt in found.doubts}
    assert {"NAME"} == {doubt.unknown.name for doubt in found.doubts if doubt.rule.code == code}


# -- whole configurations --------------------------------------------------------------------------------------------
INCIDENT = """
export HCCL_INTRA_ROCE_ENABLE=1
export VLLM_ASCEND_ENABLE_FLASHCOMM1=1
export VLLM_PREFIX_CACHE_RETENTION_INTERVAL=16384
export MOONCAKE_CONFIG_PATH=/etc/mooncake.json
vllm serve /models/DeepSeek-V4-Flash-0731 --quantization ascend --block-size 128 \\
  --tensor-parallel-size 4 --data-parallel-size 2 --kv-cache-dtype int8 \\
  --speculative-config '{"method": "dspark", "num_speculative_tokens": 7}' \\
  --additional-config '{"enable_dsa_cp": true}' \\
  --kv-transfer-config '{
    "kv_connector": "MultiConnector",
    "kv_role": "kv_producer",
    "engine_id": "0",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {
      "connectors": [
        {
          "kv_connector": "MooncakeHybridConnector",
          "kv_role": "kv_producer",
          "kv_port": "30000",
          "kv_connector_extra_config": {
            "prefill": {"dp_size": 2, "tp_size": 4},
            "decode":  {"dp_size": 2, "tp_size": 4}
          }
        },
        {
          "kv_connector": "AscendStoreConnector",
          "kv_role": "kv_producer",
          "kv_connector_extra_config": {"lookup_rpc_port": "0", "backend": "mooncake", "use_layerwise": true}
        }
      ]
    }
  }'
"""


def test_the_incident_s_own_configuration(tmp_path: Path) -> None:
    """Seed 000 with what was tried on the way: each finding would have saved a day."""
    found = linted(tmp_path, {"p.sh": INCIDENT, "master.sh": "mooncake_master --port 50051\n"})
    assert {
        "KV105",  # layer by layer with mooncake (§3.3)
        "KV106",  # recompute on a model with several kinds of KV (§3.4)
        "KV107",  # failed loads are swallowed: the path by which it happened
        "KV109",  # the hybrid manager is off
        "KV114",  # layer by layer, with speculation: hits are a granule shorter
        "KV201",  # no hash seed
        "KV213",  # a lease shorter than the transfer's timeout, which nobody had set
        "KV405",  # DSA-CP, FlashComm1 and DSpark 7 (§3.6)
        "KV503",  # no tier below 32768 proves anything (§6)
        "KV506",  # int8 KV through the pool (§3.1)
    } == codes(found)
    lines = {each.rule.code: each.spot.line for each in found.findings if each.spot.file.endswith("p.sh")}
    assert (29, 14) == (lines["KV105"], lines["KV106"])


@pytest.mark.parametrize("code", ["KV201", "KV207", "KV404"])
@pytest.mark.parametrize("reads", ["source /etc/kv.env", ". ./kv.sh", "if [ $1 ]; then source $FILE; fi"])
def test_a_variable_that_a_script_read_in_may_set_is_not_called_missing(code: str, reads: str, tmp_path: Path) -> None:
    wrong = {"serve.sh": EXAMPLES[code][0]["serve.sh"].replace("PYTHONHASHSEED=random", "OTHER=1")}
    assert code in codes(linted(tmp_path, wrong))
    found = linted(tmp_path, {"serve.sh": f"{reads}\n{wrong['serve.sh']}"})
    assert code not in codes(found)
    assert [True] == [each.unknown.name.startswith("what ") for each in found.doubts if each.rule.code == code]


@pytest.mark.parametrize("code", ["KV213", "KV214"])
def test_a_default_that_a_script_read_in_may_change_is_not_held_against_anything(code: str, tmp_path: Path) -> None:
    wrong = {name: text.replace("ASCEND_TRANSFER", "OTHER") if code == "KV213" else text
             for name, text in EXAMPLES[code][0].items()}  # fmt: skip
    assert code in codes(linted(tmp_path, wrong))
    found = linted(tmp_path, {**wrong, "serve.sh": f"source /etc/kv.env\n{wrong['serve.sh']}"})
    assert code not in codes(found)
    assert code in {each.rule.code for each in found.doubts}


@pytest.mark.parametrize("odd", ["inf", "nan", "-inf", "1e999", "\u00b2", "1.5", "", "9" * 400])
def test_no_value_breaks_a_rule(odd: str, tmp_path: Path) -> None:
    """Numbers and sizes that are none, in every place where one is read."""
    env = ("ASCEND_TRANSFER_TIMEOUT", "ASCEND_CONNECT_TIMEOUT", "HCCL_RDMA_TIMEOUT", "HCCL_RDMA_RETRY_CNT")
    more = ("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES")
    flags = ("-tp", "-dp", "--block-size", "--max-model-len", "--max-num-batched-tokens", "--gpu-memory-utilization")
    files = filed(global_segment_size=odd, local_buffer_size=odd)
    files["serve.sh"] = (
        "".join(f"export {name}='{odd}'\n" for name in (*env, *more))
        + serve(
            peer("kv_producer", {"prefill": {"tp_size": odd}, "decode": {"tp_size": odd}}, kv_port=odd),
            *(f"{flag}='{odd}'" if flag.startswith("--") else f"{flag} '{odd}'" for flag in flags),
            drafting("dspark", 5).replace("5", json.dumps(odd)),
            model="/models/DeepSeek-V4-Flash",
        )
        + serve(store())
    )
    files["master.sh"] = f"mooncake_master --default_kv_lease_ttl='{odd}'\n"
    assert linted(tmp_path, files).findings


LAUNCHES = sorted(path for path in (Path(__file__).parents[2] / "configs/launch").iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", LAUNCHES, ids=lambda path: path.name)
def test_an_example_is_clean_or_has_what_its_files_announce(folder: Path) -> None:
    files = sorted(folder.iterdir())
    found = lint(read_launch(files))
    announced = {code for file in files for code in re.findall(r"^# lint: (.*)$", file.read_text(), re.MULTILINE)}
    assert announced, "an example says what is found in it"
    expected = {code for each in announced for code in each.split() if code != "clean"}
    assert expected == codes(found), [(str(each.spot), each.said) for each in found.findings]
    assert () == found.doubts


def test_there_are_examples() -> None:
    assert len(LAUNCHES) >= 7
