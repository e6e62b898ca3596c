"""Writes a batch into an Iceberg table exactly once: the executors write files, and one commit of the driver adds them.

The commit sets the epoch and the txid of the application as a property of the table, and requires that the table has
the snapshot that was looked at: https://iceberg.apache.org/spec/#optimistic-concurrency. So an older run that wakes has
its commit refused, and a batch that is written again replaces the files that it had added.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DoubleType, FloatType, StructField, StructType

from kinesis_trident.bolt.errors import SinkError
from kinesis_trident.bolt.mark import MARK, Batch, WriterMark
from kinesis_trident.bolt.outcomes import Outcomes
from kinesis_trident.bolt.sinks.commit import Files, add, changed_files
from kinesis_trident.bolt.sinks.kinds import NAN
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
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.common.private_names import MissingNameError, parquet_options

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

_UNITS = {"identity": "", "void": None, "year": "Y", "month": "M", "day": "D", "hour": "h"}
"""By the transform of a partition: see `Partition.unit`. Those of pyiceberg for columns of Arrow need a package more,
which executors do not have."""


def write_iceberg(
    df: DataFrame,
    outcomes: Outcomes,
    table: str,
    *,
    catalog: str | Mapping[str, str] | Catalog = "default",
    partition_by: Sequence[str] = (),
    files_at: str | None = None,
) -> None:
    """Write the rows of a batch into an Iceberg table; what an earlier attempt at this batch has written is replaced.

        def write(df, txid, outcomes):
            write_iceberg(df, outcomes, "shop.orders", catalog={"type": "glue"})

    The executors write Parquet files below the table's location, and the driver adds them to the table in one commit.
    The table is created if it does not exist; its namespace must. Columns that the rows lack become null.

    Args:
        df: the rows; their names and types are those of the table.
        outcomes: the third argument of `write`.
        table: the identifier in the catalog, such as `namespace.name`.
        catalog: of pyiceberg: the name of one that its configuration describes, its properties, or the catalog itself.
        partition_by: the columns by which a new table is partitioned: text, whole numbers, booleans or dates. One that
            exists may also be partitioned by the year, month, day or hour of a time.
        files_at: the table's location, as an address of pyarrow's file systems for the executors; by default as the
            catalog says it.

    Raises:
        FencedError: a newer run has written to this table; nothing of this batch was added.
        StaleBatchError: this application has written a later batch to it; nothing was added.
        SinkError: the table is not one that files can be added to, or has other columns than the rows.
    """
    where = f"the Iceberg table {table}"
    with _errors_name(where):
        opened = _open(catalog)
        found = _load_or_create(opened, df, table, list(partition_by), where)
        target, batch = _IcebergTarget(opened, table, found.location()), outcomes.batch
        relied = target.relied(found)
        schema = _arrow_schema(found)
        partitions = _partitions(found, where)
        columns = _spark_schema(schema)
        fitting = fit_into(_as_stored(df.schema), columns, where)
        fitting = replace(fitting, checks=[*fitting.checks, *_checks_of_partitions(partitions, columns, df)])
        # Before the executors write for nothing.
        batch.meet(target.mark(found, batch), where)
        # A location is no URI: its characters stand for themselves.
        place = files_at or (
            quote(found.location(), safe=":/") if "://" in found.location() else found.location()
        )
        writer = FileWriter(
            table=place,
            folder=f"data/{batch.folder}",
            schema=schema,
            fitting=fitting,
            partition_by=partitions,
            leaves_out=False,
            options=_options(found),
        )
        files, refused = write_files(df, writer, where)
        add(target, batch, relied, files)
        outcomes.refuse(refused)


def _open(catalog: str | Mapping[str, str] | Catalog) -> Catalog:
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        msg = (
            "write_iceberg needs pyiceberg. Install it on the driver: pip install 'kinesis-trident[iceberg]'"
        )
        raise SinkError(msg) from error
    if isinstance(catalog, str):
        return load_catalog(catalog)
    if isinstance(catalog, Mapping):
        return load_catalog(**catalog)
    return catalog


@contextmanager
def _errors_name(where: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Its errors have no common class.
        if type(error).__module__ != "pyiceberg.exceptions" and not isinstance(error, OSError):
            raise
        msg = f"{where} cannot be written to: {type(error).__name__}: {error}"
        raise SinkError(msg) from error


def _load_or_create(catalog: Catalog, df: DataFrame, name: str, partition_by: list[str], where: str) -> Table:
    from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
    from pyiceberg.transforms import IdentityTransform

    try:
        found = catalog.load_table(name)
    except NoSuchTableError:
        schema = arrow_schema(columns_of_new(df.schema, partition_by, where))
        # Another application may create it at the same time.
        with (
            suppress(TableAlreadyExistsError, CommitFailedException),
            catalog.create_table_transaction(name, schema) as creating,
            creating.update_spec() as spec,
        ):
            for column in partition_by:
                spec.add_field(column, IdentityTransform(), column)
        found = catalog.load_table(name)
    columns = [field.name for field in found.spec().fields]
    if partition_by and columns != partition_by:
        msg = (
            f"{where} is partitioned by {columns or 'nothing'}, not by {partition_by}. Leave out partition_by"
        )
        raise SinkError(msg)
    return found


def _partitions(found: Table, where: str) -> list[Partition]:
    from pyiceberg.schema import build_position_accessors

    accessors = build_position_accessors(found.schema())
    partitions = []
    for field in found.spec().fields:
        if str(field.transform) not in _UNITS:
            msg = (
                f"write_iceberg cannot write to {where}, which is partitioned by {field.transform} of a column. "
                f"Partition it by columns, or by the year, month, day or hour of a time"
            )
            raise SinkError(msg)
        # The column of one that was taken back may be gone.
        accessor, place = accessors.get(field.source_id), []
        while accessor is not None:
            place.append(accessor.position)
            accessor = accessor.inner
        partitions.append(Partition(tuple(place), _UNITS[str(field.transform)]))
    return partitions


def _checks_of_partitions(
    partitions: Sequence[Partition], columns: StructType, df: DataFrame
) -> Iterator[ColumnCheck]:
    """Yield the checks of numbers by which rows are partitioned: pyiceberg removes no file of a partition of NaN."""
    for one in partitions:
        if one.unit == "" and columns[one.place[0]].name in df.columns:
            found: Any = StructField("", columns)
            names = []
            for number in one.place:
                found = found.dataType[number]
                names.append(found.name)
            if isinstance(found.dataType, FloatType | DoubleType):
                yield ColumnCheck(names[0], ".".join(names), NAN, one.place[1:])


def _arrow_schema(found: Table) -> Any:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    # With the ids by which readers find the columns in a file.
    return schema_to_pyarrow(found.schema(), include_field_ids=True)


def _spark_schema(schema: Any) -> StructType:
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def _as_stored(rows: StructType) -> StructType:
    """Return the columns of rows as Iceberg has them: its least whole number is an int."""

    def stored(found: dict[str, Any]) -> dict[str, Any]:
        kinds = ("type", "elementType", "keyType", "valueType")
        return found | {kind: "integer" for kind in kinds if found.get(kind) in ("byte", "short")}

    return StructType.fromJson(json.loads(rows.json(), object_hook=stored))


def _options(found: Table) -> dict[str, Any]:
    """Return the options of pyarrow's writer that the table's properties `write.parquet.*` say."""
    from pyiceberg.table import TableProperties
    from pyiceberg.utils.properties import property_as_int

    rows = property_as_int(found.properties, TableProperties.PARQUET_ROW_GROUP_LIMIT)
    with suppress(MissingNameError):
        return {**parquet_options(found.properties), "row_group_size": rows}
    return {"row_group_size": rows}


class LostCommitError(Exception):
    """Another writer's commit came before: pyiceberg would make its own again on top of that, unseen."""


@dataclass(frozen=True)
class _IcebergTarget:
    """A table, as one call of `write_iceberg` knows it; its files are written below a location."""

    catalog: Catalog
    name: str
    place: str

    @property
    def where(self) -> str:
        return f"the Iceberg table {self.name}"

    @property
    def lost(self) -> tuple[type[Exception], ...]:
        from pyiceberg.exceptions import CommitStateUnknownException, ValidationException

        return (LostCommitError, CommitStateUnknownException, ValidationException)

    def load(self) -> Table | None:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self.catalog.load_table(self.name)
        except NoSuchTableError:
            return None

    def relied(self, table: Table) -> Relied:
        columns = {
            field.name: ReliedColumn(f"{field.field_type} of field {field.field_id}", not field.required)
            for field in table.schema().fields
        }
        return Relied(
            str(table.metadata.table_uuid),
            columns,
            tuple(str(field) for field in table.spec().fields),
            {"its format": str(table.format_version)},
            table.location(),
        )

    def is_there(self, table: Table, path: str) -> bool:
        return table.io.new_input(f"{self.place}/{path}").exists()

    def mark(self, table: Table, batch: Batch) -> WriterMark | None:
        stored = table.properties.get(_key(batch))
        if stored is None:
            return None
        said = json.loads(stored)
        # The release before knows no home and no token.
        return WriterMark(
            batch.application,
            said["epoch"],
            said["txid"],
            said.get("home", ""),
            said.get("token", ""),
            said["files"],
        )

    def earlier(self, table: Table, batch: Batch, mark: WriterMark) -> Mapping[str, DataFile]:
        # The location may be another one by now.
        folder = f"/data/{batch.folder}/"
        tasks = [task for task in table.scan().plan_files() if folder in task.file.file_path]
        if len(tasks) != mark.files or any(task.delete_files for task in tasks):
            mine = _summary(batch)
            snapshots = [
                one.snapshot_id
                for one in table.snapshots()
                if one.summary is not None and mine.items() <= one.summary.additional_properties.items()
            ]
            remedy = f"Set the table back to snapshot {snapshots[-1]}" if snapshots else None
            raise changed_files(batch, self.where, "compaction, DELETE, ...", remedy)
        return {f"data/{task.file.file_path.rpartition('/data/')[2]}": task.file for task in tasks}

    def put(self, table: Table, batch: Batch, files: Files, earlier: Mapping[str, DataFile]) -> None:
        table.catalog = _OneTry(self.catalog)  # type: ignore[assignment]
        said = {
            name: value for name, value in asdict(batch.mark(len(files))).items() if name != "application"
        }
        with table.transaction() as transaction:
            transaction.set_properties({_key(batch): json.dumps(said)})
            summary = _summary(batch) | {f"{MARK}.epoch": str(batch.epoch)}
            updating = transaction.update_snapshot(snapshot_properties=summary)
            with updating.overwrite() if earlier else updating.merge_append() as snapshot:
                for file in files:
                    snapshot.append_data_file(_data_file(table, self.place, file))
                for one in earlier.values():
                    snapshot.delete_data_file(one)


def _key(batch: Batch) -> str:
    return f"{MARK}.{batch.application}"


def _summary(batch: Batch) -> dict[str, str]:
    return {f"{MARK}.application": batch.application, f"{MARK}.txid": str(batch.txid)}


@dataclass(frozen=True)
class _OneTry:
    """A catalog whose commits are tried once, and hold for the columns and partitions that were loaded."""

    catalog: Catalog

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId

        # A snapshot stays the same when the columns or the partitions change.
        metadata = table.metadata
        as_loaded = (
            AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
        )
        try:
            return self.catalog.commit_table(table, (*requirements, *as_loaded), updates)
        except CommitFailedException as error:
            raise LostCommitError(str(error)) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.catalog, name)


def _data_file(found: Table, place: str, file: Mapping[str, Any]) -> DataFile:
    from pyiceberg.io import pyarrow as iceberg_files
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    schema = found.schema()
    footer = pq.read_metadata(pa.BufferReader(file["footer"]))
    ids = iceberg_files.parquet_path_to_id_mapping(schema)
    plan = iceberg_files.compute_statistics_plan(schema, found.properties)
    statistics = iceberg_files.data_file_statistics_from_parquet_metadata(footer, plan, ids)
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{place}/{file['path']}",
        file_format=FileFormat.PARQUET,
        partition=Record(*_partition_record(found, partition_values(file))),
        file_size_in_bytes=file["size"],
        sort_order_id=None,
        spec_id=found.spec().spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _partition_record(found: Table, values: Sequence[Any]) -> list[Any]:
    """Return partition values as Iceberg stores them: a day is a number."""
    from pyiceberg.partitioning import partition_record_value

    return [
        value if value is None else partition_record_value(field, value, found.schema())
        for field, value in zip(found.spec().fields, values, strict=True)
    ]
