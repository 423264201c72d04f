"""Rules about KV connectors: which there are, what they accept, and how they stand together."""

import difflib
from collections.abc import Iterator

from kvgate.domain.preflight.deployment import (
    BOTH,
    CONSUMER,
    DEEPSEEK_V4,
    PEERS,
    POOLS,
    POOLS_OF_ASCEND,
    PRODUCER,
    SEVERAL_GROUPS,
    Connector,
    Engine,
    Launch,
)
from kvgate.domain.preflight.rule import Found, Rule, Seen, Severity, Undecided, undecided
from kvgate.domain.preflight.setting import Spot, text, truth, whole

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
KNOWN = (
    *("MultiConnector", "AscendStoreConnector", "MooncakeConnectorStoreV1", "MooncakeConnectorV1"),
    *("MooncakeHybridConnector", "MooncakeLayerwiseConnector", "MooncakeConnector", "MooncakeStoreConnector"),
    *("UCMConnector", "LMCacheAscendConnector", "LMCacheConnectorV1", "LMCacheMPConnector", "NixlConnector"),
    *("OffloadingConnector", "SimpleCPUOffloadConnector", "RecomputeCPUOffloadConnector", "SfaRemoteD2HConnector"),
    *("P2pNcclConnector", "SharedStorageConnector", "ExampleConnector", "DecodeBenchConnector", "FlexKVConnectorV1"),
)
STORE_KEYS = (
    *("backend", "lookup_rpc_port", "mooncake_rpc_port", "load_async", "use_layerwise", "consumer_is_to_load"),
    *("consumer_is_to_put", "save_decode_cache", "discard_partial_chunks", "prefill_pp_size", "prefill_tp_size"),
    *("prefill_pp_layer_partition", "decode_tp_size", "h2d_stagger_us", "layerwise_max_transfer_blocks"),
    *("layerwise_max_transfer_bytes", "layerwise_prefetch_layers", "layerwise_num_shared_buffers"),
    *("layerwise_independent_layers", "register_buffer", "prefill", "decode"),
)
BACKENDS = ("mooncake", "memcache", "yuanrong")


def _every(launch: Launch) -> Iterator[tuple[Engine, Connector]]:
    return ((engine, each) for engine in launch.engines for each in engine.connectors())


def _stores(launch: Launch) -> Iterator[tuple[Engine, Connector]]:
    return ((engine, each) for engine, each in _every(launch) if each.name in POOLS_OF_ASCEND)


def _near(name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _unknown_connector(launch: Launch) -> Found:
    for _, each in _every(launch):
        named = each.setting.at("kv_connector")
        yield from undecided(named)
        if each.name is not None and each.name not in KNOWN and each.setting.at("kv_connector_module_path") is None:
            yield Seen(
                each.spot,
                f"kv_connector {each.name!r} is none that vLLM or vllm-ascend registers{_near(each.name, KNOWN)}",
            )


def _no_role(launch: Launch) -> Found:
    for _, each in _every(launch):
        role = each.setting.at("kv_role")
        yield from undecided(role)
        if role is None and not each.setting.partial:
            yield Seen(each.spot, f"{each.name or 'the connector'} has no kv_role")
        elif role is not None and each.role is not None and each.role not in (PRODUCER, CONSUMER, BOTH):
            yield Seen(role.spot, f"kv_role {each.role!r} is no role")


def _store_key(launch: Launch) -> Found:
    for _, each in _stores(launch):
        extra = each.setting.at("kv_connector_extra_config")
        for key, value in (extra.entries() if extra is not None else {}).items():
            if key not in STORE_KEYS:
                yield Seen(value.spot, f"AscendStoreConnector reads no key {key!r}{_near(key, STORE_KEYS)}")


def _backend(launch: Launch) -> Found:
    for _, each in _stores(launch):
        yield from undecided(each.option("backend"))
        if each.backend is not None and each.backend not in BACKENDS:
            yield Seen(
                _spot(each, "backend"),
                f"backend {each.backend!r} is none of {', '.join(BACKENDS)}{_near(each.backend, BACKENDS)}",
            )


def _spot(each: Connector, key: str) -> Spot:
    found = each.option(key)
    return found.spot if found is not None else each.spot


def _layerwise(launch: Launch) -> Found:
    for _, each in _stores(launch):
        given = each.option("use_layerwise")
        yield from undecided(given)
        if truth(given) and each.backend != "memcache":
            if each.backend is None:
                yield from undecided(each.option("backend"))
                continue
            yield Seen(
                _spot(each, "use_layerwise"), f"use_layerwise is true with backend {each.backend}; it needs memcache"
            )


def _recompute(launch: Launch) -> Found:
    for engine in launch.engines:
        policy = engine.transfer.at("kv_load_failure_policy") if engine.transfer is not None else None
        yield from undecided(policy)
        if policy is None or text(policy) != "recompute":
            continue
        several = engine.named(SEVERAL_GROUPS)
        if several is None and engine.model is not None:
            yield from undecided(engine.model)
        elif several:
            yield Seen(
                policy.spot, f"kv_load_failure_policy is recompute, and {text(engine.model)} keeps several kinds of KV"
            )


def _swallowed(launch: Launch) -> Found:
    for engine in launch.engines:
        stores = [each for each in engine.connectors() if each.name in POOLS_OF_ASCEND]
        if stores and engine.named(SEVERAL_GROUPS):
            yield Seen(
                stores[0].spot,
                f"{text(engine.model)} keeps several kinds of KV: a load that fails is logged, and nothing more",
            )


def _policy_on_child(launch: Launch) -> Found:
    for _, each in _every(launch):
        given = each.setting.at("kv_load_failure_policy")
        if each.child and given is not None:
            yield Seen(given.spot, f"kv_load_failure_policy stands on the child {each.name}; only the top one is read")


def _hybrid_manager(launch: Launch) -> Found:
    for engine in launch.engines:
        if engine.transfer is None or not engine.named(SEVERAL_GROUPS):
            continue
        given = engine.flags.get("no-disable-hybrid-kv-cache-manager")
        if engine.on("disable-hybrid-kv-cache-manager"):
            off = engine.flags.get("disable-hybrid-kv-cache-manager")
            yield Seen(off.spot if off is not None else engine.spot, "the hybrid KV cache manager is off")
        elif given is None and engine.named(DEEPSEEK_V4):
            if engine.flags.more:
                yield Undecided(engine.spot, engine.flags.more[0])
                continue
            yield Seen(engine.transfer.spot, "a connector is set and --no-disable-hybrid-kv-cache-manager is not")


def _order(launch: Launch) -> Found:
    for engine in launch.engines:
        children = [each for each in engine.connectors() if each.child]
        names = [each.name for each in children]
        pools = [place for place, name in enumerate(names) if name in POOLS]
        peers = [place for place, name in enumerate(names) if name in PEERS]
        if engine.role != PRODUCER and pools and peers and pools[0] < peers[0]:
            yield Seen(
                children[pools[0]].spot,
                f"{names[pools[0]]} stands before {names[peers[0]]}: the first child with a hit is taken, so what the "
                "prefill node sent is passed over where the pool has a part of it",
            )


def _reads_nothing(launch: Launch) -> Found:
    for _, each in _stores(launch):
        if each.role != CONSUMER:
            continue
        load, put = each.option("consumer_is_to_load"), each.option("consumer_is_to_put")
        yield from (*undecided(load), *undecided(put))
        if not truth(load) and not truth(put) and all(one is None or one.known for one in (load, put)):
            yield Seen(each.spot, "a consumer's AscendStoreConnector that is to load and to put nothing does nothing")


def _roles_unlike(launch: Launch) -> Found:
    for engine in launch.engines:
        for each in engine.connectors():
            if each.child and engine.role in (PRODUCER, CONSUMER) and each.role not in (None, engine.role, BOTH):
                yield Seen(each.spot, f"{each.name} is {each.role} under a MultiConnector that is {engine.role}")


def _no_peer(launch: Launch) -> Found:
    roles = {engine.role for engine in launch.engines for each in engine.connectors() if each.name in PEERS}
    engines = [engine for engine in launch.engines if any(each.name in PEERS for each in engine.connectors())]
    if len(engines) < 2 or None in roles or BOTH in roles:
        return
    for role, other in ((PRODUCER, CONSUMER), (CONSUMER, PRODUCER)):
        if role not in roles:
            yield Seen(engines[0].spot, f"all engines that transfer KV are {other}; there is no {role}")


def _layerwise_speculation(launch: Launch) -> Found:
    for engine, each in _stores(launch):
        tokens = engine.flags.get("speculative-config")
        level = whole(tokens.at("num_speculative_tokens")) if tokens is not None else None
        if truth(each.option("use_layerwise")) and level:
            yield Seen(
                _spot(each, "use_layerwise"),
                f"use_layerwise with speculation ({level} tokens): a hit is one granule shorter",
            )


def _several_pools(launch: Launch) -> Found:
    for engine in launch.engines:
        pools = list(engine.pools())
        if len(pools) > 1:
            yield Seen(
                pools[1].spot, f"{len(pools)} pools in one engine: {', '.join(each.name or '?' for each in pools)}"
            )


_VA = "vllm-ascend"
RULES = (
    Rule("KV101", "unknown-connector", ERROR, "A kv_connector that no registry knows: the engine does not start.", "Name a registered connector, or give kv_connector_module_path.", f"{_VA} kv_transfer/__init__.py register_connector", _unknown_connector),
    Rule("KV102", "no-role", ERROR, "Every connector needs kv_role: kv_producer, kv_consumer or kv_both.", "Set kv_role.", "vLLM config/kv_transfer.py", _no_role),
    Rule("KV103", "unknown-store-key", WARNING, "A key that AscendStoreConnector does not read is accepted in silence, so a misspelt one does nothing.", "Correct the key, or take it out.", f"{_VA} ascend_store/pool_scheduler.py", _store_key),
    Rule("KV104", "unknown-backend", ERROR, "A backend that AscendStoreConnector does not have: ValueError at the start.", "Use mooncake, memcache or yuanrong.", f"{_VA} ascend_store backend_map", _backend),
    Rule("KV105", "layerwise-backend", ERROR, "Layer by layer works with memcache only, on prefill. No version refuses it with another backend: it fails late, or not at all.", "Set use_layerwise: false, or backend: memcache.", f"{_VA} docs kv_pool.md, issue 12234; seed 000 §3.3", _layerwise),
    Rule("KV106", "recompute-policy", ERROR, "On models with several kinds of KV the policy recompute does nothing, and none protects: a load that fails goes on with blocks that were never filled.", "Leave the policy at fail, and gate the pool; read the log for failed loads.", f"{_VA} platform.py _validate_kv_load_failure_policy, issue 12390; seed 000 §3.4", _recompute, ">= 0.23"),
    Rule("KV107", "failed-loads-swallowed", WARNING, "An AscendStoreConnector on a model with several kinds of KV: if a load fails, the request goes on with unfilled blocks and answers HTTP 200.", "Gate the pool with kvgate run, give it the engine's log, and watch for `KV load failed for hybrid request`.", f"{_VA} pool_worker start_load_kv, issues 12390 and 10561", _swallowed, ">= 0.23.0rc1"),
    Rule("KV108", "policy-on-child", WARNING, "Under a MultiConnector only the top kv_load_failure_policy is read.", "Move it to the top of --kv-transfer-config.", f"{_VA} docs kv_pool.md; UCM issue 1343", _policy_on_child),
    Rule("KV109", "hybrid-manager", ERROR, "A pool or a transfer on a model with several kinds of KV needs the hybrid KV cache manager; a connector switches it off unless told otherwise.", "Add --no-disable-hybrid-kv-cache-manager.", f"{_VA} issue 9975", _hybrid_manager),
    Rule("KV110", "connector-order", ERROR, "A MultiConnector takes the first child, in the order of the list, that has a hit.", "On decode, put the transfer's connector before the pool's.", "vLLM multi_connector.py get_num_new_matched_tokens", _order),
    Rule("KV111", "idle-store", INFO, "On a consumer, a lookup gives 0 unless consumer_is_to_load is set, and nothing is stored unless consumer_is_to_put is.", "Set what it is to do, or leave the connector out on decode.", f"{_VA} pool_scheduler get_num_new_matched_tokens", _reads_nothing, ">= 0.23.0rc1"),
    Rule("KV112", "roles-disagree", ERROR, "A child whose role is another than its MultiConnector's waits for what never comes.", "Give both the same role, or the child kv_both.", f"{_VA} ascend_multi_connector", _roles_unlike),
    Rule("KV113", "no-counterpart", ERROR, "A transfer needs a producer and a consumer.", "Give the prefill side kv_producer and the decode side kv_consumer.", "vLLM config/kv_transfer.py", _no_peer),
    Rule("KV114", "layerwise-speculation", INFO, "Layer by layer, a hit with speculation is one granule shorter than without.", "Give kvgate tiers that leave room for it.", f"{_VA} pool_scheduler (layerwise and MTP, EAGLE or DSpark)", _layerwise_speculation),
    Rule("KV115", "several-pools", WARNING, "Two pools in one engine: an emptied one is made up for by the other, so that a gate that empties one proves nothing.", "Gate them one at a time.", "facts: vllm-cpu-lab (two pools)", _several_pools),
)  # fmt: skip
