"""Writes a batch into a Delta table exactly once: the executors write files, and one commit of the driver adds them.

The commit bears the run's epoch and the batch's txid as application transactions, which Delta compares in the commit
itself (https://github.com/delta-io/delta/blob/master/PROTOCOL.md#transaction-identifiers): an older run that wakes has
its commit refused, and a batch that is written again replaces the files that it had added.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from kinesis_trident.bolt.errors import SinkError
from kinesis_trident.bolt.mark import MARK, Batch, WriterMark
from kinesis_trident.bolt.outcomes import Outcomes
from kinesis_trident.bolt.sinks.commit import Files, add, changed_files
from kinesis_trident.bolt.sinks.fitting import Fitting
from kinesis_trident.bolt.sinks.kinds import EMPTY, refuse_no_columns, refuse_partitions
from kinesis_trident.bolt.sinks.relied import Relied, ReliedColumn
from kinesis_trident.bolt.sinks.table_files import (
    FileWriter,
    Partition,
    columns_of_new,
    fit_into,
    partition_values,
    write_files,
)
from kinesis_trident.bolt.steps.poison import ColumnCheck
from kinesis_trident.checkpoint.model.layout import Layout, name_of_home

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.fs import DeltaStorageHandler


_TEXT = 32
"""Characters of the longest text in a file's statistics."""


def partition_text(value: Any) -> str | None:
    """Return a partition value as Delta's protocol serializes it: text, a whole number, a boolean or a day as text."""
    if value is None or value == "":
        # For Delta the empty text is null.
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def compute_stats(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """Return the statistics by which readers skip a file: of whole numbers, dates, timestamps and short texts.

    Of floats there are none: Parquet leaves out NaN, which Spark takes for the largest.
    """
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    for index, field in enumerate(_leaves(metadata.schema.to_arrow_schema())):
        # By its path a field of a struct is not told from a column with a dot in its name.
        if field is None or field.name not in schema.names:
            continue
        name = field.name
        stats = [group.column(index).statistics for group in groups]
        if not stats or any(one is None or not one.has_null_count for one in stats):
            continue
        nulls[name] = sum(one.null_count for one in stats)
        # A group of nulls alone has none.
        known = [one for one in stats if one.num_values > 0]
        if not known or not all(one.has_min_max for one in known):
            continue
        low, high = min(one.min for one in known), max(one.max for one in known)
        if _is_comparable(low) and _is_comparable(high):
            # The last millisecond of 9999 cannot be rounded up.
            with suppress(OverflowError):
                least[name], most[name] = _stat(low, math.floor), _stat(high, math.ceil)
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _leaves(fields: Iterable[pa.Field]) -> Iterator[pa.Field | None]:
    """Yield of each of a file's columns the table's, or None if it is a part of one."""
    for field in fields:
        if pa.types.is_nested(field.type):
            parts = map(field.type.field, range(field.type.num_fields))
            yield from (None for _ in _leaves(parts))
        else:
            yield field


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


_COMPUTED = ("delta.generationExpression", "delta.identity.start", "delta.invariants")
"""Metadata of columns whose values Delta computes or checks when it writes: files that are added by name pass it by."""


def write_delta(
    df: DataFrame,
    outcomes: Outcomes,
    table: str,
    *,
    partition_by: Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
    files_at: str | None = None,
) -> None:
    """Write the rows of a batch into a Delta table; what an earlier attempt at this batch has written is replaced.

        def write(df, txid, outcomes):
            write_delta(df, outcomes, "s3://my-bucket/orders")

    The executors write Parquet files below the table's folder, and the driver adds them to the table in one commit. The
    table is created if it does not exist. Columns that the rows lack become null.

    Args:
        df: the rows; their names and types are those of the table.
        outcomes: the third argument of `write`.
        table: the table's folder: an absolute path that all executors reach, or an address such as s3://bucket/orders.
        partition_by: the columns by which a new table is partitioned: text, whole numbers, booleans or dates.
        storage_options: of the deltalake package, which commits.
        files_at: the same folder, as an address of pyarrow's file systems for the executors; by default `table`.

    Raises:
        FencedError: a newer run has written to this table; nothing of this batch was added.
        StaleBatchError: this application has written a later batch to it; nothing was added.
        SinkError: the folder is a relative path; the table is not one that files can be added to, or has other columns
            than the rows.
    """
    deltalake = _import_deltalake()
    folder = files_at or table
    if "://" not in folder and not Path(folder).is_absolute():
        msg = (
            f"the folder of a Delta table is {folder!r}. Expected: an absolute path, because executors run "
            "elsewhere, or an address such as s3://bucket/orders"
        )
        raise SinkError(msg)
    options = dict(storage_options or {})
    with _errors_name(table):
        found = _open_or_create(deltalake, df, table, list(partition_by), options)
        _refuse_unsuitable(found, table)
        schema = pa.schema(found.schema())
        target, batch = _DeltaTarget(deltalake, table, options), outcomes.batch
        fitting = fit_into(df.schema, _schema_of(found), target.where)
        relied = target.relied(found)
        fitting = replace(fitting, checks=[*fitting.checks, *_checks_of_partitions(found, fitting)])
        # Before the executors write for nothing.
        batch.meet(target.mark(found, batch), target.where)
        writer = FileWriter(
            table=folder,
            folder=batch.folder,
            schema=schema,
            fitting=fitting,
            partition_by=[Partition((schema.names.index(column),)) for column in relied.partitions],
            leaves_out=True,
            options={},
        )
        files, refused = write_files(df, writer, target.where)
        add(target, batch, relied, files)
        outcomes.refuse(refused)


def _import_deltalake() -> Any:
    try:
        import deltalake

        # Older releases have none.
        _ = deltalake.transaction.RemoveAction
    except (ImportError, AttributeError) as error:
        msg = (
            "write_delta needs deltalake 1.6.5 or newer. Install it on the driver: "
            "pip install 'kinesis-trident[delta]'"
        )
        raise SinkError(msg) from error
    return deltalake


@contextmanager
def _errors_name(table: str) -> Iterator[None]:
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as error:
        msg = f"the Delta table {table} cannot be written to: {error}"
        raise SinkError(msg) from error


def _open_or_create(
    deltalake: Any, df: DataFrame, table: str, partition_by: list[str], options: dict[str, str]
) -> DeltaTable:
    from deltalake.exceptions import TableNotFoundError

    found: DeltaTable
    try:
        found = deltalake.DeltaTable(table, storage_options=options)
    except TableNotFoundError:
        columns = columns_of_new(df.schema, partition_by, f"the Delta table {table}")
        refuse_no_columns({*columns.names} - {*partition_by}, f"the Delta table {table}")
        # Another application may create it at the same time.
        with suppress(deltalake.exceptions.CommitFailedError):
            deltalake.DeltaTable.create(
                table,
                # A schema of Spark is written as one of Delta is.
                schema=deltalake.Schema.from_json(columns.json()),
                mode="ignore",
                partition_by=partition_by,
                storage_options=options,
            )
        found = deltalake.DeltaTable(table, storage_options=options)
    existing = found.metadata().partition_columns
    if partition_by and existing != partition_by:
        msg = (
            f"the Delta table {table} is partitioned by {existing or 'nothing'}, not by {partition_by}. Leave out "
            "partition_by"
        )
        raise SinkError(msg)
    columns = _schema_of(found)
    refuse_partitions(columns, existing, f"the Delta table {table}")
    refuse_no_columns({*columns.names} - {*existing}, f"the Delta table {table}")
    return found


def _schema_of(found: DeltaTable) -> StructType:
    return StructType.fromJson(json.loads(found.schema().to_json()))


def _checks_of_partitions(found: DeltaTable, fitting: Fitting) -> list[ColumnCheck]:
    """Return the checks of texts that must not be null: as the value of a partition an empty one is null."""
    types = {field.name: field.dataType for field in _schema_of(found).fields}
    return [
        ColumnCheck(name, name, EMPTY)
        for name in found.metadata().partition_columns
        if name in fitting.required and isinstance(types[name], StringType)
    ]


def _refuse_unsuitable(found: DeltaTable, table: str) -> None:
    """Refuse a table whose rows Delta has to compute or check one by one, or that does not let files be replaced."""
    set_up = found.metadata().configuration
    computed = [
        f"column {field.name!r} has {key}"
        for field in _schema_of(found).fields
        for key in field.metadata or {}
        if key in _COMPUTED
    ]
    reasons = [f"{key} is set" for key in set_up if key.startswith("delta.constraints.")] + computed
    if set_up.get("delta.columnMapping.mode", "none") != "none":
        reasons.append(f"delta.columnMapping.mode is {set_up['delta.columnMapping.mode']}")
    if set_up.get("delta.appendOnly") == "true":
        reasons.append(
            "delta.appendOnly is true, and a batch that is written again has to replace what it wrote"
        )
    if reasons:
        msg = (
            f"write_delta cannot add files to the Delta table {table}: {'; '.join(reasons)}. Write to a table without, "
            "and copy from there"
        )
        raise SinkError(msg)


@dataclass(frozen=True)
class _DeltaTarget:
    """A table, as one call of `write_delta` knows it."""

    deltalake: Any
    place: str
    options: dict[str, str]

    @property
    def where(self) -> str:
        return f"the Delta table {self.place.rstrip('/')}"

    @property
    def lost(self) -> tuple[type[Exception], ...]:
        return (self.deltalake.exceptions.CommitFailedError,)

    def load(self) -> DeltaTable | None:
        try:
            found: DeltaTable = self.deltalake.DeltaTable(self.place, storage_options=self.options)
        except self.deltalake.exceptions.TableNotFoundError:
            return None
        return found

    def relied(self, table: DeltaTable) -> Relied:
        metadata, protocol = table.metadata(), table.protocol()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        versions = [str(protocol.min_reader_version), str(protocol.min_writer_version), *sorted(features)]
        return Relied(
            str(metadata.id),
            {field.name: ReliedColumn(_kind(field), field.nullable) for field in _schema_of(table).fields},
            tuple(metadata.partition_columns),
            {"its protocol": " ".join(versions)} | metadata.configuration,
        )

    @cached_property
    def _files(self) -> DeltaStorageHandler:
        from deltalake.fs import DeltaStorageHandler

        return DeltaStorageHandler(self.place, self.options)

    def is_there(self, _table: DeltaTable, path: str) -> bool:
        [found] = self._files.get_file_info([path])
        return bool(found.type == pa.fs.FileType.File)

    def mark(self, table: DeltaTable, batch: Batch) -> WriterMark | None:
        """Return the mark, which stands in the versions of transactions: no clean-up of the log takes these."""

        def version(kind: str) -> int | None:
            return table.transaction_version(_key(batch, kind))

        epoch, txid = version("epoch"), version("txid")
        if epoch is None or txid is None:
            return None
        mark = WriterMark(
            batch.application, epoch, txid, self._home(table, batch, _unpack(version("home"), epoch))
        )
        if txid != batch.txid:
            return mark
        is_own = epoch == batch.epoch and _unpack(version("token"), epoch) == _digest(batch.token)
        return replace(mark, token=batch.token if is_own else "", files=_unpack(version("files"), epoch))

    def _home(self, table: DeltaTable, batch: Batch, digest: int | None) -> str:
        known = {_digest(name_of_home(home)): home for home in (_SEVERAL, *batch.merged, batch.home)} | {
            None: ""
        }
        if digest in known:
            return known[digest]
        return next((said["home"] for _, said in _said(table, batch) if "home" in said), "of another name@")

    def earlier(self, table: DeltaTable, batch: Batch, mark: WriterMark) -> Mapping[str, str]:
        paths = pa.table(table.get_add_actions()).column("path").to_pylist()
        files = {path: path for path in paths if path.startswith(f"{batch.folder}/")}
        deleted = {str(path).rpartition("/")[2] for path in _with_deletions(table)}
        said = next((one for one in _said(table, batch) if one[1]["txid"] == batch.txid), None)
        # The release before has it in the log alone.
        added = mark.files if mark.files is not None or said is None else said[1]["files"]
        if added != len(files) or any(path.rpartition("/")[2] in deleted for path in files):
            remedy = None if said is None else f"Restore the table to version {said[0]}"
            raise changed_files(batch, self.where, "OPTIMIZE, DELETE, ...", remedy)
        return files

    def put(self, table: DeltaTable, batch: Batch, files: Files, earlier: Mapping[str, str]) -> None:
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

        columns = table.metadata().partition_columns
        now = int(time.time() * 1000)
        schema = pa.schema(table.schema())
        adding = [
            AddAction(
                path=file["path"],
                size=file["size"],
                partition_values=dict(zip(columns, map(partition_text, partition_values(file)), strict=True)),
                modification_time=now,
                data_change=True,
                stats=json.dumps(compute_stats(pq.read_metadata(pa.BufferReader(file["footer"])), schema)),
            )
            for file in files
        ]
        mark = asdict(batch.mark(len(files)))
        packed = {"home": name_of_home(batch.home), "token": batch.token}
        numbers = {"files": len(files)} | {kind: _digest(text) for kind, text in packed.items()}
        # The epoch and the txid tell a commit of the same application in between, which is a conflict.
        versions = mark | {kind: _pack(number, batch) for kind, number in numbers.items()}
        kinds = ["epoch", "txid", "token", "files", *(["home"] if batch.home else [])]
        table.create_write_transaction(
            [*(RemoveAction(path, True, now) for path in sorted(earlier)), *adding],
            "append",
            table.schema(),
            partition_by=columns,
            commit_properties=CommitProperties(
                custom_metadata={MARK: json.dumps(mark)},
                app_transactions=[Transaction(_key(batch, kind), versions[kind]) for kind in kinds],
            ),
        )


def _kind(field: StructField) -> str:
    """Return a column's type, and what else of it a writer has to heed."""
    more = [f"{key}={value}" for key, value in field.metadata.items() if key.startswith("delta.")]
    return " ".join([field.dataType.simpleString(), *more])


_SEVERAL = Layout("", "-").element
_EPOCH_BITS = 16
_DIGEST_BITS = 44


def _key(batch: Batch, kind: str) -> str:
    return f"{MARK}/{batch.application}/{kind}"


def _pack(value: int, batch: Batch) -> int:
    """Return a version that holds a value beside the end of the epoch: the release before raises that alone."""
    return value << _EPOCH_BITS | batch.epoch % (1 << _EPOCH_BITS)


def _unpack(version: int | None, epoch: int) -> int | None:
    """Return the value, if the last run to write has written it."""
    if version is None or version % (1 << _EPOCH_BITS) != epoch % (1 << _EPOCH_BITS):
        return None
    return version >> _EPOCH_BITS


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()) >> (256 - _DIGEST_BITS)


def _said(table: DeltaTable, batch: Batch) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield what this application's commits say that the log still has, by version, the newest first."""
    for commit in table.history():
        said = json.loads(commit.get(MARK, "{}"))
        if said.get("application") == batch.application:
            yield commit["version"], said


def _with_deletions(found: DeltaTable) -> list[str]:
    """Return the files of which some rows are deleted, by deletion vectors."""
    features = found.protocol().writer_features or ()
    if "deletionVectors" not in features:
        return []
    paths: list[str] = pa.table(found.deletion_vectors()).column("filepath").to_pylist()
    return paths
