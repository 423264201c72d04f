#!/bin/bash
# Plan B of the incident: plan A, and a Mooncake pool on prefill alone. To be gated before it serves. The prefill side.
# KV107: a load that fails is swallowed on this model; KV503: no prompt below 32768 tokens can hit the pool.
# lint: KV107 KV503
export PYTHONHASHSEED=0
export MOONCAKE_CONFIG_PATH=/etc/mooncake.json
export HCCL_RDMA_TIMEOUT=17
export ASCEND_CONNECT_TIMEOUT=10000
export ASCEND_TRANSFER_TIMEOUT=10000
export VLLM_PREFIX_CACHE_RETENTION_INTERVAL=16384
vllm serve /models/DeepSeek-V4-Flash-0731 --quantization ascend --block-size 128 \
  --tensor-parallel-size 4 --data-parallel-size 2 --no-disable-hybrid-kv-cache-manager \
  --kv-transfer-config '{
  "kv_connector": "MultiConnector",
  "kv_role": "kv_producer",
  "kv_connector_extra_config": {
    "connectors": [
      {
        "kv_connector": "MooncakeHybridConnector",
        "kv_role": "kv_producer",
        "kv_port": "30000",
        "kv_connector_extra_config": {
          "prefill": {
            "dp_size": 2,
            "tp_size": 4
          },
          "decode": {
            "dp_size": 2,
            "tp_size": 4
          }
        }
      },
      {
        "kv_connector": "AscendStoreConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {
          "lookup_rpc_port": "0",
          "backend": "mooncake",
          "use_layerwise": false,
          "load_async": false,
          "consumer_is_to_put": false
        }
      }
    ]
  }
}'
