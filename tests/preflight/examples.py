"""For each rule a deployment that breaks it, and one that does not: the smallest ones that differ in just that."""

import json
from typing import Any

Files = dict[str, str]
MODEL = "/models/Qwen3-32B"
V4 = "/models/DeepSeek-V4-Flash"
SIZES = {"prefill": {"tp_size": 4, "dp_size": 2}, "decode": {"tp_size": 4, "dp_size": 2}}
ENV = "export PYTHONHASHSEED=0\nexport MOONCAKE_CONFIG_PATH=/etc/mooncake.json\n"
MANAGER = "--no-disable-hybrid-kv-cache-manager"
MOONCAKE = {"metadata_server": "P2PHANDSHAKE", "protocol": "ascend", "global_segment_size": "1GB"}


def serve(transfer: dict[str, Any] | None = None, *flags: str, model: str = MODEL, env: str = ENV) -> str:
    """A script that starts an engine."""
    given = [f"--kv-transfer-config '{json.dumps(transfer)}'"] if transfer is not None else []
    return env + " \\\n  ".join([f"vllm serve {model}", *given, *flags]) + "\n"


def store(role: str = "kv_both", top: dict[str, Any] | None = None, **extra: Any) -> dict[str, Any]:
    return {"kv_connector": "AscendStoreConnector", "kv_role": role, **(top or {}), "kv_connector_extra_config": extra}


def peer(role: str, sizes: dict[str, Any] | None = None, port: int = 30000, **more: Any) -> dict[str, Any]:
    return {
        "kv_connector": "MooncakeHybridConnector",
        "kv_role": role,
        "kv_port": str(port),
        "kv_connector_extra_config": SIZES if sizes is None else sizes,
        **more,
    }


def several(role: str, *children: dict[str, Any], **top: Any) -> dict[str, Any]:
    extra = {"connectors": list(children)}
    return {"kv_connector": "MultiConnector", "kv_role": role, **top, "kv_connector_extra_config": extra}


def side(role: str, *flags: str, port: int = 30000, sizes: dict[str, Any] | None = None, **more: Any) -> str:
    """An engine of four times two devices on one side of a transfer."""
    parallel = ("--tensor-parallel-size 4", "--data-parallel-size 2")
    return serve(peer(role, sizes, port), *parallel, *flags, **more)


def both(producer: str, consumer: str) -> Files:
    return {"p.sh": producer, "d.sh": consumer}


def one(script: str) -> Files:
    return {"serve.sh": script}


def filed(**changes: Any) -> Files:
    kept = {key: value for key, value in {**MOONCAKE, **changes}.items() if value is not None}
    return {"serve.sh": serve(store()), "mooncake.json": json.dumps(kept)}


def mastered(lease: str, env: str = "") -> Files:
    return {"serve.sh": serve(store(), env=ENV + env), "master.sh": f"mooncake_master --port 50051 {lease}\n"}


def additional(value: dict[str, Any], *flags: str, transfer: dict[str, Any] | None = None, env: str = ENV) -> Files:
    return one(serve(transfer, f"--additional-config '{json.dumps(value)}'", *flags, env=env))


def drafting(method: str, tokens: int) -> str:
    return f"--speculative-config '{json.dumps({'method': method, 'num_speculative_tokens': tokens})}'"


PD, DP = side("kv_producer"), side("kv_consumer", port=30100)
SEQUENCE = ENV + "export VLLM_ASCEND_ENABLE_FLASHCOMM1=1\n"
V4_FLAGS = ("--block-size 128", MANAGER)
GRID = "export VLLM_PREFIX_CACHE_RETENTION_INTERVAL="
FABRIC = ENV + "export ASCEND_ENABLE_USE_FABRIC_MEM=1\n"
SCHEDULED = {"scheduler_config": {"recompute_scheduler_enable": True}}
OFFLOAD = {"kv_connector": "RecomputeCPUOffloadConnector", "kv_role": "kv_consumer"}


def with_env(line: str, transfer: dict[str, Any] | None = None, *flags: str, model: str = MODEL) -> Files:
    return one(serve(transfer if transfer is not None else store(), *flags, model=model, env=f"{ENV}{line}\n"))


def on_fabric(size: str) -> Files:
    return {
        "serve.sh": serve(store(), env=FABRIC),
        "mooncake.json": json.dumps({**MOONCAKE, "global_segment_size": size}),
    }


EXAMPLES: dict[str, tuple[Files, Files]] = {
    "KV001": (
        one(f"vllm serve {MODEL} --additional-config '{{\"a\": 1,}}'\n"),
        one(f"vllm serve {MODEL} --additional-config '{{\"a\": 1}}'\n"),
    ),
    "KV002": (
        one(f'PORT=1\nvllm serve {MODEL} --additional-config \'{{"a": "$PORT"}}\'\n'),
        one(f"PORT=1\nvllm serve {MODEL} --additional-config '{{\"a\": \"'$PORT'\"}}'\n"),
    ),
    "KV003": (one(f"vllm serve {MODEL}\nif then ((\n"), one(f"vllm serve {MODEL}\nif true; then echo; fi\n")),
    "KV101": (
        one(serve({"kv_connector": "AscendStoreConector", "kv_role": "kv_both"})),
        one(serve({"kv_connector": "AscendStoreConector", "kv_role": "kv_both", "kv_connector_module_path": "my.own"})),
    ),
    "KV102": (
        one(serve({"kv_connector": "AscendStoreConnector"})),
        one(serve(store())),
    ),
    "KV103": (one(serve(store(use_layer_wise=False))), one(serve(store(use_layerwise=False)))),
    "KV104": (one(serve(store(backend="moncake"))), one(serve(store(backend="Mooncake")))),
    "KV105": (
        one(serve(store(backend="mooncake", use_layerwise=True))),
        one(serve(store(backend="memcache", use_layerwise=True))),
    ),
    "KV106": (
        one(serve(store(top={"kv_load_failure_policy": "recompute"}), MANAGER, model=V4)),
        one(serve(store(top={"kv_load_failure_policy": "recompute"}))),
    ),
    "KV107": (one(serve(store(), MANAGER, model=V4)), one(serve(store()))),
    "KV108": (
        one(serve(several("kv_both", store(top={"kv_load_failure_policy": "fail"})))),
        one(serve(several("kv_both", store(), kv_load_failure_policy="fail"))),
    ),
    "KV109": (one(serve(store(), model=V4)), one(serve(store(), MANAGER, model=V4))),
    "KV110": (
        one(serve(several("kv_consumer", store("kv_consumer", consumer_is_to_load=True), peer("kv_consumer")))),
        one(serve(several("kv_consumer", peer("kv_consumer"), store("kv_consumer", consumer_is_to_load=True)))),
    ),
    "KV111": (one(serve(store("kv_consumer"))), one(serve(store("kv_consumer", consumer_is_to_put=True)))),
    "KV112": (
        one(serve(several("kv_producer", peer("kv_producer"), store("kv_consumer", consumer_is_to_load=True)))),
        one(serve(several("kv_producer", peer("kv_producer"), store("kv_both")))),
    ),
    "KV113": (both(PD, side("kv_producer", port=30100)), both(PD, DP)),
    "KV114": (
        one(serve(store(backend="memcache", use_layerwise=True), drafting("mtp", 1))),
        one(serve(store(backend="memcache", use_layerwise=False), drafting("mtp", 1))),
    ),
    "KV115": (
        one(serve(several("kv_both", store(), {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}))),
        one(serve(several("kv_both", store(), {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}))),
    ),
    "KV201": (one(serve(store(), env="export PYTHONHASHSEED=random\n")), one(serve(store()))),
    "KV202": (
        both(serve(store()), serve(store(), env="export PYTHONHASHSEED=1\n")),
        both(serve(store()), serve(store())),
    ),
    "KV203": (
        both(serve(store()), serve(store(), "--prefix-caching-hash-algo sha256_cbor")),
        both(serve(store()), serve(store(), "--prefix-caching-hash-algo sha256")),
    ),
    "KV204": (
        one(serve(store(), "--prefix-caching-hash-algo=xxhash")),
        one(serve(store(), "--prefix-caching-hash-algo=sha256_cbor")),
    ),
    "KV205": (
        both(serve(store(), "--block-size 128"), serve(store(), "--block-size 64")),
        both(serve(store(), "--block-size 128"), serve(store(), "--block_size=128")),
    ),
    "KV206": (
        both(serve(store(), "--quantization ascend"), serve(store())),
        both(serve(store(), "--quantization ascend"), serve(store(), "-q ascend")),
    ),
    "KV207": (one(serve(store(), env="export PYTHONHASHSEED=0\n")), one(serve(store()))),
    "KV208": (filed(protocol="Ascend"), filed()),
    "KV209": (filed(global_segment_size="1GiB"), filed(global_segment_size="1.5gb")),
    "KV210": (on_fabric("1500mb"), on_fabric("2GB")),
    "KV211": (
        filed(enable_ssd_offload=True, ssd_offload_path="ssd"),
        filed(enable_ssd_offload=True, ssd_offload_path="/mnt/ssd"),
    ),
    "KV212": (
        with_env("export MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES=1GB"),
        with_env("export MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES=1073741824"),
    ),
    "KV213": (
        mastered("", "export ASCEND_TRANSFER_TIMEOUT=10000\n"),
        mastered("--default_kv_lease_ttl=11000", "export ASCEND_TRANSFER_TIMEOUT=10000 HCCL_RDMA_TIMEOUT=17\n"),
    ),
    "KV214": (
        with_env("export ASCEND_TRANSFER_TIMEOUT=10000"),
        with_env("export ASCEND_TRANSFER_TIMEOUT=10000 HCCL_RDMA_TIMEOUT=17"),
    ),
    "KV215": (
        with_env("export ASCEND_CONNECT_TIMEOUT=10"),
        with_env("export ASCEND_CONNECT_TIMEOUT=10000"),
    ),
    "KV216": (
        one(serve(store(lookup_rpc_port="0")) + serve(store(lookup_rpc_port="0"))),
        one(serve(store(lookup_rpc_port="0")) + serve(store(lookup_rpc_port="1"))),
    ),
    "KV217": (filed(use_ascend_direct=True), filed(prefer_alloc_in_same_node=True)),
    "KV301": (
        both(PD, serve(peer("kv_consumer", port=30100), "-tp 8", "-dp 2")),
        both(PD, serve(peer("kv_consumer", port=30100), "-tp 4", "-dp 2")),
    ),
    "KV302": (
        both(side("kv_producer", sizes={"prefill": SIZES["prefill"]}), DP),
        both(PD, DP),
    ),
    "KV303": (
        both(PD, side("kv_consumer", port=30100, sizes={**SIZES, "prefill": {"tp_size": 8, "dp_size": 2}})),
        both(PD, DP),
    ),
    "KV304": (
        one(serve(peer("kv_producer", {"prefill": {"tp_size": 2}, "decode": {"tp_size": 4}}), "-tp 2")),
        one(serve(peer("kv_producer", {"prefill": {"tp_size": 4}, "decode": {"tp_size": 2}}), "-tp 4")),
    ),
    "KV305": (
        one(side("kv_producer") + side("kv_consumer", port=30004)),
        one(side("kv_producer") + side("kv_consumer", port=30008)),
    ),
    "KV306": (
        both(side("kv_producer", "--max-model-len 131072"), side("kv_consumer", "--max-model-len 37368", port=30100)),
        both(side("kv_producer", "--max-model-len 37368"), side("kv_consumer", "--max-model-len 37368", port=30100)),
    ),
    "KV401": (one(serve(None, drafting("dspark", 3))), one(serve(None, drafting("dspark", 5)))),
    "KV402": (
        both(side("kv_producer", drafting("dspark", 5)), side("kv_consumer", drafting("dspark", 7), port=30100)),
        both(side("kv_producer", drafting("dspark", 7)), side("kv_consumer", drafting("dspark", 7), port=30100)),
    ),
    "KV403": (
        one(serve(None, drafting("mtp", 2), "--compilation-config '{\"cudagraph_capture_sizes\": [4, 8, 16]}'")),
        one(serve(None, drafting("mtp", 3), "--compilation-config '{\"cudagraph_capture_sizes\": [4, 8, 16]}'")),
    ),
    "KV404": (additional({"enable_dsa_cp": True}), additional({"enable_dsa_cp": True}, env=SEQUENCE)),
    "KV405": (
        additional({"enable_dsa_cp": True}, drafting("dspark", 7), env=SEQUENCE),
        additional({"enable_dsa_cp": True}, drafting("mtp", 1), env=SEQUENCE),
    ),
    "KV406": (
        additional(SCHEDULED, transfer=peer("kv_producer", {})),
        additional(SCHEDULED, transfer=peer("kv_consumer", {})),
    ),
    "KV407": (one(serve(OFFLOAD)), additional(SCHEDULED, transfer=OFFLOAD)),
    "KV408": (additional({"torchair_graph_config": {}}), additional({"enable_cpu_binding": False})),
    "KV501": (one(serve(store(), "--no-enable-prefix-caching")), one(serve(store()))),
    "KV502": (
        with_env(f"{GRID}16384", None, "--max-model-len 32000"),
        with_env(f"{GRID}16384", None, "--max-model-len 65536"),
    ),
    "KV503": (with_env(f"{GRID}16384"), one(serve(store()))),
    "KV504": (
        with_env(f"{GRID}16000", None, *V4_FLAGS, model=V4),
        with_env(f"{GRID}16384", None, *V4_FLAGS, model=V4),
    ),
    "KV505": (
        one(serve(None, "--no-enable-chunked-prefill", "--max-num-batched-tokens 8192", "--max-model-len 65536")),
        one(serve(None, "--max-num-batched-tokens 8192", "--max-model-len 65536")),
    ),
    "KV506": (one(serve(store(), "--kv-cache-dtype int8")), one(serve(store(), "--kv-cache-dtype auto"))),
    "KV507": (one(serve(None, "--gpu-memory-utilization 90")), one(serve(None, "--gpu-memory-utilization 0.9"))),
    "KV601": (
        with_env("export VLLM_BATCH_INVARIANT=1", None, MANAGER, model=V4),
        with_env("export VLLM_BATCH_INVARIANT=0", None, MANAGER, model=V4),
    ),
    "KV602": (with_env("export LCCL_DETERMINISTIC=true"), with_env("export HCCL_DETERMINISTIC=strict")),
    "KV603": (
        with_env("export HCCL_DETERMINISTIC=true"),
        with_env("export HCCL_DETERMINISTIC=true LCCL_DETERMINISTIC=1"),
    ),
}
