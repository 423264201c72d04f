"""Which path served a probe: what did happen, by whose word, and what contradicts it."""

from dataclasses import dataclass, replace

from kvgate.domain.counters import Counter, CounterDelta, Counters, difference
from kvgate.domain.log import LogLine, read_lines
from kvgate.domain.observation import Observation, Usage
from kvgate.domain.policy import Grade, Policy, Source
from kvgate.domain.probe import Path
from kvgate.domain.reasons import Problem, Reason


@dataclass(frozen=True, slots=True)
class Evidence:
    """Prompt tokens by path for one probe. None is unknown, which is not zero.

    ``transferred``, ``decode_local`` and ``decode_computed`` are prompt tokens a decode engine got by transfer, from
    its own cache, and computed itself, None where there is none. ``external_asked`` is how many tokens the engine
    looked up in an external store, ``logged`` how many its log says were loaded. ``rank`` is the data-parallel engine
    that served it, ``decode_rank`` the one that decoded behind it. ``sources`` names the counters
    used. ``busy`` is whether others used the engine meanwhile, ``by_reply`` whether those were not the gate's own.
    """

    computed: int | None = None
    local: int | None = None
    external: int | None = None
    external_asked: int | None = None
    loaded_bytes: int | None = None
    transferred: int | None = None
    decode_local: int | None = None
    decode_computed: int | None = None
    logged: int | None = None
    grade: Grade | None = None
    rank: str | None = None
    decode_rank: str | None = None
    sources: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    busy: bool = False
    by_reply: bool = False

    def first(self, *reasons: Reason) -> Problem | None:
        """The first problem with one of these reasons."""
        return next((problem for problem in self.problems if problem.reason in reasons), None)


@dataclass(frozen=True, slots=True)
class Beside:
    """Requests of the gate's own that were in flight beside a probe, and how many of their prompt tokens an engine has
    counted, at least and at most."""

    requests: int = 0
    least: int = 0
    most: int = 0


ALONE = Beside()


def counted(before: Counters, after: Counters) -> int | None:
    """Prompt tokens the engine has accounted for between two readings; None if it counts none.

    Where a decode engine stands behind it, the one that has counted fewer.
    """
    delta = difference(before, after)
    moved, decoded = _counted_in(delta), delta.total(Counter.DECODE_PROMPT)
    return moved if decoded is None or moved is None else min(moved, decoded)


def _counted_in(delta: CounterDelta) -> int | None:
    moved = delta.total(Counter.PROMPT_TOKENS)
    return moved if moved is not None else delta.total(Counter.LOCAL_QUERIES)


def read_evidence(
    length: int,
    before: Counters | None,
    after: Counters | None,
    observation: Observation | None,
    by_source_grade: Grade,
    unreadable: str = "",
    left_off: int = 0,
    beside: Beside = ALONE,
) -> Evidence:
    """Evidence for one probe of ``length`` prompt tokens from the readings around it and the reply itself.

    ``by_source_grade`` is what the dialect's per-source counters are worth on this deployment; ``unreadable``
    says why readings are missing, ``left_off`` how many tokens a prefill engine leaves to decode, ``beside`` what the
    gate's other requests were counted as. Those reuse nothing, each being under a salt of its own, so whatever was
    reused was reused by the probe. Likewise on the decode side: whatever did not come by transfer is taken to be the
    probe's, but for the last token of each of the others.
    """
    if before is None or after is None:
        return Evidence(problems=(Problem(Reason.COUNTERS_UNREADABLE, unreadable or "the counters were not read"),))
    delta = difference(before, after)
    split = split_of(delta, length - left_off, by_source_grade)
    if split is None:
        return Evidence(
            problems=(Problem(Reason.COUNTERS_UNREADABLE, "the endpoint exports none of the counters needed"),)
        )
    computed, local, external, grade, sources = split
    problems = (
        *_exclusivity((length, left_off), delta, beside, local + external),
        *_conflicts(delta, computed, local, external, observation),
    )
    transferred, decode_local, decode_computed = _decoded(length, delta, beside.requests)
    engines, decoders = delta.active_engines(), delta.decoding_engines()
    return Evidence(
        computed=computed if not beside.most else max(0, length - left_off - local - external),
        local=local,
        external=external,
        external_asked=delta.total(Counter.EXTERNAL_QUERIES),
        loaded_bytes=delta.total(Counter.LOADED_BYTES),
        transferred=transferred,
        decode_local=decode_local,
        decode_computed=decode_computed,
        grade=grade,
        rank=engines[0] if len(engines) == 1 else None,
        decode_rank=decoders[0] if len(decoders) == 1 else None,
        sources=sources,
        problems=problems,
        busy=beside.most > 0,
    )


def _decoded(length: int, delta: CounterDelta, others: int) -> tuple[int | None, int | None, int | None]:
    """The prompt tokens of the probe that decode got by transfer, from its own cache, and computed itself."""
    moved, local, computed = (
        delta.total(counter) for counter in (Counter.TRANSFERRED, Counter.DECODE_LOCAL, Counter.DECODE_COMPUTED)
    )
    if others and moved is not None and local is not None:
        computed = max(0, (computed or 0) - others)
        moved = min(moved, max(0, length - local - computed))
    return moved, local, computed


def by_the_reply(evidence: Evidence, observation: Observation | None, length: int, policy: Policy) -> Evidence:
    """The same evidence, or what the reply itself tells of its request where others use the engine, too.

    Counters then speak of everybody's requests. A reply that splits its cached tokens speaks of one, and of what was
    scheduled, so the policy has to be content with that. Behind prefill and decode it may be the transfer's.
    """
    foreign, usage = evidence.first(Reason.FOREIGN_TRAFFIC), observation.usage if observation is not None else None
    if foreign is None or usage is None or policy.evidence is not Grade.SCHEDULED or evidence.transferred is not None:
        return evidence
    local, external = usage.local_cached_tokens, usage.external_cached_tokens
    if local is None or external is None:
        return evidence
    # What everybody's counters cannot mean they still show: something was preempted, not loaded, or started anew.
    kept = (Reason.PREEMPTED, Reason.LOAD_FAILED, Reason.COUNTER_RESET)
    problems = [problem for problem in evidence.problems if problem.reason in kept]
    everybody = (evidence.local or 0, evidence.external or 0)
    if (
        usage.cached_tokens not in (None, local + external)
        or local + external > length
        or local > everybody[0]
        or external > everybody[1]
    ):
        detail = (
            f"the reply tells of {usage.cached_tokens} cached tokens, {local} local and {external} external, the "
            f"counters of everybody's {everybody[0]} and {everybody[1]}"
        )
        problems.append(Problem(Reason.SENSOR_CONFLICT, detail))
    return replace(
        evidence,
        computed=length - local - external,
        local=local,
        external=external,
        grade=Grade.SCHEDULED,
        external_asked=None,
        loaded_bytes=None,
        rank=None,
        sources=("cached tokens in the reply",),
        problems=tuple(problems),
        busy=True,
        by_reply=True,
    )


def with_log(evidence: Evidence, lines: tuple[LogLine, ...] | None, request_id: str) -> Evidence:
    """The same evidence with what the engine's log says of the request; None is a log that was not read."""
    if lines is None:
        return evidence
    said = read_lines(lines, request_id, evidence.external)
    return replace(evidence, logged=said.loads, problems=(*evidence.problems, *said.problems))


def unconfirmed(
    policy: Policy, evidence: Evidence, observation: Observation | None, wanted: int, log_detail: str = ""
) -> Problem | None:
    """Which required source does not confirm a hit of ``wanted`` tokens from outside, or None if all do.

    Of two legs the first one's reply counts: a decode engine's cached tokens are the transfer. The time to the first
    token needs the cold run and is not looked at here.
    """
    if Source.LOG in policy.required_sources and not evidence.logged:
        why = log_detail or "no line of the log tells of this load"
        return Problem(Reason.EVIDENCE_MISSING, f"policy.required_sources: {why}")
    if Source.REPLY in policy.required_sources and observation is not None:
        usage = observation.legs[0].usage if observation.legs else observation.usage
        cached = usage.cached_tokens if usage is not None else None
        if cached is None or cached < policy.exercised_share * wanted:
            said = "nothing" if cached is None else str(cached)
            detail = f"policy.required_sources: the reply tells of {said} cached tokens, not of {wanted}"
            return Problem(Reason.EVIDENCE_MISSING, detail)
    return None


_Split = tuple[int, int, int, Grade, tuple[str, ...]]


def split_of(delta: CounterDelta, length: int, grade: Grade) -> _Split | None:
    """Computed, local and external tokens of ``length`` prompt tokens, with grade and sources; None if not counted."""
    return _by_source(delta, grade) or _by_hits(delta, length)


def _by_source(delta: CounterDelta, grade: Grade) -> _Split | None:
    values = [delta.total(counter) for counter in (Counter.COMPUTED, Counter.LOCAL, Counter.EXTERNAL)]
    computed, local, external = values
    if computed is None or local is None or external is None:
        return None
    return computed, local, external, grade, ("prompt tokens by source",)


def _by_hits(delta: CounterDelta, length: int) -> _Split | None:
    """Older engines count only look-ups: SCHEDULED at best, since they rise even when the load fails."""
    local, external = delta.total(Counter.LOCAL_HITS), delta.total(Counter.EXTERNAL_HITS)
    if local is None:
        return None
    external = external or 0
    return max(0, length - local - external), local, external, Grade.SCHEDULED, ("prefix cache hits",)


def _exclusivity(lengths: tuple[int, int], delta: CounterDelta, beside: Beside, reused: int) -> tuple[Problem, ...]:
    """Whether the counters speak of the probe and of the gate's own requests ``beside`` it, and of nobody else.

    ``lengths`` are the probe's prompt and what is left off its end, ``reused`` the tokens that were not computed.
    """
    problems = [Problem(Reason.COUNTER_RESET, text) for text in delta.fell]
    (length, left_off), least, most = lengths, beside.least, beside.most
    moved, prefilled = _counted_in(delta), length - left_off
    sent = f"{prefilled} prompt tokens sent" + (f" and {least} to {most} beside them" if most else "")
    if moved is None:
        problems.append(Problem(Reason.EVIDENCE_MISSING, "the engine counts no prompt tokens"))
    elif moved > prefilled + most or (len(delta.active_engines()) > 1 and not most):
        engines = ", ".join(delta.active_engines())
        problems.append(Problem(Reason.FOREIGN_TRAFFIC, f"{sent}, {moved} counted (engines {engines})"))
    elif most and reused > prefilled:
        problems.append(Problem(Reason.FOREIGN_TRAFFIC, f"{prefilled} prompt tokens sent, {reused} reused"))
    elif (decoded := delta.total(Counter.DECODE_PROMPT)) is not None and decoded > length + most:
        problems.append(Problem(Reason.FOREIGN_TRAFFIC, f"{length} prompt tokens sent, decode counted {decoded}"))
    elif moved < prefilled + least and not delta.fell:
        problems.append(Problem(Reason.EVIDENCE_MISSING, f"{sent}, {moved} counted"))
    preempted = delta.total(Counter.PREEMPTIONS)
    if preempted:
        problems.append(Problem(Reason.PREEMPTED, f"{preempted} preemptions while the probe ran"))
    return tuple(problems)


def _conflicts(
    delta: CounterDelta, computed: int, local: int, external: int, observation: Observation | None
) -> tuple[Problem, ...]:
    problems: list[Problem] = []
    prompt = delta.total(Counter.PROMPT_TOKENS)
    if prompt is not None and computed + local + external != prompt:
        detail = f"{computed} computed + {local} local + {external} external are not the {prompt} prompt tokens counted"
        problems.append(Problem(Reason.SENSOR_CONFLICT, detail))
    looked_up = delta.total(Counter.EXTERNAL_HITS)
    failed = delta.total(Counter.FAILED_LOADS)
    if failed:
        problems.append(Problem(Reason.LOAD_FAILED, f"the store client counts {failed} failed keys in loads"))
    if looked_up is not None and looked_up > external:
        detail = f"external look-ups hit {looked_up} tokens, {external} arrived and {computed} were computed"
        problems.append(Problem(Reason.LOAD_FAILED, detail))
    elif looked_up is not None and looked_up < external:
        detail = f"external look-ups hit {looked_up} tokens, yet {external} are said to have arrived"
        problems.append(Problem(Reason.SENSOR_CONFLICT, detail))
    local_hits = delta.total(Counter.LOCAL_HITS)
    if local_hits is not None and local_hits != local:
        detail = f"prefix cache hits moved by {local_hits}, local tokens by source by {local}"
        problems.append(Problem(Reason.SENSOR_CONFLICT, detail))
    # Behind a prefill/decode proxy the cached tokens in a reply may be anybody's.
    behind_proxy = delta.total(Counter.DECODE_PROMPT) is not None
    usage = observation.usage if observation is not None and not behind_proxy else None
    if usage is not None and usage.cached_tokens is not None and usage.cached_tokens != local + external:
        detail = f"the reply says {usage.cached_tokens} cached tokens, the counters {local} local + {external} external"
        problems.append(Problem(Reason.SENSOR_CONFLICT, detail))
    problems += _split_conflict(usage, local, external)
    return tuple(problems)


def _split_conflict(usage: Usage | None, local: int, external: int) -> list[Problem]:
    """Whether the reply's own split of its cached tokens says otherwise; newer engines tell it, per request."""
    told = (usage.local_cached_tokens, usage.external_cached_tokens) if usage is not None else (None, None)
    wrong = [(said, seen) for said, seen in zip(told, (local, external), strict=True) if said not in (None, seen)]
    if not wrong:
        return []
    detail = f"the reply tells of {told[0]} local and {told[1]} external tokens, the counters {local} and {external}"
    return [Problem(Reason.SENSOR_CONFLICT, detail)]


def exercised_problem(path: Path, expected: tuple[int, int], evidence: Evidence, policy: Policy) -> Problem | None:
    """Why this probe does not count as having come by ``path``, or None if it is exercised.

    ``expected`` are the predicted tokens from the local cache and from outside; ignored for COLD, which must reuse
    nothing.
    """
    unknown = evidence.first(Reason.COUNTERS_UNREADABLE, Reason.EVIDENCE_MISSING)
    if unknown is not None or evidence.local is None or evidence.external is None:
        # Counters that do not account for the request show nothing, also not that it was cold.
        return unknown or Problem(Reason.EVIDENCE_MISSING, "no evidence")
    local, external = evidence.local, evidence.external
    if path is Path.COLD:
        if local or external:
            return Problem(Reason.NOT_COLD, f"{local} tokens came from the local cache, {external} from outside")
        return None
    conflict = evidence.first(Reason.SENSOR_CONFLICT)
    if conflict is not None and not (local or external):
        # Counters that stand still while the reply tells of a hit do not show that there was none.
        return conflict
    if path is Path.MIXED:
        return _mixed_problem(expected, evidence, policy)
    if path is Path.LOCAL:
        if external or local < _wanted(expected[0], policy):
            detail = f"expected {expected[0]} local tokens, saw {local} local and {external} external"
            return Problem(Reason.BASELINE_NOT_LOCAL, detail)
        return None
    return _external_problem(_wanted(expected[1], policy), expected[1], evidence, policy)


def _wanted(expected: int, policy: Policy) -> float:
    return max(1.0, policy.exercised_share * expected)


def _mixed_problem(expected: tuple[int, int], evidence: Evidence, policy: Policy) -> Problem | None:
    """Both sources must have moved for the same request, and the local part must not have grown into the whole."""
    local, external = evidence.local or 0, evidence.external or 0
    failed = evidence.first(Reason.LOAD_FAILED)
    if failed is not None:
        return failed
    if local < _wanted(expected[0], policy) or external < _wanted(expected[1], policy):
        detail = (
            f"expected {expected[0]} local and {expected[1]} external tokens in one request, saw {local} local and "
            f"{external} external"
        )
        return Problem(Reason.PATH_NOT_EXERCISED, detail)
    return _too_weak(evidence, policy)


def _external_problem(wanted: float, expected: int, evidence: Evidence, policy: Policy) -> Problem | None:
    local, external = evidence.local or 0, evidence.external or 0
    failed = evidence.first(Reason.LOAD_FAILED)
    if failed is not None:
        return failed
    if local:
        return Problem(Reason.LOCAL_NOT_DROPPED, f"{local} tokens still came from the local cache")
    if external < wanted:
        if not external and not evidence.external_asked:
            return Problem(Reason.PATH_NOT_EXERCISED, f"expected {expected} external tokens, none was even asked for")
        asked = "" if evidence.external_asked is None else f", {evidence.external_asked} were asked for"
        return Problem(Reason.EXTERNAL_MISS, f"expected {expected} external tokens, saw {external}{asked}")
    return _too_weak(evidence, policy)


def _too_weak(evidence: Evidence, policy: Policy) -> Problem | None:
    if policy.evidence is Grade.ARRIVED and evidence.grade is not Grade.ARRIVED:
        return Problem(Reason.EVIDENCE_TOO_WEAK, "the counters show that the tokens were scheduled, not that they came")
    return None


def transfer_problem(length: int, evidence: Evidence, policy: Policy) -> Problem | None:
    """Why a prompt of ``length`` tokens does not count as transferred from prefill to decode, or None if it does."""
    moved, local = evidence.transferred, evidence.decode_local
    if moved is None or local is None:
        return Problem(Reason.TRANSFER_NOT_EXERCISED, "the decode engine counts no prompt tokens by source")
    if local:
        detail = f"{local} prompt tokens came from the decode engine's own cache, which hides the transfer"
        return Problem(Reason.TRANSFER_NOT_EXERCISED, detail)
    computed = evidence.decode_computed or 0
    if computed > max(1.0, (1.0 - policy.exercised_share) * length):
        detail = f"decode computed {computed} of {length} prompt tokens itself"
        return Problem(Reason.TRANSFER_NOT_EXERCISED, detail)
    # The last prompt token may be computed anew on the decode side.
    if moved < policy.exercised_share * (length - 1):
        return Problem(Reason.TRANSFER_NOT_EXERCISED, f"{moved} of {length} prompt tokens came to decode by transfer")
    if moved > length:
        return Problem(Reason.FOREIGN_TRAFFIC, f"{length} prompt tokens sent, {moved} counted as transferred")
    return None


# Problems that make a probe worthless whatever path it took: it neither acquits nor convicts.
VOIDING = (Reason.PREEMPTED, Reason.FOREIGN_TRAFFIC, Reason.COUNTER_RESET, Reason.RECOMPUTED)
# Problems that leave the answer usable but forbid a PASS.
WEAKENING = (Reason.SENSOR_CONFLICT, Reason.LOAD_FAILED, Reason.EVIDENCE_MISSING, Reason.COUNTERS_UNREADABLE)
