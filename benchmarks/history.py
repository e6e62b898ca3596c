"""How near the bounded figures of the page came to their bounds, at each commit that measured them anew.

    python -m benchmarks.history

It prints each figure that is worse than it was, draws all into build/history.svg, and measures nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.plots import Panel, Plot, draw
from benchmarks.provenance import ROOT, git

__all__ = ["Bounded", "bounded_figures", "declines", "history_of", "pages_of", "plot_of"]

PAGES = ("docs/benchmarks/figures.md", "docs/benchmarks.md")
"""The page of the figures, and where they stood before."""

WORSE = 1.1
"""A figure that takes so many times the part of its bound that it took in the median before is a decline."""

_SECTION = re.compile(r"<!-- begin: (?P<name>\S+) -->\n(?P<body>.*?)<!-- end: (?P=name) -->", re.DOTALL)
_COMMIT = re.compile(r", commit `([0-9a-f]+)`\.")
_NUMBER = r"(-?\d[\d,]*(?:\.\d+)?)"
_BOUND = rf"\((?:bound (?:at least )?|at (?:least|most) ){_NUMBER}"
_INSIDE = re.compile(rf"{_NUMBER}[^\d|]* {_BOUND}")
_MISSED = ", missed"

History = dict[tuple[str, str], list[float]]
"""By section and figure: the part of its bound that it took, each time that it was measured, the oldest first."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A figure with its bound, as a page has it."""

    section: str
    name: str
    part: float
    """What the figure takes of its bound; more than 1 where it is missed, also if it has to be above its bound."""


def bounded_figures(page: str) -> Iterator[tuple[str, Bounded]]:
    """Yield the figures with a bound in their cell, or in a column after it, each with the commit of its section."""
    for section in _SECTION.finditer(page):
        commit = _COMMIT.search(section["body"])
        head: list[str] = []
        for line in section["body"].splitlines():
            if not line.startswith("| "):
                continue
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not head:
                head = cells
                continue
            for column, before, cell in zip(head[1:], cells, cells[1:], strict=False):
                if pair := _figure_and_bound(column, before, cell):
                    name = cells[0] if column == "bound" else f"{cells[0]}, {column}"
                    yield commit[1] if commit else "", Bounded(section["name"], name, _part(*pair, cell))


def _figure_and_bound(column: str, before: str, cell: str) -> tuple[float, float] | None:
    """Return both numbers of a cell that has its bound in it, in the head of its column, or after the cell before."""
    if inside := _INSIDE.search(cell):
        figure, bound = inside[1], inside[2]
    elif (above := re.search(_BOUND, column)) and (known := re.search(_NUMBER, cell)):
        figure, bound = known[1], above[1]
    elif column == "bound" and (known := re.search(_NUMBER, before)) and (said := re.search(_NUMBER, cell)):
        figure, bound = known[1], said[1]
    else:
        return None
    return float(figure.replace(",", "")), float(bound.replace(",", ""))


def _part(figure: float, bound: float, said: str) -> float:
    """Return the part of a bound that a figure takes: a page says whether it is missed, not on which side."""
    if not figure or not bound:
        return 0.0
    is_floor = (figure > bound) != (_MISSED in said)
    return bound / figure if is_floor else figure / bound


def history_of(pages: Iterable[str]) -> History:
    """Return the history of the figures of the last of pages, the oldest first, without what is only said again."""
    history: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    last: dict[tuple[str, str], str] = {}
    now: set[tuple[str, str]] = set()
    for page in pages:
        now = set()
        for commit, one in bounded_figures(page):
            key, measured = (one.section, one.name), commit or str(one.part)
            if last.get(key) != measured:
                history[key].append(one.part)
                last[key] = measured
            now.add(key)
    return {key: parts for key, parts in history.items() if key in now}


def declines(history: Mapping[tuple[str, str], Sequence[float]]) -> Iterator[str]:
    """Yield a line for each figure that takes more of its bound than it did in the median of the times before."""
    for (section, name), parts in history.items():
        *before, now = parts
        if before and now > WORSE * median(before):
            yield f"{section}: {name}: {median(before):.0%} of its bound in {len(before)} measurements, now {now:.0%}"


def plot_of(history: Mapping[tuple[str, str], Sequence[float]]) -> Plot:
    """Return a panel for each section, with a curve for each of its figures."""
    times = max(map(len, history.values()), default=1)
    sections: defaultdict[str, dict[str, Sequence[float | None]]] = defaultdict(dict)
    for (section, name), parts in history.items():
        sections[section][name[:40]] = [*[None] * (times - len(parts)), *parts]
    panels = [Panel(f"{section}: part of the bound", curves, bound=1) for section, curves in sections.items()]
    title = "The part of its bound that each figure took, at each measurement"
    return Plot("history", title, "measurements, the newest last", range(1 - times, 1), panels, dense=True)


def pages_of(git: Callable[..., str] = git) -> Iterator[str]:
    """Yield the figures as each commit left them, the oldest first."""
    for commit in git("log", "--reverse", "--format=%h", "--", *PAGES).split():
        there = git("ls-tree", "--name-only", commit, "--", *PAGES).split()
        yield "\n".join(git("show", f"{commit}:{page}") for page in there)


def main() -> None:
    """Print what has declined, and draw all."""
    history = history_of(pages_of())
    for line in declines(history):
        print(line)
    folder = Path(ROOT, "build")
    folder.mkdir(exist_ok=True)
    print(f"{len(history)} bounded figures: {draw(plot_of(history), folder).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
