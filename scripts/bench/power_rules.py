"""The rules people hold two answers together with today, as policies over the record of a gate run.

They look at answers only, never at the path those came by. Each takes the first attempt at an arm, which is what
somebody gets who sends the request once. An error in place of the second answer fails every rule: anybody notices it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvgate.domain.observation import Observation
from kvgate.domain.pairing import recall
from kvgate.domain.probe import Arm
from kvgate.domain.record import RunRecord

FAILS, PASSES, NOTHING = "FAIL", "PASS", "NONE"
TIE_NAT = 0.1
RECALL_LOST = 0.05


@dataclass(frozen=True, slots=True)
class Twice:
    """One prompt sent twice: the answer that was computed, and the second one."""

    first: Observation
    second: Observation
    asked: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its name, what it asks for, where the second answer comes from, and whether all pairs pass it."""

    name: str
    sentence: str
    second: Arm
    passes: Callable[[tuple[Twice, ...]], bool]


def judged_by(rule: Rule, record: RunRecord) -> str:
    """FAIL, PASS, or NONE where no prompt was sent twice."""
    pairs = tuple(sent_twice(record, rule.second))
    if not pairs:
        return NOTHING
    if not all(pair.second.ok for pair in pairs):
        return FAILS
    return PASSES if rule.passes(pairs) else FAILS


def sent_twice(record: RunRecord, second: Arm) -> Iterator[Twice]:
    """The groups whose cold run was answered, and whose second request was sent and came to an end."""
    for group in record.groups.values():
        sides = [next(iter(group.of(arm)), None) for arm in (Arm.COLD, second)]
        one, other = (side.observation if side is not None else None for side in sides)
        if one is not None and one.ok and other is not None:
            yield Twice(one, other, group.plan.asked)


def same_ids(pairs: tuple[Twice, ...]) -> bool:
    """Every second answer has the first one's token IDs."""
    return all(pair.first.token_ids == pair.second.token_ids for pair in pairs)


def same_text(pairs: tuple[Twice, ...]) -> bool:
    """Every second answer has the first one's text."""
    return all(pair.first.text == pair.second.text for pair in pairs)


def near_ties(pairs: tuple[Twice, ...]) -> bool:
    """Where two answers part, each side holds the other's token for at most 0.1 nat less likely than its own."""
    return all(_is_near_tie(pair.first, pair.second) for pair in pairs)


def _is_near_tie(one: Observation, other: Observation) -> bool:
    left, right = one.token_ids or (), other.token_ids or ()
    if left == right:
        return True
    at = next((place for place, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), None)
    if at is None:
        return False
    sides = ((one, left[at], right[at]), (other, right[at], left[at]))
    return all(_lead(side, at, mine, theirs) <= TIE_NAT for side, mine, theirs in sides)


def _lead(side: Observation, at: int, mine: int, theirs: int) -> float:
    """By how much (nats) a side held its own token likelier than the other's; infinite where it does not list it."""
    if side.top_ids is None or side.top_logprobs is None or at >= len(side.top_ids):
        return float("inf")
    listed = dict(zip(side.top_ids[at], side.top_logprobs[at], strict=False))
    own, other = listed.get(mine), listed.get(theirs)
    return float("inf") if own is None or other is None else own - other


def recall_holds(pairs: tuple[Twice, ...]) -> bool:
    """The share of codewords the second answers hold is at most 5 percentage points below the first answers'."""
    asked = sum(len(pair.asked) for pair in pairs)
    lost = sum(recall(pair.first, pair.asked) - recall(pair.second, pair.asked) for pair in pairs)
    return asked == 0 or lost / asked <= RECALL_LOST


RULES = (
    Rule("IDs", "same prompt twice, cache dropped between, equal token IDs", Arm.EXTERNAL, same_ids),
    Rule("text", "same prompt twice, cache dropped between, equal text", Arm.EXTERNAL, same_text),
    Rule("0.1 nat", "the same; a differing token is allowed within 0.1 nat of the likeliest", Arm.EXTERNAL, near_ties),
    Rule("recall", "the same; recall of codewords at most 5 percentage points lower", Arm.EXTERNAL, recall_holds),
    Rule("IDs, no drop", "same prompt twice, nothing dropped between, equal token IDs", Arm.LOCAL, same_ids),
)
