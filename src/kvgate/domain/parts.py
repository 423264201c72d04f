"""Which endpoint plays which part of a group, and how an engine is brought to load what it has computed itself."""

import math
from dataclasses import dataclass

from kvgate.domain.deployment import Capabilities, Deployment, Role
from kvgate.domain.plan import Forcing, Route
from kvgate.domain.probe import Arm
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.recipe import Parts

# How many times its capacity of other prompts drives a prompt out of a cache.
FLOOD = 1.25


class PlanError(ValueError):
    """What was asked for cannot be planned; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """What else the engine has to do: requests of ``tokens`` prompt tokens (the shortest tier, if None).

    So many as ``levels`` says are in flight beside every request of a group; groups take the levels in turn. Each
    client waits ``pause_s`` in the mean before its next one (exponential, seeded). Between two requests of a group
    ``between`` of them with a common beginning are sent at once. ``cancel_share`` of all are broken off.
    """

    levels: tuple[int, ...] = ()
    tokens: int | None = None
    cancel_share: float = 0.0
    pause_s: float = 0.0
    between: int = 0

    @property
    def prompts(self) -> int:
        """How many prompts it takes."""
        return max((*self.levels, self.between), default=0)


NO_PRESSURE = Pressure()


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the configuration asks for. ``families`` are (family, language) pairs taken in turn.

    ``ranks`` are data-parallel ranks that a request can be pinned to; ``prefix_caching`` and ``capacity`` (KV tokens
    that fit the engine's own cache) are what the engine says of itself, None if it does not. ``restarts`` is whether
    there is a restart hook, ``canaries`` how many prompts are sent at once, ``sentinel`` whether one prompt is asked
    again and again, ``two_leg`` whether kvgate's own two legs were answered. ``outage`` is whether
    hooks take the pool away and bring it back. ``more_groups`` is how many groups a tier may be added while the run is
    undecided.
    """

    tiers: tuple[int, ...]
    aligned: bool
    groups_per_tier: int
    boundaries: bool
    short_control: bool
    arms: frozenset[Arm]
    families: tuple[tuple[str, str], ...]
    forcing: Forcing | None
    salts_honoured: bool
    max_tokens: int
    seed: int
    ranks: int = 1
    prefix_caching: bool | None = None
    capacity: int | None = None
    restarts: bool = False
    canaries: int = 0
    sentinel: bool = False
    two_leg: bool = True
    pressure: Pressure = NO_PRESSURE
    outage: bool = False
    more_groups: int = 0


def choose_forcing(request: PlanRequest, combined: int, can_drop: bool) -> Forcing:
    """How the engine is brought to load what it has computed itself: as asked, else the cheapest way there is.

    A second reader of the pool needs nothing dropped. Flooding is dear, so it comes last.
    """
    ways = (
        (Forcing.NO_LOCAL, request.prefix_caching is False),
        (Forcing.OTHER_INSTANCE, combined >= 2),
        (Forcing.RESET_LOCAL, can_drop),
        (Forcing.OTHER_RANK, request.ranks >= 2 and combined > 0),
        (Forcing.RESTART, request.restarts),
        (Forcing.EVICT, request.capacity is not None),
    )
    if request.forcing is not None:
        return request.forcing
    return next((way for way, possible in ways if possible), Forcing.RESET_LOCAL)


def flood_tokens(request: PlanRequest, forcing: Forcing) -> int:
    """How many other prompt tokens drive a prompt out of the engine's cache; 0 unless that is how it is forced.

    Raises PlanError if the engine's capacity is unknown.
    """
    if forcing is not Forcing.EVICT:
        return 0
    if request.capacity is None:
        raise PlanError(
            "forcing evict needs to know how many tokens fit the engine's cache, which it does not say; set "
            "deployment.geometry.capacity (the start-up log names it), or use another way of forcing"
        )
    return math.ceil(FLOOD * request.capacity)


def parts_of(
    request: PlanRequest, deployment: Deployment, capabilities: tuple[Capabilities, ...]
) -> tuple[Parts, Forcing]:
    """The parts of every group, and the way of forcing. Raises PlanError where the two do not go together."""
    combined = deployment.with_role(Role.COMBINED)
    if route_of(deployment) is not Route.DIRECT:
        return _parts_behind(request, deployment, capabilities)
    first = combined[0].name
    forcing = choose_forcing(request, len(combined), can_drop(capabilities, first))
    reference = _reference(request, deployment)
    if forcing is Forcing.RESTART and not request.restarts:
        raise PlanError("forcing restart needs a command that restarts the engine; set hooks.restart")
    if not forcing.two_readers:
        return Parts(first, first, reference=reference), forcing
    if forcing is Forcing.OTHER_INSTANCE and len(combined) < 2:
        raise PlanError(
            f"forcing other_instance needs two combined endpoints on one pool, {deployment.name} has one; add the "
            "second, or use forcing: reset_local"
        )
    if forcing is Forcing.OTHER_RANK and request.ranks < 2:
        raise PlanError(
            "forcing other_rank needs an engine with two data-parallel ranks or more; set deployment.ranks, or use "
            "forcing: reset_local"
        )
    if not request.salts_honoured and {Arm.LOCAL, Arm.LOCAL_REPEAT} & request.arms:
        raise PlanError(
            f"forcing {forcing.value} with salts: ignored leaves the reader no local baseline; use forcing: "
            "reset_local, or leave local and local_repeat out of gate.arms"
        )
    if forcing is Forcing.OTHER_RANK:
        return Parts(first, first, reference=reference, writer_rank=0, reader_rank=1), forcing
    return Parts(first, combined[1].name, reference=reference), forcing


def _parts_behind(
    request: PlanRequest, deployment: Deployment, capabilities: tuple[Capabilities, ...]
) -> tuple[Parts, Forcing]:
    """What lies behind a gateway, or in two legs: probes go through all of it, and the engines drop their caches."""
    entries = deployment.with_role(Role.GATEWAY) or deployment.with_role(Role.DECODE)
    prefill, decode = deployment.with_role(Role.PREFILL), deployment.with_role(Role.DECODE)
    combined = deployment.with_role(Role.COMBINED)
    if not (entries and (prefill or combined)):
        raise PlanError(
            "no endpoint has the role combined, and a prefill/decode deployment needs a prefill engine and a gateway "
            "or decode engine; give each endpoint its role"
        )
    entry = entries[0].name
    forcing = choose_forcing(request, 0, can_drop(capabilities, entry))
    if forcing.two_readers:
        raise PlanError(
            f"forcing {forcing.value} needs combined endpoints; use reset_local for prefill and decode engines"
        )
    # Of several prefill engines behind a gateway nobody knows which one holds the prompt.
    alone = prefill[0].name if len(prefill) == 1 or route_of(deployment) is Route.TWO_LEG else None
    # The same requests past the gateway: in two legs, or to the one engine there is.
    ends = combined or (decode if alone is not None else ())
    past = request.two_leg and route_of(deployment) is Route.GATEWAY and bool(ends)
    return (
        Parts(
            entry,
            entry,
            prefill=alone,
            two_leg=ends[0].name if past else None,
            reference=_reference(request, deployment),
        ),
        forcing,
    )


def _reference(request: PlanRequest, deployment: Deployment) -> str | None:
    given = deployment.with_role(Role.REFERENCE)
    return given[0].name if given and Arm.REFERENCE in request.arms else None


def route_of(deployment: Deployment) -> Route:
    """How requests reach the engines of a deployment."""
    combined, gateways = deployment.with_role(Role.COMBINED), deployment.with_role(Role.GATEWAY)
    others = (*combined[1:], *deployment.with_role(Role.PREFILL), *deployment.with_role(Role.DECODE))
    # Which of several engines a gateway will choose is not known, so then each is asked by itself.
    if combined and (others or not gateways):
        return Route.DIRECT
    return Route.GATEWAY if deployment.with_role(Role.GATEWAY) else Route.TWO_LEG


def can_drop(capabilities: tuple[Capabilities, ...], endpoint: str) -> bool:
    """Whether an endpoint was found able to drop its own cache."""
    return any(each.endpoint == endpoint and each.reset_local for each in capabilities)


def obstacles(
    request: PlanRequest, forcing: Forcing, reader: str, capabilities: tuple[Capabilities, ...]
) -> tuple[Problem, ...]:
    """What forbids the run: a hit that has to be forced and cannot be."""
    if forcing is Forcing.RESET_LOCAL and Arm.EXTERNAL in request.arms and not can_drop(capabilities, reader):
        told = next((each.details for each in capabilities if each.endpoint == reader), ())
        why = next((detail for detail in told if "reset" in detail), "no reset of the local cache was found")
        return (Problem(Reason.RESET_UNAVAILABLE, f"{reader}: {why}"),)
    return ()
