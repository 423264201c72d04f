"""Groups that are sent to narrow a failure down: another length, or the same length with less of it loaded."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from kvgate.domain.plan import ArmStep, GroupPlan, PairKind, PairPlan, PartSize, Plan, Purpose
from kvgate.domain.planning import PromptSource, fitting
from kvgate.domain.probe import Arm, Part, Path
from kvgate.domain.prompt import TooShortError
from kvgate.domain.recipe import pairs_of

# Prompts are made for these lengths at most, one after the other, until the shortest one is found that there is.
LONGEST_LOOK = 64


@dataclass(frozen=True, slots=True)
class Model:
    """What the groups of a search have in common.

    ``group`` is a planned group of the deployment: the longest, which has room for every arm.
    """

    plan: Plan
    group: GroupPlan
    prompts: PromptSource

    @property
    def suffix(self) -> int:
        """Tokens after the last reusable granule, without what prefill leaves off and speculation loses."""
        geometry = self.plan.geometry
        reused = self.group.expected_external + geometry.speculation_granules * geometry.granule
        return max(1, min(geometry.granule, self.group.length - reused - geometry.prefill_drops))

    def length_of(self, granules: int) -> int:
        """The length that is sent where so many granules are to be reused."""
        return self.plan.geometry.length_of_hit(granules, self.suffix)

    def shortest(self) -> int:
        """The fewest granules of which there is a prompt that an external pool can serve."""
        geometry = self.plan.geometry
        for granules in range(1, LONGEST_LOOK + geometry.hit_floor // geometry.granule):
            length = self.length_of(granules)
            if geometry.external_hit(length) == granules * geometry.granule and self._fits(length):
                return granules
        return max(1, self.group.expected_external // geometry.granule)

    def _fits(self, length: int) -> bool:
        try:
            self.prompts.make((self.group.family, self.group.language), f"fits{length}", length)
        except TooShortError:
            return False
        return True

    def _named(self, name: str, length: int, purpose: Purpose) -> GroupPlan:
        geometry, model = self.plan.geometry, self.group
        prompt = self.prompts.make((model.family, model.language), name, length)
        return replace(
            model,
            id=name,
            tier=length,
            length=length,
            purpose=purpose,
            aligned=geometry.is_aligned(length),
            expected_local=geometry.local_hit(length),
            expected_external=geometry.external_hit(length),
            nonce=prompt.nonce,
            asked=prompt.asked,
            prompt_sha256=prompt.sha256,
        )

    def of_length(self, granules: int, number: int) -> GroupPlan:
        """A full group of another length, with a prompt of its own."""
        length = self.length_of(granules)
        made = self._named(f"n{length}-{number}", length, Purpose.TIER)
        steps, sizes = fitting(self.plan.geometry, self.group.steps, length)
        return replace(made, steps=steps, pairs=pairs_of(steps), sizes=sizes)

    def of_load(self, length: int, granules: int, number: int) -> GroupPlan:
        """A group of the same length of which only so many granules are loaded, and the rest is computed.

        Only a beginning of the prompt was stored, under a salt of its own for each arm, since whoever answers the whole
        prompt stores the rest of it. So what changes from group to group is how much is loaded, and nothing else.
        """
        geometry = self.plan.geometry
        made = self._named(f"k{granules}of{length}-{number}", length, Purpose.BLOCK)
        steps = tuple(_load_steps(self.group, granules > 1))
        hit = granules * geometry.granule
        return replace(
            made,
            aligned=False,
            expected_local=hit,
            expected_external=hit,
            steps=steps,
            pairs=_load_pairs(granules > 1),
            sizes=tuple(self._beginnings(granules, granules > 1)),
        )

    def _beginnings(self, granules: int, alone: bool) -> Iterator[PartSize]:
        for part, count in ((Part.STORED, granules), *(((Part.HEAD, granules - 1),) if alone else ())):
            # What it holds beyond the last whole granule is stored in no block.
            hit = count * self.plan.geometry.granule
            yield PartSize(part, self.plan.geometry.length_of_hit(count, 1), hit, hit)


def can_shrink(group: GroupPlan, plan: Plan) -> str:
    """Why less of a group cannot be loaded; empty if it can."""
    if not plan.salts_honoured:
        return "salts are ignored, so a prompt cannot be stored in part only (deployment.salts)"
    if group.step(Arm.LOCAL) is None or group.step(Arm.LOCAL_REPEAT) is None:
        return "there is no local hit that a shorter load could be held against (local and local_repeat of gate.arms)"
    if group.step(Arm.EXTERNAL) is None:
        return "nothing is loaded (external of gate.arms)"
    return ""


def _load_steps(model: GroupPlan, alone: bool) -> Iterator[ArmStep]:
    """Local hits, loads, and where ``alone`` the last granule loaded behind the others, each of what was stored for it.

    The endpoints are those of the group that is narrowed down; where one engine plays both parts, it has to forget.
    """
    writes, reads = model.step(Arm.COLD), model.step(Arm.LOCAL)
    loads = model.step(Arm.EXTERNAL)
    if writes is None or reads is None or loads is None:
        return
    drop = loads.drop_local
    reader = partial(ArmStep, endpoint=reads.endpoint, rank=reads.rank)
    writer = partial(ArmStep, endpoint=writes.endpoint, rank=writes.rank, path=Path.COLD, part=Part.STORED)
    stored = partial(reader, path=Path.COLD, part=Part.STORED)
    yield stored(arm=Arm.STORE_LOCAL, salt="ka")
    yield reader(arm=Arm.LOCAL, path=Path.LOCAL, salt="ka")
    yield stored(arm=Arm.STORE_LOCAL_REPEAT, salt="kb")
    yield reader(arm=Arm.LOCAL_REPEAT, path=Path.LOCAL, salt="kb")
    yield writer(arm=Arm.STORE_EXTERNAL, salt="kc")
    yield reader(arm=Arm.EXTERNAL, path=Path.EXTERNAL, salt="kc", drop_local=drop, settle=True)
    yield writer(arm=Arm.STORE_EXTERNAL_REPEAT, salt="kd")
    yield reader(arm=Arm.EXTERNAL_REPEAT, path=Path.EXTERNAL, salt="kd", drop_local=drop, settle=True)
    if alone:
        yield writer(arm=Arm.STORE_MIXED, salt="ke")
        yield reader(arm=Arm.MIXED_HEAD, path=Path.EXTERNAL, salt="ke", drop_local=drop, settle=True, part=Part.HEAD)
        yield reader(arm=Arm.MIXED, path=Path.MIXED, salt="ke")


def _load_pairs(alone: bool) -> tuple[PairPlan, ...]:
    """Loads against local hits of as many granules. The last granule alone speaks beside the group's verdict."""
    local = (Arm.LOCAL, Arm.LOCAL_REPEAT)
    both = (Arm.EXTERNAL, Arm.EXTERNAL_REPEAT)
    pairs = (
        PairPlan(PairKind.EXTERNAL_VS_LOCAL, Arm.LOCAL, Arm.EXTERNAL, (Arm.EXTERNAL_REPEAT,), local),
        PairPlan(PairKind.EXTERNAL_VS_LOCAL, Arm.LOCAL, Arm.EXTERNAL_REPEAT, both, local),
    )
    mixed = PairPlan(PairKind.MIXED_VS_LOCAL, Arm.LOCAL, Arm.MIXED, (Arm.MIXED,), local, required=False)
    return (*pairs, mixed) if alone else pairs
