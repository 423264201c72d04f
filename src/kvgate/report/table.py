"""The report for a terminal: verdict first, then why, then what was seen, then what to do."""

from collections.abc import Iterable
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvgate.domain.probe import Arm
from kvgate.domain.reasons import REASONS, Problem
from kvgate.domain.ruling import ArmSummary, GroupVerdict, PairVerdict, RunVerdict, Spread
from kvgate.domain.verdict import Verdict
from kvgate.report.document import Report

_STYLE = {
    Verdict.PASS: "bold green",
    Verdict.FAIL: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
    Verdict.NOT_APPLICABLE: "dim",
}

_RANK = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS, Verdict.NOT_APPLICABLE)


def print_report(report: Report, console: Console) -> None:
    """Print the whole report."""
    for part in _parts(report):
        console.print(part)


def print_brief(report: Report, console: Console) -> None:
    """Print what a reader needs first: the verdict, why, a line for each group, and what to do."""
    ruling = report.ruling
    console.print(_headline(report))
    console.print(_reasons(ruling))
    console.print(_groups_table(ruling))
    if ruling.verdict is Verdict.PASS:
        console.print(_power(ruling))
    console.print(_closing(ruling))


def _groups_table(ruling: RunVerdict) -> RenderableType:
    """One line a group: its worst comparison, and how the external arm's path was proven."""
    table = Table()
    for name in (
        "group",
        "tokens",
        "from the pool",
        "worst comparison",
        "token IDs",
        "drift nat",
        "must be",
        "verdict",
    ):
        right = name in ("tokens", "from the pool", "drift nat")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for group in ruling.groups:
        loaded = next((arm.external for arm in group.arms if arm.arm is Arm.EXTERNAL), None)
        ranked = sorted(group.pairs, key=lambda pair: (_RANK.index(pair.verdict), -(pair.max_drift or 0.0)))
        for pair in ranked[:1]:
            named = f"{pair.subject.value} vs {pair.baseline.value}"
            row = (escape(group.id), str(group.length), _count(loaded), named, *_seen(pair), _verdict(group, pair))
            table.add_row(*row)
    return table


def _parts(report: Report) -> Iterable[RenderableType]:
    ruling = report.ruling
    yield _headline(report)
    yield _reasons(ruling)
    if ruling.groups:
        yield _pairs_table(ruling)
        yield _arms_table(ruling)
    if ruling.noise:
        yield _noise_table(ruling)
    if any(test.p_value < 1.0 for test in ruling.tests):
        yield _tests(ruling)
    if ruling.power:
        yield _power(ruling)
    if ruling.timing:
        yield _timing(ruling)
    if ruling.signals:
        yield _signals(ruling)
    yield _closing(ruling)


def _headline(report: Report) -> RenderableType:
    ruling, geometry = report.ruling, report.geometry
    line = Text.assemble(
        ("\n" + ruling.verdict.value, _STYLE[ruling.verdict]),
        f"  {report.deployment.name}  ({report.deployment.engine}, model {report.deployment.model})",
    )
    other = "   ".join(f"{result.policy.value}: {result.verdict.value}" for result in ruling.results)
    facts = (
        f"run {report.run_id}   policy {ruling.policy.value}   [{other}]\n"
        f"forcing {report.forcing.value}   answers {report.answer_grade.value}   block {geometry.block_size}   "
        f"granule {geometry.granule}   chunk {geometry.chunk}   hit floor {geometry.hit_floor} tokens   "
        f"alignment {'proven' if ruling.alignment_proven else 'not proven'}"
    )
    return Group(line, Text(facts))


def _reasons(ruling: RunVerdict) -> RenderableType:
    lines = [Text("")]
    for problem in ruling.reasons:
        lines.append(Text.assemble((problem.reason.value, "bold"), f"  {REASONS[problem.reason].meaning}"))
        lines.append(Text(f"    seen: {problem.detail}"))
    failed = dict.fromkeys(pair.attribution for group in ruling.groups for pair in group.pairs if pair.attribution)
    lines += [Text(f"    speaks against the {each}", style="red") for each in failed]
    for tier in ruling.not_applicable:
        lines.append(Text.assemble((f"NOT_APPLICABLE  tier {tier.tier}", "dim"), f": {tier.detail}"))
    return Group(*lines)


def _pairs_table(ruling: RunVerdict) -> RenderableType:
    table = Table(title="What was compared (token result and drift side by side)", title_justify="left")
    for name in ("group", "tokens", "pair", "token IDs", "drift nat", "must be", "verdict", "why"):
        table.add_column(name, justify="right" if name in ("tokens", "drift nat") else "left", overflow="fold")
    for group in ruling.groups:
        for index, pair in enumerate(group.pairs):
            first = (group.id, str(group.length)) if index == 0 else ("", "")
            table.add_row(
                *map(escape, first),
                f"{pair.subject.value} vs {pair.baseline.value}",
                *_seen(pair),
                _verdict(group, pair),
                _why(pair),
            )
        table.add_section()
    return table


def _seen(pair: PairVerdict) -> tuple[str, str, str]:
    if pair.ids_equal is None:
        return "-", "-", "-"
    ids = "equal" if pair.ids_equal else f"differ at {pair.first_difference}"
    drift = _drift(pair.max_drift) if pair.drift_problem is None else "no number"
    return ids, drift, "exactly 0" if pair.exact else f"<= {pair.envelope:.2g}"


def _drift(value: float | None) -> str:
    if value is None:
        return "unknown"
    return "0.0" if value == 0.0 else f"{value:.2e}"


def _verdict(group: GroupVerdict, pair: PairVerdict) -> str:
    if group.replaced and pair.verdict is not Verdict.FAIL:
        return "[dim]replaced[/dim]"
    return f"[{_STYLE[pair.verdict]}]{pair.verdict.value}[/]"


def _why(pair: PairVerdict) -> str:
    parts: list[Problem] = [*([pair.problem] if pair.problem else []), *pair.annotations]
    told = "; ".join(f"{each.reason.value}: {each.detail}" for each in parts)
    if not told and not pair.exact and pair.why_not_exact:
        told = pair.why_not_exact
    return escape(told)


def _arms_table(ruling: RunVerdict) -> RenderableType:
    table = Table(title="Which path served each arm (prompt tokens, by the engine's counters)", title_justify="left")
    for name in ("group", "arm", "at", "computed", "local", "external", "expected", "path", "first token", "total"):
        right = name in ("computed", "local", "external", "expected", "first token", "total")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for group in ruling.groups:
        for index, arm in enumerate(group.arms):
            table.add_row(escape(group.id) if index == 0 else "", *_arm(group, arm))
        table.add_section()
    return table


def _arm(group: GroupVerdict, arm: ArmSummary) -> tuple[str, ...]:
    shown = (
        "[green]proven[/]" if arm.proven else f"[yellow]{arm.problem.reason.value if arm.problem else 'no answer'}[/]"
    )
    if arm.proven and arm.grade is not None:
        shown += f" ({arm.grade.value})"
    expected = group.expected_external if arm.arm.path.value in ("external", "local") else 0
    return (
        arm.arm.value,
        escape(arm.endpoint),
        *(_count(value) for value in (arm.computed, arm.local, arm.external)),
        str(expected),
        shown,
        _seconds(arm.first_token_s),
        _seconds(arm.total_s),
    )


def _count(value: int | None) -> str:
    return "?" if value is None else str(value)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _noise_table(ruling: RunVerdict) -> RenderableType:
    table = Table(title="Noise floor: controls of this run", title_justify="left")
    for name in ("control", "pairs", "bit-equal", "token flips", "largest drift", "median drift"):
        table.add_column(name, justify="left" if name == "control" else "right")
    for floor in ruling.noise:
        drifts = (_drift(floor.max_drift), _drift(floor.median_drift))
        beside = f", {floor.level} beside" if floor.level is not None else ""
        table.add_row(floor.kind + beside, str(floor.pairs), str(floor.exact), str(floor.flips), *drifts)
    return table


def _tests(ruling: RunVerdict) -> RenderableType:
    table = Table(title="What the groups show together (exact tests)", title_justify="left")
    for name in ("test", "seen", "p", "fails below", ""):
        table.add_column(name, justify="right" if name in ("p", "fails below") else "left", overflow="fold")
    for test in ruling.tests:
        told = "[bold red]fails[/]" if test.rejects else "too small to count" if not test.worth else ""
        table.add_row(test.name, escape(test.seen), f"{test.p_value:.2g}", f"{test.level:.2g}", told)
    return table


def _power(ruling: RunVerdict) -> RenderableType:
    lines = [Text("What a PASS of these groups excludes at 95 %:")]
    for (tier, lengths, groups, rate), alike in groupby(
        ruling.power, key=lambda each: (each.tier, each.lengths, each.groups, each.excluded_fault_rate)
    ):
        arms = ", ".join(each.arm.value for each in alike)
        if groups == 0:
            lines.append(Text(f"  tier {tier}, {arms}: nothing (no clean exercised group)"))
            continue
        at = ", ".join(map(str, lengths))
        share = f"random ones that change more than {100 * rate:.2g}% of answers (n = {groups})"
        lines.append(Text(f"  tier {tier}, {arms}: faults that change every answer at {at} tokens; {share}"))
    return Group(*lines)


def _timing(ruling: RunVerdict) -> RenderableType:
    table = Table(title="Seconds by path: median (90th percentile)", title_justify="left")
    for name in ("tier", "path", "requests", "first token", "sooner than cold", "between tokens", "whole answer"):
        table.add_column(name, justify="left" if name == "path" else "right")
    for each in ruling.timing:
        saved = "" if each.saved_s is None else f"{each.saved_s:+.3f}"
        cells = (_spread(each.first_token), saved, _spread(each.between_tokens), _spread(each.total))
        table.add_row(str(each.tier), each.path.value, str(each.probes), *cells)
    cost = f"Cost: {ruling.computed_tokens} prompt tokens computed, {ruling.sent_tokens} sent"
    return Group(table, Text(cost))


def _signals(ruling: RunVerdict) -> RenderableType:
    """What the engines told of themselves; an engine that told nothing is not a quiet one."""
    table = Table(title="What the engines told while the run lasted: the most seen", title_justify="left")
    for name in ("endpoint", "running", "waiting", "KV cache in use", "preempted", "failed loads", "let go at the end"):
        table.add_column(name, justify="left" if name in ("endpoint", "let go at the end") else "right")
    for each in ruling.signals:
        usage = "?" if each.most_kv_usage is None else f"{100 * each.most_kv_usage:.3g}%"
        counts = (_told(each.preemptions), _told(each.failed_loads))
        let_go = {True: "yes", False: "[yellow]no[/]", None: "?"}[each.released]
        busy = (_told(each.most_running), _told(each.most_waiting))
        table.add_row(escape(each.endpoint), *busy, usage, *counts, let_go)
    actions = [Text(f"  {action}", style="yellow") for each in ruling.signals for action in each.actions]
    return Group(table, *actions)


def _told(value: float | None) -> str:
    return "?" if value is None else f"{value:g}"


def _spread(spread: Spread | None) -> str:
    return "unknown" if spread is None else f"{spread.p50:.3f} ({spread.p90:.3f})"


def _closing(ruling: RunVerdict) -> RenderableType:
    lines = [Text(f"Note: {note}") for note in ruling.notes]
    if ruling.advice:
        lines.append(Text("What to do:", style="bold"))
        lines += [Text(f"  {number}. {advice}") for number, advice in enumerate(ruling.advice, start=1)]
    return Group(*lines)
