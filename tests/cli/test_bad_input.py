"""Bad input of every kind: the right exit code, one clear sentence per complaint, and never a traceback."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.driving import Ended, config_data, kvgate, kvgate_process
from tests.scripted.server import Script, framed, serving


@dataclass(frozen=True)
class Case:
    """One bad input: what is wrong, the exit code, and what the sentence must contain."""

    name: str
    code: int
    said: tuple[str, ...]
    change: Callable[[dict[str, Any]], object] | None = None
    text: Callable[[str], str] | None = None
    script: Script = field(default_factory=Script)
    lines: int = 1


def put(path: str, value: object) -> Callable[[dict[str, Any]], object]:
    """A change that sets one value, by a dotted path."""
    *sections, last = path.split(".")

    def change(data: dict[str, Any]) -> None:
        for name in sections:
            data = data[name] if isinstance(data, dict) else data[int(name)]
        data[last] = value

    return change


def endpoint(name: str, role: str = "combined", url: str = "") -> dict[str, str]:
    return {"name": name, "role": role, "url": url or "http://127.0.0.1:9"}


FILE_CASES = [
    *(
        Case(
            f"a hook beside {arm}",
            2,
            ("hooks", f"no hook runs beside {arm} requests"),
            put("hooks", {"before_arm": {arm: ["true"]}}),
        )
        for arm in ("warmup", "canary", "sentinel")
    ),
    Case("empty file", 2, ("the file is empty", "version: 1"), text=lambda _: ""),
    Case("only comments", 2, ("the file is empty",), text=lambda _: "# nothing\n"),
    Case("a list at the top", 2, ("the file is a list",), text=lambda _: "- version: 1\n"),
    Case("a word at the top", 2, ("the file is a str",), text=lambda _: "version\n"),
    Case("unclosed bracket", 2, ("config.yaml:", "not valid YAML", "mend"), text=lambda _: "version: [1\n"),
    Case("tab indentation", 2, (":2: not valid YAML",), text=lambda _: "deployment:\n\tname: d\n"),
    Case("two documents", 2, ("not valid YAML",), text=lambda text: f"{text}---\n{text}"),
    Case("unknown tag", 2, ("not valid YAML",), text=lambda text: text + "budget: !!python/name:os.system {}\n"),
    Case("control character", 2, ("not valid YAML",), text=lambda text: text + "budget: \x00\n"),
    Case("key twice", 2, ("version is given twice", "first on line 1"), text=lambda text: text + "version: 1\n"),
    Case("a list as key", 2, ("config.yaml:",), text=lambda text: text + "? [a, b]\n: 1\n"),
    Case("a mapping as key", 2, ("config.yaml:",), text=lambda text: text + "? {a: b}\n: 1\n"),
    Case("a number as key", 2, ("config.yaml:",), text=lambda text: text + "7: 1\n"),
    Case("a date that does not exist", 2, ("config.yaml:",), text=lambda text: text + "budget: 2026-02-31\n"),
    Case("an alias to itself", 2, ("config.yaml:",), text=lambda text: text + "budget: &a [*a]\n"),
    Case("an alias to nothing", 2, ("not valid YAML", "undefined alias"), text=lambda text: text + "budget: *a\n"),
]

CONFIG_CASES = [
    Case("no version", 2, ("version: is missing", "version of this format: 1"), lambda data: data.pop("version")),
    Case("other version", 2, ("version: 2 cannot be used", "1"), put("version", 2)),
    Case("no deployment", 2, ("deployment: is missing",), lambda data: data.pop("deployment")),
    Case("unknown section", 2, ("gates: there is no such key", "did you mean 'gate'"), put("gates", {})),
    Case("unknown key", 2, ("gate.teirs", "did you mean 'tiers'"), put("gate.teirs", [512])),
    Case("tiers as text", 2, ("gate.tiers", '"512, 1024"', "for instance [4096"), put("gate.tiers", "512, 1024")),
    Case("tiers as number", 2, ("gate.tiers", "512"), put("gate.tiers", 512)),
    Case("no tiers", 2, ("gate.tiers", "[]"), put("gate.tiers", [])),
    Case("tier zero", 2, ("gate.tiers.1", "0 cannot be used"), put("gate.tiers", [512, 0])),
    Case("negative tier", 2, ("gate.tiers.0", "-512 cannot be used"), put("gate.tiers", [-512])),
    Case("fractional tier", 2, ("gate.tiers.0", "512.5"), put("gate.tiers", [512.5])),
    Case("tier is null", 2, ("gate.tiers.0", "null"), put("gate.tiers", [None])),
    Case("truth as number", 2, ("gate.groups_per_tier", "true"), put("gate.groups_per_tier", True)),
    Case("no groups", 2, ("gate.groups_per_tier", "0"), put("gate.groups_per_tier", 0)),
    Case("unknown engine", 2, ("deployment.engine", '"sglang"'), put("deployment.engine", "sglang")),
    Case("unknown role", 2, ("endpoints.0.role", '"both"'), put("deployment.endpoints.0.role", "both")),
    Case("unknown arm", 2, ("gate.arms.1", '"warm"', "cold_repeat"), put("gate.arms", ["cold", "warm"])),
    Case("no cold arm", 2, ("gate.arms", "needs the cold arm"), put("gate.arms", ["local", "external"])),
    Case("nothing to compare", 2, ("gate.arms", "nothing is left"), put("gate.arms", ["cold", "cold_repeat"])),
    Case("unknown policy", 2, ("policy.name", '"lenient"', "strict"), put("policy", {"name": "lenient"})),
    Case("unknown family", 2, ("gate.families.0.family", '"poem"'), put("gate.families", [{"family": "poem"}])),
    Case(
        "floor above cap",
        2,
        ("policy", "envelope_floor_nat (0.9) is above envelope_cap_nat (0.5)"),
        put("policy", {"envelope_floor_nat": 0.9}),
    ),
    Case(
        "url without http", 2, ("endpoints.0.url", '"127.0.0.1:80'), put("deployment.endpoints.0.url", "127.0.0.1:80")
    ),
    Case("url with a query", 2, ("endpoints.0.url",), put("deployment.endpoints.0.url", "http://a:80/?x=1")),
    Case("url of no host", 2, ("endpoints.0.url",), put("deployment.endpoints.0.url", "http://")),
    Case("url with a bad port", 2, ("url",), put("deployment.endpoints.0.url", "http://127.0.0.1:80000")),
    Case("url with a worded port", 2, ("url",), put("deployment.endpoints.0.url", "http://127.0.0.1:port")),
    Case("url with an open bracket", 2, ("url",), put("deployment.endpoints.0.url", "http://[::1")),
    Case("url with a password", 2, ("url",), put("deployment.endpoints.0.url", "http://me:hunter2@127.0.0.1:9")),
    Case("no endpoints", 2, ("deployment.endpoints", "[]"), put("deployment.endpoints", [])),
    Case("names twice", 2, ("named 'a'",), put("deployment.endpoints", [endpoint("a"), endpoint("a")])),
    Case("only a prefill", 2, ("role combined",), put("deployment.endpoints", [endpoint("p", "prefill")])),
    Case("other instance of one", 2, ("other_instance", "two"), put("gate.forcing", "other_instance")),
    Case("tier too long", 2, ("tier 9000", "maximum length 4096", "4080"), put("gate.tiers", [512, 9000])),
    Case("tier too short", 2, ("tier 64", "does not fit"), put("gate", {"tiers": [64], "lengths": "exact"})),
    Case("budget too small", 2, ("budget.computed_tokens is 100",), put("budget", {"computed_tokens": 100})),
    Case(
        "power that no plan gives",
        2,
        ("policy.max_fault_rate 0.1 needs 29 groups per tier", "raise it"),
        put("policy", {"max_fault_rate": 0.1}),
    ),
    Case(
        "no such variable", 2, ("KVGATE_NO_SUCH is not set",), put("deployment.auth", {"bearer_env": "KVGATE_NO_SUCH"})
    ),
    Case("empty hook", 2, ("hooks.before_arm.external", "[]"), put("hooks", {"before_arm": {"external": []}})),
    Case("hook as text", 2, ("before_arm.external", '"sync"'), put("hooks", {"before_arm": {"external": "sync"}})),
    Case("hook of no arm", 2, ("hooks.before_arm", "warm"), put("hooks", {"before_arm": {"warm": ["sync"]}})),
    Case("output of no name", 2, ("output.directory", '""'), put("output.directory", "")),
    Case("wrong model", 2, ("deployment.model", "'other'", "it serves m"), put("deployment.model", "other")),
    Case(
        "two complaints",
        2,
        ("gate.tiers.0", "policy.alpha"),
        lambda data: (put("gate.tiers", [0])(data), put("policy", {"alpha": 2})(data)),
        lines=2,
    ),
]

JSON = "application/json"
PAGE = framed(200, "text/html", b"<html>Welcome</html>")
REMOTE_CASES = [
    Case(
        "nobody there",
        4,
        ("could not connect", "check the url"),
        put("deployment.endpoints.0.url", "http://127.0.0.1:9"),
    ),
    Case("no such host", 4, ("could not connect",), put("deployment.endpoints.0.url", "http://kvgate.invalid:80")),
    Case("wants a key", 4, ("HTTP 401", "deployment.auth.bearer_env"), script=Script(bearer="k")),
    Case("a web page", 4, ("not JSON but text/html", "/v1/models"), script=Script(raw={"/v1/models": PAGE})),
    Case("a list", 4, ("no object",), script=Script(raw={"/v1/models": framed(200, JSON, b"[]")})),
    Case("nothing", 4, ("/v1/models",), script=Script(raw={"/v1/models": framed(200, JSON, b"")})),
    Case("null models", 4, ("/v1/models",), script=Script(raw={"/v1/models": framed(200, JSON, b'{"data":null}')})),
    Case("no models", 2, ("it serves nothing",), script=Script(raw={"/v1/models": framed(200, JSON, b'{"data":[]}')})),
    Case("moved", 4, ("HTTP 301",), script=Script(raw={"/v1/models": framed(301, JSON, b"{}")})),
    Case("broken", 4, ("HTTP 500", "oom"), script=Script(raw={"/v1/models": framed(500, JSON, b'{"error":"oom"}')})),
    Case("cut off", 4, ("broke off",), script=Script(raw={"/v1/models": b"HTTP/1.1 200 OK\r\nContent-Le"})),
    Case("no HTTP", 4, ("HTTP",), script=Script(raw={"/v1/models": b"SSH-2.0\r\n"})),
    Case("length as text", 4, ("max_model_len",), script=Script(max_model_len="long")),  # type: ignore[arg-type]
    Case("no tokenizer", 4, ("/tokenize",), script=Script(raw={"/tokenize": framed(404, JSON, b"{}")})),
    Case("odd tokens", 4, ("/tokenize",), script=Script(raw={"/tokenize": framed(200, JSON, b'{"tokens":["a"]}')})),
    Case(
        "no completions",
        4,
        ("a short completion failed", "HTTP 404"),
        script=Script(raw={"/v1/completions": framed(404, JSON, b"{}")}),
    ),
    Case("odd completions", 4, ("a short completion failed",), script=Script(raw={"/v1/completions": PAGE})),
]


def refused(folder: Path, case: Case) -> Ended:
    with serving(case.script) as server:
        data = config_data(folder, server.url)
        if case.change is not None:
            case.change(data)
        text = yaml.safe_dump(data, sort_keys=False)
        (folder / "config.yaml").write_text(case.text(text) if case.text else text, encoding="utf-8")
        return kvgate("run", "-q", "-c", folder / "config.yaml")


@pytest.mark.parametrize("case", [*FILE_CASES, *CONFIG_CASES, *REMOTE_CASES], ids=lambda case: case.name)
def test_bad_input_is_refused_with_a_clear_sentence(tmp_path: Path, case: Case) -> None:
    ended = refused(tmp_path, case)
    assert "Traceback" not in ended.err
    assert (case.code, "") == (ended.code, ended.out)
    assert [] == [fragment for fragment in case.said if fragment not in ended.err]
    lines = ended.err.splitlines()
    assert case.lines == len(lines), ended.err
    assert all(line.startswith("kvgate: ") for line in lines)
    assert not (tmp_path / "runs").exists()


def test_every_complaint_about_the_file_names_file_and_line(tmp_path: Path) -> None:
    said = refused(tmp_path, Case("", 2, (), put("gate.teirs", [1]))).err
    line = (tmp_path / "config.yaml").read_text(encoding="utf-8").splitlines().index("  teirs:") + 1
    assert f"{tmp_path}/config.yaml:{line}: gate.teirs: " in said


def test_a_tokenizer_that_gives_nothing_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    with serving(Script(raw={"/tokenize": framed(200, JSON, b'{"tokens":[]}')})) as server:
        file = tmp_path / "config.yaml"
        file.write_text(yaml.safe_dump(config_data(tmp_path, server.url)), encoding="utf-8")
        ended = kvgate_process("run", "-q", "-c", file, seconds=15)
    assert 4 == ended.code
    assert "/tokenize" in ended.err


@pytest.mark.parametrize("key", ["sk-très-secret", "sk-secret\n", "sk-secret\r"])
def test_a_key_that_no_header_can_hold_is_refused_without_being_shown(tmp_path: Path, key: str) -> None:
    with serving(Script(bearer="k")) as server:
        file = tmp_path / "config.yaml"
        file.write_text(yaml.safe_dump(config_data(tmp_path, server.url, deployment={"auth": {"bearer_env": "KEY"}})))
        ended = kvgate("run", "-q", "-c", file, env={"KEY": key})
    assert 2 == ended.code
    assert "KEY" in ended.err
    assert "secret" not in ended.err
    assert "Traceback" not in ended.err


# -- paths and the command line --------------------------------------------------------------------------------
def test_a_folder_as_configuration(tmp_path: Path) -> None:
    ended = kvgate("run", "-c", tmp_path)
    assert 2 == ended.code
    assert "cannot be read" in ended.err


def test_a_configuration_in_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes("version: 1 # für\n".encode("latin-1"))
    ended = kvgate("run", "-c", tmp_path / "c.yaml")
    assert 2 == ended.code
    assert "UTF-8" in ended.err


def test_an_output_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with serving() as server:
        file = tmp_path / "config.yaml"
        file.write_text(yaml.safe_dump(config_data(tmp_path, server.url)), encoding="utf-8")
        ended = kvgate("run", "-q", "-c", file)
    assert 2 == ended.code
    assert "output.directory" in ended.err
    assert 1 == len(ended.err.splitlines())


@pytest.mark.parametrize("junit", ["none/report.xml", ""], ids=["no folder", "a folder"])
def test_a_junit_file_that_cannot_be_written_is_refused_before_anything_is_sent(tmp_path: Path, junit: str) -> None:
    with serving() as server:
        file = tmp_path / "config.yaml"
        file.write_text(yaml.safe_dump(config_data(tmp_path, server.url)), encoding="utf-8")
        ended = kvgate("run", "-q", "-c", file, "--junit", tmp_path / junit)
        assert [] == server.paths
    assert 2 == ended.code
    assert "--junit" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("command", ["judge", "report"])
def test_a_run_that_is_none(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("")
    for run, fragment in (
        (tmp_path / "none", "does not exist"),
        (tmp_path, "no run directory"),
        (tmp_path / "file", ""),
    ):
        ended = kvgate(command, run)
        assert 2 == ended.code
        assert fragment in ended.err
        assert str(run) in ended.err
        assert 1 == len(ended.err.splitlines())


@pytest.mark.parametrize(
    ("argv", "fragment"),
    [
        (("explain", "DRIFTT"), "did you mean DRIFT"),
        (("explain", "XYZZY"), "--list reasons"),
        (("explain",), "give a CODE"),
        (("explain", "--list", "nothing"), "known: reasons"),
        (("run",), "--config"),
        (("run", "--no-such-option"), "No such option"),
        (("judge",), "RUN"),
        (("judge", "a", "--policy", "lenient"), "lenient"),
        (("report", "a", "--format", "pdf"), "pdf"),
        (("gates",), "gates"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_command_line_that_makes_no_sense(argv: tuple[str, ...], fragment: str) -> None:
    ended = kvgate(*argv, env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert 2 == ended.code
    assert fragment in ended.err
    assert "Traceback" not in ended.err
