"""A group for which the pool is taken away and brought back: the answer must not change, and hits must come again."""

from kvgate.domain.deployment import Deployment
from kvgate.domain.parts import PlanError, PlanRequest, route_of
from kvgate.domain.plan import ArmStep, Forcing, PairKind, PairPlan, Route
from kvgate.domain.probe import Arm, Path
from kvgate.domain.recipe import FRESH, OWN, SECOND


def check_outage(request: PlanRequest, deployment: Deployment, forcing: Forcing) -> None:
    """Raises PlanError where an outage that was asked for cannot be shown."""
    if not request.outage:
        return
    if route_of(deployment) is not Route.DIRECT or not request.salts_honoured or not forcing.drops:
        raise PlanError(
            "hooks.pool_down: an outage is shown on one combined endpoint that can be made to forget (reset_local, "
            "restart or evict) and whose store honours salts; leave hooks.pool_down and pool_up out"
        )


def outage_steps(engine: str) -> tuple[ArmStep, ...]:
    """A prompt that the pool serves, the same prompt while the pool is away, and again once it is back.

    What is computed once it is back goes into a key space of its own: a pool may come back empty.
    """
    return (
        ArmStep(Arm.COLD, engine, Path.COLD, OWN),
        ArmStep(Arm.COLD_REPEAT, engine, Path.COLD, FRESH),
        ArmStep(Arm.EXTERNAL, engine, Path.EXTERNAL, OWN, drop_local=True, settle=True),
        ArmStep(Arm.OUTAGE, engine, Path.COLD, OWN, drop_local=True),
        ArmStep(Arm.OUTAGE_REPEAT, engine, Path.COLD, OWN, drop_local=True),
        ArmStep(Arm.RESTORE, engine, Path.COLD, SECOND),
        ArmStep(Arm.RECOVERED, engine, Path.EXTERNAL, SECOND, drop_local=True, settle=True),
    )


def outage_pairs() -> tuple[PairPlan, ...]:
    """Every answer of the group against its cold one."""
    cold, away = (Arm.COLD, Arm.COLD_REPEAT), (Arm.OUTAGE, Arm.OUTAGE_REPEAT)
    return (
        PairPlan(PairKind.EXTERNAL_VS_COLD, Arm.COLD, Arm.EXTERNAL, (Arm.EXTERNAL,), cold),
        *(PairPlan(PairKind.OUTAGE_VS_COLD, Arm.COLD, arm, away, cold) for arm in away),
        PairPlan(PairKind.RECOVERED_VS_COLD, Arm.COLD, Arm.RECOVERED, (Arm.RECOVERED,), cold),
    )
