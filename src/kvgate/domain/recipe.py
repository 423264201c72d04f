"""Which arms a group has under each way of forcing, and which pairs they make."""

from dataclasses import dataclass

from kvgate.domain.plan import ArmStep, Forcing, PairKind, PairPlan
from kvgate.domain.probe import Arm, Path

# Salts by letter: "a" is the prompt's own key space, "b" a fresh one for the repeat of the cold arm, "c" one
# that only the external repeat reads, for readers whose local cache cannot be dropped.
OWN, FRESH, SECOND = "a", "b", "c"
DIRECT = (Arm.PREFILL_DIRECT, Arm.PREFILL_DIRECT_REPEAT)


@dataclass(frozen=True, slots=True)
class Parts:
    """Which endpoint fills the pool, which reads it, and which prefill engine behind them can answer alone."""

    writer: str
    reader: str
    prefill: str | None = None


def arm_steps(
    forcing: Forcing, parts: Parts, arms: frozenset[Arm], salts_honoured: bool, reader_drops: bool
) -> tuple[ArmStep, ...]:
    """The arms of a full group in sending order.

    With ``reset_local`` one endpoint plays every part. With ``other_instance`` the writer fills the pool and
    the reader never computed the prompt under the pool's salt, so its first hit is external; the reader's own
    cold and local arms run under a fresh salt, which keeps baseline and subject on one endpoint.
    ``reader_drops`` is whether the reader's local cache can be dropped. Where there is a prefill engine behind the
    endpoint, it also answers alone: the only baseline that was not transferred.
    """
    writer, reader = parts.writer, parts.reader
    own, fresh = (OWN, FRESH) if salts_honoured else (None, None)
    steps: tuple[ArmStep, ...]
    if forcing is Forcing.RESET_LOCAL:
        steps = (
            ArmStep(Arm.COLD, writer, Path.COLD, own),
            ArmStep(Arm.LOCAL, writer, Path.LOCAL, own),
            ArmStep(Arm.LOCAL_REPEAT, writer, Path.LOCAL, own),
            *(ArmStep(arm, parts.prefill, Path.LOCAL, own) for arm in DIRECT if parts.prefill is not None),
            ArmStep(Arm.EXTERNAL, writer, Path.EXTERNAL, own, drop_local=True, settle=True),
            ArmStep(Arm.EXTERNAL_REPEAT, writer, Path.EXTERNAL, own, drop_local=True),
            ArmStep(Arm.COLD_REPEAT, writer, Path.COLD, fresh),
        )
    else:
        steps = (
            ArmStep(Arm.COLD, writer, Path.COLD, own),
            ArmStep(Arm.COLD_REPEAT, reader, Path.COLD, fresh),
            ArmStep(Arm.LOCAL, reader, Path.LOCAL, fresh),
            ArmStep(Arm.LOCAL_REPEAT, reader, Path.LOCAL, fresh),
            ArmStep(Arm.EXTERNAL, reader, Path.EXTERNAL, own, settle=True),
            *_reader_repeat(writer, reader, own, reader_drops),
        )
    wanted = arms | set(DIRECT) | ({Arm.POPULATE} if Arm.EXTERNAL_REPEAT in arms else set())
    return tuple(step for step in steps if step.arm in wanted)


def _reader_repeat(writer: str, reader: str, own: str | None, reader_drops: bool) -> tuple[ArmStep, ...]:
    """How the reader loads the same prompt a second time: after a drop, or from a second key space."""
    if reader_drops:
        return (ArmStep(Arm.EXTERNAL_REPEAT, reader, Path.EXTERNAL, own, drop_local=True),)
    if own is None:
        return ()
    return (
        ArmStep(Arm.POPULATE, writer, Path.COLD, SECOND),
        ArmStep(Arm.EXTERNAL_REPEAT, reader, Path.EXTERNAL, SECOND, settle=True),
    )


def pairs_of(steps: tuple[ArmStep, ...]) -> tuple[PairPlan, ...]:
    """The pairs those arms make; every pair whose two sides exist is required."""
    arms = {step.arm for step in steps}
    local_control = (Arm.LOCAL, Arm.LOCAL_REPEAT) if Arm.LOCAL_REPEAT in arms else None
    cold_control = (Arm.COLD, Arm.COLD_REPEAT) if Arm.COLD_REPEAT in arms else None
    # The repeat is a subject, too: a fault that strikes every other load shows in one of the two.
    again = (
        (PairKind.EXTERNAL_VS_LOCAL, Arm.LOCAL, local_control)
        if Arm.LOCAL in arms
        else (PairKind.EXTERNAL_VS_COLD, Arm.COLD, cold_control)
    )
    wanted = (
        PairPlan(PairKind.EXTERNAL_VS_LOCAL, Arm.LOCAL, Arm.EXTERNAL, (Arm.EXTERNAL_REPEAT,), local_control),
        PairPlan(again[0], again[1], Arm.EXTERNAL_REPEAT, (Arm.EXTERNAL, Arm.EXTERNAL_REPEAT), again[2]),
        PairPlan(PairKind.EXTERNAL_VS_COLD, Arm.COLD, Arm.EXTERNAL, (Arm.EXTERNAL_REPEAT,), cold_control),
        PairPlan(PairKind.LOCAL_VS_COLD, Arm.COLD, Arm.LOCAL, (Arm.LOCAL_REPEAT,), cold_control),
        PairPlan(PairKind.TRANSFER_VS_DIRECT, Arm.PREFILL_DIRECT, Arm.LOCAL, (Arm.LOCAL_REPEAT,), DIRECT),
    )
    return tuple(pair for pair in wanted if pair.baseline in arms and pair.subject in arms)


def short_control_steps(endpoint: str, salts_honoured: bool) -> tuple[ArmStep, ...]:
    """A prompt below the hit floor, sent twice in the same key space: both must be cold and equal."""
    salt = OWN if salts_honoured else None
    return (ArmStep(Arm.COLD, endpoint, Path.COLD, salt), ArmStep(Arm.COLD_REPEAT, endpoint, Path.COLD, salt))


def short_control_pairs() -> tuple[PairPlan, ...]:
    """The one pair of a short control."""
    return (PairPlan(PairKind.COLD_VS_COLD_REPEAT, Arm.COLD, Arm.COLD_REPEAT, (), None),)


def what_is_missing(steps: tuple[ArmStep, ...]) -> tuple[str, ...]:
    """Arms a full group would have and this one lacks, each with the power that costs."""
    arms = {step.arm for step in steps}
    costs = {
        Arm.EXTERNAL: "no external arm: nothing is said about an external pool",
        Arm.LOCAL: "no local arm: external hits are compared with cold runs only, so drift has no exact floor",
        Arm.LOCAL_REPEAT: "no local_repeat: the exact floor of local hits is not measured, so no pair counts as exact",
        Arm.EXTERNAL_REPEAT: "no external_repeat: a difference is repeated only when it is seen",
        Arm.COLD_REPEAT: "no cold_repeat: the noise between cold runs is not measured, so state that was already "
        "wrong when saved is covered by tolerance only",
    }
    return tuple(text for arm, text in costs.items() if arm not in arms)
