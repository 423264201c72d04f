"""Policy, limits and budget of a configuration, as the domain wants them."""

from kvgate.config.schema import Config
from kvgate.domain.plan import Budget, Limits
from kvgate.domain.policy import Policy, PolicyName


def rules_of(config: Config, policy: PolicyName | None) -> tuple[Policy, Limits, Budget]:
    """Policy, limits and budget as the domain wants them."""
    said = config.policy
    chosen = Policy(
        name=policy or said.name,
        evidence=said.evidence,
        exercised_share=said.exercised_share,
        envelope_floor_nat=said.envelope_floor_nat,
        envelope_cap_nat=said.envelope_cap_nat,
        lossy_bound_nat=said.lossy_bound_nat,
        accept_ids_only=said.accept_ids_only or said.accept_text_only,
        accept_text_only=said.accept_text_only,
        accept_unproven_alignment=said.accept_unproven_alignment,
        alpha=said.alpha,
        required_sources=tuple(said.required_sources),
        first_token_ratio=said.first_token_ratio,
        max_fault_rate=said.max_fault_rate,
    )
    limits = Limits(
        settle_s=config.limits.settle_s,
        put_deadline_s=config.limits.put_deadline_s,
        external_attempts=config.limits.external_attempts,
        hopeless_groups=config.limits.hopeless_groups,
    )
    asked = config.budget
    budget = Budget(asked.computed_tokens, asked.minutes, asked.replacements, asked.requests)
    return chosen, limits, budget
