"""Publish figures: print a table, write its section of docs/benchmarks/figures.md or another page, and draw its plots.

A section stands between two markers that carry its name; a benchmark replaces its own and leaves the others alone.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.table import Table

from benchmarks.plots import Bars, Plot, draw
from benchmarks.provenance import changed_figures, commit_of, mend_figures
from benchmarks.quotes import refresh_pages

__all__ = ["BENCHMARKS", "Section", "best", "bounded", "publish", "show", "updated", "verdict"]

BENCHMARKS = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "figures.md"

_PREAMBLE = """# Figures

Each section is written by the command that measured it. Rates depend on the machine; the ratios, taken side by side
in one run, are what to compare.
"""


@dataclass(frozen=True, slots=True)
class Section:
    """One table, and the plots below it.

    `name` is its marker, `command` what writes it, `note` what one has to know to read it.
    """

    name: str
    title: str
    command: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    plots: Sequence[Plot | Bars] = ()

    def markdown(self, commit: str = "") -> str:
        """The section, its markers included, with the commit that it was measured at."""
        lines = [" | ".join(self.columns), "|".join(["---"] + ["---:"] * (len(self.columns) - 1))]
        lines += [" | ".join(row) for row in self.rows]
        table = "\n".join(f"| {line} |" if line[0] != "-" else f"|{line}|" for line in lines)
        cores, python = os.cpu_count(), platform.python_version()
        at = f", commit `{commit}`" if commit else ""
        where = f"`{self.command}`, {cores} cores, Python {python}{at}."
        body = f"## {self.title}\n\n{where} {self.note}".rstrip() + f"\n\n{table}\n"
        body += "".join(f"\n![{plot.title}]({plot.name}.svg)\n" for plot in self.plots)
        return f"{_begin(self.name)}\n{body}{_end(self.name)}\n"


def show(section: Section) -> None:
    """Print a section."""
    table = Table(title=section.title, caption=section.note)
    for index, column in enumerate(section.columns):
        table.add_column(column, justify="right" if index else "left")
    for row in section.rows:
        table.add_row(*row)
    Console().print(table)


def publish(section: Section, path: Path = BENCHMARKS) -> None:
    """Print a section, write and draw it, and renew what other pages quote of it.

    Given `--dry-run`, print it; given `--compare`, end with an error if a counted figure is not as on the page; given
    `--mend`, write those, and leave what is timed and its commit.

    Raises:
        ValueError: what was measured is not committed.
    """
    show(section)
    if "--compare" in sys.argv:
        if changed := [*changed_figures(section.name, section.columns, section.rows, path.read_text())]:
            sys.exit(
                "\n".join(
                    [*changed, f"Look for what has changed them; `{section.command} --mend` writes them."]
                )
            )
    elif "--mend" in sys.argv:
        path.write_text(mend_figures(section.name, section.columns, section.rows, path.read_text()))
        refresh_pages(path)
    elif "--dry-run" not in sys.argv:
        commit = commit_of(section.name)
        path.write_text(updated(path.read_text() if path.exists() else _PREAMBLE, section, commit))
        for plot in section.plots:
            draw(plot, path.parent)
        if path.match("benchmarks/figures.md"):
            refresh_pages(path)


def updated(text: str, section: Section, commit: str = "") -> str:
    """The text with the section in the place of the one of that name; at the end when there was none.

    Raises:
        ValueError: the text has one of the section's markers without the other.
    """
    begin, end = _begin(section.name), _end(section.name)
    if (begin in text) != (end in text):
        msg = f"one of the markers of section {section.name!r} is missing: restore it, or delete the other"
        raise ValueError(msg)
    if begin not in text:
        return f"{text.rstrip()}\n\n{section.markdown(commit)}"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}\n?", re.DOTALL)
    return pattern.sub(lambda _: section.markdown(commit), text, count=1)


def verdict(bound: str, is_kept: bool) -> str:
    """Return a bound, and whether it was missed."""
    return f"{bound}{'' if is_kept else ', missed'}"


def bounded(figure: str, bound: str, is_kept: bool) -> str:
    """Return a figure with its bound, and whether it was missed."""
    return f"{figure} (bound {verdict(bound, is_kept)})"


def best(measured: Callable[[], object], times: int = 5, clock: Callable[[], float] = perf_counter) -> float:
    """The shortest of several runs in seconds: what the machine can do when nothing else disturbs it.

    `clock`: for what only computes, `time.process_time` leaves the time out that other processes had the processor.
    """
    shortest = float("inf")
    for _ in range(times):
        start = clock()
        measured()
        shortest = min(shortest, clock() - start)
    return shortest


def _begin(name: str) -> str:
    return f"<!-- begin: {name} -->"


def _end(name: str) -> str:
    return f"<!-- end: {name} -->"
