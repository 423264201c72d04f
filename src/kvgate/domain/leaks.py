"""Which answers hold another prompt's nonce, or answer another prompt: whatever they are compared with."""

from collections.abc import Mapping
from dataclasses import replace

from kvgate.domain.group_view import GroupView
from kvgate.domain.plan import Plan, warmup_name
from kvgate.domain.prompt import NONCE_DIGITS, nonce_of
from kvgate.domain.standing import repeats_of


def with_leaks(
    plan: Plan, views: tuple[GroupView, ...], prompts: Mapping[str, str] | None = None
) -> tuple[GroupView, ...]:
    """The same groups, each told which of its answers hold another prompt's nonce, or answer another prompt.

    Prompts of replaced groups and warm-up ones count, too; ``prompts`` are the names of those sent, by digest.
    """
    nonces = [(view.record.plan.id, view.record.plan.nonce) for view in views]
    shortest = plan.warmup_group()
    if shortest is not None:
        key = (shortest.family, shortest.language)
        endpoints = {step.endpoint for group in plan.groups for step in group.steps}
        names = [warmup_name(endpoint) for endpoint in sorted(endpoints)]
        nonces += [(name, nonce_of(plan.seed, name, key)) for name in names]
    return tuple(replace(view, leaks=_leaks(plan, view, nonces, prompts or {})) for view in views)


def _leaks(plan: Plan, view: GroupView, nonces: list[tuple[str, str]], prompts: Mapping[str, str]) -> tuple[str, ...]:
    mine = view.record.plan.id
    arms = tuple(dict.fromkeys(step.arm for step in view.record.plan.steps))
    found: list[str] = []
    for each in repeats_of(plan, view.record, arms):
        echo = each.observation.echo_sha256 if each.observation is not None else None
        answered = prompts.get(echo, mine) if echo else mine
        if answered != mine:
            found.append(f"{each.arm.value} is the answer to prompt {answered}, by the prompt that came back with it")
        text = "".join(each.observation.text.split()) if each.observation is not None else ""
        digits = "".join(char for char in text if char.isdigit())
        if len(digits) >= NONCE_DIGITS:
            found += [
                f"{each.arm.value} answers with the nonce of prompt {name}"
                for name, nonce in nonces
                if name != mine and nonce in text
            ]
    return tuple(found)
