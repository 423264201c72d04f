"""The house rules that no linter knows: what each room may import, sizes, names. Each rule catches a planted breach."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "kvgate"
LONGEST_FILE, LONGEST_FUNCTION = 420, 60
HIDING_NAMES = ("utils", "util", "common", "helpers", "helper", "base", "misc", "manager", "core")

# Per room: the only top-level modules it may import. import-linter checks directions between rooms; this list also
# catches what it does not see (imports of the standard library that would bring I/O, clocks or randomness in).
PURE = {
    "collections",
    "dataclasses",
    "difflib",
    "enum",
    "functools",
    "hashlib",
    "json",
    "math",
    "re",
    "typing",
    "numpy",
}
ALLOWED = {
    "domain": PURE,
    "ports.py": {"collections", "dataclasses", "typing"},
    "errors.py": set[str](),
    "gate": {"asyncio", "collections", "contextlib", "dataclasses", "random"},
    "sim": {
        "asyncio",
        "collections",
        "contextlib",
        "dataclasses",
        "enum",
        "h11",
        "hashlib",
        "http",
        "json",
        "math",
        "numpy",
        "pathlib",
        "re",
        "time",
        "typing",
        "urllib",
    },
}


def imported(source: str) -> set[str]:
    """Every module a piece of source imports, wherever the statement stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "__import__":
            found.add("__import__")
    return found


def breaches(room: str, source: str) -> list[str]:
    allowed = ALLOWED[room]
    # The simulator is a stranger: of kvgate it knows itself only.
    inside = "kvgate.sim." if room == "sim" else "kvgate."
    return sorted(
        name for name in imported(source) if name.split(".")[0] not in allowed and not name.startswith(inside)
    )


def files_of(room: str) -> list[Path]:
    place = SOURCE / room
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


@pytest.mark.parametrize("room", ALLOWED)
def test_rooms_import_only_what_they_may(room: str) -> None:
    files = files_of(room)
    assert files
    assert {} == {file.name: found for file in files if (found := breaches(room, file.read_text()))}


PLANTED = (
    "import time",
    "import random",
    "def f():\n    import os",
    "from pathlib import Path",
    "import httpx",
    "from . import x",
    "__import__('os')",
    "if True:\n    from logging import getLogger",
)


@pytest.mark.parametrize("line", PLANTED)
def test_the_allow_list_catches_a_planted_breach(line: str) -> None:
    assert breaches("domain", line)


def test_the_allow_list_keeps_the_simulator_a_stranger() -> None:
    assert breaches("sim", "from kvgate.domain import plan")
    assert not breaches("sim", "from kvgate.sim.network import Sequence")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


BROKEN_CONTRACTS = (
    ("domain/geometry.py", "from kvgate.engines import dialects"),
    ("engines/wire.py", "from kvgate.store import run_directory"),
    ("report/table.py", "from kvgate.gate import session"),
    ("gate/session.py", "from kvgate.config import load"),
    ("ports.py", "from kvgate.cli import app"),
    ("domain/plan.py", "import pydantic"),
    ("sim/node.py", "from kvgate.domain import plan"),
)


@pytest.mark.parametrize(("file", "line"), BROKEN_CONTRACTS)
def test_the_import_contracts_catch_a_planted_breach(file: str, line: str, tmp_path: Path) -> None:
    copy_source(tmp_path)
    target = tmp_path / "src" / "kvgate" / file
    target.write_text(target.read_text() + f"\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN" in done.stdout


def test_the_import_contracts_hold(tmp_path: Path) -> None:
    copy_source(tmp_path)
    done = lint_imports(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def copy_source(folder: Path) -> None:
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for file in SOURCE.rglob("*.py"):
        target = folder / "src" / "kvgate" / file.relative_to(SOURCE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.read_text())


def python_files() -> list[Path]:
    return [file for place in ("src", "tests", "scripts") for file in sorted((ROOT / place).rglob("*.py"))]


def test_files_and_functions_stay_small() -> None:
    long = {str(file.relative_to(ROOT)): count for file in python_files() if (count := lines(file)) > LONGEST_FILE}
    assert {} == long
    wide = {
        f"{file.relative_to(ROOT)}:{node.name}": size
        for file in python_files()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (size := (node.end_lineno or node.lineno) - node.lineno + 1) > LONGEST_FUNCTION
    }
    assert {} == wide


def lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def test_names_say_what_is_inside() -> None:
    assert [] == [file.name for file in python_files() if file.stem in HIDING_NAMES]


def test_no_mocks() -> None:
    this = Path(__file__)
    assert [] == [file.name for file in python_files() if file != this and "unittest.mock" in file.read_text()]


def test_importing_the_package_changes_nothing() -> None:
    """No registration by import: importing every module leaves no file, thread or handler behind."""
    names = [
        "kvgate." + ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for file in SOURCE.rglob("*.py")
        if file.name != "__main__.py"
    ]
    code = (
        "import importlib, logging, signal, threading\n"
        "before = (threading.active_count(), len(logging.root.handlers), signal.getsignal(signal.SIGINT))\n"
        f"for name in {sorted(names)!r}: importlib.import_module(name)\n"
        "after = (threading.active_count(), len(logging.root.handlers), signal.getsignal(signal.SIGINT))\n"
        "assert before == after, (before, after)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
