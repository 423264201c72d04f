"""What differs between engines, as frozen data. Adding an engine is adding a row here."""

from dataclasses import dataclass, field, replace

from kvgate.domain.counters import Counter, Signal
from kvgate.domain.policy import Grade


@dataclass(frozen=True, slots=True)
class CounterName:
    """Where a counter is found: sample names, newest first (the first present is used), and labels it must have."""

    samples: tuple[str, ...]
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Dialect:
    """One engine's HTTP surface.

    ``by_source_grade`` is what its per-source prompt-token counters are worth (design §3.4).
    ``fixed_fields`` are sent with every request; ``id_fields`` are the ways to ask for token IDs, best first.
    """

    name: str
    completions_path: str
    chat_path: str
    models_path: str
    version_path: str
    health_path: str
    metrics_path: str
    tokenize_path: str
    detokenize_path: str
    reset_path: str
    server_info_path: str
    engine_label: str
    started_sample: str
    by_source_grade: Grade
    fixed_fields: tuple[tuple[str, object], ...]
    id_fields: tuple[str, ...]
    counters: tuple[tuple[Counter, CounterName], ...] = field(repr=False)
    gauges: tuple[tuple[Signal, CounterName], ...] = field(repr=False, default=())
    config_sample: str = "vllm:cache_config_info"


def _by_source(source: str) -> CounterName:
    return CounterName(("vllm:prompt_tokens_by_source_total", "vllm:prompt_tokens_by_source"), (("source", source),))


def _plain(*stems: str) -> CounterName:
    return CounterName(tuple(name for stem in stems for name in (f"vllm:{stem}_total", f"vllm:{stem}")))


_VLLM_COUNTERS = (
    (Counter.PROMPT_TOKENS, _plain("prompt_tokens")),
    (Counter.COMPUTED, _by_source("local_compute")),
    (Counter.LOCAL, _by_source("local_cache_hit")),
    (Counter.EXTERNAL, _by_source("external_kv_transfer")),
    (Counter.LOCAL_HITS, _plain("prefix_cache_hits", "gpu_prefix_cache_hits")),
    (Counter.LOCAL_QUERIES, _plain("prefix_cache_queries", "gpu_prefix_cache_queries")),
    (Counter.EXTERNAL_HITS, _plain("external_prefix_cache_hits")),
    (Counter.EXTERNAL_QUERIES, _plain("external_prefix_cache_queries")),
    (Counter.PREEMPTIONS, _plain("num_preemptions")),
    (Counter.REQUESTS, _plain("request_success")),
    (
        Counter.LOADED_BYTES,
        CounterName(("vllm:mooncake_store_operation_bytes_total",), (("operation", "load_get"),)),
    ),
    (
        Counter.FAILED_LOADS,
        CounterName(("vllm:mooncake_store_operation_failed_keys_total",), (("operation", "load_get"),)),
    ),
)

_VLLM_GAUGES = (
    (Signal.RUNNING, CounterName(("vllm:num_requests_running",))),
    (Signal.WAITING, CounterName(("vllm:num_requests_waiting",))),
    (Signal.KV_USAGE, CounterName(("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"))),
)

# Temperature 0 and everything that could change sampling, always explicit; never min_tokens, structured output
# or tools (design §5). top_k -1 means "all" in every vLLM version.
_VLLM_FIELDS: tuple[tuple[str, object], ...] = (
    ("temperature", 0),
    ("top_p", 1),
    ("top_k", -1),
    ("seed", 42),
    # A model's generation_config may bring penalties of its own.
    ("min_p", 0),
    ("presence_penalty", 0),
    ("frequency_penalty", 0),
    ("repetition_penalty", 1),
    ("n", 1),
)

_VLLM = Dialect(
    name="vllm",
    completions_path="/v1/completions",
    chat_path="/v1/chat/completions",
    models_path="/v1/models",
    version_path="/version",
    health_path="/health",
    metrics_path="/metrics",
    tokenize_path="/tokenize",
    detokenize_path="/detokenize",
    reset_path="/reset_prefix_cache",
    server_info_path="/server_info?config_format=json",
    engine_label="engine",
    started_sample="process_start_time_seconds",
    by_source_grade=Grade.ARRIVED,
    fixed_fields=_VLLM_FIELDS,
    id_fields=("return_token_ids", "return_tokens_as_token_ids"),
    counters=_VLLM_COUNTERS,
    gauges=_VLLM_GAUGES,
)

# vllm-ascend serves vLLM's surface, but on models with several KV groups a failed load is only logged and the
# request goes on with unfilled blocks, so its by-source counters show scheduling, not arrival
# (facts: pool_worker start_load_kv, 0.23 to main of 2026-08-22).
_VLLM_ASCEND = replace(_VLLM, name="vllm-ascend", by_source_grade=Grade.SCHEDULED)

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (_VLLM, _VLLM_ASCEND)}
