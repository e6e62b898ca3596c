"""Reads the ranges of a batch: each record between two positions, or an error that says what is lost."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from kinesis_trident.spout.batch.heirs import list_heirs, looks_of
from kinesis_trident.spout.batch.pushed_filters import NO_FILTERS, NO_ROWS, PushedFilters, ShardRange
from kinesis_trident.spout.data_loss import (
    DataLossLog,
    describe_expired_in_batch,
    describe_expired_start,
    describe_gone_in_batch,
    describe_recreated,
    may_have_expired,
)
from kinesis_trident.spout.errors import ExhaustedError, StreamRecreatedError
from kinesis_trident.spout.failed_records.letter_writer import DeadLetterWriter, Letter
from kinesis_trident.spout.kinesis import Kinesis, KinesisError, Page, StreamInfo
from kinesis_trident.spout.kinesis.aggregation import why_unreadable
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.kinesis.rate_limit import shard_limiter
from kinesis_trident.spout.kinesis.record_batches import (
    arrival_at,
    compact,
    portions,
    position_at,
    select_before,
    select_readable,
    unreadable_in,
)
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.patience import Patience
from kinesis_trident.spout.positions import After, At, AtTimestamp, Position, ShardEnd, TrimHorizon
from kinesis_trident.spout.reader.answers import END_PATIENCE, Answered, Closing, End, Tip, Undecided
from kinesis_trident.spout.reader.polling import Pager
from kinesis_trident.spout.reader.rows import make_untracked_rows
from kinesis_trident.spout.shard_rules import (
    find_known_at_load,
    is_gone,
    is_past_retention,
    is_still_there,
    may_be_of_another_stream,
)
from kinesis_trident.tracker.records import Run

log = logging.getLogger(__name__)

_SAME_FOR = 1.0
"""Seconds for which a description of a stream is used: an account has few such calls a second."""

_REMEDY = "Load the frame again, or begin it at a later position"

Rows = Generator[pa.RecordBatch, None, bool]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The moment at which a batch was loaded, which all its actions share.

    Attributes:
        time: by the server's clock, in epoch milliseconds, rounded up: LATEST.
        at: the same by the machine's clock, of which only differences count.
        streams: their descriptions by name.
    """

    time: int
    at: int = 0
    streams: Mapping[str, StreamInfo] = field(default_factory=dict)


def read_range(
    kinesis: Kinesis,
    options: SourceOptions,
    part: ShardRange,
    loaded: Loaded | None = None,
    pushed: PushedFilters = NO_FILTERS,
) -> Iterator[pa.RecordBatch]:
    """Read one shard between two positions, an answer at a time, and then the shards that came of it since the plan.

    If the end is a time, this waits until it has passed, so that no earlier record can still arrive: for LATEST at most
    a second. A closed shard is read to its end. A range that ends before those of the shards that come of it waits for
    these.

    Args:
        kinesis: the calls.
        options: how it is read.
        part: what is read.
        loaded: when the batch was; None, and neither the retention nor the identity of the stream is checked.
        pushed: which rows are wanted.

    Raises:
        DataLossError: with `failOnDataLoss`, records have expired unread, or the shard has left the stream.
        StreamRecreatedError: with `failOnDataLoss`, the stream was deleted and created again since the plan.
        ThrottledError, Unavailable: no answer for `readTimeout`, or no answer that indicates whether more follows; or
            the shards that came of a closed one are not listed for as long.
        ExhaustedError: with `onExhausted=fail`, a record cannot be decoded.
        DeadLetterError: one cannot be written to the dead letter.
        KinesisError: naming stream, shard and position.
    """
    waiting = deque([part])
    while waiting:
        one = _RangeRead(kinesis, options, waiting.popleft(), loaded, pushed)
        is_at_end = yield from one.rows()
        if not is_at_end and (rest := one.part.rest(one.loaded_at)) is not None:
            is_at_end = yield from _RangeRead(kinesis, options, rest, loaded, NO_ROWS).rows()
        if is_at_end:
            waiting += list_heirs(kinesis, options, one.part, pushed, one.loaded_at)


class _RangeRead:
    """The read of one range of one shard."""

    def __init__(
        self,
        kinesis: Kinesis,
        options: SourceOptions,
        part: ShardRange,
        loaded: Loaded | None,
        pushed: PushedFilters,
    ) -> None:
        self._kinesis = kinesis
        self._options = options
        self.part = part
        self._pushed = pushed
        self.loaded_at = loaded.time if loaded is not None else 0
        self._info = loaded.streams.get(part.stream) if loaded is not None else None
        self._known = (
            find_known_at_load(part.start, self.loaded_at, self._info) if self._info is not None else 0
        )
        self._losses = DataLossLog(options.fail_on_data_loss, _REMEDY)
        self._limiter = shard_limiter(options, part.stream, part.shard)
        self._last: Answered | None = None

    def rows(self) -> Rows:
        """Yield the rows of the range; return whether the shard was read to its end."""
        part = self.part
        if isinstance(part.start, ShardEnd) or isinstance(part.end, TrimHorizon) or self._is_empty():
            return False
        closing = Closing(self._kinesis, part.stream, part.shard, known=part.closed)
        cursor = ShardCursor(part.start)
        pager = Pager(closing, cursor, self._limiter, deaggregate=self._options.deaggregate)
        try:
            if part.otherwise is None and self._info is not None and isinstance(part.start, After):
                self._check_start(is_still_there(self._kinesis, part.stream, part.shard, part.start.record))
            return (yield from self._read(pager))
        except KinesisError as error:
            if part.otherwise is not None and self._last is None:
                log.info("reading from %s, because %s", part.otherwise, error)
                whole = replace(part, start=part.otherwise, otherwise=None)
                loaded = (
                    Loaded(self.loaded_at, 0, {part.stream: self._info}) if self._info is not None else None
                )
                return (
                    yield from _RangeRead(self._kinesis, self._options, whole, loaded, self._pushed).rows()
                )
            if may_be_of_another_stream(error) and self._is_another(pager.position, 0.0):
                return False
            if not is_gone(self._kinesis, part.stream, part.shard, error):
                raise
            info = self._kinesis.describe(part.stream)
            what = describe_gone_in_batch(info, part.shard, str(pager.position), str(part.end))
            self._lose(what, expired=may_have_expired(info))
            return True

    def _is_empty(self) -> bool:
        """Return whether the range ends where it starts, or before: without a call."""
        part = self.part
        if not (isinstance(part.start, AtTimestamp) and isinstance(part.end, AtTimestamp)):
            return part.start == part.end
        if part.start.time < part.end.time:
            return False
        if part.start.time > part.end.time:
            log.warning(
                "stream %r, shard %s: nothing is read: the start is %.1f s after the end, by the clock of Kinesis",
                part.stream,
                part.shard,
                (part.start.time - part.end.time) / 1000,
            )
        return True

    def _read(self, pager: Pager) -> Rows:
        part, options, clock = self.part, self._options, self._limiter.clock
        # A record of a filter may never have been there.
        is_expected = part.otherwise is None and isinstance(part.start, At)
        # A position by number is of one stream alone; and so is what had arrived when the stream was described.
        is_proven = isinstance(part.start, At | After) or self._info is None
        given_up, records, has_given, is_over = math.inf, None, False, False
        while not isinstance(self._last, End):
            before = pager.position
            limit = part.limit(options.max_records_per_fetch, records)
            answer = self._last = pager.insist(limit, Patience(options.read_timeout, clock))
            records, page = answer.records, answer.page
            if is_expected and (records.num_rows or isinstance(answer, End | Tip)):
                is_expected = False
                self._check_start(_begins_with(records, part.start))
            self._check_retention(page, records, before)
            if records.num_rows and not is_proven:
                assert self._info is not None
                is_proven = 0 < arrival_at(records, 0) <= self._info.server_time
            mine = select_before(records, part.end)
            wanted = self._pushed.rows(mine)
            if wanted.num_rows:
                _put_aside(self._kinesis, options, part, wanted)
                rows = select_readable(wanted)
                # Spark's worker holds back the end of a batch, up to 64 KiB, until it gets more to write: the second
                # half of the first page makes the first half leave, and whoever wants a few rows has them.
                half = 0 if has_given else rows.num_rows // 2
                has_given = True
                for piece in (rows.slice(0, half), rows.slice(half)) if half else (rows,):
                    for portion in portions(piece):
                        yield make_untracked_rows(portion, part.stream, part.shard)
            if (part.last is not None and mine.num_rows and position_at(mine, -1).whole > part.last) or (
                mine.num_rows < records.num_rows
            ):
                is_over = True
                break
            is_past = _is_past(part.end, page.server_time)
            if isinstance(answer, Tip) and is_past and page.records.num_rows == 0:
                if not self._has_closed_meanwhile(page):
                    break
                answer = pager.note_closed(answer)
            given_up = min(given_up, clock() + END_PATIENCE) if isinstance(answer, Undecided) else math.inf
            if isinstance(answer, Undecided) and is_past and clock() >= given_up:
                pager.check_end(answer)
                return True
        if not is_proven:
            self._is_another(pager.position, _SAME_FOR)
        return isinstance(self._last, End) and not is_over

    def _check_start(self, there: bool | None) -> None:
        """Report it if the record that a range begins with has expired; None if that is not known."""
        if there is not False:
            return
        part = self.part
        what = describe_expired_start(self._kinesis.describe(part.stream), part.shard, part.start)
        self._lose(what)

    def _lose(self, what: str, *, expired: bool = True) -> None:
        """Report a loss in the shard, as `DataLossLog.report`; only the first one is told."""
        self._losses.report(what, expired=expired, is_known=self._losses.count > 0)

    def _check_retention(self, page: Page, records: pa.RecordBatch, position: Position) -> None:
        """Check that nothing has expired before this answer that is not read yet, and note what is read now."""
        if self._info is None or page.server_time is None:
            return
        first = arrival_at(records, 0) if records.num_rows else 0
        now = replace(self._info, server_time=page.server_time)
        if (
            is_past_retention(self._known, now)
            and not 0 < first <= self._known
            and not self._is_all_kept(position)
        ):
            what = describe_expired_in_batch(now, self.part.shard, position, self._known)
            if self._info.retention_hours > now.retention_hours:
                what = (
                    f"{what}; the retention was raised to {self._info.retention_hours} h since it was loaded"
                )
            self._lose(what)
        last = arrival_at(records, -1) if records.num_rows else 0
        self._known = max(self._known, page.server_time if page.behind_ms == 0 else last)

    def _is_all_kept(self, position: Position) -> bool:
        """Return whether nothing behind a position has expired, and note a retention that was raised since the load.

        What is older than the record before a position expires earlier.
        """
        assert self._info is not None
        part = self.part
        hours = self._kinesis.describe(part.stream).retention_hours
        self._info = replace(self._info, retention_hours=max(hours, self._info.retention_hours))
        return isinstance(position, After) and bool(
            is_still_there(self._kinesis, part.stream, part.shard, position.record)
        )

    def _is_another(self, position: Position, age: float) -> bool:
        """Return whether the stream was deleted and created again since the batch was loaded.

        `age`: of a description that is good enough, in seconds.

        Raises:
            StreamRecreatedError: with `failOnDataLoss`, it was.
        """
        if self._info is None:
            return False
        stream = self.part.stream
        created = looks_of(self._kinesis).find_creation(self._kinesis, stream, age)
        if created is None or created == self._info.created:
            return False
        what = describe_recreated(stream, self._info.created, created, {self.part.shard: str(position)})
        if self._options.fail_on_data_loss:
            msg = f"{what}. Load the frame again to read the new stream"
            raise StreamRecreatedError(msg)
        self._losses.report(what)
        return True

    def _has_closed_meanwhile(self, page: Page) -> bool:
        """Return whether a shard that was listed as open has closed by this answer.

        Servers answer an empty page, "0 behind", behind the last record of a closed shard too; what came of it may have
        records from before the end.
        """
        part = self.part
        if part.others is None or page.server_time is None:
            return False
        now = page.server_time
        at = part.end.time if isinstance(part.end, AtTimestamp) else now
        return part.shard in looks_of(self._kinesis).list_closed(self._kinesis, part.stream, at, now)


def _put_aside(kinesis: Kinesis, options: SourceOptions, part: ShardRange, records: pa.RecordBatch) -> None:
    """Write the records that cannot be decoded to the dead letter, or do what `onExhausted` says."""
    left_out = unreadable_in(records)
    if not len(left_out):
        return
    odd = compact(records, left_out)
    where = [str(position_at(odd, index)) for index in range(odd.num_rows)]
    what = (
        f"stream {part.stream!r}, shard {part.shard}: {odd.num_rows} records cannot be decoded, the first is "
        f"{where[0]} ({why_unreadable(odd.column('data')[0].as_py(), odd.column('subSequenceNumber')[0].as_py())})"
    )
    if options.on_exhausted == "fail":
        msg = f"{what}. Set deadLetter, which gets them as Kinesis sent them, or onExhausted=skip"
        raise ExhaustedError(msg)
    if options.on_exhausted == "deadLetter":
        letters: list[Letter] = [(Run(where[0], where[-1], odd.num_rows), [odd], False)]
        named = replace(options, application_name=options.application_name or "batch")
        DeadLetterWriter(named, kinesis).write(
            stream=part.stream, txid=0, letters={part.shard: letters}, plan="batch", again=True
        )
    log.warning("%s: %s", what, "skipped" if options.on_exhausted == "skip" else "written to the dead letter")


def _begins_with(records: pa.RecordBatch, start: Position) -> bool:
    assert isinstance(start, At)
    return records.num_rows > 0 and position_at(records, 0).whole == start.record.whole


def _is_past(end: Position, server_time: int | None) -> bool:
    now = server_time if server_time is not None else int(time.time() * 1000)
    return not isinstance(end, AtTimestamp) or now >= end.time
