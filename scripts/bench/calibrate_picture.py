"""The heat map of fault classes and levels of noise, as SVG: the same figures give the same file."""

import math
from pathlib import Path

import matplotlib
from calibrate_cells import CLASSES, Seen
from calibrate_noise import BY_LEVEL, QUIET
from calibrate_table import FAIL, INCONCLUSIVE, PASS, by_class, by_level, of_part
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

ROW_INCH, COLUMN_INCH, LEFT_INCH, TOP_INCH, FOOT_INCH = 0.2, 0.62, 1.9, 1.0, 0.6
MISSED, FOUND, INK, PASSED = "#b2182b", "#d5e8f3", "#222222", "#ffffff"
GRID, NOTHING = "#ffffff", "#eeeeee"


def draw(seen: list[Seen], file: Path) -> None:
    """Write the picture of what was measured of the classes; nothing where nothing was."""
    found = by_class(of_part(seen, CLASSES))
    levels = list(by_level(of_part(seen, CLASSES)))
    if not found:
        return
    size = (LEFT_INCH + COLUMN_INCH * len(levels) + 0.3, TOP_INCH + ROW_INCH * len(found) + FOOT_INCH)
    settings = {"svg.hashsalt": "kvgate", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 8}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=size)
        axes = figure.add_axes(
            (
                LEFT_INCH / size[0],
                FOOT_INCH / size[1],
                COLUMN_INCH * len(levels) / size[0],
                ROW_INCH * len(found) / size[1],
            )
        )
        _fill(axes, found, levels)
        figure.text(
            0.02,
            1 - 0.22 / size[1],
            "Found among noise: share of runs with the verdict FAIL",
            fontsize=11,
            weight="bold",
        )
        legend = (
            "blue: found in every run; the redder, the fewer; grey: not measured. "
            "Numbers: runs that were inconclusive (i), or passed (P)"
        )
        figure.text(0.02, 0.3 / size[1], legend, fontsize=7.5)
        # A date or a version would make another file of the same figures.
        metadata = {"Date": None, "Creator": "kvgate"} if file.suffix == ".svg" else {}
        figure.savefig(file, metadata=metadata, dpi=110, facecolor="white")


def _fill(axes: Axes, found: dict[str, dict[str, list[Seen]]], levels: list[str]) -> None:
    shares = [[_share(cells.get(level, []), FAIL) for level in levels] for cells in found.values()]
    colours = LinearSegmentedColormap.from_list("found", [MISSED, "#f4a582", "#fddbc7", FOUND])
    axes.imshow(
        shares, cmap=colours.with_extremes(bad=NOTHING), vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest"
    )
    for row, cells in enumerate(found.values()):
        for column, level in enumerate(levels):
            told = _told(cells.get(level, []))
            dark = shares[row][column] < 0.25
            axes.text(column, row, told, ha="center", va="center", fontsize=7, color=PASSED if dark else INK)
    axes.set_yticks(range(len(found)), list(found), fontsize=7.5)
    axes.set_xticks(range(len(levels)), [_column(level) for level in levels], fontsize=7.5)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xticks([place - 0.5 for place in range(1, len(levels))], minor=True)
    axes.set_yticks([place - 0.5 for place in range(1, len(found))], minor=True)
    axes.grid(which="minor", color=GRID, linewidth=1.0)
    axes.tick_params(which="minor", length=0)
    for edge in axes.spines.values():
        edge.set_visible(False)


def _column(name: str) -> str:
    level = BY_LEVEL[name]
    return (
        "quiet\n"
        if level.kind == QUIET
        else f"{level.kind}\n{100 * level.share:g} %".replace("per ", "per\n").replace("in ", "in\n")
    )


def _share(runs: list[Seen], verdict: str) -> float:
    return sum(run.verdict == verdict for run in runs) / len(runs) if runs else math.nan


def _told(runs: list[Seen]) -> str:
    counted = [
        (sum(run.verdict == verdict for run in runs), mark) for verdict, mark in ((INCONCLUSIVE, "i"), (PASS, "P"))
    ]
    return " ".join(f"{number}{mark}" for number, mark in counted if number)
