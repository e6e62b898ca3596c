"""Writes the rows of a task as Parquet files below a table's folder, which count once a commit has added them.

Each attempt of a task writes files of names of its own, so what a cancelled or repeated attempt has written harms
nothing: nobody adds it. It stays in the table's folder until somebody removes files that no commit names.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from kinesis_trident.bolt.errors import SinkError
from kinesis_trident.common.folder import Folder

WRITTEN = "path string, size bigint, partition string, footer binary"
"""The rows that a task gives instead of its own: a file each, with the JSON of its partition values, and its footer."""


def bounds_of(statistics: pq.Statistics) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of a column; None if Parquet has none, or Python has no such value.

    A time in milliseconds that was taken for one in seconds lies beyond the year 9999.
    """
    try:
        return (statistics.min, statistics.max) if statistics.has_min_max else None
    except (OverflowError, ValueError):
        return None


@dataclass(frozen=True)
class Partition:
    """A value by which rows go to files of their own: of a column, or of a time in whole units since 1970.

    Attributes:
        column: its name.
        unit: Y, M, D or h, as in numpy's datetime64; none for the value itself.
    """

    column: str
    unit: str | None = None

    def compute(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return the value of each row."""
        column = rows[self.column]
        if self.unit is None:
            return column
        times = column.to_numpy()
        units = times.astype(f"datetime64[{self.unit}]").astype("int64")
        return pa.chunked_array([pa.array(units, mask=np.isnat(times))])


@dataclass(frozen=True)
class FileWriter:
    """Writes the batches of a task; give it to `mapInArrow` with the schema `WRITTEN`.

    Attributes:
        table: the table's folder, as an address of pyarrow's file systems.
        folder: below it, of the batch.
        schema: of the table.
        partition_by: of the table.
        leaves_out: the partitions' columns are not in the files.
    """

    table: str
    folder: str
    schema: pa.Schema
    partition_by: Sequence[Partition]
    leaves_out: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows, and yield what a commit says of the files."""
        system, root = Folder(self.table).open()
        files: dict[tuple[Any, ...], _ParquetFile] = {}
        with ExitStack() as opened:
            for batch in batches:
                for values, rows in self._partitions(pa.Table.from_batches([batch])):
                    if values not in files:
                        path = f"{self.folder}/{uuid.uuid4().hex}.parquet"
                        if system.type_name == "local":
                            system.create_dir(f"{root}/{self.folder}", recursive=True)
                        sink = opened.enter_context(system.open_output_stream(f"{root}/{path}"))
                        files[values] = _ParquetFile(path, sink, rows.schema)
                    files[values].write(rows)
            written = [file.close(values) for values, file in files.items()]
        yield pa.RecordBatch.from_pylist(written, _WRITTEN)

    def _partitions(self, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
        """Yield the rows as the table has them, for each combination of partition values."""
        rows = self._as_in_table(rows)
        if not self.partition_by:
            yield (), rows
            return
        names = [f"{index}" for index in range(len(self.partition_by))]
        keys = pa.table([one.compute(rows) for one in self.partition_by], names)
        numbers = pa.array(range(rows.num_rows), pa.int64())
        if self.leaves_out:
            rows = rows.drop_columns([one.column for one in self.partition_by])
        for one in (
            keys.append_column("row", numbers).group_by(names).aggregate([("row", "list")]).to_pylist()
        ):
            yield tuple(one[name] for name in names), rows.take(pa.array(one["row_list"]))

    def _as_in_table(self, rows: pa.Table) -> pa.Table:
        columns = []
        for field in self.schema:
            if field.name in rows.column_names:
                column = rows[field.name].cast(field.type)
            else:
                column = pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
            if column.null_count and not field.nullable:
                msg = (
                    f"column {field.name!r} of the table must not be null, and is in {column.null_count} rows"
                )
                raise ValueError(msg)
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=self.schema)


_WRITTEN = pa.schema(
    [("path", pa.string()), ("size", pa.int64()), ("partition", pa.string()), ("footer", pa.binary())]
)


class _ParquetFile:
    """A Parquet file that is being written."""

    def __init__(self, path: str, sink: pa.NativeFile, schema: pa.Schema) -> None:
        self._path = path
        self._sink = sink
        self._metadata: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            sink, schema, compression="snappy", coerce_timestamps="us", metadata_collector=self._metadata
        )

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)

    def close(self, partition: Sequence[Any]) -> dict[str, Any]:
        """End the file; return what a commit says of it, as a row of `WRITTEN`."""
        self._writer.close()
        footer = pa.BufferOutputStream()
        self._metadata[0].write_metadata_file(footer)
        return {
            "path": self._path,
            "size": self._sink.tell(),
            # Days as text.
            "partition": json.dumps(partition, default=str),
            "footer": footer.getvalue().to_pybytes(),
        }


_PARTITIONS = ("string", "boolean", "date", "tinyint", "smallint", "int", "bigint")


def make_nullable(schema: StructType) -> StructType:
    """Return a schema whose columns may all be null: a batch without nulls makes no promise about the next one."""
    result = StructType.fromJson(json.loads(schema.json()))
    for field in result.fields:
        field.nullable, field.metadata = True, {}
    return result


def refuse_partitions(schema: StructType, columns: Sequence[str], table: str) -> None:
    """Refuse columns by whose values a table cannot be partitioned.

    Raises:
        SinkError: one is missing, or has another type than text, a whole number, a boolean or a date.
    """
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name in columns:
        kind = types.get(name)
        if kind not in _PARTITIONS:
            is_what = f"has the type {kind}" if kind else "is not among the columns"
            msg = (
                f"{table} cannot be partitioned by {name!r}, which {is_what}. Partition by text, whole "
                "numbers, booleans or dates"
            )
            raise SinkError(msg)


def refuse_other_columns(rows: StructType, columns: StructType, table: str) -> None:
    """Refuse rows that a table does not take.

    Raises:
        SinkError: a column is not in the table or has another type there, or one that must not be null is missing.
    """
    theirs = {field.name: field.dataType.simpleString() for field in columns.fields}
    ours = {field.name: field.dataType.simpleString() for field in rows.fields}
    wrong = [
        f"column {name!r} is {kind}, in the table {theirs.get(name, 'missing')}"
        for name, kind in ours.items()
        if theirs.get(name) != kind
    ]
    wrong += [
        f"column {field.name!r} of the table must not be null, and the rows do not have it"
        for field in columns.fields
        if field.name not in ours and not field.nullable
    ]
    if wrong:
        msg = (
            f"the rows do not fit into {table}: {'; '.join(wrong)}. Select and cast the table's "
            "columns, or alter the table"
        )
        raise SinkError(msg)
