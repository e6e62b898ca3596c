"""Reads the pages of one shard from a position: creates, renews and paces iterators; every record once, in order."""

from __future__ import annotations

import logging
import math
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import pyarrow as pa
from twins.old_reader.closing import Closing

from kinesis_trident.checkpoint.model.nodes import Subscribing
from kinesis_trident.common.per_process import PerProcess
from kinesis_trident.spout.failed_records.retry_ranges import check_start
from kinesis_trident.spout.kinesis import (
    IteratorExpiredError,
    Kinesis,
    KinesisError,
    Page,
    ThrottledError,
    Unavailable,
    locate_error,
)
from kinesis_trident.spout.kinesis.aggregation import deaggregate_first
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.kinesis.rate_limit import ShardLimiter
from kinesis_trident.spout.kinesis.record_batches import payload_size, position_at, select_from
from kinesis_trident.spout.log_lines import Seldom
from kinesis_trident.spout.positions import After, Position

log = logging.getLogger(__name__)

_seldom = Seldom(60.0)

_PART = 8 * 2**20
"""Bytes of user records, as rows, after which the other aggregates of a page wait until these are read."""

# One page at a time: decoding takes more memory than the result. By process, because a thread that does not exist
# after a fork may hold an inherited lock.
_opening: PerProcess[None, threading.Lock] = PerProcess()

_RENEWALS = 3
"""New iterators that may expire in a row before the turn stops reading the shard."""


@dataclass(slots=True)
class ShardCalls:
    """The counts of GetRecords calls for a shard, and of those that gave nothing: refused, or an expired iterator.

    `subscribing`: how the turn subscribed.
    """

    throttles: int = 0
    renewals: int = 0
    reads: int = 0
    subscribing: Subscribing = Subscribing.NOT


class ShardPager(ABC):
    """Reads one shard forward, by polling or by subscription.

    Args:
        stream: its name.
        shard: its id.
        position: where to start.
        closing: knows whether the shard is closed.
        deaggregate: splits aggregates into their user records; otherwise they are returned unchanged.
        calls: counts what the calls cost.

    Attributes:
        position: after the last returned record, or the start position.
        page: the last answer, or its last returned part; None before the first.
        drained: the shard is closed and read to its end.
        in_use: another reader has what this one reads from, or had it a moment ago.
        unasked: the turn has only the page that the planner's look had fetched, so it still waits for its own first
            call. One that was prefetched may end without a call of its own.
    """

    in_use = False
    unasked = False

    def __init__(
        self,
        stream: str,
        shard: str,
        position: Position,
        closing: Closing,
        *,
        deaggregate: bool,
        calls: ShardCalls | None = None,
    ) -> None:
        self._calls = calls or ShardCalls()
        self._stream = stream
        self._shard = shard
        self._closing = closing
        self._deaggregate = deaggregate
        self.position = position
        self.page: Page | None = None
        self.drained = False
        self._rest: tuple[Page, bool] | None = None
        self._left: tuple[Page, pa.RecordBatch] | None = None

    @property
    def at_tip(self) -> bool:
        """Return whether the last answer reached the tip; a closed shard has an end, not a tip."""
        return self.page is not None and self.page.behind_ms == 0 and not self._closing.known

    @property
    def undecided(self) -> bool:
        """Return whether the last answer is empty and indicates neither more records, nor the tip, nor the end."""
        return (
            self.page is not None
            and self.page.records.num_rows == 0
            and not (self.page.behind_ms or self.drained or self.at_tip)
        )

    def note_closed(self) -> None:
        """Note that the shard is known to be closed."""
        self._closing.known = True

    @abstractmethod
    def next(self, limit: int, patience: float = math.inf) -> pa.RecordBatch | None:
        """Return the records of the next page, possibly none; None if that takes more than `patience` seconds.

        Raises:
            ThrottledError, Unavailable: the page can be requested again.
            KinesisError: naming stream, shard and position.
        """

    def give_back(self, records: pa.RecordBatch) -> None:
        """Take back the last records of the last page: `next` returns them again."""
        if self.page is not None:
            self._left = self.page, records

    def close(self) -> None:
        """Give up what is held."""
        return

    def _take(self, page: Page) -> pa.RecordBatch:
        """Return the records of a page from the position on, and move the position behind them.

        Aggregates may be much larger than their page: they are split in parts.

        Raises:
            KinesisError: it is unknown whether this is the shard's end. Nothing has changed: take the page again.
        """
        return self._give(page, self._closing.is_end(page))

    def _next_part(self) -> pa.RecordBatch | None:
        """Return what was given back, or the next part of a page that is returned in parts; None if there is none."""
        if self._left is not None:
            (self.page, records), self._left = self._left, None
            return records
        return self._give(*self._rest) if self._rest is not None else None

    def _give(self, page: Page, ended: bool) -> pa.RecordBatch:
        self._rest = None
        records = page.records
        if self._deaggregate:
            with _opening.get(None, threading.Lock):
                records, taken = deaggregate_first(records, _PART)
            if taken < page.records.num_rows:
                self._rest = replace(page, records=page.records.slice(taken)), ended
                # More of it follows; a read that is interrupted continues at the position.
                part, lag = page.records.slice(0, taken), max(1, page.behind_ms or 0)
                page, ended = replace(page, records=part, next_iterator=None, behind_ms=lag), False
            page = replace(page, size=payload_size(page.records))
        else:
            check_start(records, self.position, f"stream {self._stream!r}, shard {self._shard}")
        self.page, self.drained = page, ended
        records = select_from(records, self.position)
        if records.num_rows:
            self.position = After(position_at(records, -1))
        return records

    def _locate_error(self, error: KinesisError) -> KinesisError:
        """Return the error with stream, shard and position in its text."""
        return locate_error(error, self._stream, self._shard, self.position)


class Pager(ShardPager):
    """Reads one shard forward by GetRecords.

    Args:
        kinesis: the calls.
        stream, shard, deaggregate, calls: see `ShardPager`.
        cursor: where to start.
        limiter: the limits of the shard.
        closed: the shard was listed as closed.
    """

    def __init__(
        self,
        kinesis: Kinesis,
        stream: str,
        shard: str,
        cursor: ShardCursor,
        limiter: ShardLimiter,
        *,
        deaggregate: bool = True,
        closed: bool = False,
        calls: ShardCalls | None = None,
    ) -> None:
        closing = Closing(kinesis, stream, shard, known=closed)
        super().__init__(stream, shard, cursor.position, closing, deaggregate=deaggregate, calls=calls)
        self._kinesis = kinesis
        self._limiter = limiter
        self._iterator = cursor.iterator
        self._first = cursor.page
        self.unasked = cursor.page is not None and not cursor.seconds
        self._full = False

    @property
    def at_tip(self) -> bool:
        """Return whether the last answer reached the tip.

        A full answer "0 behind" may still be followed by records of the same millisecond.
        """
        return super().at_tip and not self._full

    def next(self, limit: int, patience: float = math.inf) -> pa.RecordBatch | None:
        """See `ShardPager.next`; `patience` bounds the wait for the shard's limits."""
        part = self._next_part()
        if part is not None:
            return part
        for renewal in range(_RENEWALS):
            if self._first is None:
                if not self._limiter.acquire(patience):
                    return None
                self._calls.reads += 1
                self.unasked = False
            try:
                return self._read(limit)
            except (ThrottledError, Unavailable) as error:
                self._limiter.note_refusal()
                self._calls.throttles += isinstance(error, ThrottledError)
                if _seldom(f"{self._stream}/{self._shard}"):
                    log.info("the turn goes on with what it has, or tries again: %s", error)
                raise
            except IteratorExpiredError as error:
                # Continue after the last returned record: the start position would return records again.
                self._iterator = None
                self._calls.renewals += 1
                if renewal == _RENEWALS - 1:
                    self._limiter.note_refusal()
                    msg = (
                        f"{error}; {_RENEWALS} new iterators in a row were too old. Was this process paused?"
                    )
                    raise Unavailable(msg) from error
        raise AssertionError

    def _read(self, limit: int) -> pa.RecordBatch:
        page = self._first
        if page is None:
            page = self._ask(limit)
            self._limiter.note_answer(page.size)
        records = self._take(page)
        self._full = self._first is None and page.records.num_rows >= limit
        self._iterator, self._first = page.next_iterator, None
        return records

    def _ask(self, limit: int) -> Page:
        try:
            if self._iterator is None:
                self._iterator = self._kinesis.iterator(self._stream, self._shard, str(self.position))
            try:
                return self._kinesis.get_records(self._iterator, limit)
            except KinesisError as error:
                raise self._locate_error(error) from error
        finally:
            self._limiter.note_end()
