"""Written histories of flips: near ties and others, in runs whose local repeat is not exact.

The envelope's cap of 0.5 nat decides, since no other group informs it.
"""

from dataclasses import replace

from kvgate.domain.observation import Observation
from kvgate.domain.probe import Arm
from tests.domain.judging import near_tie
from tests.domain.making import ARMS, TOKENS, Answers, answer
from tests.domain.recorded_answers import INF, NOISY_TIE, UNUSABLE, chosen, exact, listed, said, tolerant
from tests.domain.recorded_case import Case


def tie(at: int = 4, gap: float = 0.05, *, shift: float = 0.0, moved_at: int = 0) -> Observation:
    """A near tie at a position, with a shift somewhere."""
    ids = (*TOKENS[:at], TOKENS[at] + 1000, *TOKENS[at + 1 :])
    clean = answer(ids, gap=gap, shift=shift, at=moved_at)
    own = (clean.logprobs or ())[at] or 0.0
    return listed(at, (ids[at], TOKENS[at]), (own, own - gap), clean)


TIES = (
    tolerant("a near tie", "PASS", tie(), NOISY_TIE),
    tolerant("a near tie at the first token", "PASS", tie(0, moved_at=9), NOISY_TIE),
    tolerant("a near tie at the last token", "PASS", tie(15), NOISY_TIE),
    tolerant("a near tie, and drift before it", "FAIL DIVERGED", tie(shift=0.7, moved_at=3), NOISY_TIE),
    tolerant("a near tie, and drift at it", "FAIL DIVERGED", tie(shift=0.7, moved_at=4), NOISY_TIE),
    tolerant("a near tie, and a little drift before it", "PASS", tie(shift=0.3, moved_at=3), NOISY_TIE),
    tolerant("a near tie, and drift after it", "PASS", tie(shift=3.0, moved_at=5), NOISY_TIE),
    tolerant("a near tie, and no number after it", "PASS", chosen(9, None, tie()), NOISY_TIE),
    tolerant("a near tie, and nothing listed after it", "PASS", listed(9, (), (), tie()), NOISY_TIE),
    tolerant("a near tie, and nothing listed at it", UNUSABLE, listed(4, (), (), tie()), NOISY_TIE),
    tolerant("a flip the subject is sure of", "FAIL DIVERGED", tie(gap=0.7), NOISY_TIE),
    tolerant("a flip to a token that is not listed", "FAIL DIVERGED", answer((*TOKENS[:4], 9, *TOKENS[5:]))),
    tolerant(
        "a flip the baseline is sure of",
        "FAIL DIVERGED",
        tie(gap=0.05),
        {**{arm: answer(gap=0.6) for arm in ARMS}, Arm.LOCAL_REPEAT: answer(shift=0.02, gap=0.6)},
    ),
    tolerant("cut, and no tie", "FAIL TRUNCATED", said(TOKENS[:10])),
    tolerant("no tokens", "FAIL EMPTY", answer(())),
    tolerant("a first token lost", "FAIL FIRST_TOKEN", said((*TOKENS[1:], 7))),
    tolerant("repetition", "FAIL DEGENERATE", answer((*TOKENS[:4], *[9] * 12))),
    tolerant("drift of just over the cap", "FAIL DIVERGED", answer(shift=-0.5001)),
    tolerant("no number", "FAIL DIVERGED", chosen(2, None)),
    tolerant("the runner-up alone", "FAIL DIVERGED", listed(3, (103, 1103), (-0.5, -1.9))),
)


def looping_tie() -> Observation:
    """A near tie after which the answer repeats itself."""
    flipped = near_tie()
    ids = (*(flipped.token_ids or ())[:4], *[1104] * 12)
    looped = answer(ids, gap=0.05)
    return listed(4, (1104, 104), (-0.5, -0.55), looped)


def shifted_tie() -> Observation:
    """A near tie after which the answer runs one token behind."""
    ids = (*TOKENS[:4], 1104, *TOKENS[4:-1])
    return listed(4, (1104, 104), (-0.5, -0.55), answer(ids, gap=0.05))


AFTER_A_TIE = (
    tolerant("repetition after a near tie", "PASS", looping_tie(), NOISY_TIE),
    exact("repetition after a near tie", "FAIL DEGENERATE", looping_tie(), answer(gap=0.05)),
    tolerant("one token behind after a near tie", "PASS", shifted_tie(), NOISY_TIE),
)


def pulled(baseline: tuple[float, float], subject: tuple[float, float]) -> tuple[Observation, Observation]:
    """A flip from token 104 to 1104, each side with its logprobs of (104, 1104)."""
    flipped = answer((*TOKENS[:4], 1104, *TOKENS[5:]))
    return listed(4, (104, 1104), baseline), listed(4, (1104, 104), (subject[1], subject[0]), flipped)


def gaps(name: str, required: str, baseline: tuple[float, float], subject: tuple[float, float]) -> Case:
    """A flip with these logprobs, in a run whose local repeat drifts a little elsewhere."""
    left, right = pulled(baseline, subject)
    around: Answers = {**dict.fromkeys(ARMS, left), Arm.LOCAL_REPEAT: chosen(9, -0.52, left)}
    return tolerant(name, required, right, around)


def swapped(rows: tuple[tuple[int, float | None], ...], own: float | None = -0.5) -> Observation:
    """A flip to 1104 with these tokens listed and this logprob of its own."""
    flipped = answer((*TOKENS[:4], 1104, *TOKENS[5:]), gap=0.05)
    return chosen(4, own, listed(4, [token for token, _ in rows], [value for _, value in rows], flipped))


GAPS = (
    tolerant(
        "a flip to a token that only the subject lists",
        "FAIL DIVERGED",
        listed(4, (9, 104), (-0.5, -0.55), answer((*TOKENS[:4], 9, *TOKENS[5:]))),
        {
            **dict.fromkeys(ARMS, listed(4, (104, 8), (-0.5, -0.6))),
            Arm.LOCAL_REPEAT: chosen(9, -0.52, listed(4, (104, 8), (-0.5, -0.6))),
        },
    ),
    exact(
        "a near tie without its logprobs",
        "FAIL DIVERGED LOGPROBS_UNUSABLE",
        replace(tie(), top_logprobs=None),
        answer(gap=0.05),
    ),
    gaps("only the subject is sure of its token", "FAIL DIVERGED", (-0.5, -0.5), (-0.95, -0.05)),
    gaps("only the baseline is sure of its token", "FAIL DIVERGED", (-0.05, -0.95), (-0.5, -0.5)),
    gaps("the subject's gap at the cap", "PASS", (-0.75, -0.75), (-1.0, -0.5)),
    gaps("the baseline's gap at the cap", "PASS", (-0.5, -1.0), (-0.75, -0.75)),
    tolerant("a flip whose token the baseline does not list", "FAIL DIVERGED", swapped(((1104, -0.5), (104, -0.55)))),
    tolerant(
        "a flip to a token that is not among the likeliest", "PASS", swapped(((104, -0.55), (900, -0.6))), NOISY_TIE
    ),
    tolerant("a flip whose token has two logprobs", "PASS", chosen(4, -0.01, tie()), NOISY_TIE),
    tolerant("a flip whose own logprob is another", "PASS", chosen(4, -1.2, tie()), NOISY_TIE),
    tolerant("a flip from a token of no number", "FAIL DIVERGED", swapped(((1104, -0.5), (104, None))), NOISY_TIE),
    tolerant("a flip to a token of no number", "FAIL DIVERGED", swapped(((1104, None), (104, -0.55))), NOISY_TIE),
    tolerant(
        "no number after a flip on both sides",
        "INCONCLUSIVE UNSTABLE TIER_NOT_COVERED",
        chosen(5, None, tie()),
        {**NOISY_TIE, Arm.LOCAL: chosen(5, None, answer(gap=0.05))},
    ),
    tolerant(
        "one token behind from a near tie at the first",
        "PASS",
        listed(0, (1100, 100), (-0.5, -0.55), answer((1100, *TOKENS[:-1]), gap=0.05)),
        NOISY_TIE,
    ),
    tolerant(
        "the first token lost, as if by a near tie",
        "FAIL FIRST_TOKEN",
        listed(0, (101, 100), (-0.5, -0.55), said((*TOKENS[1:], 7))),
        {
            **dict.fromkeys(ARMS, listed(0, (100, 101), (-0.5, -0.55))),
            Arm.LOCAL_REPEAT: listed(0, (100, 101), (-0.52, -0.57)),
        },
    ),
    tolerant(
        "repetition after a flip to an impossible token",
        "FAIL DEGENERATE",
        listed(4, (1104, 104), (-INF, -0.55), answer((*TOKENS[:4], *[1104] * 12), gap=0.05)),
        NOISY_TIE,
    ),
    tolerant(
        "a near tie that ends too early",
        "INCONCLUSIVE TOO_SHORT TIER_NOT_COVERED",
        listed(
            4,
            (1104, 104),
            (-0.5, -0.55),
            replace(answer((*TOKENS[:4], 1104, 105, 106), gap=0.05), finish_reason="stop"),
        ),
        NOISY_TIE,
    ),
)

CASES: tuple[Case, ...] = (*TIES, *AFTER_A_TIE, *GAPS)
