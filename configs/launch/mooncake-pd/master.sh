#!/bin/bash
# The pool's master. A lease outlasts both timeouts of the engines (10 s).
mooncake_master --port 50088 --eviction_high_watermark_ratio 0.9 --eviction_ratio 0.1 --default_kv_lease_ttl 11000
