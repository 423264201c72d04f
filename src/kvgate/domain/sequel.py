"""Going on while a run is undecided: what more groups could settle, and which ones.

The groups a tier has are doubled from look to look, so that few looks reach far; each look has an equal share of the
policy's alpha (``excess.run_tests``), so that stopping when it suits does not make a healthy run fail more often.
"""

from dataclasses import replace

from kvgate.domain.plan import GroupPlan, Plan, Purpose
from kvgate.domain.planning import Prompts
from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.ruling import GroupVerdict, RunVerdict
from kvgate.domain.verdict import Verdict

# How improbable what is seen has to be, were all well, for more groups to be worth their while: three of three loads
# that drift further are one in eight.
SUSPICIOUS = 0.15


def undecided(ruling: RunVerdict) -> Problem | None:
    """What more groups could settle, or None if the run is decided, or more of the same would not help.

    The run is not at its end, so of the ruling only what its groups and its tests say is looked at.
    """
    counted = [group for group in ruling.groups if not group.replaced]
    if any(group.verdict is Verdict.FAIL for group in counted) or any(test.rejects for test in ruling.tests):
        return None
    unstable = next((group for group in counted if _first(group, Reason.UNSTABLE)), None)
    if unstable is not None:
        return Problem(Reason.UNSTABLE, f"in group {unstable.id} answers differ, which may be chance")
    told = min((test for test in ruling.tests if test.worth), key=lambda test: test.p_value, default=None)
    if told is not None and told.p_value < SUSPICIOUS:
        return Problem(Reason.EXCESS_DIVERGENCE, f"{told.seen} (p = {told.p_value:.2g}), which may be chance")
    return None


def _first(group: GroupVerdict, reason: Reason) -> Problem | None:
    return next((problem for problem in group.reasons if problem.reason is reason), None)


def further_groups(plan: Plan, number: int, prompts: Prompts) -> tuple[GroupPlan, ...]:
    """The groups of a further round (the first is 1): each tier's, with prompts of their own."""
    made: list[GroupPlan] = []
    for tier in plan.tiers():
        models = [group for group in plan.groups if (group.tier, group.purpose) == (tier, Purpose.TIER)]
        for place in range(plan.rounds[number - 1]):
            model = models[place % len(models)]
            name = f"t{tier}-r{number}-{place + 1}"
            prompt = prompts.make((model.family, model.language), name, model.length)
            made.append(replace(model, id=name, nonce=prompt.nonce, asked=prompt.asked, prompt_sha256=prompt.sha256))
    return tuple(made)


def sequel_notes(plan: Plan) -> tuple[str, ...]:
    """How far a run may go on, and what that costs at most."""
    if not plan.rounds:
        return ()
    each = {group.tier: group for group in plan.groups if group.purpose is Purpose.TIER}
    tokens = sum(plan.rounds) * sum(map(plan.group_tokens, each.values()))
    rounds = ", then ".join(map(str, plan.rounds))
    return (
        f"while the run is undecided, {rounds} more groups a tier are sent: at most {tokens} further prompt tokens to "
        f"compute, within the budget; each of the {plan.looks} looks has an equal share of policy.alpha",
    )
