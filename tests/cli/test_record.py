"""`kvgate history`, `matrix`, `import`, `merge` and `prune`: what is kept of runs, and how it is shown."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from kvgate.report.ledger_document import ledger_schemas
from tests.cli.driving import Ended, config_file, kvgate, only_run
from tests.scripted.server import Script, serving
from tests.store.recording import copied

SCRIPTS = {"PASS": Script(), "FAIL": Script(fault="diverge"), "INCONCLUSIVE": Script(metrics="hits_only")}
OLD = "2020-01-01T00:00:00+00:00"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """One real run of each verdict; not to be changed."""
    found: dict[str, Path] = {}
    for verdict, script in SCRIPTS.items():
        folder = tmp_path_factory.mktemp(verdict)
        facts = {"facts": {"device": "A3", "features": {"dcp": 2}}} if verdict == "PASS" else {}
        with serving(script) as server:
            kvgate("run", "-q", "-c", config_file(folder, server, deployment=facts))
        found[verdict] = only_run(folder)
    return found


@pytest.fixture
def folder(runs: Mapping[str, Path], tmp_path: Path) -> Path:
    """A folder with a run of each verdict, one day after the other."""
    for day, (verdict, run) in enumerate(runs.items(), start=1):
        copied(run, tmp_path / "runs", verdict.lower(), started_at=f"2020-01-0{day}T00:00:00+00:00")
    return tmp_path / "runs"


def told(kind: str, ended: Ended) -> dict[str, Any]:
    """A JSON report that fits its schema."""
    report: dict[str, Any] = json.loads(ended.out)
    jsonschema.Draft202012Validator(ledger_schemas()[kind]).validate(report)
    assert f"kvgate.{kind}/1" == report["format"]
    return report


# -- history ---------------------------------------------------------------------------------------------------
def test_history_lists_every_run_oldest_first(folder: Path) -> None:
    ended = kvgate("history", "--in", folder, "--format", "json")
    assert 0 == ended.code, ended.err
    rows = told("history", ended)["runs"]
    assert [("pass", "PASS"), ("fail", "FAIL"), ("inconclusive", "INCONCLUSIVE")] == [
        (row["run"]["origin"]["run_id"], row["run"]["verdict"]) for row in rows
    ]
    known = {each["name"]: each["value"] for each in rows[0]["run"]["fingerprint"]["traits"]}
    assert ("A3", "2", None) == (known["device"], known["feature.dcp"], known["checkpoint"])
    table = kvgate("history", "--in", folder)
    assert "3 runs in" in table.out


def test_history_of_one_deployment_and_of_none(folder: Path, tmp_path: Path) -> None:
    assert 3 == len(told("history", kvgate("history", "--in", folder, "--deployment", "d", "--format", "json"))["runs"])
    assert [] == told("history", kvgate("history", "--in", folder, "--deployment", "e", "--format", "json"))["runs"]
    ended = kvgate("history", "--in", tmp_path / "nowhere")
    assert (2, 1) == (ended.code, len(ended.err.splitlines()))


def test_history_shows_names_as_they_are(runs: Mapping[str, Path], tmp_path: Path) -> None:
    path = copied(runs["PASS"], tmp_path, "r1")
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    manifest["plan"]["deployment"]["model"] = "[red]m[/x]"
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    ended = kvgate("history", "--in", tmp_path)
    assert 0 == ended.code
    assert "[red]m[/x]" in ended.out


# -- matrix ----------------------------------------------------------------------------------------------------
def test_a_matrix_has_a_cell_for_what_was_gated_and_says_unknown(folder: Path) -> None:
    ended = kvgate("matrix", "--in", folder, "--rows", "device", "--columns", "version", "--format", "json")
    table = told("matrix", ended)["matrix"]
    assert (["A3", None], ["0.32.0"]) == (table["rows"], table["columns"])
    assert [("A3", "PASS", 1), (None, "INCONCLUSIVE", 2)] == [
        (cell["row"], cell["verdict"], cell["runs"]) for cell in table["cells"]
    ], "of the two runs of one deployment the newer one counts"
    for form in ("table", "markdown", "html"):
        ended = kvgate("matrix", "--in", folder, "--rows", "device", "--format", form)
        assert 0 == ended.code, ended.err
        assert "unknown" in ended.out


@pytest.mark.parametrize(("where", "count"), [("device=A3", 1), ("device=unknown", 2), ("model=m", 3), ("dcp=4", 0)])
def test_a_matrix_takes_runs_by_conditions(folder: Path, where: str, count: int) -> None:
    ended = kvgate("matrix", "--in", folder, "--where", where, "--format", "json")
    assert count == sum(cell["runs"] for cell in told("matrix", ended)["matrix"]["cells"])


@pytest.mark.parametrize("more", [("--rows", "colour"), ("--where", "device"), ("--where", "colour=red")])
def test_a_dimension_that_is_none_is_refused_with_those_there_are(folder: Path, more: tuple[str, str]) -> None:
    ended = kvgate("matrix", "--in", folder, *more)
    assert (2, 1) == (ended.code, len(ended.err.splitlines()))
    assert more[1].partition("=")[0] in ended.err


def test_an_edited_pass_is_no_pass_in_a_matrix(folder: Path) -> None:
    kvgate("history", "--in", folder)
    (folder / "pass" / "history.jsonl").write_bytes((folder / "pass" / "history.jsonl").read_bytes() + b"\n")
    ended = kvgate("matrix", "--in", folder, "--where", "device=A3", "--format", "json")
    assert ["INCONCLUSIVE"] == [cell["verdict"] for cell in told("matrix", ended)["matrix"]["cells"]]


def test_a_page_holds_nothing_that_a_name_could_make_it_do(runs: Mapping[str, Path], tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>\'"&|`*'
    path = copied(runs["PASS"], tmp_path, "r1", started_at="<b>|1")
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    manifest["plan"]["deployment"]["model"] = evil
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (tmp_path / "<i>broken").mkdir()
    (tmp_path / "<i>broken" / "history.jsonl").write_text("", encoding="utf-8")
    page = kvgate("matrix", "--in", tmp_path, "--rows", "model", "--where", f"model={evil}", "--format", "html")
    assert 0 == page.code, page.err
    assert "&lt;script&gt;" in page.out
    for bad in ("<script", "<b>|", "<i>", "http:", "https:", "src=", "href="):
        assert bad not in page.out
    plain = kvgate("matrix", "--in", tmp_path, "--rows", "model", "--format", "markdown").out
    (row,) = [line for line in plain.splitlines() if "script" in line]
    assert "\\<script\\>" in row
    assert 3 == row.replace("\\|", "").count("|"), "two cells, however the name reads"


# -- import ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("index", [(), ("--index",)], ids=["copied", "indexed"])
def test_runs_are_taken_in_from_any_depth_and_once(folder: Path, tmp_path: Path, index: tuple[str, ...]) -> None:
    artefacts, into = tmp_path / "job-1" / "artefacts", tmp_path / "kept"
    shutil.copytree(folder, artefacts / "a" / "b")
    shutil.copytree(folder / "pass", artefacts / "again")
    (artefacts / "bad").mkdir()
    (artefacts / "bad" / "history.jsonl").write_text("{", encoding="utf-8")
    first = told("import", kvgate("import", tmp_path / "job-1", "--in", into, *index, "--format", "json"))["imports"]
    assert (3, 1, 1) == tuple(len(first[name]) for name in ("taken", "known", "broken"))
    assert "is no run directory (no manifest.json)" in first["broken"][0]["why"]
    again = kvgate("import", tmp_path / "job-1", "--in", into, *index)
    assert 0 == again.code
    assert "0 taken in, 4 known already, 1 skipped" in again.out
    rows = told("history", kvgate("history", "--in", into, "--format", "json"))["runs"]
    assert ["pass", "fail", "inconclusive"] == [row["run"]["origin"]["run_id"] for row in rows]
    assert bool(index) is not (into / "pass" / "verdict.json").exists()
    assert bool(index) is ("artefacts" in rows[0]["place"])


def test_an_import_of_nothing_that_can_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ended = kvgate("import", tmp_path / "empty", tmp_path / "nowhere", "--in", tmp_path / "kept")
    assert 2 == ended.code
    assert "holds no run directory" in ended.out
    assert "is no folder" in ended.out


def test_a_run_that_was_edited_on_the_way_does_not_take_the_place_of_the_one_that_is_known(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "fail", tmp_path / "edited" / "fail")
    history = tmp_path / "edited" / "fail" / "history.jsonl"
    history.write_bytes(history.read_bytes()[:-700])
    kvgate("history", "--in", folder)
    ended = kvgate("import", tmp_path / "edited", "--in", folder)
    assert 2 == ended.code
    assert "known already with other files" in ended.out
    states = [row["state"] for row in told("history", kvgate("history", "--in", folder, "--format", "json"))["runs"]]
    assert ["kept"] * 3 == states


def test_an_import_takes_no_links_along(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret", encoding="utf-8")
    (folder / "pass" / "prompts" / "x.json").symlink_to(secret)
    (folder / "fail" / "manifest.json").rename(tmp_path / "manifest.json")
    (folder / "fail" / "manifest.json").symlink_to(tmp_path / "manifest.json")
    ended = kvgate("import", folder, "--in", tmp_path / "kept")
    assert 0 == ended.code
    assert "is no plain file" in ended.out
    assert not (tmp_path / "kept" / "pass" / "prompts" / "x.json").exists()
    assert (tmp_path / "kept" / "pass" / "prompts" / "t512-1.json").exists()


# -- prune -----------------------------------------------------------------------------------------------------
def test_old_runs_are_deleted_and_recent_ones_and_failures_stay(folder: Path, runs: Mapping[str, Path]) -> None:
    shutil.copytree(runs["PASS"], folder / runs["PASS"].name)
    dry = kvgate("prune", "--keep-days", "30", "--in", folder, "--keep-failures", "--dry-run")
    assert (0, True) == (dry.code, "2 runs would be deleted" in dry.out)
    assert 4 == len(list(folder.glob("*/manifest.json")))
    ended = kvgate("prune", "--keep-days", "30", "--in", folder, "--keep-failures", "--format", "json")
    assert ["pass", "inconclusive"] == [row["run"]["origin"]["run_id"] for row in told("prune", ended)["runs"]]
    assert {"fail", runs["PASS"].name} == {path.parent.name for path in folder.glob("*/manifest.json")}
    assert 0 == kvgate("prune", "--keep-days", "30", "--in", folder).code
    assert [runs["PASS"].name] == [path.parent.name for path in folder.glob("*/manifest.json")]
    assert 1 == len(told("history", kvgate("history", "--in", folder, "--format", "json"))["runs"])


def test_a_run_that_still_writes_is_not_deleted_however_long_ago_it_began(folder: Path) -> None:
    (folder / "pass" / "verdict.json").unlink()
    ended = kvgate("prune", "--keep-days", "30", "--in", folder)
    assert 0 == ended.code
    assert (folder / "pass" / "history.jsonl").exists()


def test_what_lies_elsewhere_is_forgotten_and_left(folder: Path, tmp_path: Path) -> None:
    kvgate("import", folder, "--in", tmp_path / "kept", "--index")
    assert 0 == kvgate("prune", "--keep-days", "30", "--in", tmp_path / "kept").code
    assert 3 == len(list(folder.glob("*/manifest.json")))
    assert [] == told("history", kvgate("history", "--in", tmp_path / "kept", "--format", "json"))["runs"]


# -- merge -----------------------------------------------------------------------------------------------------
def test_shards_are_as_bad_as_the_worst_and_have_their_tiers_and_groups_together(tmp_path: Path) -> None:
    gate = {"groups_per_tier": 3}
    with serving() as server:
        for tiers in ([512], [512, 1024]):
            assert 0 == kvgate("run", "-q", "-c", config_file(tmp_path, server, gate={**gate, "tiers": tiers})).code
        shards = sorted((tmp_path / "runs").glob("[0-9]*"))
        merged = told("merge", kvgate("merge", *shards, *shards[:1], "--format", "json"))["merged"]
        assert ("PASS", [512, 1024], 9, 2) == (
            merged["verdict"],
            merged["tiers"],
            merged["groups"],
            len(merged["shards"]),
        )
        counts = {(each["tier"], each["arm"]): each["groups"] for each in merged["excluded"]}
        assert (6, 3) == (counts[512, "external"], counts[1024, "external"])
        server.script.fault = "diverge"
        config = config_file(tmp_path, server, gate={**gate, "tiers": [2048]})
        assert 1 == kvgate("run", "-q", "-c", config).code
    shards = sorted((tmp_path / "runs").glob("[0-9]*"))
    ended = kvgate("merge", *shards)
    assert 1 == ended.code
    assert "without a PASS: tiers 2048" in ended.out


@pytest.mark.parametrize(("verdicts", "code"), [(("PASS",), 0), (("FAIL", "INCONCLUSIVE"), 1), (("INCONCLUSIVE",), 3)])
def test_the_exit_code_of_a_merge_is_the_worst(runs: Mapping[str, Path], verdicts: tuple[str, ...], code: int) -> None:
    assert code == kvgate("merge", *(runs[verdict] for verdict in verdicts)).code


def test_runs_of_different_deployments_are_not_merged(runs: Mapping[str, Path], tmp_path: Path) -> None:
    with serving(Script(model="m2")) as server:
        kvgate("run", "-q", "-c", config_file(tmp_path, server, deployment={"model": "m2"}))
    ended = kvgate("merge", runs["FAIL"], only_run(tmp_path))
    assert (2, 1) == (ended.code, len(ended.err.splitlines()))
    assert "deployment.model: run" in ended.err
    assert 2 == kvgate("merge", tmp_path / "nowhere").code


def test_one_run_in_two_states_is_not_merged(runs: Mapping[str, Path], tmp_path: Path) -> None:
    other = Path(shutil.copytree(runs["PASS"], tmp_path / "other"))
    (other / "history.jsonl").write_bytes((other / "history.jsonl").read_bytes()[:-700])
    ended = kvgate("merge", runs["PASS"], other)
    assert 2 == ended.code
    assert "their files differ" in ended.err
