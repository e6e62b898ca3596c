"""Cutting neighbouring records at those that have another outcome: a delivered run, or an entry. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import gt
from typing import Generic

import msgspec
import numpy as np
import numpy.typing as npt

from kinesis_trident.tracker.errors import OrderError
from kinesis_trident.tracker.inflight.entries import Entry
from kinesis_trident.tracker.records import NotDone, Place, Places


class Piece(msgspec.Struct, Generic[Place], frozen=True, gc=False):
    """Part of a run of neighbours. `reason` is None where the records are done, and `last` the last of them.

    `prev` is the record just before `first`, where known.
    """

    first: Place | None
    last: Place
    count: int
    prev: Place | None
    reason: str | None


def cut(
    failed: Sequence[NotDone],
    places: Places[Place],
    *,
    first: Place | None,
    prev: Place | None,
    last: Place,
    count: int,
) -> list[Piece[Place]]:
    """Cut `count` delivered neighbours, ending with `last`, into done and failed pieces, in shard order.

    `places` brings positions into the form of the others given here, and of those returned. `first` is the first of
    them, where known; `prev` is a record, known or done, that all of them come after: with nothing between it and the
    first one that is neither delivered nor done. Done records whose last one is unknown (the failed piece after them
    has no usable `prev`) give no piece.

    A reporter sees rows, not the shard: the row before a run's first record may be of another run. So the
    `prev` of a piece counts only inside the run; one before it says that the piece is the run's beginning.

    Raises:
        OrderError: the failed pieces overlap, lie outside of the run, or hold more records than it.
    """
    total = sum(piece.count for piece in failed)
    if total > count:
        msg = f"{total} records are reported as failed among {count} delivered up to {last}"
        raise OrderError(msg)
    if not failed:
        return [Piece(None, last, 0, None, None)] if prev is None or prev < last else []
    starts = places([piece.first for piece in failed])
    befores = _befores(failed, places) if total < count else {}
    order: Sequence[int] = range(len(starts))
    if any(map(gt, starts, islice(starts, 1, None))):
        order = sorted(order, key=starts.__getitem__)
    pieces: list[Piece[Place]] = []
    end = prev
    for index in order:
        start, piece = starts[index], failed[index]
        stop = start if piece.last == piece.first else places([piece.last])[0]
        if (
            stop < start
            or piece.count < 1
            or stop > last
            or (first is not None and start < first)
            or (end is not None and start <= end)
        ):
            msg = (
                f"failed records {piece.first} to {piece.last} ({piece.count}) overlap others, or lie "
                f"outside of the {count} delivered after {prev} from {first} to {last}"
            )
            raise OrderError(msg)
        before = befores.get(piece.prev)
        if total == count or start == first:
            # Nothing is done in between, or it is the run's own first record.
            before = end
        elif before is not None and not _inside(before, start, first, end):
            # Seen after a row of another run: so it is the first of this one.
            before = None if pieces else end
        if before is not None and before != end:
            pieces.append(Piece(None, before, 0, None, None))
        pieces.append(Piece(start, stop, piece.count, before, piece.reason))
        end = stop
    if end is None or end < last:
        pieces.append(Piece(None, last, 0, None, None))
    return pieces


def _befores(failed: Sequence[NotDone], places: Places[Place]) -> dict[str | None, Place]:
    """Return the positions of the records before pieces, by their text."""
    known = [piece.prev for piece in failed if piece.prev is not None]
    return dict(zip(known, places(known), strict=True))


def _inside(before: Place, start: Place, first: Place | None, end: Place | None) -> bool:
    """Return True if `before`, the claimed neighbour of `start`, can be the last of the run's records so far."""
    lowest = end if end is not None else first
    return before < start and (lowest is None or before >= lowest)


def runs_of(offsets: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return sorted, distinct offsets as runs of neighbours: from, until."""
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    starts = offsets[np.concatenate(([0], breaks))]
    ends = offsets[np.concatenate((breaks - 1, [len(offsets) - 1]))] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def parts_of(entry: Entry, runs: Sequence[tuple[int, int]], fate: Entry) -> list[Entry]:
    """Cut runs (offsets: from, until) out of an entry of an array: they take their fate from another."""
    parts: list[Entry] = []
    end = entry.skip
    for start, until in runs:
        if start > end:
            parts.append(part_of(entry, end, start, entry))
        parts.append(part_of(entry, start, until, fate))
        end = until
    if end < entry.count:
        parts.append(part_of(entry, end, entry.count, entry))
    return parts


def part_of(entry: Entry, start: int, until: int, fate: Entry) -> Entry:
    """Return the records from `start` until `until` of an entry of an array, with the fate of another."""
    part = Entry(
        entry.position(until - 1),
        entry.position(start),
        until - start,
        entry.position(start - 1) if start else entry.prev,
        fate.state,
        fate.attempt,
        fate.due,
        fate.failures,
        value=None,
        base=entry.base + start,
        positions=entry.positions,
        start=entry.start + start,
    )
    if fate is entry and entry.bits is not None:
        part.bits = entry.bits[start:until]
    return part
