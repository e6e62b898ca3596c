"""A look at a shard: the question, what it finds, and the answer that it keeps for the shard's reader. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from kinesis_trident.spout.kinesis import Page
from kinesis_trident.spout.kinesis.aggregation import deaggregate_page
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.kinesis.rate_limit import Budget
from kinesis_trident.spout.kinesis.record_batches import arrival_at, select_from
from kinesis_trident.spout.positions import Position

LONG_MS, BREAK_MS = 5_000, 30_000
"""Milliseconds. Looks that were refused for so long, and are refused again after a break that is shorter than that and
than this, were refused all the time: between other readers a look succeeds now and then. Single refusals are normal."""

_CARRIED = 4 * 2**20
"""Bytes of all answers that looks keep for the readers, in this process and in what Spark sends to its tasks."""

_CARRIED_OF_A_SHARD = 64 * 2**10
"""Bytes of the answer that a look keeps of a shard; beyond, a task reads from the service what it holds in memory."""

_UNLIMITED = Budget.of(0.0, math.inf)


def kept_bytes(shards: int) -> int:
    """Return the bytes that a look at one of so many shards keeps of its answer, or twice as many."""
    return min(_CARRIED_OF_A_SHARD, _CARRIED // max(1, shards))


@dataclass(frozen=True, slots=True)
class Question:
    """What a look at one shard asks.

    Attributes:
        position: from where on.
        closed: the shard was listed as closed: only an answer without a next iterator is its end.
        limit: the number of records.
        most: bytes of the answer that are kept for the reader; up to twice as many, because records differ.
        budget: the calls and bytes that the shard allows.
        last: the look to go on from; None for the first.
    """

    position: Position
    closed: bool = False
    limit: int = 1
    most: int = _CARRIED_OF_A_SHARD
    budget: Budget = _UNLIMITED
    last: Look | None = None


class RefusalSpell(NamedTuple):
    """Looks that were refused until one was answered: since when, for how long all of them were, and when it was."""

    refused_at: int
    lasted_ms: int
    answered_at: int


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one look at a shard.

    Attributes:
        cursor: the position of the look, for the next look or the reader, with the answer that found something; without
            it where that is too large to be kept.
        more: there is something to read, a record or the shard's end; None if not known yet.
        behind_ms: the lag; 0 at the tip.
        at: the time in epoch milliseconds, by the server's clock if the server reports it.
        arrival: of the oldest unread record in epoch milliseconds, if one was seen.
        answered_at: the time in epoch milliseconds by this process's clock, of the last look that was answered.
        refused: since when looks at the shard are refused, by the same clock; None if the last one was answered.
        refused_again_at: since when each of them was.
        before: the spell of refusals before.
        why: it was refused: `throttled`, `unavailable`, `unreadable` or `unusableKey`; `said`: the text of it.
        alike: since when each of them was for this reason.
        next_cursor: behind the last record of that answer.
        endless_since: since when a shard that is listed as closed answers at its tip as an open one does, in seconds of
            a clock that never steps back; infinite once the log says so.
    """

    cursor: ShardCursor
    more: bool | None = None
    behind_ms: int = 0
    at: int = 0
    arrival: int | None = None
    answered_at: int = 0
    refused: int | None = None
    refused_again_at: int = 0
    before: RefusalSpell | None = None
    why: str = ""
    said: str = ""
    alike: int = 0
    next_cursor: ShardCursor | None = None
    endless_since: float | None = None

    @property
    def position(self) -> Position:
        """The position of the look."""
        return self.cursor.position

    @property
    def is_end(self) -> bool:
        """Return whether the shard was seen to end here: there is nothing to read but that."""
        return bool(self.more) and self.arrival is None

    def hand_on(self) -> Look:
        """Return this look without its answer: the memory is the reader's from here on."""
        return replace(self, cursor=replace(self.cursor, page=None))

    def find_kept(
        self, position: Position, records: int, size: int, *, deaggregate: bool = True
    ) -> tuple[int, int] | None:
        """Return when the first and the last record arrived of what it has left for a turn; None if that is unknown.

        `position`: where the turn starts. `records`, `size`: the least that a turn can hold, in memory.
        """
        page = self.cursor.page
        if self.position != position or page is None:
            return None
        found = select_from(deaggregate_page(page.records) if deaggregate else page.records, position)
        taken = min(found.num_rows, records)
        if not taken or found.nbytes > size or not (first := arrival_at(found, 0)):
            return None
        return first, arrival_at(found, taken - 1)

    def move_to(self, position: Position, now: int) -> Look:
        """Return this look if it was at a position, else one to come, with an iterator if this one has left it."""
        if self.position == position:
            return self
        cursor = self.next_cursor
        # Behind a user record of an aggregate others of it may be left, which the iterator would leave out.
        if cursor is None or cursor.position != position:
            cursor = ShardCursor(position)
        return Look(cursor, before=self.ease(now))

    def ease(self, now: int) -> RefusalSpell | None:
        """Return `before` of a look that is answered now, or of one at a position that somebody has moved on to."""
        if self.refused is None:
            return self.before
        return RefusalSpell(self.refused, now - self.refused_again_at, now)

    def refuse(self, why: str, now: int, said: str = "") -> Look:
        """Return this look, which is refused now."""
        if self.refused is not None:
            alike = self.alike if why == self.why else now
            return replace(self, more=None, why=why, said=said, alike=alike)
        spell, since = self.before, now
        if spell and spell.lasted_ms >= LONG_MS and now - spell.answered_at < min(spell.lasted_ms, BREAK_MS):
            since = spell.refused_at
        return replace(self, more=None, refused=since, refused_again_at=now, why=why, said=said, alike=now)


def forget_request(page: Page, limit: int) -> Page:
    """Return an answer as a reader takes it that does not know how many records were asked for.

    A full one, "0 behind", may be followed by records of the same millisecond.
    """
    if page.records.num_rows < limit or page.behind_ms != 0:
        return page
    return replace(page, behind_ms=None)


def join_answers(page: Page, further: Page) -> Page:
    """Return two answers that follow each other as one; an empty one says anew where the first has ended."""
    records = page.records
    if further.records.num_rows:
        records = pa.concat_batches([records, further.records])
    return replace(
        further, records=records, size=page.size + further.size, closed=page.closed or further.closed
    )
