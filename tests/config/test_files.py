"""Files that must keep step with the code: example configurations and published schemas."""

import json
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from kvgate.config.load import config_schema, load_config
from kvgate.report.document import report_schema

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("**/*.yaml"))


def test_there_are_example_configurations() -> None:
    assert CONFIGS


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_example_configuration_loads_and_fits_the_schema(file: Path) -> None:
    assert load_config(file).deployment.endpoints
    jsonschema.validate(yaml.safe_load(file.read_text(encoding="utf-8")), config_schema())


@pytest.mark.parametrize(
    ("name", "schema"),
    [("config.schema.json", config_schema()), ("report.schema.json", report_schema())],
    ids=["config", "report"],
)
def test_a_published_schema_is_what_the_code_says(name: str, schema: dict[str, object]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    published = ROOT / "docs" / "reference" / name
    assert schema == json.loads(published.read_text(encoding="utf-8"))


def test_the_schema_refuses_unknown_keys_everywhere() -> None:
    schema = config_schema()
    sections = [schema, *schema["$defs"].values()]
    open_ones = [
        each["title"]
        for each in sections
        if each.get("type") == "object" and each.get("additionalProperties") is not False
    ]
    assert [] == open_ones


def test_every_field_says_what_it_expects() -> None:
    schema = config_schema()
    fields = [
        (section.get("title"), name)
        for section in (schema, *schema["$defs"].values())
        for name, field in section.get("properties", {}).items()
        if not field.get("description")
    ]
    assert [] == fields
