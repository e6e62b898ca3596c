"""The picture "spout versus state": what every crash has done to every cell, drawn from the counts."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

from crashed_topologies import CRASHES, Cell, Crash, Outcome, Point, Victim
from matrix import SPOUTS, STATES

__all__ = ["PICTURE", "draw", "verdicts"]

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "exactly_once.svg"
"""The picture that `make chaos` draws."""

WIDTH, HEIGHT = 330, 272
LEFT, TOP, GAP, LINE = 16, 84, 12, 17
COLOURS = {"exact": "#1a7f37", "wrong": "#b42318"}
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 18px; font-weight: 600 }
.head { font-size: 14px; font-weight: 600 }
.count { font-variant-numeric: tabular-nums; text-anchor: end }
""" + "".join(f".{verdict} {{ fill: {colour} }}\n" for verdict, colour in COLOURS.items())


def draw(outcomes: Sequence[Outcome]) -> str:
    """The picture as SVG: a column a spout, a row a state, in each cell that was played a line a crash."""
    width = 2 * LEFT + len(SPOUTS) * (WIDTH + GAP) - GAP
    height = TOP + len(STATES) * (HEIGHT + GAP) + 4
    svg = ET.Element(
        "svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}", width=str(width)
    )
    ET.SubElement(svg, "title").text = "Spout versus state, crashed at every step"
    ET.SubElement(svg, "style").text = STYLE
    ET.SubElement(svg, "rect", width=str(width), height=str(height), fill="#ffffff")
    _text(svg, LEFT, 28, "Spout versus state: what is counted when processes are killed", "title")
    _text(
        svg,
        LEFT,
        48,
        "Each line is a death by kill -9, and how many records were counted of how many that there are to count.",
    )
    for column, spout in enumerate(SPOUTS):
        _text(svg, LEFT + column * (WIDTH + GAP), TOP - 6, f"{spout} spout", "head")
        for row, state in enumerate(STATES):
            of_cell = [one for one in outcomes if one.cell == Cell(spout, state)]
            of_cell.sort(key=lambda one: CRASHES.index(one.crash))
            if of_cell:
                _draw_cell(svg, LEFT + column * (WIDTH + GAP), TOP + row * (HEIGHT + GAP), of_cell)
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def verdicts(svg: str) -> dict[tuple[Cell, Crash], bool]:
    """Return what a picture says: whether a cell was exact after a crash."""
    said = {}
    for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        if "data-victim" in text.attrib:
            cell = Cell(text.attrib["data-spout"], text.attrib["data-state"])
            crash = Crash(Victim(text.attrib["data-victim"]), Point(text.attrib["data-point"]))
            said[cell, crash] = text.attrib["class"] == "count exact"
    return said


def _draw_cell(svg: ET.Element, x: int, y: int, outcomes: Sequence[Outcome]) -> None:
    wrong = [one for one in outcomes if not one.exact]
    verdict = "wrong" if wrong else "exact"
    ET.SubElement(
        svg,
        "rect",
        x=str(x),
        y=str(y),
        width=str(WIDTH),
        height=str(HEIGHT),
        rx="6",
        fill="none",
        stroke=COLOURS[verdict],
    )
    state = outcomes[0].cell.state.replace("_", "-")
    _text(svg, x + 10, y + 22, f"{state} state", "head")
    _text(svg, x + WIDTH - 10, y + 22, verdict, f"head count {verdict}")
    for line, one in enumerate(outcomes):
        at = y + 48 + line * LINE
        _text(svg, x + 10, at, f"{one.crash.victim}, {one.crash.point}")
        counted, truth = sum(one.counted.values()), sum(one.truth.values())
        _text(
            svg,
            x + WIDTH - 10,
            at,
            f"{counted} of {truth}",
            f"count {'exact' if one.exact else 'wrong'}",
            spout=one.cell.spout,
            state=one.cell.state,
            victim=one.crash.victim,
            point=one.crash.point,
        )


def _text(svg: ET.Element, x: int, y: int, text: str, style: str = "", **data: str) -> None:
    given = {"x": str(x), "y": str(y)} | ({"class": style} if style else {})
    given |= {f"data-{name}": value for name, value in data.items()}
    ET.SubElement(svg, "text", given).text = text
