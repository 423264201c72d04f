"""Files that must keep step with the code: example configurations and published schemas."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from kvgate.cli.bisect import bringing_of, gate_of, rungs_of
from kvgate.config.load import (
    config_schema,
    ladder_schema,
    load_config,
    load_ladder,
    load_trace_with_digest,
    trace_schema,
)
from kvgate.config.trace_schema import trace_of
from kvgate.domain.rungs import why_invalid
from kvgate.errors import ConfigError
from kvgate.report.compare_document import compare_schema
from kvgate.report.document import report_schema
from kvgate.report.ladder_document import ladder_report_schema
from kvgate.report.ledger_document import ledger_schemas
from kvgate.report.lint_document import lint_schema
from kvgate.report.measure_document import measure_schema
from kvgate.report.narrow_document import narrow_schema
from kvgate.report.soak_document import soak_schema
from kvgate.store.replay_file import replay_schema

ROOT = Path(__file__).parents[2]
TRACES = sorted((ROOT / "configs" / "traces").glob("*.yaml"))
POLICIES = sorted((ROOT / "configs" / "policies").glob("*.yaml"))
LADDERS = sorted((ROOT / "configs" / "ladders").glob("*.yaml"))
GATES = sorted((ROOT / "configs" / "ladders" / "gates").glob("*.yaml"))
# What CI systems read, run as it stands by tests/cli/test_matrix_examples.py.
MATRIX = sorted((ROOT / "configs" / "matrix").glob("*.yaml"))
OTHERS = (*TRACES, *POLICIES, *LADDERS, *GATES, *MATRIX)
CONFIGS = [file for file in sorted((ROOT / "configs").glob("**/*.yaml")) if file not in OTHERS]


def test_there_are_example_configurations() -> None:
    assert CONFIGS
    assert TRACES
    assert POLICIES
    assert LADDERS


@pytest.mark.parametrize("file", LADDERS, ids=lambda file: file.name)
def test_every_example_ladder_can_be_climbed(file: Path) -> None:
    """Every rung's configuration loads, none is invalid, and the schema agrees."""
    ladder = load_ladder(file)
    jsonschema.validate(yaml.safe_load(file.read_text(encoding="utf-8")), ladder_schema())
    rungs = rungs_of(ladder)
    assert len(rungs) >= 2
    for rung in rungs:
        config, _ = gate_of(ladder, file, rung)
        assert "$" not in config.model_dump_json()
        assert why_invalid(rung, rungs) is None
        assert bringing_of(ladder, rung, Path("log")).up is not None


def test_every_gate_of_a_ladder_is_used_by_one() -> None:
    used = {file.parent / rung.gate for file in LADDERS for rung in rungs_of(load_ladder(file)) if rung.gate}
    used |= {file.parent / load_ladder(file).gate for file in LADDERS}
    assert set(GATES) == used


@pytest.mark.parametrize("file", POLICIES, ids=lambda file: file.name)
def test_every_example_policy_is_taken_over_by_a_configuration(file: Path, tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / file.name).write_bytes(file.read_bytes())
    gate = tmp_path / "gate.yaml"
    gate.write_text(f"""version: 1
deployment: {{name: a, model: m, endpoints: [{{name: a, url: "http://127.0.0.1:1"}}]}}
policy: policies/{file.name}
""")
    given = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert given == {
        key: value for key, value in load_config(gate).policy.model_dump(mode="json").items() if key in given
    }
    jsonschema.validate(yaml.safe_load(gate.read_text(encoding="utf-8")), config_schema())


@pytest.mark.parametrize(("text", "said"), [
    ("alpha: 7\n", "policy.yaml:1: alpha: 7 cannot be used"),
    ("# a comment\nalfa: 0.1\n", "policy.yaml:2: alfa: there is no such key; did you mean 'alpha'?"),
    ("", "policy.yaml: the file is empty, not a mapping; start it with 'name: calibrated'"),
    (None, "there is no such file"),
], ids=["a value", "a key", "empty", "absent"])  # fmt: skip
def test_a_complaint_about_a_policy_names_its_own_file(text: str | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "policy.yaml").write_text(text)
    gate = tmp_path / "gate.yaml"
    gate.write_text(
        "version: 1\ndeployment: {name: a, model: m, endpoints: [{name: a, url: 'http://a'}]}\npolicy: policy.yaml\n"
    )
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        load_config(gate)
    if text is None:
        assert f"{gate}:3: policy" in str(caught.value)


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_example_configuration_loads_and_fits_the_schema(file: Path) -> None:
    assert load_config(file).deployment.endpoints
    jsonschema.validate(yaml.safe_load(file.read_text(encoding="utf-8")), config_schema())


@pytest.mark.parametrize("file", TRACES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_example_trace_loads_and_fits_the_schema(file: Path) -> None:
    assert trace_of(load_trace_with_digest(file)[0]).parts
    jsonschema.validate(yaml.safe_load(file.read_text(encoding="utf-8")), trace_schema())


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("config.schema.json", config_schema()),
        ("report.schema.json", report_schema()),
        ("trace.schema.json", trace_schema()),
        ("measure.schema.json", measure_schema()),
        ("soak.schema.json", soak_schema()),
        ("ladder.schema.json", ladder_schema()),
        ("ladder-report.schema.json", ladder_report_schema()),
        *((f"{name}.schema.json", schema) for name, schema in ledger_schemas().items()),
        ("narrow.schema.json", narrow_schema()),
        ("replay.schema.json", replay_schema()),
        ("compare.schema.json", compare_schema()),
        ("lint.schema.json", lint_schema()),
    ],
    ids=[
        *("config", "report", "trace", "measure", "soak", "ladder", "ladder report", *ledger_schemas()),
        *("narrow", "replay", "compare", "lint"),
    ],
)
def test_a_published_schema_is_what_the_code_says(name: str, schema: dict[str, object]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    published = ROOT / "docs" / "reference" / name
    assert schema == json.loads(published.read_text(encoding="utf-8"))


def test_every_generated_page_is_what_the_code_writes() -> None:
    pages: dict[str, str] = runpy.run_path(str(ROOT / "scripts/write_reference.py"))["pages"]()
    assert {"reasons.md", "rules.md", "lint.schema.json"} < set(pages)
    stale = [name for name, text in pages.items() if text != (ROOT / "docs/reference" / name).read_text("utf-8")]
    assert [] == stale, "scripts/docs writes them anew"


BY_HAND = pytest.mark.parametrize("schema", [config_schema(), trace_schema()], ids=["config", "trace"])


@BY_HAND
def test_the_schema_refuses_unknown_keys_everywhere(schema: dict[str, Any]) -> None:
    sections = [schema, *schema["$defs"].values()]
    open_ones = [
        each["title"]
        for each in sections
        if each.get("type") == "object" and each.get("additionalProperties") is not False
    ]
    assert [] == open_ones


@BY_HAND
def test_every_field_says_what_it_expects(schema: dict[str, Any]) -> None:
    fields = [
        (section.get("title"), name)
        for section in (schema, *schema["$defs"].values())
        for name, field in section.get("properties", {}).items()
        if not field.get("description")
    ]
    assert [] == fields
