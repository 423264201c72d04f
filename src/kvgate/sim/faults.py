"""The faults that can be planted: an explicit table, each with the verdict a correct gate must give.

``models`` names the public report a fault is made after (vLLM: VL, vllm-ascend: VA, LMCache: LM, SGLang: SG,
Dynamo: DY, Mooncake: MC). ``verdict`` and ``reasons`` are words of this table, compared by whoever runs the gate.
"""

from dataclasses import dataclass, replace

from kvgate.sim.dials import QUIET, Dials
from kvgate.sim.topology import ProxyKind, Topology


@dataclass(frozen=True, slots=True)
class Fault:
    """A named wrong (or merely odd) behaviour.

    ``preset``, ``topology``, ``proxy``, ``dials`` and ``speculation`` are the deployment it shows on. ``lengths`` is
    how prompt lengths have to be chosen, ``tiers`` which ones where the usual will not do. ``alike`` is what the
    operator says of prefill and decode engines, ``declared`` what of the store (the largest drift in nat).
    ``arms`` are what the gate has to send beside the usual, ``canaries`` how many prompts at once. ``guilty`` is the part that is wrong, ``pool``,
    ``transfer`` or ``proxy``, where several could be.
    ``needs`` names what is needed to bring it out and what the gate (as it is tested) does not do; such a fault can be
    served, and no verdict is required.
    """

    name: str
    sentence: str
    models: str
    where: str
    verdict: str
    reasons: tuple[str, ...] = ()
    preset: str = "dense"
    topology: Topology = Topology.COMBINED
    dials: Dials = QUIET
    speculation: int = 0
    lengths: str = "aligned"
    alike: bool | None = True
    declared: float | None = None
    needs: str = ""
    proxy: ProxyKind = ProxyKind.ASCEND
    guilty: str = ""
    tiers: tuple[int, ...] = ()
    arms: tuple[str, ...] = ()
    canaries: int = 0
    pressure: int = 0
    cancels: float = 0.0
    between: int = 0
    outage: bool = False


_DIVERGED = ("DIVERGED", "DIVERGED_INTERMITTENT", "DRIFT", "DEGENERATE")
_FAIL, _UNKNOWN, _PASS = "FAIL", "INCONCLUSIVE", "PASS"
_V4, _V41, _GDN, _SWA = "deepseek-v4-flash-32", "deepseek-v4.1", "gdn-hybrid", "swa-hybrid"
# Most of what goes wrong between prefill and decode is the same at any length.
_ONE_TIER = (531,)
# Enough groups for what shows in all of them together.
_MORE = (531, 787, 1043)
_BOTH: dict[str, object] = {"tiers": ()}


def _bytes(name: str, sentence: str, models: str, preset: str = "dense", speculation: int = 0) -> Fault:
    """Loaded bytes are wrong: the answers or their logprobs differ from a local hit's."""
    return Fault(name, sentence, models, "load", _FAIL, _DIVERGED, preset, speculation=speculation)


def _seldom(name: str, sentence: str, models: str) -> Fault:
    """Loaded bytes are wrong so seldom, or so late, that a few groups cannot be asked to show it."""
    return replace(_bytes(name, sentence, models), needs="many groups")


def _right(name: str, sentence: str, models: str, preset: str = "dense", **more: object) -> Fault:
    """Odd, and right: a gate that fails it cries wolf."""
    return Fault(name, sentence, models, "control", _PASS, (), preset, **more)  # type: ignore[arg-type]


def _pd(
    guilty: str, name: str, sentence: str, models: str, verdict: str, reasons: tuple[str, ...], **more: object
) -> Fault:
    """A fault of a prefill/decode deployment, planted in the guilty part."""
    more = {"where": guilty, "tiers": _ONE_TIER, **more}
    return Fault(name, sentence, models, verdict=verdict, reasons=reasons, topology=Topology.PD, guilty=guilty, **more)  # type: ignore[arg-type]


FAULTS: tuple[Fault, ...] = (
    # -- bytes that come back wrong ---------------------------------------------------------------------------
    _bytes("zero_block", "one loaded block is all zeros", "VL#53084"),
    _bytes("zero_first_block", "the first block is all zeros", "VL#53084"),
    _bytes("zero_last_block", "the last loaded block is all zeros", "LM#4984"),
    _bytes("one_block", "the same one block, counted from the beginning, is all zeros in every load", "VL#53084"),
    _bytes("zero_keys", "one loaded block has no keys", "VA#13110"),
    _bytes("zero_values", "one loaded block has no values", "VA#13110"),
    _bytes("nan_block", "one loaded block is not a number", "VL#50283"),
    _bytes("foreign_block", "one loaded block belongs to another prompt", "DY#15079"),
    _bytes("stale_block", "one loaded block repeats the block before it", "VL#51358"),
    _bytes("swapped_blocks", "two loaded blocks have changed places", "VA#12359"),
    _bytes("shifted_blocks", "every loaded block sits one place late", "VA#8908"),
    _bytes("rolled_rows", "every row sits one token late in its block", "LM#4467"),
    _bytes("half_block", "the second half of one block was never written", "VL#34616"),
    _bytes("truncated_block", "the last block is cut short", "MC#4153"),
    _bytes("one_bit", "one exponent bit of one value is flipped", "vllm-cpu-lab §5"),
    _bytes("one_bit_of_state", "one exponent bit of the recurrent state is flipped", "vllm-cpu-lab §5", _GDN),
    _bytes("wrong_scale", "loaded values are two per cent too large", "VA#13439"),
    _bytes("wrong_block_scale", "the values of one block are half as large again", "VA#13439"),
    _bytes("fp8_loss", "loaded KV went through an 8-bit format", "SG#33268"),
    _bytes("bf16_loss", "loaded KV went through bf16", "SG#33268"),
    _bytes("noisy_load", "loaded KV carries noise of a thousandth", "vllm-cpu-lab §5"),
    _bytes("wrong_layer", "keys and values have changed places", "LM#4467"),
    _bytes("tp_shards_swapped", "the two tensor-parallel halves have changed places", "VA#12359"),
    _bytes("tp_shard_missing", "one tensor-parallel half is missing", "VA#4412"),
    # -- side state, group by group ---------------------------------------------------------------------------
    _bytes("no_window", "the sliding window's blocks are zero", "LM#4247", _SWA),
    _bytes("stale_window", "the window's last block is an older one", "VL#51358", _SWA),
    _bytes("no_recurrent", "the recurrent state is zero", "VL#53084", _GDN),
    _bytes("stale_recurrent", "the recurrent state is one block old", "VA#17194", _GDN),
    _bytes("foreign_recurrent", "the recurrent state is another prompt's", "VL#52234", _GDN),
    _bytes("no_c4", "the compressed group 4 is zero", "VA#13110", _V4),
    _bytes("no_c128", "the compressed group 128 is zero", "VA#13110", _V4),
    _bytes("no_carry", "a compressor's state is zero", "VA#13110", _V4),
    _bytes("stale_carry", "a compressor's state is one step old", "VA#13110", _V4),
    _bytes("group0_block_size", "every group is copied with the block size of the first", "VA#13110", _V4),
    _bytes("no_ngram", "the n-gram memory's state is missing", "LM#3156", _V41),
    _bytes("no_index", "the indexer's keys are missing", "MC#2236", _V41),
    _bytes("shared_owner_missing", "the layer that reads another's KV finds none", "VL#53769", _V41),
    _bytes("shard_lost", "one context-parallel shard is zero", "LM#4247", _V41),
    _bytes("swallowed_failure", "the load failed, was only logged, and blocks stay unfilled", "VA#12522", _V4),
    _bytes("half_the_groups", "every other group's load failed and was only logged", "SG#31108", _V4),
    _bytes("scratch_block", "a draft model's scratch block is stored in place of the real one", "LM#4984", "dense", 1),
    # -- when and where it happens ----------------------------------------------------------------------------
    _bytes("long_only", "blocks are wrong in prompts beyond a length", "LM#5151"),
    _bytes("some_lengths", "blocks are wrong in prompts of some lengths, and not in longer ones", "LM#5151"),
    _bytes("after_some", "loads are wrong after the fifth", "VA#13934"),
    Fault("every_other", "every other load is wrong", "VL#47282", "load", _FAIL, (*_DIVERGED, "EXCESS_DIVERGENCE")),
    Fault("one_in_three", "a third of the loads is wrong", "SG#22811", "load", _FAIL, (*_DIVERGED, "EXCESS_DIVERGENCE")),
    _seldom("one_in_ten", "one load in ten is wrong, at random", "SG#22811"),
    _seldom("one_in_hundred", "one load in a hundred is wrong, at random", "SG#22811"),
    _seldom("after_many", "loads are wrong after the hundredth", "VA#13934"),
    Fault("noisy_load_on_noisy", "the noise of a thousandth on an engine that never answers twice alike: inside the tolerance every time", "VA#9373", "load", _FAIL, ("EXCESS_DIVERGENCE",), dials=Dials(run_noise=0.003), tiers=_MORE),
    Fault("engine_decays", "after forty requests the engine itself is wrong: cold answers as well as hits", "F26", "engine", _FAIL, ("ANSWERS_CHANGED",), tiers=_MORE),
    Fault("decode_writes_zeros", "the KV that decode wrote is kept as zeros", "VL#53912", "save", _FAIL, ("DIVERGED", "DRIFT", "UNSTABLE"), arms=("continuation",)),
    Fault("mixed_only", "external blocks behind a local prefix are wrong", "LM#4247", "load", _FAIL, _DIVERGED, arms=("mixed",)),
    Fault("concurrent_only", "loads are wrong while others run", "VL#45704", "load", _FAIL, _DIVERGED, dials=Dials(latency_per_token_s=0.001), tiers=(531, 787), pressure=3),
    Fault("after_a_cancel", "loads are wrong once a client has gone away", "SG#23392", "load", _FAIL, _DIVERGED, dials=Dials(latency_per_token_s=0.001), tiers=(531, 787), pressure=2, cancels=0.5),
    Fault("after_a_fork", "loads are wrong once two requests have begun alike and gone on differently", "LM#4984", "load", _FAIL, _DIVERGED, tiers=_ONE_TIER, between=2),
    Fault("not_released", "a request whose client has gone away is never given up", "SG#23392", "engine", _UNKNOWN, ("NOT_RELEASED",), dials=Dials(latency_per_token_s=0.001), tiers=_ONE_TIER, pressure=2, cancels=0.5),
    Fault("while_evicting", "loads are wrong once the pool has dropped something since they were put", "SG#31108", "load", _FAIL, _DIVERGED, dials=Dials(latency_per_token_s=0.001, pool_bytes=4 << 20), tiers=(531, 787), pressure=1),
    Fault("outage_unnoticed", "the pool is away, and blocks that nothing was loaded into are taken for its hits", "VA#12522", "outage", _FAIL, _DIVERGED, tiers=_ONE_TIER, outage=True),
    Fault("outage_ignored", "the hook that takes the pool away does not", "§3.2", "outage", _UNKNOWN, ("OUTAGE_MISSING",), tiers=_ONE_TIER, outage=True),
    Fault("outage_for_good", "once the pool was away, nobody looks there again", "§3.2", "outage", _UNKNOWN, ("NOT_RECOVERED",), tiers=_ONE_TIER, outage=True),
    # -- stored wrong -----------------------------------------------------------------------------------------
    Fault("poisoned_put", "a block is stored wrong, once and for all", "VL#51358", "put", _FAIL, _DIVERGED),
    Fault("saved_wrong", "KV is wrong when saved, so local and external hits are wrong alike", "SG#35086", "save", _FAIL, _DIVERGED),
    Fault("state_saved_wrong", "the recurrent state is saved as zeros", "VL#53084", "save", _UNKNOWN, ("ALIGNMENT_UNPROVEN",), _GDN),
    Fault("hash_collision", "the key leaves out the prefix, so another prompt's block is served", "VA#10296", "key", _FAIL, _DIVERGED),
    # -- prefill and decode: the pool is wrong ----------------------------------------------------------------
    _pd("pool", "pd_pool", "one block that prefill loads is zero, and the transfer is whole", "VA#9960", _FAIL, _DIVERGED, where="load"),
    _pd("pool", "pd_swallowed_failure", "prefill's load failed and was only logged, and decode gets unfilled blocks", "VA#12522", _FAIL, _DIVERGED, preset=_V4, where="load"),
    _pd("pool", "decode_puts_early", "decode stores blocks before anything was loaded into them", "VL#35092", _FAIL, _DIVERGED, where="put"),
    _pd("pool", "decode_hides_pool", "a pool that is wrong behind a decode cache that no reset drops", "VA#7814", _UNKNOWN, ("TRANSFER_NOT_EXERCISED",), where="load"),
    # -- the transfer is wrong --------------------------------------------------------------------------------
    _pd("transfer", "transfer_reversed", "transferred blocks arrive in reverse order", "VL#52234", _FAIL, _DIVERGED, **_BOTH),
    _pd("transfer", "transfer_foreign_tail", "the last transferred block is another prompt's", "VL#52234", _FAIL, _DIVERGED, **_BOTH),
    _pd("transfer", "transfer_relayout", "unequal tensor parallelism lays transferred KV out with the heads permuted", "VA#12359", _FAIL, _DIVERGED),
    _pd("transfer", "transfer_subtle", "one transferred block has the wrong scale", "VA#13439", _FAIL, _DIVERGED, **_BOTH),
    _pd("transfer", "transfer_unsaid", "the same, and nobody says whether prefill and decode are alike", "VA#13439", _UNKNOWN, ("TRANSFER_UNPROVEN",), alike=None, **_BOTH),
    _pd("transfer", "transfer_last_token", "the prompt's last token is taken for a draft's, and its KV is another's", "VL#47466", _FAIL, _DIVERGED),
    _pd("transfer", "transfer_extra_block", "a prompt of whole blocks is transferred one block too late", "VA#8908", _FAIL, _DIVERGED, lengths="exact", tiers=(528,)),
    _pd("transfer", "transfer_decays", "transfers are in order for a while, and wrong for ever after", "SG#23020", _FAIL, _DIVERGED),
    _pd("transfer", "lease_expired", "transferred KV was freed and written over, differently each time", "VL#25897", _FAIL, _DIVERGED, **_BOTH),
    _pd("transfer", "stale_reference", "the transfer hands over an older prompt's KV", "VL#52234", _FAIL, _DIVERGED, **_BOTH),
    _pd("transfer", "transfer_fails", "transfers fail, look-ups count them as hits, and decode computes all again", "vllm-cpu-lab §7", _UNKNOWN, ("TRANSFER_NOT_EXERCISED",)),
    _pd("transfer", "no_parameters", "prefill returns no transfer parameters, the router goes on, and decode computes all again", "VL#26896", _UNKNOWN, ("TRANSFER_NOT_EXERCISED",), proxy=ProxyKind.ROUTER),
    _pd("pool", "hit_not_held", "what came from the pool is not held for decode, whose error the proxy turns into an empty 200", "VA#13439", _FAIL, ("EMPTY", "SUBJECT_REFUSED")),
    _pd("pool", "hit_not_held_router", "the same, and the router passes the error on", "VL#40978", _FAIL, ("SUBJECT_REFUSED",), proxy=ProxyKind.ROUTER),
    _pd("transfer", "decode_caches", "decode serves prompts from a cache of its own, which hides the transfer", "VA#7814", _UNKNOWN, ("TRANSFER_NOT_EXERCISED",), where="path"),
    _pd("transfer", "decode_hides_transfer", "a transfer that is wrong behind a decode cache that no reset drops", "VA#7814", _UNKNOWN, ("TRANSFER_NOT_EXERCISED",)),
    # -- the proxy is wrong -----------------------------------------------------------------------------------
    _pd("proxy", "transfer_dropped", "the proxy drops the transfer parameters and decode computes all again", "VL#42644", _UNKNOWN, ("TRANSFER_NOT_EXERCISED",)),
    _pd("proxy", "proxy_one_behind", "the proxy hands decode the transfer parameters of the request before", "VL#52234", _FAIL, (*_DIVERGED, "LEAK", "EXCESS_DIVERGENCE")),
    _pd("proxy", "proxy_drops_salt", "the proxy drops the salt", "SG#37160", _UNKNOWN, ("SALT_IGNORED",)),
    _pd("proxy", "proxy_drops_ids", "the proxy drops the wish for token IDs", "DY#12277", _UNKNOWN, ("TEXT_ONLY",)),
    _pd("proxy", "proxy_drops_logprobs", "the proxy drops the wish for logprobs", "DY#12277", _UNKNOWN, ("LOGPROBS_UNUSABLE",)),
    _pd("proxy", "proxy_cuts_prompt", "the proxy cuts the prompt's beginning off", "VA#13524", _UNKNOWN, ("PROMPT_CHANGED",)),
    _pd("proxy", "proxy_adds_token", "the proxy has the prompt tokenised again, with a beginning of its own", "VA#14388", _UNKNOWN, ("PROMPT_CHANGED",)),
    _pd("proxy", "proxy_retokenises", "the proxy has the prompt tokenised again, and one token is another", "VA#7450", _UNKNOWN, ("PROMPT_CHANGED",)),
    _pd("proxy", "proxy_temperature", "the proxy sets another temperature", "C40", _FAIL, _DIVERGED),
    _pd("proxy", "proxy_max_tokens", "the proxy asks decode for half as many tokens", "LR#403", _FAIL, ("TRUNCATED",)),
    _pd("proxy", "proxy_first_token_lost", "the proxy loses the first token of every answer", "LM#1511", _FAIL, ("FIRST_TOKEN",)),
    _pd("proxy", "proxy_first_token_doubled", "the proxy sends the first token of every answer twice", "LM#978", _FAIL, ("FIRST_TOKEN",)),
    _pd("proxy", "proxy_first_token_replaced", "the proxy puts another token in place of the first", "VL#36308", _FAIL, ("FIRST_TOKEN", *_DIVERGED)),
    _pd("proxy", "proxy_loses_chunk", "the proxy loses the second of two events that came at once", "LR#916", _UNKNOWN, ("IDS_INCOMPLETE",)),
    _pd("proxy", "proxy_cuts_answer", "the proxy ends every answer half way, as if it were whole", "VA#2649", _FAIL, ("TRUNCATED",)),
    _pd("proxy", "proxy_breaks_off", "the proxy breaks every answer off half way, with HTTP 200", "VL#52852", _UNKNOWN, ("OBSERVATION_MISSING",)),
    _pd("proxy", "proxy_mixes_clients", "the proxy gives every third client the answer of another", "VA#10296", _FAIL, (*_DIVERGED, "LEAK", "TRUNCATED")),
    _pd("proxy", "proxy_caches_answers", "the proxy keeps answers and asks no engine twice", "C40", _UNKNOWN, ("EVIDENCE_MISSING",)),
    _pd("", "proxy_pins_one", "of two prefill engines, one gets every request: the proxy has miscounted the load", "VA#16517", _PASS, (), where="proxy"),
    _pd("", "proxy_in_turn", "two prefill engines get requests in turn, so nobody knows which one holds a prompt", "VA#16517", _UNKNOWN, ("BASELINE_NOT_LOCAL", "RANK_CHANGED"), where="proxy"),
    _pd("proxy", "proxy_swallows_refusal", "prefill refuses a prompt that is too long, and decode answers from a part of it", "SG#30233", _FAIL, ("PROMPT_CHANGED",), needs="a prompt beyond the engine's limit"),
    _pd("proxy", "decode_recomputes", "decode recomputes, and the proxy, which cannot resume token IDs, breaks the answer off", "VA#5900", _UNKNOWN, ("OBSERVATION_MISSING", "RECOMPUTED"), where="decode"),
    _pd("proxy", "decode_recomputes_at_times", "the same for every other request", "VA#5900", _UNKNOWN, ("OBSERVATION_MISSING", "RECOMPUTED"), where="decode"),
    _pd("proxy", "decode_recomputes_router", "decode recomputes, and the router passes on that it did", "VA#5900", _UNKNOWN, ("RECOMPUTED",), where="decode", proxy=ProxyKind.ROUTER),
    # -- prefill and decode: others are there, too ------------------------------------------------------------
    _pd("", "pd_foreign_traffic", "somebody else uses prefill and decode all the time", "VL#18053", _UNKNOWN, ("FOREIGN_TRAFFIC",), where="counters"),
    _pd("proxy", "foreign_on_decode", "no transfer, and somebody else's that is counted at the same time", "VL#42644", _UNKNOWN, ("FOREIGN_TRAFFIC", "TRANSFER_NOT_EXERCISED"), where="counters"),
    # -- answers ----------------------------------------------------------------------------------------------
    Fault("first_token_lost", "the first token of an answer from the pool is missing", "LM#1511", "answer", _FAIL, ("FIRST_TOKEN", *_DIVERGED)),
    Fault("first_token_doubled", "the first token of an answer from the pool comes twice", "LM#978", "answer", _FAIL, ("FIRST_TOKEN", *_DIVERGED)),
    Fault("shifted_answer", "the answer goes on three tokens too far", "VL#49250", "answer", _FAIL, ("SHIFT", *_DIVERGED)),
    Fault("cut_answer", "an answer from the pool stops half way", "VL#52852", "answer", _FAIL, ("TRUNCATED",)),
    Fault("empty_answer", "an answer from the pool has no tokens", "VA#13439", "answer", _FAIL, ("EMPTY",)),
    Fault("looping_answer", "an answer from the pool repeats one token", "SG#38031", "answer", _FAIL, _DIVERGED),
    Fault("refused_hit", "the server refuses what it would have to load", "VL#40978", "answer", _FAIL, ("SUBJECT_REFUSED",)),
    Fault("broken_stream", "an answer from the pool ends in an error in mid-stream", "VL#40978", "answer", _FAIL, ("SUBJECT_REFUSED",)),
    Fault("leak_under_load", "an answer holds another prompt's beginning while others run", "SG#23392", "answer", _FAIL, ("LEAK",), dials=Dials(latency_s=0.01), canaries=8),
    Fault("leak", "an answer from the pool holds another prompt's beginning", "SG#23392", "answer", _FAIL, ("LEAK",)),
    Fault("recomputed", "the answer is marked as computed again after a preemption", "VA#5900", "answer", _UNKNOWN, ("RECOMPUTED",)),
    Fault("ids_missing", "the last token IDs are not told", "DY#13588", "answer", _UNKNOWN, ("IDS_INCOMPLETE",)),
    Fault("zero_logprobs", "all logprobs of answers from the pool are 0", "VL#34497", "answer", _UNKNOWN, ("LOGPROBS_UNUSABLE",)),
    # -- the path that never ran, and sensors that lie --------------------------------------------------------
    Fault("no_pool", "the pool is switched off", "local-inference-lab/vllm#403", "path", _UNKNOWN, ("PATH_NOT_EXERCISED",)),
    Fault("never_put", "the pool is asked and never filled", "VA#8808", "path", _UNKNOWN, ("EXTERNAL_MISS",)),
    Fault("silent_recompute", "look-ups hit, loads fail, the prompt is computed again", "VL#42644", "path", _UNKNOWN, ("LOAD_FAILED",)),
    Fault("evicted", "objects vanish between look-up and load", "SG#31108", "path", _UNKNOWN, ("LOAD_FAILED",)),
    Fault("shorter_hit", "the pool has lost the last blocks: a hit is shorter, and right", "VL#48401", "path", _UNKNOWN, ("EXTERNAL_MISS",)),
    Fault("reset_lies", "the reset says success and drops nothing", "VL#57727", "path", _UNKNOWN, ("LOCAL_NOT_DROPPED",)),
    Fault("reset_refused", "the reset says that it did not succeed", "LB#1918", "path", _UNKNOWN, ("RESET_UNAVAILABLE", "LOCAL_NOT_DROPPED")),
    Fault("no_reset", "there is no reset", "VL#12284", "path", _UNKNOWN, ("RESET_UNAVAILABLE",)),
    Fault("salt_ignored", "the pool's keys leave out the salt", "SG#37160", "key", _UNKNOWN, ("SALT_IGNORED",)),
    Fault("counters_stuck", "all counters stay where they are", "VA#16639", "counters", _UNKNOWN, ("EVIDENCE_MISSING",)),
    Fault("counters_double", "every counter counts twice", "VL#18053", "counters", _UNKNOWN, ("FOREIGN_TRAFFIC",)),
    Fault("counters_saw", "two API processes answer /metrics in turn", "LM#621", "counters", _UNKNOWN, ("COUNTER_RESET", "EVIDENCE_MISSING", "FOREIGN_TRAFFIC")),
    Fault("counters_restart", "counters start again from nothing", "VA#10028", "counters", _UNKNOWN, ("COUNTER_RESET", "EVIDENCE_MISSING", "FOREIGN_TRAFFIC")),
    Fault("no_counters", "there are no counters", "VA#16639", "counters", _UNKNOWN, ("COUNTERS_UNREADABLE",)),
    Fault("look_ups_only", "only look-ups are counted, not arrivals", "VL#46357", "counters", _UNKNOWN, ("EVIDENCE_TOO_WEAK",)),
    Fault("lying_usage", "usage reports cached tokens that no counter knows", "VA#15744", "counters", _UNKNOWN, ("SENSOR_CONFLICT",)),
    Fault("foreign_traffic", "somebody else uses the engine all the time", "VL#18053", "counters", _UNKNOWN, ("FOREIGN_TRAFFIC",)),
    Fault("preempted", "every request is preempted and recomputed", "VL#25780", "counters", _UNKNOWN, ("PREEMPTED",)),
    # -- negative controls: odd, and right --------------------------------------------------------------------
    _right("healthy", "nothing is wrong", "control"),
    _right("healthy_v4", "DeepSeek-V4 geometry, nothing wrong", "control", _V4),
    _right("healthy_v41", "DeepSeek-V4.1 geometry, nothing wrong", "control", _V41),
    _right("healthy_gdn", "a recurrent hybrid, nothing wrong", "control", _GDN),
    _right("healthy_swa", "a sliding-window hybrid, nothing wrong", "control", _SWA),
    _right("healthy_speculation", "a draft model proposes three tokens, nothing wrong", "control", speculation=3),
    _right("healthy_pair", "two engines on one pool, nothing wrong", "control", topology=Topology.PAIR),
    _right("healthy_pd", "prefill, decode, proxy and pool, nothing wrong", "control", topology=Topology.PD),
    _right("healthy_pd_layerwise", "prefill, decode and pool behind a layerwise proxy, nothing wrong", "control", topology=Topology.PD, proxy=ProxyKind.LAYERWISE, tiers=_ONE_TIER),
    _right("healthy_pd_router", "prefill, decode and pool behind a router, nothing wrong", "control", topology=Topology.PD, proxy=ProxyKind.ROUTER, tiers=_ONE_TIER),
    _right("proxy_tells_all_cached", "the proxy says that all but one token was cached, whatever was", "LR#2372", topology=Topology.PD, tiers=_ONE_TIER),
    _right("proxy_502_at_times", "the proxy finds no engine for one request in fifteen", "LB#1675", topology=Topology.PD, tiers=_ONE_TIER),
    _right("slow_put", "puts can be seen a little later", "LM#1350", dials=Dials(put_lag_s=0.15)),
    _right("dead_bytes", "bytes change that no answer reads: drift is exactly 0", "vllm-cpu-lab §5", _SWA),
    _right("lossy_declared", "the store loses precision, as its operator has declared", "LM#2026", declared=0.05),
    _right("foreign_at_times", "somebody else uses the engine now and then", "VL#18053"),
    _right("preempted_once", "one request in fifteen is preempted", "VL#25780", dials=Dials(preempted_every=15)),
    _right("batch_noise", "answers drift while others run, and nobody else runs", "VL#23138", dials=Dials(batch_noise=0.2)),
    _right("healthy_busy", "requests beside every request, some of which go away, nothing wrong", "control", dials=Dials(latency_per_token_s=0.001), tiers=_ONE_TIER, pressure=3, cancels=0.3),
    _right("batch_noise_busy", "answers drift while others run, and others run", "VL#23138", dials=Dials(latency_per_token_s=0.001, batch_noise=0.02), tiers=_ONE_TIER, pressure=3, cancels=0.3),
    _right("healthy_outage", "the pool goes away and comes back, and prompts are computed meanwhile", "control", tiers=_ONE_TIER, outage=True),
    _right("outage_refused", "prompts are refused while the pool is away", "control", tiers=_ONE_TIER, outage=True),
    _right("run_noise", "no two answers are alike, on any path", "VA#9373", dials=Dials(run_noise=0.01), tiers=_MORE),
    _right("shape_noise_15", "15 % of the answers flip between cold and hit at lengths that are not aligned", "B02", dials=Dials(flip_share=0.15), lengths="exact"),
    _right("shape_noise_45", "45 % of them flip", "B01", dials=Dials(flip_share=0.45), lengths="exact"),
    _right("aligned_noise_45", "the same engine at aligned lengths, where nothing differs", "vllm-cpu-lab §5c", dials=Dials(flip_share=0.45)),
)  # fmt: skip

BY_NAME: dict[str, Fault] = {fault.name: fault for fault in FAULTS}
