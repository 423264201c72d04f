"""Start and stop the lab's deployments: real vLLM on CPU, with or without a real Mooncake pool or prefill/decode.

    scripts/lab/up STACK      start it, wait until it answers (bounded), keep its logs
    scripts/lab/down [STACK]  end what `up` started, by its own process IDs
    scripts/lab/up --list     the stacks
    scripts/lab/pool down|up STACK   take its pool's master away beside the running server, or bring it back

Standard library only, so that any Python runs it. Everything lives below $KVGATE_LAB
(default ~/.cache/kvgate-lab): run/STACK/*.log, *.pid, and the pool's configuration.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

MASTER_RPC_PORT = 50151
MASTER_HTTP_PORT = 50152
START_LIMIT_S = 420
# A prefill/decode stack: the two engines, and what stands in front of them (fronts_of).
PREFILL_PORT, DECODE_PORT = 8101, 8102
PROXY_PORT, WIRE_PORT, ROUTER_PORT, ROUTER_METRICS_PORT = 8103, 8104, 8105, 8106
SIDE_CHANNEL_PORTS = {PREFILL_PORT: 5600, DECODE_PORT: 5610}


@dataclasses.dataclass(frozen=True)
class Stack:
    """One deployment of the lab. ``servers`` are (port, core) pairs; all serve the model under the name ``m``."""

    sentence: str
    model: str = "smollm2-135m"
    dtype: str = "float32"
    pool: str = "mooncake"  # mooncake | example | mooncake+example | none
    segment: str = "512MB"  # what each server lends to a Mooncake pool: its capacity
    master_arguments: tuple[str, ...] = ()
    servers: tuple[tuple[int, int], ...] = ((8101, 0),)
    arguments: tuple[str, ...] = ("--block-size", "32")
    developer_endpoints: bool = True
    max_model_len: int = 2048
    transfer: str = ""  # nixl (from process to process) | store (through the pool), between two servers
    environment: tuple[tuple[str, str], ...] = ()


def ngram(tokens: int) -> tuple[str, ...]:
    """Arguments for speculation from the prompt's own n-grams: answers come several tokens at a time."""
    config = {"method": "ngram", "num_speculative_tokens": tokens, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    return ("--block-size", "32", "--speculative-config", json.dumps(config))


PD_SERVERS = ((PREFILL_PORT, 0), (DECODE_PORT, 1))
STACKS = {
    "mooncake": Stack("SmolLM2 in fp32 over a Mooncake pool"),
    "mooncake-bf16": Stack(
        "SmolLM2 in bf16 over a Mooncake pool, prefill chunk 320",
        dtype="bfloat16",
        arguments=("--block-size", "32", "--max-num-batched-tokens", "320"),
    ),
    "example": Stack("SmolLM2 in fp32 over ExampleConnector (files on disk)", pool="example"),
    "qwen3next": Stack(
        "tiny-qwen3next (three recurrent groups, one full) over a Mooncake pool",
        model="tiny-qwen3next",
        dtype="bfloat16",
        arguments=(),
        max_model_len=4096,
    ),
    "gemma3": Stack(
        "tiny-gemma3 (sliding window and full) over a Mooncake pool",
        model="tiny-gemma3",
        dtype="bfloat16",
        arguments=("--block-size", "32", "--max-num-batched-tokens", "320"),
    ),
    **{
        f"ngram-{tokens}": Stack(
            f"SmolLM2 in fp32 over a Mooncake pool, speculating {tokens} tokens by n-grams", arguments=ngram(tokens)
        )
        for tokens in (1, 3, 7)
    },
    "pair": Stack(
        "two SmolLM2 servers in fp32 on one Mooncake pool",
        servers=((8101, 0), (8102, 1)),
    ),
    "no-pool": Stack("SmolLM2 in fp32 with the pool switched off", pool="none"),
    "no-counters": Stack(
        "SmolLM2 over a Mooncake pool with statistics switched off",
        arguments=("--block-size", "32", "--disable-log-stats"),
    ),
    "no-reset": Stack("SmolLM2 over a Mooncake pool without developer endpoints", developer_endpoints=False),
    "small-cache": Stack(
        "SmolLM2 over a Mooncake pool that holds more than the server itself, without developer endpoints",
        developer_endpoints=False,
        arguments=("--block-size", "32", "--num-gpu-blocks-override", "80"),
    ),
    "small-pool": Stack(
        "SmolLM2 over a Mooncake pool that holds a few prompts and evicts the rest",
        segment="32MB",
        # Whatever is looked up is leased, by default for 10 s, and stays for that long whatever else comes.
        master_arguments=("--default_kv_lease_ttl=500", "--eviction_ratio=0.4"),
    ),
    "two-pools": Stack("SmolLM2 in fp32 over a Mooncake pool and, behind it, files on disk", pool="mooncake+example"),
    "pd": Stack(
        "prefill and decode over NIXL, no pool; own proxy and vllm-router",
        pool="none",
        servers=PD_SERVERS,
        transfer="nixl",
    ),
    "pd-pool": Stack(
        "prefill over a Mooncake pool, decode over NIXL; own proxy and vllm-router", servers=PD_SERVERS, transfer="nixl"
    ),
    "pd-ngram": Stack(
        "prefill over a Mooncake pool, decode over NIXL, both speculating 3 tokens; own proxy and vllm-router",
        servers=PD_SERVERS,
        transfer="nixl",
        arguments=ngram(3),
    ),
    "pd-hybrid": Stack(
        "tiny-qwen3next on prefill and decode over NIXL, no pool; own proxy and vllm-router",
        pool="none",
        servers=PD_SERVERS,
        transfer="nixl",
        model="tiny-qwen3next",
        dtype="bfloat16",
        arguments=(),
        max_model_len=4096,
    ),
    "pd-store": Stack("prefill puts into a Mooncake pool, decode loads from it", servers=PD_SERVERS, transfer="store"),
}


def lab_folder() -> Path:
    return Path(os.environ.get("KVGATE_LAB") or Path.home() / ".cache" / "kvgate-lab")


def run_folder(name: str) -> Path:
    return lab_folder() / "run" / name


def start_process(folder: Path, label: str, argv: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with (folder / f"{label}.log").open("wb") as log:
        process = subprocess.Popen(
            argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    (folder / f"{label}.pid").write_text(f"{process.pid} {start_time(process.pid)}\n")
    return process


def start_time(pid: int) -> str:
    """The kernel's start time of a process: with the pid it names one process for ever."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return "gone"


def start_master(stack: Stack, folder: Path) -> None:
    binary = lab_folder() / "venv" / "bin" / "mooncake_master"
    argv = [str(binary), "--rpc_address=127.0.0.1", f"--rpc_port={MASTER_RPC_PORT}"]
    # The default metrics host is 0.0.0.0: the lab must not listen beyond loopback.
    argv += [f"--metrics_port={MASTER_HTTP_PORT}", "--metrics_host=127.0.0.1", *stack.master_arguments]
    start_process(folder, "master", argv, dict(os.environ))
    settings = {
        "mode": "embedded",
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "protocol": "tcp",
        "device_name": "",
        "master_server_address": f"127.0.0.1:{MASTER_RPC_PORT}",
        "global_segment_size": stack.segment,
        "local_buffer_size": "256MB",
    }
    (folder / "mooncake.json").write_text(json.dumps(settings, indent=1))


def connector(name: str, role: str = "kv_both", **extra: object) -> dict[str, object]:
    config: dict[str, object] = {"kv_connector": name, "kv_role": role}
    return config | ({"kv_connector_extra_config": extra} if extra else {})


def pools_of(stack: Stack, folder: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    if "mooncake" in stack.pool:
        found.append(connector("MooncakeStoreConnector"))
    if "example" in stack.pool:
        found.append(connector("ExampleConnector", shared_storage_path=str(folder / "kv")))
    return found


def connector_arguments(stack: Stack, folder: Path, port: int) -> list[str]:
    decodes = bool(stack.transfer) and port == DECODE_PORT
    connectors = pools_of(stack, folder)
    if stack.transfer == "nixl":
        nixl = connector("NixlConnector", "kv_consumer" if decodes else "kv_both") | {"kv_buffer_device": "cpu"}
        connectors = [nixl] if decodes else [nixl, *connectors]
    if not connectors:
        return []
    config = connectors[0] if len(connectors) == 1 else connector("MultiConnector", connectors=connectors)
    # As vllm-ascend's guides have it: what decode kept of an earlier request would hide the transfer.
    caching = "--no-enable-prefix-caching" if decodes else "--enable-prefix-caching"
    return [caching, "--kv-transfer-config", json.dumps(config)]


def fronts_of(stack: Stack) -> dict[str, list[str]]:
    """What stands in front of a prefill/decode pair over NIXL: name to command line."""
    if stack.transfer != "nixl":
        return {}
    prefill, decode = (f"http://127.0.0.1:{port}" for port, _ in stack.servers)
    programs = lab_folder() / "venv" / "bin"
    own = [str(programs / "python"), str(Path(__file__).resolve().parent / "pd_proxy.py")]
    own += ["--prefill", prefill, "--decode", decode, "--port", str(PROXY_PORT), "--wire", str(WIRE_PORT)]
    router = [str(programs / "vllm-router"), "--host", "127.0.0.1", "--port", str(ROUTER_PORT)]
    router += ["--vllm-pd-disaggregation", "--kv-connector", "nixl", "--prefill", prefill, "--decode", decode]
    router += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(ROUTER_METRICS_PORT)]
    return {f"proxy-{PROXY_PORT}": own, f"router-{ROUTER_PORT}": router}


def start_server(stack: Stack, folder: Path, port: int, core: int) -> subprocess.Popen[bytes]:
    lab = lab_folder()
    environment = dict(os.environ) | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_SERVER_DEV_MODE": "1" if stack.developer_endpoints else "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "PYTHONHASHSEED": "0",
        # One core per server: without pinning two servers nearly stall each other.
        "OMP_NUM_THREADS": "1",
        "KMP_BLOCKTIME": "0",
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
        "MOONCAKE_CONFIG_PATH": str(folder / "mooncake.json"),
    }
    if port in SIDE_CHANNEL_PORTS:
        environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] = "127.0.0.1"
        environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(SIDE_CHANNEL_PORTS[port])
        # NIXL's transport takes every interface unless it is told.
        environment["UCX_NET_DEVICES"] = "lo"
    argv = [str(lab / "venv" / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--model", str(lab / "models" / stack.model), "--served-model-name", "m"]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--dtype", stack.dtype]
    argv += ["--max-model-len", str(stack.max_model_len), "--enforce-eager"]
    argv += ["--enable-prompt-tokens-details", *stack.arguments]
    argv += connector_arguments(stack, folder, port) or ["--enable-prefix-caching"]
    return start_process(folder, f"server-{port}", argv, environment)


def arrange_threads(leader: int, core: int) -> None:
    """Undo what NixlConnector does to a server that has one core.

    It moves the computing thread of every server to the machine's last core, and its progress thread polls without a
    pause on the core that the server was given: that one gets the lowest priority.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            worker = int(folder.name)
            if os.getpgid(worker) == leader and (folder / "comm").read_text().startswith("VLLM::Worker"):
                os.sched_setaffinity(worker, {core})
                for thread in (folder / "task").iterdir():
                    if int(thread.name) != worker:
                        os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait_until_up(process: subprocess.Popen[bytes], folder: Path, label: str) -> None:
    port = int(label.rsplit("-", 1)[1])
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if answers(f"http://127.0.0.1:{port}/health"):
            return
        if process.poll() is not None:
            break
        time.sleep(0.5)
    tail = (folder / f"{label}.log").read_text(errors="replace").splitlines()[-25:]
    raise SystemExit(f"lab: {label} did not come up; the end of its log:\n" + "\n".join(tail))


def up(name: str) -> None:
    stack = STACKS[name]
    folder = run_folder(name)
    down(name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for port, _ in stack.servers:
        if answers(f"http://127.0.0.1:{port}/health"):
            raise SystemExit(f"lab: port {port} is taken by another server; stop it (scripts/lab/down) and try again")
    begun = time.monotonic()
    if "mooncake" in stack.pool:
        start_master(stack, folder)
    try:
        servers = [(start_server(stack, folder, port, core), port, core) for port, core in stack.servers]
        for process, port, core in servers:
            wait_until_up(process, folder, f"server-{port}")
            if stack.transfer == "nixl":
                arrange_threads(process.pid, core)
        for label, argv in fronts_of(stack).items():
            wait_until_up(start_process(folder, label, argv, dict(os.environ)), folder, label)
    except BaseException:
        down(name)
        raise
    print(f"lab: {name} is up after {time.monotonic() - begun:.0f} s: {stack.sentence}", flush=True)


def down(name: str) -> None:
    for path in sorted(run_folder(name).glob("*.pid")):
        end_process(path)


def end_process(path: Path) -> None:
    """End the process that a file names, if it is still that one."""
    if not path.exists():
        return
    pid_text, started = path.read_text().split()
    pid = int(pid_text)
    if start_time(pid) == started:
        end_group(pid)
    path.unlink(missing_ok=True)


def wait_for_master() -> None:
    """Wait until the pool's master answers. Raises SystemExit if it does not."""
    deadline = time.monotonic() + 30.0
    while not answers(f"http://127.0.0.1:{MASTER_HTTP_PORT}/metrics"):
        if time.monotonic() > deadline:
            raise SystemExit("lab: the pool's master does not answer")
        time.sleep(0.2)


def end_group(pid: int) -> None:
    """End the process group that `up` started; its leader's pid is the group's number."""
    for sent, patience_s in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(pid, sent)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline and group_alive(pid):
            time.sleep(0.1)


def group_alive(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("up", "down", "pool-down", "pool-up"))
    parser.add_argument("stack", nargs="?", choices=tuple(STACKS))
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        for name, stack in STACKS.items():
            print(f"{name:16} {stack.sentence}")
    elif options.action == "down":
        for name in (options.stack,) if options.stack else tuple(STACKS):
            down(name)
    elif options.stack is None:
        parser.error("name a stack; --list shows them")
    elif options.action == "up":
        up(options.stack)
    elif options.action == "pool-down":
        end_process(run_folder(options.stack) / "master.pid")
    else:
        start_master(STACKS[options.stack], run_folder(options.stack))
        wait_for_master()


if __name__ == "__main__":
    sys.exit(main())
