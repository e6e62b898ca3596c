"""Cuts the range of a shard into pieces, for several tasks of a batch. Pure.

A border is a sequence number, that of the first record which arrived at some time or later. So each record is in one
piece, and each aggregate, whatever the clocks do. Times only choose the borders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from kinesis_trident.spout.batch.pushed_filters import ShardRange
from kinesis_trident.spout.positions import At
from kinesis_trident.tracker.records import RecordPosition

PIECES_PER_TASK = 8
"""With as many, tasks have equal shares within a quarter although a tenth of the time has half of the records."""

_SPARE_LOOKS = 8
"""Looks beyond the number of borders, where some find nothing: they close in on the time that has the records."""

_SHORTEST_MS = 2000
"""The shortest time that is cut: Kinesis finds a record by whole seconds."""


class Border(NamedTuple):
    """A Kinesis record that a look has found, and its arrival in epoch milliseconds."""

    record: RecordPosition
    arrival: int


def find_borders(
    first: Border, until: int, pieces: int, look: Callable[[int], Border | None]
) -> list[Border]:
    """Return the borders of at most `pieces` pieces, in order, by halving the longest time again and again.

    Args:
        first: the first record of the range.
        until: no border is to have arrived then, or later.
        pieces: the wanted number.
        look: returns the first record that arrived at a time (epoch milliseconds, whole seconds) or later; None if
            there is none that can be a border.
    """
    found: set[Border] = set()
    gaps = [(first.arrival, until)]
    for _ in range(pieces - 1 + _SPARE_LOOKS):
        begin, end = max(gaps, key=lambda gap: gap[1] - gap[0])
        if end - begin < _SHORTEST_MS or len(found) == pieces - 1:
            break
        time = (begin + end) // 2000 * 1000
        border = look(time)
        gaps.remove((begin, end))
        gaps.append((begin, time))
        # Otherwise nothing arrived from then on that is not known already.
        if border is not None and border.arrival < end:
            gaps.append((border.arrival, end))
            if border.record > first.record:
                found.add(border)
    return sorted(found)


def cut_at(part: ShardRange, borders: Sequence[Border], tasks: int) -> list[tuple[ShardRange, ...]]:
    """Return the pieces of a range for each of at most `tasks` tasks, dealt in turn.

    The shard has more records at some times than at others: so each task has pieces of all times.
    """
    inner = [At(border.record) for border in borders]
    starts, ends = [part.start, *inner], [*inner, part.end]
    untils = [*(border.arrival for border in borders), part.until]
    tasks = min(tasks, len(starts))
    pieces = [
        replace(
            part,
            start=start,
            end=end,
            until=until,
            otherwise=None if index else part.otherwise,
            tasks=tasks,
            others=None if index < len(borders) else part.others,
        )
        for index, (start, end, until) in enumerate(zip(starts, ends, untils, strict=True))
    ]
    return [tuple(pieces[task::tasks]) for task in range(tasks)]
