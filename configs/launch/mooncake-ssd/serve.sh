#!/bin/bash
# One engine, and a Mooncake pool that spills to SSD, on Atlas A3 (fabric memory: whole GiB).
# lint: clean
export PYTHONHASHSEED=0
export MOONCAKE_CONFIG_PATH=/etc/mooncake.json
export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3
export ACL_OP_INIT_MODE=1
export ASCEND_ENABLE_USE_FABRIC_MEM=1
export HCCL_RDMA_TIMEOUT=17
export ASCEND_CONNECT_TIMEOUT=10000
export ASCEND_TRANSFER_TIMEOUT=10000
export MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=$((100 * 1024 * 1024 * 1024))
export MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY=lru
export MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES=1073741824
export ASCEND_GLOBAL_RESOURCE_CONFIG='{"fabric_memory.max_capacity": 32}'
vllm serve /models/Qwen2.5-7B-Instruct --block-size 128 --max-model-len 32768 \
  --kv-transfer-config '{
  "kv_connector": "AscendStoreConnector",
  "kv_role": "kv_both",
  "kv_connector_extra_config": {
    "lookup_rpc_port": "0",
    "backend": "mooncake"
  }
}'
