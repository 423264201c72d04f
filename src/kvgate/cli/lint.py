"""``kvgate lint``: launch files against the rules, before anything is started."""

import sys
from pathlib import Path

from kvgate.cli.exit_codes import ExitCode
from kvgate.cli.output import LintFormat, out
from kvgate.domain.preflight.rule import Rule
from kvgate.domain.preflight.rules import RULES, lint
from kvgate.errors import ConfigError
from kvgate.launch.files import read_launch
from kvgate.report.lint_document import lint_annotations, lint_json, lint_report, print_lint


def lint_files(paths: list[Path], select: list[str], ignore: list[str], form: LintFormat) -> ExitCode:
    """Read the files of one deployment, hold them against the rules, and print what was found."""
    launch = read_launch(paths)
    if not launch.engines and not launch.pool_files and not launch.commands:
        names = ", ".join(map(str, paths))
        raise ConfigError(
            f"{names}: no `vllm serve`, `mooncake_master` or pool's configuration is in there, so nothing was checked; "
            "give the scripts that start the engines"
        )
    rules = _chosen(select, ignore)
    report = lint_report(tuple(map(str, paths)), len(launch.engines), len(rules), lint(launch, rules))
    if form is LintFormat.JSON:
        sys.stdout.write(lint_json(report))
    elif form is LintFormat.GITHUB:
        sys.stdout.write(lint_annotations(report))
    else:
        print_lint(report, out())
    return ExitCode.PASS if report.clean else ExitCode.FAIL


def _chosen(select: list[str], ignore: list[str]) -> tuple[Rule, ...]:
    """Rules by code, or by the beginning of codes. Raises ConfigError for one that there is not."""
    for code in (*select, *ignore):
        if not any(rule.code.startswith(code.upper()) for rule in RULES):
            raise ConfigError(f"lint: no rule begins with {code!r}; see `kvgate explain --list rules`")
    picked = [rule for rule in RULES if not select or _begins(rule, select)]
    kept = tuple(rule for rule in picked if not _begins(rule, ignore))
    if not kept:
        raise ConfigError("lint: --select and --ignore leave no rule, so nothing would be checked")
    return kept


def _begins(rule: Rule, codes: list[str]) -> bool:
    return any(rule.code.startswith(code.upper()) for code in codes)
