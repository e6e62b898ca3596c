"""The rows of a sink without Spark: what a sink does in tasks is done in this process, by the same code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, DataType, LongType, StringType, StructType

from kinesis_trident.bolt.testing.local_frames import LocalFrame, LocalSession

__all__ = ["local_rows", "order_rows"]

TYPES: dict[str, DataType] = {
    "string": StringType(),
    "bigint": LongType(),
    "binary": BinaryType(),
    "array<string>": ArrayType(StringType()),
}


class SinkFrame(LocalFrame):
    """A frame that takes schemas as the sinks write them, and calls `before` and `after` the tasks of a sink."""

    before: Callable[[], object]
    after: Callable[[], object]

    def mapInArrow(self, operator: Any, schema: Any) -> LocalFrame:
        """See `DataFrame.mapInArrow`."""
        fields = schema
        if isinstance(schema, str):
            fields = StructType()
            for column in schema.split(", "):
                name, _, kind = column.partition(" ")
                fields = fields.add(name, TYPES[kind])
        self.before()
        made = super().mapInArrow(operator, fields).localCheckpoint()
        self.after()
        return made


def local_rows(
    rows: pa.Table, before: Callable[[], object] = bool, after: Callable[[], object] = bool
) -> DataFrame:
    """Return a frame of rows, in one partition; others act before and after its tasks write."""
    held = LocalSession().createDataFrame(rows, from_arrow_schema(rows.schema))
    frame = SinkFrame(held.sparkSession, held.schema, 1, held.partitions)
    frame.before, frame.after = before, after
    return cast(DataFrame, frame)


def order_rows(names: Iterable[str], version: int = 1) -> pa.Table:
    """Return orders."""
    found = [(f"m-{name}", name, version) for name in names]
    kinds = (pa.string(), pa.string(), pa.int32())
    columns = zip(*found, strict=True) if found else ((), (), ())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.table(arrays, ["messageId", "order_id", "version"])
