"""Writes a batch into a Delta table exactly once: the executors write files, and one commit of the driver adds them.

The commit bears the run's epoch and the batch's txid as application transactions, which Delta compares in the commit
itself (https://github.com/delta-io/delta/blob/master/PROTOCOL.md#transaction-identifiers): an older run that wakes has
its commit refused, and a batch that is written again replaces the files that it had added.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from kinesis_trident.bolt.errors import SinkError
from kinesis_trident.bolt.outcomes import Outcomes
from kinesis_trident.bolt.sinks.older_runs import refuse_older
from kinesis_trident.bolt.sinks.table_files import (
    MARK,
    WRITTEN,
    FileWriter,
    Partition,
    altered_meanwhile,
    batch_folder,
    bounds_of,
    make_nullable,
    refuse_other_columns,
    refuse_partitions,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable


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
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        if name not in schema.names or pa.types.is_nested(schema.field(name).type):
            continue
        stats = [group.column(index).statistics for group in groups]
        if not stats or any(one is None or not one.has_null_count for one in stats):
            continue
        nulls[name] = sum(one.null_count for one in stats)
        # A group of nulls alone has none.
        bounds = [bounds_of(one) for one in stats if one.num_values > 0]
        known = [one for one in bounds if one is not None]
        if len(known) < len(bounds) or not known:
            continue
        low, high = min(low for low, _ in known), max(high for _, high in known)
        if _is_comparable(low) and _is_comparable(high):
            # The last millisecond of 9999 cannot be rounded up.
            with suppress(OverflowError):
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


_TRIES = 20
"""Attempts to commit, each of which lost to another writer of the table."""

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
            write_delta(df.select("order_id", "amount"), outcomes, "s3://my-bucket/orders")

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
        refuse_other_columns(df.schema, _schema_of(found), f"the Delta table {table}")
        columns = found.metadata().partition_columns
        commit = _DeltaCommit(deltalake, table, options, outcomes, columns)
        # Before the executors write for nothing.
        commit.refuse_older(found)
        partitions = [Partition(column) for column in columns]
        writer = FileWriter(folder, commit.folder, pa.schema(found.schema()), partitions, leaves_out=True)
        with outcomes.writing(f"the Delta table {table.rstrip('/')}"):
            files = df.mapInArrow(writer, WRITTEN).collect()
            commit.add([row.asDict() for row in files])


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
        refuse_partitions(df.schema, partition_by, f"the Delta table {table}")
        found = deltalake.DeltaTable.create(
            table,
            # A schema of Spark is written as one of Delta is.
            schema=deltalake.Schema.from_json(make_nullable(df.schema).json()),
            mode="ignore",
            partition_by=partition_by,
            storage_options=options,
        )
    columns = found.metadata().partition_columns
    if partition_by and columns != partition_by:
        msg = (
            f"the Delta table {table} is partitioned by {columns or 'nothing'}, not by {partition_by}. Leave out "
            "partition_by"
        )
        raise SinkError(msg)
    refuse_partitions(_schema_of(found), columns, f"the Delta table {table}")
    return found


def _schema_of(found: DeltaTable) -> StructType:
    return StructType.fromJson(json.loads(found.schema().to_json()))


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
class _DeltaCommit:
    """The commit of one attempt at a batch, whose files are written for a partitioning."""

    deltalake: Any
    table: str
    options: dict[str, str]
    outcomes: Outcomes
    columns: list[str]

    @property
    def folder(self) -> str:
        return batch_folder(self.outcomes)

    def add(self, files: Sequence[Mapping[str, Any]]) -> None:
        """Add files to the table, in place of those of earlier attempts."""
        for attempt in Retrying(
            stop=stop_after_attempt(_TRIES),
            wait=wait_random_exponential(multiplier=0.05, max=5),
            retry=retry_if_exception_type(self.deltalake.exceptions.CommitFailedError),
            reraise=True,
        ):
            with attempt:
                found = self.deltalake.DeltaTable(self.table, storage_options=self.options)
                if found.metadata().partition_columns != self.columns:
                    raise altered_meanwhile(self.outcomes, f"the Delta table {self.table}")
                written = self.refuse_older(found)
                earlier = self._earlier(found) if written == self.outcomes.txid else set()
                if earlier and earlier == {file["path"] for file in files}:
                    # The answer to the attempt before was lost.
                    return
                self._commit(found, files, earlier)

    def refuse_older(self, found: DeltaTable) -> int:
        """Return the last txid of this application in the table, unless a newer run or a later batch has written.

        Raises:
            FencedError, StaleBatchError: one has.
        """
        epoch = found.transaction_version(self._key("epoch")) or 0
        txid = found.transaction_version(self._key("txid")) or 0
        refuse_older(self.outcomes, f"the Delta table {self.table}", "its last commit", epoch, txid)
        return txid

    def _key(self, kind: str) -> str:
        return f"{MARK}/{self.outcomes.application}/{kind}"

    def _earlier(self, found: DeltaTable) -> set[str]:
        """Return the files that earlier attempts at this batch have added.

        Raises:
            SinkError: they are there no more, because another operation has put their rows into other files.
        """
        paths = pa.table(found.get_add_actions()).column("path").to_pylist()
        files = {path for path in paths if path.startswith(f"{self.folder}/")}
        changed = {str(path).rpartition("/")[2] for path in _with_deletions(found)}
        for commit in found.history():
            said = json.loads(commit.get(MARK, "{}"))
            if (
                said.get("application") == self.outcomes.application
                and said.get("txid") == self.outcomes.txid
            ):
                if len(files) == said["files"] and not any(
                    path.rpartition("/")[2] in changed for path in files
                ):
                    break
                msg = (
                    f"batch {self.outcomes.txid} of application {self.outcomes.application!r} is to be written again, "
                    f"but another operation (OPTIMIZE, DELETE, ...) has changed its files in the Delta table "
                    f"{self.table} since. Restore the table to version {commit['version']}, with which they were "
                    "added, and start the query again; what others have written since is then to be done again"
                )
                raise SinkError(msg)
        return files

    def _commit(self, found: DeltaTable, files: Sequence[Mapping[str, Any]], earlier: set[str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

        now = int(time.time() * 1000)
        schema, columns = pa.schema(found.schema()), self.columns
        adding = [
            AddAction(
                path=file["path"],
                size=file["size"],
                partition_values=dict(
                    zip(columns, map(partition_text, json.loads(file["partition"])), strict=True)
                ),
                modification_time=now,
                data_change=True,
                stats=json.dumps(compute_stats(pq.read_metadata(pa.BufferReader(file["footer"])), schema)),
            )
            for file in files
        ]
        outcomes = self.outcomes
        said = {
            "application": outcomes.application,
            "txid": outcomes.txid,
            "epoch": outcomes.epoch,
            "files": len(files),
        }
        found.create_write_transaction(
            [*(RemoveAction(path, True, now) for path in sorted(earlier)), *adding],
            "append",
            found.schema(),
            partition_by=columns,
            commit_properties=CommitProperties(
                custom_metadata={MARK: json.dumps(said)},
                # A commit of the same application in between is a conflict.
                app_transactions=[
                    Transaction(self._key("epoch"), outcomes.epoch),
                    Transaction(self._key("txid"), outcomes.txid),
                ],
            ),
        )


def _with_deletions(found: DeltaTable) -> list[str]:
    """Return the files of which some rows are deleted, by deletion vectors."""
    features = found.protocol().writer_features or ()
    if "deletionVectors" not in features:
        return []
    paths: list[str] = pa.table(found.deletion_vectors()).column("filepath").to_pylist()
    return paths
