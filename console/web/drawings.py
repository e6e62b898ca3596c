"""Drawings as SVG: the lineage of shards, curves over time, the phases of a batch. Pure.

No drawing has a style of its own: the page's style sheet has the only palette, for light and dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kinesis_trident.common.visible_text import count_noun, make_visible
from kinesis_trident.console.text import duration

_BOX_WIDTH, _BOX_HEIGHT, _GAP_X, _GAP_Y = 168, 46, 64, 14
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 520, 170, 72, 14, 28


@dataclass(frozen=True, slots=True)
class Box:
    """One shard of the picture: its name, its state, a short line about it, and the names of its parents."""

    name: str
    state: str
    line: str
    parents: tuple[str, ...] = ()


def draw_lineage(boxes: Sequence[Box]) -> Markup:
    """Draw shards from left to right, each behind its parents: a split has two arrows out, a merge has two in."""
    known = {box.name: box for box in boxes}
    places = _places({name: [one for one in box.parents if one in known] for name, box in known.items()})
    height = max((y for _, y in places.values()), default=0) + _BOX_HEIGHT + 2
    width = max((x for x, _ in places.values()), default=0) + _BOX_WIDTH + 2
    parts = []
    for name, box in known.items():
        x, y = places[name]
        for parent in box.parents:
            if parent in places:
                parts.append(_arrow(places[parent], (x, y)))
    for name, box in known.items():
        x, y = places[name]
        said = make_visible(name)
        parts.append(
            Markup(
                '<g class="shard {state}"><title>{name}: {state}, {line}</title>'
                '<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
                '<circle cx="{dot}" cy="{middle}" r="4.5"/>'
                '<text class="name" x="{text}" y="{first}">{short}</text>'
                '<text class="line" x="{text}" y="{second}">{state} · {line}</text></g>'
            ).format(
                name=said,
                state=box.state,
                line=make_visible(box.line),
                x=x + 1,
                y=y + 1,
                width=_BOX_WIDTH,
                height=_BOX_HEIGHT,
                dot=x + 16,
                middle=y + _BOX_HEIGHT / 2 + 1,
                text=x + 30,
                first=y + 20,
                second=y + 37,
                short=_short(said),
            )
        )
    label = f"Lineage of {count_noun(len(boxes), 'shard')}"
    return Markup(
        '<svg class="lineage" role="img" aria-label="{label}" width="{width}" height="{height}" '
        'viewBox="0 0 {width} {height}">{parts}</svg>'
    ).format(label=label, width=width, height=height, parts=Markup().join(parts))


def draw_curve(points: Sequence[tuple[int, float | None]], what: str, unit: str, kind: str) -> Markup:
    """Draw values over time, in epoch milliseconds; None leaves a gap. `unit` is `ms` or `/s`; `kind` is its class."""
    values = [value for _, value in points if value is not None]
    top = _round_up(max(values, default=0.0), unit)
    begin, end = (points[0][0], points[-1][0]) if points else (0, 0)
    inner, high = _WIDTH - _LEFT - 8, _HEIGHT - _TOP - _BOTTOM

    def place(at: int, value: float) -> str:
        x = _LEFT + (inner * (at - begin) / (end - begin) if end > begin else inner)
        return f"{x:.1f},{_TOP + high * (1 - value / top):.1f}"

    pieces: list[list[str]] = [[]]
    for at, value in points:
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append(place(at, value))
    parts = [
        Markup(
            '<line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"/><text class="axis" x="{}" y="{}">{}</text>'
        ).format(_LEFT, _WIDTH - 8, _LEFT - 8, y + 4, _amount(top * share, unit), y=y)
        for share in (0.0, 0.5, 1.0)
        for y in (_TOP + high * (1 - share),)
    ]
    for piece in pieces:
        if len(piece) == 1:
            x, _, y = piece[0].partition(",")
            parts.append(Markup('<circle class="dot" cx="{}" cy="{}" r="2.5"/>').format(x, y))
        elif piece:
            floor = _TOP + high
            first, last = piece[0].partition(",")[0], piece[-1].partition(",")[0]
            area = f"{first},{floor} {' '.join(piece)} {last},{floor}"
            parts.append(Markup('<polygon class="area" points="{}"/>').format(area))
            parts.append(Markup('<polyline class="curve" points="{}"/>').format(" ".join(piece)))
    if end > begin:
        parts.append(
            Markup(
                '<text class="time" x="{}" y="{y}">{} ago</text><text class="time end" x="{}" y="{y}">now</text>'
            ).format(_LEFT, duration(end - begin), _WIDTH - 8, y=_HEIGHT - 6)
        )
    newest = points[-1][1] if points else None
    said = f"{what}: {_amount(newest, unit) if newest is not None else 'unknown'} now, at most {_amount(top, unit)}"
    return Markup('<svg class="chart {}" role="img" aria-label="{}" viewBox="0 0 {} {}">{}</svg>').format(
        kind, said, _WIDTH, _HEIGHT, Markup().join(parts)
    )


def draw_phases(phases: Sequence[tuple[str, int]], longest_ms: int) -> Markup:
    """Draw the phases of a batch, each a name and milliseconds, as one bar; `longest_ms` fills the width."""
    x, parts = 0.0, []
    for name, milliseconds in phases:
        width = max(2.0, 200 * milliseconds / max(longest_ms, 1))
        parts.append(
            Markup(
                '<rect class="{name}" x="{x}" y="0" width="{w}" height="12"><title>{name}: {d}</title></rect>'
            ).format(name=name, x=f"{x:.1f}", w=f"{width:.1f}", d=duration(milliseconds))
        )
        x += width
    said = ", ".join(f"{name} {duration(milliseconds)}" for name, milliseconds in phases)
    return Markup(
        '<svg class="phases" role="img" aria-label="{}" viewBox="0 0 208 12" preserveAspectRatio="none">{}</svg>'
    ).format(said, Markup().join(parts))


def _places(parents: Mapping[str, Sequence[str]]) -> dict[str, tuple[float, float]]:
    """Return the corner of each box: a column for each generation, parents in the middle of their children."""
    children: dict[str, list[str]] = {name: [] for name in parents}
    for name, some in sorted(parents.items()):
        for parent in some:
            children[parent].append(name)
    columns: dict[str, int] = {}

    def column(name: str, above: frozenset[str]) -> int:
        if name not in columns:
            # A circle cannot be: but nodes are data, and data may be anything.
            some = [one for one in parents[name] if one not in above]
            columns[name] = max((column(one, above | {name}) + 1 for one in some), default=0)
        return columns[name]

    rows: dict[str, float] = {}
    free = 0

    def row(name: str) -> float:
        nonlocal free
        rows[name] = -1.0
        below = [row(one) for one in children[name] if one not in rows]
        if below:
            rows[name] = sum(below) / len(below)
        else:
            rows[name] = free
            free += 1
        return rows[name]

    for name in sorted(parents):
        column(name, frozenset({name}))
    for name in sorted(parents, key=lambda one: -columns[one]):
        # Right before its first child, so that no arrow passes behind other boxes.
        columns[name] = min((columns[one] for one in children[name]), default=columns[name] + 1) - 1
    for name in sorted(parents, key=lambda one: (columns[one], one)):
        if name not in rows:
            row(name)
    lowest: dict[int, float] = {}
    places: dict[str, tuple[float, float]] = {}
    for name in sorted(parents, key=lambda one: (columns[one], rows[one], one)):
        at = max(rows[name], lowest.get(columns[name], 0.0))
        lowest[columns[name]] = at + 1
        places[name] = (columns[name] * (_BOX_WIDTH + _GAP_X), at * (_BOX_HEIGHT + _GAP_Y))
    return places


def _arrow(parent: tuple[float, float], child: tuple[float, float]) -> Markup:
    x, y = parent[0] + _BOX_WIDTH + 1, parent[1] + _BOX_HEIGHT / 2 + 1
    to_x, to_y = child[0] - 1, child[1] + _BOX_HEIGHT / 2 + 1
    bend = (x + to_x) / 2
    return Markup(
        '<path class="arrow" d="M{x} {y} C{b} {y} {b} {v} {u} {v}"/><path class="tip" d="M{t} {a} L{u} {v} L{t} {c}"/>'
    ).format(x=x, y=y, b=bend, u=to_x, v=to_y, t=to_x - 6, a=to_y - 4, c=to_y + 4)


def _short(name: str) -> str:
    """Shorten a shard's id as AWS gives it: `shardId-000000000012` to `…0012`, which leaves room for its stream."""
    text = name.replace("shardId-00000000", "…")
    return text if len(text) <= 18 else f"{text[:9]}…{text[-8:]}"


def _round_up(value: float, unit: str) -> float:
    """Return the upper end of an axis: 1, 2 or 5 times a power of ten, of seconds for times."""
    least = 1000.0 if unit == "ms" else 1.0
    size = least
    while size < value:
        for factor in (2, 2.5, 2):
            if size < value:
                size *= factor
    return size


def _amount(value: float, unit: str) -> str:
    if unit == "ms":
        return duration(round(value)).replace(".0 s", " s") if value else "0"
    return f"{value:,.0f}{unit}" if value >= 10 or value == int(value) else f"{value:.1f}{unit}"
