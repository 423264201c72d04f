"""How much of the judge the corpus of recorded histories holds in place: a mutation test.

Every mutant is one change to a module the judge is made of (``mutation_changes``). It is imported in place of the
module, and the whole corpus (``tests/domain/recorded.py``) is judged by it (``mutation_trial``). If no history is
decided otherwise, the mutant survives: either it changes nothing that can be told, or a history is missing.
"""

import argparse
import json
import multiprocessing
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from mutation_changes import CONTROL, MODULES, Mutant, Mutants
from mutation_trial import Fate, Packed, Reached, Result, begin, expected, pack, reached, try_some

from tests.domain.recorded import every, written
from tests.domain.recorded_case import Case

LIMIT = 0.9
PART = 25
SURVIVORS = Path(__file__).with_name("mutation_survivors.yaml")
KILLERS = Path(__file__).with_name("mutation_killers.json")
REMEMBERED = (Fate.DECIDED, Fate.BROKEN)
NOTICED = (Fate.DECIDED, Fate.BROKEN, Fate.ENDLESS)


def mutants(modules: Iterable[str], pattern: str) -> list[Mutant]:
    """The mutants of these modules whose names match."""
    wanted = re.compile(pattern)
    return [mutant for module in modules for mutant in Mutants(module).all if wanted.search(mutant.name)]


def trials(chosen: list[Mutant], cases: Sequence[Case], workers: int, tell: bool) -> list[Result]:
    """Try every mutant against the cases."""
    corpus = pack(cases)
    wanted = expected(corpus)
    # Finding out which lines each case runs pays for itself only where many mutants are tried.
    reach = None
    if len(chosen) > 1000:
        corpus, wanted, reach = distinct(corpus, wanted, reached(corpus))
    found: list[Result] = []
    parts = [chosen[start : start + PART] for start in range(0, len(chosen), PART)]
    # A process takes some parts only: each mutant leaves a set of modules behind.
    context = multiprocessing.get_context("fork")
    with context.Pool(workers, begin, (corpus, wanted, reach, killers()), maxtasksperchild=6) as pool:
        for results in pool.imap(try_some, parts, chunksize=1):
            found += results
            if tell:
                for each in results:
                    if each.fate is Fate.SURVIVED:
                        print(f"survived: {each.mutant.name}", file=sys.stderr)
                print(f"{len(found)} of {len(chosen)}", file=sys.stderr, flush=True)
    return found


def distinct(
    corpus: list[Packed], wanted: list[tuple[Any, Any]], reach: Reached
) -> tuple[list[Packed], list[tuple[Any, Any]], Reached]:
    """One recorded run of those that run the same lines of the judge: many faults look alike to it."""
    seen: set[frozenset[tuple[str, int]]] = set()
    kept: list[int] = []
    for number, case in enumerate(corpus):
        lines = frozenset(reach[number])
        if not case.stored or lines not in seen:
            kept.append(number)
        seen.add(lines)
    return [corpus[each] for each in kept], [wanted[each] for each in kept], [reach[each] for each in kept]


def killers() -> dict[str, str]:
    """The case that noticed each mutant when last asked. A mere hint: where it fails, all cases are tried."""
    return dict(json.loads(KILLERS.read_text())) if KILLERS.exists() else {}


def remember(results: list[Result]) -> None:
    """Keep which case noticed each of these mutants."""
    known = killers() | {each.mutant.name: each.case for each in results if each.fate in REMEMBERED and each.case}
    KILLERS.write_text(json.dumps(known, indent=0, sort_keys=True, ensure_ascii=False) + "\n")


def explained() -> dict[str, str]:
    """The survivors that no history can tell from the original, by name, each with the reason."""
    if not SURVIVORS.exists():
        return {}
    groups: list[dict[str, object]] = yaml.safe_load(SURVIVORS.read_text(encoding="utf-8")) or []
    return {str(name): str(group["reason"]) for group in groups for name in group["mutants"]}  # type: ignore[attr-defined]


def print_table(results: list[Result], reasons: dict[str, str]) -> None:
    """The score by module and in total."""
    print(
        f"{'module':12} {'mutants':>8} {'decided':>8} {'raised':>8} {'figure':>8} {'equal':>8} {'open':>8} {'score':>8}"
    )
    rows = [(module, [each for each in results if each.mutant.module == module]) for module in MODULES]
    for module, own in [*rows, ("total", results)]:
        if not own:
            continue
        count = Counter(each.fate for each in own)
        left = [each for each in own if each.fate is Fate.SURVIVED]
        equal = sum(1 for each in left if each.mutant.name in reasons)
        raised = count[Fate.BROKEN] + count[Fate.ENDLESS]
        print(
            f"{module:12} {len(own):8} {count[Fate.DECIDED]:8} {raised:8} {count[Fate.FIGURE]:8} {equal:8} "
            f"{len(left) - equal:8} {100 * score(own):7.1f}%"
        )


def score(results: list[Result]) -> float:
    """The share of mutants that are noticed, equivalent ones counted against it."""
    return sum(1 for each in results if each.fate is not Fate.SURVIVED) / len(results)


def main() -> int:
    """Try the mutants asked for; 1 if too many survive or one survives unexplained."""
    parser = argparse.ArgumentParser(description="Mutation test of the judge over recorded histories")
    parser.add_argument("--module", action="append", choices=MODULES, help="only this module (may be repeated)")
    parser.add_argument("--only", default="", help="only mutants whose name matches this regular expression")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--written", action="store_true", help="only the written cases, which are quick to judge")
    parser.add_argument("--unexplained", action="store_true", help="leave out those that are explained: they are slow")
    parser.add_argument("--record", action="store_true", help="make the stored histories anew and try none")
    parser.add_argument("--remember", action="store_true", help="keep which case noticed each, to be tried first")
    parser.add_argument("--list", action="store_true", help="list the mutants and try none")
    asked = parser.parse_args()
    if asked.record:
        from mutation_record import record

        return record()
    chosen = mutants(asked.module or MODULES, asked.only)
    if asked.list:
        print("\n".join(mutant.name for mutant in chosen))
        return 0
    begun = time.monotonic()
    reasons = explained()
    if asked.unexplained:
        chosen = [mutant for mutant in chosen if mutant.name not in reasons]
    results = trials(
        [CONTROL, *chosen], written() if asked.written else every(), asked.workers, asked.format == "table"
    )
    if asked.remember:
        remember(results)
    if asked.format == "json":
        told = [(each, each.mutant.name in reasons) for each in results]
        print(json.dumps([{**asdict(each.mutant), "fate": each.fate, "explained": known} for each, known in told]))
        return 0
    control, results = results[0], results[1:]
    if control.fate is not Fate.SURVIVED:
        print(f"noticed although nothing is changed: {control.fate.value} {control.case}{control.error}")
        return 1
    for each in results:
        if each.fate is Fate.SURVIVED and each.mutant.name not in reasons:
            print(f"survived: {each.mutant.module}.py:{each.mutant.line}: {each.mutant.scope}: {each.mutant.change}")
    print_table(results, reasons)
    print(f"{time.monotonic() - begun:.0f} s with {asked.workers} workers")
    left = [each for each in results if each.fate is Fate.SURVIVED and each.mutant.name not in reasons]
    return 1 if left or score(results) < LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
