"""What a rung must show beside its verdict before it is accepted: figures that commands tell, within bounds.

A transfer over a slow fallback gives right answers, and a pool that holds nothing hurts nobody: a stage is accepted
only if the figures say that it does what it is there for (seed 004 §5, acceptance lists of stages A to E).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvgate.domain.reasons import Problem, Reason
from kvgate.domain.rungs import Figure, RungTried
from kvgate.domain.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Accepts:
    """Bounds of one figure: of what it is after the gate, or (``change``) of how much it rose meanwhile.

    ``least`` and ``most`` are inclusive, None for no bound; one of them is given.
    """

    reading: str
    change: bool = False
    least: float | None = None
    most: float | None = None


def accepted(tried: RungTried, asked: Sequence[Accepts]) -> RungTried:
    """The rung with NOT_ACCEPTED for each figure that is absent or out of bounds. It takes away a PASS, no FAIL."""
    figures = {figure.name: figure for figure in tried.figures}
    problems = tuple(
        Problem(Reason.NOT_ACCEPTED, said) for each in asked if (said := _unmet(each, figures.get(each.reading)))
    )
    if not problems:
        return tried
    verdict = Verdict.INCONCLUSIVE if tried.verdict is Verdict.PASS else tried.verdict
    return replace(tried, verdict=verdict, reasons=(*tried.reasons, *problems))


def _unmet(asked: Accepts, figure: Figure | None) -> str | None:
    what = f"change of {asked.reading}" if asked.change else asked.reading
    if figure is None or figure.after is None or (asked.change and figure.before is None):
        why = f" ({figure.detail})" if figure is not None and figure.detail else ""
        return f"{what} is absent{why}; asked for is {_bounds(asked)}"
    value = figure.after - (figure.before or 0.0) if asked.change else figure.after
    within = (asked.least is None or value >= asked.least) and (asked.most is None or value <= asked.most)
    unit = figure.unit and " " + figure.unit
    return None if within else f"{what} is {value:g}{unit}; asked for is {_bounds(asked)}"


def _bounds(asked: Accepts) -> str:
    told = [
        f"{word} {bound:g}" for word, bound in (("at least", asked.least), ("at most", asked.most)) if bound is not None
    ]
    return " and ".join(told)
