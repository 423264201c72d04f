"""What was measured, added up and printed: fault classes, runs with nothing to pass, and clean runs."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from power_bounds import lower_bound, upper_bound
from power_cells import CLASS, CLEAN, REAL, REAL_TIERS, VACUOUS, WHOLE, Result
from power_rules import FAILS, NOTHING, PASSES, RULES

WANTED_OVERALL, WANTED_BOUND, WANTED_PER_CLASS = 0.99, 0.98, 0.95
Rows = list[list[str]]


@dataclass(frozen=True, slots=True)
class Count:
    """So many hits among so many."""

    hits: int
    among: int

    @property
    def share(self) -> float:
        """The proportion; 0.0 where there was nothing."""
        return self.hits / self.among if self.among else 0.0

    def __str__(self) -> str:
        return f"{self.hits}/{self.among}" if self.among else "-"


@dataclass(frozen=True, slots=True)
class Limit:
    """Something that was asked for, what came of it, and whether it holds."""

    wanted: str
    measured: str
    holds: bool


def count(results: Iterable[Result], hit: Callable[[Result], bool]) -> Count:
    """How many of these are hits."""
    seen = [hit(result) for result in results]
    return Count(sum(seen), len(seen))


def failed(result: Result) -> bool:
    """Whether the gate said FAIL."""
    return result.verdict == FAILS


def counted(results: Iterable[Result]) -> list[Result]:
    """Cells that count: a hit is possible at the tier, and the fault can strike there."""
    return [result for result in results if result.applicable and result.present]


def by_fault(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Results by fault, in the order they come."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.fault, []).append(result)
    return found


def of_kind(results: Iterable[Result], kind: str) -> list[Result]:
    """The results of one kind of task."""
    return [result for result in results if result.kind == kind]


# -- fault classes ------------------------------------------------------------------------------------------------
def class_rows(results: list[Result]) -> Rows:
    """A row per fault class, then one for all of them."""
    real = by_fault(of_kind(results, REAL))
    found = by_fault(of_kind(results, CLASS))
    tiers = [tier for tier in REAL_TIERS if any(r.tier == tier for r in of_kind(results, CLASS))]
    head = ["class", "geometry", *(f"{tier // 1024}K" for tier in tiers), "found", "at least"]
    head += ["groups", "sent", "computed", *(rule.name for rule in RULES), "16K, real"]
    rows = [head]
    for fault, cells in found.items():
        geometry = f"{cells[0].preset} /{cells[0].divisor}"
        rows.append([f"`{fault}`", geometry, *_measured(cells, tiers), _tier(real.get(fault, []))])
    everything = [cell for cells in found.values() for cell in cells]
    rows.append(["all", "", *_measured(everything, tiers), _tier(of_kind(results, REAL))])
    return rows


def _measured(cells: list[Result], tiers: list[int]) -> list[str]:
    good = counted(cells)
    whole = count(good, failed)
    detected = [cell for cell in good if cell.groups is not None]
    rules = [
        str(count(_judged(good, rule.name), lambda cell, name=rule.name: cell.rules[name] == FAILS)) for rule in RULES
    ]
    return [
        *(_tier([cell for cell in cells if cell.tier == tier]) for tier in tiers),
        str(whole),
        percent(lower_bound(whole.hits, whole.among)),
        _median(cell.groups for cell in detected),
        _median((cell.sent or 0) / cell.length for cell in detected),
        _median((cell.computed or 0) / cell.length for cell in detected),
        *rules,
    ]


def _judged(cells: Iterable[Result], rule: str) -> list[Result]:
    return [cell for cell in cells if cell.rules.get(rule, NOTHING) != NOTHING]


def _tier(cells: list[Result]) -> str:
    if cells and not any(cell.applicable for cell in cells):
        return "n/a"
    if cells and not any(cell.present for cell in cells):
        return f"absent: {count(cells, lambda cell: cell.verdict == PASSES)} PASS"
    return str(count(counted(cells), failed))


def _median(values: Iterable[float | int | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.3g}" if known else "-"


def percent(share: float) -> str:
    """A share in per cent, cut rather than rounded up to a hundred."""
    return "100 %" if share == 1.0 else f"{int(share * 10_000) / 100:g} %"


# -- nothing to pass ----------------------------------------------------------------------------------------------
def vacuous_rows(results: list[Result]) -> Rows:
    """A row per injection that leaves nothing to pass: what the gate said, and what today's rules pass."""
    head = ["injection", "runs", "gate: PASS", "INCONCLUSIVE", "FAIL", *(f"{rule.name}: PASS" for rule in RULES)]
    rows = [head]
    found = by_fault(of_kind(results, VACUOUS))
    for fault, cells in (*found.items(), ("all", of_kind(results, VACUOUS))):
        said = [sum(1 for cell in cells if cell.verdict == word) for word in (PASSES, "INCONCLUSIVE", FAILS)]
        rules = [
            str(count(_judged(cells, rule.name), lambda cell, name=rule.name: cell.rules[name] == PASSES))
            for rule in RULES
        ]
        rows.append([f"`{fault}`" if fault != "all" else fault, str(len(cells)), *map(str, said), *rules])
    return rows


# -- clean runs ---------------------------------------------------------------------------------------------------
def clean_rows(results: list[Result]) -> Rows:
    """A row per geometry, choice of lengths and level of noise: false alarms of the gate and of today's rules."""
    head = ["engine", "lengths", "flips set", "flips seen", "runs", "FAIL", "at most", "INCONCLUSIVE"]
    rows = [[*head, *(f"{rule.name}: FAIL" for rule in RULES)]]
    kinds: dict[tuple[str, str, float], list[Result]] = {}
    for result in of_kind(results, CLEAN):
        kinds.setdefault((f"{result.preset} /{result.divisor}", result.lengths, result.flip_share), []).append(result)
    for (engine, lengths, level), runs in kinds.items():
        alarms = count(runs, failed)
        flips = Count(sum(run.flipped for run in runs), sum(run.flippable for run in runs))
        rows.append(
            [
                engine,
                lengths,
                percent(level),
                f"{percent(flips.share)} of {flips.among}",
                str(len(runs)),
                str(alarms.hits),
                f"{100 * upper_bound(alarms.hits, alarms.among):.2g} %",
                str(sum(1 for run in runs if run.verdict == "INCONCLUSIVE")),
                *(
                    str(count(_judged(runs, rule.name), lambda run, name=rule.name: run.rules[name] == FAILS))
                    for rule in RULES
                ),
            ]
        )
    return rows


# -- what was asked for -------------------------------------------------------------------------------------------
def limits(results: list[Result]) -> list[Limit]:
    """What was asked for, and whether it holds; what was not measured does not."""
    cells = counted(of_kind(results, CLASS))
    whole = count(cells, failed)
    bound = lower_bound(whole.hits, whole.among)
    per_class = {fault: count(each, failed) for fault, each in by_fault(cells).items()}
    low = {fault: seen for fault, seen in per_class.items() if seen.share < WANTED_PER_CLASS}
    visible = count([cell for cell in cells if cell.shown], failed)
    passed = count(of_kind(results, VACUOUS), lambda result: result.verdict == PASSES)
    alarms = count(of_kind(results, CLEAN), failed)
    broken = count(results, lambda result: bool(result.error))
    return [
        Limit("30 fault classes or more", f"{len(per_class)}", len(per_class) >= 30),
        Limit("detection 99 % or more", f"{percent(whole.share)} ({whole})", whole.share >= WANTED_OVERALL),
        Limit("its lower bound 98 % or more", percent(bound), bound >= WANTED_BOUND),
        Limit("every class 95 % or more", _named(low) or f"all {len(per_class)}", bool(per_class) and not low),
        Limit("every cell in which any answer differs", f"{visible} found", 0 < visible.among == visible.hits),
        _none("no PASS where there is nothing to pass", passed),
        _none("no false alarm on clean runs", alarms),
        _none("no run without a verdict", broken),
    ]


def _none(wanted: str, seen: Count) -> Limit:
    """A limit of no hits; it holds only where there could have been one."""
    told = f"{seen.hits} of {seen.among}" + (" are otherwise" if seen.hits else "")
    return Limit(wanted, told if seen.among else "not measured", seen.among > 0 and seen.hits == 0)


def _named(low: dict[str, Count]) -> str:
    return ", ".join(f"{fault} {percent(seen.share)} ({seen})" for fault, seen in low.items())


def notes(results: list[Result]) -> list[str]:
    """What belongs to the table and stands in none of its columns."""
    told: list[str] = []
    for fault, runs in by_fault(of_kind(results, WHOLE)).items():
        told.append(f"{fault}, run over all five tiers: {count(runs, failed)} found")
    for fault, runs in by_fault(counted(of_kind(results, REAL))).items():
        if not all(map(failed, runs)):
            told.append(f"{fault}, real length: {count(runs, failed)} found")
    for fault, cells in by_fault(counted(of_kind(results, CLASS))).items():
        missed = [cell for cell in cells if not failed(cell)]
        if missed:
            idle, silent = (sum(not getattr(cell, name) for cell in missed) for name in ("struck", "shown"))
            said = " or ".join(sorted({" ".join((cell.verdict, *cell.reasons)) for cell in missed}))
            told.append(
                f"{fault}: {len(missed)} of {len(cells)} missed ({said}); in {idle} of them no load was changed, in "
                f"{silent} no answer differs in any bit"
            )
    every = of_kind(results, CLEAN)
    asked = Count(sum(run.recalled for run in every), sum(run.asked for run in every))
    told.append(f"cold answers of clean runs hold {percent(asked.share)} of the codewords asked for ({asked})")
    hours = sum(result.cpu_s for result in results) / 3600
    split = ", ".join(
        f"{kind} {sum(r.cpu_s for r in of_kind(results, kind)) / 3600:.2f} ({len(of_kind(results, kind))} runs)"
        for kind in (CLASS, VACUOUS, WHOLE, REAL, CLEAN)
    )
    told.append(f"{hours:.2f} core-hours: {split}")
    return told


def markdown(rows: Rows) -> str:
    """A table that reads as text, too."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
