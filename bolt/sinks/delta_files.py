"""Writes the rows of a task as Parquet files of a Delta table, which count once a commit has added them.

Each attempt of a task writes files of names of its own, so what a cancelled or repeated attempt has written harms
nothing: nobody adds it. It stays in the table's folder until `VACUUM`.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kinesis_trident.spout.failed_records.folders import filesystem

WRITTEN = "path string, size bigint, partition string, stats string"
"""The rows that a task gives instead of its own: a file each; `partition` and `stats` are JSON."""

_TEXT = 32
"""Characters of the longest text in a file's statistics."""


@dataclass(frozen=True)
class FileWriter:
    """Writes the batches of a task; give it to `mapInArrow` with the schema `WRITTEN`.

    Attributes:
        table: the table's folder, as an address of pyarrow's file systems.
        folder: below it, of the batch.
        schema: of the table.
        partition_by: columns of it, whose values are not in the files.
    """

    table: str
    folder: str
    schema: pa.Schema
    partition_by: Sequence[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows, and yield what a commit says of the files."""
        system, root = filesystem(self.table)
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
            written = [
                file.close(dict(zip(self.partition_by, values, strict=True)))
                for values, file in files.items()
            ]
        yield pa.RecordBatch.from_pylist(
            written, pa.schema([(name, pa.int64() if name == "size" else pa.string()) for name in _NAMES])
        )

    def _partitions(self, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
        """Yield the rows as the table has them, for each combination of partition values."""
        rows = self._as_in_table(rows)
        if not self.partition_by:
            yield (), rows
            return
        keys = rows.select(self.partition_by)
        numbers = pa.array(range(rows.num_rows), pa.int64())
        for one in (
            keys.append_column("__row", numbers)
            .group_by(keys.column_names)
            .aggregate([("__row", "list")])
            .to_pylist()
        ):
            values = tuple(one[name] for name in self.partition_by)
            yield values, rows.take(pa.array(one["__row_list"])).drop_columns(list(self.partition_by))

    def _as_in_table(self, rows: pa.Table) -> pa.Table:
        columns = []
        for field in self.schema:
            if field.name in rows.column_names:
                column = rows[field.name].cast(field.type)
            else:
                column = pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
            if column.null_count and not field.nullable:
                msg = f"column {field.name!r} of the Delta table must not be null, and is in {column.null_count} rows"
                raise ValueError(msg)
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=self.schema)


_NAMES = [column.split()[0] for column in WRITTEN.split(", ")]


class _ParquetFile:
    """A Parquet file that is being written."""

    def __init__(self, path: str, sink: pa.NativeFile, schema: pa.Schema) -> None:
        self._path = path
        self._sink = sink
        self._metadata: list[pq.FileMetaData] = []
        self._schema = schema
        self._writer = pq.ParquetWriter(
            sink, schema, compression="snappy", coerce_timestamps="us", metadata_collector=self._metadata
        )

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)

    def close(self, partition: Mapping[str, Any]) -> dict[str, Any]:
        """End the file; return what a commit says of it, as a row of `WRITTEN`."""
        self._writer.close()
        values = {name: partition_text(value) for name, value in partition.items()}
        return {
            "path": self._path,
            "size": self._sink.tell(),
            "partition": json.dumps(values),
            "stats": json.dumps(_stats_of(self._metadata[0], self._schema)),
        }


def partition_text(value: Any) -> str | None:
    """Return a partition value as Delta's protocol serializes it: text, a whole number, a boolean or a date."""
    if value is None or value == "":
        # For Delta the empty text is null.
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _stats_of(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """Return the statistics by which readers skip a file: of whole numbers, dates, timestamps and short texts.

    Of floats there are none: Parquet leaves out NaN, which Spark takes for the largest.
    """
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        if name not in schema.names or pa.types.is_nested(schema.field(name).type):
            continue
        stats = [group.column(index).statistics for group in groups]
        if not stats or any(one is None or not one.has_null_count for one in stats):
            continue
        nulls[name] = sum(one.null_count for one in stats)
        known = [one for one in stats if one.has_min_max]
        # A group of nulls alone has neither.
        if len(known) < sum(one.num_values > 0 for one in stats) or not known:
            continue
        low, high = min(one.min for one in known), max(one.max for one in known)
        if _is_comparable(low) and _is_comparable(high):
            least[name], most[name] = _stat(low, math.floor), _stat(high, math.ceil)
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _is_comparable(value: Any) -> bool:
    return isinstance(value, int | date) or (isinstance(value, str) and len(value) <= _TEXT)


def _stat(value: Any, rounded: Any) -> Any:
    if isinstance(value, datetime):
        # Delta has milliseconds: down for the least, up for the most.
        milliseconds = rounded(value.microsecond / 1000)
        whole = value.replace(microsecond=0)
        text = (whole + timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds")
        return text.replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value
