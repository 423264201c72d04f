"""One group of a run, exactly again: the same prompts in the same order, under new salts or under those of then."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kvgate.domain.deployment import Deployment
from kvgate.domain.divergence import compare
from kvgate.domain.history import CacheDropped, CountersRead, Entry, HookRan, LogRead, ProbeAnswered, ProbeSent
from kvgate.domain.observation import Observation
from kvgate.domain.plan import ArmStep, GroupPlan, Plan, Purpose
from kvgate.domain.policy import PolicyName
from kvgate.domain.probe import Arm, Part, Path
from kvgate.domain.prompt import Ids, Prompt, digest
from kvgate.domain.recipe import pairs_of, short_control_pairs
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import GroupVerdict, RunVerdict
from kvgate.domain.verdict import Verdict

# Arms that read what an earlier run left, and those whose recorded answers they are held against.
_AUDITED = (Arm.EXTERNAL, Arm.EXTERNAL_REPEAT, Arm.THIRD)
_RECALLED = (Arm.COLD, Arm.COLD_REPEAT, Arm.LOCAL, Arm.LOCAL_REPEAT)
# What is added to a group's name where its prompt is computed anew.
_ANEW = "-anew"


class NothingToReplayError(ValueError):
    """The record holds no such group, or not what its replay needs; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Everything that one group takes. ``plan`` holds that group alone.

    ``prompts`` are token IDs by part; ``entries`` what was said and heard of the group then, ``differed`` what did not
    hold, in words.
    """

    run_id: str
    plan: Plan
    prompts: tuple[tuple[Part, tuple[int, ...]], ...]
    entries: tuple[Entry, ...]
    differed: tuple[str, ...]

    @property
    def group(self) -> GroupPlan:
        """The group."""
        return self.plan.groups[0]


def group_to_replay(plan: Plan, ruling: RunVerdict, wanted: str | None) -> GroupVerdict:
    """The group asked for; else the shortest that fails. Raises NothingToReplayError."""
    if wanted is not None:
        named = next((group for group in ruling.groups if group.id == wanted), None)
        if named is None:
            known = ", ".join(group.id for group in ruling.groups) or "none"
            raise NothingToReplayError(f"there is no group {wanted!r}; the run has {known}")
        return named
    strict = plan.policy.name is PolicyName.STRICT
    failing = [group for group in ruling.groups if (group.strict if strict else group.verdict) is Verdict.FAIL]
    if not failing:
        raise NothingToReplayError("no group of the run fails; name the one to replay with --group")
    return min(failing, key=lambda group: (group.length, group.expected_external))


def what_differed(group: GroupVerdict) -> tuple[str, ...]:
    """One sentence for each pair that does not hold."""
    return tuple(
        f"{pair.kind.value}: {pair.subject.value} against {pair.baseline.value}: {pair.problem.reason.value}: "
        f"{pair.problem.detail}"
        for pair in group.pairs
        if pair.verdict is not Verdict.PASS and pair.problem is not None
    )


def alone(plan: Plan, group: GroupPlan) -> Plan:
    """A plan of that group alone. What only several groups could show is not asked of it."""
    return replace(
        plan,
        groups=(group,),
        canaries=(),
        sentinels=(),
        not_applicable=(),
        obstacles=(),
        rounds=(),
        policy=replace(plan.policy, max_fault_rate=None, accept_unproven_alignment=True),
    )


def entries_of(group: str, entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """What was said and heard of one group, in order."""
    found: list[Entry] = []
    probes: set[str] = set()
    for entry in entries:
        if isinstance(entry, ProbeSent):
            mine = entry.probe.group == group
            probes |= {entry.probe.id} if mine else set()
        elif isinstance(entry, ProbeAnswered):
            mine = entry.probe_id in probes
        else:
            mine = isinstance(entry, CacheDropped | CountersRead | HookRan | LogRead) and entry.group == group
        found += [entry] if mine else []
    return tuple(found)


def re_pointed(plan: Plan, deployment: Deployment) -> Plan:
    """The same plan for another deployment: each endpoint's part is played by the one of its role and place there.

    Raises NothingToReplayError where there is none.
    """
    names: dict[str, str] = {}
    for endpoint in plan.deployment.endpoints:
        place = plan.deployment.with_role(endpoint.role).index(endpoint)
        others = deployment.with_role(endpoint.role)
        if place < len(others):
            names[endpoint.name] = others[place].name
    group = plan.groups[0]
    for step in group.steps:
        if step.endpoint not in names:
            role = plan.deployment.endpoint(step.endpoint).role.value
            raise NothingToReplayError(
                f"group {group.id} was sent to {step.endpoint} ({role}), and {deployment.name} has no such endpoint; "
                "give the configuration of a deployment with the same roles"
            )

    def pointed(each: GroupPlan) -> GroupPlan:
        return replace(each, steps=tuple(replace(step, endpoint=names[step.endpoint]) for step in each.steps))

    churn = tuple(pointed(each) for each in plan.churn if all(step.endpoint in names for step in each.steps))
    return replace(plan, deployment=deployment, groups=(pointed(group),), churn=churn)


def audit_of(replay: Replay, plan: Plan, now: str) -> tuple[Plan, tuple[Entry, ...]]:
    """The plan that reads what that run left in the pool, and the entries that stand for what is not sent again.

    Loads are held against the recorded answers. Before, the prompt is computed anew, twice, under salts that were never
    sent (``now``): whether the engine still answers as it did then decides how sharply (``as_sharp_as_it_may``). Raises
    NothingToReplayError.
    """
    group = plan.groups[0]
    if not plan.salts_honoured:
        raise NothingToReplayError("salts were ignored, so what the run left cannot be told from what it finds anew")
    answered = _answered(replay)
    cold, load = group.step(Arm.COLD), group.step(Arm.EXTERNAL)
    if cold is None or load is None:
        raise NothingToReplayError(f"group {group.id} has no cold answer and load to hold against each other")
    if Arm.COLD not in answered:
        raise NothingToReplayError(f"group {group.id} has no recorded cold answer; replay it without --same-keys")
    steps = tuple(_audit_steps(group, plan, load.salt, answered))
    arms = {step.arm for step in steps}
    pairs = tuple(pair for pair in pairs_of(steps) if pair.subject in _AUDITED and pair.baseline in arms)
    again = partial(ArmStep, endpoint=load.endpoint, path=Path.COLD, rank=load.rank)
    anew = replace(
        group,
        id=f"{group.id}{_ANEW}",
        purpose=Purpose.SHORT_CONTROL,
        # Its answers are no other prompt's.
        nonce=f"the prompt of {group.id}",
        steps=(again(arm=Arm.COLD, salt=f"{now}a"), again(arm=Arm.COLD_REPEAT, salt=f"{now}b")),
        pairs=short_control_pairs(),
        sizes=(),
    )
    recalled = tuple(entry for entry in replay.entries if _arm_of(entry) in _RECALLED)
    # What was recorded cannot be sent again, so nothing stands in for it. And whatever missed has stored what it then
    # computed under the keys of then: a second try would read that.
    budget = replace(plan.budget, replacements=0)
    limits = replace(plan.limits, external_attempts=1, lost_retries=0)
    audited = replace(group, steps=steps, pairs=pairs)
    return replace(plan, groups=(anew, audited), budget=budget, limits=limits), recalled


def as_sharp_as_it_may(replay: Replay, record: RunRecord, group: GroupPlan) -> GroupPlan:
    """The group of an audit as it is sent: where the engine does not answer any more as it did then, answers of then
    and now are of two builds, and what is small between them is no fault."""
    anew = record.groups.get(f"{replay.group.id}{_ANEW}")
    if anew is None or group.id != replay.group.id:
        return group
    then = next(_answers_of(replay, Arm.COLD), None)
    now = [attempt.observation for attempt in anew.of(Arm.COLD) if attempt.observation is not None and attempt.ok]
    if then is not None and now and compare(then, now[0]).exact:
        return group
    return replace(group, pairs=tuple(replace(pair, control=None) for pair in group.pairs))


def _answered(replay: Replay) -> frozenset[Arm]:
    """The arms that got a whole answer then."""
    return frozenset(arm for arm in Arm if any(_answers_of(replay, arm)))


def _answers_of(replay: Replay, arm: Arm) -> Iterator[Observation]:
    """The whole answers that an arm got then."""
    sent = {entry.probe.id for entry in replay.entries if isinstance(entry, ProbeSent) and entry.probe.arm is arm}
    for entry in replay.entries:
        if isinstance(entry, ProbeAnswered) and entry.observation.ok and entry.probe_id in sent:
            yield entry.observation


def _audit_steps(group: GroupPlan, plan: Plan, own: str | None, answered: frozenset[Arm]) -> Iterator[ArmStep]:
    for step in group.steps:
        if step.arm in _RECALLED and step.arm in answered:
            # What was not answered then cannot be answered now: its salt is not new any more.
            yield step
        elif step.arm in _AUDITED and step.salt == own:
            drops = step.arm is not Arm.THIRD and plan.can_forget(step.endpoint)
            yield replace(step, drop_local=step.drop_local or drops, settle=False)


def _arm_of(entry: Entry) -> Arm | None:
    if isinstance(entry, ProbeAnswered):
        return next((arm for arm in _RECALLED if f".{arm.value}." in entry.probe_id), None)
    if isinstance(entry, ProbeSent):
        return entry.probe.arm
    return entry.arm if isinstance(entry, CacheDropped | CountersRead | HookRan | LogRead) else None


@dataclass(frozen=True, slots=True)
class KeptPrompts:
    """The prompts of one group as they were sent. Others (to warm up, to flood) are made of the same tokens."""

    group: str
    nonce: str
    asked: tuple[str, ...]
    parts: Mapping[Part, Ids]
    answered: tuple[int, ...] | None

    def make(self, key: tuple[str, str], group: str, length: int) -> Prompt:
        """The kept prompt, or for any other name one of that length that begins otherwise."""
        whole = self.parts[Part.WHOLE]
        if _first_named(group) == _first_named(self.group):
            return Prompt(whole, self.nonce, self.asked)
        # Moved by so many places that no two names begin alike.
        name = np.frombuffer(f"{key}/{group}".encode(), dtype=np.uint8)
        moved = 1 + int(digest(name.astype(np.int32))[:8], 16) % max(1, len(whole) - 1)
        return Prompt(np.resize(np.roll(whole, moved), length).astype(np.int32), "", ())

    def for_group(self, group: GroupPlan) -> Prompt:
        """The prompt of a planned group."""
        return self.make((group.family, group.language), group.id, group.length)

    def part_of(self, group: GroupPlan, whole: Ids, part: Part, answered: tuple[int, ...] | None) -> Ids | None:
        """One of the group's prompts; what goes on after an answer goes on after the one that came now."""
        size = group.size(part)
        if part is Part.WHOLE or size is None:
            return whole if part is Part.WHOLE else None
        if part in (Part.HEAD, Part.STORED):
            return whole[: size.length]
        kept = self.parts.get(part)
        if kept is None or part is Part.BRANCH:
            return kept
        if answered is None or self.answered is None or len(answered) != len(self.answered):
            return None
        tail = kept[len(whole) + len(answered) :]
        return np.concatenate([whole, np.array(answered, dtype=np.int32), tail])


def _first_named(group: str) -> str:
    """What the group was called for which this one stands in, or whose prompt it computes anew."""
    return group.split("+", maxsplit=1)[0].removesuffix(_ANEW)


def kept_prompts(replay: Replay) -> KeptPrompts:
    """Where a replay's prompts come from."""
    group = replay.group
    answers = (each.token_ids for each in _answers_of(replay, Arm.COLD))
    parts = {part: np.array(ids, dtype=np.int32) for part, ids in replay.prompts}
    return KeptPrompts(group.id, group.nonce, group.asked, parts, next(answers, None))
