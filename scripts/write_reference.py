"""Write the generated parts of docs/reference from the code."""

import json
from pathlib import Path
from typing import Any

from kvgate.config.load import config_schema, ladder_schema, trace_schema
from kvgate.domain.preflight.rules import RULES
from kvgate.domain.reasons import REASONS, Reason
from kvgate.report.capacity_document import capacity_schema
from kvgate.report.compare_document import compare_schema
from kvgate.report.document import report_schema
from kvgate.report.ladder_document import ladder_report_schema
from kvgate.report.ledger_document import ledger_schemas
from kvgate.report.lint_document import lint_schema
from kvgate.report.measure_document import measure_schema
from kvgate.report.narrow_document import narrow_schema
from kvgate.report.soak_document import soak_schema
from kvgate.store.replay_file import replay_schema

RULE_SECTIONS = (
    ("KV0", "Files that cannot be read as they stand"),
    ("KV1", "Connectors"),
    ("KV2", "The pool"),
    ("KV3", "Prefill and decode"),
    ("KV4", "Speculation and scheduling"),
    ("KV5", "Prefix caching and prompts"),
    ("KV6", "Determinism"),
)
REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
SECTIONS = (
    (Reason.LEAK, "FAIL"),
    (Reason.NOTHING_CHECKED, "INCONCLUSIVE: the path"),
    (Reason.COUNTERS_UNREADABLE, "INCONCLUSIVE: the evidence"),
    (Reason.OBSERVATION_MISSING, "INCONCLUSIVE: the answers"),
    (Reason.TIER_NOT_COVERED, "INCONCLUSIVE: the run"),
    (Reason.BELOW_HIT_FLOOR, "Annotations, and what is not applicable"),
)


def reasons_page() -> str:
    """Every reason with its meaning and advice, in the order of the code."""
    starts = dict(SECTIONS)
    lines = ["# Reasons", "", "Written by `scripts/docs` from the code; `kvgate explain CODE` says the same."]
    for reason, text in REASONS.items():
        if reason in starts:
            lines += ["", f"## {starts[reason]}", "", "| code | meaning | what to do |", "|---|---|---|"]
        lines.append(f"| `{reason.value}` | {text.meaning} | {text.advice} |")
    return "\n".join(lines) + "\n"


def rules_page() -> str:
    """Every rule of lint, by what its code begins with."""
    lines = [
        "# Rules of lint",
        "",
        "Written by `scripts/docs` from the code; `kvgate explain CODE` says the same. An error or a warning makes",
        "`kvgate lint` end with 1, what is only to be known does not. Versions are those of vllm-ascend.",
    ]
    for begins, title in RULE_SECTIONS:
        lines += [
            "",
            f"## {title}",
            "",
            "| code | | what it finds | what to do | known from |",
            "|---|---|---|---|---|",
        ]
        for rule in RULES:
            if rule.code.startswith(begins):
                holds = f" ({rule.versions})" if rule.versions else ""
                cells = (f"`{rule.code}` {rule.name}", rule.severity.value, rule.what + holds, rule.remedy, rule.source)
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """File name to content of every generated page."""
    return {
        "config.schema.json": json.dumps(config_schema(), indent=1, ensure_ascii=False) + "\n",
        "report.schema.json": json.dumps(report_schema(), indent=1, ensure_ascii=False) + "\n",
        "trace.schema.json": json.dumps(trace_schema(), indent=1, ensure_ascii=False) + "\n",
        "ladder.schema.json": json.dumps(ladder_schema(), indent=1, ensure_ascii=False) + "\n",
        "ladder-report.schema.json": json.dumps(ladder_report_schema(), indent=1, ensure_ascii=False) + "\n",
        "soak.schema.json": json.dumps(soak_schema(), indent=1, ensure_ascii=False) + "\n",
        "narrow.schema.json": json.dumps(narrow_schema(), indent=1, ensure_ascii=False) + "\n",
        "compare.schema.json": json.dumps(compare_schema(), indent=1, ensure_ascii=False) + "\n",
        "replay.schema.json": json.dumps(replay_schema(), indent=1, ensure_ascii=False) + "\n",
        "measure.schema.json": json.dumps(measure_schema(), indent=1, ensure_ascii=False) + "\n",
        "lint.schema.json": json.dumps(lint_schema(), indent=1, ensure_ascii=False) + "\n",
        "capacity.schema.json": json.dumps(capacity_schema(), indent=1, ensure_ascii=False) + "\n",
        "reasons.md": reasons_page(),
        "rules.md": rules_page(),
        **{f"{name}.schema.json": _json(schema) for name, schema in ledger_schemas().items()},
    }


def _json(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, content in pages().items():
        (REFERENCE / name).write_text(content, encoding="utf-8")
        print(f"docs/reference/{name}")


if __name__ == "__main__":
    main()
