"""Finds and cuts records by position in Arrow batches of one shard. Pure.

Batches are in shard order, so bisection finds a position: it converts a dozen sequence numbers to integers, not all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from kinesis_trident.common.arrow_columns import numbers, values_of
from kinesis_trident.spout.positions import After, At, AtTimestamp, Position, ShardEnd
from kinesis_trident.tracker.position_keys import Keys, keys_of
from kinesis_trident.tracker.records import RecordPosition

RECORD_SCHEMA = pa.schema(
    [
        pa.field("partitionKey", pa.string()),
        pa.field("data", pa.binary(), nullable=False),
        pa.field("sequenceNumber", pa.string(), nullable=False),
        pa.field("subSequenceNumber", pa.int64(), nullable=False),
        pa.field("approximateArrivalTimestamp", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
"""The columns of all pages, and of all batches of a turn. An arrival in 1970 is not known."""

# `from_pylist` imports pandas.
NO_RECORDS = pa.RecordBatch.from_arrays(
    [pa.nulls(0, column.type) for column in RECORD_SCHEMA], schema=RECORD_SCHEMA
)

PLAIN_SUB = -1
"""Stands in `subSequenceNumber` for a record that is not aggregated."""

UNREADABLE_SUB = -2
"""Stands in `subSequenceNumber` for a record that cannot be decoded; its data is the JSON that Kinesis sent for it.

Lower numbers stand for user records of aggregates: see `without_row`.
"""

SHARED_KEYS_SCHEMA = RECORD_SCHEMA.set(0, pa.field("partitionKey", pa.dictionary(pa.int32(), pa.string())))
"""The same columns for batches with user records of aggregates, where many share a key."""

_PORTION = 8 * 2**20
"""The bytes of text created for rows at a time."""

_TEXT = 256
"""The bytes of a row's text in addition to its key: a sequence number, and the messageId that repeats it."""

_KEY = 256
"""The bytes of a record's own key, at most: 256 characters that are mostly ASCII."""

_SEQUENCE, _SUB, _ARRIVAL = 2, 3, 4

_ALL = 2**63 - 1

_LAST_SUB = 10**10 - 1


class Slice(NamedTuple):
    """`num_rows` records of a batch from `start` on: to cut a batch in Arrow costs as much as hundreds of its rows."""

    batch: pa.RecordBatch
    start: int
    num_rows: int

    def records(self) -> pa.RecordBatch:
        """Return the records as a batch."""
        return self.batch.slice(self.start, self.num_rows)


def without_row(subs: Any) -> Any:
    """Return what stands in `subSequenceNumber` for records with these numbers that cannot be decoded.

    It is its own inverse: -1 and -2 stand for each other, 0 and -3, 1 and -4.
    """
    return -subs - 3


def unreadable_in(batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the indexes of the records that cannot be decoded."""
    return np.flatnonzero(values_of(batch.column(_SUB)) < PLAIN_SUB)


def select_readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without records that cannot be decoded."""
    left_out = unreadable_in(batch)
    return compact(batch, np.delete(np.arange(batch.num_rows), left_out)) if len(left_out) else batch


def position_at(batch: pa.RecordBatch, index: int) -> RecordPosition:
    """Return the position of one record; negative indexes count from the end."""
    sub = batch.column(_SUB)[index].as_py()
    place = sub if sub >= PLAIN_SUB else without_row(sub)
    return RecordPosition(batch.column(_SEQUENCE)[index].as_py(), place)


def arrival_at(batch: pa.RecordBatch, index: int) -> int:
    """Return the arrival of one record in epoch milliseconds, 0 if it is not known."""
    return int(batch.column(_ARRIVAL)[index].value) // 1000


def keys_in(batch: pa.RecordBatch) -> Keys:
    """Return the keys of all records, in order."""
    sequence, sub = batch.column(_SEQUENCE), values_of(batch.column(_SUB))
    sub = np.where(sub < PLAIN_SUB, without_row(sub), sub)
    at = _offsets(sequence)
    n, width = len(sequence), int(at[1] - at[0]) if len(sequence) else 0
    if n and (np.diff(at) == width).all():
        # The service's numbers have the same digits nearly always: their bytes are the array.
        digits = np.frombuffer(sequence.buffers()[2], f"S{width}", count=n, offset=int(at[0]))
        return keys_of(digits, sub)
    return keys_of(sequence.to_numpy(zero_copy_only=False), sub)


def count_through(batch: pa.RecordBatch, last: RecordPosition) -> int:
    """Count the records of the batch at or before `last`."""
    return bisect_right(range(batch.num_rows), last, key=lambda index: position_at(batch, index))


def count_from(batch: pa.RecordBatch, first: RecordPosition) -> int:
    """Count the records of the batch before `first`."""
    return bisect_left(range(batch.num_rows), first, key=lambda index: position_at(batch, index))


def select_from(records: pa.RecordBatch, start: Position) -> pa.RecordBatch:
    """Return the records that are not before a start: an iterator may start at its record, or a second early."""
    # One whose arrival is not known is no reason to leave a record out, nor does it end a range.
    before = _count_before(records, start, arrival_if_unknown=_ALL)
    return records.slice(before) if before else records


def select_before(records: pa.RecordBatch, end: Position) -> pa.RecordBatch:
    """Return the records before an end; a Kinesis record that is the last one is read whole, if it is an aggregate."""
    if isinstance(end, After) and end.record.sub < 0:
        end = After(RecordPosition(end.record.sequence, _LAST_SUB))
    return records.slice(0, _count_before(records, end, arrival_if_unknown=0))


def _count_before(records: pa.RecordBatch, position: Position, arrival_if_unknown: int) -> int:
    if records.num_rows == 0:
        return 0
    match position:
        case After(record) if position_at(records, 0) <= record:
            return count_through(records, record)
        case At(record) if position_at(records, 0) < record:
            return count_from(records, record)
        case AtTimestamp(time):
            arrivals = values_of(records.column(_ARRIVAL))
            late = np.flatnonzero(np.where(arrivals == 0, arrival_if_unknown, arrivals) >= time * 1000)
            return int(late[0]) if len(late) else int(records.num_rows)
        case ShardEnd():
            return int(records.num_rows)
    return 0


def count_arrived(batch: pa.RecordBatch, upto: int) -> int:
    """Count the records before the first one that arrived after `upto`, in epoch milliseconds.

    One whose arrival is not known is never after it.
    """
    late = np.flatnonzero(values_of(batch.column(_ARRIVAL)) >= (upto + 1) * 1000)
    return int(late[0]) if len(late) else int(batch.num_rows)


def select_through(batches: Iterable[pa.RecordBatch], last: RecordPosition) -> list[pa.RecordBatch]:
    """Return the records of all batches up to and including `last`."""
    kept = []
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if position_at(batch, -1) <= last:
            kept.append(batch)
            continue
        count = count_through(batch, last)
        if count:
            kept.append(batch.slice(0, count))
        break
    return kept


def payload_size(batch: pa.RecordBatch) -> int:
    """Return the size of all payloads in bytes."""
    ends = _payload_offsets(batch)
    return int(ends[-1] - ends[0])


def memory_of(batch: pa.RecordBatch) -> int:
    """Return the bytes of all columns; keys shared with records elsewhere count in part."""
    key = batch.column(0)
    if not pa.types.is_dictionary(key.type) or not len(key.dictionary):
        return int(batch.nbytes)
    keys = key.dictionary.nbytes
    return int(batch.nbytes - keys + min(keys, keys * len(key) // len(key.dictionary)))


def most_memory(batch: pa.RecordBatch) -> int:
    """Return the bytes that all columns take at most, each record with its own copy of its key; in little time."""
    key = batch.column(0)
    size = _max_length(key.dictionary) if pa.types.is_dictionary(key.type) else _KEY
    return int(payload_size(batch) + batch.num_rows * (size + _TEXT))


def copy_keys(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch in `RECORD_SCHEMA`, each record with its own copy of its key."""
    key = batch.column(0)
    if not pa.types.is_dictionary(key.type):
        return batch
    return pa.RecordBatch.from_arrays([key.dictionary_decode(), *batch.columns[1:]], schema=RECORD_SCHEMA)


def portions(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the batch in `RECORD_SCHEMA`, in parts: the text that is created for its rows could be very large."""
    key = batch.column(0)
    own = _max_length(key.dictionary) if pa.types.is_dictionary(key.type) else 0
    step = max(1, _PORTION // (own + _TEXT))
    for start in range(0, max(1, batch.num_rows), step):
        yield copy_keys(batch.slice(start, step))


def count_fitting(batch: pa.RecordBatch, records: int, size: int, memory: int = _ALL, least: int = 1) -> int:
    """Count the first records that fit all limits: whole aggregates only, and at least `least` records.

    Args:
        batch: in the columns of `RECORD_SCHEMA`, or with shared keys.
        records: the maximum number.
        size: the maximum bytes of payload.
        memory: the maximum bytes of all columns; the overhead of each record is taken as equal.
        least: the minimum number, whatever the limits.
    """
    payloads = _payload_offsets(batch).astype(np.int64)
    payloads -= payloads[0]
    within = np.searchsorted(payloads, size, side="right")
    held = memory_of(batch)
    if held > memory:
        beside = (held - payloads[-1]) / batch.num_rows
        columns = payloads + beside * np.arange(len(payloads))
        within = min(within, np.searchsorted(columns, memory, side="right"))
    count = max(least, min(records, int(within) - 1))
    if not 0 < count < batch.num_rows:
        return int(min(count, batch.num_rows))
    sequence = batch.column(_SEQUENCE)
    if sequence[count] != sequence[count - 1]:
        return count
    cut = RecordPosition(sequence[count].as_py())
    whole = count_from(batch, cut)
    return whole if whole >= least else count_through(batch, RecordPosition(cut.sequence, _LAST_SUB))


def compact(batch: pa.RecordBatch, indexes: np.ndarray) -> pa.RecordBatch:
    """Return the records of some indexes, each once and in order, without keeping the memory of the others."""
    if len(indexes) == batch.num_rows:
        return batch
    taken = batch.take(numbers(indexes))
    key = taken.column(0)
    if not pa.types.is_dictionary(key.type):
        return taken
    used, indices = np.unique(values_of(key.indices), return_inverse=True)
    own = pa.DictionaryArray.from_arrays(
        numbers(indices.astype(np.int32)), key.dictionary.take(numbers(used))
    )
    return pa.RecordBatch.from_arrays([own, *taken.columns[1:]], schema=SHARED_KEYS_SCHEMA)


def _max_length(texts: pa.Array) -> int:
    """Return the bytes of the longest text; 0 if there are none."""
    return int(pc.max(pc.binary_length(texts)).as_py() or 0)


def _payload_offsets(batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return the offsets at which the payloads begin, and the last one ends, in their buffer."""
    return _offsets(batch.column(1))


def _offsets(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return where in their buffer the values of texts or bytes begin, and the last one ends."""
    offsets = column.buffers()[1]
    if offsets is None:
        return np.zeros(len(column) + 1, np.int32)
    return np.frombuffer(offsets, np.int32, count=len(column) + 1, offset=column.offset * 4)


def digest_of(batches: Iterable[pa.RecordBatch]) -> str:
    """Return xxh3 over the positions of records in order, however they are batched, as 32 hexadecimal digits."""
    texts, lengths = xxhash.xxh3_64(), xxhash.xxh3_64()
    for batch in batches:
        if batch.num_rows == 0:
            continue
        sequence = batch.column("sequenceNumber")
        at = _offsets(sequence)
        texts.update(memoryview(sequence.buffers()[2])[at[0] : at[-1]])
        pair = np.empty((len(sequence), 2), dtype=np.int64)
        pair[:, 0] = np.diff(at)
        pair[:, 1] = values_of(batch.column("subSequenceNumber"))
        lengths.update(pair.tobytes())
    return texts.hexdigest() + lengths.hexdigest()
