"""A deployment of several processes: the same answers as one process gives, and right ones when a part is gone."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from kvgate.sim.topology import Topology
from tests.sim.driving import SCALE, answer, asking, deployed, prompt, said, served

PRESET = "deepseek-v4-flash-32"
WAIT_S = 60


@dataclass(frozen=True)
class Served:
    """One process and the address it prints."""

    process: subprocess.Popen[str]
    url: str


def start(stack: ExitStack, part: str, **peers: str) -> subprocess.Popen[str]:
    """``kvgate sim serve`` for one part, on a free port."""
    command = [
        sys.executable,
        "-m",
        "kvgate",
        "sim",
        "serve",
        "--part",
        part,
        "--preset",
        PRESET,
        "--divisor",
        str(SCALE),
    ]
    for name, url in peers.items():
        command += ["--peer", f"{name}={url}"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # More threads than cores only get in each other's way.
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "NO_COLOR": "1"},
    )
    stack.callback(end, process)
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def told(process: subprocess.Popen[str], part: str) -> Served:
    """Wait for the line that names the address."""
    assert process.stdout is not None
    heard = []
    for line in process.stdout:
        heard.append(line)
        name, _, url = line.strip().partition(" ")
        if name == part:
            return Served(process, url.strip())
    raise AssertionError(f"{part} ended: {''.join(heard)}")


@contextmanager
def deployment() -> Iterator[dict[str, Served]]:
    """A pool's master, a prefiller, a decoder and a proxy, and two combined engines on the same pool."""
    with ExitStack() as stack:
        pool = told(start(stack, "pool"), "pool")
        parts = {"prefill": "prefill", "decode": "decode", "a": "combined", "b": "combined"}
        started = {name: start(stack, part, pool=pool.url) for name, part in parts.items()}
        found = {name: told(process, parts[name]) for name, process in started.items()}
        proxy = start(stack, "proxy", prefill=found["prefill"].url, decode=found["decode"].url)
        yield {**found, "pool": pool, "proxy": told(proxy, "proxy")}


@pytest.fixture(scope="module")
def parts() -> Iterator[dict[str, Served]]:
    with deployment() as found:
        yield found


def deeds(served: Served) -> list[dict[str, int]]:
    with asking(served.url) as client:
        found: list[dict[str, int]] = client.get("/deeds").json()["deeds"]
    return found


def test_answers_through_the_proxy_equal_those_of_one_process(parts: dict[str, Served]) -> None:
    prompts = [prompt(length, seed=length) for length in (531, 512, 1043)]
    with served(deployed(PRESET, topology=Topology.PD)) as urls, asking(urls["gateway"]) as gateway:
        expected = [said(answer(gateway, ids)) for ids in (*prompts, *prompts)]
    with asking(parts["proxy"].url) as gateway:
        found = [said(answer(gateway, ids)) for ids in prompts]
        assert 200 == gateway.post("/reset_prefix_cache").status_code
        found += [said(answer(gateway, ids)) for ids in prompts]
    assert expected == found
    assert [0, 0, 0, 512, 256, 1024] == [deed["external"] for deed in deeds(parts["prefill"])]
    assert [531, 512, 1043] * 2 == [deed["transferred"] for deed in deeds(parts["decode"])]


def test_two_engines_share_the_pool_of_a_third_process(parts: dict[str, Served]) -> None:
    ids = prompt(1043, seed=2)
    with asking(parts["a"].url) as one, asking(parts["b"].url) as other:
        assert said(answer(one, ids)) == said(answer(other, ids))
        assert [(0, 0), (0, 1024)] == [
            (deeds(parts[name])[-1]["local"], deeds(parts[name])[-1]["external"]) for name in "ab"
        ]
        one.post("/reset_prefix_cache?reset_external=true")
        other.post("/reset_prefix_cache")
        answer(other, ids)
        assert 0 == deeds(parts["b"])[-1]["external"]
    with asking(parts["pool"].url) as pool:
        assert pool.get("/get_all_keys").json()


def test_without_its_master_the_pool_is_a_clean_miss(parts: dict[str, Served]) -> None:
    """The last test here: it leaves the deployment without its master."""
    ids = prompt(1043, seed=3)
    with asking(parts["a"].url) as client, asking(parts["proxy"].url) as gateway:
        usual = said(answer(client, ids))
        parts["pool"].process.send_signal(signal.SIGKILL)
        parts["pool"].process.wait()
        assert {"success": True} == client.post("/reset_prefix_cache").json()
        assert usual == said(answer(client, ids))
        assert usual == said(answer(client, ids))
        assert [(0, 0), (1024, 0)] == [(deed["local"], deed["external"]) for deed in deeds(parts["a"])[-2:]]
        assert usual == said(answer(gateway, ids))
        unreachable = client.post("/reset_prefix_cache?reset_external=true")
        assert (500, "InternalServerError") == (unreachable.status_code, unreachable.json()["error"]["type"])


def test_a_transfer_from_a_prefiller_that_is_gone_is_an_error(parts: dict[str, Served]) -> None:
    """Kills the prefiller for good."""
    ids = prompt(531, seed=4)
    asked = {"do_remote_decode": True, "do_remote_prefill": False}
    with (
        asking(parts["prefill"].url) as prefill,
        asking(parts["decode"].url) as decode,
        asking(parts["proxy"].url) as proxy,
    ):
        params = answer(prefill, ids, tokens=1, kv_transfer_params=asked)["kv_transfer_params"]
        parts["prefill"].process.send_signal(signal.SIGKILL)
        parts["prefill"].process.wait()
        body = {"model": "sim", "prompt": ids, "max_tokens": 4, "kv_transfer_params": params}
        assert 500 == decode.post("/v1/completions", json=body).status_code
        assert 8 == len(said(answer(decode, ids))[0])
        assert 500 == proxy.post("/v1/completions", json=body).status_code
