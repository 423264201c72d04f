"""Why a verdict is what it is: a closed list, each with one sentence of meaning and one of advice."""

from dataclasses import dataclass
from enum import Enum


class Reason(str, Enum):
    """The closed list. The texts stand in ``REASONS``; a test holds the two together."""

    # FAIL
    LEAK = "LEAK"
    ISOLATION = "ISOLATION"
    ANSWERS_CHANGED = "ANSWERS_CHANGED"
    EXCESS_DIVERGENCE = "EXCESS_DIVERGENCE"
    DIVERGED = "DIVERGED"
    DIVERGED_INTERMITTENT = "DIVERGED_INTERMITTENT"
    DRIFT = "DRIFT"
    TOKENS_DIFFER = "TOKENS_DIFFER"
    SUBJECT_REFUSED = "SUBJECT_REFUSED"
    EMPTY = "EMPTY"
    TRUNCATED = "TRUNCATED"
    FIRST_TOKEN = "FIRST_TOKEN"
    DEGENERATE = "DEGENERATE"
    # INCONCLUSIVE: the path
    NOTHING_CHECKED = "NOTHING_CHECKED"
    PATH_NOT_EXERCISED = "PATH_NOT_EXERCISED"
    EXTERNAL_MISS = "EXTERNAL_MISS"
    RESET_UNAVAILABLE = "RESET_UNAVAILABLE"
    LOCAL_NOT_DROPPED = "LOCAL_NOT_DROPPED"
    TRANSFER_NOT_EXERCISED = "TRANSFER_NOT_EXERCISED"
    BASELINE_NOT_LOCAL = "BASELINE_NOT_LOCAL"
    NOT_COLD = "NOT_COLD"
    SALT_IGNORED = "SALT_IGNORED"
    LOAD_FAILED = "LOAD_FAILED"
    # INCONCLUSIVE: the evidence
    COUNTERS_UNREADABLE = "COUNTERS_UNREADABLE"
    EVIDENCE_MISSING = "EVIDENCE_MISSING"
    EVIDENCE_TOO_WEAK = "EVIDENCE_TOO_WEAK"
    SENSOR_CONFLICT = "SENSOR_CONFLICT"
    FOREIGN_TRAFFIC = "FOREIGN_TRAFFIC"
    COUNTER_RESET = "COUNTER_RESET"
    PREEMPTED = "PREEMPTED"
    RECOMPUTED = "RECOMPUTED"
    RANK_CHANGED = "RANK_CHANGED"
    PRESSURE_MISSING = "PRESSURE_MISSING"
    OUTAGE_MISSING = "OUTAGE_MISSING"
    NOT_RECOVERED = "NOT_RECOVERED"
    NOT_RELEASED = "NOT_RELEASED"
    # INCONCLUSIVE: the answers
    OBSERVATION_MISSING = "OBSERVATION_MISSING"
    PROBE_REFUSED = "PROBE_REFUSED"
    IDS_INCOMPLETE = "IDS_INCOMPLETE"
    TEXT_ONLY = "TEXT_ONLY"
    LOGPROBS_UNUSABLE = "LOGPROBS_UNUSABLE"
    PROMPT_CHANGED = "PROMPT_CHANGED"
    TOO_SHORT = "TOO_SHORT"
    UNSTABLE = "UNSTABLE"
    # INCONCLUSIVE: the run
    TIER_NOT_COVERED = "TIER_NOT_COVERED"
    HOOK_FAILED = "HOOK_FAILED"
    ENDPOINT_LOST = "ENDPOINT_LOST"
    INTERRUPTED = "INTERRUPTED"
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    POWER_TOO_LOW = "POWER_TOO_LOW"
    FLOOR_WRONG = "FLOOR_WRONG"
    RUNG_NOT_UP = "RUNG_NOT_UP"
    NOT_ACCEPTED = "NOT_ACCEPTED"
    # annotations and not-applicable
    BELOW_HIT_FLOOR = "BELOW_HIT_FLOOR"
    NEAR_TIE = "NEAR_TIE"
    NOISE = "NOISE"
    DECLARED_LOSS = "DECLARED_LOSS"
    ALIGNMENT_UNPROVEN = "ALIGNMENT_UNPROVEN"
    TRANSFER_UNPROVEN = "TRANSFER_UNPROVEN"
    RETRIED = "RETRIED"
    CLEAN_ERROR = "CLEAN_ERROR"


@dataclass(frozen=True, slots=True)
class ReasonText:
    """One sentence of meaning and one of advice."""

    meaning: str
    advice: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason with what was actually seen."""

    reason: Reason
    detail: str


REASONS: dict[Reason, ReasonText] = {
    Reason.LEAK: ReasonText(
        "The answer contains the nonce of another request.",
        "Take the deployment out of service: requests read each other's memory.",
    ),
    Reason.ISOLATION: ReasonText(
        "A prompt under a cache salt of its own was served KV that was written under another salt.",
        "Do not let tenants share this deployment: who guesses a prompt reads what others computed for it.",
    ),
    Reason.DIVERGED: ReasonText(
        "The answer on reused KV differs from the answer on computed KV, and does so again when repeated.",
        "Do not enable this path; fall back as the report says, and keep the run directory for the bug report.",
    ),
    Reason.DIVERGED_INTERMITTENT: ReasonText(
        "The answer on reused KV differed once although the baseline is exact, and not in the same way when repeated.",
        "Do not enable this path; suspect a race, an eviction or a stale block, and repeat with more groups per tier.",
    ),
    Reason.DRIFT: ReasonText(
        "Token IDs are equal, but the logprobs differ where the baseline repeats to exactly 0.0: the KV bytes differ.",
        "Treat it as corruption; if the store is meant to be lossy, declare its bound in policy.lossy_bound_nat.",
    ),
    Reason.EXCESS_DIVERGENCE: ReasonText(
        "More groups differ on reused KV than this run's own controls explain.",
        "Run again with more groups per tier; treat the path as broken until the excess is gone.",
    ),
    Reason.TOKENS_DIFFER: ReasonText(
        "Under the strict policy any token difference in a required pair fails, whether or not noise explains it.",
        "Read the calibrated result beside it; choose aligned lengths, which need no tolerance.",
    ),
    Reason.ANSWERS_CHANGED: ReasonText(
        "One prompt, computed afresh each time, is answered otherwise from some request of the run on.",
        "Look at the engine before any pool: its state, or what it was restarted with, is no longer what it was; the "
        "report names the requests between which that came.",
    ),
    Reason.SUBJECT_REFUSED: ReasonText(
        "The server refused the request on the reused path, twice, while it answered the same prompt cold.",
        "Read the server's log at that time; the refusal is quoted in the report.",
    ),
    Reason.EMPTY: ReasonText(
        "The server answered 200 with no tokens.",
        "Look for a failed transfer or a proxy that swallowed an error.",
    ),
    Reason.TRUNCATED: ReasonText(
        "The answer stops early: it is a beginning of the baseline's answer.",
        "Look for a proxy or a decode-side failure; this is not labelled KV corruption.",
    ),
    Reason.FIRST_TOKEN: ReasonText(
        "The first token is lost or doubled against the baseline.",
        "Look at the proxy or at the hand-over between prefill and decode; this is not labelled KV corruption.",
    ),
    Reason.DEGENERATE: ReasonText(
        "The answer repeats itself without end while the baseline does not.",
        "Suspect NaN or zeroed state on the reused path.",
    ),
    Reason.NOTHING_CHECKED: ReasonText(
        "No group was judged, so nothing is known.",
        "Read the other reasons of the run; they say what stood in the way.",
    ),
    Reason.PATH_NOT_EXERCISED: ReasonText(
        "The request was not served by the path under test, and the engine never asked an external store.",
        "Check that the pool is configured and that its connector started (see the engine's start-up log).",
    ),
    Reason.EXTERNAL_MISS: ReasonText(
        "The engine asked the external store and the store did not hold the prompt, or held too little of it.",
        "Check that puts succeed and objects live long enough (capacity, lease, eviction); raise limits.put_deadline_s.",
    ),
    Reason.RESET_UNAVAILABLE: ReasonText(
        "The engine's local cache cannot be dropped, so a repeat would be a local hit and prove nothing.",
        "Start the engine with its developer endpoints (vLLM: VLLM_SERVER_DEV_MODE=1) or give a second instance "
        "of the same pool and use forcing: other_instance.",
    ),
    Reason.TRANSFER_NOT_EXERCISED: ReasonText(
        "The decode engine did not get the prompt's KV from the prefill engine.",
        "See that the proxy passes kv_transfer_params on, and start decode engines without prefix caching.",
    ),
    Reason.LOCAL_NOT_DROPPED: ReasonText(
        "The local cache was asked to go and still served tokens.",
        "Wait until the engine is idle, or use forcing: other_instance.",
    ),
    Reason.BASELINE_NOT_LOCAL: ReasonText(
        "The arm meant to be a local hit was not, so the exact comparison has no baseline.",
        "Check that prefix caching is on and that the cache is large enough for one prompt.",
    ),
    Reason.NOT_COLD: ReasonText(
        "The arm meant to be cold was served from a cache.",
        "Check that the prompt is new to this pool; a store that ignores salts must be declared (deployment.salts: ignored).",
    ),
    Reason.SALT_IGNORED: ReasonText(
        "A fresh cache salt did not make the prompt cold: the store ignores salts.",
        "Declare it (deployment.salts: ignored); the cold repeat is then left out and the report says what that costs.",
    ),
    Reason.LOAD_FAILED: ReasonText(
        "The lookup counted a hit but the tokens did not arrive; the engine computed them itself.",
        "Read the engine's log for the failed load; the pool or its transport is broken.",
    ),
    Reason.COUNTERS_UNREADABLE: ReasonText(
        "The engine's counters cannot be read, so no path can be proved.",
        "Make /metrics reachable and start the engine without --disable-log-stats.",
    ),
    Reason.EVIDENCE_MISSING: ReasonText(
        "The counters do not account for the request.",
        "Check that the metrics address belongs to the engine that answers, and that statistics are on.",
    ),
    Reason.EVIDENCE_TOO_WEAK: ReasonText(
        "The path is shown only by a weaker kind of evidence than the policy asks for.",
        "Use an engine that counts arrived tokens, or set policy.evidence: scheduled and accept what that leaves open.",
    ),
    Reason.SENSOR_CONFLICT: ReasonText(
        "Two sources of evidence contradict each other.",
        "Find out which one lies before trusting either; the report shows both.",
    ),
    Reason.FOREIGN_TRAFFIC: ReasonText(
        "The counters moved by more than kvgate sent: somebody else uses the deployment.",
        "Run the gate while nothing else sends requests to these endpoints.",
    ),
    Reason.COUNTER_RESET: ReasonText(
        "A counter fell or the process restarted between two readings.",
        "Check whether the engine restarted or several API processes answer /metrics in turn.",
    ),
    Reason.PREEMPTED: ReasonText(
        "The engine preempted a request meanwhile, which changes how KV came to be.",
        "Run with more free KV cache, or with less beside it.",
    ),
    Reason.RECOMPUTED: ReasonText(
        "The proxy or engine says it recomputed the request.",
        "Run when the decode side is not under pressure.",
    ),
    Reason.RANK_CHANGED: ReasonText(
        "Baseline and subject were served by different data-parallel ranks.",
        "Pin the rank (endpoints[].rank), or address one engine per endpoint; make what stands between pass the header.",
    ),
    Reason.PRESSURE_MISSING: ReasonText(
        "Requests that were to be in flight beside the groups' were not, so nothing is shown under pressure.",
        "Read the detail; lower gate.pressure.concurrency, or raise what the server takes at once.",
    ),
    Reason.OUTAGE_MISSING: ReasonText(
        "Tokens still came out of a cache after hooks.pool_down, so nothing is shown about an outage.",
        "Make hooks.pool_down return only when the pool is away, and check that it is the pool this engine reads.",
    ),
    Reason.NOT_RECOVERED: ReasonText(
        "After hooks.pool_up no hit came from the pool any more.",
        "Make hooks.pool_up return only when the pool serves again; if it does, the engine has to be restarted after "
        "an outage: raise it with its developers.",
    ),
    Reason.NOT_RELEASED: ReasonText(
        "After the last request an engine still held what it had not held before the first.",
        "See whether requests that clients left are given up (engine log); an engine that keeps what they held fills up. "
        "If it only takes longer, raise limits.release_s.",
    ),
    Reason.OBSERVATION_MISSING: ReasonText(
        "No complete answer came back, even when asked again.",
        "Read the detail (time-out, cut connection, 429, 503) and raise the limits or fix the server.",
    ),
    Reason.PROBE_REFUSED: ReasonText(
        "The server refused the request.",
        "Read the refusal quoted in the report; it names the field or limit.",
    ),
    Reason.IDS_INCOMPLETE: ReasonText(
        "The token IDs do not add up to what the server says it generated.",
        "Use an endpoint that returns all token IDs (vLLM: return_token_ids), not one behind a proxy that drops some.",
    ),
    Reason.TEXT_ONLY: ReasonText(
        "The endpoint returns text only, which hides most faults.",
        "Gate an endpoint that returns token IDs, or accept text with policy.accept_text_only.",
    ),
    Reason.LOGPROBS_UNUSABLE: ReasonText(
        "The logprobs are missing or not believable, so drift cannot be compared.",
        "Allow logprobs on the engine (vLLM: --max-logprobs), or accept token IDs alone with policy.accept_ids_only.",
    ),
    Reason.PROMPT_CHANGED: ReasonText(
        "The server says it saw other prompt tokens than were sent.",
        "Gate the engine directly; something between re-tokenises the prompt.",
    ),
    Reason.TOO_SHORT: ReasonText(
        "The answer has fewer than 8 tokens, too few to show anything.",
        "Keep requests.ignore_eos on, or raise requests.max_tokens.",
    ),
    Reason.UNSTABLE: ReasonText(
        "Answers differed, but not in a way that excludes chance: too seldom, or as the engine's own repeats do.",
        "Let the run go on while it is undecided (gate.more_groups), or raise gate.groups_per_tier; read the noise floor.",
    ),
    Reason.TIER_NOT_COVERED: ReasonText(
        "A tier asked for has no group that could be judged.",
        "Read the reasons of that tier's groups.",
    ),
    Reason.HOOK_FAILED: ReasonText(
        "A hook ended with an error or ran out of time.",
        "Run the hook by hand with the environment shown in the report.",
    ),
    Reason.ENDPOINT_LOST: ReasonText(
        "The deployment stopped answering during the run.",
        "Read the engine's log; restart it and run again.",
    ),
    Reason.INTERRUPTED: ReasonText(
        "The run was stopped before it was done.",
        "Run again; what was recorded can be judged with `kvgate judge`.",
    ),
    Reason.BUDGET_EXHAUSTED: ReasonText(
        "The run's budget of computed prompt tokens or time was used up before it was decided.",
        "Raise budget.computed_tokens or budget.minutes, or ask for fewer tiers.",
    ),
    Reason.POWER_TOO_LOW: ReasonText(
        "Fewer clean groups came by the path than the policy asks for: rarer faults than those excluded may be there.",
        "Raise gate.groups_per_tier to what the detail says, or policy.max_fault_rate to what you can live with.",
    ),
    Reason.RUNG_NOT_UP: ReasonText(
        "A rung of a ladder could not be brought up, or did not become ready in time.",
        "Read its log, named in the report; run the command by hand, or raise limits.up_s or limits.ready_s.",
    ),
    Reason.NOT_ACCEPTED: ReasonText(
        "A figure that the rung's acceptance list asks for is absent or out of its bounds: its answers may be right, and "
        "it does not do what it is there for.",
        "See why the figure is as it is (a transfer that fell back to TCP, a pool that is not used), or change the list.",
    ),
    Reason.FLOOR_WRONG: ReasonText(
        "A prompt below the predicted hit floor was served from a cache: the geometry is not what was assumed.",
        "Set the geometry in the configuration from the engine's start-up log.",
    ),
    Reason.BELOW_HIT_FLOOR: ReasonText(
        "A prompt this short can never be an external hit on this deployment.",
        "Ask for a longer tier; the report gives the floor.",
    ),
    Reason.NEAR_TIE: ReasonText(
        "The token IDs differ where two tokens are nearly equally likely, within the noise this run measured.",
        "Nothing to do; choose aligned lengths if you want no tolerance at all.",
    ),
    Reason.NOISE: ReasonText(
        "The logprobs differ within the noise this run measured.",
        "Nothing to do; choose aligned lengths if you want no tolerance at all.",
    ),
    Reason.DECLARED_LOSS: ReasonText(
        "The logprobs differ by less than the loss declared for this store.",
        "Nothing to do, if the declared bound is acceptable for your use.",
    ),
    Reason.TRANSFER_UNPROVEN: ReasonText(
        "Answers that were transferred to decode differ from what prefill answers alone, in most groups.",
        "Say in deployment.alike whether prefill and decode run alike: true makes any difference a failure, false allows "
        "for one within the tolerance.",
    ),
    Reason.ALIGNMENT_UNPROVEN: ReasonText(
        "Aligned lengths were chosen, but no group showed cold equal to local at exactly 0.0.",
        "State that was wrong when saved is then covered only by tolerance. Check chunk and granule (kvgate doctor); if "
        "the engine is known to differ there, set policy.accept_unproven_alignment.",
    ),
    Reason.CLEAN_ERROR: ReasonText(
        "While the pool was away the engine refused the request with an error, which is no wrong answer.",
        "Decide whether users may see that error; an engine that computes the prompt instead would spare them.",
    ),
    Reason.RETRIED: ReasonText(
        "The arm needed more than one attempt before its path was proved.",
        "Nothing to do if it stays rare; often it means puts are slow.",
    ),
}
