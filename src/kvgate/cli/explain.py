"""``kvgate explain``: the tables, in words."""

import difflib
import json
import sys

from rich.table import Table

from kvgate.cli.exit_codes import ExitCode
from kvgate.cli.output import ListFormat, out
from kvgate.domain.reasons import REASONS, Reason
from kvgate.engines.dialects import DIALECTS
from kvgate.errors import ConfigError

TABLES = ("reasons", "dialects")


def explain_code(code: str | None, table: str | None, form: ListFormat) -> ExitCode:
    """Explain one code, or list a table."""
    if table is not None:
        return _list(table, form)
    if code is None:
        raise ConfigError("explain: give a CODE from a report, or --list reasons")
    name = code.upper()
    if name not in Reason.__members__:
        close = difflib.get_close_matches(name, Reason.__members__, n=1)
        hint = f"did you mean {close[0]}?" if close else "`kvgate explain --list reasons` shows all"
        raise ConfigError(f"explain: there is no code {code!r}; {hint}")
    text = REASONS[Reason[name]]
    if form is ListFormat.JSON:
        _json({"code": name, "meaning": text.meaning, "advice": text.advice})
    else:
        out().print(f"{name}\n  meaning: {text.meaning}\n  advice:  {text.advice}", markup=False)
    return ExitCode.PASS


def _list(table: str, form: ListFormat) -> ExitCode:
    if table not in TABLES:
        raise ConfigError(f"explain --list {table}: there is no such table; known: {', '.join(TABLES)}")
    if table == "reasons":
        rows = [{"code": each.value, "meaning": text.meaning, "advice": text.advice} for each, text in REASONS.items()]
    else:
        rows = [{"name": each.name, "counters": each.by_source_grade.value} for each in DIALECTS.values()]
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
