#!/bin/bash
# Host memory behind each side (plan C): what decode preempts is kept on its host. The decode side.
# lint: clean
export PYTHONHASHSEED=0
vllm serve /models/DeepSeek-V4-Flash-0731 --quantization ascend --block-size 128 \
  --tensor-parallel-size 4 --data-parallel-size 2 --no-disable-hybrid-kv-cache-manager \
  --additional-config '{"scheduler_config": {"recompute_scheduler_enable": true}}' \
  --kv-transfer-config '{
  "kv_connector": "MultiConnector",
  "kv_role": "kv_consumer",
  "kv_connector_extra_config": {
    "connectors": [
      {
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
      },
      {
        "kv_connector": "RecomputeCPUOffloadConnector",
        "kv_role": "kv_consumer",
        "kv_connector_extra_config": {
          "cpu_bytes_to_use_per_rank": 26843545600
        }
      }
    ]
  }
}'
