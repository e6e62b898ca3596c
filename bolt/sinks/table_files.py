"""Writes the rows of a task as Parquet files below a table's folder, which count once a commit has added them.

Each attempt of a task writes files of names of its own, so what a cancelled or repeated attempt has written harms
nothing: nobody adds it. It stays in the table's folder until somebody removes files that no commit names.
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from kinesis_trident.bolt.errors import SinkError
from kinesis_trident.bolt.sinks.fitting import UNFIT, Fitting, Unfit, has_ids
from kinesis_trident.bolt.sinks.kinds import checks_of, refuse_no_columns, refuse_partitions, refuse_types
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.common.arrow_streams import from_stream, to_stream
from kinesis_trident.common.folder import Folder, FolderError
from kinesis_trident.common.open_files import share_of_files
from kinesis_trident.spout.reader.rows import MESSAGE_ID

WRITTEN = StructType(
    [
        StructField("path", StringType()),
        StructField("size", LongType()),
        StructField("partition", BinaryType()),
        StructField("footer", BinaryType()),
        *UNFIT,
    ]
)
"""The rows that a task gives instead of its own: a file each, with the Arrow stream of its partition values, and its
footer; and one without a file, of the rows that do not fit."""

_MOST_OPEN = 1000
"""Files that a task has open at a time, if its process may have twice as many."""


@dataclass(frozen=True)
class Partition:
    """A value by which rows go to files of their own: of a column, or of a time in whole units since 1970.

    Attributes:
        place: the number of the column in the table, then those of the fields within it that lead to the value.
        unit: Y, M, D or h, as in numpy's datetime64; "" for the value itself, None for no value at all.
    """

    place: tuple[int, ...]
    unit: str | None = ""

    def compute(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the value of each row."""
        if self.unit is None:
            return pa.nulls(rows.num_rows)
        column = rows.column(self.place[0])
        if self.place[1:]:
            column = pc.struct_field(column, self.place[1:])
        if not self.unit:
            return column
        times = column.to_numpy(zero_copy_only=False)
        units = times.astype(f"datetime64[{self.unit}]").astype("int64")
        return pa.array(units, mask=np.isnat(times))


@dataclass(frozen=True, kw_only=True)
class FileWriter:
    """Writes the rows of a task that fit; give it to `write_files`.

    Attributes:
        table: the table's folder, as an address of pyarrow's file systems.
        folder: below it, of the batch.
        schema: of the table.
        fitting: the rows that the table takes.
        partition_by: of the table.
        leaves_out: the partitions' columns are not in the files.
        options: of pyarrow's writer of Parquet; `row_group_size` is the most rows of a group.
    """

    table: str
    folder: str
    schema: pa.Schema
    fitting: Fitting
    partition_by: Sequence[Partition]
    leaves_out: bool
    options: Mapping[str, Any]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows, and yield what a commit says of the files.

        Raises:
            SinkError: this machine does not reach the table's folder.
        """
        unfit = Unfit()
        try:
            opened = _Files(self.table, self.folder, self.options)
        except FolderError as error:
            msg = (
                f"an executor cannot open the folder of the table {Folder(self.table).place}: {error}. Give executors "
                "the file system, the credentials and the packages that the driver has; nothing was added to the table"
            )
            raise SinkError(msg) from None
        with opened as files:
            for batch in batches:
                rows = self._as_in_table(self.fitting.fit(batch, unfit))
                for keys, part in self._partitions(rows):
                    files.write(keys, part)
            written = files.close()
        if unfit:
            written.append(unfit.columns())
        yield pa.RecordBatch.from_pylist(written, arrow_schema(WRITTEN))

    def _partitions(self, rows: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch | None, pa.RecordBatch]]:
        """Yield the rows of each combination of partition values, with the values as a row."""
        if not self.partition_by or not rows.num_rows:
            if rows.num_rows:
                yield None, rows
            return
        names = [f"{index}" for index in range(len(self.partition_by))]
        keys = pa.table([one.compute(rows) for one in self.partition_by], names)
        places = keys.append_column("row", pa.array(np.arange(rows.num_rows)))
        groups = places.group_by(names, use_threads=False).aggregate([("row", "list")]).combine_chunks()
        if self.leaves_out:
            rows = rows.drop_columns([self.schema.names[one.place[0]] for one in self.partition_by])
        found = groups["row_list"].chunk(0)
        rows = rows.take(found.flatten())
        ends = found.offsets.to_numpy()
        values = groups.select(names).to_batches()[0]
        for index, (start, end) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
            yield values.slice(index, 1), rows.slice(start, end - start)

    def _as_in_table(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        names = rows.schema.names
        columns = [
            rows[field.name].cast(field.type) if field.name in names else pa.nulls(rows.num_rows, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def write_files(df: DataFrame, writer: FileWriter, where: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Let the executors write the rows of a batch; return the files, and the reasons of the records that do not fit.

    Raises:
        SinkError: a row does not fit, and has no `messageId` by which it could fail alone.
    """
    files, unfit = [], Unfit()
    for row in df.mapInArrow(writer, WRITTEN).collect():
        if row["path"] is None:
            unfit.add(row["ids"], row["reasons"])
        else:
            files.append(row.asDict())
    unfit.refuse_nameless(df.schema, where)
    return files, unfit.reasons


class _Files:
    """The files of a task.

    With too many partitions for all to be open, the file that was written to least recently is closed, and another one
    begun when rows of its partition come again.
    """

    def __init__(self, table: str, folder: str, options: Mapping[str, Any]) -> None:
        self._system, root = Folder(table).open()
        self._root, self._folder, self._options = root, folder, options
        self._most = share_of_files(2, _MOST_OPEN)
        self._opened: OrderedDict[tuple[Any, ...], _ParquetFile] = OrderedDict()
        self._written: list[dict[str, Any]] = []

    def write(self, keys: pa.RecordBatch | None, rows: pa.RecordBatch) -> None:
        """Write rows of one partition; `keys` are its values, as a row."""
        values = tuple(keys.to_pylist()[0].values()) if keys is not None else ()
        if values in self._opened:
            self._opened.move_to_end(values)
        else:
            if len(self._opened) == self._most:
                self._written.append(self._opened.popitem(last=False)[1].close())
            self._opened[values] = self._open(keys, rows.schema)
        self._opened[values].write(rows)

    def _open(self, keys: pa.RecordBatch | None, schema: pa.Schema) -> _ParquetFile:
        path = f"{self._folder}/{uuid.uuid4().hex}.parquet"
        if self._system.type_name == "local":
            self._system.create_dir(f"{self._root}/{self._folder}", recursive=True)
        sink = self._system.open_output_stream(f"{self._root}/{path}")
        return _ParquetFile(path, sink, schema, keys, self._options)

    def close(self) -> list[dict[str, Any]]:
        """End all files; return what a commit says of them, as rows of `WRITTEN`."""
        while self._opened:
            self._written.append(self._opened.popitem()[1].close())
        return self._written

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # After an error some are open, which nobody will add.
        while self._opened:
            with suppress(Exception):
                self._opened.popitem()[1].close()


class _ParquetFile:
    """A Parquet file that is being written."""

    def __init__(
        self,
        path: str,
        sink: pa.NativeFile,
        schema: pa.Schema,
        keys: pa.RecordBatch | None,
        options: Mapping[str, Any],
    ) -> None:
        self._path, self._sink, self._keys = path, sink, keys
        self._metadata: list[pq.FileMetaData] = []
        given = {**options}
        self._most_rows = given.pop("row_group_size", None)
        self._writer = pq.ParquetWriter(
            sink, schema, coerce_timestamps="us", metadata_collector=self._metadata, **given
        )

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows, self._most_rows)

    def close(self) -> dict[str, Any]:
        """End the file; return what a commit says of it, as a row of `WRITTEN`."""
        with self._sink:
            self._writer.close()
            size = self._sink.tell()
        footer = pa.BufferOutputStream()
        self._metadata[0].write_metadata_file(footer)
        return {
            "path": self._path,
            "size": size,
            "partition": None if self._keys is None else to_stream([self._keys]),
            "footer": footer.getvalue().to_pybytes(),
        }


def partition_values(file: Mapping[str, Any]) -> list[Any]:
    """Return the partition values of a file of `WRITTEN`."""
    if file["partition"] is None:
        return []
    return [*from_stream(file["partition"]).to_pylist()[0].values()]


def make_nullable(schema: StructType) -> StructType:
    """Return a schema whose columns may all be null: a batch without nulls makes no promise about the next one."""
    result = StructType.fromJson(json.loads(schema.json()))
    for field in result.fields:
        field.nullable, field.metadata = True, {}
    return result


def columns_of_new(rows: StructType, partition_by: Sequence[str], where: str) -> StructType:
    """Return the columns of a table that is created for rows; all may be null, and `messageId` is not among them.

    Raises:
        SinkError: a table of files cannot have one, or cannot be partitioned by one.
    """
    fields = [field for field in rows.fields if field.name != MESSAGE_ID or MESSAGE_ID in partition_by]
    refuse_types(StructType(fields), where)
    refuse_partitions(StructType(fields), partition_by, where)
    refuse_no_columns([field.name for field in fields], where)
    return make_nullable(StructType(fields))


def fit_into(rows: StructType, columns: StructType, where: str) -> Fitting:
    """Return which rows a table takes.

    Raises:
        SinkError: a column is not in the table or has another type there, or one that must not be null is missing.
    """
    theirs = {field.name: field.dataType.simpleString() for field in columns.fields}
    ours = {
        field.name: field.dataType.simpleString()
        for field in rows.fields
        if field.name != MESSAGE_ID or MESSAGE_ID in theirs
    }
    wrong = [
        f"column {name!r} is {kind}, in the table {theirs.get(name, 'missing')}"
        for name, kind in ours.items()
        if theirs.get(name) != kind
    ]
    required = [field.name for field in columns.fields if not field.nullable]
    wrong += [
        f"column {name!r} of the table must not be null, and the rows do not have it"
        for name in required
        if name not in ours
    ]
    if wrong:
        msg = (
            f"the rows do not fit into {where}: {'; '.join(wrong)}. Select and cast the table's "
            "columns, or alter the table"
        )
        raise SinkError(msg)
    return Fitting(required, checks_of(columns, ours, {}), has_ids(rows))
