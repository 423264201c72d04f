"""From what was asked and what was found out to a plan: lengths, groups, arms, obstacles and notes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvgate.domain.deployment import Capabilities, Deployment, Role
from kvgate.domain.geometry import SUFFIX_TOKENS, Geometry
from kvgate.domain.plan import (
    ArmStep,
    Budget,
    Forcing,
    GroupPlan,
    Limits,
    NotApplicable,
    PairPlan,
    Plan,
    Purpose,
    Route,
)
from kvgate.domain.policy import Grade, Policy
from kvgate.domain.probe import Arm
from kvgate.domain.prompt import Family, Lexicon, Prompt, TooShortError, compose
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.recipe import Parts, arm_steps, pairs_of, short_control_pairs, short_control_steps, what_is_missing

# How much longer each replacement waits for puts than the group before it.
PATIENCE = 3.0
MOST_PATIENCE = 4


class PlanError(ValueError):
    """What was asked for cannot be planned; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the configuration asks for. ``families`` are (family, language) pairs taken in turn."""

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


@dataclass(frozen=True, slots=True)
class PromptSource:
    """Makes prompts from families and lexicons, both by (family, language)."""

    families: Mapping[tuple[str, str], Family]
    lexicons: Mapping[tuple[str, str], Lexicon]
    seed: int
    granule: int

    def make(self, key: tuple[str, str], group: str, length: int) -> Prompt:
        """The prompt of a group. Raises TooShortError."""
        return compose(self.families[key], self.lexicons[key], self.seed, group, length, self.granule)

    def for_group(self, group: GroupPlan) -> Prompt:
        """The prompt of a planned group, made again."""
        return self.make((group.family, group.language), group.id, group.length)


def make_plan(
    request: PlanRequest,
    deployment: Deployment,
    geometry: Geometry,
    capabilities: tuple[Capabilities, ...],
    prompts: PromptSource,
    by_source_grade: Grade,
    rules: tuple[Policy, Limits, Budget],
) -> Plan:
    """The plan. Raises PlanError where the request contradicts itself or the deployment."""
    policy, limits, budget = rules
    parts, forcing = _parts(request, deployment)
    writer, reader = parts.writer, parts.reader
    steps = arm_steps(forcing, parts, request.arms, request.salts_honoured, _can_drop(capabilities, reader))
    builder = _GroupBuilder(request, geometry, prompts, steps, pairs_of(steps))
    # What decode computes of a transferred prompt is its last token; then prefill alone must not compute more.
    suffix = SUFFIX_TOKENS if parts.prefill is None else 1
    groups, not_applicable, notes = _tier_groups(request, geometry, builder, suffix)
    if request.boundaries and groups:
        groups += _boundary_groups(request, geometry, builder, groups)
    # The control must stay cold, so it is no use where the engine's own cache may serve it.
    cold = [each.tier for each in not_applicable if geometry.local_hit(each.tier) == 0]
    if request.short_control and cold:
        groups += builder.short_control(max(cold), writer)
    plan = Plan(
        seed=request.seed,
        deployment=deployment,
        geometry=geometry,
        capabilities=capabilities,
        forcing=forcing,
        salts_honoured=request.salts_honoured,
        by_source_grade=by_source_grade,
        policy=policy,
        limits=limits,
        budget=budget,
        max_tokens=request.max_tokens,
        groups=tuple(groups),
        not_applicable=tuple(not_applicable),
        obstacles=_obstacles(request, forcing, reader, capabilities),
        notes=(*notes, *what_is_missing(steps), *_evidence_notes(policy, by_source_grade), *_route_notes(deployment)),
        route=_route(deployment),
    )
    if plan.computed_tokens() > budget.computed_tokens:
        raise PlanError(
            f"the plan makes the engine compute {plan.computed_tokens()} prompt tokens, budget.computed_tokens is "
            f"{budget.computed_tokens}; raise it, or ask for fewer tiers or groups"
        )
    return plan


def choose_forcing(wanted: Forcing | None, combined: int) -> Forcing:
    """A second reader of the pool is the default where there is one: nothing has to be dropped then."""
    if wanted is not None:
        return wanted
    return Forcing.OTHER_INSTANCE if combined >= 2 else Forcing.RESET_LOCAL


def replacement_group(group: GroupPlan, number: int, prompts: PromptSource) -> GroupPlan:
    """The same group with a new prompt, to stand in for a void one."""
    name = f"{group.id.split('+')[0]}+{number}"
    prompt = prompts.make((group.family, group.language), name, group.length)
    return replace(
        group,
        id=name,
        nonce=prompt.nonce,
        asked=prompt.asked,
        prompt_sha256=prompt.sha256,
        patience=PATIENCE ** min(number, MOST_PATIENCE),
    )


def _parts(request: PlanRequest, deployment: Deployment) -> tuple[Parts, Forcing]:
    combined = deployment.with_role(Role.COMBINED)
    if not combined:
        return _parts_behind(request, deployment)
    forcing = choose_forcing(request.forcing, len(combined))
    if forcing is Forcing.RESET_LOCAL:
        return Parts(combined[0].name, combined[0].name), forcing
    if len(combined) < 2:
        raise PlanError(
            f"forcing other_instance needs two combined endpoints on one pool, {deployment.name} has one; add the "
            "second, or use forcing: reset_local"
        )
    if not request.salts_honoured and {Arm.LOCAL, Arm.LOCAL_REPEAT} & request.arms:
        raise PlanError(
            "forcing other_instance with salts: ignored leaves the reader no local baseline; use forcing: "
            "reset_local, or leave local and local_repeat out of gate.arms"
        )
    return Parts(combined[0].name, combined[1].name), forcing


def _parts_behind(request: PlanRequest, deployment: Deployment) -> tuple[Parts, Forcing]:
    """A prefill/decode deployment: every probe goes through both sides, and the prefill engines drop their caches."""
    entries = deployment.with_role(Role.GATEWAY) or deployment.with_role(Role.DECODE)
    prefill = deployment.with_role(Role.PREFILL)
    if not (entries and prefill):
        raise PlanError(
            "no endpoint has the role combined, and a prefill/decode deployment needs a prefill engine and a gateway "
            "or decode engine; give each endpoint its role"
        )
    if request.forcing is Forcing.OTHER_INSTANCE:
        raise PlanError("forcing other_instance needs two combined endpoints; use reset_local for prefill and decode")
    # Of several prefill engines behind a gateway nobody knows which one holds the prompt.
    alone = prefill[0].name if len(prefill) == 1 or _route(deployment) is Route.TWO_LEG else None
    return Parts(entries[0].name, entries[0].name, alone), Forcing.RESET_LOCAL


def _route(deployment: Deployment) -> Route:
    if deployment.with_role(Role.COMBINED):
        return Route.DIRECT
    return Route.GATEWAY if deployment.with_role(Role.GATEWAY) else Route.TWO_LEG


def _can_drop(capabilities: tuple[Capabilities, ...], endpoint: str) -> bool:
    return any(each.endpoint == endpoint and each.reset_local for each in capabilities)


def _obstacles(
    request: PlanRequest, forcing: Forcing, reader: str, capabilities: tuple[Capabilities, ...]
) -> tuple[Problem, ...]:
    if forcing is Forcing.RESET_LOCAL and Arm.EXTERNAL in request.arms and not _can_drop(capabilities, reader):
        told = next((each.details for each in capabilities if each.endpoint == reader), ())
        why = next((detail for detail in told if "reset" in detail), "no reset of the local cache was found")
        return (Problem(Reason.RESET_UNAVAILABLE, f"{reader}: {why}"),)
    return ()


def _evidence_notes(policy: Policy, by_source_grade: Grade) -> tuple[str, ...]:
    if policy.evidence is Grade.ARRIVED and by_source_grade is not Grade.ARRIVED:
        return (
            "this engine's counters show scheduling, not arrival, and the policy asks for arrival: no PASS is possible "
            "unless policy.evidence is scheduled",
        )
    return ()


def _route_notes(deployment: Deployment) -> tuple[str, ...]:
    if _route(deployment) is not Route.GATEWAY or len(deployment.with_role(Role.PREFILL)) == 1:
        return ()
    return (
        "several prefill engines stand behind the gateway, so none can be asked alone: a transfer that is wrong in the "
        "same way every time is not seen",
    )


class _GroupBuilder:
    """Makes group plans; remembers what they have in common."""

    def __init__(
        self,
        request: PlanRequest,
        geometry: Geometry,
        prompts: PromptSource,
        steps: tuple[ArmStep, ...],
        pairs: tuple[PairPlan, ...],
    ) -> None:
        self._request = request
        self._geometry = geometry
        self._prompts = prompts
        self._steps = steps
        self._pairs = pairs
        self._count = 0

    def group(self, name: str, tier: int, length: int, purpose: Purpose) -> GroupPlan:
        return self._make(name, tier, length, purpose, self._steps, self._pairs)

    def short_control(self, length: int, endpoint: str) -> list[GroupPlan]:
        steps = short_control_steps(endpoint, self._request.salts_honoured)
        try:
            return [self._make(f"short{length}", length, length, Purpose.SHORT_CONTROL, steps, short_control_pairs())]
        except PlanError:
            # A tier so short that no prompt fits it is not applicable either way; there is nothing to send.
            return []

    def _make(
        self,
        name: str,
        tier: int,
        length: int,
        purpose: Purpose,
        steps: tuple[ArmStep, ...],
        pairs: tuple[PairPlan, ...],
    ) -> GroupPlan:
        key = self._request.families[self._count % len(self._request.families)]
        try:
            prompt = self._prompts.make(key, name, length)
        except TooShortError as error:
            raise PlanError(f"tier {tier}: {error}; ask for longer tiers or family prose") from None
        self._count += 1
        geometry = self._geometry
        return GroupPlan(
            id=name,
            tier=tier,
            length=length,
            purpose=purpose,
            family=key[0],
            language=key[1],
            aligned=geometry.is_aligned(length),
            expected_local=geometry.local_hit(length),
            expected_external=geometry.external_hit(length),
            nonce=prompt.nonce,
            asked=prompt.asked,
            prompt_sha256=prompt.sha256,
            steps=steps,
            pairs=pairs,
        )


def _tier_groups(
    request: PlanRequest, geometry: Geometry, builder: _GroupBuilder, suffix: int
) -> tuple[list[GroupPlan], list[NotApplicable], list[str]]:
    groups: list[GroupPlan] = []
    not_applicable: list[NotApplicable] = []
    notes: list[str] = []
    limit = geometry.max_model_len - request.max_tokens
    for tier in sorted(set(request.tiers)):
        if tier > limit:
            raise PlanError(
                f"tier {tier} plus {request.max_tokens} output tokens is above the deployment's maximum length "
                f"{geometry.max_model_len}; take it out of gate.tiers (the longest possible is {limit})"
            )
        length = tier
        if request.aligned:
            length = geometry.aligned_length(tier, limit, suffix) or min(geometry.reusable_length(tier, suffix), limit)
        # A tier may be moved up by a suffix (16384 to 16403), never from below the floor to above it.
        if tier + suffix < geometry.hit_floor or geometry.external_hit(length) == 0:
            detail = f"no external hit is possible below {geometry.hit_floor} tokens"
            not_applicable.append(NotApplicable(tier, geometry.hit_floor, detail))
            continue
        if request.aligned and not geometry.is_aligned(length):
            notes.append(
                f"tier {tier}: no aligned length is near (chunk {geometry.chunk}, granule {geometry.granule}); "
                f"{length} tokens are sent, and cold runs are compared with tolerance"
            )
        numbers = range(1, request.groups_per_tier + 1)
        groups += [builder.group(f"t{tier}-{number}", tier, length, Purpose.TIER) for number in numbers]
    return groups, not_applicable, notes


def _boundary_groups(
    request: PlanRequest, geometry: Geometry, builder: _GroupBuilder, groups: list[GroupPlan]
) -> list[GroupPlan]:
    lengths = {group.length for group in groups}
    limit = min(geometry.max_model_len - request.max_tokens, max(lengths) + 1)
    edges = geometry.boundary_lengths(min(lengths), limit)
    found: list[GroupPlan] = []
    for length in edges:
        if geometry.external_hit(length) > 0:
            try:
                found.append(builder.group(f"b{length}", length, length, Purpose.BOUNDARY))
            except PlanError:
                # An edge that nobody asked for and no prompt fits is left out.
                continue
    return found
