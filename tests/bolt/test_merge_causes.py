"""Each cause of an error at each step of `merge_into`: the batch is tried again in place, or the query ends."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from harness import eventually
from hypothesis import given, settings, strategies as st
from pyspark.sql.types import DecimalType, DoubleType, IntegerType, StringType, StructType
from thorough import examples

from kinesis_trident import Outcomes, begin_fenced, merge_into
from kinesis_trident.bolt.errors import BatchFailedError, SinkError, TargetAwayError
from kinesis_trident.bolt.testing.local_frames import LocalFrame, LocalSession
from kinesis_trident.common.database import PASSING, Cause

SCHEMA = (
    StructType()
    .add("messageId", StringType())
    .add("order_id", StringType())
    .add("version", IntegerType())
    .add("amount", DoubleType())
)
CODES = {
    Cause.CONFLICT: "40P01",
    Cause.LOCKED: "55P03",
    Cause.AWAY: "57P03",
    Cause.NOT_LET_IN: "42501",
    Cause.OTHER: "XX000",
}
STEPS = {
    "fence": ("kt_fence", "BEFORE UPDATE"),
    "load": ("{batch}", "BEFORE INSERT"),
    "merge": ("orders", "BEFORE INSERT OR UPDATE"),
    "commit": ("orders", "DEFERRED"),
}
POSTGRES = pytest.mark.parametrize("database", ["postgres"], indirect=True)


def orders(*rows: tuple[str | None, int | None, float | None], tasks: int = 1) -> LocalFrame:
    """Return a frame of rows, whose message ids are m0, m1 ..."""
    values = [dict(zip(SCHEMA.names, (f"m{i}", *row), strict=True)) for i, row in enumerate(rows)]
    parts = [values[task::tasks] for task in range(tasks)]
    kind = pa.schema(
        [
            ("messageId", pa.string()),
            ("order_id", pa.string()),
            ("version", pa.int32()),
            ("amount", pa.float64()),
        ]
    )
    return LocalSession().frame(SCHEMA, [[pa.RecordBatch.from_pylist(part, kind)] for part in parts])


def merge(df: Any, outcomes: Outcomes, database: str, **more: Any) -> None:
    merge_into(df, outcomes, database, "orders", key="order_id", order_by="version", **more)


@pytest.fixture
def engine(database: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(database)
    yield made
    made.dispose()


def rows_of(engine: sa.Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return sorted(map(tuple, connection.exec_driver_sql("SELECT order_id, version, amount FROM orders")))


def raise_at(engine: sa.Engine, step: str, code: str, times: int) -> None:
    """Let the database raise an error at a step, a number of times: a sequence goes on in what is rolled back."""
    table, when = STEPS[step]
    if "{" in table:
        (table,) = (one for one in sa.inspect(engine).get_table_names() if one.startswith("kt_orders"))
    timing = (
        f"CREATE CONSTRAINT TRIGGER breaks AFTER INSERT OR UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED"
        if when == "DEFERRED"
        else f"CREATE TRIGGER breaks {when} ON {table}"
    )
    with engine.begin() as connection:
        connection.exec_driver_sql(
            f"CREATE SEQUENCE breaking; CREATE FUNCTION breaks() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF nextval('breaking') <= {times} THEN RAISE 'broken' USING ERRCODE = '{code}'; END IF; "
            f"RETURN NEW; END $$; {timing} FOR EACH ROW EXECUTE FUNCTION breaks()"
        )


@POSTGRES
@pytest.mark.parametrize("cause", CODES, ids=lambda cause: cause.name)
@pytest.mark.parametrize("step", STEPS)
def test_each_cause_at_each_step_replays_the_batch_or_ends_the_query(
    engine: sa.Engine, database: str, step: str, cause: Cause, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinesis_trident.bolt.sinks.merge._TRIES", 3)
    monkeypatch.setattr("kinesis_trident.bolt.sinks.fence._TRIES", 3)
    monkeypatch.setattr("kinesis_trident.bolt.sinks.fence._MARGIN", 0)
    merge(orders(("a", 1, 1.0)), Outcomes(1, "job", 1), database)
    raise_at(engine, step, CODES[cause], times=1_000_000)
    batch = orders(("a", 2, 2.0), ("b", 1, 1.0))
    with pytest.raises(SinkError) as raised:
        merge(batch, Outcomes(1, "job", 2), database, timeout=1)
    assert isinstance(raised.value, BatchFailedError) is (cause in PASSING), raised.value
    assert rows_of(engine) == [("a", 1, 1.0)]
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP FUNCTION breaks CASCADE")
    merge(batch, Outcomes(1, "job", 2), database)
    assert rows_of(engine) == [("a", 2, 2.0), ("b", 1, 1.0)]


@POSTGRES
def test_a_conflict_is_tried_again_in_the_call(engine: sa.Engine, database: str) -> None:
    merge(orders(("a", 1, 1.0)), Outcomes(1, "job", 1), database)
    raise_at(engine, "commit", "40001", times=2)
    merge(orders(("a", 2, 2.0)), Outcomes(1, "job", 2), database)
    assert rows_of(engine) == [("a", 2, 2.0)]


@POSTGRES
@pytest.mark.parametrize("code", ["40P01", "57P01", "23514"])
def test_an_error_in_the_block_of_begin_fenced(engine: sa.Engine, database: str, code: str) -> None:
    """One that passes replays the batch; another one is the block's own, and stays as it is."""
    raising = f"DO $$ BEGIN RAISE 'broken' USING ERRCODE = '{code}'; END $$"
    expected = sa.exc.DBAPIError if code == "23514" else TargetAwayError
    with pytest.raises(expected, match="broken"), begin_fenced(engine, Outcomes(1, "job", 1)) as connection:
        connection.exec_driver_sql(raising)


# Records that the table refuses only when they are merged.

REFUSES = {
    "a CHECK": (
        "postgres mariadb sqlite",
        ["ALTER TABLE orders ADD CHECK (amount >= 0)"],
    ),
    "a foreign key": (
        "postgres mariadb",
        [
            "CREATE TABLE amounts (amount DOUBLE PRECISION PRIMARY KEY)",
            "INSERT INTO amounts VALUES (1), (2), (3)",
            "ALTER TABLE orders ADD FOREIGN KEY (amount) REFERENCES amounts (amount)",
        ],
    ),
    "a deferred foreign key": (
        "postgres",
        [
            "CREATE TABLE amounts (amount DOUBLE PRECISION PRIMARY KEY)",
            "INSERT INTO amounts VALUES (1), (2), (3)",
            "ALTER TABLE orders ADD FOREIGN KEY (amount) REFERENCES amounts (amount) DEFERRABLE INITIALLY DEFERRED",
        ],
    ),
    "a second UNIQUE": (
        "postgres mariadb sqlite",
        [
            "INSERT INTO orders VALUES ('taken', 1, -1)",
            "CREATE UNIQUE INDEX second ON orders (amount)",
        ],
    ),
    "a trigger": (
        "postgres",
        [
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.amount < 0 THEN "
            "RAISE 'no debts' USING ERRCODE = 'ZZ001'; END IF; RETURN NEW; END $$",
            "CREATE TRIGGER refuses BEFORE INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION refuse()",
        ],
    ),
    "a signal": (
        "mariadb",
        [
            "CREATE TRIGGER refuses BEFORE INSERT ON orders FOR EACH ROW IF NEW.amount < 0 THEN "
            "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no debts'; END IF",
        ],
    ),
    "a RAISE": (
        "sqlite",
        [
            "CREATE TRIGGER refuses BEFORE INSERT ON orders WHEN NEW.amount < 0 BEGIN "
            "SELECT RAISE(ABORT, 'no debts'); END",
        ],
    ),
    "no partition": (
        "postgres",
        [
            "DROP TABLE orders",
            "CREATE TABLE orders (order_id TEXT, version INTEGER, amount DOUBLE PRECISION, "
            "PRIMARY KEY (order_id, amount)) PARTITION BY RANGE (amount)",
            "CREATE TABLE paid PARTITION OF orders FOR VALUES FROM (0) TO (100)",
        ],
    ),
    "an index": (
        "postgres",
        ["CREATE INDEX large ON orders (repeat(md5(order_id), CASE WHEN amount < 0 THEN 9999 ELSE 0 END))"],
    ),
}


@pytest.mark.parametrize(
    ("database", "refuses"),
    [(kind, name) for name, (kinds, _) in REFUSES.items() for kind in kinds.split()],
    indirect=["database"],
)
@pytest.mark.parametrize("by_driver", [1 << 20, 0], ids=["by the driver", "by tasks"])
def test_a_record_that_the_table_refuses_when_it_is_merged_fails_alone(
    engine: sa.Engine, database: str, refuses: str, by_driver: int
) -> None:
    key = ["order_id", "amount"] if refuses == "no partition" else "order_id"
    rows = [(f"k{number}", 2, 1.0 + number / 1000) for number in range(40)]
    if "foreign" in refuses:
        rows = [(name, version, 1.0) for name, version, _ in rows]
    merge(orders(("k7", 1, 3.0)), Outcomes(1, "job", 1), database)
    with engine.begin() as connection:
        for statement in REFUSES[refuses][1]:
            if engine.dialect.name == "sqlite" and "ADD CHECK" in statement:
                checked = "order_id TEXT PRIMARY KEY, version INT, amount REAL CHECK (amount >= 0)"
                connection.exec_driver_sql("DROP TABLE orders")
                connection.exec_driver_sql(f"CREATE TABLE orders ({checked})")
            else:
                connection.exec_driver_sql(statement)
    bad = [(5, ("k5", 3, -1.0)), (17, ("other", 3, -1.0)), (41, ("k5", 9, -1.0))]
    for place, row in bad:
        rows.insert(place, row)
    outcomes = Outcomes(1, "job", 2)
    merge_into(
        orders(*rows, tasks=2),
        outcomes,
        database,
        "orders",
        key=key,
        order_by="version",
        bytes_by_driver=by_driver,
    )
    failed = set(outcomes.failures)
    assert failed == {f"m{place}" for place, _ in bad}, outcomes.failures
    found = {row[:2] for row in rows_of(engine)} - {("taken", 1), ("k7", 1)}
    # The older row of k5 took the place of those that failed.
    assert found == {(f"k{number}", 2) for number in range(40)}
    assert all(map(str, outcomes.failures.values()))


@pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)
def test_a_task_of_whose_rows_the_database_takes_none_does_not_stop_the_others(
    engine: sa.Engine, database: str
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE orders (order_id VARCHAR(3) PRIMARY KEY, version INT, amount REAL)"
        )
    outcomes = Outcomes(1, "job", 1)
    merge(orders(("long", 1, 1.0), ("a", 1, 1.0), tasks=2), outcomes, database, bytes_by_driver=0)
    assert (rows_of(engine), set(outcomes.failures)) == ([("a", 1, 1.0)], {"m0"})
    outcomes = Outcomes(1, "job", 2)
    merge(orders(("longer", 1, 1.0)), outcomes, database, bytes_by_driver=0)
    assert (rows_of(engine), set(outcomes.failures)) == ([("a", 1, 1.0)], {"m0"})


@pytest.mark.parametrize("collation", ["NOCASE", "RTRIM"])
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_keys_that_the_table_takes_for_equal_are_one(
    engine: sa.Engine, database: str, collation: str
) -> None:
    with engine.begin() as connection:
        kinds = f"order_id TEXT COLLATE {collation} PRIMARY KEY, version INT, amount REAL"
        connection.exec_driver_sql(f"CREATE TABLE orders ({kinds}, UNIQUE (amount, order_id))")
    names = ("a", "A") if collation == "NOCASE" else ("a", "a ")
    for txid, version in ((1, 1), (2, 3), (2, 5)):
        outcomes = Outcomes(version, "job", txid)
        rows = [(name, version + place, float(place)) for place, name in enumerate(names)]
        merge(orders(*rows), outcomes, database)
        found = [(name.rstrip().lower(), *others) for name, *others in rows_of(engine)]
        assert (found, len(outcomes)) == ([("a", version + 1, 1.0)], 0)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_decimals_that_sqlite_would_round_fail_alone_where_they_decide(
    engine: sa.Engine, database: str
) -> None:
    kind = DecimalType(20, 1)
    schema = StructType().add("messageId", "string").add("order_id", kind).add("version", kind)
    numbers = [
        "12345678901234567.1",
        "12345678901234567.2",
        "99999999999999.9",
        "-12345678901234567.1",
        "3.5",
    ]
    keys = pa.array([*map(Decimal, numbers), Decimal(7)], pa.decimal128(20, 1))
    versions = pa.array([*[Decimal(1)] * 5, Decimal(numbers[0])], pa.decimal128(20, 1))
    ids = pa.array([f"m{place}" for place in range(6)])
    rows = pa.RecordBatch.from_arrays([ids, keys, versions], schema.names)
    outcomes = Outcomes(1, "job", 1)
    merge(LocalSession().frame(schema, [[rows]]), outcomes, database)
    assert {name: str(why) for name, why in outcomes.failures.items()} == {
        **dict.fromkeys(("m0", "m1", "m3"), "column 'order_id' is a number of more than 15 digits"),
        "m5": "column 'version' is a number of more than 15 digits",
    }
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT order_id FROM orders ORDER BY order_id").scalars().all()
    assert found == [3.5, 99999999999999.9]


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_a_table_may_count_its_rows_beside_the_key(engine: sa.Engine, database: str) -> None:
    kinds = "order_id VARCHAR(9) PRIMARY KEY, version INT, amount REAL, number INT AUTO_INCREMENT UNIQUE"
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE orders ({kinds})")
    merge(orders(("a", 1, 1.0)), Outcomes(1, "job", 1), database)
    assert rows_of(engine) == [("a", 1, 1.0)]


CHECKED = (
    "CREATE TABLE orders (order_id VARCHAR(9) PRIMARY KEY, version INT, "
    "amount DOUBLE PRECISION CHECK (amount >= 0))"
)
SQLITE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@SQLITE
def test_of_each_key_the_newest_row_stays_that_the_table_takes(engine: sa.Engine, database: str) -> None:
    row = st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.sampled_from([-1.0, 1.0, 2.0]))
    with engine.begin() as connection:
        connection.exec_driver_sql(CHECKED)

    @settings(max_examples=examples(100), deadline=None)
    @given(st.lists(st.lists(row, max_size=8), min_size=1, max_size=3))
    def play(batches: list[list[tuple[str, int, float]]]) -> None:
        with engine.begin() as connection:
            for table in sa.inspect(connection).get_table_names():
                connection.exec_driver_sql(f"DELETE FROM {table}")
        expected: dict[str, int] = {}
        for txid, rows in enumerate(batches, 1):
            outcomes = Outcomes(1, "job", txid)
            # The second attempt takes the first one back.
            for _ in range(2):
                merge(orders(*rows, tasks=2), outcomes := Outcomes(1, "job", txid), database)
            refused = {int(name[1:]) for name in outcomes.failures}
            for place in refused:
                assert rows[place][2] < 0
            for key in {name for name, _, _ in rows}:
                good = [version for name, version, amount in rows if name == key and amount >= 0]
                newest = max(good, default=-1)
                # Each row that is newer than all that count was tried.
                newer = {
                    place
                    for place, (name, version, amount) in enumerate(rows)
                    if name == key and amount < 0 and version > max(newest, expected.get(key, -1))
                }
                assert newer <= refused
                if newest > expected.get(key, -1):
                    expected[key] = newest
        assert {name: version for name, version, _ in rows_of(engine)} == expected

    play()


def statements_of(engine: sa.Engine, database: str, rows: list[tuple[str, int, float]]) -> int:
    """Count the statements of a batch in a table with a CHECK."""
    with engine.begin() as connection:
        for table in sa.inspect(connection).get_table_names():
            connection.exec_driver_sql(f"DROP TABLE {table}")
        connection.exec_driver_sql(CHECKED)
    asked: list[str] = []

    def ask(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        asked.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", ask)
    outcomes = Outcomes(1, "job", 1)
    merge(orders(*rows), outcomes, database)
    sa.event.remove(sa.Engine, "before_cursor_execute", ask)
    assert len(outcomes.failures) == sum(amount < 0 for _, _, amount in rows)
    return len(asked)


@SQLITE
@pytest.mark.parametrize("name", ["k{}", "k"], ids=["of many keys", "of one key"])
def test_what_the_refused_records_cost_grows_as_they_do(engine: sa.Engine, database: str, name: str) -> None:
    few, many = (
        statements_of(engine, database, [(name.format(number), number, -1.0) for number in range(count)])
        for count in (30, 120)
    )
    assert many < few * 5


@SQLITE
def test_a_row_that_is_refused_needs_its_message_id(engine: sa.Engine, database: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(CHECKED)
    with pytest.raises(SinkError, match=r"CHECK constraint failed.*Keep the column 'messageId' in the rows"):
        merge(orders(("a", 1, 1.0), ("b", 1, -1.0)).drop("messageId"), Outcomes(1, "job", 1), database)
    assert rows_of(engine) == []


# Locks of others.

SERVERS = pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)


@SERVERS
def test_a_row_that_another_session_has_locked_is_waited_for_shortly_and_its_holder_named(
    engine: sa.Engine, database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kinesis_trident.bolt.sinks.waits._AFTER", 0.2)
    merge(orders(("a", 1, 1.0)), Outcomes(1, "job", 1), database)
    with engine.begin() as holder:
        postgres = engine.dialect.name == "postgresql"
        session = holder.exec_driver_sql(
            "SELECT pg_backend_pid()" if postgres else "SELECT CONNECTION_ID()"
        ).scalar()
        holder.exec_driver_sql("SELECT * FROM orders WHERE order_id = 'a' FOR UPDATE")
        with pytest.raises(TargetAwayError, match="find out what else locks these rows"):
            merge(orders(("a", 2, 2.0), ("b", 1, 1.0)), Outcomes(1, "job", 2), database, timeout=2)
    waits = [one.getMessage() for one in caplog.records if " waits for session " in one.getMessage()]
    assert len(waits) == 1
    assert waits[0].startswith("batch 2 of 'job' in ")
    assert f" waits for session {session} (" in waits[0]
    merge(orders(("a", 2, 2.0), ("b", 1, 1.0)), Outcomes(1, "job", 2), database)
    assert rows_of(engine) == [("a", 2, 2.0), ("b", 1, 1.0)]


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_a_deadlock_that_ends_the_savepoints_too_is_a_conflict(engine: sa.Engine, database: str) -> None:
    """MariaDB ends the transaction that has changed less."""
    merge(orders(("a", 1, 1.0), ("b", 1, 1.0)), Outcomes(1, "job", 1), database)
    with engine.begin() as connection:
        many = ", ".join(f"('c{number}', 1, 1)" for number in range(500))
        connection.exec_driver_sql(f"INSERT INTO orders VALUES {many}")
    waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'UPDATE orders%%' AND time_ms > 100"

    def waits() -> bool:
        with engine.connect() as connection:
            return bool(connection.exec_driver_sql(waiting).scalar())

    with engine.begin() as other, ThreadPoolExecutor(1) as pool:
        other.exec_driver_sql("UPDATE orders SET amount = 7 WHERE order_id = 'b' OR order_id LIKE 'c%%'")
        merging = pool.submit(merge, orders(("a", 2, 2.0), ("b", 2, 2.0)), Outcomes(1, "job", 2), database)
        eventually(waits, "the batch to wait for b")
        other.exec_driver_sql("UPDATE orders SET amount = 7 WHERE order_id = 'a'")
        other.commit()
        merging.result(60)
    assert rows_of(engine)[:2] == [("a", 2, 2.0), ("b", 2, 2.0)]
