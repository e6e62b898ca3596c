"""The read of a range with the flags of a pager."""

from __future__ import annotations

import math
from dataclasses import replace

from tenacity import Retrying, retry_if_exception_type, stop_after_delay
from twins.old_reader.polling import Pager

from kinesis_trident.spout.batch.range_read import (
    _SAME_FOR,
    Loaded,
    Rows,
    _begins_with,
    _is_past,
    _put_aside,
    _RangeRead,
    log,
)
from kinesis_trident.spout.data_loss import describe_gone_in_batch, may_have_expired
from kinesis_trident.spout.kinesis import KinesisError, ThrottledError, Unavailable, raise_lasting
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.kinesis.record_batches import (
    arrival_at,
    portions,
    position_at,
    select_before,
    select_readable,
)
from kinesis_trident.spout.positions import After, At, ShardEnd, TrimHorizon
from kinesis_trident.spout.reader.answers import END_PATIENCE
from kinesis_trident.spout.reader.rows import make_untracked_rows
from kinesis_trident.spout.shard_rules import is_gone, is_still_there, may_be_of_another_stream


class OldRangeRead(_RangeRead):
    """The read of one range of one shard."""

    def rows(self) -> Rows:
        """Yield the rows of the range; return whether the shard was read to its end."""
        part = self.part
        if isinstance(part.start, ShardEnd) or isinstance(part.end, TrimHorizon) or self._is_empty():
            return False
        pager = Pager(
            self._kinesis,
            part.stream,
            part.shard,
            ShardCursor(part.start),
            self._limiter,
            deaggregate=self._options.deaggregate,
            closed=part.closed,
        )
        try:
            if part.otherwise is None and self._info is not None and isinstance(part.start, After):
                self._check_start(is_still_there(self._kinesis, part.stream, part.shard, part.start.record))
            return (yield from self._read(pager))
        except KinesisError as error:
            if part.otherwise is not None and pager.page is None:
                log.info("reading from %s, because %s", part.otherwise, error)
                whole = replace(part, start=part.otherwise, otherwise=None)
                loaded = (
                    Loaded(self.loaded_at, 0, {part.stream: self._info}) if self._info is not None else None
                )
                return (
                    yield from OldRangeRead(self._kinesis, self._options, whole, loaded, self._pushed).rows()
                )
            if may_be_of_another_stream(error) and self._is_another(pager.position, 0.0):
                return False
            if not is_gone(self._kinesis, part.stream, part.shard, error):
                raise
            info = self._kinesis.describe(part.stream)
            what = describe_gone_in_batch(info, part.shard, str(pager.position), str(part.end))
            self._losses.report(what, expired=may_have_expired(info))
            return True

    def _read(self, pager: Pager) -> Rows:
        part, options = self.part, self._options
        patient = Retrying(
            retry=retry_if_exception_type((ThrottledError, Unavailable)),
            stop=stop_after_delay(options.read_timeout),
            retry_error_callback=raise_lasting,
        )
        # A record of a filter may never have been there.
        is_expected = part.otherwise is None and isinstance(part.start, At)
        # A position by number is of one stream alone; and so is what had arrived when the stream was described.
        is_proven = isinstance(part.start, At | After) or self._info is None
        given_up, records, has_given, is_over = math.inf, None, False, False
        while not pager.drained:
            before = pager.position
            records = patient(pager.next, part.limit(options.max_records_per_fetch, records))
            page = pager.page
            assert records is not None
            assert page is not None
            if is_expected and (records.num_rows or pager.drained or pager.at_tip):
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
            if page.records.num_rows == 0 and pager.at_tip and _is_past(part.end, page.server_time):
                if not self._has_closed_meanwhile(page):
                    break
                pager.note_closed()
            given_up = min(given_up, self._limiter.clock() + END_PATIENCE) if pager.undecided else math.inf
            if self._limiter.clock() >= given_up and _is_past(part.end, page.server_time):
                if page.behind_ms == 0:
                    # A closed shard of a server that never ends one.
                    return True
                msg = (
                    f"stream {part.stream!r}, shard {part.shard}, position {pager.position}: the answers are empty and "
                    "lack MillisBehindLatest, so the end of the shard is unknown. Check that the endpoint is a Kinesis "
                    "endpoint"
                )
                raise Unavailable(msg)
        if not is_proven:
            self._is_another(pager.position, _SAME_FOR)
        return pager.drained and not is_over
