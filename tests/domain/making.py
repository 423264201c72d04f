"""Small makers of domain values, so that a test shows only what it is about."""

from collections.abc import Sequence
from dataclasses import replace

from kvgate.domain.counters import Counter, Counters, Reading
from kvgate.domain.deployment import Capabilities, Deployment, Endpoint, Role
from kvgate.domain.geometry import Geometry
from kvgate.domain.history import CountersRead, Entry, GroupStarted, Moment, ProbeAnswered, ProbeSent, RunCompleted
from kvgate.domain.observation import Observation, Outcome, Timing, Usage
from kvgate.domain.plan import Budget, Forcing, GroupPlan, Limits, Plan, Purpose
from kvgate.domain.policy import Grade, Policy
from kvgate.domain.probe import Arm, Path, Probe, probe_id
from kvgate.domain.recipe import Parts, arm_steps, pairs_of

LENGTH, HIT = 99, 80
GEOMETRY = Geometry(block_size=16, granule=16, chunk=80, max_model_len=4096)
ARMS = frozenset((Arm.COLD, Arm.COLD_REPEAT, Arm.LOCAL, Arm.LOCAL_REPEAT, Arm.EXTERNAL, Arm.EXTERNAL_REPEAT))
TOKENS = tuple(range(100, 116))


def answer(
    ids: Sequence[int] = TOKENS, shift: float = 0.0, at: int | None = None, text: str = "", gap: float = 2.0
) -> Observation:
    """An answer whose logprobs are moved by ``shift`` nats, everywhere or at position ``at``; the runner-up is
    ``gap`` nats less likely and has the chosen token's number plus 1000."""
    moved = [shift if at is None or index == at else 0.0 for index in range(len(ids))]
    logprobs = tuple(-0.5 + move for move in moved)
    return Observation(
        Outcome.OK,
        status=200,
        token_ids=tuple(ids),
        logprobs=logprobs,
        top_ids=tuple((token, token + 1000) for token in ids),
        top_logprobs=tuple((value, value - gap) for value in logprobs),
        text=text or " ".join(map(str, ids)),
        finish_reason="length",
        usage=Usage(LENGTH, len(ids), None),
        timing=Timing(0.1, 0.2),
    )


def group_plan(
    name: str = "g1",
    aligned: bool = False,
    arms: frozenset[Arm] = ARMS,
    nonce: str = "000000000001",
    tier: int = LENGTH,
) -> GroupPlan:
    steps = arm_steps(Forcing.RESET_LOCAL, Parts("a", "a"), arms, salts_honoured=True, reader_drops=True)
    return GroupPlan(
        id=name,
        tier=tier,
        length=LENGTH,
        purpose=Purpose.TIER,
        family="codebook",
        language="en",
        aligned=aligned,
        expected_local=HIT,
        expected_external=HIT,
        nonce=nonce,
        asked=("amber cedar elm",),
        prompt_sha256="",
        steps=steps,
        pairs=pairs_of(steps),
    )


def run_plan(*groups: GroupPlan, policy: Policy | None = None) -> Plan:
    return Plan(
        seed=1,
        deployment=Deployment("d", "vllm", "m", (Endpoint("a", Role.COMBINED, "http://127.0.0.1:1"),)),
        geometry=GEOMETRY,
        capabilities=(Capabilities("a", token_ids=True, logprobs=True, reset_local=True),),
        forcing=Forcing.RESET_LOCAL,
        salts_honoured=True,
        by_source_grade=Grade.ARRIVED,
        policy=policy or Policy(),
        limits=Limits(settle_s=0.0),
        budget=Budget(10**9, 1e6, 3),
        max_tokens=len(TOKENS),
        groups=groups,
        not_applicable=(),
        obstacles=(),
        notes=(),
    )


def counters(computed: int, local: int, external: int, rank: str = "0", **more: int) -> Counters:
    """A reading of one engine; ``more`` are further counters by their enum name in lower case."""
    values = {
        Counter.PROMPT_TOKENS: computed + local + external,
        Counter.COMPUTED: computed,
        Counter.LOCAL: local,
        Counter.EXTERNAL: external,
        Counter.LOCAL_HITS: local,
        Counter.EXTERNAL_HITS: external,
        Counter.EXTERNAL_QUERIES: LENGTH - local,
        Counter.PREEMPTIONS: 0,
    }
    values |= {Counter[name.upper()]: value for name, value in more.items()}
    return Counters(tuple(Reading(rank, counter, float(value)) for counter, value in values.items()), 1.0)


EMPTY = counters(0, 0, 0, external_queries=0)
BY_PATH = {
    Path.COLD: counters(LENGTH, 0, 0),
    Path.LOCAL: counters(LENGTH - HIT, HIT, 0),
    Path.EXTERNAL: counters(LENGTH - HIT, 0, HIT),
    Path.MIXED: counters(LENGTH - HIT, 48, HIT - 48),
}

Answers = dict[Arm, Observation | list[Observation]]


def entries(
    group: GroupPlan, answers: Answers, readings: dict[Arm, Counters | None] | None = None, replaces: str | None = None
) -> list[Entry]:
    """The history of one group: every arm answered as given (default: the clean answer), by its own path."""
    found: list[Entry] = [GroupStarted(0.0, group, replaces)]
    for step in group.steps:
        given = answers.get(step.arm, answer())
        for attempt, observation in enumerate(given if isinstance(given, list) else [given]):
            after = (readings or {}).get(step.arm, BY_PATH[step.path])
            place = (step.endpoint, group.id, step.arm, attempt)
            name = probe_id(group.id, step.arm, attempt)
            probe = Probe(name, group.id, step.arm, attempt, step.endpoint, "s", group.length, len(TOKENS), "")
            found += [
                CountersRead(0.0, *place, Moment.BEFORE, EMPTY if after is not None else None),
                ProbeSent(0.0, probe),
                ProbeAnswered(0.0, name, observation),
                CountersRead(0.0, *place, Moment.AFTER, after),
            ]
    return found


def whole_run(*histories: list[Entry]) -> list[Entry]:
    return [*(entry for history in histories for entry in history), RunCompleted(1.0)]


def lost(detail: str = "no answer in time") -> Observation:
    return Observation(Outcome.LOST, detail=detail)


def refused(detail: str = "HTTP 500: boom") -> Observation:
    return Observation(Outcome.REFUSED, detail=detail, status=500)


def with_usage(observation: Observation, completion: int, cached: int | None = None) -> Observation:
    return replace(observation, usage=Usage(LENGTH, completion, cached))
