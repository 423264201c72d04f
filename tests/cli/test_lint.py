"""`kvgate lint` as a command: what it prints, how it ends, what it takes back."""

import json
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest

from kvgate.report.lint_document import lint_schema
from tests.cli.driving import Ended, kvgate
from tests.preflight.examples import EXAMPLES


def script(folder: Path, code: str, wrong: bool = True) -> Path:
    path = folder / "serve.sh"
    path.write_text(EXAMPLES[code][not wrong]["serve.sh"], encoding="utf-8")
    return path


def found(ended: Ended) -> list[str]:
    content = json.loads(ended.out)
    jsonschema.validate(content, lint_schema())
    return [each["code"] for each in content["findings"]]


def test_findings_end_with_one_and_none_with_zero(tmp_path: Path) -> None:
    ended = kvgate("lint", script(tmp_path, "KV105"))
    assert 1 == ended.code, ended.err
    assert "error   KV105  use_layerwise is true with backend mooncake; it needs memcache" in ended.out
    assert "To mend it: Set use_layerwise: false" in ended.out
    assert "1 error, 0 warnings, 0 info, 0 not decided, 0 ignored; 1 engines in 1 files" in ended.out
    assert 0 == kvgate("lint", script(tmp_path, "KV105", wrong=False)).code


def test_what_is_only_to_be_known_is_shown_and_fails_nothing(tmp_path: Path) -> None:
    ended = kvgate("lint", script(tmp_path, "KV503"), "--format", "json")
    assert (0, ["KV503"]) == (ended.code, found(ended))


@pytest.mark.parametrize(("options", "codes"), [
    ((), ["KV105", "KV201"]),
    (("--select", "kv2"), ["KV201"]),
    (("--ignore", "KV105"), ["KV201"]),
    (("--select", "KV1", "--ignore", "KV105"), []),
])  # fmt: skip
def test_rules_are_chosen_by_the_beginning_of_their_codes(
    options: tuple[str, ...], codes: list[str], tmp_path: Path
) -> None:
    path = script(tmp_path, "KV105")
    path.write_text(path.read_text().replace("PYTHONHASHSEED=0", "PYTHONHASHSEED=random"))
    ended = kvgate("lint", path, "--format", "json", *options)
    assert codes == sorted(found(ended))
    assert (1 if codes else 0) == ended.code


def test_a_comment_takes_a_finding_back_with_its_reason(tmp_path: Path) -> None:
    path = script(tmp_path, "KV207")
    assert ["KV207"] == found(kvgate("lint", path, "--format", "json"))
    text = path.read_text()
    path.write_text(f"# kvgate: ignore[KV207] the container sets it\n{text}")
    ended = kvgate("lint", path)
    assert 0 == ended.code
    assert "KV207 ignored: the container sets it" in ended.out
    # At the end of a line it speaks for that line only.
    path.write_text(f"echo # kvgate: ignore[KV207] elsewhere\n{text}")
    assert 1 == kvgate("lint", path).code


def test_annotations_of_a_workflow(tmp_path: Path) -> None:
    ended = kvgate("lint", script(tmp_path, "KV105"), "--format", "github")
    (line,) = ended.out.splitlines()
    assert line.startswith(f"::error file={tmp_path}/serve.sh,line=4,title=KV105::use_layerwise is true")
    assert "%0A" not in line


@pytest.mark.parametrize(("content", "options", "said"), [
    ("echo hello\n", (), "so nothing was checked"),
    ("vllm serve /m\n", ("--select", "XX"), "no rule begins with 'XX'"),
    ("vllm serve /m\n", ("--select", "KV105", "--ignore", "KV1"), "leave no rule"),
])  # fmt: skip
def test_nothing_checked_is_no_clean_bill(content: str, options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    path = tmp_path / "serve.sh"
    path.write_text(content)
    ended = kvgate("lint", path, *options)
    assert (2, True) == (ended.code, said in ended.err), ended.err


def test_a_rule_is_explained() -> None:
    ended = kvgate("explain", "KV213")
    assert 0 == ended.code
    assert "default_kv_lease_ttl" in ended.out
    assert "source:" in ended.out
