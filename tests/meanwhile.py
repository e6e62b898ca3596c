"""Deeds of another writer while a batch is written to a table: a test plays them, and docs/sinks.md lists them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from pyiceberg.table.update import SetLocationUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, StringType

__all__ = ["ADDED", "AGAIN", "DEEDS", "REFUSED", "STEPS", "Deed", "catalog_at", "delta_at", "rows_of"]

ADDED = "is added"
AGAIN = "is tried again, and added"
REFUSED = "is refused, and the query stops"

LOOKED, WRITTEN, COMMIT = "after the look at the table", "after the tasks", "right before the commit"
STEPS = (LOOKED, WRITTEN, COMMIT)

TABLE = "shop.orders"


def delta_at(folder: Path) -> Path:
    """Return the folder of the Delta table."""
    return folder / "orders"


def catalog_at(folder: Path) -> Catalog:
    """Return the catalog of the Iceberg table, as another process opens it."""
    made = load_catalog(type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/lake")
    made.create_namespace_if_not_exists("shop")
    return made


def rows_of(*names: str) -> pa.Table:
    """Return orders."""
    versions = pa.array([1] * len(names), pa.int32())
    return pa.table([pa.array(names, pa.string()), versions], ["order_id", "version"])


@dataclass(frozen=True)
class Deed:
    """Something that another writer does, and what becomes of the batch; None: it cannot do that.

    `spares`: the steps at which the batch is added all the same. `never_at`: those at which nothing protects the table.
    """

    what: str
    delta: Callable[[Path], object] | None
    iceberg: Callable[[Path], object] | None
    ends: Mapping[str, str] = field(default_factory=dict)
    spares: tuple[str, ...] = ()
    never_at: tuple[str, ...] = ()

    def row(self) -> tuple[str, str, str]:
        """Return its row in docs/sinks.md."""
        return self.what, *(self.ends.get(kind, "-") for kind in ("delta", "iceberg"))


# Delta.


def _others(folder: Path) -> pa.Table:
    """Return a row of another writer, as the table's columns are now."""
    schema = pa.schema(DeltaTable(delta_at(folder)).schema())
    return pa.Table.from_pylist([{"order_id": "other"}], schema)


def _delta_append(folder: Path) -> None:
    write_deltalake(delta_at(folder), _others(folder), mode="append")


def _delta_overwrite(folder: Path) -> None:
    write_deltalake(delta_at(folder), _others(folder), mode="overwrite")


def _delta_columns(rows: pa.Table, *by: str) -> Callable[[Path], None]:
    def overwrite(folder: Path) -> None:
        write_deltalake(
            delta_at(folder), rows, mode="overwrite", schema_mode="overwrite", partition_by=list(by) or None
        )

    return overwrite


def _delta_property(name: str, value: str) -> Callable[[Path], None]:
    return lambda folder: DeltaTable(delta_at(folder)).alter.set_table_properties({name: value})


def _delta_optimize(folder: Path) -> None:
    DeltaTable(delta_at(folder)).optimize.compact()


def _delta_clean_up(folder: Path) -> None:
    found = DeltaTable(delta_at(folder))
    found.create_checkpoint()
    found.cleanup_metadata()


def _delta_vacuum(folder: Path) -> None:
    found = DeltaTable(delta_at(folder))
    found.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)


def _delta_restore(folder: Path) -> None:
    found = DeltaTable(delta_at(folder))
    found.restore(max(0, found.version() - 1))


def _delta_drop(folder: Path) -> None:
    shutil.rmtree(delta_at(folder))


def _delta_create(folder: Path) -> None:
    fields = [Field("version", PrimitiveType("integer")), Field("order_id", PrimitiveType("string"))]
    shutil.rmtree(delta_at(folder))
    DeltaTable.create(delta_at(folder), Schema(fields))


# Iceberg.


def _table(folder: Path) -> Table:
    return catalog_at(folder).load_table(TABLE)


def _iceberg_rows(folder: Path) -> pa.Table:
    names = [one.name for one in _table(folder).schema().fields]
    values = {"order_id": pa.array(["other"])}
    kinds = _table(folder).schema().as_arrow()
    return pa.table(
        [values.get(name, pa.nulls(1)).cast(kinds.field(name).type) for name in names], schema=kinds
    )


def _iceberg_compact(folder: Path) -> None:
    _table(folder).overwrite(_table(folder).scan().to_arrow())


def _iceberg_column(change: Callable[[Any], object]) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        with _table(folder).update_schema(allow_incompatible_changes=True) as schema:
            change(schema)

    return alter


def _iceberg_again(folder: Path) -> None:
    _iceberg_column(lambda schema: schema.delete_column("version"))(folder)
    _iceberg_column(lambda schema: schema.add_column("version", IntegerType()))(folder)


def _iceberg_partition(folder: Path) -> None:
    with _table(folder).update_spec() as spec:
        spec.add_field("order_id", IdentityTransform(), "by_order")


def _iceberg_location(folder: Path) -> None:
    table = _table(folder)
    catalog_at(folder).commit_table(table, (), (SetLocationUpdate(location=f"file://{folder}/elsewhere"),))


def _iceberg_expire(folder: Path) -> None:
    table = _table(folder)
    now = table.current_snapshot()
    past = [one.snapshot_id for one in table.snapshots() if now is None or one.snapshot_id != now.snapshot_id]
    if past:
        table.maintenance.expire_snapshots().by_ids(past).commit()


def _iceberg_orphans(folder: Path) -> None:
    table = _table(folder)
    named = {Path(task.file.file_path.removeprefix("file://")) for task in table.scan().plan_files()}
    for path in Path(table.location().removeprefix("file://")).rglob("*.parquet"):
        if path not in named:
            path.unlink()


def _iceberg_roll_back(folder: Path) -> None:
    table = _table(folder)
    now = table.current_snapshot()
    if now is not None and now.parent_snapshot_id is not None:
        table.manage_snapshots().rollback_to_snapshot(now.parent_snapshot_id).commit()


def _iceberg_drop(folder: Path) -> None:
    catalog_at(folder).drop_table(TABLE)


def _iceberg_create(folder: Path) -> None:
    catalog_at(folder).drop_table(TABLE)
    kinds = pa.schema([("version", pa.int32()), ("order_id", pa.string())])
    catalog_at(folder).create_table(TABLE, kinds, location=f"file://{folder}/anew")


def both(result: str) -> Mapping[str, str]:
    return {"delta": result, "iceberg": result}


LONG = pa.table([pa.array(["other"]), pa.array([1], pa.int64())], ["order_id", "version"])

DEEDS = (
    Deed("appends rows", _delta_append, lambda at: _table(at).append(_iceberg_rows(at)), both(ADDED)),
    Deed(
        "overwrites the rows",
        _delta_overwrite,
        lambda at: _table(at).overwrite(_iceberg_rows(at)),
        both(ADDED),
    ),
    Deed(
        "deletes rows",
        lambda at: DeltaTable(delta_at(at)).delete("order_id = 'first'"),
        lambda at: _table(at).delete("order_id == 'first'"),
        both(ADDED),
    ),
    Deed("compacts files (`OPTIMIZE`)", _delta_optimize, _iceberg_compact, both(ADDED)),
    Deed("cleans up the log, or expires snapshots", _delta_clean_up, _iceberg_expire, both(ADDED)),
    Deed("goes back to the version before", _delta_restore, _iceberg_roll_back, both(ADDED)),
    Deed(
        "removes files that no commit names, however young (`VACUUM`)",
        _delta_vacuum,
        _iceberg_orphans,
        both(AGAIN),
        spares=(LOOKED,),
        never_at=(COMMIT,),
    ),
    Deed(
        "adds a column that may be null",
        lambda at: DeltaTable(delta_at(at)).alter.add_columns([Field("more", PrimitiveType("string"))]),
        _iceberg_column(lambda schema: schema.add_column("more", StringType())),
        both(ADDED),
    ),
    Deed(
        "drops a column that the rows have",
        _delta_columns(rows_of("other").select(["order_id"])),
        _iceberg_column(lambda schema: schema.delete_column("version")),
        both(REFUSED),
    ),
    Deed("drops a column, and adds it again", None, _iceberg_again, {"iceberg": AGAIN}),
    Deed(
        "renames a column that the rows have",
        None,
        _iceberg_column(lambda schema: schema.rename_column("version", "revision")),
        {"iceberg": REFUSED},
    ),
    Deed(
        "gives a column that the rows have another type",
        _delta_columns(LONG),
        _iceberg_column(lambda schema: schema.update_column("version", LongType())),
        both(REFUSED),
    ),
    Deed(
        "overwrites the table with the same columns, partitioned anew",
        _delta_columns(rows_of("other"), "order_id"),
        None,
        {"delta": AGAIN},
    ),
    Deed("partitions the table anew", None, _iceberg_partition, {"iceberg": AGAIN}),
    Deed(
        "adds a constraint",
        lambda at: DeltaTable(delta_at(at)).alter.add_constraint({"positive": "version > 0"}),
        None,
        {"delta": REFUSED},
    ),
    Deed("sets `delta.appendOnly`", _delta_property("delta.appendOnly", "true"), None, {"delta": REFUSED}),
    Deed(
        "sets another property",
        _delta_property("delta.checkpointInterval", "50"),
        lambda at: _table(at).transaction().set_properties({"owner": "me"}).commit_transaction(),
        {"delta": AGAIN, "iceberg": ADDED},
    ),
    Deed("gives the table another location", None, _iceberg_location, {"iceberg": AGAIN}, spares=(COMMIT,)),
    Deed("drops the table", _delta_drop, _iceberg_drop, both(AGAIN)),
    Deed(
        "drops the table, and creates it again",
        _delta_create,
        _iceberg_create,
        both(AGAIN),
    ),
)
