"""The faults that can be planted: an explicit table, each with the verdict a correct gate must give.

``models`` names the public report a fault is made after (vLLM: VL, vllm-ascend: VA, LMCache: LM, SGLang: SG,
Dynamo: DY, Mooncake: MC). ``verdict`` and ``reason`` are words of this table, compared by whoever runs the gate.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """A named wrong (or merely odd) behaviour."""

    name: str
    sentence: str
    models: str
    where: str
    verdict: str
    reasons: tuple[str, ...] = ()


_DIVERGED = ("DIVERGED", "DIVERGED_INTERMITTENT", "DRIFT", "DEGENERATE")
_FAIL, _UNKNOWN, _PASS = "FAIL", "INCONCLUSIVE", "PASS"

FAULTS: tuple[Fault, ...] = (
    # bytes that come back wrong
    Fault("zero_block", "one loaded block is all zeros", "VL#53084", "load", _FAIL, _DIVERGED),
    Fault("zero_keys", "one loaded block has no keys", "VA#13110", "load", _FAIL, _DIVERGED),
    Fault("nan_block", "one loaded block is not a number", "VL#50283", "load", _FAIL, _DIVERGED),
    Fault("foreign_block", "one loaded block belongs to another prompt", "DY#15079", "load", _FAIL, _DIVERGED),
    Fault("stale_block", "one loaded block repeats the block before it", "VL#51358", "load", _FAIL, _DIVERGED),
    Fault("swapped_blocks", "two loaded blocks have changed places", "VA#12359", "load", _FAIL, _DIVERGED),
    Fault("shifted_blocks", "every loaded block sits one place late", "VA#8908", "load", _FAIL, _DIVERGED),
    Fault("half_block", "the second half of one block was never written", "VL#34616", "load", _FAIL, _DIVERGED),
    Fault("one_bit", "one exponent bit of one value is flipped", "kv_digest self-test", "load", _FAIL, ("DRIFT",)),
    Fault("wrong_scale", "loaded values are two per cent too large", "VA#13439", "load", _FAIL, _DIVERGED),
    Fault("fp8_loss", "loaded KV went through an 8-bit format", "SG#33268", "load", _FAIL, _DIVERGED),
    Fault("no_window", "the window's state is missing", "LM#4247", "load", _FAIL, _DIVERGED),
    Fault("no_recurrent", "the recurrent state is zero", "VL#53084", "load", _FAIL, _DIVERGED),
    Fault("stale_recurrent", "the recurrent state is one block old", "VA#17194", "load", _FAIL, ("DRIFT",)),
    Fault("no_pooled", "the compressed group is zero", "VA#13110", "load", _FAIL, ("DRIFT",)),
    Fault("swallowed_failure", "the load failed, was only logged, and blocks stay unfilled", "VA#12522", "load", _FAIL, _DIVERGED),
    # when and where it happens
    Fault("long_only", "blocks are wrong beyond 512 tokens", "LM#5151", "load", _FAIL, _DIVERGED),
    Fault("after_some", "loads are wrong after the fifth", "VA#13934", "load", _FAIL, _DIVERGED),
    Fault("every_other", "every other load is wrong", "VL#47282", "load", _FAIL, _DIVERGED),
    Fault("poisoned_put", "a block is stored wrong, once and for all", "VL#51358", "put", _FAIL, _DIVERGED),
    Fault("saved_wrong", "state is wrong when saved, so local and external hits are wrong alike", "SG#35086", "save", _FAIL, _DIVERGED),
    Fault("hash_collision", "the key leaves out the prefix, so another prompt's block is served", "VA#10296", "key", _FAIL, _DIVERGED),
    # answers
    Fault("first_token_lost", "the first token of an answer from the pool is missing", "LM#1511", "answer", _FAIL, ("FIRST_TOKEN", *_DIVERGED)),
    Fault("first_token_doubled", "the first token of an answer from the pool comes twice", "LM#978", "answer", _FAIL, ("FIRST_TOKEN", *_DIVERGED)),
    Fault("cut_answer", "an answer from the pool stops half way", "VL#52852", "answer", _FAIL, ("TRUNCATED",)),
    Fault("empty_answer", "an answer from the pool has no tokens", "VA#13439", "answer", _FAIL, ("EMPTY",)),
    Fault("refused_hit", "the server refuses what it would have to load", "VL#40978", "answer", _FAIL, ("SUBJECT_REFUSED",)),
    Fault("leak", "an answer from the pool holds another prompt's beginning", "SG#23392", "answer", _FAIL, ("LEAK",)),
    # the path that never ran, and sensors that lie
    Fault("no_pool", "the pool is switched off", "local-inference-lab/vllm#403", "path", _UNKNOWN, ("PATH_NOT_EXERCISED",)),
    Fault("never_put", "the pool is asked and never filled", "VA#8808", "path", _UNKNOWN, ("EXTERNAL_MISS",)),
    Fault("silent_recompute", "look-ups hit, loads fail, the prompt is computed again", "VL#42644", "path", _UNKNOWN, ("LOAD_FAILED",)),
    Fault("evicted", "objects vanish between look-up and load", "SG#31108", "path", _UNKNOWN, ("LOAD_FAILED",)),
    Fault("reset_lies", "the reset says success and drops nothing", "VL#57727", "path", _UNKNOWN, ("LOCAL_NOT_DROPPED",)),
    Fault("salt_ignored", "the pool's keys leave out the salt", "SG#37160", "key", _UNKNOWN, ("SALT_IGNORED",)),
    Fault("counters_stuck", "all counters stay where they are", "VA#16639", "counters", _UNKNOWN, ("EVIDENCE_MISSING",)),
    Fault("counters_double", "every counter counts twice", "VL#18053", "counters", _UNKNOWN, ("FOREIGN_TRAFFIC",)),
    Fault("counters_saw", "two API processes answer /metrics in turn", "LM#621", "counters", _UNKNOWN, ("COUNTER_RESET", "EVIDENCE_MISSING", "FOREIGN_TRAFFIC")),
    Fault("lying_usage", "usage reports cached tokens that no counter knows", "VA#15744", "counters", _UNKNOWN, ("SENSOR_CONFLICT",)),
    Fault("preempted", "requests are preempted and recomputed", "VL#25780", "counters", _UNKNOWN, ("PREEMPTED",)),
    # negative controls: odd, and right
    Fault("healthy", "nothing is wrong", "control", "none", _PASS),
    Fault("slow_put", "puts can be seen a little later", "LM#1350", "control", _PASS),
    Fault("dead_bytes", "bytes change that no answer reads", "control", "load", _PASS),
    Fault("shape_noise_15", "15 % of prompts answer with benign drift when cold", "B02", "noise", _PASS),
    Fault("shape_noise_45", "45 % of prompts answer with benign drift when cold", "B01", "noise", _PASS),
)  # fmt: skip

BY_NAME: dict[str, Fault] = {fault.name: fault for fault in FAULTS}
