"""Which arms a group has under each way of forcing, and which pairs they make."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kvgate.domain.plan import ArmStep, Forcing, PairKind, PairPlan
from kvgate.domain.probe import Arm, Part, Path

# Salts by letter: "a" is the prompt's own key space, "b" a fresh one for the repeat of the cold arm, "c" and "d" those
# that only the external repeat and the mixed arm read, for readers whose local cache cannot be dropped, "i" the one of
# the isolation arm.
OWN, FRESH, SECOND, THIRD, FOREIGN = "a", "b", "c", "d", "i"
DIRECT = (Arm.PREFILL_DIRECT, Arm.PREFILL_DIRECT_REPEAT)
TWO_LEG = (Arm.TWO_LEG, Arm.TWO_LEG_REPEAT)
# Arms that come with another one.
_WITH = {
    Arm.EXTERNAL_REPEAT: (Arm.POPULATE,),
    Arm.MIXED: (Arm.MIXED_POPULATE, Arm.MIXED_HEAD),
    Arm.BRANCH: (Arm.BRANCH_LOCAL, Arm.BRANCH_LOCAL_REPEAT),
    Arm.CONTINUATION: (Arm.CONTINUATION_COLD, Arm.CONTINUATION_LOCAL),
}


@dataclass(frozen=True, slots=True)
class Parts:
    """Which endpoint fills the pool, which reads it, and on which data-parallel rank each of them.

    Behind them: which prefill engine can answer alone, and which decode engine can be reached in two legs past the
    gateway. ``reference`` is the independent endpoint. None where there is no such part.
    """

    writer: str
    reader: str
    prefill: str | None = None
    two_leg: str | None = None
    reference: str | None = None
    writer_rank: int | None = None
    reader_rank: int | None = None


def arm_steps(
    forcing: Forcing, parts: Parts, arms: frozenset[Arm], salts_honoured: bool, reader_drops: bool
) -> tuple[ArmStep, ...]:
    """The arms of a full group in sending order.

    Where one engine plays every part, it is made to forget the prompt before it is to load it. With two readers the
    writer fills the pool and the reader never computed the prompt under the pool's salt, so its first hit is
    external; the reader's own cold and local arms run under a fresh salt, which keeps baseline and subject on one
    endpoint. ``reader_drops`` is whether the reader's local cache can be dropped. Where there is a prefill engine
    behind the endpoint, it also answers alone: the only baseline that was not transferred.
    """
    if forcing.drops:
        steps = _one_engine(parts, salts_honoured)
    elif forcing is Forcing.NO_LOCAL:
        steps = _no_local(parts, salts_honoured)
    else:
        steps = _two_readers(parts, salts_honoured, reader_drops)
    wanted = set(arms) | set(DIRECT) | set(TWO_LEG)
    wanted |= {each for arm in arms for each in _WITH.get(arm, ())}
    return tuple(step for step in steps if step.arm in wanted)


def _one_engine(parts: Parts, salts_honoured: bool) -> tuple[ArmStep, ...]:
    engine = parts.writer
    own, fresh, foreign = (OWN, FRESH, FOREIGN) if salts_honoured else (None, None, None)
    branch, head = Part.BRANCH, Part.HEAD
    steps = (
        ArmStep(Arm.COLD, engine, Path.COLD, own),
        ArmStep(Arm.LOCAL, engine, Path.LOCAL, own),
        ArmStep(Arm.LOCAL_REPEAT, engine, Path.LOCAL, own),
        *(ArmStep(arm, parts.two_leg, Path.LOCAL, own) for arm in TWO_LEG if parts.two_leg is not None),
        *(ArmStep(arm, parts.prefill, Path.LOCAL, own) for arm in DIRECT if parts.prefill is not None),
        ArmStep(Arm.BRANCH_LOCAL, engine, Path.LOCAL, own, part=branch),
        ArmStep(Arm.BRANCH_LOCAL_REPEAT, engine, Path.LOCAL, own, part=branch),
        ArmStep(Arm.EXTERNAL, engine, Path.EXTERNAL, own, drop_local=True, settle=True),
        ArmStep(Arm.EXTERNAL_REPEAT, engine, Path.EXTERNAL, own, drop_local=True),
        ArmStep(Arm.THIRD, engine, Path.LOCAL, own),
        ArmStep(Arm.MIXED_HEAD, engine, Path.EXTERNAL, own, drop_local=True, part=head),
        ArmStep(Arm.MIXED, engine, Path.MIXED, own),
        ArmStep(Arm.BRANCH, engine, Path.EXTERNAL, own, drop_local=True, part=branch),
        *((ArmStep(Arm.ISOLATION, engine, Path.COLD, foreign, drop_local=True),) if salts_honoured else ()),
        ArmStep(Arm.COLD_REPEAT, engine, Path.COLD, fresh),
    )
    return (*steps, *_reference(parts, own))


def _no_local(parts: Parts, salts_honoured: bool) -> tuple[ArmStep, ...]:
    """An engine without a prefix cache of its own: every repeat is external, and there is no local baseline."""
    engine = parts.writer
    own, fresh, foreign = (OWN, FRESH, FOREIGN) if salts_honoured else (None, None, None)
    steps = (
        ArmStep(Arm.COLD, engine, Path.COLD, own),
        ArmStep(Arm.EXTERNAL, engine, Path.EXTERNAL, own, settle=True),
        ArmStep(Arm.EXTERNAL_REPEAT, engine, Path.EXTERNAL, own),
        *((ArmStep(Arm.ISOLATION, engine, Path.COLD, foreign),) if salts_honoured else ()),
        *((ArmStep(Arm.COLD_REPEAT, engine, Path.COLD, fresh),) if salts_honoured else ()),
    )
    return (*steps, *_reference(parts, own))


def _two_readers(parts: Parts, salts_honoured: bool, reader_drops: bool) -> tuple[ArmStep, ...]:
    own, fresh = (OWN, FRESH) if salts_honoured else (None, None)
    writer = partial(ArmStep, endpoint=parts.writer, rank=parts.writer_rank)
    reader = partial(ArmStep, endpoint=parts.reader, rank=parts.reader_rank)
    steps = (
        writer(arm=Arm.COLD, path=Path.COLD, salt=own),
        reader(arm=Arm.COLD_REPEAT, path=Path.COLD, salt=fresh),
        reader(arm=Arm.LOCAL, path=Path.LOCAL, salt=fresh),
        reader(arm=Arm.LOCAL_REPEAT, path=Path.LOCAL, salt=fresh),
        *(
            reader(arm=arm, path=Path.LOCAL, salt=fresh, part=Part.BRANCH)
            for arm in (Arm.BRANCH_LOCAL, Arm.BRANCH_LOCAL_REPEAT)
            if reader_drops
        ),
        reader(arm=Arm.EXTERNAL, path=Path.EXTERNAL, salt=own, settle=True),
        *_read_again(writer, reader, own, reader_drops),
        reader(arm=Arm.THIRD, path=Path.LOCAL, salt=own),
        *_read_mixed(writer, reader, own, reader_drops),
        *((reader(arm=Arm.ISOLATION, path=Path.COLD, salt=FOREIGN),) if salts_honoured else ()),
    )
    return (*steps, *_reference(parts, own))


_Sent = Callable[..., ArmStep]


def _read_again(writer: _Sent, reader: _Sent, own: str | None, reader_drops: bool) -> tuple[ArmStep, ...]:
    """How the reader loads the same prompt a second time: after a drop, or from a second key space."""
    if reader_drops:
        return (reader(arm=Arm.EXTERNAL_REPEAT, path=Path.EXTERNAL, salt=own, drop_local=True),)
    if own is None:
        return ()
    return (
        writer(arm=Arm.POPULATE, path=Path.COLD, salt=SECOND),
        reader(arm=Arm.EXTERNAL_REPEAT, path=Path.EXTERNAL, salt=SECOND, settle=True),
    )


def _read_mixed(writer: _Sent, reader: _Sent, own: str | None, reader_drops: bool) -> tuple[ArmStep, ...]:
    """How the reader comes to hold a beginning of the prompt only; and, where it drops, the other tail of it."""
    if reader_drops:
        return (
            reader(arm=Arm.MIXED_HEAD, path=Path.EXTERNAL, salt=own, drop_local=True, part=Part.HEAD),
            reader(arm=Arm.MIXED, path=Path.MIXED, salt=own),
            reader(arm=Arm.BRANCH, path=Path.EXTERNAL, salt=own, drop_local=True, part=Part.BRANCH),
        )
    if own is None:
        return ()
    return (
        writer(arm=Arm.MIXED_POPULATE, path=Path.COLD, salt=THIRD),
        reader(arm=Arm.MIXED_HEAD, path=Path.EXTERNAL, salt=THIRD, settle=True, part=Part.HEAD),
        reader(arm=Arm.MIXED, path=Path.MIXED, salt=THIRD),
    )


def _reference(parts: Parts, own: str | None) -> tuple[ArmStep, ...]:
    return (ArmStep(Arm.REFERENCE, parts.reference, Path.COLD, own),) if parts.reference is not None else ()


def continuation_steps(parts: Parts, salts_honoured: bool, drops: bool) -> tuple[ArmStep, ...]:
    """A prompt, then that prompt with its own answer and a new tail: KV that decode wrote is reused.

    Its baseline is computed whole, under a fresh salt; ``drops`` is whether the engine can be made to forget.
    """
    own, fresh = (OWN, FRESH) if salts_honoured else (None, None)
    if fresh is None:
        return ()
    engine, part = parts.writer, Part.CONTINUED
    return (
        ArmStep(Arm.COLD, engine, Path.COLD, own),
        ArmStep(Arm.CONTINUATION_LOCAL, engine, Path.LOCAL, own, part=part),
        ArmStep(Arm.CONTINUATION_LOCAL_REPEAT, engine, Path.LOCAL, own, part=part),
        *(
            (ArmStep(Arm.CONTINUATION, engine, Path.EXTERNAL, own, drop_local=True, settle=True, part=part),)
            if drops
            else ()
        ),
        ArmStep(Arm.CONTINUATION_COLD, engine, Path.COLD, fresh, part=part),
    )


def pairs_of(steps: tuple[ArmStep, ...]) -> tuple[PairPlan, ...]:
    """The pairs those arms make: those that are required must acquit."""
    arms = {step.arm for step in steps}
    local = (Arm.LOCAL, Arm.LOCAL_REPEAT) if Arm.LOCAL_REPEAT in arms else None
    cold = (Arm.COLD, Arm.COLD_REPEAT) if Arm.COLD_REPEAT in arms else None
    # The repeat is a subject, too: a fault that strikes every other load shows in one of the two.
    again = (
        (PairKind.EXTERNAL_VS_LOCAL, Arm.LOCAL, local)
        if Arm.LOCAL in arms
        else (PairKind.EXTERNAL_VS_COLD, Arm.COLD, cold)
    )
    # What was sent in two legs is what the transfer did; what came through the gateway is the gateway's doing, too.
    straight, straight_again = TWO_LEG if Arm.TWO_LEG in arms else (Arm.LOCAL, Arm.LOCAL_REPEAT)
    own_repeat = (Arm.EXTERNAL_REPEAT,)
    branched = (Arm.BRANCH_LOCAL, Arm.BRANCH_LOCAL_REPEAT) if Arm.BRANCH_LOCAL_REPEAT in arms else local
    written = (Arm.CONTINUATION_LOCAL, Arm.CONTINUATION_LOCAL_REPEAT)
    wanted = (
        PairPlan(PairKind.EXTERNAL_VS_LOCAL, Arm.LOCAL, Arm.EXTERNAL, own_repeat, local),
        PairPlan(again[0], again[1], Arm.EXTERNAL_REPEAT, (Arm.EXTERNAL, Arm.EXTERNAL_REPEAT), again[2]),
        PairPlan(PairKind.EXTERNAL_VS_COLD, Arm.COLD, Arm.EXTERNAL, own_repeat, cold),
        PairPlan(PairKind.LOCAL_VS_COLD, Arm.COLD, Arm.LOCAL, (Arm.LOCAL_REPEAT,), cold),
        PairPlan(PairKind.TRANSFER_VS_DIRECT, Arm.PREFILL_DIRECT, straight, (straight_again,), DIRECT),
        PairPlan(PairKind.GATEWAY_VS_TWO_LEG, Arm.TWO_LEG, Arm.LOCAL, (Arm.LOCAL_REPEAT,), TWO_LEG),
        PairPlan(PairKind.THIRD_VS_LOCAL, Arm.LOCAL, Arm.THIRD, (Arm.THIRD,), local),
        PairPlan(PairKind.MIXED_VS_LOCAL, Arm.LOCAL, Arm.MIXED, (Arm.MIXED,), local),
        PairPlan(PairKind.BRANCH_VS_LOCAL, Arm.BRANCH_LOCAL, Arm.BRANCH, (Arm.BRANCH,), branched),
        PairPlan(PairKind.ISOLATION_VS_COLD, Arm.COLD, Arm.ISOLATION, (), cold),
        PairPlan(PairKind.COLD_VS_REFERENCE, Arm.REFERENCE, Arm.COLD, (Arm.COLD_REPEAT,), None),
        PairPlan(PairKind.CONTINUATION_VS_COLD, Arm.CONTINUATION_COLD, written[0], written[1:], None),
        # Where decode does not put what it wrote, nothing is loaded, and that is no fault.
        PairPlan(PairKind.CONTINUATION_VS_LOCAL, written[0], Arm.CONTINUATION, (Arm.CONTINUATION,), written, False),
    )
    return tuple(pair for pair in wanted if pair.baseline in arms and pair.subject in arms)


def short_control_steps(endpoint: str, salts_honoured: bool) -> tuple[ArmStep, ...]:
    """A prompt below the hit floor, sent twice in the same key space: both must be cold and equal."""
    salt = OWN if salts_honoured else None
    return (ArmStep(Arm.COLD, endpoint, Path.COLD, salt), ArmStep(Arm.COLD_REPEAT, endpoint, Path.COLD, salt))


def short_control_pairs() -> tuple[PairPlan, ...]:
    """The one pair of a short control."""
    return (PairPlan(PairKind.COLD_VS_COLD_REPEAT, Arm.COLD, Arm.COLD_REPEAT, (), None),)


_COSTS = {
    Arm.EXTERNAL: "no external arm: nothing is said about an external pool",
    Arm.LOCAL: "no local arm: external hits are compared with cold runs only, so drift has no exact floor",
    Arm.LOCAL_REPEAT: "no local_repeat: the exact floor of local hits is not measured, so no pair counts as exact",
    Arm.EXTERNAL_REPEAT: "no external_repeat: a difference is repeated only when it is seen",
    Arm.COLD_REPEAT: "no cold_repeat: the noise between cold runs is not measured, so state that was already "
    "wrong when saved is covered by tolerance only",
}
_COSTS_IF_ASKED = {
    Arm.THIRD: "no third arm: whether loaded KV stays wrong in the local cache is not seen",
    Arm.MIXED: "no mixed arm: a local beginning with an external rest is not tested",
    Arm.BRANCH: "no branch arm (the reader cannot be made to forget): prompts that share a beginning are not tested",
    Arm.CONTINUATION: "no continuation arm: KV that decode wrote is not tested",
    Arm.ISOLATION: "no isolation arm (salts are said to be ignored): nothing keeps tenants apart",
    Arm.REFERENCE: "no reference arm: no endpoint has the role reference",
}


# Cheap beside a cold run, and each finds faults that the usual six arms cannot.
_WORTH_ASKING = (Arm.THIRD, Arm.MIXED, Arm.BRANCH)


def what_is_missing(steps: tuple[ArmStep, ...], asked: frozenset[Arm]) -> tuple[str, ...]:
    """Arms a full group would have, or that were asked for, and that are lacking, each with the power that costs."""
    arms = {step.arm for step in steps}
    usual = [text for arm, text in _COSTS.items() if arm not in arms]
    lacking = [text for arm, text in _COSTS_IF_ASKED.items() if arm in asked and arm not in arms]
    not_asked = [arm.value for arm in _WORTH_ASKING if arm not in asked]
    told = [f"not asked for in gate.arms: {', '.join(not_asked)}"] if not_asked and Arm.EXTERNAL in arms else []
    return (*usual, *lacking, *told)
