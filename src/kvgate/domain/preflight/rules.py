"""All rules, and what they find in a deployment's launch files."""

from dataclasses import dataclass

from kvgate.domain.preflight import rules_connectors, rules_engine, rules_pool
from kvgate.domain.preflight.deployment import Ignore, Launch
from kvgate.domain.preflight.rule import Doubt, Finding, Rule, Seen

RULES: tuple[Rule, ...] = tuple(
    sorted((*rules_connectors.RULES, *rules_pool.RULES, *rules_engine.RULES), key=lambda rule: rule.code)
)
BY_CODE = {rule.code: rule for rule in RULES}


@dataclass(frozen=True, slots=True)
class Linted:
    """What was found, by place, what could not be decided, and what a comment took back (with the comment)."""

    findings: tuple[Finding, ...]
    doubts: tuple[Doubt, ...]
    ignored: tuple[tuple[Finding, Ignore], ...] = ()


def lint(launch: Launch, rules: tuple[Rule, ...] = RULES) -> Linted:
    """Hold a deployment against rules. What a loop starts several times is told once."""
    findings: dict[tuple[object, ...], Finding] = {}
    doubts: dict[tuple[object, ...], Doubt] = {}
    for rule in rules:
        for each in rule.check(launch):
            if isinstance(each, Seen):
                findings.setdefault((rule.code, each.spot, each.said), Finding(rule, each.spot, each.said))
            else:
                doubts.setdefault((rule.code, each.spot, each.unknown), Doubt(rule, each.spot, each.unknown))
    found = sorted(findings.values(), key=lambda each: (each.spot, each.rule.code))
    taken = [(each, by) for each in found if (by := _ignored(launch, each)) is not None]
    return Linted(
        tuple(each for each in found if _ignored(launch, each) is None),
        tuple(sorted(doubts.values(), key=lambda each: (each.spot, each.rule.code))),
        tuple(taken),
    )


def _ignored(launch: Launch, finding: Finding) -> Ignore | None:
    return next((each for each in launch.ignores if each.covers(finding.rule.code, finding.spot)), None)
