"""Written histories of the comparison: answers that part, drift, or cannot be compared, each on an exact pair.

"Tolerant" ones have a local repeat that is not exact, so that the envelope's cap of 0.5 nat decides.
"""

from collections.abc import Sequence
from dataclasses import replace

from kvgate.domain.observation import Observation, Usage
from kvgate.domain.policy import Policy, PolicyName
from kvgate.domain.probe import Arm
from tests.domain.judging import NOISY, OTHER, TIED, both
from tests.domain.making import ARMS, LENGTH, TOKENS, Answers, answer
from tests.domain.recorded_case import Case, Given, bare, of_one, text_only
from tests.domain.recorded_evidence import open_by

LONG = tuple(range(100, 124))
INF, NAN = float("inf"), float("nan")
NOISY_TIE: Answers = {**TIED, Arm.LOCAL_REPEAT: answer(shift=0.02, gap=0.05)}
UNUSABLE = "INCONCLUSIVE LOGPROBS_UNUSABLE TIER_NOT_COVERED"


def marked(mark: str, required: str) -> Case:
    """Every answer is right and bears a mark of the reader."""
    return of_one(f"marked: {mark}", required, dict.fromkeys(ARMS, replace(answer(), marks=(mark,))))


MARKED = (
    *(marked(mark, open_by("IDS_INCOMPLETE")) for mark in ("ids-ambiguous", "ids-contradict", "restarted")),
    marked("logprobs-misplaced", UNUSABLE),
    marked("retried", "PASS"),
)


def said(ids: Sequence[int]) -> Observation:
    """A whole answer, whatever its length."""
    return replace(answer(ids), finish_reason="stop")


def apart(name: str, required: str, left: Sequence[int], right: Sequence[int]) -> Case:
    """Every arm answers ``left``, the external ones ``right``."""
    return of_one(name, required, {**dict.fromkeys(ARMS, said(left)), **both(said(right))})


def chosen(at: int, value: float | None, of: Observation | None = None) -> Observation:
    """An answer with another logprob of one chosen token; its top-k stays."""
    base = of or answer()
    values = list(base.logprobs or ())
    values[at] = value
    return replace(base, logprobs=tuple(values))


def listed(at: int, ids: Sequence[int], values: Sequence[float | None], of: Observation | None = None) -> Observation:
    """An answer with another top-k at one position."""
    base = of or answer()
    top_ids, top_values = list(base.top_ids or ()), list(base.top_logprobs or ())
    top_ids[at], top_values[at] = tuple(ids), tuple(values)
    return replace(base, top_ids=tuple(top_ids), top_logprobs=tuple(top_values))


def exact(name: str, required: str, subject: Observation, rest: Observation | None = None) -> Case:
    """External answers on an exact pair."""
    others = dict.fromkeys(ARMS, rest) if rest is not None else {}
    return of_one(name, required, {**others, **both(subject)})


def tolerant(name: str, required: str, subject: Observation, around: Given = NOISY) -> Case:
    return of_one(f"tolerant: {name}", required, {**around, **both(subject)})


LOOP = [5, 6, 7, 8]
KINDS = (
    apart("one token", "FAIL DIVERGED", TOKENS, (*TOKENS[:4], 9, *TOKENS[5:])),
    apart("the last token", "FAIL DIVERGED", TOKENS, (*TOKENS[:-1], 9)),
    apart("one token more", "FAIL DIVERGED", TOKENS, (*TOKENS, 9)),
    apart("shorter and other", "FAIL DIVERGED", TOKENS, (*TOKENS[:4], 9, 10, 11, 12, 13)),
    apart("cut to one token", "FAIL TRUNCATED", TOKENS, TOKENS[:1]),
    apart("cut by one token", "FAIL TRUNCATED", TOKENS, TOKENS[:-1]),
    apart("the first token lost, no new one", "FAIL FIRST_TOKEN", TOKENS, TOKENS[1:]),
    apart("the first token lost, of nine", "FAIL FIRST_TOKEN", TOKENS[:9], TOKENS[1:9]),
    apart("the first token lost, of eight", "FAIL DIVERGED", TOKENS[:8], TOKENS[1:8]),
    apart("the first token lost, and the end", "FAIL FIRST_TOKEN", TOKENS, TOKENS[1:12]),
    apart("the first token lost, and more added", "FAIL FIRST_TOKEN", TOKENS, (*TOKENS[1:], 7, 8, 9)),
    apart("the first token doubled, of nine", "FAIL FIRST_TOKEN", TOKENS[:9], (TOKENS[0], *TOKENS[:8])),
    apart("the first token doubled, of eight", "FAIL DIVERGED", TOKENS[:8], (TOKENS[0], *TOKENS[:7])),
    apart("the first token doubled, at the end a new one", "FAIL FIRST_TOKEN", TOKENS, (TOKENS[0], *TOKENS)),
    apart("another first token put before", "FAIL DIVERGED", TOKENS, (7, *TOKENS[:-1])),
    apart("two tokens put before", "FAIL DIVERGED", TOKENS, (7, 8, *TOKENS[:-2])),
    apart("two tokens lost", "FAIL DIVERGED", TOKENS, (*TOKENS[2:], 7, 8)),
    apart("eight tokens put before", "FAIL DIVERGED", LONG, (*range(8), *LONG[:-8])),
    apart("nine tokens put before", "FAIL DIVERGED", LONG, (*range(9), *LONG[:-9])),
    apart("eight tokens lost", "FAIL DIVERGED", LONG, (*LONG[8:], *range(8))),
    apart("nine tokens lost", "FAIL DIVERGED", LONG, (*LONG[9:], *range(9))),
    apart("eight tokens put before, seven left", "FAIL DIVERGED", TOKENS[:15], (*range(8), *TOKENS[:7])),
    apart("two tokens put before, then others", "FAIL DIVERGED", LONG, (7, 8, *LONG[:6], *range(9, 17), *LONG[14:-2])),
    apart("eight tokens put before, eight left", "FAIL DIVERGED", TOKENS, (*range(8), *TOKENS[:8])),
    apart("one token put before, one added", "FAIL DIVERGED", TOKENS, (7, *TOKENS[:-1], 9)),
    apart("two tokens lost, then others", "FAIL DIVERGED", LONG, (*LONG[2:18], 7, 8)),
    apart("a token in the middle lost", "FAIL DIVERGED", TOKENS, (*TOKENS[:3], *TOKENS[4:], 7)),
    apart("a period of one", "FAIL DEGENERATE", TOKENS, (*TOKENS[:4], *[9] * 12)),
    apart("a period of two", "FAIL DEGENERATE", TOKENS, (*TOKENS[:4], *[5, 6] * 6)),
    apart("a period of three", "FAIL DEGENERATE", TOKENS, (*TOKENS[:4], *[5, 6, 7] * 4)),
    apart("a period of four", "FAIL DEGENERATE", TOKENS, (*TOKENS[:4], *LOOP * 3)),
    apart("a period of five", "FAIL DIVERGED", TOKENS, (*TOKENS[:1], *[5, 6, 7, 8, 9] * 3)),
    apart("eleven equal tokens", "FAIL DIVERGED", TOKENS, (*TOKENS[:5], *[9] * 11)),
    apart("twelve equal tokens and no others", "FAIL DEGENERATE", TOKENS, [9] * 12),
    apart("equal tokens before the end", "FAIL DIVERGED", LONG, (*[9] * 14, *LONG[14:])),
    apart("repetition on both sides", "FAIL DIVERGED", (1, 2, *[5] * 14), (1, 3, *[5] * 14)),
    apart("repetition of the baseline only", "FAIL DIVERGED", (*TOKENS[:2], *[5] * 14), TOKENS),
    apart("a loop that lags", "FAIL DIVERGED", (*LOOP * 4, *LOOP[:3]), (LOOP[0], *LOOP * 4, *LOOP[:2])),
    apart("a loop that is ahead", "FAIL DIVERGED", LOOP * 4, (*LOOP[1:], *LOOP * 3, 5)),
)

DRIFTS = (
    exact("the chosen token's logprob alone moved", "FAIL DRIFT", chosen(3, -0.5 + 1e-9)),
    exact("the first chosen token's moved", "FAIL DRIFT", chosen(0, -0.6)),
    exact("the last chosen token's moved", "FAIL DRIFT", chosen(15, -0.4)),
    exact("the runner-up alone moved", "FAIL DRIFT", listed(3, (103, 1103), (-0.5, -2.25))),
    exact("the last runner-up alone moved", "FAIL DRIFT", listed(15, (115, 1115), (-0.5, -2.75))),
    exact("the top-k in another order", "PASS", listed(3, (1103, 103), (-2.5, -0.5))),
    exact("another runner-up, as likely", "PASS", listed(3, (103, 7), (-0.5, -2.5))),
    exact("another runner-up, likelier", "FAIL DIVERGED DRIFT", listed(3, (103, 7), (-0.5, -1.5))),
    exact("another runner-up, less likely", "FAIL DIVERGED DRIFT", listed(3, (103, 7), (-0.5, -3.5))),
    exact("one token less listed", "PASS", listed(3, (103,), (-0.5,))),
    exact("one token more listed, less likely", "PASS", listed(3, (103, 1103, 7), (-0.5, -2.5, -9.0))),
    exact("one token more listed, likelier", "FAIL DIVERGED DRIFT", listed(3, (103, 1103, 7), (-0.5, -2.5, -1.0))),
    exact(
        "an unlikely chosen token listed by both",
        "PASS",
        listed(3, (900, 901, 103), (-0.1, -0.2, -7.0)),
        listed(3, (900, 902, 103), (-0.1, -0.2, -7.0)),
    ),
    exact(
        "an unlikely chosen token bounds nothing",
        "FAIL DRIFT",
        listed(3, (900, 901, 103), (-0.1, -0.2, -7.0)),
        listed(3, (900, 902, 103), (-0.1, -0.3, -7.0)),
    ),
    exact("no number", "FAIL DIVERGED DRIFT", chosen(2, None)),
    exact("not a number", "FAIL DIVERGED DRIFT", chosen(2, NAN)),
    exact("infinitely unlikely", "FAIL DIVERGED DRIFT", chosen(2, -INF)),
    exact("no number in the top-k", "FAIL DIVERGED DRIFT", listed(2, (102, 1102), (-0.5, None))),
    exact("infinitely unlikely on both sides", "PASS", chosen(2, -INF), chosen(2, -INF)),
    exact("no number on both sides", UNUSABLE, chosen(2, None), chosen(2, None)),
    exact("no number at different places", "FAIL DIVERGED LOGPROBS_UNUSABLE", chosen(2, None), chosen(3, None)),
    exact("no number in the top-k on both sides", "PASS", *[listed(2, (102, 1102), (-0.5, None))] * 2),
    exact("nothing listed at one position", UNUSABLE, listed(2, (), ())),
    exact("nothing listed at the last position", UNUSABLE, listed(15, (), ())),
    exact("nothing listed at one position of the baseline", UNUSABLE, answer(), listed(2, (), ())),
    exact("every logprob zero", UNUSABLE, replace(answer(), logprobs=(0.0,) * 16)),
    exact("every logprob of the baseline zero", UNUSABLE, answer(), replace(answer(), logprobs=(0.0,) * 16)),
    exact("one logprob zero", "FAIL DRIFT", chosen(2, 0.0)),
    exact("one logprob missing", UNUSABLE, replace(answer(), logprobs=(answer().logprobs or ())[:-1])),
    exact("one row of IDs missing", UNUSABLE, replace(answer(), top_ids=(answer().top_ids or ())[:-1])),
    exact("one row of logprobs missing", UNUSABLE, replace(answer(), top_logprobs=(answer().top_logprobs or ())[:-1])),
    exact("no logprobs", UNUSABLE, bare(answer())),
    exact("no logprobs of the chosen tokens", UNUSABLE, replace(answer(), logprobs=None)),
    exact("no logprobs of the top-k", UNUSABLE, replace(answer(), top_logprobs=None)),
    exact("no IDs of the top-k", UNUSABLE, replace(answer(), top_ids=None)),
    exact("no logprobs of the baseline", UNUSABLE, answer(), bare(answer())),
    of_one(
        "one token whose logprob is zero",
        "PASS",
        dict.fromkeys(ARMS, chosen(0, 0.0, replace(answer(TOKENS[:1]), finish_reason="stop"))),
        policy=Policy(min_output_tokens=1),
    ),
)


def runner_up(*rows: tuple[int, float | None]) -> Observation:
    """The clean answer with these tokens listed at position 3."""
    return listed(3, [token for token, _ in rows], [value for _, value in rows])


CHOSEN = (103, -0.5)
LISTS = (
    exact("two tokens changed places in the top-k", "FAIL DIVERGED DRIFT", runner_up((1103, -0.5), (103, -2.5))),
    of_one(
        "tolerant: a listed token 0 moved",
        "PASS",
        {
            **{arm: runner_up(CHOSEN, (0, -1.0), (9, -3.0)) for arm in ARMS},
            Arm.LOCAL_REPEAT: answer(shift=0.02),
            **both(runner_up(CHOSEN, (0, -1.2), (9, -3.0))),
        },
    ),
    exact(
        "a token 0 is the least likely of the baseline",
        "FAIL DIVERGED DRIFT",
        runner_up(CHOSEN, (7, -1.5)),
        runner_up(CHOSEN, (0, -2.5)),
    ),
    exact("a token 0 that only the subject lists", "FAIL DIVERGED DRIFT", runner_up(CHOSEN, (0, -1.5))),
    exact(
        "the likeliest token alone is listed, and another is likelier",
        "FAIL DRIFT",
        runner_up(CHOSEN, (7, -0.1)),
        runner_up(CHOSEN),
    ),
    exact(
        "no number bounds nothing",
        "PASS",
        runner_up(CHOSEN, (8, -3.0), (7, -1.0)),
        runner_up(CHOSEN, (8, -3.0), (1103, None)),
    ),
    exact("a likely token beside one of no number", "FAIL DIVERGED DRIFT", runner_up(CHOSEN, (7, -1.0), (8, None))),
    exact(
        "no number in the top-k on both sides, and another order elsewhere",
        "PASS",
        listed(5, (1105, 105), (-2.5, -0.5), runner_up(CHOSEN, (1103, None))),
        runner_up(CHOSEN, (1103, None)),
    ),
    exact(
        "infinitely unlikely in the top-k on both sides, and another order elsewhere",
        "PASS",
        listed(5, (1105, 105), (-2.5, -0.5), runner_up(CHOSEN, (1103, -INF))),
        runner_up(CHOSEN, (1103, -INF)),
    ),
    of_one(
        "two tokens whose logprobs are zero",
        UNUSABLE,
        dict.fromkeys(ARMS, replace(answer(TOKENS[:2]), logprobs=(0.0, 0.0), finish_reason="stop")),
        policy=Policy(min_output_tokens=1),
    ),
    exact(
        "other tokens, and no IDs of the top-k", "FAIL DIVERGED LOGPROBS_UNUSABLE", replace(answer(OTHER), top_ids=None)
    ),
    exact(
        "other tokens, and no logprobs of the top-k",
        "FAIL DIVERGED LOGPROBS_UNUSABLE",
        replace(answer(OTHER), top_logprobs=None),
    ),
    exact(
        "other tokens, and no rows at them",
        "FAIL DIVERGED LOGPROBS_UNUSABLE",
        replace(answer(OTHER), top_ids=(answer().top_ids or ())[:4], top_logprobs=(answer().top_logprobs or ())[:4]),
    ),
)

SHORT_IDS = {**dict.fromkeys(ARMS, replace(answer(TOKENS[:7]), finish_reason="stop"))}
EIGHT = {**dict.fromkeys(ARMS, replace(answer(TOKENS[:8]), finish_reason="stop"))}
UNEVEN = {**EIGHT, **both(replace(answer(TOKENS[:7]), finish_reason="stop"))}
TEXT: Answers = dict.fromkeys(ARMS, text_only("one"))
TEXT_OK = Policy(accept_text_only=True, accept_ids_only=True)


NO_TOKENS = replace(text_only("one"), usage=Usage(LENGTH, 0))
GRADES = (
    of_one("a text of no tokens, of the baseline", open_by("EMPTY"), {**TEXT, Arm.LOCAL: NO_TOKENS}, policy=TEXT_OK),
    of_one("a text of no tokens, of the subject", open_by("EMPTY"), {**TEXT, **both(NO_TOKENS)}, policy=TEXT_OK),
    of_one("seven tokens", open_by("TOO_SHORT"), SHORT_IDS),
    of_one("seven tokens, accepted", "PASS", SHORT_IDS, policy=Policy(min_output_tokens=7)),
    of_one("eight tokens", "PASS", EIGHT),
    of_one("IDs without logprobs", open_by("LOGPROBS_UNUSABLE"), dict.fromkeys(ARMS, bare(answer()))),
    of_one(
        "IDs without logprobs, accepted",
        "PASS",
        dict.fromkeys(ARMS, bare(answer())),
        policy=Policy(accept_ids_only=True),
    ),
    of_one("text only", open_by("TEXT_ONLY"), TEXT),
    of_one("text only, accepted", "PASS", TEXT, policy=TEXT_OK),
    of_one("text only, other hits", open_by("TEXT_ONLY"), {**TEXT, **both(text_only("two"))}, policy=TEXT_OK),
    of_one(
        "text only, other hits, strict",
        "FAIL TOKENS_DIFFER",
        {**TEXT, **both(text_only("two"))},
        policy=replace(TEXT_OK, name=PolicyName.STRICT),
    ),
    of_one(
        "text only, other cold runs",
        "INCONCLUSIVE TEXT_ONLY TIER_NOT_COVERED",
        {**TEXT, Arm.COLD: text_only("two"), Arm.COLD_REPEAT: text_only("two")},
        policy=TEXT_OK,
    ),
    of_one("no text", open_by("EMPTY"), dict.fromkeys(ARMS, replace(text_only("x"), text="")), policy=TEXT_OK),
    of_one(
        "no text of the baseline",
        "INCONCLUSIVE TEXT_ONLY TIER_NOT_COVERED",
        {**TEXT, Arm.LOCAL: replace(text_only("x"), text="")},
        policy=TEXT_OK,
    ),
    of_one(
        "no text of the subject",
        "INCONCLUSIVE TEXT_ONLY TIER_NOT_COVERED",
        {**TEXT, **both(replace(text_only("x"), text=""))},
        policy=TEXT_OK,
    ),
    of_one(
        "a text of no tokens",
        open_by("EMPTY"),
        dict.fromkeys(ARMS, replace(text_only("x"), usage=Usage(LENGTH, 0))),
        policy=TEXT_OK,
    ),
    of_one("a text without usage", "PASS", dict.fromkeys(ARMS, replace(text_only("x"), usage=None)), policy=TEXT_OK),
    of_one(
        "IDs of some arms only",
        "PASS",
        {**dict.fromkeys(ARMS, bare(answer(text="one"))), **both(text_only("one"))},
        policy=TEXT_OK,
    ),
    of_one(
        "IDs of hits only",
        "PASS",
        {**dict.fromkeys(ARMS, bare(answer(text="one"))), Arm.COLD: text_only("one")},
        policy=TEXT_OK,
    ),
    of_one(
        "other IDs without logprobs, strict",
        "FAIL TOKENS_DIFFER",
        {**dict.fromkeys(ARMS, bare(answer())), **both(bare(answer(OTHER)))},
        policy=Policy(name=PolicyName.STRICT, accept_ids_only=True),
    ),
)

CASES: tuple[Case, ...] = (*KINDS, *DRIFTS, *LISTS, *GRADES, *MARKED)
