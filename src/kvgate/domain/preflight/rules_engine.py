"""Rules about engines: parallel sizes that two sides declare, ports, speculation, scheduler and determinism switches."""

from collections.abc import Iterator

from kvgate.domain.preflight.deployment import (
    BOTH,
    CONSUMER,
    DEEPSEEK_V4,
    PEERS,
    PRODUCER,
    SEVERAL_GROUPS,
    Connector,
    Engine,
    Launch,
)
from kvgate.domain.preflight.rule import Found, Rule, Seen, Severity, Undecided, undecided
from kvgate.domain.preflight.rules_pool import pooled
from kvgate.domain.preflight.setting import Setting, number, text, truth, whole

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
SIDES = {PRODUCER: "prefill", CONSUMER: "decode"}
DSPARK_BLOCK = 5


def _peers(launch: Launch) -> Iterator[tuple[Engine, Connector]]:
    return ((engine, each) for engine in launch.engines for each in engine.connectors() if each.name in PEERS)


def _declared(launch: Launch) -> Found:
    """What a connector says of its own side, against the flags of its engine."""
    for engine, each in _peers(launch):
        side = SIDES.get(engine.role or "")
        if side is None:
            continue
        for key, flag in (
            ("tp_size", "tensor-parallel-size"),
            ("dp_size", "data-parallel-size"),
            ("pp_size", "pipeline-parallel-size"),
        ):
            told, real = each.option(side, key), engine.flags.get(flag)
            yield from (*undecided(told), *undecided(real))
            if told is None or whole(told) is None:
                continue
            if real is None and engine.flags.more:
                yield Undecided(told.spot, engine.flags.more[0])
            elif whole(told) != engine.size(flag) and engine.size(flag) is not None:
                yield Seen(
                    told.spot,
                    f"{side}.{key} is {whole(told)}, and --{flag} is {engine.size(flag)}{'' if real else ' (not given)'}",
                )


def _undeclared(launch: Launch) -> Found:
    for _, each in _peers(launch):
        extra = each.setting.at("kv_connector_extra_config")
        if each.name == "MooncakeConnector" or (extra is not None and extra.partial):
            continue
        for side in SIDES.values():
            if each.option(side) is None:
                yield Seen(each.spot, f"{each.name} has no {side} in its kv_connector_extra_config")


def _sides_disagree(launch: Launch) -> Found:
    told: dict[tuple[str, str], Setting] = {}
    for _, each in _peers(launch):
        for side in SIDES.values():
            for key in ("tp_size", "dp_size", "pp_size"):
                given = each.option(side, key)
                if given is None or whole(given) is None:
                    continue
                first = told.setdefault((side, key), given)
                if whole(first) != whole(given):
                    yield Seen(given.spot, f"{side}.{key} is {whole(given)} here, and {whole(first)} at {first.spot}")


def _unequal(launch: Launch) -> Found:
    for _, each in _peers(launch):
        prefill, decode = (whole(each.option(side, "tp_size")) for side in SIDES.values())
        spot = each.option("prefill", "tp_size")
        if prefill and decode and spot is not None and (prefill < decode or prefill % decode):
            yield Seen(spot.spot, f"prefill.tp_size {prefill} is no multiple of decode.tp_size {decode}")


def _ports(launch: Launch) -> Found:
    """Handshake ports run from kv_port on, one per device. Engines that one file starts share a host."""
    taken: list[tuple[str, int, int, Engine]] = []
    for engine, each in _peers(launch):
        given = each.setting.at("kv_port")
        yield from undecided(given)
        port = whole(given)
        sizes = [engine.size(flag) for flag in ("data-parallel-size", "tensor-parallel-size", "pipeline-parallel-size")]
        if given is None or port is None or None in sizes:
            continue
        last = port + (sizes[0] or 1) * (sizes[1] or 1) * (sizes[2] or 1) - 1
        for file, first, end, other in taken:
            apart = text(engine.flags.get("data-parallel-rank")) != text(other.flags.get("data-parallel-rank"))
            if file == engine.spot.file and port <= end and first <= last and not (apart and port == first):
                yield Seen(
                    given.spot, f"kv_port {port} to {last} overlaps {first} to {end} of the engine at {other.spot}"
                )
        taken.append((engine.spot.file, port, last, engine))


def _speculation(engine: Engine) -> tuple[str, int | None, Setting] | None:
    given = engine.flags.get("speculative-config")
    if given is None:
        return None
    method = (text(given.at("method")) or "").lower()
    return method, whole(given.at("num_speculative_tokens")), given


def _dspark_level(launch: Launch) -> Found:
    for engine in launch.engines:
        told = _speculation(engine)
        if told is None or told[0] != "dspark":
            continue
        yield from undecided(told[2].at("num_speculative_tokens"))
        if told[1] is not None and told[1] < DSPARK_BLOCK:
            yield Seen(
                told[2].spot, f"DSpark with {told[1]} tokens; the 0731 checkpoint's dspark_block_size is {DSPARK_BLOCK}"
            )


def _levels_differ(launch: Launch) -> Found:
    first: tuple[int, Setting] | None = None
    for engine, _ in _peers(launch):
        told = _speculation(engine)
        if told is None or told[0] != "dspark" or told[1] is None:
            continue
        if first is None:
            first = told[1], told[2]
        elif first[0] != told[1]:
            yield Seen(told[2].spot, f"DSpark with {told[1]} tokens here, and {first[0]} at {first[1].spot}")


def _graph_sizes(launch: Launch) -> Found:
    for engine in launch.engines:
        told, tensor = _speculation(engine), engine.size("tensor-parallel-size")
        sizes = engine.flags.get("compilation-config")
        given = sizes.at("cudagraph_capture_sizes") if sizes is not None else None
        if told is None or told[1] is None or given is None or tensor is None:
            continue
        sizes_told = [size for size in map(whole, given.items()) if size is not None]
        if sizes_told and all(size % (told[1] + 1) for size in sizes_told):
            yield Seen(
                given.spot,
                f"no size of cudagraph_capture_sizes is a multiple of {told[1] + 1} (speculative tokens and one)",
            )


def _additional(engine: Engine, *path: str) -> Setting | None:
    given = engine.flags.get("additional-config")
    return given.at(*path) if given is not None else None


def _flashcomm(engine: Engine) -> bool:
    return bool(
        truth(engine.env.get("VLLM_ASCEND_ENABLE_FLASHCOMM1")) or truth(_additional(engine, "enable_flashcomm1"))
    )


def _dsa_alone(launch: Launch) -> Found:
    for engine in launch.engines:
        given = _additional(engine, "enable_dsa_cp")
        yield from undecided(given)
        if given is None or not truth(given) or _flashcomm(engine):
            continue
        if engine.env.more:
            yield Undecided(given.spot, engine.env.more[0])
        else:
            yield Seen(given.spot, "enable_dsa_cp is true and flashcomm1 is not on")


def _dsa_crash(launch: Launch) -> Found:
    for engine in launch.engines:
        given, told = _additional(engine, "enable_dsa_cp"), _speculation(engine)
        if given is None or not truth(given) or not _flashcomm(engine):
            continue
        fused = truth(engine.env.get("VLLM_ASCEND_ENABLE_FUSED_MC2")) or truth(_additional(engine, "enable_fused_mc2"))
        if fused or (told is not None and told[0] == "dspark"):
            why = "fused MC2" if fused else f"DSpark with {told[1] if told else '?'} tokens"
            yield Seen(given.spot, f"enable_dsa_cp with flashcomm1 and {why}: AI-core crashes were reported")


def _recompute_scheduler(launch: Launch) -> Found:
    for engine in launch.engines:
        given = _additional(engine, "scheduler_config", "recompute_scheduler_enable") or _additional(
            engine, "recompute_scheduler_enable"
        )
        if given is None or not truth(given):
            continue
        if engine.role == PRODUCER:
            yield Seen(given.spot, "recompute_scheduler_enable on a producer is passed over with a warning")
        elif engine.role in (BOTH, None):
            yield Seen(given.spot, "recompute_scheduler_enable without the role kv_consumer: ValueError at the start")


def _recompute_offload(launch: Launch) -> Found:
    for engine in launch.engines:
        given = _additional(engine, "scheduler_config", "recompute_scheduler_enable") or _additional(
            engine, "recompute_scheduler_enable"
        )
        for each in engine.connectors():
            if each.name == "RecomputeCPUOffloadConnector" and not truth(given):
                yield Seen(
                    each.spot, "RecomputeCPUOffloadConnector needs recompute_scheduler_enable in --additional-config"
                )


def _dead_keys(launch: Launch) -> Found:
    for engine in launch.engines:
        for name in ("ascend_scheduler_config", "torchair_graph_config"):
            given = _additional(engine, name)
            if given is not None:
                yield Seen(given.spot, f"{name} is read by no version from 0.23 on")


def _no_local(launch: Launch) -> Found:
    for engine in pooled(launch):
        off = engine.flags.get("no-enable-prefix-caching")
        if engine.on("enable-prefix-caching", True) is False:
            yield Seen(
                off.spot if off is not None else engine.spot,
                "prefix caching is off: there can be no local hit to hold a load against",
            )


def _interval(engine: Engine) -> Setting | None:
    return engine.env.get("VLLM_PREFIX_CACHE_RETENTION_INTERVAL")


def _floor(launch: Launch) -> Found:
    for engine in pooled(launch):
        given = _interval(engine)
        yield from undecided(given)
        interval, longest = whole(given), whole(engine.flags.get("max-model-len"))
        if given is None or not interval:
            continue
        if longest is not None and longest < 2 * interval:
            yield Seen(
                given.spot, f"no prompt below {2 * interval} tokens can hit the pool, and --max-model-len is {longest}"
            )


def _floor_told(launch: Launch) -> Found:
    for engine in pooled(launch):
        given = _interval(engine)
        interval = whole(given)
        if given is not None and interval:
            yield Seen(
                given.spot, f"no prompt below {2 * interval} tokens can hit the pool (twice the retention interval)"
            )


def _retention_grid(launch: Launch) -> Found:
    for engine in launch.engines:
        given, block = _interval(engine), engine.size("block-size", 0)
        interval = whole(given)
        if given is None or not interval or not block or not engine.named(DEEPSEEK_V4):
            continue
        if interval % (128 * block):
            yield Seen(
                given.spot,
                f"the retention interval {interval} is no multiple of {128 * block} (128 blocks of {block} tokens)",
            )


def _chunk(launch: Launch) -> Found:
    for engine in launch.engines:
        given, longest = engine.flags.get("max-num-batched-tokens"), whole(engine.flags.get("max-model-len"))
        if given is None or truth(engine.flags.get("no-enable-chunked-prefill")) is None:
            continue
        size = whole(given)
        if size is not None and longest is not None and size < longest:
            yield Seen(
                given.spot,
                f"chunked prefill is off, and prompts of more than {size} tokens are refused (--max-model-len {longest})",
            )


def _low_precision(launch: Launch) -> Found:
    for engine in pooled(launch):
        given = engine.flags.get("kv-cache-dtype")
        kind = text(given) or ""
        if given is not None and kind.startswith(("int8", "fp8")):
            yield Seen(given.spot, f"--kv-cache-dtype is {kind} and KV goes through a pool")


def _invariant(launch: Launch) -> Found:
    for engine in launch.engines:
        given = engine.env.get("VLLM_BATCH_INVARIANT")
        if given is not None and truth(given) and engine.named(SEVERAL_GROUPS):
            yield Seen(
                given.spot,
                f"VLLM_BATCH_INVARIANT is on for {text(engine.model)}: it was tested on Qwen3 only, and some attention backends switch prefix caching off",
            )


SWITCHES = {
    "HCCL_DETERMINISTIC": ("true", "false", "strict"),
    "LCCL_DETERMINISTIC": ("0", "1"),
    "ATB_LLM_LCOC_ENABLE": ("0", "1"),
    "ATB_MATMUL_SHUFFLE_K_ENABLE": ("0", "1"),
}


def _switches(launch: Launch) -> Found:
    for engine in launch.engines:
        for name, values in SWITCHES.items():
            given = engine.env.get(name)
            told = text(given)
            if given is not None and told is not None and told.lower() not in values:
                yield Seen(given.spot, f"{name} is {told!r}; it takes {', '.join(values)}")


def _halfway(launch: Launch) -> Found:
    for engine in launch.engines:
        collective, local = (engine.env.get(name) for name in ("HCCL_DETERMINISTIC", "LCCL_DETERMINISTIC"))
        on = [
            setting
            for setting in (collective, local)
            if setting is not None and text(setting) in ("true", "strict", "1")
        ]
        if len(on) == 1:
            other = "LCCL_DETERMINISTIC" if on[0] is collective else "HCCL_DETERMINISTIC"
            yield Seen(
                on[0].spot, f"one determinism switch is on and {other} is not: sums may still differ from run to run"
            )


def _memory(launch: Launch) -> Found:
    for engine in launch.engines:
        given = engine.flags.get("gpu-memory-utilization")
        share = number(given)
        if given is not None and share is not None and not 0 < share <= 1:
            yield Seen(given.spot, f"--gpu-memory-utilization is {share:g}; it is a share, above 0 and at most 1")


def _max_lengths(launch: Launch) -> Found:
    first: tuple[int, Setting] | None = None
    for engine, _ in _peers(launch):
        given = engine.flags.get("max-model-len")
        length = whole(given)
        if given is None or length is None:
            continue
        if first is None:
            first = length, given
        elif first[0] != length:
            yield Seen(given.spot, f"--max-model-len is {length} here, and {first[0]} at {first[1].spot}")


def _bad_json(launch: Launch) -> Found:
    return (Seen(each.spot, f"{each.what} {each.why}") for each in launch.bad if "no JSON" in each.why)


def _never_filled(launch: Launch) -> Found:
    return (Seen(each.spot, f"{each.what} {each.why}") for each in launch.bad if "single quotes" in each.why)


def _unread(launch: Launch) -> Found:
    return (Seen(each.spot, f"{each.what} {each.why}") for each in launch.bad if "shell syntax" in each.why)


_VA = "vllm-ascend"
RULES = (
    Rule("KV001", "bad-json", ERROR, "A value that must be JSON and is none: the engine does not start, or reads a word.", "Correct it. Comments, trailing commas and single quotes are no JSON; quotes may have been eaten by the shell.", "kserve issue 5880; vllm-ascend issue 7771", _bad_json),
    Rule("KV002", "never-filled-in", ERROR, "The shell fills in nothing between single quotes: the engine gets the dollar and the name.", "End the single quotes before the variable: '\"'$NAME'\"'.", "kthena issue 937", _never_filled),
    Rule("KV003", "unread-shell", WARNING, "A part of the script was not understood, so what it sets or starts was not checked.", "Mend the syntax (`bash -n`), or give the file without that part.", "this reader", _unread),
    Rule("KV301", "declared-sizes", ERROR, "What a connector declares of its own side must be what its engine has: KV is cut by these numbers.", "Make kv_connector_extra_config and the parallel flags equal.", f"{_VA} issue 11134; seed 000 §5", _declared),
    Rule("KV302", "sides-not-declared", ERROR, "Mooncake's connectors need prefill and decode, each with tp_size and dp_size.", "Add both.", f"{_VA} mooncake_connector.py", _undeclared),
    Rule("KV303", "sides-disagree", ERROR, "Prefill and decode declare different sizes of one side.", "Give both the same kv_connector_extra_config.", f"{_VA} issue 11885", _sides_disagree),
    Rule("KV304", "prefill-below-decode", WARNING, "For models that are not MLA, prefill's tensor parallel size must be a multiple of decode's: ValueError at the start.", "Raise prefill's, or lower decode's.", f"{_VA} ascend_config.py, mooncake_connector.py", _unequal),
    Rule("KV305", "ports-overlap", ERROR, "Each device of an engine takes a handshake port from kv_port on.", "Put kv_port further apart.", f"{_VA} mooncake_connector.py; issue 8938", _ports),
    Rule("KV306", "max-lengths-differ", INFO, "One side takes longer prompts than the other: what prefill refuses, decode may answer from KV that is not whole.", "Set one --max-model-len on both sides.", "SGLang issue 30233", _max_lengths),
    Rule("KV401", "dspark-level", ERROR, "DSpark below the checkpoint's block size gives garbled answers before vLLM 0.26; later ones refuse to start.", "Set num_speculative_tokens to 5 or more, as the checkpoint says.", "vLLM config/speculative.py", _dspark_level),
    Rule("KV402", "dspark-levels-differ", ERROR, "DSpark needs one level on prefill and decode.", "Set the same num_speculative_tokens.", f"{_VA} docs DeepSeek-V4-Flash.md", _levels_differ),
    Rule("KV403", "graph-sizes", WARNING, "With speculation, captured sizes are multiples of the speculative tokens and one; others are never used, or refused.", "Take multiples.", f"{_VA} issue 14260", _graph_sizes),
    Rule("KV404", "dsa-cp-alone", ERROR, "DSA-CP needs sequence parallelism up to 0.26: ValueError at the start. Later versions have parted the two.", "export VLLM_ASCEND_ENABLE_FLASHCOMM1=1, or switch enable_dsa_cp off.", f"{_VA} utils.py", _dsa_alone, "0.23 to 0.26"),
    Rule("KV405", "dsa-cp-crash", WARNING, "DSA-CP, FlashComm1 and a large draft or fused MC2 together were seen to crash (507035, DDR address out of range).", "Switch one of them off; fused MC2 first.", f"seed 000 §3.6; {_VA} issues 14469 and 15985", _dsa_crash),
    Rule("KV406", "recompute-scheduler", WARNING, "The recompute scheduler is for decode: a producer passes it over, and without a role, or with kv_both, the engine does not start.", "Set it on the consumer only.", f"{_VA} platform.py", _recompute_scheduler, ">= 0.23"),
    Rule("KV407", "recompute-offload", ERROR, "RecomputeCPUOffloadConnector is used by the recompute scheduler only.", 'Add "scheduler_config": {"recompute_scheduler_enable": true} to --additional-config.', f"{_VA} recompute_scheduler; seed 001", _recompute_offload),
    Rule("KV408", "dead-keys", WARNING, "A key of --additional-config that is not read any more does nothing.", "Take it out.", f"{_VA} ascend_config.py", _dead_keys, ">= 0.23"),
    Rule("KV501", "no-local-arm", INFO, "With prefix caching off every hit is external, which forces that path, and there is no local hit of the same length to compare with.", "Gate an engine with prefix caching on too, if you can: local against external is the sharpest comparison.", f"{_VA} issue 9841; design §3.2", _no_local),
    Rule("KV502", "pool-never-hit", ERROR, "Prompts shorter than twice the retention interval are never looked up in the pool.", "Lower VLLM_PREFIX_CACHE_RETENTION_INTERVAL (and the block size it hangs on), or serve longer prompts.", f"{_VA} pool_scheduler get_num_new_matched_tokens", _floor, ">= 0.23.0"),
    Rule("KV503", "hit-floor", INFO, "Prompts shorter than twice the retention interval are never looked up in the pool: a shorter tier proves nothing.", "Gate tiers above it.", f"{_VA} pool_scheduler get_num_new_matched_tokens; issue 10710", _floor_told, ">= 0.23.0"),
    Rule("KV504", "retention-grid", ERROR, "DeepSeek-V4's compressed groups reuse 128 blocks at once: an interval off that grid gives no hits.", "Set the interval to a multiple of 128 times --block-size (16384 at 128, 4096 at 32).", f"{_VA} issues 10710, 10970 and 16270", _retention_grid),
    Rule("KV505", "prompts-refused", WARNING, "Without chunked prefill a prompt must fit into one batch.", "Raise --max-num-batched-tokens, or leave chunked prefill on.", "vLLM config/scheduler.py", _chunk),
    Rule("KV506", "low-precision-pool", WARNING, "Quantised KV through a pool needs its scales to travel with it.", "Gate it, and leave it off until it passes.", "seed 000 §3.1", _low_precision),
    Rule("KV507", "memory-share", ERROR, "--gpu-memory-utilization is a share.", "Write 0.9 for 90 %.", "vLLM config/cache.py", _memory),
    Rule("KV601", "batch-invariance", WARNING, "Batch-invariant mode is not there for every model, and some backends switch prefix caching off with it: a local arm would be vacuous.", "Leave it off, and let the gate measure the noise floor.", f"{_VA} docs batch_invariance.md", _invariant),
    Rule("KV602", "switch-values", WARNING, "A determinism switch with a value it does not take is off.", "Give it one of the values named.", f"{_VA} docs; CANN HCCL environment variables", _switches),
    Rule("KV603", "half-deterministic", INFO, "HCCL and LCCL each add up numbers; both switches are needed for the same sums every time.", "Set HCCL_DETERMINISTIC=true and LCCL_DETERMINISTIC=1.", f"{_VA} docs flash_attention.md", _halfway),
)  # fmt: skip
