"""Reads the pages of one shard from a position: creates, renews and paces iterators; every record once, in order."""

from __future__ import annotations

import logging
import math
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import pyarrow as pa

from kinesis_trident.checkpoint.model.nodes import Subscribing
from kinesis_trident.common.per_process import PerProcess
from kinesis_trident.spout.failed_records.retry_ranges import check_start
from kinesis_trident.spout.kinesis import (
    IteratorExpiredError,
    KinesisError,
    Page,
    ThrottledError,
    Unavailable,
    lasting_error,
    locate_error,
)
from kinesis_trident.spout.kinesis.aggregation import deaggregate_first
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.kinesis.rate_limit import ShardLimiter
from kinesis_trident.spout.kinesis.record_batches import payload_size, position_at, select_from
from kinesis_trident.spout.log_lines import Seldom
from kinesis_trident.spout.patience import Patience
from kinesis_trident.spout.positions import After, Position
from kinesis_trident.spout.reader.answers import (
    LATE,
    Answered,
    Closing,
    Denied,
    End,
    More,
    ShardAnswer,
    Tip,
    Undecided,
)

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


_Piece = tuple[Page, pa.RecordBatch, bool]
"""A part of an answer, its records from the position on, and whether it is the shard's last one."""


class ShardPager(ABC):
    """Reads one shard forward, by polling or by subscription.

    Args:
        closing: the shard, and whether it is closed.
        position: where to start.
        deaggregate: splits aggregates into their user records; otherwise they are returned unchanged.
        calls: counts what the calls cost.

    Attributes:
        position: after the last returned record, or the start position.
        in_use: another reader has what this one reads from, or had it a moment ago.
    """

    in_use = False

    def __init__(
        self, closing: Closing, position: Position, *, deaggregate: bool, calls: ShardCalls | None = None
    ) -> None:
        self._closing = closing
        self._deaggregate = deaggregate
        self._calls = calls or ShardCalls()
        self.position = position
        self._page: Page | None = None
        self._rest: tuple[Page, bool] | None = None
        self._left: tuple[Page, pa.RecordBatch] | None = None

    @abstractmethod
    def next(self, limit: int, patience: float = math.inf) -> ShardAnswer:
        """Return the next answer; `Denied` also if that takes more than `patience` seconds.

        Raises:
            KinesisError: naming stream, shard and position.
        """

    def give_back(self, page: Page, records: pa.RecordBatch) -> None:
        """Take back the last records of the last page: `next` returns them again."""
        self._left = page, records

    def _judge(self, piece: _Piece) -> Answered:
        page, records, is_end = piece
        if is_end:
            return End(records, page)
        if self._is_at_tip(page):
            return Tip(records, page)
        if page.records.num_rows or page.behind_ms:
            return More(records, page)
        return Undecided(records, page)

    def _is_at_tip(self, page: Page) -> bool:
        """Return whether a page reached the tip; a closed shard has an end, not a tip."""
        return page.behind_ms == 0 and not self._closing.known

    def _take(self, page: Page) -> _Piece:
        """Return the records of a page from the position on, and move the position behind them.

        Aggregates may be much larger than their page: they are split in parts.

        Raises:
            KinesisError: it is unknown whether this is the shard's end. Nothing has changed: take the page again.
        """
        return self._give(page, self._closing.is_end(page))

    def _next_piece(self) -> _Piece | None:
        """Return what was given back, or the next part of a page that is returned in parts; None if there is none."""
        if self._left is not None:
            (self._page, records), self._left = self._left, None
            return self._page, records, False
        return self._give(*self._rest) if self._rest is not None else None

    def _give(self, page: Page, is_end: bool) -> _Piece:
        self._rest = None
        records = page.records
        if self._deaggregate:
            with _opening.get(None, threading.Lock):
                records, taken = deaggregate_first(records, _PART)
            if taken < page.records.num_rows:
                self._rest = replace(page, records=page.records.slice(taken)), is_end
                # More of it follows; a read that is interrupted continues at the position.
                part, lag = page.records.slice(0, taken), max(1, page.behind_ms or 0)
                page, is_end = replace(page, records=part, next_iterator=None, behind_ms=lag), False
            page = replace(page, size=payload_size(page.records))
        else:
            check_start(records, self.position, self._closing.where)
        self._page = page
        records = select_from(records, self.position)
        if records.num_rows:
            self.position = After(position_at(records, -1))
        return page, records, is_end

    def _locate_error(self, error: KinesisError) -> KinesisError:
        """Return the error with stream, shard and position in its text."""
        located = locate_error(error, self._closing.stream, self._closing.shard, self.position)
        located.__cause__ = error
        return located


class Pager(ShardPager):
    """Reads one shard forward by GetRecords.

    Args:
        closing, deaggregate, calls: see `ShardPager`.
        cursor: where to start. Behind a page that a look has fetched, the reader waits for its own first call; one that
            was prefetched may end without a call of its own.
        limiter: the limits of the shard.
    """

    def __init__(
        self,
        closing: Closing,
        cursor: ShardCursor,
        limiter: ShardLimiter,
        *,
        deaggregate: bool = True,
        calls: ShardCalls | None = None,
    ) -> None:
        super().__init__(closing, cursor.position, deaggregate=deaggregate, calls=calls)
        self._kinesis = closing.kinesis
        self._limiter = limiter
        self._iterator = cursor.iterator
        self._first = cursor.page
        self._waits = cursor.page is not None and not cursor.seconds
        self._full = False

    def next(self, limit: int, patience: float = math.inf) -> ShardAnswer:
        """See `ShardPager.next`; `patience` bounds the wait for the shard's limits."""
        if self._waits:
            patience = math.inf
        if patience < 0:
            return LATE
        try:
            piece = self._next_piece() or self._read(limit, patience)
        except (ThrottledError, Unavailable) as error:
            self._limiter.note_refusal()
            self._calls.throttles += isinstance(error, ThrottledError)
            if _seldom(f"{self._closing.stream}/{self._closing.shard}"):
                log.info("the turn goes on with what it has, or tries again: %s", error)
            return Denied(error)
        return self._judge(piece) if piece is not None else LATE

    def insist(self, limit: int, patience: Patience, *, throttled: bool = True) -> Answered:
        """Return the next answer; ask again after faults, and with `throttled` after throttles, with patience.

        Raises:
            ThrottledError, Unavailable: there is none left.
            KinesisError: naming stream, shard and position.
        """
        while isinstance(answer := self.next(limit), Denied):
            error = answer.error
            assert error is not None
            if isinstance(error, ThrottledError) and not throttled:
                raise error
            if patience.is_spent():
                raise lasting_error(error) from error
        return answer

    def check_end(self, answer: Undecided) -> None:
        """Check that a shard whose answers stay like this is at its end: a closed one of a server that never ends one.

        Raises:
            Unavailable: the answer does not say how far behind it is, so nobody knows.
        """
        if answer.page.behind_ms != 0:
            msg = (
                f"{self._closing.where}, position {self.position}: the answers are empty and lack MillisBehindLatest, "
                "so the end of the shard is unknown. Check that the endpoint is a Kinesis endpoint"
            )
            raise Unavailable(msg)

    def note_closed(self, answer: Tip) -> Answered:
        """Note that the shard is known to be closed; return the last answer as one of such a shard."""
        self._closing.known = True
        return self._judge((answer.page, answer.records, False))

    def _is_at_tip(self, page: Page) -> bool:
        """Return whether a page reached the tip.

        A full answer "0 behind" may still be followed by records of the same millisecond.
        """
        return super()._is_at_tip(page) and not self._full

    def _read(self, limit: int, patience: float) -> _Piece | None:
        for _ in range(_RENEWALS):
            if self._first is None:
                if not self._limiter.acquire(patience):
                    return None
                self._calls.reads += 1
                self._waits = False
            try:
                page = self._first or self._ask(limit)
            except IteratorExpiredError as error:
                # Continue after the last returned record: the start position would return records again.
                self._iterator, expired = None, error
                self._calls.renewals += 1
                continue
            piece = self._take(page)
            self._full = self._first is None and page.records.num_rows >= limit
            self._iterator, self._first = page.next_iterator, None
            return piece
        msg = f"{expired}; {_RENEWALS} new iterators in a row were too old. Was this process paused?"
        raise Unavailable(msg) from expired

    def _ask(self, limit: int) -> Page:
        try:
            if self._iterator is None:
                self._iterator = self._kinesis.iterator(
                    self._closing.stream, self._closing.shard, str(self.position)
                )
            try:
                page = self._kinesis.get_records(self._iterator, limit)
            except KinesisError as error:
                raise self._locate_error(error) from error
        finally:
            self._limiter.note_end()
        self._limiter.note_answer(page.size)
        return page
