#!/bin/bash
# Host memory behind each side (plan C): prefixes that prefill evicts are kept on its host. The prefill side.
# spec_module_path is that of vllm-ascend 0.23 and 0.26.0rc; on main it is under distributed/kv_transfer.
# lint: clean
export PYTHONHASHSEED=0
vllm serve /models/DeepSeek-V4-Flash-0731 --quantization ascend --block-size 128 \
  --tensor-parallel-size 4 --data-parallel-size 2 --no-disable-hybrid-kv-cache-manager \
  --max-num-batched-tokens 32768 \
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
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
          "cpu_bytes_to_use": 214748364800,
          "block_size": 1024,
          "spec_name": "NPUOffloadingSpec",
          "spec_module_path": "vllm_ascend.kv_offload.npu"
        }
      }
    ]
  }
}'
