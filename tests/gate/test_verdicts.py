"""The whole tool against scripted deployments: what each must end with, and why."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.driving import Driven, gate, kvgate, write_config
from tests.scripted.server import Pool, Script, serving

HEALTHY: tuple[tuple[str, Script, dict[str, Any]], ...] = (
    ("aligned", Script(), {}),
    ("not streamed", Script(), {"requests": {"stream": False, "max_tokens": 16}}),
    ("slow puts", Script(put_lag=0.05), {}),
    ("a reset that does not say whether it worked", Script(reset="silent"), {}),
    ("IDs only as logprob keys", Script(token_ids=False), {}),
    ("geometry found by probing", Script(cache_info=False, server_info=False), {}),
    ("both families in both languages", Script(max_model_len=8192), {
        "gate": {
            "tiers": [2000],
            "groups_per_tier": 4,
            "families": [{"family": f, "language": g} for f in ("codebook", "prose") for g in ("en", "zh")],
        }
    }),
    ("boundary lengths", Script(), {"gate": {"boundaries": True, "groups_per_tier": 1}}),
    ("benign noise between cold and hit", Script(cold_noise=0.05), {
        "gate": {"lengths": "exact", "tiers": [500, 700]}
    }),
    ("benign noise where there must be none, accepted", Script(cold_noise=0.05), {
        "policy": {"accept_unproven_alignment": True}
    }),
    ("scheduled evidence, accepted", Script(metrics="hits_only"), {"policy": {"evidence": "scheduled"}}),
    ("no logprobs, accepted", Script(logprobs=False), {"policy": {"accept_ids_only": True}}),
    ("a store declared lossy", Script(fault="drift"), {"policy": {"lossy_bound_nat": 0.001}}),
)  # fmt: skip


@pytest.mark.parametrize(("name", "script", "changes"), HEALTHY, ids=[case[0] for case in HEALTHY])
def test_healthy_deployments_pass(name: str, script: Script, changes: dict[str, Any], tmp_path: Path) -> None:
    driven = gate(tmp_path, script, **changes)
    assert driven.code == 0, driven.stdout
    assert driven.ruling["verdict"] == "PASS"
    external = [arm for group in driven.ruling["groups"] for arm in group["arms"] if arm["arm"] == "external"]
    assert external
    assert all(arm["proven"] and arm["local"] == 0 and arm["external"] > 0 for arm in external)


FAULTY: tuple[tuple[str, Script, dict[str, Any], str], ...] = (
    ("other tokens", Script(fault="diverge"), {}, "DIVERGED"),
    ("drift only", Script(fault="drift"), {}, "DRIFT"),
    ("no logprobs are numbers", Script(fault="nan"), {}, "DRIFT"),
    ("no tokens", Script(fault="empty"), {}, "EMPTY"),
    ("half the tokens", Script(fault="truncate"), {}, "TRUNCATED"),
    ("the same token for ever", Script(fault="degenerate"), {}, "DEGENERATE"),
    ("an error on every hit", Script(fault="refuse", fault_after=1), {}, "SUBJECT_REFUSED"),
    ("more drift than declared", Script(fault="drift"), {"policy": {"lossy_bound_nat": 0.00005}}, "DRIFT"),
)


@pytest.mark.parametrize(("name", "script", "changes", "reason"), FAULTY, ids=[case[0] for case in FAULTY])
def test_faults_on_the_external_path_fail_and_name_it(
    name: str, script: Script, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    driven = gate(tmp_path, script, **changes)
    assert driven.code == 1
    assert driven.reasons[0] == reason
    attributions = [pair["attribution"] for group in driven.ruling["groups"] for pair in group["pairs"]]
    assert any("external path" in each for each in attributions if each)
    assert any("external pool" in advice for advice in driven.ruling["advice"])


UNPROVED: tuple[tuple[str, Script, dict[str, Any], str], ...] = (
    # What differs by next to nothing in one load of four may be an engine that answers now and then a little otherwise.
    ("drift in one load only", Script(fault="flaky"), {}, "UNSTABLE"),
    ("drift in one load only, the repeat's", Script(fault="flaky", fault_after=1), {}, "UNSTABLE"),
    ("no pool", Script(pool=None), {}, "PATH_NOT_EXERCISED"),
    ("puts never arrive", Script(put_lag=1e9), {}, "EXTERNAL_MISS"),
    ("loads fail silently", Script(fault="load_failed"), {}, "LOAD_FAILED"),
    ("no reset endpoint", Script(reset="missing"), {}, "RESET_UNAVAILABLE"),
    ("a reset that lies", Script(reset="lie"), {}, "LOCAL_NOT_DROPPED"),
    ("no metrics page", Script(metrics="missing"), {}, "COUNTERS_UNREADABLE"),
    ("a web page instead of metrics", Script(metrics="html"), {}, "COUNTERS_UNREADABLE"),
    ("counters stuck at zero", Script(metrics="stuck"), {}, "EVIDENCE_MISSING"),
    ("look-ups only", Script(metrics="hits_only"), {}, "EVIDENCE_TOO_WEAK"),
    ("no prefix caching", Script(prefix_caching=False), {}, "BASELINE_NOT_LOCAL"),
    ("salts ignored", Script(salts_honoured=False), {}, "SALT_IGNORED"),
    ("no logprobs", Script(logprobs=False), {}, "LOGPROBS_UNUSABLE"),
    ("noise at aligned lengths", Script(cold_noise=0.05), {}, "ALIGNMENT_UNPROVEN"),
    ("text only", Script(logprobs=False, token_ids=False), {}, "TEXT_ONLY"),
    ("somebody else's requests", Script(foreign=5), {}, "FOREIGN_TRAFFIC"),
    ("preemptions", Script(preempt=True), {}, "PREEMPTED"),
    ("every tier below the floor", Script(block=512), {}, "NOTHING_CHECKED"),
    ("a failing hook", Script(), {"hooks": {"before_arm": {"external": ["false"]}}}, "HOOK_FAILED"),
    ("a hook that is not there", Script(), {"hooks": {"before_arm": {"cold": ["/nonexistent"]}}}, "HOOK_FAILED"),
    ("a budget of next to no time", Script(), {"budget": {"minutes": 1e-6}}, "BUDGET_EXHAUSTED"),
)


@pytest.mark.parametrize(("name", "script", "changes", "reason"), UNPROVED, ids=[case[0] for case in UNPROVED])
def test_nothing_unproved_passes(
    name: str, script: Script, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    driven = gate(tmp_path, script, **changes)
    assert driven.code == 3, driven.stdout + driven.stderr
    assert driven.reasons[0] == reason
    assert driven.ruling["verdict"] == "INCONCLUSIVE"


def test_gross_garbage_convicts_even_without_counters(tmp_path: Path) -> None:
    driven = gate(tmp_path, Script(metrics="missing", fault="diverge"))
    assert driven.code == 1
    assert driven.reasons[0] == "DIVERGED"


def test_another_groups_nonce_in_the_answer_is_a_leak(tmp_path: Path) -> None:
    script = Script(fault="leak", fault_after=3)
    with serving(script) as server:
        config = write_config(tmp_path, [server], {"gate": {"tiers": [400], "groups_per_tier": 2, "seed": 7}})
        plan = kvgate(tmp_path, "plan", "-c", str(config), "--format", "json")
        server.others_nonce = plan.report["groups"][0]["nonce"]
        driven = kvgate(tmp_path, "run", "-c", str(config), "--format", "json", "-q")
    assert driven.code == 1
    assert driven.reasons[0] == "LEAK"


def test_a_deployment_that_goes_away_is_remote_trouble(tmp_path: Path) -> None:
    driven = gate(tmp_path, Script(die_after=6))
    assert driven.code == 4
    assert driven.reasons[0] == "ENDPOINT_LOST"
    assert kvgate(tmp_path, "judge", str(driven.run), "--check").code == 4


def two_servers(folder: Path, writer: Script, reader: Script, **changes: dict[str, Any]) -> Driven:
    with serving(writer) as one, serving(reader) as two:
        config = write_config(folder, [one, two], changes)
        return kvgate(folder, "run", "-c", str(config), "--format", "json", "-q")


@pytest.mark.parametrize("reset", ["ok", "missing"])
def test_a_second_instance_needs_no_reset(reset: str, tmp_path: Path) -> None:
    """Production engines have no reset endpoint; then the repeat reads a second key space."""
    pool = Pool()
    driven = two_servers(tmp_path, Script(pool=pool, reset=reset), Script(pool=pool, reset=reset))
    assert driven.code == 0, driven.stdout
    arms = {arm["arm"]: arm["endpoint"] for arm in driven.ruling["groups"][0]["arms"]}
    assert arms["cold"] == "writer"
    assert {arms[name] for name in ("local", "local_repeat", "external", "external_repeat")} == {"reader"}
    assert ("populate" in arms) == (reset == "missing")


def test_two_instances_that_share_no_pool_do_not_pass(tmp_path: Path) -> None:
    driven = two_servers(tmp_path, Script(), Script())
    assert driven.code == 3
    assert driven.reasons[0] == "EXTERNAL_MISS"


def test_slow_puts_between_instances_are_waited_for_with_another_prompt(tmp_path: Path) -> None:
    """A reader's miss must not be repeated: it would hit what it put there itself."""
    pool = Pool()
    scripts = [Script(pool=pool, put_lag=2.0) for _ in range(2)]
    driven = two_servers(tmp_path, scripts[0], scripts[1], budget={"replacements": 5}, limits={"settle_s": 0.1})
    assert driven.code == 0, driven.stdout
    groups = driven.ruling["groups"]
    assert [group for group in groups if group["replaced"]]
    assert all(arm["attempts"] == 1 for group in groups for arm in group["arms"] if arm["arm"] == "external")


def test_a_fault_at_the_reader_names_the_reader(tmp_path: Path) -> None:
    pool = Pool()
    driven = two_servers(tmp_path, Script(pool=pool), Script(pool=pool, fault="drift", fault_after=0))
    assert driven.code == 1
    assert "loaded into reader" in driven.pairs("external", "local")[0]["attribution"]


def test_a_void_group_is_replaced_within_the_budget(tmp_path: Path) -> None:
    with serving(Script(foreign=5)) as server:

        def quiet_after_three(body: dict[str, Any]) -> bytes | None:
            server.script.foreign = 5 if server.counts.requests < 6 else 0
            return None

        server.script.completion = quiet_after_three
        config = write_config(tmp_path, [server], {})
        driven = kvgate(tmp_path, "run", "-c", str(config), "--format", "json", "-q")
    assert driven.code == 0, driven.stdout
    assert [True, False, False] == [group["replaced"] for group in driven.ruling["groups"]]


def test_a_tier_below_the_floor_is_not_applicable_and_a_short_control_is_sent(tmp_path: Path) -> None:
    driven = gate(tmp_path, Script(block=512), gate={"tiers": [400, 1200], "groups_per_tier": 1})
    assert driven.code == 0, driven.stdout
    assert [(400, 513)] == [(each["tier"], each["hit_floor"]) for each in driven.ruling["not_applicable"]]
    short = [group for group in driven.ruling["groups"] if group["purpose"] == "short_control"]
    assert [("PASS", 400)] == [(group["verdict"], group["length"]) for group in short]


def test_hooks_are_told_where_they_are(tmp_path: Path) -> None:
    note = tmp_path / "note"
    hook = ["sh", "-c", f'echo "$KVGATE_GROUP $KVGATE_ARM $KVGATE_ATTEMPT $(cat $KVGATE_PROMPT | wc -c)" >> {note}']
    driven = gate(
        tmp_path, Script(), gate={"groups_per_tier": 1, "tiers": [400]}, hooks={"after_arm": {"external": hook}}
    )
    assert driven.code == 0
    group, arm, attempt, size = note.read_text().split()
    assert ("t400-1", "external", "0") == (group, arm, attempt)
    assert int(size) > 400


def test_requests_are_greedy_and_salted_per_run_and_group(tmp_path: Path) -> None:
    with serving() as server:
        config = write_config(tmp_path, [server], {})
        driven = kvgate(tmp_path, "run", "-c", str(config), "--format", "json", "-q")
        bodies = [body for body in server.bodies if "kvgate-" in str(body.get("cache_salt"))]
    assert driven.code == 0
    assert {(0, 1, -1, 42)} == {(b["temperature"], b["top_p"], b["top_k"], b["seed"]) for b in bodies}
    assert not [body for body in bodies if {"min_tokens", "tools", "response_format"} & body.keys()]
    run = driven.report["run_id"]
    groups = ("t400-1-a", "t400-1-b", "t400-2-a", "t400-2-b", "warmup-writer-a")
    afresh = tuple(f"sentinel-writer-a{number}" for number in range(4))
    assert {f"kvgate-{run}-{place}" for place in (*groups, *afresh)} == {body["cache_salt"] for body in bodies}
    assert len({tuple(body["prompt"][:12]) for body in bodies}) == 4


def test_a_subject_lost_twice_is_never_replaced_by_a_luckier_group(tmp_path: Path) -> None:
    """A 503 on every external hit may be the fault itself."""
    with serving() as server:
        busy = b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"

        def refuse_hits(body: dict[str, Any]) -> bytes | None:
            first = server.blocks(body["prompt"], body.get("cache_salt", ""))[:1]
            known = server.script.pool is not None and set(first) <= server.script.pool.keys.keys()
            return busy if known and not server.local and first else None

        server.script.completion = refuse_hits
        config = write_config(tmp_path, [server], {})
        driven = kvgate(tmp_path, "run", "-c", str(config), "--format", "json", "-q")
    assert driven.code == 3
    assert driven.reasons[0] == "OBSERVATION_MISSING"
    assert not [group for group in driven.ruling["groups"] if group["replaced"]]


def test_a_hook_may_leave_a_server_running(tmp_path: Path) -> None:
    hook = ["sh", "-c", "sleep 40 & exit 0"]
    started = time.monotonic()
    driven = gate(
        tmp_path, Script(), gate={"groups_per_tier": 1, "tiers": [400]}, hooks={"before_arm": {"external": hook}}
    )
    assert driven.code == 0, driven.stdout
    assert time.monotonic() - started < 30


def test_a_short_control_that_is_served_from_a_cache_shows_a_wrong_floor(tmp_path: Path) -> None:
    with serving() as server:
        config = write_config(tmp_path, [server], {"gate": {"tiers": [400, 1200], "groups_per_tier": 1}})
        text = config.read_text().replace("  model: m", "  model: m\n  geometry: {granule: 512}")
        config.write_text(text)
        driven = kvgate(tmp_path, "run", "-c", str(config), "--format", "json", "-q")
    assert driven.code == 3, driven.stdout
    assert "FLOOR_WRONG" in driven.reasons


def test_a_replaced_group_that_failed_is_shown_as_such(tmp_path: Path) -> None:
    """The first group diverges while a preemption voids its cold repeat."""
    with serving(Script(fault="diverge", fault_after=1)) as server:

        def preempt_once(body: dict[str, Any]) -> bytes | None:
            server.script.preempt = str(body.get("cache_salt", "")).endswith("t400-1-b")
            if "t400-1-b" in str(body.get("cache_salt", "")):
                server.script.fault = ""
            return None

        server.script.completion = preempt_once
        config = write_config(tmp_path, [server], {})
        junit = tmp_path / "junit.xml"
        driven = kvgate(tmp_path, "run", "-c", str(config), "--format", "json", "-q", "--junit", str(junit))
        table = kvgate(tmp_path, "report", str(driven.run)).stdout
    assert driven.code == 1
    assert driven.ruling["groups"][0]["replaced"]
    assert "<failure" in junit.read_text()
    assert "speaks against the external path" in table
    assert driven.ruling["advice"]
