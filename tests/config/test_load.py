"""Loading a configuration: every complaint says file, line, key, value and remedy."""

from pathlib import Path

import pytest

from kvgate.config.load import load_config
from kvgate.config.schema import Config
from kvgate.domain.probe import Arm
from kvgate.errors import ConfigError

GOOD = """\
version: 1
deployment:
  name: d
  model: m
  endpoints:
    - {name: a, url: "http://127.0.0.1:8000"}
gate:
  tiers: [512]
"""


def load(folder: Path, text: str) -> Config:
    file = folder / "c.yaml"
    file.write_text(text, encoding="utf-8")
    return load_config(file)


def complaints(folder: Path, text: str) -> list[str]:
    """The complaints about a file, without its folder."""
    with pytest.raises(ConfigError) as raised:
        load(folder, text)
    return [line.replace(f"{folder}/", "") for line in str(raised.value).splitlines()]


def test_a_good_file_is_loaded_with_every_default(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD)
    assert [512] == config.gate.tiers
    assert "vllm" == config.deployment.engine
    assert "calibrated" == config.policy.name.value
    assert {Arm.COLD, Arm.LOCAL, Arm.EXTERNAL} < set(config.gate.arms)
    assert 32 == config.requests.max_tokens
    assert config.output.directory


def test_a_byte_order_mark_and_windows_line_ends_are_no_error(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load_config(file) == load(tmp_path, GOOD)


def test_anchors_and_merge_keys_are_understood(tmp_path: Path) -> None:
    text = GOOD.replace('{name: a, url: "http://127.0.0.1:8000"}', '&a {name: a, url: "http://a:1"}')
    config = load(tmp_path, text.replace("gate:", "    - {<<: *a, name: b}\ngate:"))
    assert [("a", "http://a:1"), ("b", "http://a:1")] == [(each.name, each.url) for each in config.deployment.endpoints]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "version: 1",
            "version: 2",
            "c.yaml:1: version: 2 cannot be used: Input should be 1; it takes version of this format: 1",
        ),
        ("gate:\n", "gates:\n", "c.yaml:7: gates: there is no such key; did you mean 'gate'?"),
        ("  tiers:", "  teirs:", "c.yaml:8: gate.teirs: there is no such key; did you mean 'tiers'?"),
        (
            "{name: a, ",
            "{nmae: b, name: a, ",
            "c.yaml:6: deployment.endpoints.0.nmae: there is no such key; did you mean 'name'?",
        ),
        ("  model: m\n", "", "c.yaml:2: deployment.model: is missing; it takes model name as the server serves it"),
        (
            "[512]",
            "[512, -1]",
            "c.yaml:8: gate.tiers.1: -1 cannot be used: Input should be greater than or equal to 16; it takes prompt "
            "lengths in tokens (16 or more), for instance [4096, 16384, 65536]",
        ),
        (
            "  name: d\n",
            "  name: d\n  name: e\n",
            "c.yaml:4: deployment.name is given twice (first on line 3); keep one",
        ),
    ],
    ids=["value", "section", "key", "key-in-list", "missing", "number", "twice"],
)
def test_a_complaint_is_one_whole_sentence(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert 1 == GOOD.count(old)
    assert [expected] == complaints(tmp_path, GOOD.replace(old, new))


def test_an_unknown_key_without_a_near_one_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    (complaint,) = complaints(tmp_path, GOOD + "zzz: 1\n")
    assert complaint.startswith("c.yaml:9: zzz: there is no such key; known here: budget, deployment, gate, ")


def test_every_complaint_is_told_and_each_once(tmp_path: Path) -> None:
    found = complaints(tmp_path, GOOD.replace("[512]", "[1, x]") + "policy: {name: lenient, alpha: 9}\nextra: 1\n")
    starts = ["gate.tiers.0", "gate.tiers.1", "policy.name", "policy.alpha", "extra"]
    assert starts == [line.split(": ")[1] for line in found]
    assert ["c.yaml:8", "c.yaml:8", "c.yaml:9", "c.yaml:9", "c.yaml:10"] == [line.split(": ")[0] for line in found]


def test_a_long_value_is_shortened(tmp_path: Path) -> None:
    (complaint,) = complaints(tmp_path, GOOD.replace("[512]", '"' + "9" * 500 + '"'))
    assert len(complaint) < 300


@pytest.mark.parametrize(
    "auth",
    [
        "auth: sk-hunter2-0001",
        "auth: [sk-hunter2-0001]",
        "auth: {bearer: sk-hunter2-0001}",
        "auth: {bearer_env: sk-hunter2-0001}",
        "auth: {bearer_env: KEY, token: sk-hunter2-0001}",
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(tmp_path: Path, auth: str) -> None:
    """Values never stand in a file; a complaint that lands in a CI log must not carry one on."""
    found = complaints(tmp_path, GOOD.replace("  model: m\n", f"  model: m\n  {auth}\n"))
    assert found
    assert all(line.startswith("c.yaml:5: deployment.auth") for line in found)
    assert not any("hunter2" in line for line in found)


@pytest.mark.parametrize("url", ["http://me:hunter2@host:1", "https://hunter2@host"])
def test_a_secret_in_a_url_is_refused_and_not_repeated(tmp_path: Path, url: str) -> None:
    """The url is written into every manifest."""
    found = complaints(tmp_path, GOOD.replace("http://127.0.0.1:8000", url))
    assert found
    assert not any("hunter2" in line for line in found)


@pytest.mark.parametrize(
    "url", ["http://h", "https://h:443", "http://[::1]:8000", "http://10.0.0.1:8000/route", "http://h/"]
)
def test_urls_that_are_fine(tmp_path: Path, url: str) -> None:
    assert url == load(tmp_path, GOOD.replace("http://127.0.0.1:8000", url)).deployment.endpoints[0].url
