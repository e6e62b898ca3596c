"""The operations of a window on single tuples: their pane and bucket, and their content."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, DataType, StructType

from kinesis_trident.trident.aggregators import CombinerAggregator
from kinesis_trident.trident.operations import ArrowFunction
from kinesis_trident.trident.stores.key_text import encode_keys
from kinesis_trident.trident.tuples import TridentTuple
from kinesis_trident.trident.windowing.updater import AT, BUCKET, PANE

__all__ = ["Content", "Place"]


class Place(ArrowFunction):
    """Returns the bucket of each tuple, the pane, and the event time in microseconds; reads the time, then the keys."""

    def __init__(self, width: int, buckets: int) -> None:
        self._width = width
        self._buckets = buckets

    def execute(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray]:
        """Place the tuples.

        Raises:
            ValueError: an event time is null.
        """
        if batch.column(0).null_count:
            msg = f"the event time {batch.schema.names[0]!r} is null"
            raise ValueError(msg)
        at = (
            pc.cast(batch.column(0), pa.timestamp("us", "UTC"))
            .cast(pa.int64())
            .to_numpy(zero_copy_only=False)
        )
        columns = [pa.array(self._buckets_of(batch)), pa.array(at // self._width * self._width), pa.array(at)]
        return pa.RecordBatch.from_arrays(columns, [BUCKET, PANE, AT]), np.arange(batch.num_rows)

    def _buckets_of(self, batch: pa.RecordBatch) -> np.ndarray:
        if self._buckets == 1:
            return np.zeros(batch.num_rows, np.int32)
        keys = list(zip(*(column.to_pylist() for column in batch.columns[1:]), strict=True))
        names = encode_keys(keys) if keys and keys[0] else [""] * batch.num_rows
        return np.array([zlib.crc32(name.encode()) % self._buckets for name in names], np.int32)


class Content(CombinerAggregator):
    """Keeps the tuples themselves: a list of structs, with the event time if there is one."""

    def __init__(self, fields: StructType) -> None:
        self._fields = fields
        self._names = fields.names[1:]

    def init(self, tup: TridentTuple) -> list[dict[str, Any]]:
        """Return a list of the tuple."""
        at = tup[AT] if AT in tup.fields else 0
        return [{AT: at, **{name: tup[name] for name in self._names}}]

    def combine(self, left: list[Any], right: list[Any]) -> list[Any]:
        """Return all of them."""
        return left + right

    def zero(self) -> list[Any]:
        """Return an empty list."""
        return []

    def result(self, _inputs: StructType) -> DataType:
        """Return a list of structs."""
        return ArrayType(self._fields)
