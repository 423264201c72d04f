"""The metrics page as vLLM writes it, a set of samples per data-parallel rank, told as the fault has it."""

from kvgate.sim.deeds import Counters
from kvgate.sim.node import Node

MODEL = "sim"


def page(node: Node, scrapes: int, running: int = 0) -> str:
    """The page. ``scrapes`` is how often it was read before, for faults that tell each reader something else;
    ``running`` is how many requests the engine works on."""
    fault = node.fault
    factor = 2 if fault == "counters_double" else 1
    silent = fault == "counters_stuck" or (fault == "counters_saw" and scrapes % 2 == 1)
    lines: list[str] = []
    for number, rank in enumerate(node.ranks):
        counters = Counters() if silent else rank.counters
        if fault == "counters_restart" and counters.requests > 12:
            counters = Counters(prompt=counters.prompt % 7, local_queries=counters.local_queries % 7)
        lines += _rank(counters, factor, number, fault)
        lines += _now(running + node.memory.kept, number)
        # Somebody who comes and goes is there for two requests in forty.
        if (
            node.dials.foreign
            or fault in ("foreign_traffic", "pd_foreign_traffic")
            or (fault == "foreign_at_times" and scrapes % 80 in (30, 31))
        ):
            counters.prompt += 512
            counters.computed += 512
            counters.local_queries += 512
    preset = node.preset
    settings = {
        "block_size": preset.block,
        "enable_prefix_caching": node.prefix_caching,
        "cache_hit_alignment_tokens": preset.granule,
        "prefix_cache_retention_interval": preset.retention or None,
    }
    labels = ",".join(f'{name}="{value}"' for name, value in settings.items())
    lines.append("# TYPE vllm:cache_config_info gauge")
    lines.append(f'vllm:cache_config_info{{{labels},engine="0"}} 1.0')
    return "\n".join(lines) + "\n"


def _rank(counters: Counters, factor: int, number: int, fault: str) -> list[str]:
    by_source = {
        "local_compute": counters.computed,
        "local_cache_hit": counters.local,
        "external_kv_transfer": counters.external,
    }
    plain = {
        "prompt_tokens": counters.prompt,
        "prefix_cache_queries": counters.local_queries,
        "prefix_cache_hits": counters.local,
        "external_prefix_cache_queries": counters.external_queries,
        "external_prefix_cache_hits": counters.external_hits,
        "num_preemptions": counters.preemptions,
        "generation_tokens": counters.generated,
        "request_success": counters.requests,
        "nixl_bytes_transferred": counters.transferred_bytes,
    }
    label = f'engine="{number}",model_name="{MODEL}"'
    lines: list[str] = []
    for name, value in plain.items():
        lines.append(f"vllm:{name}_total{{{label}}} {float(value * factor)}")
        lines.append(f"vllm:{name}_created{{{label}}} 1.7e+09")
    if fault != "look_ups_only":
        lines += [
            f'vllm:prompt_tokens_by_source_total{{{label},source="{source}"}} {float(value * factor)}'
            for source, value in by_source.items()
        ]
    return lines


def _now(running: int, number: int) -> list[str]:
    """What holds at the moment: every request in flight holds a hundredth of the KV cache."""
    gauges = {
        "num_requests_running": running,
        "num_requests_waiting": 0,
        "kv_cache_usage_perc": min(1.0, running / 100),
    }
    label = f'engine="{number}",model_name="{MODEL}"'
    return [f"vllm:{name}{{{label}}} {float(value)}" for name, value in gauges.items()]
