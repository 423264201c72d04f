"""``kvgate explain``: the tables, in words."""

import difflib
import json
import sys

from rich.table import Table

from kvgate.cli.exit_codes import ExitCode
from kvgate.cli.output import ListFormat, out
from kvgate.config.settings import settings
from kvgate.domain.preflight.rules import RULES
from kvgate.domain.reasons import REASONS
from kvgate.engines.dialects import DIALECTS
from kvgate.errors import ConfigError
from kvgate.sim.faults import FAULTS

Row = dict[str, str]


def explain_code(code: str | None, table: str | None, form: ListFormat) -> ExitCode:
    """Explain one code, or list a table."""
    if table is not None:
        return _list(table, form)
    if code is None:
        raise ConfigError("explain: give a CODE from a report, or --list reasons")
    rows = [row for table in (_reasons, _settings, _rules, _faults) for row in table()]
    found = [row for row in rows if code.lower() in _names(row)]
    if not found:
        names = [name for row in rows for name in _names(row)]
        close = difflib.get_close_matches(code.lower(), names, n=1)
        whole = next((_name(row) for row in rows if close and close[0] in _names(row)), "")
        hint = f"did you mean {whole}?" if whole else "`kvgate explain --list reasons` shows all"
        raise ConfigError(f"explain: there is no code {code!r}; {hint}")
    if form is ListFormat.JSON:
        _json(found)
        return ExitCode.PASS
    for row in found:
        widest = max(map(len, row)) + 2
        told = (f"\n  {field + ':':<{widest}}{value}" for field, value in list(row.items())[1:])
        out().print(_name(row) + "".join(told), markup=False)
    return ExitCode.PASS


def _name(row: Row) -> str:
    return next(iter(row.values()))


def _names(row: Row) -> tuple[str, ...]:
    """What a row is asked for by: its name, and a setting's name without its section."""
    name = _name(row).lower()
    return (name, name.rpartition(".")[2])


def _reasons() -> list[Row]:
    return [{"code": each.value, "meaning": text.meaning, "advice": text.advice} for each, text in REASONS.items()]


def _settings() -> list[Row]:
    return [{"key": each.key, "default": each.default, "meaning": each.meaning} for each in settings()]


def _faults() -> list[Row]:
    return [
        {"fault": each.name, "does": each.sentence, "models": each.models, "required": each.verdict} for each in FAULTS
    ]


def _rules() -> list[Row]:
    return [
        {
            "code": each.code,
            "name": each.name,
            "severity": each.severity.value,
            "meaning": each.what,
            "advice": each.remedy,
            "source": each.source,
            "vllm-ascend": each.versions or "all versions",
        }
        for each in RULES
    ]


def _dialects() -> list[Row]:
    return [{"name": each.name, "counters": each.by_source_grade.value} for each in DIALECTS.values()]


TABLES = {"reasons": _reasons, "settings": _settings, "rules": _rules, "faults": _faults, "dialects": _dialects}


def _list(table: str, form: ListFormat) -> ExitCode:
    if table not in TABLES:
        raise ConfigError(f"explain --list {table}: there is no such table; known: {', '.join(TABLES)}")
    rows = TABLES[table]()
    if form is ListFormat.JSON:
        _json(rows)
        return ExitCode.PASS
    shown = Table(*rows[0])
    for row in rows:
        shown.add_row(*row.values())
    out().print(shown)
    return ExitCode.PASS


def _json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
