"""Looks into shards for where a batch cuts them, in its planning process: a call of Kinesis for each border."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from kinesis_trident.spout.batch.pushed_filters import OUT_OF_ORDER_MS, ShardRange
from kinesis_trident.spout.batch.range_limits import try_again
from kinesis_trident.spout.batch.shard_pieces import PIECES_PER_TASK, Border, cut_at, find_borders
from kinesis_trident.spout.kinesis import Kinesis, KinesisError
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.kinesis.rate_limit import shard_limiter
from kinesis_trident.spout.kinesis.record_batches import arrival_at, position_at, select_before
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.positions import After, At, AtTimestamp, Position, ShardEnd, TrimHorizon
from kinesis_trident.spout.reader.polling import Pager
from kinesis_trident.tracker.records import RecordPosition

log = logging.getLogger(__name__)

_AT_ONCE = 64
"""The shards that are looked at side by side: each allows five looks a second."""

_PAGES = 5
"""The answers of a look, if they are empty."""

_FEW = 1000
"""Records of a range that is not cut: one call reads them, and a cut would need one for each border and piece."""


def cut_ranges(
    kinesis: Kinesis, options: SourceOptions, parts: Sequence[ShardRange], now: int, tasks: int
) -> list[tuple[ShardRange, ...]]:
    """Return the pieces of each task, where as many as `tasks` tasks read each shard.

    Args:
        kinesis: the calls.
        options: how the shards are read.
        parts: the range of each shard.
        now: epoch milliseconds, by the server's clock.
        tasks: of each shard.
    """
    if not parts:
        return []
    with ThreadPoolExecutor(min(_AT_ONCE, len(parts)), thread_name_prefix="cut") as pool:
        each = pool.map(lambda part: cut_range(kinesis, options, part, now, tasks), parts)
        return [pieces for some in each for pieces in some]


def cut_range(
    kinesis: Kinesis, options: SourceOptions, part: ShardRange, now: int, tasks: int
) -> list[tuple[ShardRange, ...]]:
    """Return the pieces of each task for one shard, see `cut_ranges`; one task reads a shard that cannot be cut.

    Few records are not cut. Nor is a shard that Kinesis refuses to show: whoever reads it says why.
    """
    if part.last is not None or isinstance(part.start, ShardEnd) or isinstance(part.end, TrimHorizon):
        return [(part,)]

    def look(start: Position) -> Border | None:
        records, _ = _look(kinesis, options, part, start, 1)
        return _find_first(records)

    try:
        records, is_all = _look(kinesis, options, part, part.start, min(_FEW, options.max_records_per_fetch))
        first, until = _find_first(records), now
        if is_all or first is None or not first.arrival:
            return [(part,)]
        match part.end:
            case AtTimestamp(time):
                # The range ends at its first record of that time. Behind that one, arrivals are not much earlier.
                until = min(now, time) - OUT_OF_ORDER_MS
            case At() | After():
                end = look(part.end)
                until = end.arrival if end is not None and end.arrival else now

        def look_before_end(time: int) -> Border | None:
            border = look(AtTimestamp(time))
            if border is None or not 0 < border.arrival < until:
                return None
            is_behind = isinstance(part.end, At | After) and border.record >= part.end.record.whole
            return None if is_behind else border

        borders = find_borders(first, until, PIECES_PER_TASK * tasks, look_before_end)
    except KinesisError as error:
        log.info("one task reads the shard, because %s", error)
        return [(part,)]
    return cut_at(part, borders, tasks)


def _look(
    kinesis: Kinesis, options: SourceOptions, part: ShardRange, start: Position, limit: int
) -> tuple[pa.RecordBatch | None, bool]:
    """Return the first records of a range from a position on, and whether they are all.

    There are none if the range has none, or only after many empty answers.
    """
    limiter = shard_limiter(options, part.stream, part.shard)
    if isinstance(start, At | After) and start.record.sub >= 0:
        # Aggregates stay whole here.
        start = At(RecordPosition(start.record.sequence))
    cursor = ShardCursor(start)
    pager = Pager(kinesis, part.stream, part.shard, cursor, limiter, deaggregate=False, closed=part.closed)
    patient = try_again(options)
    for _ in range(_PAGES):
        records = patient(pager.next, limit)
        assert records is not None
        is_last = pager.drained or pager.at_tip
        if records.num_rows:
            return records, is_last or select_before(records, part.end).num_rows < records.num_rows
        if is_last:
            break
    return None, True


def _find_first(records: pa.RecordBatch | None) -> Border | None:
    return None if records is None else Border(position_at(records, 0).whole, arrival_at(records, 0))
