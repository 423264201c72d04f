#!/bin/bash
# AscendStore over yuanrong (vllm-ascend up to 0.26.0rc: the worker's address comes from the environment). WORKER_IP is the
# caller's.
# lint: clean
export PYTHONHASHSEED=0
export DS_WORKER_ADDR="${WORKER_IP}:31501"
export DS_ENABLE_EXCLUSIVE_CONNECTION=0 DS_ENABLE_REMOTE_H2D=0
vllm serve /models/Qwen2.5-7B-Instruct --tensor-parallel-size 1 --block-size 128 \
  --kv-transfer-config '{
  "kv_connector": "AscendStoreConnector",
  "kv_role": "kv_both",
  "kv_connector_extra_config": {
    "lookup_rpc_port": "1",
    "backend": "yuanrong"
  }
}'
