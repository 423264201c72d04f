"""A recorded history with the verdict it requires, and makers of written ones."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvgate.domain.counters import Counters
from kvgate.domain.history import (
    CacheDropped,
    CountersRead,
    DropOutcome,
    Entry,
    GroupStarted,
    HookRan,
    LogRead,
    Moment,
    ProbeAnswered,
    ProbeSent,
)
from kvgate.domain.judge import judge
from kvgate.domain.log import LogLine
from kvgate.domain.observation import Observation
from kvgate.domain.plan import ArmStep, GroupPlan, Plan
from kvgate.domain.policy import Policy
from kvgate.domain.probe import Arm, Probe, probe_id
from kvgate.domain.reasons import Reason
from kvgate.domain.record import RunRecord
from kvgate.domain.ruling import RunVerdict
from kvgate.domain.verdict import Verdict
from tests.domain.making import ARMS, BY_PATH, TOKENS, answer, group_plan, run_plan, whole_run

Readings = Mapping[Arm, Counters | None]
Given = Mapping[Arm, Observation | list[Observation]]


@dataclass(frozen=True, slots=True)
class Case:
    """One history. ``required`` is the verdict and, in order, the reasons, as words."""

    name: str
    plan: Plan
    entries: tuple[Entry, ...]
    required: str
    stored: bool = False

    @property
    def verdict(self) -> Verdict:
        return Verdict(self.required.split()[0])

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return tuple(Reason(word) for word in self.required.split()[1:])

    def judged(self) -> RunVerdict:
        return judge(self.plan, RunRecord(self.entries))


def told(ruling: RunVerdict) -> str:
    """A ruling in the words of ``required``."""
    return " ".join([ruling.verdict.value, *(problem.reason.value for problem in ruling.reasons)])


def of_one(
    name: str,
    required: str,
    answers: Given | None = None,
    readings: Readings | None = None,
    *,
    aligned: bool = False,
    policy: Policy | None = None,
    arms: frozenset[Arm] = ARMS,
) -> Case:
    """A run of one group."""
    group = group_plan(aligned=aligned, arms=arms)
    return of_run(name, required, run_plan(group, policy=policy), history(group, answers, readings))


def history(
    group: GroupPlan, answers: Given | None = None, readings: Readings | None = None, replaces: str | None = None
) -> list[Entry]:
    """The history of one group: arms answer as given, else cleanly, and their counters are those given."""
    tries: dict[Arm, list[Try]] = {}
    for step in group.steps:
        given = (answers or {}).get(step.arm, answer())
        after = (readings or {}).get(step.arm, BY_PATH[step.path])
        unread = "" if after is not None else "not there"
        tries[step.arm] = [Try(each, after, unread=unread) for each in (given if isinstance(given, list) else [given])]
    return attempts(group, tries, replaces)


def of_run(name: str, required: str, plan: Plan, *histories: Iterable[Entry]) -> Case:
    """A run of several groups, completed."""
    return Case(name, plan, tuple(whole_run(*(list(history) for history in histories))), required)


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt to be recorded.

    Without ``after`` the counters show the arm's own path, without ``before`` they began at zero. ``unread`` says why
    there are none, ``missed`` that just the first reading is missing. ``said`` None is no answer at all.
    """

    said: Observation | None = field(default_factory=answer)
    after: Counters | None = None
    before: Counters | None = None
    missed: bool = False
    drop: DropOutcome | None = None
    hooks: tuple[tuple[str, int | None, str], ...] = ()
    unread: str = ""
    log: tuple[LogLine, ...] | None = None


Tries = Mapping[Arm, Sequence[Try]]


def attempts(group: GroupPlan, tries: Tries | None = None, replaces: str | None = None) -> list[Entry]:
    """The history of one group, attempt by attempt. An arm given no tries was never reached; others answer cleanly."""
    found: list[Entry] = [GroupStarted(0.0, group, replaces)]
    for step in group.steps:
        for number, each in enumerate((tries or {}).get(step.arm, (Try(),))):
            found += _attempt(group, step, number, each)
    return found


def _attempt(group: GroupPlan, step: ArmStep, number: int, each: Try) -> list[Entry]:
    place = (step.endpoint, group.id, step.arm, number)
    name = probe_id(group.id, step.arm, number)
    after = each.after or BY_PATH[step.path]
    before = each.before or Counters(tuple(replace(reading, value=0.0) for reading in after.readings), after.started)
    found: list[Entry] = [
        HookRan(0.0, hook, group.id, step.arm, number, (hook,), code, 0.0, output) for hook, code, output in each.hooks
    ]
    if each.drop is not None:
        found.append(CacheDropped(0.0, *place, each.drop, ""))
    sha = group.prompt_sha256
    probe = Probe(name, group.id, step.arm, number, step.endpoint, step.salt, group.length, len(TOKENS), sha)
    found += [
        CountersRead(0.0, *place, Moment.BEFORE, None if each.unread or each.missed else before, each.unread),
        ProbeSent(0.0, probe),
    ]
    if each.said is not None:
        found += [
            ProbeAnswered(0.0, name, each.said),
            CountersRead(0.0, *place, Moment.AFTER, None if each.unread else after, each.unread),
        ]
    if each.log is not None:
        found.append(LogRead(0.0, *place, each.log))
    return found


def bare(observation: Observation) -> Observation:
    """The answer without logprobs."""
    return replace(observation, logprobs=None, top_ids=None, top_logprobs=None)


def text_only(words: str) -> Observation:
    """An answer of which only the text came."""
    return replace(bare(answer(text=words)), token_ids=None)
