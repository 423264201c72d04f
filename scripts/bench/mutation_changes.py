"""Single changes to the source of the judge: each weakens, flips or takes away one thing.

A change is a mutant. What only makes text for people, and what only the gate or a type checker needs, is left alone.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_Item = TypeVar("_Item")
SOURCE = Path(__file__).resolve().parents[2] / "src" / "kvgate" / "domain"
# In the order of the judge's work: from what was recorded to the run's verdict.
MODULES = (
    "record",
    "observation",
    "counters",
    "log",
    "evidence",
    "standing",
    "divergence",
    "noise",
    "power",
    "group_view",
    "pairing",
    "doubts",
    "leaks",
    "pair_view",
    "rows",
    "chance",
    "policy",
    "verdict",
    "attribution",
    "excess",
    "canaries",
    "sentinels",
    "judge",
)
# What the judge does not decide by. Some make text; the others are called by the gate or by no one here.
LEFT_ALONE = {
    ("rows", "_told"),
    ("rows", "_let_in"),
    ("standing", "_with_a_word"),
    ("standing", "_QUICK"),
    ("standing", "_MISSES"),
    ("rows", "_where"),
    ("judge", "_drift_problem"),
    ("canaries", "canary_notes"),
    ("sentinels", "sentinel_notes"),
    ("sentinels", "_drift"),
    ("sentinels", "changed"),
    ("sentinels", "asks_after"),
    ("sentinels", "asked_in_all"),
    ("evidence", "counted"),
    ("observation", "Observation.has_non_finite_logprobs"),
    ("record", "RunRecord.forget"),
}

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "maximum": "minimum"}
_MILDER = {"FAIL": "INCONCLUSIVE", "INCONCLUSIVE": "PASS", "PASS": "INCONCLUSIVE"}
_UNTOUCHED_FIELDS = {"annotation", "returns", "decorator_list", "type_params", "type_ignores", "ctx"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change. ``name`` stays the same while lines move; ``number`` is its place among its module's.

    ``lines`` are the first and last line of the statement it is in; None where that runs on import.
    """

    module: str
    scope: str
    line: int
    lines: tuple[int, int] | None
    change: str
    number: int | None
    name: str


@dataclass(frozen=True, slots=True)
class _Place:
    """A node and how to put another in its place."""

    scope: str
    lines: tuple[int, int] | None
    node: ast.AST
    parent: ast.AST
    field: str
    index: int | None

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


class Mutants:
    """All changes to one module, and the module with any one of them."""

    def __init__(self, module: str) -> None:
        self._file = SOURCE / f"{module}.py"
        self._tree = ast.parse(self._file.read_text(encoding="utf-8"))
        self._changes: list[tuple[_Place, ast.AST]] = []
        self.all: list[Mutant] = []
        seen: Counter[str] = Counter()
        for place in _places(self._tree, module):
            for replacement, change in _changes(place):
                name = f"{module}:{place.scope}: {change}"
                seen[name] += 1
                number = len(self._changes)
                self._changes.append((place, replacement))
                told = name if seen[name] == 1 else f"{name} #{seen[name]}"
                line = getattr(place.node, "lineno", place.lines[0] if place.lines else 0)
                self.all.append(Mutant(module, place.scope, line, place.lines, change, number, told))

    def plant(self, number: int | None) -> str:
        """The module's source with one change; with none for None."""
        if number is None:
            return ast.unparse(self._tree)
        place, replacement = self._changes[number]
        place.put(replacement)
        try:
            return ast.unparse(self._tree)
        finally:
            place.put(place.node)


# The mutant that is none: every module from its source as this file writes it out.
CONTROL = Mutant("all", "control", 0, None, "nothing", None, "all:control: nothing")


def _places(node: ast.AST, module: str, scope: str = "", lines: tuple[int, int] | None = None) -> Iterator[_Place]:
    for field, value in ast.iter_fields(node):
        if field in _UNTOUCHED_FIELDS:
            continue
        for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
            if not isinstance(child, ast.AST):
                continue
            inner = _scope(scope, child, isinstance(node, ast.Module))
            if (module, inner) in LEFT_ALONE or _is_described(child, node, module) or _is_text(child):
                continue
            at = _lines(child, node, lines)
            yield _Place(inner or "module", at, child, node, field, index)
            yield from _places(child, module, inner, at)


def _lines(node: ast.AST, parent: ast.AST, outer: tuple[int, int] | None) -> tuple[int, int] | None:
    """The lines of the statement a node is in, without its body; None outside functions."""
    if not isinstance(node, ast.stmt) or isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return None if isinstance(node, ast.arguments) else outer
    if outer is None and not isinstance(parent, ast.FunctionDef):
        return None
    body = getattr(node, "body", None)
    return node.lineno, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno


def _scope(scope: str, node: ast.AST, top: bool) -> str:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return f"{scope}.{node.name}" if scope else node.name
    if top and isinstance(node, (ast.Assign, ast.AnnAssign)):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return ast.unparse(target)
    return scope


def _is_described(node: ast.AST, parent: ast.AST, module: str) -> bool:
    """Imports, docstrings, and values of class bodies, which are names of enums and defaults of records."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(parent, ast.ClassDef):
        return isinstance(node, (ast.Assign, ast.AnnAssign)) and module != "policy"
    return False


def _is_text(node: ast.AST) -> bool:
    """Whether an expression makes a sentence for people."""
    if isinstance(node, ast.JoinedStr):
        return True
    if isinstance(node, ast.IfExp):
        return _is_wording(node.body) or _is_wording(node.orelse)
    if isinstance(node, ast.BinOp):
        return _is_wording(node.left) or _is_wording(node.right)
    return isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and _is_wording(node.values[-1])


def _is_wording(node: ast.AST) -> bool:
    if isinstance(node, (ast.List, ast.Tuple)) and node.elts:
        return all(_is_wording(each) for each in node.elts)
    return (isinstance(node, ast.Constant) and isinstance(node.value, str)) or _is_text(node)


def _changes(place: _Place) -> Iterator[tuple[ast.AST, str]]:
    node = place.node
    for make in _MAKERS:
        for replacement in make(place):
            yield replacement, f"{_short(node)} -> {_short(replacement)}"
    for shorten in _SHORTENERS:
        for replacement, lost in shorten(place):
            yield replacement, f"{_short(node)} without {_short(lost)}"


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 100 else f"{text[:70]} ... {text[-25:]}"


def _tests(place: _Place) -> Iterator[ast.AST]:
    """A condition that always or never holds."""
    holder, field = place.parent, place.field
    if field == "test" or (isinstance(holder, ast.comprehension) and field == "ifs"):
        yield ast.Constant(True)
        yield ast.Constant(False)


def _compared(place: _Place) -> Iterator[ast.AST]:
    node = place.node
    if not isinstance(node, ast.Compare):
        return
    for index, operator in enumerate(node.ops):
        for other in _COMPARISONS.get(type(operator), ()):
            ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
            yield ast.Compare(node.left, ops, node.comparators)
    right = node.comparators[0]
    if len(node.ops) != 1:
        return
    if isinstance(node.ops[0], ast.Eq) and isinstance(right, ast.Constant) and right.value == 0.0:
        yield ast.Compare(node.left, [ast.LtE()], [ast.Constant(1e-06)])


def _joined(place: _Place) -> Iterator[ast.AST]:
    """``and`` for ``or``."""
    node = place.node
    if isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)


def _calculated(place: _Place) -> Iterator[ast.AST]:
    node = place.node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub, ast.Invert)):
        yield node.operand
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
    if isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC and not _is_list(node.value):
        yield ast.AugAssign(node.target, _ARITHMETIC[type(node.op)](), node.value)


def _is_list(node: ast.AST) -> bool:
    return isinstance(node, (ast.List, ast.ListComp))


def _constants(place: _Place) -> Iterator[ast.AST]:
    node, holder = place.node, place.parent
    if not isinstance(node, ast.Constant) or (isinstance(holder, ast.keyword) and holder.arg in ("strict", "slots")):
        return
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
        yield ast.Constant(value - 1)
    elif isinstance(value, float):
        for other in (value * 2, value / 2) if value else (1e-06, 0.1):
            yield ast.Constant(other)
    elif isinstance(value, str) and isinstance(holder, ast.Compare):
        yield ast.Constant(value + "x")


def _slices(place: _Place) -> Iterator[ast.AST]:
    node = place.node
    if isinstance(node, ast.Slice) and node.step is None:
        if node.lower is not None:
            yield ast.Slice(None, node.upper)
        if node.upper is not None:
            yield ast.Slice(node.lower, None)


def _calls(place: _Place) -> Iterator[ast.AST]:
    node = place.node
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id == "Verdict" and node.attr in _MILDER:
            yield ast.Attribute(node.value, _MILDER[node.attr], node.ctx)
        return
    if not isinstance(node, ast.Call):
        return
    called, name = node.func, _called(node)
    if name in _NAMES:
        other: ast.expr = (
            ast.Name(_NAMES[name], ast.Load())
            if isinstance(called, ast.Name)
            else ast.Attribute(called.value, _NAMES[name], ast.Load())  # type: ignore[attr-defined]
        )
        yield ast.Call(other, node.args, node.keywords)
    if name == "abs":
        yield node.args[0]
    if name == "_fail":
        problem = ast.Call(ast.Name("Problem", ast.Load()), node.args, [])
        yield ast.Call(ast.Name("_inconclusive", ast.Load()), [problem], [])


def _called(node: ast.Call) -> str:
    called = node.func
    return called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""


_Shorter = Iterator[tuple[ast.AST, ast.AST]]


def _operands(place: _Place) -> _Shorter:
    node = place.node
    if isinstance(node, ast.BoolOp):
        for index, each in enumerate(node.values):
            rest = _less(node.values, index)
            yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest), each
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = node.left, node.comparators[0]
        if isinstance(left, ast.Tuple) and isinstance(right, ast.Tuple):
            for index, each in enumerate(left.elts):
                sides = [ast.Tuple(_less(side.elts, index), ast.Load()) for side in (left, right)]
                yield ast.Compare(sides[0], node.ops, [sides[1]]), each


def _arguments(place: _Place) -> _Shorter:
    node = place.node
    if not isinstance(node, ast.Call):
        return
    name = _called(node)
    if name == "first" and len(node.args) > 1:
        for index, each in enumerate(node.args):
            yield ast.Call(node.func, _less(node.args, index), []), each
    if name in ("replace", "Evidence"):
        for index, keyword in enumerate(node.keywords):
            yield ast.Call(node.func, node.args, _less(node.keywords, index)), keyword


def _elements(place: _Place) -> _Shorter:
    """A table, a list of reasons, or a list put together, without one of its elements."""
    node, holder = place.node, place.parent
    if isinstance(node, ast.Dict) and isinstance(holder, (ast.Assign, ast.AnnAssign)):
        for index, key in enumerate(node.keys):
            yield ast.Dict(_less(node.keys, index), _less(node.values, index)), key or node
    if not isinstance(node, (ast.Tuple, ast.List)) or not isinstance(node.ctx, ast.Load):
        return
    table = isinstance(holder, (ast.Assign, ast.AnnAssign)) and place.scope.lstrip("_").isupper()
    looped = isinstance(holder, (ast.For, ast.comprehension)) and place.field == "iter"
    among = isinstance(holder, ast.Compare) and isinstance(holder.ops[0], (ast.In, ast.NotIn))
    starred = any(isinstance(each, ast.Starred) for each in node.elts)
    if table or looped or among or starred:
        for index, each in enumerate(node.elts):
            yield type(node)(_less(node.elts, index), ast.Load()), each


def _less(items: list[_Item], index: int) -> list[_Item]:
    return items[:index] + items[index + 1 :]


def _statements(place: _Place) -> Iterator[ast.AST]:
    """A statement left out, unless leaving out its condition is the same."""
    node, holder = place.node, place.parent
    if not isinstance(node, (ast.Expr, ast.AugAssign, ast.Return, ast.Continue)):
        return
    alone = isinstance(holder, ast.If) and place.field == "body" and len(holder.body) == 1 and not holder.orelse
    last = isinstance(node, ast.Return) and isinstance(holder, ast.FunctionDef)
    if not alone and not last:
        yield ast.Pass()


_MAKERS: tuple[Callable[[_Place], Iterator[ast.AST]], ...] = (
    _tests,
    _compared,
    _joined,
    _calculated,
    _constants,
    _slices,
    _calls,
    _statements,
)
_SHORTENERS = (_operands, _arguments, _elements)
