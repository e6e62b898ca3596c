"""Keep the figures that other pages quote from docs/benchmarks/figures.md as they were last measured.

A quote is a link whose title names the row and the column that the figure stands in:

    [12.5 ms](benchmarks/figures.md#planning "a batch settled; 10 shards")
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["refresh_pages", "refreshed"]

_QUOTE = re.compile(r'\[[^\[\]]+\]\(benchmarks/figures\.md#(?P<anchor>[a-z0-9-]+) "(?P<cell>[^"]+)"\)')


def refresh_pages(benchmarks: Path) -> None:
    """Write the figures of a page of benchmarks into the pages of the folder above it that quote them.

    Raises:
        ValueError: a page quotes a row or column that is not there.
    """
    measured = benchmarks.read_text(encoding="utf-8")
    for page in sorted(benchmarks.parent.parent.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        try:
            current = refreshed(text, measured)
        except ValueError as error:
            msg = f"{page.name}: {error}"
            raise ValueError(msg) from None
        if current != text:
            page.write_text(current, encoding="utf-8")


def refreshed(text: str, benchmarks: str) -> str:
    """Return the text with each quoted figure as the benchmarks have it.

    Raises:
        ValueError: the text quotes a row or column that is not there.
    """
    cells = _cells(benchmarks)

    def quote(match: re.Match[str]) -> str:
        anchor, cell = match["anchor"], match["cell"]
        if (anchor, cell) not in cells:
            known = ", ".join(repr(name) for section, name in cells if section == anchor)
            there = known or "a section that is there"
            msg = f"no figure {cell!r} at benchmarks/figures.md#{anchor}: quote one of {there}"
            raise ValueError(msg)
        return f'[{cells[anchor, cell]}](benchmarks/figures.md#{anchor} "{cell}")'

    return _QUOTE.sub(quote, text)


def _cells(benchmarks: str) -> dict[tuple[str, str], str]:
    """Return each cell of the tables by the anchor of its section and "row; column"."""
    cells: dict[tuple[str, str], str] = {}
    for section in benchmarks.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        anchor = re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))
        lines = [line[2:-2].split(" | ") for line in body.splitlines() if line.startswith("| ")]
        for name, *figures in lines[1:]:
            cells |= {
                (anchor, f"{name}; {column}"): figure
                for column, figure in zip(lines[0][1:], figures, strict=True)
            }
    return cells
