"""Launch scripts as people write them: what the shell would pass on, and what nobody can know."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.domain.preflight.setting import Setting, Unknown
from kvgate.errors import ConfigError
from kvgate.launch.files import read_launch
from kvgate.launch.json_text import BadJsonError, read_json
from kvgate.launch.shell import read_shell
from kvgate.launch.words import word_of


def plain(setting: Setting) -> Any:
    """The value without places; an unknown as its name between angle brackets."""
    if isinstance(setting.value, Unknown):
        return f"<{setting.value.name}>"
    if setting.entries():
        return {key: plain(value) for key, value in setting.entries().items()}
    return [plain(each) for each in setting.items()] if isinstance(setting.value, tuple) else setting.value


def engine_in(tmp_path: Path, script: str) -> dict[str, Any]:
    """The flags of the one engine that a script starts."""
    (tmp_path / "s.sh").write_text(script, encoding="utf-8")
    (engine,) = read_launch([tmp_path / "s.sh"]).engines
    return {name: plain(value) for name, value in engine.flags.named.items()}


# Scripts whose last command is `show ARGS`; bash itself says what they are.
AGAINST_BASH = (
    "A=x; show --a=$A --b ${A}y '--c=$A' \"--d=$A $A\"",
    'show --a \'{"k": "\'"$((1 + 2 * 3))"\'"}\' --b "{\\"k\\": 1}"',
    "P=30000\nQ=$((P + 100))\nshow --port $Q --other $(($Q/3)) $((Q%7))",
    'A=(--x 1 "--y z")\nA+=(--w)\nshow "${A[@]}" last',
    'A="one two"; show $A "$A"',
    'show --a ${NONE:-d} "${NONE:-e f}" ${NONE-g}',
    'A=v; show ${A:-d} ${A:+set} "${A:+, \\"more\\": 1}"',
    "show --long \\\n  --lines \\\n  'in\nside'",
    "show $'a\\tb' \"back\\\\slash\" pla\\ in",
    "for i in 1 2 3; do A=$i; done; show $A",
    'B=; for i in {0..2}; do B="$B$i"; done; show ${B:-none}',
    "if true; then A=1; else A=1; fi; show $A",
    "A=1; (A=2); show $A",
    'A=1; unset A; show "${A:-gone}"',
    'show --json "$(cat <<EOF\nx\nEOF\n)"',
    "export A=1 B=2; show $A$B",
    'A=1 B=2\nshow "$A""$B"\'c\'',
    "A=ab; A+=cd; show $A",
    "show '#no comment' # a comment",
    "declare -r A=5; readonly B=6; local_=7; show $A $B $local_",
)


@pytest.mark.parametrize("script", AGAINST_BASH)
def test_it_reads_words_as_bash_does(script: str, tmp_path: Path) -> None:
    told = "show() { printf '%s\\0' \"$@\"; }\n"
    ran = subprocess.run(
        ["bash", "-c", told + script], capture_output=True, check=True, cwd=tmp_path, env={"PATH": os.environ["PATH"]}
    )
    expected = ran.stdout.decode().split("\0")[:-1]
    (command,) = [each for each in read_shell(script).commands if each.words[0].known == "show"]
    words = [word.known for word in command.words[1:]]
    if None in words:
        # What a command prints is not known to who does not run it; everything else is.
        assert "$(" in script
        assert len(words) == len(expected)
        return
    assert expected == words


@pytest.mark.parametrize(("script", "flags"), [
    ("vllm serve /m --tensor_parallel_size=4 --port 1", {"tensor-parallel-size": "4", "port": "1"}),
    ("python3 -m vllm.entrypoints.openai.api_server --model /m -tp 4", {"model": "/m", "tensor-parallel-size": "4"}),
    ("nohup env A=1 numactl -N 0 /opt/venv/bin/vllm serve /m -q ascend > log 2>&1 &", {"quantization": "ascend"}),
    ("vllm serve /m --enforce-eager --port=1", {"enforce-eager": True, "port": "1"}),
    ("vllm serve /m --port $PORT", {"port": "<PORT>"}),
    ("vllm serve /m --port $(next_port)", {"port": "<$(next_port)>"}),
    ("if [ $1 ]; then TP=1; else TP=2; fi; vllm serve /m -tp $TP", {"tensor-parallel-size": "<TP>"}),
    ("if [ $1 ]; then TP=4; fi; vllm serve /m -tp ${TP:-2}", {"tensor-parallel-size": "<TP>"}),
    ("vllm serve /m --max-model-len -1", {"max-model-len": "-1"}),
    ("vllm serve /m --kv-transfer-config.kv_role kv_both --kv-transfer-config.kv_connector_extra_config.backend x",
     {"kv-transfer-config": {"kv_role": "kv_both", "kv_connector_extra_config": {"backend": "x"}}}),
    ("vllm serve /m --additional-config '{\"a\": '$N', \"b\": \"'$S'\", \"c\": [1, '$N']}'",
     {"additional-config": {"a": "<N>", "b": "<S>", "c": [1, "<N>"]}}),
    ("vllm serve /m --additional-config \"{\\\"a\\\": \\\"x${S}y\\\", \\\"b\\\": true${MORE}}\"",
     {"additional-config": {"a": "<S>", "b": True}}),
    ("case $1 in a) X=1;; b) X=2;; esac\nvllm serve /m --port ${X}", {"port": "<X>"}),
    ("start() { vllm serve /m --port $1; }\nstart 5", {"port": "<1>"}),
])  # fmt: skip
def test_flags_of_an_engine(script: str, flags: dict[str, Any], tmp_path: Path) -> None:
    assert flags == engine_in(tmp_path, script)


def test_each_round_of_a_loop_starts_an_engine_and_the_environment_is_what_was_exported(tmp_path: Path) -> None:
    script = (
        "OWN=1\nexport SEED=0\nset -a\nSHARED=2\nfor r in 0 1; do\nRANK=$r vllm serve /m --port $((8000 + r)) &\ndone\n"
    )
    (tmp_path / "s.sh").write_text(script)
    (tmp_path / "e.env").write_text("PYTHONHASHSEED=7\nexport OTHER='a b'\n# no=thing\n")
    launch = read_launch([tmp_path / "s.sh", tmp_path / "e.env"])
    assert ["8000", "8001"] == [each.flags.named["port"].value for each in launch.engines]
    assert [6, 6] == [each.spot.line for each in launch.engines]
    env = {name: value.value for name, value in launch.engines[1].env.named.items()}
    assert {"SEED": "0", "SHARED": "2", "RANK": "1", "r": "1", "PYTHONHASHSEED": "7", "OTHER": "a b"} == env


def test_lines_are_those_of_the_file_through_quotes_and_continuations(tmp_path: Path) -> None:
    script = (
        '# one\nvllm serve /m \\\n  --port 1 \\\n  --additional-config \'{\n "a": \'"$A"\',\n\n "b": {\n  "c": 2}}\'\n'
    )
    (tmp_path / "s.sh").write_text(script)
    (engine,) = read_launch([tmp_path / "s.sh"]).engines
    config = engine.flags.named["additional-config"]
    found = [config.at("a"), config.at("b"), config.at("b", "c")]
    assert [5, 7, 8] == [each.spot.line for each in found if each is not None]
    assert (3, 2) == (engine.flags.named["port"].spot.line, engine.spot.line)


def test_a_pool_s_file_that_the_script_writes_is_read(tmp_path: Path) -> None:
    script = 'SEG=2GB\ncat > /etc/mooncake.json <<EOF\n{"protocol": "ascend",\n "global_segment_size": "$SEG"}\nEOF\n'
    (tmp_path / "s.sh").write_text(script)
    (file,) = read_launch([tmp_path / "s.sh"]).pool_files
    assert ("2GB", 4) == (
        file.settings.named["global_segment_size"].value,
        file.settings.named["global_segment_size"].spot.line,
    )


@pytest.mark.parametrize(("name", "content", "said"), [
    ("gone.sh", None, "No such file"),
    ("image.sh", b"\0\1", "is no text"),
    ("other.json", b'{"a": 1}', "is JSON of no kind that is known here"),
    ("why.sh", b"vllm serve /m # kvgate: ignore[KV207]\n", "has no reason"),
    ("what.sh", b"vllm serve /m # kvgate: ignore[KV999] so\n", "names 'KV999', which is no rule"),
    ("deep.sh", b"( " * 1000 + b"echo" + b" )" * 1000, "nested too deeply"),
])  # fmt: skip
def test_files_that_cannot_be_read_are_refused_with_a_sentence(
    name: str, content: bytes | None, said: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        read_launch([tmp_path / name])


# -- anything at all ------------------------------------------------------------------------------------------------
PIECES = st.sampled_from([
    *("vllm serve /m ", "--kv-transfer-config ", "'{\"a\": ", "}'", '"', "'", "\\", "\n", "$", "${", "}", "$("),
    *(")", "((", "A=", "A+=(", "for i in 1 2; do ", "done", "if ", "then ", "fi", "<<EOF\n", "EOF\n", "export "),
    *("--port=", "#", "|", "&", ";", "[[ ", "]]", "{0..9}", "case $1 in ", "esac", "\0", "\u20ac", "$'", "`", "\t"),
    *("0x1F", "**", "//0", "%0", "-"),
])  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=40).map("".join))
def test_no_script_breaks_the_reader(script: str) -> None:
    for command in read_shell(script).commands:
        assert command.words
        for word in command.words:
            assert word.line >= 1
            marked = word.marked()
            assert len(marked.text) == len(marked.lines) == len(marked.literal)


@settings(max_examples=300, deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\ue000"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
))  # fmt: skip
def test_json_is_read_as_json_reads_it(value: Any) -> None:
    written = json.dumps(value)
    if isinstance(value, (dict, list)) and value:
        assert value == _filled(read_json(word_of(written, 1), "f"))


def _filled(setting: Setting) -> Any:
    if isinstance(setting.value, tuple):
        return [_filled(each) for each in setting.value]
    if hasattr(setting.value, "items"):
        return {key: _filled(each) for key, each in setting.entries().items()}
    return setting.value


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60))
def test_no_text_breaks_the_json_reader(text: str) -> None:
    try:
        json.loads(text, strict=False)
    except json.JSONDecodeError:
        with pytest.raises(BadJsonError) as caught:
            read_json(word_of(text, 1), "f")
        assert caught.value.line >= 1
    else:
        read_json(word_of(text, 1), "f")
