"""Draw the curves or bars of a benchmark as one SVG, which its section of docs/benchmarks/figures.md shows.

The same figures give the same file, so a picture changes only with what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Bars", "Panel", "Plot", "draw"]

_STYLE = {
    # Otherwise the ids in the file are random; and letters stay letters.
    "svg.hashsalt": "kinesis-trident",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes: curves over the x values of the plot.

    `what`: of the y axis, with its unit. `curves`: y values by name, None where nothing was measured. `bound`: a line
    that the curves have to stay below, or, with `is_floor`, above. `log`: the y axis is logarithmic.
    """

    what: str
    curves: Mapping[str, Sequence[float | None]]
    bound: float | None = None
    is_floor: bool = False
    log: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """Panels side by side. `name`: of the file; `title`: for who cannot see it; `what`: of the x axis, with its unit.

    `log`: the x axis is logarithmic. `dense`: the x values are too many for a mark each.
    """

    name: str
    title: str
    what: str
    x: Sequence[float]
    panels: Sequence[Panel]
    log: bool = False
    dense: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Panels side by side, each with a bar of every curve for each label; the first label is on top."""

    name: str
    title: str
    labels: Sequence[str]
    panels: Sequence[Panel]


def draw(plot: Plot | Bars, folder: Path) -> Path:
    """Write `<name>.svg` into a folder, which is made if it is missing; return its path."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    path = folder / f"{plot.name}.svg"
    folder.mkdir(exist_ok=True)
    columns = min(len(plot.panels), 2)
    rows = -(-len(plot.panels) // columns)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(4.5 * columns, 3 * rows), layout="constrained")
        for index, panel in enumerate(plot.panels, start=1):
            axes = figure.add_subplot(rows, columns, index)
            if isinstance(plot, Bars):
                _draw_bars(axes, plot.labels if index % columns == 1 % columns else None, panel)
            else:
                _draw_panel(axes, plot, panel)
        if isinstance(plot, Bars):
            figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4)
        # Without the date and the version of the program: neither says anything of the figures.
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None, "Title": plot.title})
    return path


def _draw_panel(axes: Any, plot: Plot, panel: Panel) -> None:
    for name, values in panel.curves.items():
        known = [(x, y) for x, y in zip(plot.x, values, strict=True) if y is not None]
        marker = None if plot.dense else "o"
        axes.plot(*zip(*known, strict=True), marker=marker, markersize=4, label=name)
    if panel.bound is not None:
        what = "at least" if panel.is_floor else "at most"
        axes.axhline(panel.bound, linestyle="--", color="black", label=f"bound: {what} {panel.bound:,g}")
    if plot.log:
        axes.set_xscale("log")
    if not plot.dense:
        axes.set_xticks(plot.x, [f"{x:,g}" for x in plot.x])
    axes.minorticks_off()
    if panel.log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(plot.what)
    axes.set_ylabel(panel.what)
    axes.legend()


def _draw_bars(axes: Any, labels: Sequence[str] | None, panel: Panel) -> None:
    thickness = 0.8 / len(panel.curves)
    for number, (name, values) in enumerate(panel.curves.items()):
        known = [(row + number * thickness, value) for row, value in enumerate(values) if value is not None]
        axes.barh(*zip(*known, strict=True), height=thickness, label=name)
    places = [row + 0.4 - thickness / 2 for row in range(len(next(iter(panel.curves.values()))))]
    # Only the panels on the left name the rows, which are the same in all.
    axes.set_yticks(places, labels or [""] * len(places))
    axes.invert_yaxis()
    axes.set_xlabel(panel.what)
