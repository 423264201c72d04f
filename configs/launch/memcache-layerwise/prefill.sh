#!/bin/bash
# AscendStore over memcache, layer by layer, on prefill; a dense model.
# lint: clean
export PYTHONHASHSEED=0
export MMC_LOCAL_CONFIG_PATH=/etc/memcache/mmc-local.conf
vllm serve /models/Qwen3-32B --tensor-parallel-size 8 --block-size 128 \
  --kv-transfer-config '{
  "kv_connector": "MultiConnector",
  "kv_role": "kv_producer",
  "kv_connector_extra_config": {
    "connectors": [
      {
        "kv_connector": "MooncakeConnectorV1",
        "kv_role": "kv_producer",
        "kv_port": "30000",
        "kv_connector_extra_config": {
          "prefill": {
            "dp_size": 1,
            "tp_size": 8
          },
          "decode": {
            "dp_size": 1,
            "tp_size": 8
          }
        }
      },
      {
        "kv_connector": "AscendStoreConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {
          "backend": "memcache",
          "lookup_rpc_port": "0",
          "use_layerwise": true
        }
      }
    ]
  }
}'
