"""Filters of Spark that a batch takes over, to read less (`DataSourceReader.pushFilters`). Pure.

A filter that is taken over keeps exactly Spark's meaning: rows are compared as Spark compares them. What is not read
besides, by shard, time and sequence number, holds no row that a filter lets through.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kinesis_trident.spout.kinesis import Shard
from kinesis_trident.spout.kinesis.record_batches import arrival_at
from kinesis_trident.spout.positions import After, At, AtTimestamp, Position, ShardEnd, TrimHorizon
from kinesis_trident.spout.shard_rules import SERVER_SECOND_MS
from kinesis_trident.tracker.records import RecordPosition

OUT_OF_ORDER_MS = 60_000
"""Arrival times of a shard may decrease: that of a record is at most so far from those of its neighbours."""

_FIRST, _FEWEST = 1000, 100
"""The records of the first page, and of any, where an end is near: most of a page of 10,000 could lie behind it."""

_ARRIVAL, _SEQUENCE = "approximateArrivalTimestamp", "sequenceNumber"
_KERNELS = {
    "EqualTo": "equal",
    "EqualNullSafe": "equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
}
_FROM, _TO = {"equal", "greater", "greater_equal"}, {"equal", "less", "less_equal"}


class Comparison(NamedTuple):
    """A column compared with a value; for `is_in` with a sorted tuple. `kernel` is a function of pyarrow.compute."""

    column: str
    kernel: str
    value: Any


@dataclass(frozen=True, slots=True)
class ShardRange:
    """The records of one shard from `start` to before `end`; `closed`: the shard was listed as closed.

    Attributes:
        otherwise: the start if Kinesis refuses `start`.
        last: no record with a larger sequence number is needed.
        until: about when the record at `end` arrived, in epoch milliseconds, if it is near.
        others: start and end of the shards that come of it, if it may be that no task has them.
        kin: those of them that tasks have.
    """

    stream: str
    shard: str
    start: Position
    end: Position
    closed: bool = False
    otherwise: Position | None = None
    last: RecordPosition | None = None
    until: int | None = None
    others: tuple[Position, Position] | None = None
    kin: tuple[str, ...] = ()

    def rest(self, loaded_at: int) -> ShardRange | None:
        """Return the range until the end of what comes of the shard, if this one ends before: it shows if any does.

        None of its records is one of the batch. `loaded_at`: when that was loaded, 0 if unknown; Kinesis refuses a
        start that is ahead of its clock.
        """
        end = self.others[1] if self.others is not None else None
        if not isinstance(end, AtTimestamp):
            return None
        if (
            not isinstance(self.start, ShardEnd)
            and isinstance(self.end, AtTimestamp)
            and self.end.time >= end.time
        ):
            return None
        start = AtTimestamp(max(0, min(end.time, loaded_at or end.time) - 2 * SERVER_SECOND_MS))
        return replace(self, start=start, end=end, otherwise=None, last=None, until=None)

    def limit(self, most: int, records: pa.RecordBatch | None) -> int:
        """Return how many records to ask for: about those before a near end, if they come as those of the last page."""
        if self.until is None:
            return most
        if records is None:
            return min(most, _FIRST)
        first, last = (arrival_at(records, at) for at in (0, -1)) if records.num_rows else (0, 0)
        if not 0 < first < last:
            return most
        before = (self.until - last) * records.num_rows / (last - first)
        return int(min(most, max(_FEWEST, before * 1.05)))


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """The filters that a batch has taken over; all of them hold for its rows."""

    comparisons: tuple[Comparison, ...] = ()

    @classmethod
    def take(cls, filters: Iterable[Any]) -> tuple[PushedFilters, list[Any]]:
        """Return the filters that can be taken over, and those that stay with Spark, as they were given."""
        each = [(given, _comparison(given)) for given in filters]
        taken = tuple(one for _, one in each if one is not None)
        return cls(taken), [given for given, one in each if one is None]

    def admits(self, column: str, value: str) -> bool:
        """Return whether rows with this `stream` or `shardId` are let through."""
        return all(value in one.value for one in self.comparisons if one.column == column)

    def rows(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records that are let through."""
        for column, kernel, value in self.comparisons:
            if column in (_ARRIVAL, _SEQUENCE) and records.num_rows:
                values = records.column(column)
                kept = pc.call_function(kernel, [values, pa.scalar(value, values.type)])
                if not pc.all(kept).as_py():
                    records = records.filter(kept)
        return records

    @property
    def since(self) -> int | None:
        """Return the time that nothing is needed from before, in epoch milliseconds."""
        times = [_micros(one.value) // 1000 for one in self._comparisons_of(_ARRIVAL, _FROM)]
        return max(max(times) - OUT_OF_ORDER_MS, 0) if times else None

    @property
    def until(self) -> int | None:
        """Return the time that nothing is needed from after, in epoch milliseconds."""
        times = [_micros(one.value) // 1000 + 1 for one in self._comparisons_of(_ARRIVAL, _TO)]
        return max(min(times) + OUT_OF_ORDER_MS, 0) if times else None

    def move_start(self, start: TrimHorizon | AtTimestamp, now: int) -> TrimHorizon | AtTimestamp:
        """Return a start, moved to the first needed time; Kinesis refuses a time in the future."""
        if self.since is None:
            return start
        since = max(0, min(self.since, now - 1000))
        return AtTimestamp(max(since, start.time) if isinstance(start, AtTimestamp) else since)

    def names_other(self, listed: Collection[str]) -> bool:
        """Return whether a shard that is let through by its name is none of the listed ones."""
        names = [name for one in self.comparisons if one.column == "shardId" for name in one.value]
        return any(name not in listed and self.admits("shardId", name) for name in names)

    def narrow(self, part: ShardRange, shard: Shard, now: int, *, other: bool) -> ShardRange | None:
        """Return the part of a range that is to be read; None for nothing. `other`: see `names_other`."""
        if not self.comparisons:
            return part
        if not self.admits("shardId", part.shard):
            # What comes of it may be let through: `rest` shows if anything does.
            return replace(part, start=ShardEnd()) if other and part.others is not None else None
        if isinstance(part.start, TrimHorizon | AtTimestamp):
            part = replace(part, start=self.move_start(part.start, now))
        if self.until is not None and isinstance(part.end, AtTimestamp):
            end = min(part.end.time, self.until)
            part = replace(part, end=AtTimestamp(end), until=end)
        if self.until is not None and part.others is not None and isinstance(part.others[1], AtTimestamp):
            part = replace(part, others=(part.others[0], AtTimestamp(min(part.others[1].time, self.until))))
        if isinstance(part.start, AtTimestamp) and isinstance(part.end, AtTimestamp):
            return part if part.start.time < part.end.time else None
        return self._from_sequence(part, shard)

    def _from_sequence(self, part: ShardRange, shard: Shard) -> ShardRange:
        """Return the range from the sequence number that is compared, if only this shard is read.

        Spark compares texts. In a shard that begins with a number of as many digits they are in order like the numbers.
        Kinesis refuses a number of another shard.
        """
        lone = any(one.column == "shardId" and len(one.value) == 1 for one in self.comparisons)
        if not lone or shard.sequences is None or isinstance(part.start, AtTimestamp):
            return part
        first, last = shard.sequences
        given = [one for one in self._comparisons_of(_SEQUENCE, _FROM) if _is_number(one.value)]
        starts = [RecordPosition(one.value) for one in given if len(one.value) == len(first.sequence)]
        if not starts or not first <= max(starts) <= (max(starts) if last is None else last):
            return part
        start = At(max(starts))
        if isinstance(part.start, At | After) and part.start.record >= start.record:
            return part
        exact = [RecordPosition(one.value) for one in given if one.kernel == "equal"]
        return replace(part, start=start, otherwise=part.start, last=min(exact, default=None))

    def _comparisons_of(self, column: str, kernels: set[str]) -> list[Comparison]:
        return [one for one in self.comparisons if one.column == column and one.kernel in kernels]


NO_FILTERS = PushedFilters()
NO_ROWS = PushedFilters((Comparison(_ARRIVAL, "less", datetime(1970, 1, 1, tzinfo=UTC)),))


def _comparison(given: Any) -> Comparison | None:
    # By name: PySpark 4.0 has none of the classes.
    kind, path = type(given).__name__, getattr(given, "attribute", ())
    value: Any = getattr(given, "value", None)
    kernel = _KERNELS.get(kind)
    match path:
        case ("approximateArrivalTimestamp",) if kernel and isinstance(value, datetime) and value.tzinfo:
            return Comparison(_ARRIVAL, kernel, value)
        case ("sequenceNumber",) if kernel and isinstance(value, str):
            return Comparison(_SEQUENCE, kernel, value)
        case ("stream" | "shardId",) if kernel == "equal" and isinstance(value, str):
            return Comparison(path[0], "is_in", (value,))
        case ("stream" | "shardId",) if kind == "In":
            return Comparison(path[0], "is_in", tuple(sorted({one for one in value if isinstance(one, str)})))
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and not text.startswith("0")


def _micros(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
