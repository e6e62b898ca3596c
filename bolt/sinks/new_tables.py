"""Makes the tables of `merge_into`: a target with the columns of the rows, and beside one that of a batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from pyspark.sql.types import DataType, DecimalType, StructType, TimestampType
from sqlalchemy.dialects import mysql

from kinesis_trident.bolt.errors import SinkError
from kinesis_trident.bolt.sinks.kinds import kind_of
from kinesis_trident.spout.reader.rows import MESSAGE_ID

_COLLATIONS = ("_default charset", "_collate")
"""The ends of the names of a reflected table's options that say how it compares texts."""

_NAME_BYTES = 38
"""What the name of a batch's table in PostgreSQL has of the target's."""

BEFORE = "kt_before_"

# The default collations of MySQL compare "a" equal to "A", and its indexes need a length.
_TEXT_OF_MYSQL = {"charset": "utf8mb4", "collation": "utf8mb4_bin"}
_OF_MYSQL: dict[tuple[str, bool], Any] = {
    ("Text", False): mysql.LONGTEXT(**_TEXT_OF_MYSQL),
    ("Text", True): mysql.VARCHAR(255, **_TEXT_OF_MYSQL),
    ("LargeBinary", False): mysql.LONGBLOB(),
    ("LargeBinary", True): mysql.VARBINARY(255),
    ("DateTime", False): mysql.DATETIME(fsp=6),
    ("DateTime", True): mysql.DATETIME(fsp=6),
}
"""The columns that MySQL has in place of SQLAlchemy's, also in a key."""


def new_table(
    name: str,
    folder: str | None,
    schema: StructType,
    key: Sequence[str],
    order_by: Sequence[str],
    where: str,
) -> sa.Table:
    """Return a target that is to be created.

    Raises:
        SinkError: a column of the rows has a type that no table of ours has.
    """
    columns = []
    for field in schema.fields:
        if field.name == MESSAGE_ID and field.name not in (*key, *order_by):
            continue
        type_ = _new_type(field.dataType, is_key=field.name in key)
        if type_ is None:
            msg = (
                f"{where} cannot be created: the column {field.name!r} is {field.dataType.simpleString()}. Turn it "
                "into columns of numbers, text, times or bytes, for example by to_json"
            )
            raise SinkError(msg)
        columns.append(
            sa.Column(
                field.name,
                type_,
                primary_key=field.name in key,
                nullable=field.name not in (*key, *order_by),
                autoincrement=False,
            )
        )
    return sa.Table(
        name, sa.MetaData(), *columns, schema=folder, mysql_engine="InnoDB", mariadb_engine="InnoDB"
    )


def _new_type(of: DataType, *, is_key: bool) -> Any:
    """Return the type of a new column; None if a database has no such."""
    kind = kind_of(of)
    if kind is None or not kind.new:
        return None
    if isinstance(of, DecimalType):
        return sa.Numeric(of.precision, of.scale)
    has_zone = {"timezone": True} if isinstance(of, TimestampType) else {}
    made = getattr(sa, kind.new)(**has_zone)
    theirs = _OF_MYSQL.get((kind.new, is_key))
    return made if theirs is None else made.with_variant(theirs, "mysql", "mariadb")


def batch_table(target: sa.Table, names: Sequence[str], application: str, dialect: str) -> sa.Table:
    """Return the table beside the target; its name tells applications and columns apart."""
    columns = [sa.Column(name, _as_text(target.c[name].type)) for name in names]
    # By the table's collation in MySQL, which its columns do not name, texts are equal that are not by another.
    collation = {name: value for name, value in target.kwargs.items() if name.endswith(_COLLATIONS)}
    whose = hashlib.sha256(f"{application}\0{target.name}".encode()).hexdigest()[:12]
    shape = hashlib.sha256("".join(f"{one.name} {one.type!r},".encode().hex() for one in columns).encode())
    # Those of releases before have no such columns.
    shape.update(b"kt_id,kt_from,")
    shape.update("".join(f"{name}={collation[name]}," for name in sorted(collation)).encode())
    name = target.name[:30]
    if dialect == "postgresql":
        # It cuts the whole after 63 bytes, and would not find it again.
        name = name.encode()[:_NAME_BYTES].decode(errors="ignore")
    return sa.Table(
        f"kt_{name}_{whose}_{shape.hexdigest()[:8]}",
        sa.MetaData(),
        # Some clusters of MySQL take no table without a key.
        sa.Column("kt_row", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("kt_load", sa.String(32), nullable=False),
        sa.Column("kt_epoch", sa.BigInteger, nullable=False),
        sa.Column("kt_txid", sa.BigInteger, nullable=False),
        sa.Column("kt_id", sa.Text),
        sa.Column("kt_from", sa.BigInteger),
        *columns,
        *(sa.Column(f"{BEFORE}{place}", one.type) for place, one in enumerate(columns)),
        schema=target.schema,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
        **collation,
    )


def _as_text(column: Any) -> Any:
    """Return a type that takes Spark's values."""
    return sa.Uuid(as_uuid=False) if isinstance(column, sa.Uuid) else column
