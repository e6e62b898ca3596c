"""`merge_into`: what stays of each key, what it refuses, what others do to the table meanwhile.

tests/test_sinks.py pauses and kills its drivers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from heard import told
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, StringType, StructType
from thorough import cases, examples

from kinesis_trident import Outcomes, begin_fenced, merge_into
from kinesis_trident.bolt.errors import SinkError, StaleBatchError
from kinesis_trident.bolt.sinks.fence import FENCE
from kinesis_trident.bolt.sinks.merge_loading import load_rows
from kinesis_trident.bolt.sinks.merge_rows import Merging
from kinesis_trident.bolt.sinks.merge_tables import open_tables
from kinesis_trident.checkpoint.errors import FencedError

ORDERS = "messageId string, order_id string, version int, amount double"
POSTGRES = pytest.mark.parametrize("database", ["postgres"], indirect=True)
SERVERS = pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)
ONE = pytest.mark.parametrize("database", cases("postgres", long=("mariadb", "sqlite")), indirect=True)
"""For what the driver does alike with each database; what differs in SQL is played with all of them."""
Meanwhile = Callable[[str, Callable[[], object]], None]
MARIADB = pytest.mark.parametrize("database", ["mariadb"], indirect=True)
SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@pytest.fixture
def engine(database: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(database)
    yield made
    made.dispose()


@pytest.fixture
def meanwhile() -> Iterator[Meanwhile]:
    """`meanwhile(words, do)`: do something once, before a statement that begins with these words."""
    waiting: list[tuple[str, Callable[[], object]]] = []

    def before(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if waiting and statement.startswith(waiting[0][0]):
            waiting.pop()[1]()

    sa.event.listen(sa.Engine, "before_cursor_execute", before)
    yield lambda words, do: waiting.append((words, do))
    sa.event.remove(sa.Engine, "before_cursor_execute", before)
    assert not waiting


def batch(txid: int, epoch: int = 1, application: str = "orders-job") -> Outcomes:
    return Outcomes(epoch, application, txid)


def orders(spark: SparkSession, *rows: tuple[str | None, int | None, float | None]) -> DataFrame:
    return spark.createDataFrame([(f"m{i}", *row) for i, row in enumerate(rows)], ORDERS).coalesce(1)


def merge(df: DataFrame, outcomes: Outcomes, database: str, **more: Any) -> None:
    merge_into(df, outcomes, database, "orders", key="order_id", order_by="version", **more)


def rows_of(engine: sa.Engine, columns: str = "order_id, version, amount") -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return sorted(tuple(row) for row in connection.exec_driver_sql(f"SELECT {columns} FROM orders"))


# What stays of each key.

Row = tuple[str, int, int]
ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "A", "b", "c"]), st.integers(0, 6), st.integers(0, 9)), max_size=6
)
ATTEMPTS = st.lists(st.lists(ROWS, min_size=1, max_size=3), min_size=1, max_size=4)
"""Of each batch the rows of its attempts: the last one counts."""


def expect(table: dict[str, tuple[int, set[int]]], rows: list[Row]) -> dict[str, tuple[int, set[int]]]:
    """Merge rows as the page says; of equal ones in a batch any may stay."""
    merged = dict(table)
    for key in {row[0] for row in rows}:
        newest = max(order for name, order, _ in rows if name == key)
        if key not in table or newest > table[key][0]:
            merged[key] = (newest, {n for name, order, n in rows if (name, order) == (key, newest)})
    return merged


def test_of_each_key_the_newest_row_stays_whatever_comes_again(engine: sa.Engine) -> None:
    schema = StructType().add("order_id", StringType()).add("version", IntegerType()).add("n", IntegerType())
    arrow = pa.schema([("order_id", pa.string()), ("version", pa.int32()), ("n", pa.int32())])
    tables = open_tables(engine, "orders", "job", schema, ["order_id"], ["version"])

    def write(rows: list[Row], outcomes: Outcomes) -> None:
        def load(connection: sa.Connection) -> str:
            marks = {"kt_load": "mine", "kt_epoch": outcomes.epoch, "kt_txid": outcomes.txid}
            values = [dict(zip(("order_id", "version", "n"), row, strict=True)) for row in rows]
            assert not load_rows(connection, tables.batch, pa.RecordBatch.from_pylist(values, arrow), marks)
            return "mine"

        with begin_fenced(engine, outcomes) as connection:
            assert not Merging(connection, tables, outcomes.batch).merge({}, load)

    @settings(
        max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(ATTEMPTS)
    def play(batches: list[list[list[Row]]]) -> None:
        with engine.begin() as connection:
            for table in (tables.target, tables.batch):
                connection.execute(table.delete())
            if sa.inspect(connection).has_table(FENCE.name):
                connection.execute(FENCE.delete())
        expected: dict[str, tuple[int, set[int]]] = {}
        for txid, attempts in enumerate(batches, 1):
            for epoch, rows in enumerate(attempts, 1):
                write(rows, Outcomes(txid * 10 + epoch, "job", txid))
            expected = expect(expected, attempts[-1])
        with engine.connect() as connection:
            found = {key: (order, n) for key, order, n in connection.execute(sa.select(tables.target))}
        assert found.keys() == expected.keys()
        for key, (order, n) in found.items():
            assert order == expected[key][0]
            assert n in expected[key][1]

    play()


@ONE
def test_late_and_duplicate_events_change_nothing(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    merge(orders(spark, ("a", 2, 1.0), ("a", 1, 9.0), ("b", 1, 2.0)), batch(1), database)
    merge(orders(spark, ("a", 1, 8.0), ("b", 1, 7.0), ("b", 3, 3.0)), batch(2), database)
    assert rows_of(engine) == [("a", 2, 1.0), ("b", 3, 3.0)]


def test_a_column_that_joins_the_order_later_decides_only_between_rows_that_are_equal_before(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    """Rows of before have none in it: those are the oldest."""
    merge(orders(spark, ("a", 5, 1.0), ("b", 5, 1.0), ("c", 5, 1.0)), batch(1), database)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE orders ADD COLUMN change_no INTEGER")
    rows = orders(spark, ("a", 4, 2.0), ("b", 5, 2.0), ("c", 6, 2.0)).selectExpr("*", "1 change_no")
    merge_into(rows, batch(2), database, "orders", key="order_id", order_by=["version", "change_no"])
    assert rows_of(engine) == [("a", 5, 1.0), ("b", 5, 2.0), ("c", 6, 2.0)]


def test_a_deletion_survives_late_updates_and_those_of_its_instant(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    def write(txid: int, *rows: tuple[str, int, float | None]) -> None:
        changes = orders(spark, *rows).selectExpr("*", "amount IS NULL AS gone")
        merge_into(changes, batch(txid), database, "orders", key="order_id", order_by=["version", "gone"])

    write(1, ("a", 1, 1.0), ("b", 1, 1.0), ("c", 1, 1.0), ("d", 1, 1.0))
    write(2, ("a", 3, None), ("b", 3, None), ("c", 3, None), ("c", 3, 5.0))
    # Late, of the same instant, and newer: a key that lives again.
    write(3, ("a", 2, 2.0), ("b", 3, 2.0), ("d", 2, 2.0), ("c", 4, 4.0))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE VIEW current_orders AS SELECT * FROM orders WHERE NOT gone")
    try:
        assert rows_of(engine, "order_id, version") == [("a", 3), ("b", 3), ("c", 4), ("d", 2)]
        with engine.connect() as connection:
            current = connection.exec_driver_sql("SELECT order_id, amount FROM current_orders")
            assert sorted(map(tuple, current)) == [("c", 4.0), ("d", 2.0)]
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP VIEW current_orders")


def batch_table(engine: sa.Engine) -> sa.Table:
    (name,) = (name for name in sa.inspect(engine).get_table_names() if name.startswith("kt_orders"))
    return sa.Table(name, sa.MetaData(), autoload_with=engine)


@SERVERS
def test_rows_that_tasks_load_are_merged_as_those_by_the_driver(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    """What an attempt that was killed has loaded counts for nothing."""
    many = spark.range(6_000).selectExpr(
        "cast(id AS string) messageId",
        "concat('k', id % 2700) order_id",
        "cast(id AS int) version",
        "id / 4 amount",
    )
    merge(orders(spark, ("z", 1, 1.0)), batch(1), database)
    table = batch_table(engine)
    dead = {"kt_load": "dead", "kt_epoch": 1, "kt_txid": 2, "order_id": "x", "version": 9}
    with engine.begin() as connection:
        connection.execute(table.insert(), [dead])
    merge(many.repartition(3), batch(2), database, bytes_by_driver=0)
    expected = {f"k{number % 2700}": (number, number / 4) for number in range(6_000)}
    assert rows_of(engine) == sorted([("z", 1, 1.0), *((k, *v) for k, v in expected.items())])
    with engine.connect() as connection:
        rows = sa.select(table.c.kt_load).where(table.c.order_id.is_not(None))
        assert set(connection.execute(rows).scalars()) == {"inserted"}


@POSTGRES
def test_rows_that_the_database_has_lost_are_not_missed(
    spark: SparkSession, engine: sa.Engine, database: str, meanwhile: Meanwhile
) -> None:
    merge(orders(spark, ("z", 1, 1.0)), batch(1), database)
    table = batch_table(engine)

    def lose() -> None:
        with engine.begin() as other:
            other.exec_driver_sql(f"DELETE FROM {table.name} WHERE order_id = 'a'")

    meanwhile("UPDATE kt_fence", lose)
    with pytest.raises(SinkError, match=r"has 1 of the 2 rows .* Start the query again"):
        merge(orders(spark, ("a", 1, 1.0), ("b", 1, 1.0)), batch(2), database, bytes_by_driver=0)
    merge(orders(spark, ("a", 1, 1.0), ("b", 1, 1.0)), batch(2), database, bytes_by_driver=0)
    assert [row[0] for row in rows_of(engine)] == ["a", "b", "z"]


@ONE
def test_a_batch_that_comes_again_is_taken_back_first(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    merge(orders(spark, ("a", 1, 1.0), ("b", 1, 1.0)), batch(1), database)
    merge(orders(spark, ("a", 2, 2.0), ("c", 1, 2.0)), batch(2), database)
    # Another writer has changed one of its rows since.
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE orders SET version = 7 WHERE order_id = 'c'")
    merge(orders(spark, ("b", 3, 3.0)), batch(2, epoch=2), database)
    assert rows_of(engine) == [("a", 1, 1.0), ("b", 3, 3.0), ("c", 7, 2.0)]
    with pytest.raises(FencedError, match="its epoch is 2, this run has epoch 1"):
        merge(orders(spark, ("a", 9, 9.0)), batch(2), database)
    with pytest.raises(StaleBatchError, match="has written batch 2"):
        merge(orders(spark, ("a", 9, 9.0)), batch(1, epoch=2), database)
    merge(orders(spark, ("d", 1, 1.0)), batch(1, application="other"), database)
    assert rows_of(engine) == [("a", 1, 1.0), ("b", 3, 3.0), ("c", 7, 2.0), ("d", 1, 1.0)]


@SQLITE
def test_a_second_call_in_one_batch_does_not_take_the_first_back(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    outcomes = batch(1)
    merge(orders(spark, ("a", 1, 1.0)), outcomes, database)
    with pytest.raises(SinkError, match=r"twice for table orders of .* in batch 1"):
        merge(orders(spark, ("b", 1, 1.0)), outcomes, database)
    assert rows_of(engine) == [("a", 1, 1.0)]


@ONE
def test_a_batch_is_taken_back_though_the_table_was_altered_since(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    merge(orders(spark, ("a", 1, 1.0)), batch(1), database)
    merge(orders(spark, ("a", 2, 2.0), ("b", 1, 2.0)), batch(2), database)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE orders ADD COLUMN city VARCHAR(9)")
    with_city = orders(spark, ("c", 1, 1.0)).selectExpr("*", "'Bern' city")
    merge(with_city, batch(2, epoch=2), database)
    assert rows_of(engine, "order_id, version, city") == [("a", 1, None), ("c", 1, "Bern")]
    (without,) = (
        name
        for name in sa.inspect(engine).get_table_names()
        if name.startswith("kt_orders") and len(sa.inspect(engine).get_columns(name)) == 12
    )
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE {without}")
    merge(with_city, batch(3, epoch=2), database)


def test_several_columns_of_a_key_and_of_an_order_and_a_name_with_a_schema(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    frame = spark.createDataFrame(
        [("a", 1, 5, 1, "x"), ("a", 2, 5, 1, "x"), ("a", 1, 5, 2, "y"), ("a", 1, 4, 9, "z")],
        "`order` string, line int, day int, `select` int, value string",
    )
    with engine.connect() as connection:
        schema = sa.inspect(connection).default_schema_name
    merge_into(
        frame, batch(1), database, f"{schema}.Lines", key=["order", "line"], order_by=["day", "select"]
    )
    with engine.connect() as connection:
        table = sa.Table("Lines", sa.MetaData(), autoload_with=connection, schema=schema)
        found = connection.execute(sa.select(table.c.order, table.c.line, table.c.value))
        assert sorted(map(tuple, found)) == [("a", 1, "y"), ("a", 2, "x")]


@pytest.mark.parametrize(
    ("database", "bytes_too"),
    [("postgres", True), ("postgres", False), ("mariadb", True), ("sqlite", True)],
    indirect=["database"],
)
def test_readers_find_each_value(
    spark: SparkSession, engine: sa.Engine, database: str, *, bytes_too: bool
) -> None:
    """PostgreSQL's fast way takes no bytes."""
    columns = (
        "id int, small tinyint, big bigint, price decimal(9,2), x double, f float, day date, at timestamp, "
    )
    columns += "local timestamp_ntz, raw binary, text string, flag boolean"
    at = datetime(2026, 3, 29, 1, 30, 0, 999_999, tzinfo=UTC)
    rows = [
        (
            number,
            number - 3,
            [-(2**63), 0, 2**63 - 1][number % 3],
            Decimal(number) / 4,
            [1e300, -0.1, None][number % 3],
            0.5,
            [None, date(1001, 1, 1), date(9999, 12, 31)][number % 3],
            at if number % 2 else None,
            at.replace(tzinfo=None, microsecond=number),
            bytes([number, 0, 255]) if bytes_too else None,
            ["", "é/ü %:name 😀", None][number % 3],
            [True, False, None][number % 3],
        )
        for number in range(6)
    ]
    frame = spark.createDataFrame(rows, columns)
    if not bytes_too:
        frame = frame.drop("raw")
        rows = [(*row[:9], *row[10:]) for row in rows]
    merge_into(frame, batch(1), database, "orders", key="id", order_by="big")
    table = sa.Table("orders", sa.MetaData(), autoload_with=engine)
    with engine.connect() as connection:
        found = connection.execute(sa.select(table).order_by(table.c.id)).all()
    for row, expected in zip(found, rows, strict=True):
        values = list(row)
        if values[7] is not None and values[7].tzinfo is None:
            values[7] = values[7].replace(tzinfo=UTC)
        # MySQL's driver gives its doubles as decimals.
        values[4:6] = [value if value is None else float(value) for value in values[4:6]]
        assert values == list(expected)


@MARIADB
def test_keys_are_compared_as_the_table_compares_them(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    """Its collation is not that of the database, by which "a" equals "A"."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE orders (order_id VARCHAR(9) PRIMARY KEY, version INTEGER, amount DOUBLE) "
            "DEFAULT CHARSET latin1 COLLATE latin1_bin"
        )
    outcomes = batch(1)
    merge(orders(spark, ("a", 1, 1.0), ("A", 2, 1.0), ("é", 1, 1.0), ("😀", 1, 1.0)), outcomes, database)
    assert rows_of(engine) == [("A", 2, 1.0), ("a", 1, 1.0), ("é", 1, 1.0)]
    assert "Incorrect string value" in str(outcomes.failures["m3"])


@MARIADB
def test_a_text_that_is_too_long_fails_whatever_the_server_makes_of_it(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    """One that is not strict cuts it, and two keys would become one."""
    with engine.begin() as connection:
        mode = connection.exec_driver_sql("SELECT @@GLOBAL.sql_mode").scalar()
        connection.exec_driver_sql(
            "CREATE TABLE orders (order_id VARCHAR(3) PRIMARY KEY, version INT, amount FLOAT)"
        )
        connection.exec_driver_sql("SET GLOBAL sql_mode = 'NO_ENGINE_SUBSTITUTION'")
    try:
        outcomes = batch(1)
        merge(
            orders(spark, ("abcd", 1, 1.0), ("abce", 2, 1.0), ("z", 1, 1.0), ("y", 1, 1e300)),
            outcomes,
            database,
        )
        assert rows_of(engine) == [("z", 1, 1.0)]
        assert "too long" in str(outcomes.failures["m0"])
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("SET GLOBAL sql_mode = %s", (mode,))


@MARIADB
def test_a_time_is_the_same_instant_whatever_the_zone_of_the_server(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE orders (order_id VARCHAR(9) PRIMARY KEY, at TIMESTAMP(6) NULL)"
        )
        zone = connection.exec_driver_sql("SELECT @@GLOBAL.time_zone").scalar_one()
        connection.exec_driver_sql("SET GLOBAL time_zone = '+02:00'")
    try:
        rows = spark.sql("SELECT 'a' order_id, timestamp'2026-01-01 00:00:00Z' at")
        # By another URL, which has no connection yet.
        merge_into(rows, batch(1), f"{database}?charset=utf8mb4", "orders", key="order_id", order_by="at")
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"SET GLOBAL time_zone = '{zone}'")
    assert rows_of(engine, "UNIX_TIMESTAMP(at)") == [(1767225600,)]


# What is refused.


def test_a_record_that_the_table_cannot_hold_fails_alone(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE orders (order_id VARCHAR(3) PRIMARY KEY, version INTEGER, amount REAL NOT NULL)"
        )
    for by_driver in (1 << 20, 0):
        outcomes = batch(1 + (not by_driver))
        rows = [
            (None, 1, 1.0),
            ("a", None, 1.0),
            ("b", 1, None),
            ("c", 1, 1.0),
            ("long", 1, 1.0),
            ("d", 1, 1.0),
        ]
        merge(orders(spark, *rows), outcomes, database, bytes_by_driver=by_driver)
        failed = told(outcomes)
        if engine.dialect.name == "sqlite":
            # Its texts have any length.
            assert [row[0] for row in rows_of(engine)] == ["c", "d", "long"]
        else:
            assert "too long" in failed.pop("m4")
            assert [row[0] for row in rows_of(engine)] == ["c", "d"]
        assert failed == {
            "m0": "column 'order_id' is null",
            "m1": "column 'version' is null",
            "m2": "column 'amount' is null",
        }
    with pytest.raises(
        SinkError, match=r"column 'order_id' is null\. Keep the column 'messageId' in the rows"
    ):
        merge(orders(spark, *rows).drop("messageId"), batch(3), database)
    with pytest.raises(SinkError, match=r"column 'order_id' is null\. Its messageId is null, as outer joins"):
        merge(
            orders(spark, *rows).selectExpr("nullif(messageId, 'm0') messageId", "* except (messageId)"),
            batch(3),
            database,
        )


@SERVERS
def test_a_row_that_the_database_refuses_and_no_record_names_is_told_before_the_commit(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE orders (order_id VARCHAR(3) PRIMARY KEY, version INT, amount REAL)"
        )
    rows = orders(spark, ("c", 1, 1.0), ("long", 1, 1.0)).selectExpr(
        "nullif(messageId, 'm1') messageId", "* except (messageId)"
    )
    for txid, by_driver in enumerate((1 << 20, 0), 1):
        outcomes = batch(txid)
        with pytest.raises(
            SinkError, match=r"(?s)too long.* Its messageId is null, as outer joins make them"
        ):
            merge(rows, outcomes, database, bytes_by_driver=by_driver)
        assert (rows_of(engine), len(outcomes)) == ([], 0)


def test_a_number_that_orders_nothing_hides_no_later_row(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    """To PostgreSQL a NaN is newer than each number."""
    frame = "messageId string, order_id string, version double"
    for txid, version in enumerate((1.0, float("nan"), float("inf"), 2.0), 1):
        outcomes = batch(txid)
        rows = spark.createDataFrame([("m", "a", version)], frame)
        merge(rows, outcomes, database)
        is_right = version in (1.0, 2.0)
        assert told(outcomes) == ({} if is_right else {"m": "column 'version' is no finite number"})
    assert rows_of(engine, "order_id, version") == [("a", 2.0)]


def test_a_time_beyond_the_calendar_fails_alone(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    """Milliseconds taken for seconds."""
    rows = orders(spark, ("a", 1, 1.0), ("b", 1_767_225_600, 1.0), ("c", 900_000_000, 1.0))
    times = (
        "timestamp_seconds(version * 1000L) AS at",
        "date_add(date'2000-01-01', cast(version div 100 AS int)) AS day",
    )
    outcomes = batch(1)
    merge(rows.selectExpr("*", *times), outcomes, database)
    assert told(outcomes) == {
        "m1": "column 'at' is no time of the years 1 to 9999",
        "m2": "column 'at' is no time of the years 1 to 9999",
    }
    assert rows_of(engine, "order_id") == [("a",)]


@pytest.mark.parametrize(
    ("database", "said"), [("mariadb", "finite number"), ("sqlite", "number")], indirect=["database"]
)
def test_a_number_that_is_none_fails_alone_where_the_database_has_no_such(
    spark: SparkSession, engine: sa.Engine, database: str, said: str
) -> None:
    """SQLite would take it for null."""
    outcomes = batch(1)
    merge(orders(spark, ("a", 1, float("nan")), ("b", 1, 1.0), ("c", 1, None)), outcomes, database)
    assert told(outcomes) == {"m0": f"column 'amount' is no {said}"}
    assert rows_of(engine) == [("b", 1, 1.0), ("c", 1, None)]


@POSTGRES
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["*", "1 AS more"], r"column 'more' is int, in the table missing"),
        (["order_id", "version", "'x' AS amount"], r"column 'amount' is string, in the table DOUBLE"),
        (
            ["order_id", "version", "array(1) AS amount"],
            r"column 'amount' is array<int>, in the table DOUBLE",
        ),
        (["order_id", "amount"], r"order_by names 'version', which is not a column of the rows"),
        (
            ["version", "amount"],
            r"key names 'order_id', which is not a column of the rows",
        ),
    ],
)
def test_other_columns_are_refused(
    spark: SparkSession, engine: sa.Engine, database: str, change: list[str], said: str
) -> None:
    merge(orders(spark, ("a", 1, 1.0)), batch(1), database)
    with pytest.raises(SinkError, match=re.escape(said)):
        merge(orders(spark, ("b", 1, 1.0)).selectExpr(*change), batch(2), database)
    assert rows_of(engine) == [("a", 1, 1.0)]


@SERVERS
@pytest.mark.parametrize(
    ("column", "value", "type_"),
    [
        (
            "updated",
            "timestamp'2026-01-01 00:00:00.25Z'",
            {"postgresql": "TIMESTAMP(0)", "mysql": "DATETIME"},
        ),
        ("price", "1.25BD", {"postgresql": "NUMERIC(9,1)", "mysql": "DECIMAL(9,1)"}),
        ("price", "1.25D", {"postgresql": "REAL", "mysql": "FLOAT"}),
    ],
)
def test_a_column_that_rounds_what_is_newer_is_refused(
    spark: SparkSession, engine: sa.Engine, database: str, column: str, value: str, type_: dict[str, str]
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"CREATE TABLE orders (order_id VARCHAR(9) PRIMARY KEY, {column} {type_[engine.dialect.name]})"
        )
    rows = spark.sql(f"SELECT 'a' order_id, {value} {column}")
    with pytest.raises(SinkError, match=rf"'{column}' is .*, and the table rounds it to"):
        merge_into(rows, batch(1), database, "orders", key="order_id", order_by=column)


def test_a_table_without_the_key_is_told_the_index_that_it_lacks(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE orders (order_id VARCHAR(9), version INTEGER, amount DOUBLE PRECISION, "
            "seen TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL)"
        )
    frame = orders(spark, ("a", 1, 1.0))
    with pytest.raises(SinkError, match=r"several rows of one order_id\. Give it a unique index: ") as told:
        merge(frame, batch(1), database)
    with engine.begin() as connection:
        connection.exec_driver_sql(str(told.value).rpartition("index: ")[2])
    merge(frame, batch(1), database)
    assert rows_of(engine) == [("a", 1, 1.0)]


@POSTGRES
def test_a_user_who_may_not_create_tables_is_told_what_to_create(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    url = sa.make_url(database)
    user = f"reader_{url.query['options'][-20:]}"  # type: ignore[operator]
    schema = str(url.query["options"]).rpartition("=")[2]
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {user}")
    frame = orders(spark, ("a", 1, 1.0))
    for _ in range(3):
        with pytest.raises(SinkError, match=r"(?s)permission denied.* or create it as another one: ") as told:
            merge_into(
                frame,
                batch(1),
                url.set(username=user),
                "orders",
                key="order_id",
                order_by="version",
            )
        with engine.begin() as connection:
            connection.exec_driver_sql(str(told.value).rpartition("another one: ")[2])
            connection.exec_driver_sql(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {user}")
            connection.exec_driver_sql(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {user}")
    merge_into(frame, batch(1), url.set(username=user), "orders", key="order_id", order_by="version")
    assert rows_of(engine) == [("a", 1, 1.0)]


# What others do meanwhile.


@SERVERS
def test_another_writer_inserts_one_of_the_keys_meanwhile(
    spark: SparkSession, engine: sa.Engine, database: str, meanwhile: Meanwhile
) -> None:
    merge(orders(spark, ("z", 1, 1.0)), batch(1), database)

    def insert() -> None:
        with engine.begin() as other:
            other.exec_driver_sql("INSERT INTO orders VALUES ('a', 5, 5.0)")

    meanwhile("INSERT INTO orders", insert)
    merge(orders(spark, ("a", 1, 1.0), ("b", 1, 1.0)), batch(2), database)
    assert rows_of(engine) == [("a", 5, 5.0), ("b", 1, 1.0), ("z", 1, 1.0)]


@SERVERS
def test_another_writer_changes_one_of_the_rows_meanwhile(
    spark: SparkSession, engine: sa.Engine, database: str, meanwhile: Meanwhile
) -> None:
    """A batch that comes again gives it back as that one has left it."""
    merge(orders(spark, ("a", 1, 1.0), ("z", 1, 1.0)), batch(1), database)

    def change() -> None:
        with engine.begin() as other:
            other.exec_driver_sql("UPDATE orders SET version = 2, amount = 2.0 WHERE order_id = 'a'")

    meanwhile("UPDATE orders", change)
    merge(orders(spark, ("a", 3, 3.0)), batch(2), database)
    assert rows_of(engine) == [("a", 3, 3.0), ("z", 1, 1.0)]
    merge(orders(spark, ("z", 2, 2.0)), batch(2, epoch=2), database)
    assert rows_of(engine) == [("a", 2, 2.0), ("z", 2, 2.0)]


@SQLITE
def test_a_column_that_the_rows_lack_and_the_table_needs_is_named(
    spark: SparkSession, engine: sa.Engine, database: str
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE orders (order_id VARCHAR(9) PRIMARY KEY, version INT, amount REAL, city TEXT NOT NULL)"
        )
    with pytest.raises(SinkError, match="'city' of the table must not be null, and the rows do not have it"):
        merge(orders(spark, ("a", 1, 1.0)), batch(1), database)


@SQLITE
def test_the_driver_of_the_database_is_missing(
    spark: SparkSession, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pg8000", None)
    with pytest.raises(SinkError, match=r"needs the driver of postgresql\+pg8000"):
        merge(orders(spark, ("a", 1, 1.0)), batch(1), "postgresql+pg8000://host/shop")
