"""The rows of the source: their schema, and their Arrow batches, built from the records of a turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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

from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA, digest_of, portions
from kinesis_trident.tracker.ids import roots, tuple_ids, xor_of
from kinesis_trident.tracker.position_keys import Keys, keys_of

__all__ = [
    "ANCHORS",
    "ARROW_SCHEMA",
    "MESSAGE_ID",
    "SCHEMA",
    "Segment",
    "TurnRows",
    "untracked_rows",
]

_JOINED = 2**18
"""The bytes of batches that are joined, at most: a larger batch stays as it is."""

ANCHORS = "__anchors"
MESSAGE_ID = "messageId"

SCHEMA = StructType(
    [
        StructField("partitionKey", StringType(), nullable=False),
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
"""The columns, which always exist; `messageId` is `stream/shardId:sequence[:sub]`."""

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

    batches: list[pa.RecordBatch]
    attempt: int

    @property
    def count(self) -> int:
        """Return the number of records in the segment."""
        return sum(batch.num_rows for batch in self.batches)


@dataclass(frozen=True, slots=True)
class TurnRows:
    """The rows of one shard's turn: its segments in shard order, numbered.

    Ordinals count up within a segment and skip one between two, so that they are consecutive exactly where records
    are neighbours in the shard.
    """

    stream: str
    shard: str
    shard_index: int
    txid: int
    tag: int
    segments: list[Segment]

    @property
    def count(self) -> int:
        """All rows."""
        return sum(segment.count for segment in self.segments)

    def _numbered(self) -> Iterator[tuple[pa.RecordBatch, int, np.ndarray]]:
        ordinal = 0
        for segment in self.segments:
            for batch in segment.batches:
                yield batch, segment.attempt, np.arange(ordinal, ordinal + batch.num_rows, dtype=np.int64)
                ordinal += batch.num_rows
            ordinal += 1

    def xor(self) -> int:
        """Return the XOR of all tuple ids, which the acks of the whole turn must equal."""
        value = 0
        for _, _, ordinals in self._numbered():
            value ^= xor_of(tuple_ids(self.stream, self.txid, self.shard, ordinals))
        return value

    def keys(self) -> Keys:
        """Return the positions of all rows, in order."""
        batches = [batch for batch, _, _ in self._numbered() if batch.num_rows]
        return keys_of(
            np.concatenate([np.empty(0, object), *(_numpy(batch, "sequenceNumber") for batch in batches)]),
            np.concatenate(
                [np.empty(0, np.int64), *(_numpy(batch, "subSequenceNumber") for batch in batches)]
            ),
        )

    def digest(self) -> str:
        """Return a digest of the positions of all rows, in order."""
        return digest_of(batch for batch, _, _ in self._numbered())

    def record_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows for Spark, in the columns of `ARROW_SCHEMA`."""
        for batch, attempt, ordinals in _joined(self._portions()):
            yield self._rows(batch, attempt, ordinals)

    def _portions(self) -> Iterator[tuple[pa.RecordBatch, int, np.ndarray]]:
        for batch, attempt, ordinals in self._numbered():
            given = 0
            for portion in portions(batch) if batch.num_rows else ():
                yield portion, attempt, ordinals[given : given + portion.num_rows]
                given += portion.num_rows

    def _rows(self, batch: pa.RecordBatch, attempt: int, ordinals: np.ndarray) -> pa.RecordBatch:
        anchors = pa.StructArray.from_arrays(
            [
                pa.array(roots(self.tag, self.shard_index, ordinals)),
                pa.array(tuple_ids(self.stream, self.txid, self.shard, ordinals)),
            ],
            fields=list(_ANCHOR),
        )
        each = pa.array(np.arange(batch.num_rows + 1, dtype=np.int32))
        return _rows(
            batch,
            self.stream,
            self.shard,
            attempt,
            self.txid,
            pa.ListArray.from_arrays(each, anchors, type=_ANCHORS),
        )


def _joined(
    portions: Iterable[tuple[pa.RecordBatch, int, np.ndarray]],
) -> Iterator[tuple[pa.RecordBatch, int, np.ndarray]]:
    """Join neighbouring small batches of the same attempt.

    Records that come back are a batch each, unless they are neighbours in the shard, and a batch takes as long as
    hundreds of rows, here and in Spark.
    """
    held: list[tuple[pa.RecordBatch, np.ndarray]] = []
    of, size = 0, 0
    for batch, attempt, ordinals in portions:
        weight = batch.nbytes
        if held and (attempt != of or size + weight > _JOINED):
            yield _as_one(held, of)
            held, size = [], 0
        held.append((batch, ordinals))
        of, size = attempt, size + weight
    if held:
        yield _as_one(held, of)


def _as_one(
    held: list[tuple[pa.RecordBatch, np.ndarray]], attempt: int
) -> tuple[pa.RecordBatch, int, np.ndarray]:
    if len(held) == 1:
        # A page is not copied.
        return held[0][0], attempt, held[0][1]
    batches, ordinals = zip(*held, strict=True)
    return pa.concat_batches(batches), attempt, np.concatenate(ordinals)


def untracked_rows(batch: pa.RecordBatch, stream: str, shard: str) -> pa.RecordBatch:
    """Return records, each with its own key, as untracked rows: attempt 1, txid 0, no anchors."""
    none = pa.array(np.zeros(batch.num_rows + 1, dtype=np.int32))
    anchors = pa.ListArray.from_arrays(none, pa.array([], _ANCHOR), type=_ANCHORS)
    return _rows(batch, stream, shard, 1, 0, anchors)


def _rows(
    batch: pa.RecordBatch, stream: str, shard: str, attempt: int, txid: int, anchors: pa.ListArray
) -> pa.RecordBatch:
    n = batch.num_rows
    sequence, sub = batch.column("sequenceNumber"), batch.column("subSequenceNumber")
    position = sequence
    if (sub.to_numpy() >= 0).any():
        inside = pc.binary_join_element_wise(sequence, pc.cast(sub, pa.string()), ":")
        position = pc.if_else(pc.greater_equal(sub, 0), inside, sequence)
    columns = [
        batch.column("partitionKey"),
        batch.column("data"),
        pa.repeat(stream, n),
        pa.repeat(shard, n),
        sequence,
        sub,
        batch.column("approximateArrivalTimestamp"),
        pc.binary_join_element_wise(f"{stream}/{shard}", position, ":"),
        pa.repeat(pa.scalar(attempt, pa.int32()), n),
        pa.repeat(pa.scalar(txid, pa.int64()), n),
        anchors,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def _numpy(batch: pa.RecordBatch, column: str) -> np.ndarray:
    found: np.ndarray = batch.column(column).to_numpy(zero_copy_only=False)
    return found
