#!/bin/bash
# Plan B of the incident: decode is as in plan A, without the pool. The decode side.
# lint: clean
export PYTHONHASHSEED=0
export HCCL_INTRA_ROCE_ENABLE=1
export VLLM_PREFIX_CACHE_RETENTION_INTERVAL=16384
vllm serve /models/DeepSeek-V4-Flash-0731 --quantization ascend --block-size 128 \
  --tensor-parallel-size 4 --data-parallel-size 2 --no-disable-hybrid-kv-cache-manager \
  --no-enable-prefix-caching --async-scheduling \
  --kv-transfer-config '{
  "kv_connector": "MooncakeHybridConnector",
  "kv_role": "kv_consumer",
  "kv_port": "30100",
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
}'
