"""How often the gate finds what is wrong, and how often it cries wolf, on the embedded deployment.

Every run is the real gate against a simulated engine in this process. Fault classes are the rows of the fault table
that must FAIL on one engine; lengths are divided so that blocks have two tokens. Beside the gate, rules in use today
judge the same records.
"""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path

from power_cells import (
    CLASS,
    CLEAN,
    REAL,
    REAL_SEEDS,
    REAL_TIERS,
    VACUOUS,
    WHOLE,
    Result,
    Task,
    carry_out,
    classes,
    clean_tasks,
    fault_tasks,
    real_length_tasks,
    vacuous,
    whole_run_tasks,
)
from power_keeping import fingerprint, measure_rest, rows_of
from power_page import fill
from power_rules import RULES
from power_table import Limit, Rows, class_rows, clean_rows, limits, markdown, notes, vacuous_rows

KINDS = (CLASS, VACUOUS, WHOLE, REAL, CLEAN)
# The engine of the many clean runs costs half of what the dense one does; a few runs are made on each of the others.
MANY_RUNS = ("gdn-hybrid",)
OTHER_ENGINES = ("dense", "swa-hybrid", "deepseek-v4.1")
# What a result hangs on, beside the package: with another of these it is measured again.
MEASURING = ("power_gate.py", "power_cells.py", "power_rules.py")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Detection and false-alarm rates of the gate (simulator)")
    parser.add_argument("--seeds", type=int, default=20, help="seeds per class and tier")
    parser.add_argument("--classes", nargs="*", default=[], metavar="FAULT", help="only these rows of the fault table")
    parser.add_argument("--clean", type=int, default=2000, help="clean runs per level of noise")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS), help="only this part of it")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--quick", action="store_true", help="1 seed, the two shortest tiers, 3 clean runs per level")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep results here, and do not measure them again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as JSON")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="put the figures into this page")
    parser.add_argument(
        "--report-only",
        action="store_true",
        help="measure nothing: report what --keep holds of the newest source in it",
    )
    asked = parser.parse_args()
    if asked.report_only and (asked.keep is None or not asked.keep.exists()):
        parser.error("--report-only needs --keep and a file there")
    unknown = sorted(set(asked.classes) - {fault.name for fault in (*classes(), *vacuous())})
    if unknown:
        parser.error(f"no row that is measured here: {', '.join(unknown)}")
    return asked


def tasks_for(asked: argparse.Namespace) -> list[Task]:
    """Everything that is to be measured."""
    seeds, clean, tiers = (1, 3, REAL_TIERS[:2]) if asked.quick else (asked.seeds, asked.clean, REAL_TIERS)
    wrong, nothing = (
        [f for f in rows if not asked.classes or f.name in asked.classes] for rows in (classes(), vacuous())
    )
    few = max(1, clean // 20)
    every = {
        CLASS: fault_tasks(wrong, CLASS, seeds, tiers),
        VACUOUS: fault_tasks(nothing, VACUOUS, seeds, tiers),
        WHOLE: [] if asked.quick else whole_run_tasks(wrong, seeds),
        REAL: [] if asked.quick else real_length_tasks(wrong, min(seeds, REAL_SEEDS)),
        CLEAN: [
            *clean_tasks(clean, "exact", MANY_RUNS),
            *(clean_tasks(few, "aligned", MANY_RUNS) if not asked.quick else []),
            *(clean_tasks(few, "exact", OTHER_ENGINES) if not asked.quick else []),
        ],
    }
    if asked.classes:
        every[CLEAN] = []
    return [task for kind in KINDS if kind in asked.only for task in every[kind]]


def kept_results(file: Path | None, source: str) -> dict[str, Result]:
    """Results that an earlier run with the same source left, by key."""
    found: dict[str, Result] = {}
    for row in rows_of(file):
        if row.pop("source") == source:
            result = Result(**{**row, "reasons": tuple(row["reasons"])})
            found[result.key] = result
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """The figures as rows of tables, limits and sentences."""

    source: str
    tables: dict[str, Rows]
    notes: list[str]
    limits: list[Limit]

    def parts(self) -> dict[str, str]:
        """Each part as markdown."""
        told = [f"- {'holds' if each.holds else '**missed**'}: {each.wanted}: {each.measured}" for each in self.limits]
        return {
            **{name: markdown(rows) for name, rows in self.tables.items()},
            "limits": "\n".join(told),
            "notes": "\n".join(f"- {note}" for note in [*self.notes, f"source {self.source}"]),
        }


def report_of(results: list[Result], source: str) -> Report:
    """Everything that was measured, added up."""
    tables = {"classes": class_rows(results), "nothing to pass": vacuous_rows(results), "clean": clean_rows(results)}
    return Report(source, tables, notes(results), limits(results))


def printed(report: Report) -> None:
    """Show a report on the terminal."""
    for rows in report.tables.values():
        if len(rows) > 2:
            print(markdown(rows) + "\n")
    for rule in RULES:
        print(f"{rule.name}: {rule.sentence}")
    print("\n" + "\n".join(report.notes) + f"\nsource {report.source}; simulator figures, not an engine's\n")
    for limit in report.limits:
        print(f"{'ok    ' if limit.holds else 'MISSED'} {limit.wanted}: {limit.measured}")


def main() -> int:
    """Measure and report; 1 if a limit is missed."""
    asked = arguments()
    tasks = tasks_for(asked)
    if asked.report_only:
        source = rows_of(asked.keep)[-1]["source"]
        known = kept_results(asked.keep, source)
    else:
        source = fingerprint(MEASURING)
        known = kept_results(asked.keep, source)
        rest = [task for task in tasks if task.key not in known]
        known |= {result.key: result for result in measure_rest(carry_out, rest, asked.jobs, asked.keep, source)}
    report = report_of([known[task.key] for task in tasks if task.key in known], source)
    printed(report)
    if asked.json is not None:
        asked.json.write_text(json.dumps(dataclasses.asdict(report), indent=1) + "\n", encoding="utf-8")
    if asked.markdown is not None:
        fill(asked.markdown, report.parts())
    return 0 if all(limit.holds for limit in report.limits) else 1


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
