"""Which part of a deployment a failure speaks against (design §3.6)."""

from dataclasses import replace

from kvgate.domain.plan import PairKind, Plan, Route
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.ruling import GroupVerdict, Onset, PairVerdict
from kvgate.domain.verdict import Verdict

# Parts that answers come through, innermost first: while one is shown to be wrong, or not to do the same twice, a
# difference between two answers that both came through it speaks against nothing else.
_DOORS = (PairKind.TRANSFER_VS_DIRECT, PairKind.GATEWAY_VS_TWO_LEG, PairKind.CONTINUATION_VS_COLD)


def laid_at_one_door(plan: Plan, groups: tuple[GroupVerdict, ...]) -> tuple[GroupVerdict, ...]:
    """The same verdicts; what failed is laid at the innermost part that the run shows to be wrong, if there is one."""
    every = [
        pair
        for group in groups
        for pair in group.pairs
        if pair.kind in _DOORS and shows_a_fault(pair) and not _leaks(pair)
    ]
    guilty = min(every, key=lambda pair: _DOORS.index(pair.kind), default=None)
    if guilty is None:
        return groups
    steps = (group.step(guilty.subject) for group in plan.groups)
    endpoint = next((step.endpoint for step in steps if step is not None), "")
    told = path_named(guilty.kind, guilty.subject, endpoint, None)

    def laid(pair: PairVerdict) -> PairVerdict:
        failed = pair.verdict is Verdict.FAIL and not _leaks(pair)
        # What decode wrote is the baseline of what is loaded of it.
        if guilty.kind is PairKind.CONTINUATION_VS_COLD and pair.kind is not PairKind.CONTINUATION_VS_LOCAL:
            return pair
        return replace(pair, attribution=told, blames=guilty.kind) if failed else pair

    return tuple(replace(group, pairs=tuple(map(laid, group.pairs))) for group in groups)


def laid_at_the_engine(plan: Plan, groups: tuple[GroupVerdict, ...], onset: Onset | None) -> tuple[GroupVerdict, ...]:
    """The same verdicts; what failed while the engine itself changed is laid at the engine.

    Behind prefill and decode the sentinel's answers came through the transfer, which may be what changed.
    """
    if onset is None or plan.route is not Route.DIRECT:
        return groups
    told = f"engine: {onset.endpoint} itself answers otherwise since request {onset.wrong_from} or a little before"

    def laid(pair: PairVerdict) -> PairVerdict:
        failed = pair.verdict is Verdict.FAIL and not _leaks(pair)
        return replace(pair, attribution=told, blames=PairKind.COLD_VS_COLD_REPEAT) if failed else pair

    return tuple(
        replace(group, pairs=tuple(map(laid, group.pairs))) if group.id in onset.groups else group for group in groups
    )


def _leaks(pair: PairVerdict) -> bool:
    """Whether it failed because requests got into each other: which part let them is not seen in one pair."""
    return pair.problem is not None and pair.problem.reason in (Reason.LEAK, Reason.ISOLATION)


def shows_a_fault(pair: PairVerdict) -> bool:
    """Whether a pair fails, or does not come out the same twice."""
    unstable = pair.problem is not None and pair.problem.reason is Reason.UNSTABLE
    return pair.verdict is Verdict.FAIL or unstable


def path_named(kind: PairKind, subject: Arm, endpoint: str, problem: Problem | None) -> str:
    """Which part a FAIL of a pair of that kind speaks against (attribution, design §3.6)."""
    path = subject.path.value
    if problem is not None and problem.reason is Reason.LEAK:
        return f"isolation: requests at {endpoint}, or before it, get into each other"
    if problem is not None and problem.reason is Reason.SUBJECT_REFUSED:
        return f"{path} path: {endpoint} refuses what it answers when it computes the prompt"
    return _SPEAKS_AGAINST[kind].format(endpoint)


_SPEAKS_AGAINST = {
    PairKind.EXTERNAL_VS_LOCAL: "external path: KV loaded into {} differs from KV it computed",
    PairKind.EXTERNAL_VS_COLD: "external path: what was saved or loaded at {} differs from a cold run",
    PairKind.LOCAL_VS_COLD: "local path: {}'s own prefix cache differs from a cold run",
    PairKind.COLD_VS_COLD_REPEAT: "cold path: two cold runs at {} differ",
    PairKind.TRANSFER_VS_DIRECT: "transfer: what {} answers after prefill handed its KV to decode differs from "
    "prefill alone",
    PairKind.GATEWAY_VS_TWO_LEG: "gateway: what {} answers differs from the same requests sent past it",
    PairKind.THIRD_VS_LOCAL: "external path: KV that {} loaded lives on in its own cache and differs from computed KV",
    PairKind.MIXED_VS_LOCAL: "mixed path: a local beginning with an external rest at {} differs from computed KV",
    PairKind.BRANCH_VS_LOCAL: "external path: a beginning loaded into {} under another tail differs from computed KV",
    PairKind.ISOLATION_VS_COLD: "isolation: {} reads KV that was written under another salt",
    PairKind.COLD_VS_REFERENCE: "cold path: {} differs from the reference where neither reused anything",
    PairKind.CONTINUATION_VS_COLD: "local path: KV that decode wrote at {} differs from a cold run",
    PairKind.CONTINUATION_VS_LOCAL: "external path: KV that decode wrote and {} loaded differs from what it holds",
    PairKind.OUTAGE_VS_COLD: "outage: what {} answers while the pool is away differs from a cold run",
    PairKind.RECOVERED_VS_COLD: "external path: what {} loads once the pool is back differs from a cold run",
}
