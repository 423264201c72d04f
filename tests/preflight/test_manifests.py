"""Kubernetes and compose manifests: the engines in them, their environments, and the lines they stand on."""

from pathlib import Path

import pytest

from kvgate.domain.preflight.deployment import Engine
from kvgate.domain.preflight.rules import lint
from kvgate.errors import ConfigError
from kvgate.launch.files import read_launch

POD = """\
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: router
          command: [nginx]
        - name: engine
          env:
            - {name: PYTHONHASHSEED, value: "0"}
            - {name: PORT, value: "8100"}
            - name: POD_IP
              valueFrom: {fieldRef: {fieldPath: status.podIP}}
          command: [vllm, serve, /models/m]
          args:
            - --port=$(PORT)
            - --host
            - $(POD_IP)
            - --other=$(NOWHERE)
            - --kv-transfer-config
            - |
              {"kv_connector": "AscendStoreConnector",
               "kv_role": "kv_both",
               "kv_connector_extra_config": {"use_layerwise": true}}
"""
SHELL = """\
kind: Job
spec:
  containers:
    - name: engine
      env: [{name: TP, value: "4"}]
      command: ["/bin/bash", "-lc"]
      args:
        - |
          export PYTHONHASHSEED=0
          vllm serve /models/m -tp $TP \\
            --port ${PORT:-9}
"""
COMPOSE = """\
services:
  engine:
    image: vllm
    environment: {PYTHONHASHSEED: "0", TOKEN: }
    command: >
      vllm serve /models/m
      --port 1 --kv-transfer-config '{"kv_role": "kv_both"}'
  other:
    environment: [A=b, FROM_OUTSIDE]
    entrypoint: [vllm, serve]
    command: [/models/n, --port, "2"]
"""


def engines(tmp_path: Path, content: str) -> list[Engine]:
    path = tmp_path / "m.yaml"
    path.write_text(content, encoding="utf-8")
    return list(read_launch([path]).engines)


def values(engine: Engine) -> dict[str, str]:
    return {name: str(setting.value) for name, setting in engine.flags.named.items() if not setting.entries()}


def test_a_pod_s_container_with_what_its_environment_fills_in(tmp_path: Path) -> None:
    (engine,) = engines(tmp_path, POD)
    assert {"port": "8100", "host": "UNKNOWN (POD_IP)", "other": "$(NOWHERE)"} == values(engine)
    assert ("0", "UNKNOWN (POD_IP)") == tuple(
        str(engine.env.named[name].value) for name in ("PYTHONHASHSEED", "POD_IP")
    )
    layerwise = next(engine.connectors()).option("use_layerwise")
    assert layerwise is not None
    assert ("m.yaml", 25) == (Path(layerwise.spot.file).name, layerwise.spot.line)
    found = lint(read_launch([tmp_path / "m.yaml"])).findings
    assert {"KV105", "KV207"} == {each.rule.code for each in found}


def test_a_container_that_runs_a_shell(tmp_path: Path) -> None:
    (engine,) = engines(tmp_path, SHELL)
    assert {"tensor-parallel-size": "4", "port": "9"} == values(engine)
    assert {"PYTHONHASHSEED": "0", "TP": "4"} == {name: each.value for name, each in engine.env.named.items()}
    assert (10, 11) == (engine.spot.line, engine.flags.named["port"].spot.line)


def test_services_of_a_compose_file(tmp_path: Path) -> None:
    first, second = engines(tmp_path, COMPOSE)
    assert ({"port": "1"}, {"port": "2"}) == (values(first), values(second))
    assert first.role == "kv_both"
    assert "UNKNOWN (TOKEN)" == str(first.env.named["TOKEN"].value)
    assert ["b", "UNKNOWN (FROM_OUTSIDE)"] == [str(second.env.named[name].value) for name in ("A", "FROM_OUTSIDE")]


@pytest.mark.parametrize(
    "content", ["", "a: 1\n", "- 1\n- [2]\n", "containers: 7\n", "containers: [7, {}]\n", "services: []\n"]
)
def test_what_is_no_manifest_has_no_engine(content: str, tmp_path: Path) -> None:
    assert [] == engines(tmp_path, content)


def test_what_is_no_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"m.yaml:3: is no YAML"):
        engines(tmp_path, "a: 1\nb: [\n")
    with pytest.raises(ConfigError, match="nested too deeply"):
        engines(tmp_path, "a: &a [*a]\n")
