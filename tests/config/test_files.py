"""Files that must keep step with the code: example configurations and published schemas."""

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from kvgate.config.load import config_schema, load_config, load_trace_with_digest, trace_schema
from kvgate.config.trace_schema import trace_of
from kvgate.report.document import report_schema
from kvgate.report.measure_document import measure_schema

ROOT = Path(__file__).parents[2]
TRACES = sorted((ROOT / "configs" / "traces").glob("*.yaml"))
CONFIGS = [file for file in sorted((ROOT / "configs").glob("**/*.yaml")) if file not in TRACES]


def test_there_are_example_configurations() -> None:
    assert CONFIGS
    assert TRACES


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
    ],
    ids=["config", "report", "trace", "measure"],
)
def test_a_published_schema_is_what_the_code_says(name: str, schema: dict[str, object]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    published = ROOT / "docs" / "reference" / name
    assert schema == json.loads(published.read_text(encoding="utf-8"))


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
