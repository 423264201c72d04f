"""Rules about the pool: its client's file, its master, leases and timeouts, and what makes keys of two engines equal."""

import json
import math
import re
from collections.abc import Iterator

from kvgate.domain.preflight.deployment import POOLS_OF_ASCEND, Engine, Launch, PoolFile
from kvgate.domain.preflight.rule import Found, Rule, Seen, Severity, Undecided, undecided
from kvgate.domain.preflight.setting import Setting, number, text, truth

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
# Milliseconds, where nothing is set (Mooncake master.cpp and transfer_executor_base.h; vllm-ascend utils.py).
LEASE_MS, CONNECT_MS = 10_000.0, 10_000.0
RDMA_TIMEOUT, RDMA_RETRIES = 20, 7
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(gb|mb|kb|b)?\s*", re.IGNORECASE)
_UNIT = {"gb": 1 << 30, "mb": 1 << 20, "kb": 1 << 10, "b": 1}


def pooled(launch: Launch) -> Iterator[Engine]:
    """Engines with a shared pool."""
    return (engine for engine in launch.engines if any(engine.pools()))


def _on_mooncake(launch: Launch) -> Iterator[Engine]:
    return (
        engine
        for engine in launch.engines
        if any(each.name in POOLS_OF_ASCEND and each.backend == "mooncake" for each in engine.connectors())
    )


def _not_set(engine: Engine, name: str) -> Seen | Undecided:
    """That a variable is missing; not decided where the script reads in another one, which may set it."""
    if engine.env.more:
        return Undecided(engine.spot, engine.env.more[0])
    return Seen(engine.spot, f"{name} is not set in what starts this engine")


def _hash_seed(launch: Launch) -> Found:
    for engine in pooled(launch):
        seed = engine.env.get("PYTHONHASHSEED")
        if seed is None:
            yield _not_set(engine, "PYTHONHASHSEED")
        elif text(seed) == "random":
            yield Seen(seed.spot, "PYTHONHASHSEED is random")
        else:
            yield from undecided(seed)


def _unlike(name: str, of: dict[str, list[Setting]]) -> Found:
    if len(of) > 1:
        first, *others = sorted(of, key=lambda value: of[value][0].spot)
        for other in others:
            yield Seen(of[other][0].spot, f"{name} is {other}, and {first} at {of[first][0].spot}")


def _hash_seeds_unlike(launch: Launch) -> Found:
    told: dict[str, list[Setting]] = {}
    for engine in pooled(launch):
        seed = engine.env.get("PYTHONHASHSEED")
        if seed is not None and text(seed) not in (None, "random"):
            told.setdefault(str(text(seed)), []).append(seed)
    yield from _unlike("PYTHONHASHSEED", told)


def _hash_algorithms(launch: Launch) -> Found:
    told: dict[str, list[Setting]] = {}
    for engine in pooled(launch):
        given = engine.flags.get("prefix-caching-hash-algo")
        yield from undecided(given)
        name = text(given) if given is not None else "sha256"
        place = given if given is not None else Setting("sha256", engine.spot)
        if name is not None:
            told.setdefault(name, []).append(place)
    yield from _unlike("prefix-caching-hash-algo", told)


def _weak_hash(launch: Launch) -> Found:
    for engine in pooled(launch):
        given = engine.flags.get("prefix-caching-hash-algo")
        name = text(given) or ""
        if given is not None and (name == "builtin" or name.startswith("xxhash")):
            yield Seen(given.spot, f"prefix-caching-hash-algo is {name}")


def _block_sizes(launch: Launch) -> Found:
    told: dict[str, list[Setting]] = {}
    for engine in pooled(launch):
        given = engine.flags.get("block-size")
        yield from undecided(given)
        if given is not None and text(given) is not None:
            told.setdefault(str(text(given)), []).append(given)
    yield from _unlike("block-size", told)


def _same_name(launch: Launch) -> Found:
    """Engines whose keys are equal while what they store is not."""
    seen: dict[str, tuple[Engine, tuple[str, ...]]] = {}
    for engine in pooled(launch):
        model = text(engine.model)
        if model is None:
            continue
        name = model.rstrip("/").rpartition("/")[2]
        stored = (
            model.rstrip("/"),
            *(text(engine.flags.get(flag)) or "" for flag in ("dtype", "quantization", "kv-cache-dtype")),
        )
        first = seen.setdefault(name, (engine, stored))
        if first[1] != stored:
            differs = ", ".join(
                f"{one or '(not set)'} and {two or '(not set)'}"
                for one, two in zip(first[1], stored, strict=True)
                if one != two
            )
            yield Seen(
                engine.spot,
                f"shares the pool under the name {name} with the engine at {first[0].spot}, and differs: {differs}",
            )


def _no_config(launch: Launch) -> Found:
    for engine in _on_mooncake(launch):
        if engine.env.get("MOONCAKE_CONFIG_PATH") is None:
            yield _not_set(engine, "MOONCAKE_CONFIG_PATH")


def _protocol(launch: Launch) -> Found:
    for file in launch.pool_files:
        given = file.settings.get("protocol")
        yield from undecided(given)
        if any(_on_mooncake(launch)) and given is not None and given.known and given.value != "ascend":
            yield Seen(given.spot, f"protocol is {given.value!r}; vllm-ascend takes 'ascend' only, in lower case")


def size_of(setting: Setting | None) -> int | None:
    """The bytes that a size of Mooncake's file means; None if it is none or not told."""
    value = text(setting)
    if value is None or setting is None or isinstance(setting.value, bool):
        return None
    found = _SIZE.fullmatch(value)
    if found is None or (found[2] is None and "." in found[1]):
        return None
    return int(float(found[1]) * _UNIT[found[2].lower()]) if found[2] else int(found[1])


def _sizes(launch: Launch) -> Found:
    for file in launch.pool_files:
        for name in ("global_segment_size", "local_buffer_size"):
            given = file.settings.get(name)
            yield from undecided(given)
            if given is not None and given.known and size_of(given) is None:
                yield Seen(
                    given.spot, f"{name} is {given.value!r}: sizes are whole bytes, or a number with gb, mb, kb or b"
                )


def _fabric(launch: Launch) -> Found:
    for engine in _on_mooncake(launch):
        if not truth(engine.env.get("ASCEND_ENABLE_USE_FABRIC_MEM")):
            continue
        for file in launch.pool_files:
            given = file.settings.get("global_segment_size")
            size = size_of(given)
            if given is not None and size is not None and size % (1 << 30):
                yield Seen(
                    given.spot, f"global_segment_size is {size} bytes, no multiple of 1 GiB, and fabric memory is on"
                )
        quota = _quota(engine)
        for file in launch.pool_files:
            size = size_of(file.settings.get("global_segment_size"))
            if quota is not None and size is not None and size > quota[0] * (1 << 30):
                yield Seen(
                    quota[1].spot,
                    f"fabric_memory.max_capacity is {quota[0]:g} GB, less than global_segment_size ({size} bytes)",
                )
        return


def _quota(engine: Engine) -> tuple[float, Setting] | None:
    given = engine.env.get("ASCEND_GLOBAL_RESOURCE_CONFIG")
    try:
        config = json.loads(text(given) or "")
        # Written nested or, as the documents do, with a dot in the key.
        told = config.get("fabric_memory.max_capacity") or config["fabric_memory"]["max_capacity"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return (float(told), given) if given is not None and isinstance(told, (int, float)) else None


def _ssd_path(launch: Launch) -> Found:
    for file in launch.pool_files:
        on, path = file.settings.get("enable_ssd_offload"), file.settings.get("ssd_offload_path")
        yield from undecided(path)
        if truth(on) and on is not None and (path is None or not (text(path) or "/").startswith("/")):
            yield Seen(
                on.spot,
                f"enable_ssd_offload is true and ssd_offload_path is {'not set' if path is None else repr(text(path))}",
            )


def _ssd_buffer(launch: Launch) -> Found:
    for engine in _on_mooncake(launch):
        given = engine.env.get("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES")
        if given is not None and given.known and not re.fullmatch(r"\d+", text(given) or ""):
            yield Seen(
                given.spot, f"MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES is {given.value!r}; it is read as whole bytes"
            )


def rdma_ms(engine: Engine) -> float | None:
    """How long RDMA tries before it gives up, in milliseconds; None if it is not told."""
    exponent, tries = engine.env.get("HCCL_RDMA_TIMEOUT"), engine.env.get("HCCL_RDMA_RETRY_CNT")
    given = [
        number(each) if each is not None else default
        for each, default in ((exponent, RDMA_TIMEOUT), (tries, RDMA_RETRIES))
    ]
    if given[0] is None or given[1] is None or not 0 <= given[0] <= 31:
        return None
    return 4.096e-3 * math.pow(2.0, given[0]) * given[1]


def transfer_ms(engine: Engine) -> float | None:
    """The transfer timeout that holds, in milliseconds: the one that is set, else what vllm-ascend makes of RDMA's."""
    given = engine.env.get("ASCEND_TRANSFER_TIMEOUT")
    if given is not None:
        return number(given)
    rdma = rdma_ms(engine)
    return rdma + 3000.0 if rdma is not None else None


def _lease(launch: Launch) -> Found:
    for master in launch.masters():
        given = master.flags.get("default_kv_lease_ttl")
        yield from undecided(given)
        lease = LEASE_MS if given is None else number(given)
        spot = given.spot if given is not None else master.spot
        for engine in _on_mooncake(launch):
            connect = engine.env.get("ASCEND_CONNECT_TIMEOUT")
            limits = {
                "ASCEND_TRANSFER_TIMEOUT": transfer_ms(engine),
                "ASCEND_CONNECT_TIMEOUT": CONNECT_MS if connect is None else number(connect),
            }
            yield from undecided(engine.env.get("ASCEND_TRANSFER_TIMEOUT"))
            if engine.env.more and any(engine.env.get(name) is None for name in limits):
                # A default is not known to hold where a script that is read in may set another value.
                yield Undecided(spot, engine.env.more[0])
                limits = {name: value for name, value in limits.items() if engine.env.get(name) is not None}
            above = {
                name: value
                for name, value in limits.items()
                if value is not None and lease is not None and lease <= value
            }
            if above:
                name, value = max(above.items(), key=lambda each: each[1])
                told = "" if engine.env.get(name) is not None else " (its default)"
                yield Seen(
                    spot,
                    f"default_kv_lease_ttl is {lease:g} ms{'' if given else ' (its default)'}, not above {name} {value:.0f} ms{told} of the engine at {engine.spot}",
                )
                break


def _timeouts(launch: Launch) -> Found:
    for engine in launch.engines:
        given = engine.env.get("ASCEND_TRANSFER_TIMEOUT")
        rdma, limit = rdma_ms(engine), number(given)
        if given is not None and engine.env.more and engine.env.get("HCCL_RDMA_TIMEOUT") is None:
            yield Undecided(given.spot, engine.env.more[0])
            continue
        if given is not None and limit is not None and rdma is not None and limit <= rdma:
            yield Seen(
                given.spot,
                f"ASCEND_TRANSFER_TIMEOUT is {limit:g} ms; RDMA tries for {rdma:.0f} ms (HCCL_RDMA_TIMEOUT, HCCL_RDMA_RETRY_CNT)",
            )


def _seconds(launch: Launch) -> Found:
    for engine in launch.engines:
        for name in ("ASCEND_TRANSFER_TIMEOUT", "ASCEND_CONNECT_TIMEOUT"):
            given = engine.env.get(name)
            limit = number(given)
            if given is not None and limit is not None and limit < 500:
                yield Seen(given.spot, f"{name} is {limit:g}: it is milliseconds, not seconds")
    for master in launch.masters():
        given = master.flags.get("default_kv_lease_ttl")
        lease = number(given)
        if given is not None and lease is not None and lease < 500:
            yield Seen(given.spot, f"default_kv_lease_ttl is {lease:g}: it is milliseconds, not seconds")


def _sockets(launch: Launch) -> Found:
    """Engines that one script starts run on one host."""
    held: dict[tuple[str, str, str, str], Engine] = {}
    for engine in launch.engines:
        for each in engine.connectors():
            if each.name not in POOLS_OF_ASCEND:
                continue
            given = each.option("lookup_rpc_port")
            yield from undecided(given)
            port = "0" if given is None else text(given)
            rank = engine.flags.get("data-parallel-rank")
            path = text(engine.env.get("VLLM_RPC_BASE_PATH")) or ""
            if port is None or (rank is not None and not rank.known):
                continue
            key = (engine.spot.file, port, text(rank) or "0", path)
            first = held.setdefault(key, engine)
            if first is not engine:
                yield Seen(
                    given.spot if given is not None else each.spot,
                    f"lookup_rpc_port {port} is that of the engine at {first.spot}, too, with the same data-parallel rank",
                )


def _unread(file: PoolFile) -> Iterator[str]:
    known = (
        *(
            "metadata_server",
            "protocol",
            "device_name",
            "master_server_address",
            "global_segment_size",
            "local_buffer_size",
        ),
        *("preferred_segment", "prefer_alloc_in_same_node", "enable_ssd_offload", "ssd_offload_path"),
    )
    return (name for name in file.settings.named if name not in known)


def _pool_keys(launch: Launch) -> Found:
    for file in launch.pool_files:
        for name in _unread(file):
            yield Seen(file.settings.named[name].spot, f"{name!r} is no key that the pool's client reads")


_VA, _MC = "vllm-ascend", "Mooncake"
RULES = (
    Rule("KV201", "hash-seed", ERROR, "Without PYTHONHASHSEED each process hashes prompts its own way: nothing that another stored is ever found. Newer vLLM has a default.", "export PYTHONHASHSEED=0 on every node before the engine starts.", "vLLM kv_cache_utils.py init_none_hash; LMCache issue 1139", _hash_seed),
    Rule("KV202", "hash-seeds-differ", ERROR, "Engines with different hash seeds never find each other's KV.", "Set one PYTHONHASHSEED everywhere.", "vLLM kv_cache_utils.py init_none_hash", _hash_seeds_unlike),
    Rule("KV203", "hash-algorithms-differ", ERROR, "Engines that hash prompts by different algorithms never find each other's KV.", "Set one --prefix-caching-hash-algo everywhere.", "vLLM config/cache.py", _hash_algorithms),
    Rule("KV204", "weak-hash", WARNING, "builtin differs from process to process; xxhash is not safe against prompts made to collide.", "Use sha256 or sha256_cbor in a shared pool.", "vLLM issues 54727 and 29163", _weak_hash),
    Rule("KV205", "block-sizes-differ", ERROR, "Keys are hashes of whole blocks: engines with different block sizes never find each other's KV.", "Set one --block-size everywhere.", f"{_VA} ascend_store/metadata.py PoolKey", _block_sizes),
    Rule("KV206", "one-name-two-models", ERROR, "A key holds the last part of the model's path and nothing of dtype, quantisation or weights: one engine reads what the other stored.", "Serve them from directories with different names, or from different pools.", f"{_VA} ascend_store/metadata.py PoolKey.to_string; SGLang issue 33268", _same_name),
    Rule("KV207", "no-mooncake-config", WARNING, "AscendStoreConnector with mooncake reads the file that MOONCAKE_CONFIG_PATH names, and does not start without it.", "export MOONCAKE_CONFIG_PATH=/path/to/mooncake.json, unless the container sets it.", f"{_VA} mooncake_backend.py", _no_config),
    Rule("KV208", "mooncake-protocol", ERROR, "Another protocol than ascend, in lower case: NotImplementedError at the start.", 'Set "protocol": "ascend".', f"{_VA} mooncake_backend.py; seed 003 has it with a capital", _protocol),
    Rule("KV209", "mooncake-sizes", ERROR, "Sizes are whole bytes or a number with gb, mb, kb or b; GiB and G are refused.", "Write 1073741824 or 1GB.", f"{_VA} mooncake_backend.py MooncakeStoreConfig", _sizes),
    Rule("KV210", "fabric-memory", ERROR, "With fabric memory each allocation is a multiple of 1 GiB and must fit fabric_memory.max_capacity.", "Round the segment up to whole GiB, and raise max_capacity in ASCEND_GLOBAL_RESOURCE_CONFIG above segment and buffer.", f"{_VA} docs kv_pool.md; InferenceX issue 2999", _fabric),
    Rule("KV211", "ssd-path", ERROR, "SSD offload needs an absolute ssd_offload_path: ValueError at the start.", "Set ssd_offload_path to a directory on the SSD.", f"{_VA} mooncake_backend.py", _ssd_path),
    Rule("KV212", "byte-literals", ERROR, "Mooncake's buffer sizes in the environment are whole bytes.", "Write the number of bytes.", f"{_MC} docs; {_VA} docs kv_pool.md", _ssd_buffer),
    Rule("KV213", "lease", ERROR, "A lease that ends before a slow transfer does lets the pool reuse memory that is being read: the load fails, and on models with several kinds of KV in silence.", "Set mooncake_master --default_kv_lease_ttl above both timeouts (documented: 11000), and set ASCEND_TRANSFER_TIMEOUT, whose default may be 33 s.", f"{_MC} types.h, {_VA} utils.py get_transfer_timeout_value, issue 7771", _lease),
    Rule("KV214", "transfer-timeout", ERROR, "A transfer that is given up while RDMA still tries fails where it would have come.", "Set ASCEND_TRANSFER_TIMEOUT above 4.096 us x 2^HCCL_RDMA_TIMEOUT x retries, or lower HCCL_RDMA_TIMEOUT (17: 3.8 s).", f"{_VA} docs kv_pool.md", _timeouts),
    Rule("KV215", "milliseconds", ERROR, "These timeouts are milliseconds.", "Write 10000 for ten seconds.", f"{_MC} master.cpp; {_VA} docs kv_pool.md", _seconds),
    Rule("KV216", "lookup-sockets", ERROR, "lookup_rpc_port names a socket file: two engines of one host with the same value and data-parallel rank answer each other's lookups.", "Give each engine of a host its own lookup_rpc_port, or its own VLLM_RPC_BASE_PATH.", f"{_VA} pool_scheduler get_zmq_rpc_path_lookup", _sockets),
    Rule("KV217", "unread-pool-key", INFO, "A key of mooncake.json that its reader does not know is passed over.", "Correct it, or take it out.", f"{_VA} mooncake_backend.py", _pool_keys),
)  # fmt: skip
