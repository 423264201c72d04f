"""Rungs of a ladder: what each sets, whether it can be at all, and what came of trying it.

Rules of validity and their sources: vLLM 0.26 config/speculative.py L1004-1027 (DSpark below the checkpoint's block
size yields garbled output), vllm-ascend docs DeepSeek-V4-Flash.md L1067 (DSpark levels of P and D are equal), vLLM
speculative configuration (MTP levels are multiples of the checkpoint's prediction layers).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvgate.domain.flags import Culprits, culprits
from kvgate.domain.ladder import Finding, Mode, finding
from kvgate.domain.reasons import Problem
from kvgate.domain.verdict import Verdict

DSPARK, MTP = "dspark", "mtp"


@dataclass(frozen=True, slots=True)
class Speculation:
    """The speculation of a rung.

    ``tokens`` is decode's level, ``prefill_tokens`` prefill's where it has one of its own. ``block`` is the
    checkpoint's DSpark block size, ``layers`` its MTP prediction layers. ``checkpoint`` is what the rung serves.
    """

    method: str
    tokens: int
    prefill_tokens: int | None = None
    checkpoint: str = ""
    block: int = 5
    layers: int = 1


@dataclass(frozen=True, slots=True)
class Rung:
    """A named deployment state. ``values`` fill the variables of templates, ``flags`` are the features that are on;
    ``gate`` is the path of what gates it, '' for the ladder's own."""

    name: str
    values: tuple[tuple[str, str | int | float | bool | tuple[str, ...]], ...]
    speculation: Speculation | None = None
    flags: frozenset[str] = frozenset()
    gate: str = ""


def why_invalid(rung: Rung, ladder: Sequence[Rung]) -> str | None:
    """Why a rung cannot be served, or would show something else than its neighbours; None if nothing speaks against."""
    said = rung.speculation
    if said is None:
        return None
    if said.method == DSPARK and said.tokens < said.block:
        return (
            f"DSpark with {said.tokens} tokens is below the checkpoint's dspark_block_size {said.block}: vLLM before "
            "0.26 serves garbled answers, later ones refuse to start"
        )
    if said.method == DSPARK and said.prefill_tokens not in (None, said.tokens):
        return f"DSpark needs one level on both sides: prefill has {said.prefill_tokens}, decode {said.tokens}"
    if said.method == MTP and said.tokens > said.layers and said.tokens % said.layers:
        return f"MTP with {said.tokens} tokens is no multiple of the checkpoint's {said.layers} prediction layers"
    others = [each.speculation for each in ladder if each.speculation is not None and each.speculation is not said]
    methods = {DSPARK, MTP}
    if said.method in methods and any(
        {each.method, said.method} == methods and each.checkpoint == said.checkpoint for each in others
    ):
        return (
            "MTP and DSpark weights are different checkpoints, and this ladder serves both from one; give each rung "
            "the checkpoint it serves, or make two ladders"
        )
    return None


@dataclass(frozen=True, slots=True)
class Figure:
    """What a command told before and after a rung was gated, each None where it told nothing, and then why."""

    name: str
    unit: str
    before: float | None
    after: float | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RungTried:
    """What came of one rung: a verdict, or why there is none.

    ``place`` is its place on the ladder (for sets of flags the number of the try), ``block`` the block size that the
    engine told, ``up_s`` and ``gate_s`` how long bringing it up and gating it took.
    """

    place: int
    name: str
    flags: tuple[str, ...]
    verdict: Verdict
    reasons: tuple[Problem, ...]
    run_id: str | None
    block: int | None
    up_s: float
    gate_s: float
    log: str | None = None
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True, slots=True)
class InvalidRung:
    """A rung that was not tried, and the rule."""

    place: int
    name: str
    rule: str


@dataclass(frozen=True, slots=True)
class Climb:
    """What a whole ladder shows. ``found`` is for ordered rungs, ``culprits`` for sets of flags."""

    mode: Mode
    verdict: Verdict
    claims: tuple[str, ...]
    tried: tuple[RungTried, ...]
    invalid: tuple[InvalidRung, ...]
    found: Finding | None
    culprits: Culprits | None


def climbed(rungs: Sequence[Rung], tried: Sequence[RungTried], invalid: Sequence[InvalidRung], mode: Mode) -> Climb:
    """What the rungs of an ordered ladder show that were tried so far."""
    seen = {each.place: each.verdict for each in tried}
    found = finding(len(rungs), seen)
    names = [rung.name for rung in rungs]
    claims = tuple(_claims(found, names, {each.place for each in invalid}))
    return Climb(mode, found.verdict, claims, tuple(tried), tuple(invalid), found, None)


def _claims(found: Finding, names: Sequence[str], invalid: set[int]) -> list[str]:
    def told(places: Sequence[int]) -> str:
        return ", ".join(names[place] for place in places)

    claims: list[str] = []
    untried = [place for place in found.untried if place not in invalid]
    if found.fails is not None:
        below = f"; {names[found.passes]} below it passes" if found.passes is not None else ""
        claims.append(f"{names[found.fails]} fails{below}")
        between = [place for place in found.between if place not in invalid]
        if between:
            claims.append(f"whether {told(between)} below {names[found.fails]} fails is not known")
    elif found.verdict is Verdict.PASS:
        claims.append("no rung fails")
    else:
        passed = [place for place in range(len(names)) if place not in (*found.undecided, *found.untried)]
        claims.append(f"no rung is shown to fail; those that pass: {told(passed) or 'none'}")
    if found.alone:
        claims.append(f"the ladder is not monotone: {told(found.alone)} above {names[found.fails or 0]} pass")
    if found.undecided:
        claims.append(f"undecided: {told(found.undecided)}")
    if untried:
        claims.append(f"not tried: {told(untried)}")
    return claims


def debugged(flags: Sequence[str], tried: Sequence[RungTried]) -> Climb:
    """What the sets of flags tried show. Call it once ``next_flags`` asks for no more."""
    found = culprits(flags, {frozenset(each.flags): each.verdict for each in tried})
    if found.flags is None:
        verdict = Verdict.INCONCLUSIVE if found.undecided else Verdict.PASS
        claim = "is undecided" if found.undecided else "passes, so no flag is to blame"
        claims = [f"the deployment with all flags {claim}"]
    elif found.fails_bare:
        verdict, claims = Verdict.FAIL, ["the deployment fails without any of the flags"]
    else:
        verdict, together = Verdict.FAIL, ", ".join(found.flags)
        claims = [f"{together} {'together make' if len(found.flags) > 1 else 'makes'} the deployment fail"]
        needed = [each for each in found.flags if each not in found.needless]
        if len(found.flags) > 1 and needed:
            claims.append(f"without any one of {', '.join(needed)} it passes")
        if found.needless:
            claims.append(f"whether it takes {', '.join(found.needless)} is not known: without it nothing was decided")
    return Climb(Mode.FLAGS, verdict, tuple(claims), tuple(tried), (), None, found)
