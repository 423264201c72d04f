"""`kvgate narrow` as a command: what it prints, how it ends, and what it refuses."""

import json
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import yaml

from kvgate.report.narrow_document import narrow_schema
from tests.cli.driving import config_file, kvgate, only_run
from tests.scripted.server import Script, serving


def test_it_prints_what_it_came_to_and_leaves_a_reproducer(tmp_path: Path) -> None:
    with serving(Script(fault="drift")) as server:
        file = config_file(tmp_path, server)
        assert 1 == kvgate("run", "-q", "-c", file).code
        run = only_run(tmp_path)
        ended = kvgate("narrow", run, "-q", "-c", file, "--format", "json")
        table = kvgate("narrow", run, "-q", "-c", file, "--groups", "2")
    assert 1 == ended.code, ended.err
    content = json.loads(ended.out)
    jsonschema.validate(content, narrow_schema())
    assert (run.name, "ALL_FAIL") == (content["of_run"], content["result"]["length"]["found"])
    made = run.parent / content["run_id"]
    assert {".json", ".sh"} == {each.suffix for each in (made / "replay").iterdir()}
    assert 1 == kvgate("judge", made, "--check").code, "what was sent is a run like any other"
    assert "length  ALL_FAIL" in " ".join(table.out.split("\n"))


def test_a_run_that_does_not_fail_and_another_deployment_are_refused(tmp_path: Path) -> None:
    (tmp_path / "failing").mkdir()
    with serving() as server, serving(Script(fault="drift")) as faulty:
        file = config_file(tmp_path, server)
        kvgate("run", "-q", "-c", file)
        other = config_file(tmp_path / "failing", faulty)
        kvgate("run", "-q", "-c", other)
        passed = kvgate("narrow", only_run(tmp_path), "-q", "-c", file)
        content = yaml.safe_load(other.read_text(encoding="utf-8"))
        content["deployment"]["geometry"] = {"granule": 64}
        other.write_text(yaml.safe_dump(content), encoding="utf-8")
        unlike = kvgate("narrow", only_run(tmp_path / "failing"), "-q", "-c", other)
    assert (2, True) == (passed.code, "no group of a tier or a boundary length fails (the run is PASS)" in passed.err)
    assert (2, True) == (unlike.code, "give the configuration of the deployment that failed" in unlike.err)
    assert [1, 1] == [len(each.err.strip().splitlines()) for each in (passed, unlike)]
