#!/bin/bash
# AscendStore over Mooncake with prefill and decode on Atlas A3, a dense model, as vllm-ascend's documents have it.
# KV111: decode's store is idle, as the documents have it; KV501: without prefix caching every hit is external.
# lint: KV111 KV501
export PYTHONHASHSEED=0
export MOONCAKE_CONFIG_PATH=/etc/mooncake.json
export ASCEND_RT_VISIBLE_DEVICES=4,5,6,7
export ACL_OP_INIT_MODE=1
export ASCEND_ENABLE_USE_FABRIC_MEM=1
export HCCL_RDMA_TIMEOUT=17
export ASCEND_CONNECT_TIMEOUT=10000
export ASCEND_TRANSFER_TIMEOUT=10000
python3 -m vllm.entrypoints.openai.api_server --model /models/Qwen2.5-7B-Instruct \
  --port 8200 --trust-remote-code --enforce-eager --tensor-parallel-size 1 --data-parallel-size 1 \
  --no-enable-prefix-caching \
  --max-model-len 32768 --block-size 128 --max-num-batched-tokens 16384 \
  --kv-transfer-config '{
  "kv_connector": "MultiConnector",
  "kv_role": "kv_consumer",
  "kv_load_failure_policy": "recompute",
  "kv_connector_extra_config": {
    "connectors": [
      {
        "kv_connector": "MooncakeConnectorV1",
        "kv_role": "kv_consumer",
        "kv_port": "20002",
        "kv_connector_extra_config": {
          "prefill": {
            "dp_size": 1,
            "tp_size": 1
          },
          "decode": {
            "dp_size": 1,
            "tp_size": 1
          }
        }
      },
      {
        "kv_connector": "AscendStoreConnector",
        "kv_role": "kv_consumer",
        "kv_connector_extra_config": {
          "lookup_rpc_port": "0",
          "backend": "mooncake"
        }
      }
    ]
  }
}'
