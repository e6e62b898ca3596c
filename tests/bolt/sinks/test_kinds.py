"""A row of each type with each value that nobody can read, in each sink: read back, failed alone, or refused.

The rows are frames of this process, which need no Spark.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from doc_tables import KINDS_TABLE
from plain_columns import column
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql import types as T

from kinesis_trident import Outcomes, merge_into, write_delta, write_iceberg
from kinesis_trident.bolt.errors import SinkError
from kinesis_trident.bolt.sinks.kinds import KINDS
from kinesis_trident.bolt.testing.local_frames import LocalSession
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.common.instants import FIRST_DAY, LAST_DAY
from kinesis_trident.spout.errors import WriteError
from kinesis_trident.spout.sink.columns import WriteColumns, entries_of

DAY = 86_400_000_000
NO_TEXT = [b"\xff", b"a\xc3", b"\xed\xa0\x80"]
NO_DAY = [FIRST_DAY - 1, LAST_DAY + 1]
NO_TIME = [FIRST_DAY * DAY - 1, (LAST_DAY + 1) * DAY, 1_767_225_600_000_000_000]
TIMES = [FIRST_DAY * DAY + DAY, 0, (LAST_DAY + 1) * DAY - 1]

CASES: list[tuple[T.DataType, list[Any], list[Any]]] = [
    (T.StringType(), [b"a", b"", "é😀".encode()], NO_TEXT),
    (T.BooleanType(), [True, False], []),
    (T.ByteType(), [-128, 127], []),
    (T.ShortType(), [-(2**15), 2**15 - 1], []),
    (T.IntegerType(), [-(2**31), 2**31 - 1], []),
    (T.LongType(), [-(2**63), 2**63 - 1], []),
    (T.DecimalType(9, 2), [Decimal("-1.25"), Decimal("9999999.99")], []),
    (T.FloatType(), [0.5, -1.0], []),
    (T.DoubleType(), [0.5, 1e300], []),
    (T.DateType(), [FIRST_DAY + 1, 0, LAST_DAY], NO_DAY),
    (T.TimestampType(), TIMES, NO_TIME),
    (T.TimestampNTZType(), TIMES, NO_TIME),
    (T.BinaryType(), [b"", b"\xff\x00"], []),
    (T.ArrayType(T.StringType()), [[b"a", None], []], [[b"a", one] for one in NO_TEXT]),
    (T.ArrayType(T.TimestampType()), [[0, None]], [[0, one] for one in NO_TIME]),
    (
        T.MapType(T.StringType(), T.DateType()),
        [[(b"a", 0)], []],
        [[(b"a", 0), (NO_TEXT[0], 0)], [(b"a", NO_DAY[0])]],
    ),
    (
        T.StructType().add("a", T.ByteType()).add("b", T.ArrayType(T.StringType())),
        [(1, [b"a"]), (None, None)],
        [(1, [one]) for one in NO_TEXT],
    ),
]
"""Of each type values that are read back, and values with which a row fails alone."""

REFUSED = [
    T.DayTimeIntervalType(),
    T.NullType(),
    T.ArrayType(T.DayTimeIntervalType()),
]
IDS = T.StructType().add("messageId", T.StringType()).add("id", T.IntegerType()).add("raw", T.BinaryType())
"""The other columns; PostgreSQL takes bytes in another way than all else."""


def test_each_type_has_its_cases() -> None:
    assert {type(of) for of, _, _ in CASES} == KINDS.keys()


def test_the_page_has_the_table() -> None:
    assert KINDS_TABLE.read() == KINDS_TABLE.render()


def frame(of: T.DataType, values: list[Any]) -> Any:
    schema = T.StructType([*IDS.fields, T.StructField("x", of)])
    count = len(values)
    others = [[f"m{i}" for i in range(count)], range(count), [b"\xff"] * count]
    arrow = arrow_schema(schema)
    ids = [pa.array(one, field.type) for one, field in zip(others, arrow, strict=False)]
    batch = pa.RecordBatch.from_arrays([*ids, column(values, arrow.field("x").type)], schema=arrow)
    return LocalSession().frame(schema, [[batch]])


Sink = tuple[Callable[[Any, Outcomes], None], Callable[[], dict[int, Any]]]
"""Writes a frame; reads what is there, by id, as Python values."""


def by_id(rows: list[dict[str, Any]]) -> dict[int, Any]:
    return {row["id"]: row["x"] for row in rows}


def delta(tmp_path: Path) -> Sink:
    table = f"{tmp_path}/orders"
    return (
        lambda df, outcomes: write_delta(df, outcomes, table),
        lambda: by_id(DeltaTable(table).to_pyarrow_table().to_pylist()),
    )


def iceberg(tmp_path: Path) -> Sink:
    catalog = load_catalog(type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("shop")
    return (
        lambda df, outcomes: write_iceberg(df, outcomes, "shop.orders", catalog=catalog),
        lambda: by_id(catalog.load_table("shop.orders").scan().to_arrow().to_pylist()),
    )


def database_sink(url: str) -> Sink:
    def read() -> dict[int, Any]:
        engine = sa.create_engine(url)
        table = sa.Table("orders", sa.MetaData(), autoload_with=engine)
        with engine.connect() as connection:
            found = by_id([dict(row) for row in connection.execute(sa.select(table)).mappings()])
        engine.dispose()
        return found

    def write(df: Any, outcomes: Outcomes) -> None:
        merge_into(df, outcomes, url, "orders", key="id", order_by="id")

    return write, read


def play(sink: Sink, of: T.DataType, good: list[Any], poisons: list[Any]) -> None:
    """Write the values and a null, one of them in each row; what fits is read back as its Arrow value is."""
    write, read = sink
    values = [*good, *poisons, None, *good]
    outcomes, rows = Outcomes(1, "job", 1), frame(of, values)
    write(rows, outcomes)
    bad = range(len(good), len(good) + len(poisons))
    assert outcomes.failures.keys() == {f"m{i}" for i in bad}
    ((batch,),) = rows.partitions()
    expected = {i: batch["x"][i].as_py() for i in range(len(values)) if i not in bad}
    assert {i: _alike(value) for i, value in read().items()} == {
        i: _alike(value) for i, value in expected.items()
    }


def _alike(value: Any) -> Any:
    """Return a value as all sinks give it: databases without zones have times in UTC, MySQL doubles as decimals."""
    match value:
        case datetime.datetime():
            return value.replace(tzinfo=None)
        case Decimal():
            return float(value)
    return value


@pytest.mark.parametrize(("of", "good", "poisons"), CASES, ids=lambda one: str(one)[:40])
@pytest.mark.parametrize("make", [delta, iceberg])
def test_tables_of_files(
    tmp_path: Path, make: Callable[[Path], Sink], of: T.DataType, good: list[Any], poisons: list[Any]
) -> None:
    play(make(tmp_path), of, good, poisons)


def test_tables_of_databases(database: str) -> None:
    for of, good, poisons in CASES:
        engine = sa.create_engine(database)
        with engine.begin() as connection:
            for name in sa.inspect(connection).get_table_names():
                connection.exec_driver_sql(f"DROP TABLE {name}")
        engine.dispose()
        if KINDS[type(of)].sql:
            play(database_sink(database), of, good, poisons)
        else:
            with pytest.raises(SinkError, match="cannot be created: the column 'x' is"):
                play(database_sink(database), of, good, poisons)


@pytest.mark.parametrize("of", REFUSED, ids=str)
@pytest.mark.parametrize("make", [delta, iceberg, lambda path: database_sink(f"sqlite:///{path}/sink.db")])
def test_other_types_are_refused_before_a_table_is_made(
    tmp_path: Path, make: Callable[[Path], Sink], of: T.DataType
) -> None:
    write, read = make(tmp_path)
    rows = LocalSession().frame(T.StructType([*IDS.fields, T.StructField("x", of)]), [])
    with pytest.raises(SinkError, match=r"'x' is "):
        write(rows, Outcomes(1, "job", 1))
    with pytest.raises((TableNotFoundError, NoSuchTableError, sa.exc.NoSuchTableError)):
        read()


@pytest.mark.parametrize(("of", "good", "poisons"), CASES, ids=lambda one: str(one)[:40])
def test_records_of_kinesis(of: T.DataType, good: list[Any], poisons: list[Any]) -> None:
    schema = T.StructType([T.StructField("data", of)])
    if not isinstance(of, T.StringType | T.BinaryType):
        with pytest.raises(WriteError, match="column data is"):
            WriteColumns.of(schema)
        return
    kind = arrow_schema(schema).field(0).type

    def written(columns: WriteColumns, *names: str, values: list[Any]) -> list[Any]:
        batch = pa.record_batch(
            [column(values, kind if name == "data" else pa.string()) for name in names], names
        )
        found = entries_of(batch, columns, limit=lambda: 0, is_auto=lambda: False, rng=random.Random(1))
        return [entry["Data"] for part in found for entry in part]

    # It has bytes, whatever they are.
    values = [*good, *poisons]
    assert written(WriteColumns.of(schema), "data", values=values) == values
    for poison in poisons:
        columns = WriteColumns(0, 1, None)
        with pytest.raises(
            WriteError, match=r"the column partitionKey is no valid UTF-8 in 1 row, the first has b'"
        ):
            written(columns, "data", "partitionKey", values=[b"a", poison])
    for poison in poisons:
        with pytest.raises(WriteError, match="the column explicitHashKey is no valid UTF-8"):
            written(WriteColumns(0, None, 1), "data", "explicitHashKey", values=[b"1", poison])
