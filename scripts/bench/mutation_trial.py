"""One mutant on trial: the domain is imported anew with one module changed, and the whole corpus is judged by it."""

import contextlib
import importlib.abc
import importlib.util
import pickle
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from mutation_changes import CONTROL, MODULES, SOURCE, Mutant, Mutants

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.domain.recorded_case import Case  # noqa: E402 - the root is put on the path first

DOMAIN = "kvgate.domain"
# CPU time. Judging the whole corpus takes a tenth of this; a mutant that does not end is stopped.
LIMIT_S = 60.0
MEMORY = 3 * 2**30
# How many of the cases that noticed something lately are tried first.
KEPT = 12
# Words for people, and what is put together from them.
TEXTS = {"detail", "notes", "advice", "why_not_exact", "drift_problem"}


class Fate(str, Enum):
    """How a mutant was noticed. DECIDED: another verdict, row, reason, exactness or attribution somewhere.

    FIGURE: the same decisions, another figure beside them (an annotation, a drift, a count). BROKEN: it raised.
    """

    DECIDED = "decided"
    FIGURE = "figure"
    BROKEN = "broken"
    ENDLESS = "endless"
    SURVIVED = "survived"


@dataclass(frozen=True, slots=True)
class Packed:
    """A case that can be unpacked into whichever domain is imported at the time."""

    name: str
    content: bytes
    default_policy: bool
    stored: bool


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutant, and the case that noticed it."""

    mutant: Mutant
    fate: Fate
    case: str = ""
    error: str = ""


class Planted(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives out modules of the domain from other source."""

    def __init__(self, codes: Mapping[str, CodeType]) -> None:
        self.codes = {f"{DOMAIN}.{module}": code for module, code in codes.items()}

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the finder's signature
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """A changed module's specification; None for any other module."""
        return importlib.util.spec_from_loader(fullname, self) if fullname in self.codes else None

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed source."""
        exec(self.codes[module.__name__], module.__dict__)  # noqa: S102 - running changed source is what this is for


def pack(cases: Sequence[Case]) -> list[Packed]:
    """The cases as bytes that name classes of the domain without holding them."""
    from kvgate.domain.policy import Policy

    return [
        Packed(case.name, pickle.dumps((case.plan, case.entries)), case.plan.policy == Policy(), case.stored)
        for case in cases
    ]


@cache
def affected(changed: frozenset[str]) -> frozenset[str]:
    """These modules of the domain and every module of it that imports one of them, directly or not."""
    found = set(changed)
    while True:
        more = {name for name, used in _imports().items() if used & found} - found
        if not more:
            return frozenset(found)
        found |= more


@cache
def _imports() -> dict[str, frozenset[str]]:
    """Which modules of the domain each of them imports."""
    pattern = re.compile(rf"^from {re.escape(DOMAIN)}\.(\w+) import", re.MULTILINE)
    return {file.stem: frozenset(pattern.findall(file.read_text())) for file in SOURCE.glob("*.py")}


@contextlib.contextmanager
def domain(codes: Mapping[str, CodeType]) -> Iterator[None]:
    """Changed modules, and all that import them, imported anew on next use; the old ones stand again afterwards.

    The others stay: they hold nothing of what changed, and importing them is what a trial spends most of its time on.
    """
    anew = {f"{DOMAIN}.{name}" for name in affected(frozenset(codes))}
    old = {name: each for name, each in sys.modules.items() if name in anew}
    for name in old:
        del sys.modules[name]
    finder = Planted(codes)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        for name in anew & sys.modules.keys():
            del sys.modules[name]
        sys.modules.update(old)
        sys.meta_path.remove(finder)


def rulings(corpus: Sequence[Packed]) -> Iterator[Any]:
    """The ruling on every case by the domain that is imported now."""
    judge = importlib.import_module(f"{DOMAIN}.judge").judge
    record = importlib.import_module(f"{DOMAIN}.record").RunRecord
    policy = importlib.import_module(f"{DOMAIN}.policy").Policy
    for case in corpus:
        plan, entries = pickle.loads(case.content)  # noqa: S301 - packed by this script
        if case.default_policy:
            # A manifest holds every bound; taken anew, the defaults are on trial, too.
            plan = type(plan)(**{each.name: getattr(plan, each.name) for each in fields(plan)} | {"policy": policy()})
        _STATE["at"] = case.name
        yield judge(plan, record(entries))


def decided(ruling: Any) -> Any:
    """What was decided of a run, its groups and its pairs, as plain words."""
    return (
        ruling.verdict.value,
        plain(ruling.reasons),
        plain(ruling.results),
        [
            (
                group.id,
                plain((group.verdict, group.strict, group.reasons, group.strict_reasons, group.replaced)),
                [_pair(pair) for pair in group.pairs],
            )
            for group in ruling.groups
        ],
    )


def _pair(pair: Any) -> Any:
    who = (pair.kind, pair.baseline, pair.subject, pair.required, pair.stray)
    return plain((*who, pair.verdict, pair.row, pair.problem, pair.exact, pair.attribution))


def plain(value: Any) -> Any:
    """A value without its texts, so that it compares across imports; a problem is its reason."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return [
            getattr(value, name) in (None, ()) if name in TEXTS else plain(getattr(value, name))
            for name in _names(type(value))
        ]
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return repr(value) if isinstance(value, float) else value


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind) if each.name != "detail")


def expected(corpus: Sequence[Packed]) -> list[tuple[Any, Any]]:
    """What the unchanged judge makes of the corpus."""
    with domain({}):
        return [(decided(ruling), plain(ruling)) for ruling in rulings(corpus)]


Reached = list[set[tuple[str, int]]]


def reached(corpus: Sequence[Packed]) -> Reached:
    """The lines of the domain, by module, that judging each case runs: no other change can be told by it."""
    found: Reached = []
    with domain({}):
        ruled = rulings(corpus)
        for _ in corpus:
            lines: set[tuple[str, int]] = set()
            sys.settrace(_tracer(lines))
            try:
                next(ruled)
            finally:
                sys.settrace(None)
            found.append(lines)
    return found


def _tracer(lines: set[tuple[str, int]]) -> Callable[[FrameType, str, object], object]:
    def enter(frame: FrameType, event: str, argument: object) -> object:  # noqa: ARG001 - a tracer's signature
        file = Path(frame.f_code.co_filename)
        if file.parent.name != "domain":
            return None

        def run(frame: FrameType, event: str, argument: object) -> object:  # noqa: ARG001
            lines.add((file.stem, frame.f_lineno))
            return run

        return run

    return enter


def _too_long(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the handler's signature
    raise TimeoutError


def begin(
    corpus: list[Packed], wanted: list[tuple[Any, Any]], reach: Reached | None, killers: Mapping[str, str]
) -> None:
    """Make this process ready for trials. ``killers`` are cases, by mutant, that are worth trying first."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGVTALRM, _too_long)
    places = {case.name: number for number, case in enumerate(corpus)}
    first = {mutant: places[case] for mutant, case in killers.items() if case in places}
    _STATE.update(corpus=corpus, wanted=wanted, reach=reach, modules={}, first=first)


_STATE: dict[str, Any] = {}


def try_some(mutants: Sequence[Mutant]) -> list[Result]:
    """Judge the corpus by each mutant until a decision differs. Neighbours tend to be noticed by the same cases."""
    _STATE["lately"] = []
    return [_try_one(mutant) for mutant in mutants]


def _try_one(mutant: Mutant) -> Result:
    codes = {module: _compiled(module, mutant) for module in MODULES if mutant.module in (module, CONTROL.module)}
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    _STATE["at"] = ""
    try:
        return _held_against(mutant, codes)
    except (TimeoutError, MemoryError):
        return Result(mutant, Fate.ENDLESS)
    except Exception as error:  # noqa: BLE001 - a mutant may raise anything
        return Result(mutant, Fate.BROKEN, _STATE["at"], f"{type(error).__name__}: {error}")
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)


def _compiled(module: str, mutant: Mutant) -> CodeType:
    modules: dict[str, Mutants] = _STATE["modules"]
    if module not in modules:
        modules[module] = Mutants(module)
    return compile(modules[module].plant(mutant.number), f"{module}.py", "exec")


def _held_against(mutant: Mutant, codes: Mapping[str, CodeType]) -> Result:
    figure = ""
    lately: list[int] = _STATE["lately"]
    first = _STATE["first"].get(mutant.name)
    order = list(dict.fromkeys([*([] if first is None else [first]), *lately, *range(len(_STATE["corpus"]))]))
    places = [number for number in order if _may_tell(mutant, number)]
    corpus: list[Packed] = [_STATE["corpus"][number] for number in places]
    with domain(codes):
        for number, case, ruling in zip(places, corpus, rulings(corpus), strict=True):
            wanted = _STATE["wanted"][number]
            if decided(ruling) != wanted[0]:
                _STATE["lately"] = [number, *(each for each in lately if each != number)][:KEPT]
                return Result(mutant, Fate.DECIDED, case.name)
            if not figure and plain(ruling) != wanted[1]:
                figure = case.name
    return Result(mutant, Fate.FIGURE if figure else Fate.SURVIVED, figure)


def _may_tell(mutant: Mutant, number: int) -> bool:
    reach: Reached | None = _STATE["reach"]
    if reach is None or mutant.lines is None:
        return True
    first, last = mutant.lines
    return any((mutant.module, line) in reach[number] for line in range(first, last + 1))
