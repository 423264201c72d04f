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
                if pair.verdict is Verdict.FAIL:
                    said += _FALL_BACK[pair.kind]
    said += [REASONS[problem.reason].advice for problem in reasons if problem.reason is not Reason.TIER_NOT_COVERED]
    return tuple(dict.fromkeys(said))
