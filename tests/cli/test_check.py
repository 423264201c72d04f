"""`kvgate check`: a PASS of exactly this deployment clears it, and everything less is refused with what is missing."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from kvgate.report.ledger_document import ledger_schemas
from tests.cli.driving import Ended, config_file, kvgate, only_run
from tests.scripted.server import Script, ScriptedServer, serving
from tests.sim.driving import deployed, served
from tests.store.recording import copied

FACTS = {"facts": {"device": "A3", "versions": {"cann": "8.5.1"}, "features": {"dcp": 2}}}
# Two groups a tier exclude 78 %.
ENOUGH = ("--max-fault-rate", "0.8")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serving() as one:
        yield one


@pytest.fixture
def config(tmp_path: Path, server: ScriptedServer) -> Path:
    return config_file(tmp_path, server, deployment=FACTS)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run that passed; not to be changed."""
    folder = tmp_path_factory.mktemp("once")
    with serving() as server:
        assert 0 == kvgate("run", "-q", "-c", config_file(folder, server, deployment=FACTS)).code
    return folder


@pytest.fixture
def passed(config: Path, once: Path) -> Path:
    """The configuration of a deployment that has passed. Its address is another now, its deployment is not."""
    shutil.copytree(once / "runs", config.parent / "runs")
    return config


def changed(config: Path, place: str, value: object) -> Path:
    """The same configuration with one key set, or taken out if the value is None."""
    data = yaml.safe_load(config.read_text(encoding="utf-8"))
    *sections, key = place.split("/")
    inner = data
    for section in sections:
        inner = inner.setdefault(section, {})
    if value is None:
        inner.pop(key)
    else:
        inner[key] = value
    other = config.with_name("changed.yaml")
    other.write_text(yaml.safe_dump(data), encoding="utf-8")
    return other


def check(config: Path, *more: str | Path) -> Ended:
    return kvgate("check", "-c", config, *(more or ENOUGH))


def lacks(ended: Ended) -> list[str]:
    """The first words of the lines that say what is missing."""
    assert 1 == ended.code, ended.err + ended.out
    assert "REFUSED" in ended.out
    assert "To get it: " in ended.out
    lines = (line.split("  ") for line in ended.out.splitlines())
    return [words[0] for words in lines if len(words) > 1 and words[0].isupper() and words[0] != "REFUSED"]


@pytest.mark.parametrize("live", [(), ("--live",)], ids=["from files", "live"])
def test_a_pass_of_exactly_this_deployment_clears_it(passed: Path, live: tuple[str, ...]) -> None:
    ended = check(passed, *ENOUGH, *live)
    assert 0 == ended.code, ended.out
    assert "CLEARED" in ended.out
    assert f"run {only_run(passed.parent).name}" in ended.out


def test_the_whole_tool_on_the_embedded_deployment(tmp_path: Path) -> None:
    """A healthy deployment is cleared; then a fault comes, and its FAIL takes the clearance away."""
    gate = {"tiers": [531], "arms": ["cold", "cold_repeat", "local", "local_repeat", "external", "external_repeat"]}
    limits = {"settle_s": 0.02, "put_deadline_s": 2.0, "evidence_s": 0.2, "release_s": 0.5}

    def gated(fault: str) -> tuple[Path, int]:
        with served(deployed(fault=fault)) as urls:
            endpoints = [{"name": "engine", "url": urls["engine"]}]
            config = config_file(
                tmp_path,
                deployment={"name": "embedded", "model": "sim", "endpoints": endpoints},
                gate={**gate, "families": [{"family": "codebook"}]},
                limits=limits,
            )
            return config, kvgate("run", "-q", "-c", config).code

    config, code = gated("healthy")
    assert 0 == code
    assert 0 == check(config).code
    # Another port is no other deployment.
    # One that shows in every group; one_bit leaves 3 of 10 prompts' answers as they are, to the last bit.
    config, code = gated("truncated_block")
    assert 1 == code
    assert ["FAILED"] == lacks(check(config))
    history = json.loads(kvgate("history", "--in", tmp_path / "runs", "--format", "json").out)
    assert ["PASS", "FAIL"] == [row["run"]["verdict"] for row in history["runs"]]
    merged = kvgate("merge", *sorted((tmp_path / "runs").glob("[0-9]*")))
    assert 1 == merged.code


# -- refusals, each beside the check above that lets it pass -------------------------------------------------------
def test_no_run_is_refused(config: Path) -> None:
    assert ["NO_RUN"] == lacks(check(config))
    assert not (config.parent / "runs").exists(), "looking makes nothing"


def test_a_run_of_another_deployment_is_no_run(passed: Path) -> None:
    assert ["NO_RUN"] == lacks(check(changed(passed, "deployment/name", "another")))


@pytest.mark.parametrize(("script", "code", "lack"), [
    (Script(fault="diverge"), 1, "FAILED"),
    (Script(pool=None), 3, "INCONCLUSIVE"),
], ids=["FAIL", "INCONCLUSIVE"])  # fmt: skip
def test_a_verdict_that_is_no_pass_is_refused(tmp_path: Path, script: Script, code: int, lack: str) -> None:
    with serving(script) as server:
        config = config_file(tmp_path, server)
        assert code == kvgate("run", "-q", "-c", config).code
    assert [lack] == lacks(check(config))


def test_a_fail_beats_an_older_pass_and_a_pass_an_older_fail(passed: Path, server: ScriptedServer) -> None:
    runs, first = passed.parent / "runs", only_run(passed.parent)
    server.script.fault = "diverge"
    assert 1 == kvgate("run", "-q", "-c", passed).code
    assert ["FAILED"] == lacks(check(passed))
    copied(first, runs, "20200101-000000-early", started_at="2020-01-01T00:00:00+00:00")
    assert ["FAILED"] == lacks(check(passed, *ENOUGH, "--max-age", "9000d")), "an older PASS"
    (failed,) = [path for path in runs.glob("[0-9]*") if path != first and "early" not in path.name]
    other = passed.parent / "other"
    copied(failed, other, "failed", started_at="2020-01-01T00:00:00+00:00")
    copied(first, other, "passed", started_at="2020-01-02T00:00:00+00:00")
    assert 0 == check(passed, *ENOUGH, "--max-age", "9000d", "--in", other).code


def test_an_old_pass_is_refused(passed: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    copied(only_run(passed.parent), old, "r1", started_at="2020-01-01T00:00:00+00:00")
    assert ["TOO_OLD"] == lacks(check(passed, *ENOUGH, "--in", old))
    assert 0 == check(passed, *ENOUGH, "--in", old, "--max-age", "9000d").code


def test_a_pass_from_the_future_is_refused(passed: Path, tmp_path: Path) -> None:
    copied(only_run(passed.parent), tmp_path / "new", "r1", started_at="2999-01-01T00:00:00+00:00")
    ended = check(passed, *ENOUGH, "--in", tmp_path / "new")
    assert ["TOO_OLD"] == lacks(ended)
    assert "in the future" in ended.out


@pytest.mark.parametrize(("place", "value", "said"), [
    ("deployment/model", "m2", "deployment.model: this deployment has 'm2'"),
    ("deployment/engine", "vllm-ascend", "deployment.engine"),
    ("deployment/salts", "ignored", "deployment.salts"),
    ("deployment/alike", True, "deployment.alike"),
    ("deployment/geometry", {"chunk": 128}, "geometry.chunk: this deployment has '128'"),
    ("deployment/facts/device", "A2", "device: this deployment has 'A2'"),
    ("deployment/facts/versions/cann", "8.5.2", "version.cann: this deployment has '8.5.2'"),
    ("deployment/facts/versions/mooncake", "0.3.8", "version.mooncake: this deployment has '0.3.8', of run"),
    ("deployment/facts/features/dcp", 4, "feature.dcp: this deployment has '4'"),
    ("deployment/facts/features/dcp", None, "feature.dcp: this deployment does not say it"),
    ("deployment/facts/features/speculation", "mtp 1", "feature.speculation: this deployment has 'mtp 1'"),
    ("requests/endpoint", "chat", "requests.endpoint"),
], ids=lambda value: str(value)[:30])  # fmt: skip
def test_another_deployment_is_refused_by_what_differs(passed: Path, place: str, value: object, said: str) -> None:
    ended = check(changed(passed, place, value))
    assert ["OTHER_DEPLOYMENT"] == lacks(ended)
    assert said in ended.out


def test_a_role_more_is_another_deployment(passed: Path) -> None:
    data = yaml.safe_load(passed.read_text(encoding="utf-8"))
    more = [*data["deployment"]["endpoints"], {"name": "b", "url": "http://127.0.0.1:1"}]
    ended = check(changed(passed, "deployment/endpoints", more))
    assert ["OTHER_DEPLOYMENT"] == lacks(ended)
    assert "'combined + combined'" in ended.out


@pytest.mark.parametrize(("dial", "value", "said"), [
    ("chunk", 128, "geometry.chunk: this deployment has '128'"),
    ("block", 32, "geometry.block_size: this deployment has '32'"),
], ids=["chunk", "block"])  # fmt: skip
def test_an_engine_that_was_started_with_another_flag_is_seen_where_it_is_asked(
    passed: Path, server: ScriptedServer, dial: str, value: int, said: str
) -> None:
    setattr(server.script, dial, value)
    assert 0 == check(passed).code, "not asked"
    ended = check(passed, *ENOUGH, "--live")
    assert {"OTHER_DEPLOYMENT"} == set(lacks(ended))
    assert said in ended.out


def test_another_commit_is_seen_where_the_engine_is_asked(passed: Path, server: ScriptedServer) -> None:
    server.script.raw["/version"] = json_reply({"version": "0.32.1+gdeadbee"})
    assert 0 == check(passed).code, "not asked"
    ended = check(passed, *ENOUGH, "--live")
    assert ["OTHER_DEPLOYMENT"] == lacks(ended)
    assert "server.version: this deployment has '0.32.1+gdeadbee'" in ended.out


def test_another_commit_is_known_from_a_later_run_that_saw_it(passed: Path, server: ScriptedServer) -> None:
    server.script.raw["/version"] = json_reply({"version": "0.32.1+gdeadbee"})
    server.script.pool = None
    first = only_run(passed.parent)
    copied(first, passed.parent / "both", "older", started_at="2020-01-01T00:00:00+00:00")
    assert 3 == kvgate("run", "-q", "-c", passed).code
    (second,) = [path for path in (passed.parent / "runs").glob("[0-9]*") if path != first]
    copied(second, passed.parent / "both", "newer", started_at="2020-01-02T00:00:00+00:00")
    ended = check(passed, *ENOUGH, "--max-age", "9000d", "--in", passed.parent / "both")
    assert ["INCONCLUSIVE"] == lacks(ended)


def test_a_model_that_is_not_served_and_a_server_that_is_away_are_errors(
    passed: Path, server: ScriptedServer, tmp_path: Path
) -> None:
    server.script.model = "m3"
    assert 2 == check(passed, *ENOUGH, "--live").code
    with serving() as gone:
        config = config_file(tmp_path, gone, deployment=FACTS)
    assert 4 == check(config, *ENOUGH, "--live").code


@pytest.mark.parametrize(("key", "run", "wanted", "said"), [
    ("evidence", "scheduled", "arrived", "evidence scheduled, not arrived"),
    ("envelope_cap_nat", 0.9, 0.5, "envelope_cap_nat 0.9, not 0.5"),
    ("accept_ids_only", True, False, "accept_ids_only true, not false"),
    ("lossy_bound_nat", 0.1, None, "lossy_bound_nat 0.1, not none"),
    ("alpha", 0.001, 0.01, "alpha 0.001, not 0.01"),
    ("exercised_share", 0.6, 0.95, "exercised_share 0.6, not 0.95"),
], ids=lambda value: str(value)[:20])  # fmt: skip
def test_a_weaker_policy_is_refused_and_a_stronger_one_is_not(
    config: Path, key: str, run: object, wanted: object, said: str
) -> None:
    weak = changed(config, f"policy/{key}", run)
    assert 0 == kvgate("run", "-q", "-c", weak).code
    assert 0 == check(weak).code
    ended = check(changed(config, f"policy/{key}", wanted) if wanted is not None else config)
    assert ["WEAKER_POLICY"] == lacks(ended)
    assert said in ended.out


def test_the_strict_policy_takes_a_pass_under_it(tmp_path: Path) -> None:
    with serving(Script(cold_noise=0.02)) as server:
        config = config_file(tmp_path, server)
        ended = kvgate("run", "-q", "-c", config, "--format", "json")
    strict = next(each for each in json.loads(ended.out)["ruling"]["results"] if each["policy"] == "strict")
    expected = {"PASS": 0}.get(strict["verdict"], 1)
    assert expected == check(config, *ENOUGH, "--policy", "strict").code


def test_too_few_groups_are_refused_with_the_number_that_is_needed(passed: Path) -> None:
    ended = check(passed, "--max-fault-rate", "0.1")
    assert ["TOO_FEW_GROUPS", "TOO_FEW_GROUPS"] == lacks(ended), "the external arm, and the local one"
    assert "29 are needed" in ended.out
    assert "gate.groups_per_tier: 29" in ended.out
    ended = kvgate("check", "-c", passed)
    assert 1 == ended.code
    assert "3 are needed for 64%" in ended.out, "a smoke run is not enough if nothing is said"


def test_groups_of_several_runs_of_one_deployment_count_together(passed: Path) -> None:
    assert 1 == check(passed, "--max-fault-rate", "0.6").code
    assert 0 == kvgate("run", "-q", "-c", passed).code
    ended = check(passed, "--max-fault-rate", "0.6")
    assert 0 == ended.code, ended.out
    assert "(n = 4)" in ended.out


@pytest.mark.parametrize(("place", "value", "lack", "said"), [
    ("gate/tiers", [512, 1024], "TIER_NOT_COVERED", "tier 1024"),
    ("gate/boundaries", True, "NOT_ASKED", "boundaries"),
    ("gate/canaries", 4, "NOT_ASKED", "canaries 4"),
    ("gate/arms", "all", "NOT_ASKED", "arm third"),
    ("gate/families", [{"family": "code"}], "NOT_ASKED", "family code en"),
    ("gate/pressure", {"concurrency": 2}, "NOT_ASKED", "pressure concurrency=2"),
], ids=lambda value: str(value)[:20])  # fmt: skip
def test_what_the_configuration_asks_for_and_no_run_sent_is_refused(
    passed: Path, place: str, value: object, lack: str, said: str
) -> None:
    ended = check(changed(passed, place, value))
    assert {lack} == set(lacks(ended))
    assert said in ended.out


def test_shards_of_tiers_count_together(passed: Path) -> None:
    other = changed(passed, "gate/tiers", [1024])
    assert 0 == kvgate("run", "-q", "-c", other).code
    both = changed(passed, "gate/tiers", [512, 1024])
    assert 0 == check(both).code


@pytest.mark.parametrize("name", ["manifest.json", "history.jsonl", "verdict.json"])
def test_an_edited_run_directory_is_refused(passed: Path, name: str) -> None:
    file = only_run(passed.parent) / name
    file.write_bytes(file.read_bytes() + b"\n")
    ended = check(passed)
    assert ["EDITED"] == lacks(ended)
    assert f"{name} changed after it was judged" in ended.out


def test_an_edit_is_noticed_without_the_old_ledger_where_the_verdict_does_not_follow(
    tmp_path: Path, server: ScriptedServer
) -> None:
    server.script.fault = "drift"
    config = config_file(tmp_path, server)
    assert 1 == kvgate("run", "-q", "-c", config).code
    run = only_run(tmp_path)
    text = (run / "verdict.json").read_text(encoding="utf-8")
    (run / "verdict.json").write_text(text.replace('"FAIL"', '"PASS"'), encoding="utf-8")
    (tmp_path / "runs" / "ledger.sqlite").unlink()
    assert ["FAILED", "EDITED"] == lacks(check(config))


def test_a_ledger_that_was_made_up_clears_nothing(tmp_path: Path, server: ScriptedServer) -> None:
    server.script.fault = "drift"
    config = config_file(tmp_path, server)
    assert 1 == kvgate("run", "-q", "-c", config).code
    with sqlite3.connect(tmp_path / "runs" / "ledger.sqlite") as plain:
        plain.execute("UPDATE runs SET verdict = 'PASS', run = replace(run, '\"FAIL\"', '\"PASS\"')")
    plain.close()
    assert ["FAILED"] == lacks(check(config))


def test_a_directory_that_is_gone_does_not_acquit_and_still_convicts(passed: Path, server: ScriptedServer) -> None:
    only_run(passed.parent).rename(passed.parent / "elsewhere")
    assert ["GONE"] == lacks(check(passed))
    (passed.parent / "elsewhere").rename(passed.parent / "runs" / "20000101-000000-back")
    assert 0 == check(passed).code
    server.script.fault = "diverge"
    assert 1 == kvgate("run", "-q", "-c", passed).code
    (failed,) = [path for path in (passed.parent / "runs").glob("[0-9]*") if "back" not in path.name]
    failed.rename(passed.parent / "hidden-away")
    assert ["FAILED"] == lacks(check(passed))


def test_a_run_that_has_no_verdict_yet_is_refused_and_can_be_judged(passed: Path) -> None:
    run = only_run(passed.parent)
    other = copied(run, passed.parent / "other", "r1")
    (other / "verdict.json").unlink()
    ended = check(passed, *ENOUGH, "--in", passed.parent / "other")
    assert ["UNFINISHED"] == lacks(ended)
    assert f"To get it: kvgate judge {other}" in ended.out
    assert 0 == kvgate("judge", other).code
    assert 0 == check(passed, *ENOUGH, "--in", passed.parent / "other").code


def test_a_run_of_an_older_kvgate_does_not_tell_enough(passed: Path, tmp_path: Path) -> None:
    copied(only_run(passed.parent), tmp_path / "old", "r1", stated=[], asked=[])
    ended = check(passed, *ENOUGH, "--in", tmp_path / "old")
    assert {"OTHER_DEPLOYMENT"} == set(lacks(ended))
    assert "deployment.ranks: this deployment has '1', of run r1" in ended.out


@pytest.mark.parametrize("cleared", [True, False])
def test_the_json_report_fits_its_schema(passed: Path, cleared: bool) -> None:
    ended = check(passed, *(ENOUGH if cleared else ("--max-fault-rate", "0.1")), "--format", "json")
    report: dict[str, Any] = json.loads(ended.out)
    jsonschema.Draft202012Validator(ledger_schemas()["check"]).validate(report)
    assert cleared is report["clearance"]["cleared"]
    assert (0 if cleared else 1) == ended.code
    assert cleared is (report["remedy"] == "")


def test_terms_that_are_none_are_refused(passed: Path) -> None:
    assert 2 == check(passed, "--max-age", "soon").code
    assert 2 == check(passed, "--max-fault-rate", "0").code


def json_reply(value: object) -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
