"""``kvgate capacity``: how much KV engines hold, by the logs of their start."""

import sys
from pathlib import Path

from kvgate.cli.exit_codes import ExitCode
from kvgate.cli.output import ListFormat, out
from kvgate.domain.preflight.capacity import capacities, costs, unlike
from kvgate.errors import ConfigError
from kvgate.launch.startup_log import read_startup_log
from kvgate.report.capacity_document import CapacityReport, LogCapacity, capacity_json, print_capacity

TIERS = (4096, 8192, 16384, 32768, 65536, 131072)


def show_capacity(logs: list[Path], tiers: list[int], form: ListFormat) -> ExitCode:
    """Read logs of starts, and print what they tell. Raises ConfigError for one that tells nothing."""
    report = CapacityReport(tuple(_of(log, tuple(tiers) or TIERS) for log in logs))
    if form is ListFormat.JSON:
        sys.stdout.write(capacity_json(report))
    else:
        print_capacity(report, out())
    return ExitCode.PASS


def _of(log: Path, tiers: tuple[int, ...]) -> LogCapacity:
    found = capacities(read_startup_log(log))
    if not any(each.memory or each.tokens for each in found):
        raise ConfigError(
            f"{log}: no line tells of KV memory or tokens; give the engine's own log from its start on, at level INFO"
        )
    return LogCapacity(str(log), found, tuple(cost for each in found for cost in costs(each, tiers)), unlike(found))
