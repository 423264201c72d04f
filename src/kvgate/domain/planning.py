"""From what was asked and what was found out to a plan: lengths, groups, arms, obstacles and notes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from kvgate.domain.deployment import Capabilities, Deployment
from kvgate.domain.geometry import SUFFIX_TOKENS, TAIL_TOKENS, Geometry, branch_tail
from kvgate.domain.outage import check_outage, outage_pairs, outage_steps
from kvgate.domain.parts import PlanError, PlanRequest, can_drop, flood_tokens, obstacles, parts_of, route_of
from kvgate.domain.plan import (
    ArmStep,
    Budget,
    Forcing,
    GroupPlan,
    Limits,
    NotApplicable,
    PairPlan,
    PartSize,
    Plan,
    Purpose,
)
from kvgate.domain.plan_notes import evidence_notes, route_notes, sentinel_notes, shape_notes
from kvgate.domain.policy import Grade, Policy
from kvgate.domain.power import groups_for, rounds_for
from kvgate.domain.probe import Arm, Part, Path
from kvgate.domain.prompt import Family, Ids, Lexicon, Prompt, TooShortError, compose, continued, other_tail
from kvgate.domain.recipe import (
    OWN,
    Parts,
    arm_steps,
    continuation_steps,
    pairs_of,
    short_control_pairs,
    short_control_steps,
    what_is_missing,
)
from kvgate.domain.sentinels import asked_in_all

# Tokens by which an answer runs past the end of a granule (the last one's KV is not yet written).
CROSSING = 2
# How much longer each replacement waits for puts than the group before it.
PATIENCE = 3.0
# How long a prompt is that is computed again and again, or as long as a tier: the shortest that a prompt of the family
# fits, since it costs engine time each time.
SENTINEL_TOKENS = (256, 512, 1024)
MOST_PATIENCE = 4


class Prompts(Protocol):
    """Where a run's prompts come from: they are made (``PromptSource``), or were kept."""

    def make(self, key: tuple[str, str], group: str, length: int) -> Prompt:
        """The prompt of a group. Raises TooShortError."""

    def for_group(self, group: GroupPlan) -> Prompt:
        """The prompt of a planned group, made again."""

    def part_of(self, group: GroupPlan, whole: Ids, part: Part, answered: tuple[int, ...] | None) -> Ids | None:
        """One of a planned group's prompts as token IDs; None if it cannot be made (yet)."""


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

    def part_of(self, group: GroupPlan, whole: Ids, part: Part, answered: tuple[int, ...] | None) -> Ids | None:
        """One of a planned group's prompts as token IDs; None if it cannot be made (yet).

        ``answered`` are the token IDs that answered the whole prompt, None as long as nothing did.
        """
        size = group.size(part)
        if part is Part.WHOLE or size is None:
            return whole if part is Part.WHOLE else None
        if part in (Part.HEAD, Part.STORED):
            return whole[: size.length]
        key = (group.family, group.language)
        family, lexicon = self.families[key], self.lexicons[key]
        if part is Part.BRANCH:
            _, tail = branch_tail(self.granule)
            return other_tail(family, lexicon, f"{self.seed}/{group.id}", whole[: size.length - tail], tail)
        if answered is None or len(whole) + len(answered) >= size.length:
            return None
        return continued(family, lexicon, f"{self.seed}/{group.id}", (whole, answered), size.length)


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
    parts, forcing = parts_of(request, deployment, capabilities)
    check_outage(request, deployment, forcing)
    steps = arm_steps(forcing, parts, request.arms, request.salts_honoured, can_drop(capabilities, parts.reader))
    builder = _GroupBuilder(request, geometry, prompts, steps)
    groups, not_applicable, notes = _all_groups(request, geometry, builder, parts, forcing)
    sentinels = builder.sentinels(parts)
    sent = tuple(step for group in groups for step in group.steps) or steps
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
        obstacles=obstacles(request, forcing, parts.reader, capabilities),
        notes=(
            *notes,
            *what_is_missing(sent, request.arms),
            *evidence_notes(policy, by_source_grade),
            *sentinel_notes(request, sentinels),
            *route_notes(request, deployment),
            *shape_notes(geometry, parts.prefill),
        ),
        route=route_of(deployment),
        flood_tokens=flood_tokens(request, forcing),
        canaries=builder.canaries(parts.reader),
        sentinels=sentinels,
        sentinel_asks=asked_in_all(groups),
        churn=builder.churn(parts.reader),
        cancel_share=request.pressure.cancel_share,
        pause_s=request.pressure.pause_s,
        between=request.pressure.between,
        rounds=rounds_for(request.groups_per_tier, request.more_groups),
    )
    if request.forcing is None and 2 * plan.flooded_tokens() > budget.computed_tokens:
        # Nobody asked for floods. As if the capacity were not known, the next way is taken.
        unflooded = replace(request, capacity=None)
        return make_plan(unflooded, deployment, geometry, capabilities, prompts, by_source_grade, rules)
    return _within_budget(_strong_enough(plan, request))


def _strong_enough(plan: Plan, request: PlanRequest) -> Plan:
    """The plan, if a PASS of it could exclude what the policy asks for. Raises PlanError."""
    most = plan.policy.max_fault_rate
    if most is None or request.groups_per_tier >= groups_for(most):
        return plan
    raise PlanError(
        f"policy.max_fault_rate {most:g} needs {groups_for(most)} groups per tier, gate.groups_per_tier is "
        f"{request.groups_per_tier}; raise it, or ask for less"
    )


def _within_budget(plan: Plan) -> Plan:
    """The plan, if it keeps to its own budget. Raises PlanError."""
    computed, allowed = plan.computed_tokens(), plan.budget.computed_tokens
    if computed <= allowed:
        return plan
    raise PlanError(
        f"the plan makes the engine compute {computed} prompt tokens, budget.computed_tokens is {allowed}; raise it, "
        "or ask for fewer tiers or groups"
    )


def replacement_group(group: GroupPlan, number: int, prompts: Prompts) -> GroupPlan:
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


def fitting(
    geometry: Geometry, steps: tuple[ArmStep, ...], length: int
) -> tuple[tuple[ArmStep, ...], tuple[PartSize, ...]]:
    """Those steps that a prompt of ``length`` tokens has room for, and the sizes of the prompts beside the whole one
    that they send."""
    sizes = tuple(_sizes(geometry, steps, length))
    parts = {size.part for size in sizes}
    lacking = {step.arm for step in steps if step.part not in (Part.WHOLE, *parts)}
    if Arm.MIXED_HEAD in lacking:
        lacking |= {Arm.MIXED, Arm.MIXED_POPULATE}
    return tuple(step for step in steps if step.arm not in lacking), sizes


def _sizes(geometry: Geometry, steps: tuple[ArmStep, ...], length: int) -> Iterator[PartSize]:
    sent = {step.part for step in steps}
    for part, suffix in ((Part.HEAD, SUFFIX_TOKENS), (Part.BRANCH, sum(branch_tail(geometry.granule)))):
        found = geometry.middle_length(length, suffix) if part in sent else None
        if found is not None:
            hit = geometry.external_hit(found)
            yield PartSize(part, found, hit, hit)


class _GroupBuilder:
    """Makes group plans; remembers what they have in common."""

    def __init__(
        self,
        request: PlanRequest,
        geometry: Geometry,
        prompts: PromptSource,
        steps: tuple[ArmStep, ...],
    ) -> None:
        self._request = request
        self._geometry = geometry
        self._prompts = prompts
        self._steps = steps
        self._count = 0

    def group(self, name: str, tier: int, length: int, purpose: Purpose) -> GroupPlan:
        steps, sizes = fitting(self._geometry, self._steps, length)
        return replace(self._make(name, tier, length, purpose, steps, pairs_of(steps)), sizes=sizes)

    def tier_groups(self, tier: int, length: int) -> list[GroupPlan]:
        """The groups of a tier, which take the levels of pressure in turn."""
        levels = self._request.pressure.levels
        names = [f"t{tier}-{number}" for number in range(1, self._request.groups_per_tier + 1)]
        made = [self.group(name, tier, length, Purpose.TIER) for name in names]
        if not levels:
            return made
        return [replace(group, level=levels[place % len(levels)]) for place, group in enumerate(made)]

    def continuation(self, near: GroupPlan, steps: tuple[ArmStep, ...]) -> list[GroupPlan]:
        """A group whose answer crosses the end of a granule, so that a granule is reused that decode wrote in part."""
        geometry, answered = self._geometry, self._request.max_tokens
        granule = geometry.granule
        # The answer ends just past a granule and the new tail within the next, so that whoever reads it puts no more.
        whole = -(-(near.length + answered) // granule) * granule
        length = whole + CROSSING - answered
        on = whole + CROSSING + max(1, min(TAIL_TOKENS, granule - CROSSING - 1))
        hit = geometry.local_hit(on)
        if not steps or on + answered > geometry.max_model_len or hit <= length:
            return []
        name = f"c{near.tier}"
        made = self._make(name, near.tier, length, Purpose.CONTINUATION, steps, pairs_of(steps))
        return [replace(made, sizes=(PartSize(Part.CONTINUED, on, hit, hit),))]

    def outage(self, near: GroupPlan, endpoint: str) -> GroupPlan:
        name = f"o{near.tier}"
        return self._make(name, near.tier, near.length, Purpose.OUTAGE, outage_steps(endpoint), outage_pairs())

    def canaries(self, endpoint: str) -> tuple[GroupPlan, ...]:
        """Prompts of the shortest tier's length, each with a nonce of its own, to be sent at the same time."""
        tier = min(self._request.tiers)
        step = ArmStep(Arm.CANARY, endpoint, Path.COLD, OWN if self._request.salts_honoured else None)
        numbers = range(1, self._request.canaries + 1)
        return tuple(self._make(f"canary{number}", tier, tier, Purpose.CANARY, (step,), ()) for number in numbers)

    def churn(self, endpoint: str) -> tuple[GroupPlan, ...]:
        """Prompts to be in flight beside the groups' requests. Raises PlanError where their tokens cannot be told."""
        pressure, limit = self._request.pressure, self._geometry.max_model_len - self._request.max_tokens
        if pressure.prompts and not self._request.salts_honoured:
            raise PlanError("gate.pressure: only a store that honours salts tells what a request reused; leave it out")
        length = pressure.tokens or min(self._request.tiers)
        if len(pressure.levels) > self._request.groups_per_tier:
            raise PlanError(
                f"gate.pressure.concurrency has {len(pressure.levels)} levels, gate.groups_per_tier is "
                f"{self._request.groups_per_tier}; each level needs a group of its own in every tier"
            )
        if pressure.prompts and length > limit:
            raise PlanError(f"gate.pressure.tokens {length} is above what the deployment takes; {limit} is the most")
        step = ArmStep(Arm.CHURN, endpoint, Path.COLD, OWN)
        numbers = range(1, pressure.prompts + 1)
        try:
            return tuple(self._make(f"churn{number}", length, length, Purpose.CHURN, (step,), ()) for number in numbers)
        except PlanError as error:
            raise PlanError(str(error).replace(f"tier {length}:", f"gate.pressure.tokens {length}:", 1)) from None

    def sentinels(self, parts: Parts) -> tuple[GroupPlan, ...]:
        """A short prompt for each engine and rank, to be computed afresh again and again; none without salts."""
        if not self._request.sentinel or not self._request.salts_honoured:
            return ()
        found: list[GroupPlan] = []
        longest = max(self._request.tiers)
        lengths = [length for length in sorted({*SENTINEL_TOKENS, *self._request.tiers}) if length <= longest]
        for endpoint, rank in dict.fromkeys(((parts.writer, parts.writer_rank), (parts.reader, parts.reader_rank))):
            step = ArmStep(Arm.SENTINEL, endpoint, Path.COLD, OWN, rank=rank)
            name = f"sentinel-{endpoint}" if rank is None else f"sentinel-{endpoint}-rank{rank}"
            for length in lengths:
                try:
                    found.append(self._make(name, length, length, Purpose.SENTINEL, (step,), ()))
                except PlanError:
                    # Where a granule is longer, no prompt of that family is so short.
                    continue
                break
        return tuple(found)

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
            level=max(self._request.pressure.levels, default=0) if self._request.pressure.prompts else None,
        )


def _all_groups(
    request: PlanRequest, geometry: Geometry, builder: _GroupBuilder, parts: Parts, forcing: Forcing
) -> tuple[list[GroupPlan], list[NotApplicable], list[str]]:
    # What decode computes of a transferred prompt is its last token; prefill alone must not compute more.
    suffix = SUFFIX_TOKENS if parts.prefill is None else 1
    groups, not_applicable, notes = _tier_groups(request, geometry, builder, suffix)
    if request.boundaries and groups:
        groups += _boundary_groups(request, geometry, builder, groups)
    if Arm.CONTINUATION in request.arms and groups:
        groups += builder.continuation(groups[0], continuation_steps(parts, request.salts_honoured, forcing.drops))
    # The control must stay cold, so it is no use where the engine's own cache may serve it.
    cold = [each.tier for each in not_applicable if geometry.local_hit(each.tier) == 0]
    if request.short_control and cold:
        groups += builder.short_control(max(cold), parts.writer)
    if request.outage and groups:
        groups.append(builder.outage(groups[0], parts.writer))
    return groups, not_applicable, notes


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
        groups += builder.tier_groups(tier, length)
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
