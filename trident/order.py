"""The order of the tuples of a batch: a hidden column that follows each tuple from its record to a window.

Batches come one after the other. Within one, the tuples of a shard have the order of its records, and the tuples of a
record the order in which they were emitted. Shards are interleaved by the arrival of their records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import LongType, StringType, StructField, StructType

from kinesis_trident.common.arrow_columns import numbers, repeated
from kinesis_trident.trident.operations import ArrowFunction

T = TypeVar("T")

ORDER = "__order"
ORDER_FIELD = StructField(
    ORDER, StructType().add("at", LongType()).add("source", StringType()).add("rank", StringType())
)
"""When the tuple's record arrived, its shard, and its rank there: its number, then one of each emission, as text."""

READ = ("approximateArrivalTimestamp", "stream", "shardId", "sequenceNumber", "subSequenceNumber")
"""The columns of the source that `RecordOrder` reads."""

_TYPE = pa.struct([("at", pa.int64()), ("source", pa.string()), ("rank", pa.string())])
_DIGITS, _SEQUENCE = 10, 64


class RecordOrder(ArrowFunction):
    """Returns the order of each record of a batch; reads `READ`."""

    def execute(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
        """Make the column."""
        arrival, stream, shard, sequence, sub = batch.columns
        at = pc.cast(arrival, pa.timestamp("us", "UTC")).cast(pa.int64())
        # The sub-sequence number of a record that was not aggregated is -1.
        rank = _join(
            pc.utf8_lpad(sequence, _SEQUENCE, "0"), _as_text(pc.add(sub, numbers(np.ones(1, int))[0]))
        )
        order = pa.StructArray.from_arrays([at, _join(stream, shard), rank], fields=list(_TYPE))
        return pa.RecordBatch.from_arrays([order], [ORDER]), np.arange(batch.num_rows)


def rank_emitted(column: pa.StructArray, source: np.ndarray) -> pa.StructArray:
    """Return the order of emitted tuples: that of each one's source, of which `source` is the row, with its rank."""
    emitted = column.take(numbers(source))
    starts = np.flatnonzero(np.diff(source, prepend=-1))
    if len(starts) == len(source):
        return emitted
    ranks = np.arange(len(source)) - np.repeat(starts, np.diff(starts, append=len(source)))
    at, origin, rank = emitted.flatten()
    return pa.StructArray.from_arrays([at, origin, _join(rank, _as_text(numbers(ranks)))], fields=list(_TYPE))


def in_order(step: T) -> T:
    """Return a step over tuples whose output has their order, too."""
    field = "kept" if hasattr(step, "kept") else "schema"
    return replace(step, **{field: getattr(step, field).append(pa.field(ORDER, _TYPE))})  # type: ignore[type-var]


def put_in_order(tuples: Iterable[Any], fields: Sequence[str]) -> list[Any]:
    """Return tuples in the order of these fields, the last one above the others. Equal ones are ordered by their text.

    In the order of records, that of a shard stands above the arrival times, which may step back within it.
    """
    by_record = tuple(fields) == (ORDER,)
    key: Any = _rank if by_record else lambda one: [_sortable(one[name]) for name in fields]
    ordered = sorted(tuples, key=lambda one: (key(one), repr(one)))
    if not by_record:
        return ordered
    latest: dict[str, int] = {}
    moments = []
    for order in (one[ORDER] for one in ordered):
        source = order["source"]
        latest[source] = max(order["at"], latest.get(source, order["at"]))
        moments.append(latest[source])
    return [one for _, one in sorted(zip(moments, ordered, strict=True), key=itemgetter(0))]


def window_order(start: int, group: str, number: int) -> dict[str, Any]:
    """Return the order of a tuple that a window of a group emits."""
    return {"at": start, "source": group, "rank": f"{number:0{_DIGITS}}"}


def _join(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(left, right, repeated(":", len(left)))


def _as_text(column: pa.Array) -> pa.Array:
    return pc.utf8_lpad(pc.cast(column, pa.string()), _DIGITS, "0")


def _rank(one: Any) -> list[str]:
    return [one[ORDER]["source"], one[ORDER]["rank"]]


def _sortable(value: Any) -> tuple[Any, ...]:
    """Return a value for an order. A sequence number is a whole number, written as text."""
    if isinstance(value, str):
        return (False, len(value) if value.isdecimal() else -1, value)
    return (value is None, value)
