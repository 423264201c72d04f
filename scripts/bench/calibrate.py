"""How often the gate fails healthy engines that are noisy, what noise hides, and what its power statement is worth.

Every run is the real gate against a simulated engine in this process, as in the power bench.
"""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path

from calibrate_cells import (
    ALARMS,
    CLASSES,
    PARTS,
    RARELY,
    STOPS,
    Seen,
    Trial,
    alarm_trials,
    carry_out,
    class_trials,
    rare_trials,
    stop_trials,
    trial_named,
)
from calibrate_noise import ALARM_LEVELS, BY_LEVEL, CLASS_LEVELS
from calibrate_picture import draw
from calibrate_rare import RarelyStruck
from calibrate_table import (
    alarm_notes,
    alarm_rows,
    class_notes,
    class_rows,
    cost,
    limits,
    pool_rows,
    rare_notes,
    rare_rows,
)
from power_cells import classes
from power_keeping import fingerprint, measure_rest, rows_of
from power_page import fill
from power_table import markdown

RUNS, SEEDS, RARE_SEEDS, STOP_SEEDS = 300, 10, 200, 3
QUICK_LEVELS = ("request-15", "batch-0.02x8")
QUICK_CLASSES = ("zero_block", "one_bit")
QUICK_RARE = ("one_in_ten", "concurrent_only", "while_evicting", "after_a_cancel")
# What a result hangs on, beside the package: with another of these it is measured again.
MEASURING = ("calibrate_cells.py", "calibrate_noise.py", "calibrate_rare.py", "power_cells.py", "power_gate.py")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="False alarms, detection among noise, budgets of groups (simulator)")
    parser.add_argument("--runs", type=int, default=RUNS, help="full runs on healthy engines per level of noise")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds per class and level of noise")
    parser.add_argument("--rare-seeds", type=int, default=RARE_SEEDS, help="runs per fault that is rare and random")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="only this part of it")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--quick", action="store_true", help="a run or two of everything")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep results here, and do not measure them again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as JSON")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="put the figures into this page")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw classes and noise here, as .svg or .png")
    parser.add_argument("--rerun", metavar="KEY", help="make one run again, and show what the gate said of it")
    parser.add_argument(
        "--report-only",
        action="store_true",
        help="measure nothing: report what --keep holds of the newest source in it",
    )
    asked = parser.parse_args()
    if asked.report_only and (asked.keep is None or not asked.keep.exists()):
        parser.error("--report-only needs --keep and a file there")
    return asked


def trials_for(asked: argparse.Namespace) -> list[Trial]:
    """Everything that is to be measured."""
    faults = classes()
    if asked.quick:
        levels = [BY_LEVEL[name] for name in QUICK_LEVELS]
        faults = [fault for fault in faults if fault.name in QUICK_CLASSES]
        every = {
            ALARMS: alarm_trials(levels, 1),
            CLASSES: class_trials(faults, [BY_LEVEL["quiet"], levels[0]], 1),
            STOPS: stop_trials(faults[:1], 1),
            RARELY: [trial for trial in rare_trials(1) if trial.fault in QUICK_RARE],
        }
    else:
        every = {
            ALARMS: alarm_trials(ALARM_LEVELS, asked.runs),
            CLASSES: class_trials(faults, CLASS_LEVELS, asked.seeds),
            STOPS: stop_trials(faults, min(asked.seeds, STOP_SEEDS)),
            RARELY: rare_trials(asked.rare_seeds),
        }
    return [trial for part in PARTS if part in asked.only for trial in every[part]]


def kept_results(file: Path | None, source: str) -> dict[str, Seen]:
    """Results that an earlier run with the same source left, by key."""
    found: dict[str, Seen] = {}
    for row in rows_of(file):
        if row.pop("source") == source:
            budgets = {budget: RarelyStruck(**said) for budget, said in row["budgets"].items()}
            seen = Seen(**{**row, "reasons": tuple(row["reasons"]), "budgets": budgets})
            found[seen.key] = seen
    return found


def parts_of(seen: list[Seen], source: str) -> dict[str, str]:
    """Each part of the page as markdown."""
    told = [f"- {'holds' if each.holds else '**missed**'}: {each.wanted}: {each.measured}" for each in limits(seen)]
    return {
        "limits": "\n".join(told),
        "alarms": markdown(alarm_rows(seen)),
        "alarm pools": markdown(pool_rows(seen)),
        "alarm notes": _listed(alarm_notes(seen)),
        "classes": markdown(class_rows(seen)),
        "class notes": _listed(class_notes(seen)),
        "rare": markdown(rare_rows(seen)),
        "rare notes": _listed(rare_notes(seen)),
        "cost": _listed([cost(seen), f"source {source}"]),
    }


def _listed(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def rerun(key: str) -> int:
    """Make one run again."""
    seen = carry_out(trial_named(key))
    print(f"{seen.verdict} {seen.error}")
    for reason in seen.reasons:
        print(f"  {reason}")
    print(json.dumps(dataclasses.asdict(seen), indent=1))
    return 0


def main() -> int:
    """Measure and report; 1 if a limit is missed."""
    asked = arguments()
    if asked.rerun:
        return rerun(asked.rerun)
    trials = trials_for(asked)
    if asked.report_only:
        source = rows_of(asked.keep)[-1]["source"]
        known = kept_results(asked.keep, source)
    else:
        source = fingerprint(MEASURING)
        known = kept_results(asked.keep, source)
        rest = [trial for trial in trials if trial.key not in known]
        known |= {seen.key: seen for seen in measure_rest(carry_out, rest, asked.jobs, asked.keep, source)}
    seen = [known[trial.key] for trial in trials if trial.key in known]
    parts = parts_of(seen, source)
    print("\n\n".join(parts.values()))
    if asked.json is not None:
        asked.json.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    if asked.markdown is not None:
        fill(asked.markdown, parts)
    if asked.picture is not None:
        draw(seen, asked.picture)
    return 0 if all(limit.holds for limit in limits(seen)) else 1


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
