"""The result of a look at a shard, and the answers that it keeps for the shard's reader. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from kinesis_trident.spout.kinesis import Page
from kinesis_trident.spout.positions import After, Position

__all__ = ["Look", "joined", "kept"]


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one look at a shard.

    Attributes:
        position: the position of the look.
        iterator: the iterator of the next look, None for a new one.
        more: there is something to read, a record or the shard's end; None if not known yet.
        behind_ms: the lag; 0 at the tip.
        at: the time in epoch milliseconds, by the server's clock if the server reports it.
        arrival: of the oldest unread record in epoch milliseconds, if one was seen.
        noted: the time in epoch milliseconds by this process's clock, of the last look that was answered.
        refused: since when every look at the shard was refused, by the same clock; None if the last one was answered.
        why: it was refused: `throttled` or `unavailable`.
        page: the answer that found something, for the reader of this position; None where it is too large to be kept.
        following: the sequence number of the last record of that answer, and the iterator behind it.
        seconds: the time it took to read the answer, if it was read ahead for the turn; 0 for a look.
    """

    position: Position
    iterator: str | None = None
    more: bool | None = None
    behind_ms: int = 0
    at: int = 0
    arrival: int | None = None
    noted: int = 0
    refused: int | None = None
    why: str = ""
    page: Page | None = None
    following: tuple[int, str] | None = None
    seconds: float = 0.0

    def moved_to(self, position: Position) -> Look:
        """Return this look if it was at a position, else one to come, with an iterator if this one has left it."""
        if self.position == position:
            return self
        if self.following is not None and isinstance(position, After):
            sequence, iterator = self.following
            # Behind a user record of an aggregate others of it may be left, which the iterator would leave out.
            if position.record.sequence == sequence and position.record.sub < 0:
                return Look(position, iterator)
        return Look(position)


def kept(page: Page, limit: int) -> Page:
    """Return an answer as a reader takes it that does not know how many records were asked for.

    A full one, "0 behind", may be followed by records of the same millisecond.
    """
    if page.records.num_rows < limit or page.behind_ms != 0:
        return page
    return replace(page, behind_ms=None)


def joined(page: Page, further: Page) -> Page:
    """Return two answers that follow each other as one; an empty one says anew where the first has ended."""
    records = page.records
    if further.records.num_rows:
        records = pa.concat_batches([records, further.records])
    return replace(
        further, records=records, size=page.size + further.size, closed=page.closed or further.closed
    )
