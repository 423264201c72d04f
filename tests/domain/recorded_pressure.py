"""Histories of a group whose requests are sent while others of the gate's are in flight."""

from collections.abc import Mapping
from dataclasses import replace

from kvgate.domain.counters import Counters
from kvgate.domain.history import Entry, GroupStarted, ProbeAnswered, ProbeSent
from kvgate.domain.observation import BROKEN_OFF, Observation, Outcome
from kvgate.domain.plan import ArmStep, GroupPlan, Purpose
from kvgate.domain.policy import Policy
from kvgate.domain.probe import Arm, Path, Probe, probe_id
from tests.domain import recorded_gateway as gateway
from tests.domain.judging import OTHER, SUBJECTS, TIED, near_tie
from tests.domain.making import ARMS, LENGTH, TOKENS, answer, counters, group_plan, lost, refused, run_plan
from tests.domain.recorded_case import Case, Given, history, of_run
from tests.domain.recorded_evidence import open_by

WORKERS, TOKENS_BESIDE = 2, 40
ALL_OF_THEM = WORKERS * TOKENS_BESIDE
HIT = 80
SPLITS = {Path.COLD: (LENGTH, 0, 0), Path.LOCAL: (LENGTH - HIT, HIT, 0), Path.EXTERNAL: (LENGTH - HIT, 0, HIT)}
SAID = answer()
CUT = Observation(Outcome.LOST, "broken off by kvgate", marks=(BROKEN_OFF,))


def counted(path: Path, beside: int = ALL_OF_THEM, reused: int = 0, **more: int) -> Counters:
    """What the engine counts of a request by its path and of those beside it."""
    computed, local, external = SPLITS[path]
    asked = LENGTH - local + beside
    return counters(computed + beside, local + reused, external, "0", external_queries=asked, **more)


def worker(number: int, endpoint: str = "a") -> GroupPlan:
    step = ArmStep(Arm.CHURN, endpoint, Path.COLD, "a")
    made = group_plan(f"churn{number}", nonce=f"88888888888{number}")
    return replace(made, purpose=Purpose.CHURN, steps=(step,), pairs=(), length=TOKENS_BESIDE)


def among(
    entries: list[Entry], said: Mapping[Arm, list[Observation]], workers: int, endpoint: str = "a"
) -> list[Entry]:
    """The same history, with requests of the workers in flight beside each request; ``said`` is what some got."""
    found: list[Entry] = [GroupStarted(0.0, worker(number, endpoint)) for number in range(WORKERS)]
    flying: list[tuple[Probe, Observation]] = []
    for round_, entry in enumerate(entries):
        if isinstance(entry, ProbeSent):
            answers = said.get(entry.probe.arm, [SAID] * WORKERS)
            for number in range(workers):
                made = worker(number)
                name = probe_id(made.id, Arm.CHURN, round_)
                probe = Probe(name, made.id, Arm.CHURN, round_, "a", f"a{round_}", made.length, len(TOKENS), "")
                flying.append((probe, answers[number]))
                found.append(ProbeSent(0.0, probe))
        found.append(entry)
        if isinstance(entry, ProbeAnswered):
            found += [ProbeAnswered(0.0, probe.id, seen) for probe, seen in flying]
            flying = []
    return found


def busy(
    name: str,
    required: str,
    answers: Given | None = None,
    readings: Mapping[Arm, Counters] | None = None,
    *,
    said: Mapping[Arm, list[Observation]] | None = None,
    workers: int = WORKERS,
    groups: int = 1,
    policy: Policy | None = None,
    others: Given | None = None,
) -> Case:
    """Groups under pressure, of which the first answers and is counted as given, aligned if ``others`` answer, too."""
    aligned = others is not None
    made = [group_plan(f"g{number}", aligned=aligned, nonce=f"00000000000{number}") for number in range(1, groups + 1)]
    base = {step.arm: counted(step.path) for step in made[0].steps}
    entries: list[Entry] = []
    for group in made:
        first = group is made[0]
        entries += history(group, answers if first else others, {**base, **(readings or {})} if first else base)
    plan = replace(run_plan(*made, policy=policy), churn=tuple(map(worker, range(WORKERS))))
    return of_run(f"pressure: {name}", required, plan, among(entries, said or {}, workers))


def subjects(reading: Counters) -> dict[Arm, Counters]:
    return dict.fromkeys(SUBJECTS, reading)


UNPROVEN = "INCONCLUSIVE ALIGNMENT_UNPROVEN"
SAVED_WRONG = dict.fromkeys((Arm.LOCAL, Arm.LOCAL_REPEAT, *SUBJECTS), answer(shift=0.02))
DRIFTING = dict.fromkeys(SUBJECTS, answer(shift=0.02))
HALF_REFUSED = {arm: [refused(), SAID] for arm in ARMS}
EXTERNAL, COLD = Path.EXTERNAL, Path.COLD
ONE_SURE = {arm: [CUT, SAID] for arm in ARMS}
# One of two is broken off: it may have been counted whole, or not at all.
HALF = {step.arm: counted(step.path, TOKENS_BESIDE) for step in group_plan().steps}
NONE = {step.arm: counted(step.path, 0) for step in group_plan().steps}
BETWEEN = {step.arm: counted(step.path, TOKENS_BESIDE + 7) for step in group_plan().steps}


def behind(name: str, required: str, **more: int) -> Case:
    """A group whose requests go through a gateway, as those beside it; of external hits decode counts so."""
    made = gateway.group()
    readings: dict[Arm, Counters] = {}
    for step in made.steps:
        computed, local, external = gateway.split(step.path)
        told = {"external_queries": LENGTH - local + ALL_OF_THEM}
        if step.endpoint == "g":
            # Of each request decode computes the last token.
            told |= {"decode_prompt": LENGTH + ALL_OF_THEM, "decode_computed": 1 + WORKERS, "decode_local": 0}
            told |= {"transferred": LENGTH - 1 + ALL_OF_THEM - WORKERS}
            told |= more if step.path is Path.EXTERNAL else {}
        readings[step.arm] = counters(computed + ALL_OF_THEM, local, external, "0", **told)
    plan = replace(gateway.plan_of(made), churn=tuple(worker(number, "g") for number in range(WORKERS)))
    entries = among(history(made, {}, readings), {}, WORKERS, "g")
    return of_run(f"pressure: behind a gateway, {name}", required, plan, entries)


MOVED = LENGTH - 1 + ALL_OF_THEM - WORKERS
NOT_MOVED = open_by("TRANSFER_NOT_EXERCISED")
BEHIND = (
    behind("as planned", "PASS"),
    behind("decode computed the group's request", NOT_MOVED, decode_computed=LENGTH + 2, transferred=ALL_OF_THEM - 2),
    behind("decode computed as much as may be", "PASS", decode_computed=4 + WORKERS, transferred=MOVED - 3),
    behind("decode computed a little more", NOT_MOVED, decode_computed=5 + WORKERS, transferred=MOVED - 4),
    behind("decode computed another's", NOT_MOVED, decode_computed=1 + WORKERS + 39, transferred=MOVED - 39),
    behind("decode hit its own cache", NOT_MOVED, decode_local=1, transferred=MOVED - 1),
    behind("nothing was transferred", NOT_MOVED, transferred=0),
    behind("one too many came to decode", open_by("FOREIGN_TRAFFIC"), decode_prompt=LENGTH + ALL_OF_THEM + 1),
    behind("as many as may be came to decode", "PASS", decode_prompt=LENGTH + ALL_OF_THEM),
)
CASES: tuple[Case, ...] = (
    *BEHIND,
    busy("as planned", "PASS"),
    busy("too few beside it", open_by("PRESSURE_MISSING"), readings=HALF, workers=1),
    busy("nothing beside it", open_by("PRESSURE_MISSING"), readings=NONE, workers=0),
    # What the engine counts: between what was surely computed beside the request and what may have been.
    busy("one too few counted", open_by("EVIDENCE_MISSING"), readings=subjects(counted(EXTERNAL, ALL_OF_THEM - 1))),
    busy("one too many counted", open_by("FOREIGN_TRAFFIC"), readings=subjects(counted(EXTERNAL, ALL_OF_THEM + 1))),
    busy("one broken off and not counted", "PASS", readings=HALF, said=ONE_SURE),
    busy("one broken off and counted in part", "PASS", readings=BETWEEN, said=ONE_SURE),
    busy("one broken off and counted", "PASS", said=ONE_SURE),
    busy(
        "one broken off, and the other is not counted",
        open_by("EVIDENCE_MISSING"),
        readings=HALF | subjects(counted(EXTERNAL, TOKENS_BESIDE - 1)),
        said=ONE_SURE,
    ),
    busy(
        "one broken off and counted after the next readings began",
        "PASS",
        readings={Arm.COLD: counted(COLD, TOKENS_BESIDE), Arm.LOCAL: counted(Path.LOCAL, ALL_OF_THEM + TOKENS_BESIDE)},
        said={Arm.COLD: [CUT, SAID]},
    ),
    busy(
        "one too many counted, and nothing was broken off just before",
        open_by("FOREIGN_TRAFFIC"),
        readings={Arm.LOCAL_REPEAT: counted(Path.LOCAL, ALL_OF_THEM + TOKENS_BESIDE)},
        said={Arm.COLD: [CUT, SAID]},
    ),
    # Whatever is reused is reused by the request: those beside it are new to the engine each time.
    busy("a hit among cold ones", open_by("NOT_COLD"), readings={Arm.COLD: counted(COLD, ALL_OF_THEM - 16, reused=16)}),
    busy(
        "more is reused than was sent",
        open_by("FOREIGN_TRAFFIC"),
        readings=subjects(counted(EXTERNAL, ALL_OF_THEM - 20, reused=20)),
    ),
    busy("the hit did not come", open_by("EXTERNAL_MISS"), readings=subjects(counted(COLD))),
    busy("preempted", open_by("PREEMPTED"), readings=subjects(counted(EXTERNAL, preemptions=1))),
    # Requests beside the groups that fail make no pressure.
    busy("one of two is refused every time", "INCONCLUSIVE PRESSURE_MISSING", readings=BETWEEN, said=HALF_REFUSED),
    busy("two of twelve are refused", "INCONCLUSIVE PRESSURE_MISSING", said=dict(list(HALF_REFUSED.items())[:2])),
    busy("one of twelve is refused", "PASS", said=dict(list(HALF_REFUSED.items())[:1])),
    busy("one of twelve is lost", "PASS", said={Arm.COLD: [lost(), SAID]}),
    # Who shares a batch may drift, and even the same again in the same company: that convicts only where many repeats
    # are exact. Beyond the tolerance it convicts anyway.
    busy("wrong", "FAIL DIVERGED", dict.fromkeys(SUBJECTS, answer(OTHER))),
    busy("a drift that comes again, in a few groups", "INCONCLUSIVE UNSTABLE", DRIFTING, groups=5),
    busy("a drift that comes again, in many groups", "FAIL DRIFT", DRIFTING, groups=6),
    busy(
        "other tokens that come again, in a few groups",
        "INCONCLUSIVE UNSTABLE",
        {**TIED, **dict.fromkeys(SUBJECTS, near_tie())},
        groups=5,
    ),
    busy(
        "other tokens that come again, in many groups",
        "FAIL DIVERGED",
        {**TIED, **dict.fromkeys(SUBJECTS, near_tie())},
        groups=6,
    ),
    busy("a drift that does not come again", "PASS", {Arm.EXTERNAL: answer(shift=0.02)}, groups=6),
    busy(
        "a drift that comes again, and one repeat drifted, too",
        "PASS",
        {**DRIFTING, Arm.LOCAL_REPEAT: answer(shift=0.01)},
        groups=7,
    ),
    busy(
        "a drift that comes again, and another group's cold runs drift",
        "PASS",
        DRIFTING,
        groups=7,
        others={Arm.COLD_REPEAT: answer(shift=0.01)},
    ),
    # Hits that all differ from cold runs were wrong when saved, unless answers hang on what else is in the batch.
    busy("what was saved is wrong, and all repeats are exact", UNPROVEN, SAVED_WRONG, groups=3, others=SAVED_WRONG),
    busy(
        "what was saved is wrong, and one repeat drifts",
        "PASS",
        {**SAVED_WRONG, Arm.LOCAL_REPEAT: answer(shift=0.021)},
        groups=3,
        others=SAVED_WRONG,
    ),
    busy("an answer holds what was asked beside it", "FAIL LEAK", {Arm.EXTERNAL: answer(text="888888888881")}),
    busy(
        "an answer beside it holds what was asked here",
        "FAIL LEAK",
        said={Arm.LOCAL: [SAID, answer(text="000000000001")]},
    ),
)
