"""What to do after a ruling: the fall-back on FAIL, the next step otherwise."""

from collections.abc import Iterable

from kvgate.domain.plan import PairKind
from kvgate.domain.reasons import REASONS, Problem, Reason
from kvgate.domain.ruling import GroupVerdict
from kvgate.domain.verdict import Verdict

_FALL_BACK = {
    PairKind.EXTERNAL_VS_LOCAL: (
        "Fall back: take the external pool out of the launch configuration (remove the store connector, keep "
        "prefix caching and the prefill/decode transfer); local hits were clean where the table says so.",
        "configs/lab/vllm-no-pool.yaml shows a deployment with the pool switched off; gate it before use.",
    ),
    PairKind.EXTERNAL_VS_COLD: (
        "Fall back: take the external pool out of the launch configuration; what it saves or loads cannot be trusted.",
        "Empty the pool before it is used again: wrong objects live on under valid keys.",
    ),
    PairKind.LOCAL_VS_COLD: (
        "Fall back: switch the engine's own prefix cache off (--no-enable-prefix-caching) until it is mended.",
    ),
    PairKind.TRANSFER_VS_DIRECT: (
        "Fall back: serve from combined engines until the transfer is mended; the pool is not to blame where external "
        "and local hits agree.",
        "Check that prefill and decode agree in tensor parallelism, block size and KV dtype, and that leases outlast "
        "the queue on the decode side.",
    ),
    PairKind.GATEWAY_VS_TWO_LEG: (
        "The gateway is to blame: the same requests sent past it are answered rightly; compare what it forwards, field "
        "by field, and mend or replace it before anything else.",
    ),
    PairKind.THIRD_VS_LOCAL: (
        "Restart the engine, or drop its local cache, before users are let on: what was loaded stays in it.",
    ),
    PairKind.MIXED_VS_LOCAL: (
        "Fall back: take the external pool out of the launch configuration; prompts whose beginning is cached locally "
        "and whose rest comes from the pool are answered wrongly.",
    ),
    PairKind.BRANCH_VS_LOCAL: (
        "Fall back: take the external pool out of the launch configuration; prompts that share a beginning are "
        "answered wrongly.",
    ),
    PairKind.ISOLATION_VS_COLD: (
        "Fall back: give every tenant a deployment, or a pool, of its own until salts are part of the keys.",
    ),
    PairKind.COLD_VS_REFERENCE: (
        "The deployment differs from the reference before anything is reused: compare weights, quantisation and "
        "versions first.",
    ),
    PairKind.CONTINUATION_VS_COLD: (
        "Fall back: keep KV that decode writes out of prefix reuse where the engine can be told to.",
    ),
    PairKind.CONTINUATION_VS_LOCAL: (
        "Fall back: keep decode engines from putting into the pool (consumer_is_to_put: false).",
    ),
    PairKind.OUTAGE_VS_COLD: (
        "Fall back: take the external pool out of the launch configuration, or set the engine to fail requests whose "
        "load fails (kv_load_failure_policy: fail); an outage must not change answers.",
    ),
    PairKind.RECOVERED_VS_COLD: (
        "Restart the engines whenever the pool was away until this is mended; empty the pool before it is used again.",
    ),
    PairKind.COLD_VS_COLD_REPEAT: ("The engine does not repeat itself: look for faults below the cache first.",),
}


def advice_for(verdict: Verdict, reasons: tuple[Problem, ...], groups: Iterable[GroupVerdict]) -> tuple[str, ...]:
    """Sentences in the order to act on them."""
    if verdict is Verdict.PASS:
        return ()
    said: list[str] = []
    if verdict is Verdict.FAIL:
        for group in groups:
            for pair in group.pairs:
                # Where requests get into each other no path is to blame, and no fall-back helps.
                if pair.verdict is Verdict.FAIL and not (pair.problem and pair.problem.reason is Reason.LEAK):
                    said += _FALL_BACK[pair.blames or pair.kind]
    said += [REASONS[problem.reason].advice for problem in reasons if problem.reason is not Reason.TIER_NOT_COVERED]
    return tuple(dict.fromkeys(said))
