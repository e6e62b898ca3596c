"""The rows of the source: their schema, and their Arrow batches, built from the records of a turn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kinesis_trident.common.arrow_columns import numbers, repeated, values_of
from kinesis_trident.spout.failed_records.retry_ranges import RunRecords
from kinesis_trident.spout.kinesis.aggregation import why_unreadable
from kinesis_trident.spout.kinesis.record_batches import (
    PLAIN_SUB,
    RECORD_SCHEMA,
    Slice,
    compact,
    copy_keys,
    count_from,
    count_through,
    digest_of,
    keys_in,
    most_memory,
    portions,
    position_at,
    unreadable_in,
    without_row,
)
from kinesis_trident.tracker.failure import Failure, Kind
from kinesis_trident.tracker.ids import hashes_of, number_segments, roots, tuple_ids, xor_of
from kinesis_trident.tracker.position_keys import KeyRanges, Keys, concatenate
from kinesis_trident.tracker.records import NotDone, RecordPosition, Run
from kinesis_trident.tracker.runs import is_free

_SUB = RECORD_SCHEMA.get_field_index("subSequenceNumber")

_JOINED = 2**18
"""The bytes of batches that are joined, at most: a larger batch stays as it is."""

# A kind without a reason is stored as it is shown.
_AGED = str(Failure(Kind.AGED))

_MOST_AGED = 1_000
"""The pieces of a turn that are too old, at most: its pin names each. Arrivals rise, so nearly always there is one."""

ANCHORS = "__anchors"
MESSAGE_ID = "messageId"

SCHEMA = StructType(
    [
        StructField("partitionKey", StringType()),
        StructField("data", BinaryType(), nullable=False),
        StructField("stream", StringType(), nullable=False),
        StructField("shardId", StringType(), nullable=False),
        StructField("sequenceNumber", StringType(), nullable=False),
        StructField("subSequenceNumber", LongType(), nullable=False),
        StructField("approximateArrivalTimestamp", TimestampType(), nullable=False),
        StructField(MESSAGE_ID, StringType(), nullable=False),
        StructField("attempt", IntegerType(), nullable=False),
        StructField("txid", LongType(), nullable=False),
        StructField(
            ANCHORS,
            ArrayType(
                StructType(
                    [
                        StructField("root", LongType(), nullable=False),
                        StructField("edge", LongType(), nullable=False),
                    ]
                ),
                containsNull=False,
            ),
            nullable=False,
        ),
    ]
)
"""The columns, which always exist; `messageId` is `stream/shardId:sequence[:sub]`.

A stream that distributes its records by itself (`RecordDistributionStrategy` AUTO) may have records without a key.
"""

_ANCHOR = pa.struct(
    [pa.field("root", pa.int64(), nullable=False), pa.field("edge", pa.int64(), nullable=False)]
)
_ANCHORS = pa.list_(pa.field("element", _ANCHOR, nullable=False))
ARROW_SCHEMA = pa.schema(
    [
        RECORD_SCHEMA.field("partitionKey"),
        RECORD_SCHEMA.field("data"),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("shardId", pa.string(), nullable=False),
        RECORD_SCHEMA.field("sequenceNumber"),
        RECORD_SCHEMA.field("subSequenceNumber"),
        RECORD_SCHEMA.field("approximateArrivalTimestamp"),
        pa.field(MESSAGE_ID, pa.string(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("txid", pa.int64(), nullable=False),
        pa.field(ANCHORS, _ANCHORS, nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring records of a shard that are delivered together, for the same attempt.

    `batches` have the columns of `spout.reader.fetch.Turn`; `attempt` is 1 for new records.
    """

    batches: Sequence[pa.RecordBatch | Slice]
    attempt: int


class Retried(NamedTuple):
    """Records that are delivered again: those of each run are a segment of their own.

    `attempts` has one for each run.
    """

    records: RunRecords
    attempts: np.ndarray

    @classmethod
    def of(cls, runs: Sequence[Run], records: RunRecords, chosen: np.ndarray | None = None) -> Retried:
        """Return the records of runs, or of some of them by a mask, as far as there are any."""
        some = records.counts > 0 if chosen is None else chosen & (records.counts > 0)
        attempts = np.array([run.attempt + 1 for run in runs], np.int32)
        return cls(records.of(some), attempts[some])


class TurnRows:
    """The rows of one shard's turn: its segments in shard order, numbered (`tracker.ids.number_segments`).

    A record that cannot be decoded, or is too old, is delivered without a row: it has failed already.

    Args:
        stream: the stream.
        shard: the shard.
        shard_index: its index in the plan.
        txid: of the batch.
        tag: of the plan, for the roots of tuple trees.
        segments: the records.
    """

    def __init__(
        self,
        stream: str,
        shard: str,
        shard_index: int,
        txid: int,
        tag: int,
        segments: Iterable[Segment | Retried],
    ) -> None:
        self.stream = stream
        self.shard = shard
        self._shard_index = shard_index
        self._txid = txid
        self._tag = tag
        self._numbered = list(_number_records(segments))

    @property
    def count(self) -> int:
        """All records, with and without a row."""
        return sum(numbered.batch.num_rows for numbered in self._numbered)

    def find_unreadable(self) -> tuple[NotDone, ...]:
        """Return the records without a row, in shard order: neighbours that have one reason together."""
        found: list[NotDone] = []
        before, behind = -2, ""
        for batch, _, ordinals, aged in self._numbered:
            for at, until in _neighbours(unreadable_in(batch), ordinals, aged):
                if at:
                    before, behind = int(ordinals[at - 1]), str(position_at(batch, at - 1))
                first, last = str(position_at(batch, at)), str(position_at(batch, until))
                reason = _AGED
                if not aged[at]:
                    data, sub = batch.column("data")[at].as_py(), batch.column(_SUB)[at].as_py()
                    reason = why_unreadable(data, sub)
                prev = behind if before == ordinals[at] - 1 else None
                count = until - at + 1
                if found and found[-1].last == prev and found[-1].text == reason:
                    one = found.pop()
                    found.append(NotDone(one.first, last, one.count + count, reason, one.prev))
                else:
                    found.append(NotDone(first, last, count, reason, prev))
            before, behind = int(ordinals[-1]), str(position_at(batch, -1))
        return tuple(found)

    def leave_out(self, unreadable: Sequence[NotDone]) -> None:
        """Take these records for ones without a row, as the reader that pinned the turn has done."""
        for index, one in enumerate(self._numbered):
            out, aged = np.zeros(len(one.ordinals), np.bool_), one.aged.copy()
            for piece in unreadable:
                first, last = RecordPosition.parse(piece.first), RecordPosition.parse(piece.last)
                some = slice(count_from(one.batch, first), count_through(one.batch, last))
                out[some] = True
                aged[some] |= piece.text == _AGED
            self._numbered[index] = one.without_rows(out)._replace(aged=aged)

    def leave_out_aged(self, since_ms: int, asked: Sequence[Run]) -> None:
        """Take the records that arrived before a time, in epoch milliseconds, for failed; not those of `asked` runs.

        One whose arrival is not known is not too old.
        """
        known, left = KeyRanges(asked), _MOST_AGED
        for index, one in enumerate(self._numbered):
            arrivals = values_of(one.batch.column("approximateArrivalTimestamp"))
            aged = (arrivals != 0) & (arrivals < since_ms * 1000)
            aged[unreadable_in(one.batch)] = False
            if not aged.any():
                continue
            aged &= ~known.cover(keys_in(one.batch))
            firsts = [first for first, _ in _neighbours(np.flatnonzero(aged), one.ordinals, aged)]
            if len(firsts) > left:
                aged[firsts[left] :] = False
            left = max(0, left - len(firsts))
            self._numbered[index] = one.without_rows(aged)._replace(aged=aged)

    def mark(self, again: Iterable[tuple[int, Collection[str]]], ahead: Collection[str]) -> None:
        """Give those records the attempt 0 whose keys are held.

        Args:
            again: the number of records of each run that comes again, and the hashes of the keys that are held for it.
            ahead: those that are held for the new records.
        """
        spans = [(count, held) for count, held in again if count]
        rest = self.count - sum(count for count, _ in spans)
        at = [0, *accumulate(count for count, _ in spans), self.count]
        limits = [held for _, held in spans] + ([ahead] if rest else [])
        start = 0
        for number, one in enumerate(self._numbered):
            attempts, stop = one.attempts.copy(), start + one.batch.num_rows
            for index in range(bisect_right(at, start) - 1, len(limits)):
                low, high = max(at[index], start), min(at[index + 1], stop)
                if low >= stop:
                    break
                if limits[index]:
                    keys = one.batch.column("partitionKey").slice(low - start, high - low)
                    attempts[low - start : high - start][_find_held(keys, limits[index])] = 0
            self._numbered[number] = one._replace(attempts=attempts)
            start = stop

    def xor(self) -> int:
        """Return the XOR of the tuple ids of all rows, which the acks of the whole turn must equal."""
        value = 0
        for _, _, ordinals, _ in map(_drop_undecodable, self._numbered):
            value ^= xor_of(tuple_ids(self.stream, self._txid, self.shard, ordinals))
        return value

    def keys(self) -> Keys:
        """Return the positions of all records, in order."""
        return concatenate([keys_in(numbered.batch) for numbered in self._numbered])

    def digest(self) -> str:
        """Return a digest of the positions of all records, in order, and of which have a row."""
        return digest_of(numbered.batch for numbered in self._numbered)

    def record_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows for Spark, in the columns of `ARROW_SCHEMA`."""
        for batch, attempts, ordinals, _ in map(_drop_undecodable, self._numbered):
            given = 0
            for portion in portions(batch):
                these = slice(given, given + portion.num_rows)
                yield self._rows(portion, attempts[these], ordinals[these])
                given = these.stop

    def _rows(self, batch: pa.RecordBatch, attempts: np.ndarray, ordinals: np.ndarray) -> pa.RecordBatch:
        anchors = pa.StructArray.from_arrays(
            [
                numbers(roots(self._tag, self._shard_index, ordinals)),
                numbers(tuple_ids(self.stream, self._txid, self.shard, ordinals)),
            ],
            fields=list(_ANCHOR),
        )
        each = numbers(np.arange(batch.num_rows + 1, dtype=np.int32))
        lists = pa.ListArray.from_arrays(each, anchors, type=_ANCHORS)
        return _rows(batch, self.stream, self.shard, numbers(attempts), self._txid, lists)


def _find_held(keys: pa.Array, held: Collection[str]) -> np.ndarray:
    """Return which of the partition keys of some records are among those with these hashes."""
    encoded = keys.dictionary_encode()
    # Many share a key; those without one have one in common.
    hashes = hashes_of([*encoded.dictionary.to_pylist(), None])
    waits = np.array([not is_free((key,), held) for key in hashes], np.bool_)
    found: np.ndarray = waits[values_of(encoded.indices.fill_null(len(hashes) - 1))]
    return found


class _Numbered(NamedTuple):
    """Records with the attempt and the ordinal of each, and which of those without a row are too old."""

    batch: pa.RecordBatch
    attempts: np.ndarray
    ordinals: np.ndarray
    aged: np.ndarray

    def without_rows(self, out: np.ndarray) -> _Numbered:
        """Return the same with some more records without a row."""
        subs = values_of(self.batch.column(_SUB)).copy()
        out = out & (subs >= PLAIN_SUB)
        subs[out] = without_row(subs[out])
        columns = self.batch.columns
        columns[_SUB] = numbers(subs)
        return self._replace(batch=pa.RecordBatch.from_arrays(columns, schema=self.batch.schema))


def _neighbours(odd: np.ndarray, ordinals: np.ndarray, aged: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of neighbours that are too old, and each other record alone; `odd`: all of them."""
    joined = (np.diff(odd) == 1) & (np.diff(ordinals[odd]) == 1) & aged[odd[1:]] & aged[odd[:-1]]
    edges = np.flatnonzero(~joined)
    if len(odd):
        firsts, lasts = odd[np.append(0, edges + 1)], odd[np.append(edges, len(odd) - 1)]
        yield from zip(firsts.tolist(), lasts.tolist(), strict=True)


def _drop_undecodable(numbered: _Numbered) -> _Numbered:
    """Leave out the records without a row."""
    left_out = unreadable_in(numbered.batch)
    if not len(left_out):
        return numbered
    rows = np.delete(np.arange(numbered.batch.num_rows), left_out)
    return _Numbered(compact(numbered.batch, rows), *(column[rows] for column in numbered[1:]))


def _number_records(segments: Iterable[Segment | Retried]) -> Iterator[_Numbered]:
    """Number the records of segments, and join neighbouring small batches.

    Records that come back may lie in many small slices, and a batch takes as long as hundreds of rows, here and in
    Spark.
    """
    held = _Held()
    ordinal = 0
    weighed, weight = None, 0.0
    for segment in segments:
        slices, counts, attempts = _parts(segment)
        each = np.repeat(attempts, counts)
        ordinals = ordinal + number_segments(counts)
        ordinal += len(each) + len(counts)
        at = 0
        for batch, start, count in slices:
            if not count:
                continue
            if batch is not weighed:
                weighed, weight = batch, most_memory(batch) / batch.num_rows
            if held.slices and held.size + count * weight > _JOINED:
                yield held.as_one()
                held = _Held()
            held.add(batch, start, count, each[at : at + count], ordinals[at : at + count])
            held.size += count * weight
            at += count
    if held.slices:
        yield held.as_one()


def _parts(segment: Segment | Retried) -> tuple[Sequence[Slice], np.ndarray, np.ndarray]:
    """Return the slices of one or more segments, and the count and the attempt of each segment."""
    if isinstance(segment, Retried):
        return segment.records.slices, segment.records.counts, segment.attempts
    slices = [one if isinstance(one, Slice) else Slice(one, 0, one.num_rows) for one in segment.batches]
    return slices, np.array([sum(one.num_rows for one in slices)]), np.array([segment.attempt], np.int32)


@dataclass(slots=True)
class _Held:
    """Records to be joined, of `size` bytes: slices, and the attempts and ordinals of their records."""

    slices: list[Slice] = field(default_factory=list)
    attempts: list[np.ndarray] = field(default_factory=list)
    ordinals: list[np.ndarray] = field(default_factory=list)
    size: float = 0.0

    def add(
        self, batch: pa.RecordBatch, start: int, count: int, attempts: np.ndarray, ordinals: np.ndarray
    ) -> None:
        """Add records of a batch, in the slice that ends where they begin if there is one."""
        self.attempts.append(attempts)
        self.ordinals.append(ordinals)
        last = self.slices[-1] if self.slices else None
        if last is not None and last.batch is batch and last.start + last.num_rows == start:
            self.slices[-1] = Slice(batch, last.start, last.num_rows + count)
        else:
            self.slices.append(Slice(batch, start, count))

    def as_one(self) -> _Numbered:
        """Return all of them as one batch; a page is not copied."""
        batches = [one.records() for one in self.slices]
        return _Numbered(
            batches[0] if len(batches) == 1 else pa.concat_batches(list(map(copy_keys, batches))),
            np.concatenate(self.attempts),
            np.concatenate(self.ordinals),
            np.zeros(sum(map(len, self.ordinals)), np.bool_),
        )


def make_untracked_rows(batch: pa.RecordBatch, stream: str, shard: str) -> pa.RecordBatch:
    """Return records, each with its own key, as untracked rows: attempt 1, txid 0, no anchors."""
    none = numbers(np.zeros(batch.num_rows + 1, dtype=np.int32))
    anchors = pa.ListArray.from_arrays(none, pa.nulls(0, _ANCHOR), type=_ANCHORS)
    return _rows(batch, stream, shard, numbers(np.ones(batch.num_rows, np.int32)), 0, anchors)


def _rows(
    batch: pa.RecordBatch, stream: str, shard: str, attempts: pa.Array, txid: int, anchors: pa.ListArray
) -> pa.RecordBatch:
    n = batch.num_rows
    sequence, sub = batch.column("sequenceNumber"), batch.column("subSequenceNumber")
    position = sequence
    colon = repeated(":", n)
    if (values_of(sub) >= 0).any():
        inside = pc.binary_join_element_wise(sequence, pc.cast(sub, pa.string()), colon)
        position = pc.if_else(pc.greater_equal(sub, 0), inside, sequence)
    columns = [
        batch.column("partitionKey"),
        batch.column("data"),
        repeated(stream, n),
        repeated(shard, n),
        sequence,
        sub,
        batch.column("approximateArrivalTimestamp"),
        pc.binary_join_element_wise(repeated(f"{stream}/{shard}", n), position, colon),
        attempts,
        numbers(np.full(n, txid, np.int64)),
        anchors,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)
