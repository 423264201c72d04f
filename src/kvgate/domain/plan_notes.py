"""What a plan tells the reader of what it can show and what it cannot."""

from kvgate.domain.deployment import Deployment, Role
from kvgate.domain.geometry import Geometry
from kvgate.domain.parts import PlanRequest, route_of
from kvgate.domain.plan import GroupPlan, Route
from kvgate.domain.policy import Grade, Policy


def evidence_notes(policy: Policy, by_source_grade: Grade) -> tuple[str, ...]:
    """Whether the engine's counters can show what the policy asks for."""
    if policy.evidence is Grade.ARRIVED and by_source_grade is not Grade.ARRIVED:
        return (
            "this engine's counters show scheduling, not arrival, and the policy asks for arrival: no PASS is possible "
            "unless policy.evidence is scheduled",
        )
    return ()


def sentinel_notes(request: PlanRequest, sentinels: tuple[GroupPlan, ...]) -> tuple[str, ...]:
    """What is not seen where nothing is computed afresh again and again."""
    if sentinels or not request.sentinel:
        return ()
    why = "no prompt of the family fits any tier" if request.salts_honoured else "salts are ignored"
    return (f"no prompt is computed afresh again and again ({why}), so an engine that goes wrong for good is not seen",)


def route_notes(request: PlanRequest, deployment: Deployment) -> tuple[str, ...]:
    """What cannot be told apart behind a gateway."""
    if route_of(deployment) is not Route.GATEWAY:
        return ()
    if not request.two_leg:
        return (
            "kvgate's own two legs past the gateway are not answered, so gateway and transfer cannot be told apart",
        )
    if len(deployment.with_role(Role.PREFILL)) == 1:
        return ()
    return (
        "several prefill engines stand behind the gateway, so none can be asked alone: a transfer that is wrong in the "
        "same way every time is not seen",
    )


def shape_notes(geometry: Geometry, prefill: str | None) -> tuple[str, ...]:
    """What is compared with tolerance since prefill and decode have other shapes."""
    if not geometry.prefill_drops or prefill is None:
        return ()
    return (
        "prefill leaves the last prompt token to decode, so its own answers have another shape: transfers are compared "
        "with it by tolerance, and one that is wrong in the same way every time is found only beyond that",
    )
