"""What calibration measured, added up: false alarms, classes among noise, budgets of groups, and the limits."""

import statistics
from collections import Counter
from collections.abc import Iterable

from calibrate_cells import ALARMS, CLASSES, PARTS, RARELY, STOPS, Seen
from calibrate_noise import BATCH, BY_LEVEL, LEVELS, RARER
from calibrate_rare import BUDGETS, RARE, Rare
from power_bounds import lower_bound, upper_bound
from power_table import Count, Limit, Rows, count, percent

from kvgate.domain.power import excluded_fault_rate

FAIL, PASS, INCONCLUSIVE = "FAIL", "PASS", "INCONCLUSIVE"
WANTED_BOUND, WANTED_STOP, LEFT_OPEN = 0.01, 4, 0.05
# How sure one has to be that misses and formula disagree; there are ten rows to be wrong about.
DISAGREE = 0.995
SHOWN_SEEDS = 5


def of_part(seen: Iterable[Seen], part: str) -> list[Seen]:
    """The results of one part."""
    return [each for each in seen if each.part == part]


def failed(one: Seen) -> bool:
    """Whether the gate said FAIL."""
    return one.verdict == FAIL


# -- false alarms -------------------------------------------------------------------------------------------------
def by_level(seen: Iterable[Seen]) -> dict[str, list[Seen]]:
    """Results by level of noise, in the order of the table of levels."""
    every = list(seen)
    found = {level.name: [each for each in every if each.level == level.name] for level in LEVELS}
    return {name: runs for name, runs in found.items() if runs}


def alarm_rows(seen: list[Seen]) -> Rows:
    """A row per kind and level of noise: what the gate said of healthy engines, and how many answers flipped."""
    rows = [["noise", "runs", "FAIL", "at most", "INCONCLUSIVE", "PASS", "hits that flip", "repeats that flip"]]
    for name, runs in by_level(of_part(seen, ALARMS)).items():
        said = Counter(run.verdict for run in runs)
        rows.append(
            [
                BY_LEVEL[name].sentence,
                str(len(runs)),
                str(said[FAIL]),
                f"{100 * upper_bound(said[FAIL], len(runs)):.2g} %",
                str(said[INCONCLUSIVE]),
                str(said[PASS]),
                _share(Count(sum(run.flips for run in runs), sum(run.pairs for run in runs))),
                _share(Count(sum(run.turns for run in runs), sum(run.repeats for run in runs))),
            ]
        )
    return rows


def pools(seen: Iterable[Seen]) -> dict[str, list[Seen]]:
    """Healthy runs by how much flips, whatever the kind of noise; and all those whose batch is noisy."""
    found: dict[str, list[Seen]] = {}
    for name, runs in by_level(of_part(seen, ALARMS)).items():
        level = BY_LEVEL[name]
        noisy_batch = level.kind == BATCH and level.share > 0
        told = "batch, 0.02 nat, 1 to 32 beside" if noisy_batch else f"{100 * level.share:g} % flip, of every kind"
        found.setdefault(told, []).extend(runs)
    return found


def pool_rows(seen: list[Seen]) -> Rows:
    """A row per share of flips: how many healthy runs failed, and the bound of that share."""
    rows = [["noise", "runs", "FAIL", "at most"]]
    for told, runs in pools(seen).items():
        wrong = count(runs, failed)
        rows.append([told, str(len(runs)), str(wrong.hits), f"{100 * upper_bound(wrong.hits, len(runs)):.2g} %"])
    return rows


def _share(seen: Count) -> str:
    return f"{percent(seen.share)} of {seen.among}" if seen.among else "-"


def alarm_notes(seen: list[Seen]) -> list[str]:
    """Every level that was failed: by which reasons, and with which seeds; then why runs stayed undecided."""
    told: list[str] = []
    for name, runs in by_level(of_part(seen, ALARMS)).items():
        wrong = [run for run in runs if failed(run)]
        if wrong:
            seeds = ", ".join(str(run.seed) for run in wrong[:SHOWN_SEEDS])
            told.append(
                f"**false alarms**, {BY_LEVEL[name].sentence}: {Count(len(wrong), len(runs))}, by {_reasons(wrong)}; "
                f"seeds {seeds}{', ...' if len(wrong) > SHOWN_SEEDS else ''}; the first again: "
                f"`scripts/bench/calibrate --rerun {wrong[0].key}`"
            )
    for name, runs in by_level(of_part(seen, ALARMS)).items():
        open_ones = [run for run in runs if run.verdict == INCONCLUSIVE]
        if open_ones:
            told.append(
                f"undecided, {BY_LEVEL[name].sentence}: {Count(len(open_ones), len(runs))}, by {_reasons(open_ones)}"
            )
    return told or ["no false alarm, and no healthy run left undecided"]


def _reasons(runs: Iterable[Seen]) -> str:
    first = Counter(run.reasons[0].split(":")[0] if run.reasons else "no reason" for run in runs)
    return ", ".join(f"{reason} ({number})" for reason, number in first.most_common())


# -- fault classes among noise ------------------------------------------------------------------------------------
def by_class(seen: Iterable[Seen]) -> dict[str, dict[str, list[Seen]]]:
    """Results by class, then by level."""
    every = list(seen)
    names = dict.fromkeys(each.fault for each in every)
    return {name: by_level(each for each in every if each.fault == name) for name in names}


def class_rows(seen: list[Seen]) -> Rows:
    """A row per class: FAIL/INCONCLUSIVE/PASS at each level of noise, and when a full run on a quiet engine stops."""
    found = by_class(of_part(seen, CLASSES))
    stops = {name: runs["quiet"] for name, runs in by_class(of_part(seen, STOPS)).items()}
    levels = list(by_level(of_part(seen, CLASSES)))
    rows = [["class", *(BY_LEVEL[level].sentence for level in levels), "groups to stop"]]
    for name, cells in found.items():
        said = [said_in(cells.get(level, [])) for level in levels]
        rows.append([f"`{name}`", *said, _groups_to_stop(stops.get(name, []))])
    every = by_level(of_part(seen, CLASSES))
    rows.append(["all", *(said_in(every[level]) for level in levels), ""])
    return rows


def said_in(runs: list[Seen]) -> str:
    """FAIL/INCONCLUSIVE/PASS, counted."""
    said = Counter(run.verdict for run in runs)
    return f"{said[FAIL]}/{said[INCONCLUSIVE]}/{said[PASS]}" if runs else "-"


def _groups_to_stop(runs: list[Seen]) -> str:
    if not runs:
        return "-"
    sent = statistics.median(run.groups for run in runs)
    early = count(runs, lambda run: run.stopped)
    return f"{sent:g}" if early.hits == early.among else f"{sent:g} (stopped {early})"


def gross(seen: list[Seen]) -> dict[str, float]:
    """Of every class that was grossly wrong in all its full runs, the median of groups sent until the run stopped."""
    runs = {name: levels["quiet"] for name, levels in by_class(of_part(seen, STOPS)).items()}
    return {
        name: statistics.median(run.groups for run in each)
        for name, each in runs.items()
        if all(run.stopped for run in each)
    }


def class_notes(seen: list[Seen]) -> list[str]:
    """When gross corruption ends a run, and where noise hides a class in half of the runs or more."""
    told: list[str] = []
    groups = gross(seen)
    if groups:
        middle, most = statistics.median(groups.values()), max(groups.values())
        told.append(
            f"{len(groups)} classes are grossly wrong in every full run: it stops after {middle:g} groups in the "
            f"median over classes, {most:g} at most"
        )
    for level, runs in by_level(of_part(seen, CLASSES)).items():
        share = count(runs, failed)
        hidden = [
            name
            for name, cells in by_class(runs).items()
            if 2 * count(cells.get(level, []), failed).hits <= len(cells.get(level, []))
        ]
        names = f"; half or fewer of: {', '.join(hidden)}" if hidden else ""
        told.append(f"{BY_LEVEL[level].sentence}: {percent(share.share)} found ({share}){names}")
    return told


# -- budgets ------------------------------------------------------------------------------------------------------
def loads_per_group(seen: list[Seen]) -> float:
    """External loads in a group that has nothing to repeat: in runs in which nothing was found."""
    quiet = [run for run in of_part(seen, RARELY) if run.found_at is None and run.groups]
    return sum(run.loads for run in quiet) / sum(run.groups for run in quiet) if quiet else 2.0


def expected_missed(share: float, groups: int, loads: float) -> float:
    """How often a fault that strikes each load with that share strikes none of so many groups."""
    return float((1.0 - share) ** (loads * groups))


def agrees(missed: Count, expected: float) -> bool:
    """Whether a count is within the binomial error of what was expected."""
    low = lower_bound(missed.hits, missed.among, DISAGREE)
    return low <= expected <= upper_bound(missed.hits, missed.among, DISAGREE)


def runs_of(seen: list[Seen], rare: Rare, budget: int) -> list[Seen]:
    """The runs of a fault out of which so many groups can be cut."""
    return [run for run in of_part(seen, RARELY) if run.fault == rare.name and str(budget) in run.budgets]


def missed_at(seen: list[Seen], rare: Rare, budget: int) -> Count:
    """Runs of so many groups that passed: that is what the statement of a PASS speaks of."""
    return count(runs_of(seen, rare, budget), lambda run: run.budgets[str(budget)].verdict == PASS)


def stated(seen: list[Seen], rare: Rare, budget: int) -> tuple[int | None, float]:
    """The fewest clean groups of a run that passed, and the rate it says is excluded; the rule's where none passed."""
    passed = [said for run in runs_of(seen, rare, budget) if (said := run.budgets[str(budget)]).verdict == PASS]
    if not passed:
        return None, excluded_fault_rate(budget)
    return min(each.clean for each in passed), max(each.excluded for each in passed)


def rare_rows(seen: list[Seen]) -> Rows:
    """A row per fault and budget: what was missed, what chance alone would miss, and what a PASS says it excludes."""
    head = ["strikes", "groups", "runs", "FAIL", "INCONCLUSIVE", "PASS", "missed", "expected", "agree"]
    rows = [[*head, "clean", "a PASS excludes", "so missed"]]
    loads = loads_per_group(seen)
    for rare in RARE:
        for budget in (each for each in BUDGETS if each <= rare.most):
            missed = missed_at(seen, rare, budget)
            if not missed.among:
                continue
            clean, rate = stated(seen, rare, budget)
            said = Counter(run.budgets[str(budget)].verdict for run in runs_of(seen, rare, budget))
            row = [
                rare.sentence,
                str(budget),
                str(missed.among),
                *(str(said[word]) for word in (FAIL, INCONCLUSIVE, PASS)),
            ]
            row += [percent(missed.share), *_expected(rare, budget, loads, missed)]
            row += [str(clean) if clean is not None else "none passed", f"above {100 * rate:.2g} %"]
            rows.append([*row, _so_missed(rare, rate, missed)])
    return rows


def _expected(rare: Rare, budget: int, loads: float, missed: Count) -> tuple[str, str]:
    if rare.share is None:
        return "-", "-"
    expected = expected_missed(rare.share, budget, loads)
    return f"{100 * expected:.2g} %", "yes" if agrees(missed, expected) else "**no**"


def _so_missed(rare: Rare, rate: float, missed: Count) -> str:
    """Whether at most 5 % are missed where the statement excludes the fault's rate."""
    if rare.share is None:
        return "not random"
    if rare.share < rate:
        return "not excluded"
    return "5 % or less" if holds_what_it_says(missed) else "**more than 5 %**"


def holds_what_it_says(missed: Count) -> bool:
    """Whether no more than 5 % were missed, as far as so many runs can tell."""
    return lower_bound(missed.hits, missed.among, DISAGREE) <= LEFT_OPEN


def rare_notes(seen: list[Seen]) -> list[str]:
    """How many loads a group makes, and what was struck and not found."""
    runs = of_part(seen, RARELY)
    unseen = [run for run in runs if run.struck and run.found_at is None]
    told = [f"{loads_per_group(seen):.3g} external loads a group"] if runs else []
    if unseen:
        told.append(
            f"struck and not found: {Count(len(unseen), len(runs))} runs ({', '.join(run.key for run in unseen[:3])})"
        )
    return told


# -- what was asked for -------------------------------------------------------------------------------------------
def limits(seen: list[Seen]) -> list[Limit]:
    """What was asked for, and whether it holds; what was not measured does not."""
    alarms = by_level(of_part(seen, ALARMS))
    wrong = {BY_LEVEL[name].sentence: count(runs, failed) for name, runs in alarms.items() if any(map(failed, runs))}
    # A level that nobody asked for, and that is there to see where undecided runs come from, is no share to be bounded.
    asked = {told: runs for told, runs in pools(seen).items() if not told.startswith(f"{RARER} %")}
    bounds = [upper_bound(count(runs, failed).hits, len(runs)) for runs in asked.values()]
    quiet = count((run for run in of_part(seen, CLASSES) if run.level == "quiet"), failed)
    rows = [(rare, budget, missed_at(seen, rare, budget)) for rare in RARE for budget in BUDGETS if rare.share]
    rows = [row for row in rows if row[2].among]
    loads = loads_per_group(seen)
    odd = [
        f"{rare.name} at {budget} groups"
        for rare, budget, missed in rows
        if not agrees(missed, expected_missed(rare.share or 0.0, budget, loads))
    ]
    over = [
        f"{rare.name} at {budget} groups ({missed})"
        for rare, budget, missed in rows
        if (rare.share or 0.0) >= stated(seen, rare, budget)[1] and not holds_what_it_says(missed)
    ]
    groups = gross(seen)
    middle = statistics.median(groups.values()) if groups else 0.0
    broken = count(seen, lambda run: bool(run.error))
    told = ", ".join(f"{name} ({runs})" for name, runs in wrong.items())
    return [
        Limit(
            "no false alarm at any level of noise", told or f"none at {len(alarms)} levels", bool(alarms) and not wrong
        ),
        Limit(
            "at every share of flips, and with a noisy batch, at most 1 % of healthy runs fail, by the bound",
            f"at most {100 * max(bounds, default=1.0):.2g} %",
            bool(bounds) and max(bounds) <= WANTED_BOUND,
        ),
        Limit("every class found on a quiet engine", f"{quiet} runs", 0 < quiet.hits == quiet.among),
        Limit(
            "gross corruption stops a run after 4 groups or fewer",
            f"{middle:g} in the median",
            0 < middle <= WANTED_STOP,
        ),
        Limit(
            "misses of random faults are what chance makes them",
            ", ".join(odd) or f"in {len(rows)} rows",
            bool(rows) and not odd,
        ),
        Limit(
            "where a PASS excludes a rate, 5 % or less is missed", ", ".join(over) or "holds", bool(rows) and not over
        ),
        Limit("no run without a verdict", f"{broken.hits} of {broken.among}", broken.among > 0 and broken.hits == 0),
    ]


def cost(seen: list[Seen]) -> str:
    """What the measurement cost, part by part."""
    split = ", ".join(
        f"{part} {sum(run.cpu_s for run in of_part(seen, part)) / 3600:.2f} ({len(of_part(seen, part))} runs)"
        for part in PARTS
    )
    return f"{sum(run.cpu_s for run in seen) / 3600:.2f} core-hours: {split}"
