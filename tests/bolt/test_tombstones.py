"""`merge_into(deleted=...)`: deletions stay in the table, keep its values, and survive late updates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from heard import told
from hypothesis import example, given, settings, strategies as st
from pyspark.sql.types import BooleanType, StructField, StructType
from test_merge_causes import SCHEMA as ORDERS
from thorough import examples

from kinesis_trident import Outcomes, merge_into
from kinesis_trident.bolt.errors import SinkError
from kinesis_trident.bolt.testing.local_frames import LocalFrame, LocalSession
from kinesis_trident.common.arrow_schemas import arrow_schema

SCHEMA = StructType([*ORDERS.fields, StructField("gone", BooleanType())])
CREATE = (
    "CREATE TABLE orders (order_id VARCHAR(9) PRIMARY KEY, version INTEGER, amount DOUBLE PRECISION{}, "
    "gone BOOLEAN NOT NULL DEFAULT FALSE)"
)

Row = tuple[str, int, float | None, bool | None]
Table = dict[str, tuple[int, float | None, bool]]


def changes(*rows: Row) -> LocalFrame:
    """Return a frame of rows, whose message ids are m0, m1 ..."""
    values = [dict(zip(SCHEMA.names, (f"m{i}", *row), strict=True)) for i, row in enumerate(rows)]
    return LocalSession().frame(SCHEMA, [[pa.RecordBatch.from_pylist(values, arrow_schema(SCHEMA))]])


def merge(database: str, txid: int, *rows: Row, epoch: int = 1, **more: Any) -> dict[str, str]:
    """Merge a batch; return the reasons of the records that failed."""
    outcomes = Outcomes(epoch, "orders-job", txid)
    given = {"key": "order_id", "order_by": "version", "deleted": "gone"} | more
    frame: Any = changes(*rows)
    merge_into(frame, outcomes, database, "orders", **given)
    return told(outcomes)


def table_of(engine: sa.Engine) -> Table:
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT order_id, version, amount, gone FROM orders")
        return {key: (version, amount, bool(gone)) for key, version, amount, gone in found}


# What a row holds follows from its key, order and kind: of equal ones any may stay.
ROWS = st.lists(
    st.tuples(st.sampled_from("aAb"), st.integers(1, 6), st.booleans()).map(
        lambda row: (row[0], row[1], None if row[2] else float(10 * row[1] + (row[0] == "b")), row[2])
    ),
    max_size=6,
)
BATCHES = st.lists(st.lists(ROWS, min_size=1, max_size=2), min_size=1, max_size=4)
"""Of each batch the rows of its attempts: the last one counts."""


def expect(table: Table, rows: list[Row], *, not_null: bool) -> tuple[Table, set[str]]:
    """Merge the rows of a batch one by one, the oldest first; return the table, and the records that fail."""
    merged = dict(table)
    failed = set[str]()
    for place, (key, version, amount, gone) in sorted(
        enumerate(rows), key=lambda row: (row[1][1], bool(row[1][3]))
    ):
        if key in merged and (version, gone) <= (merged[key][0], merged[key][2]):
            # Late, or once more.
            continue
        if key in merged and gone:
            merged[key] = (version, merged[key][1], True)
        elif not (gone and not_null):
            merged[key] = (version, amount, bool(gone))
        elif all(row[3] for row in rows if row[0] == key):
            failed.add(f"m{place}")
    return merged, failed


@settings(max_examples=examples(40), deadline=None)
@given(batches=BATCHES, not_null=st.booleans())
# A late update and the deletion after it, and a deletion before the newest update: of which none is a row before.
@example(batches=[[[("a", 5, 50.0, False)]], [[("a", 4, 40.0, False), ("a", 6, None, True)]]], not_null=True)
@example(batches=[[[("a", 1, None, True), ("a", 2, 20.0, False)]], [[("a", 1, 10.0, False)]]], not_null=True)
def test_drawn_batches_leave_what_their_rows_would_one_by_one(
    batches: list[list[list[Row]]], not_null: bool
) -> None:
    with TemporaryDirectory() as folder:
        database = f"sqlite:///{Path(folder)}/orders.db"
        engine = sa.create_engine(database)
        with engine.begin() as connection:
            connection.exec_driver_sql(CREATE.format(" NOT NULL" if not_null else ""))
        expected: Table = {}
        for txid, attempts in enumerate(batches, 1):
            for epoch, rows in enumerate(attempts, 1):
                failed = merge(database, txid, *rows, epoch=txid * 10 + epoch)
                found, refused = expect(expected, rows, not_null=not_null)
                assert table_of(engine) == found
                assert failed.keys() == refused
            expected = found
        engine.dispose()


@pytest.fixture
def engine(database: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(database)
    yield made
    made.dispose()


@pytest.mark.parametrize("by_driver", [1 << 20, 0])
def test_a_deletion_of_keys_alone_keeps_the_row_and_survives_late_updates(
    engine: sa.Engine, database: str, by_driver: int
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(CREATE.format(" NOT NULL"))
    more = {"bytes_by_driver": by_driver}
    first: list[Row] = [(key, 1, 1.0, False) for key in "abcd"]
    assert not merge(database, 1, *first, **more)
    second: list[Row] = [
        ("a", 3, None, True),
        # An update and the deletion of its instant, after it; a key that is new, and deleted at once.
        ("b", 3, None, True),
        ("b", 3, 3.0, False),
        ("n", 2, None, True),
        ("n", 1, 4.0, False),
        ("x", 1, None, True),
        ("d", None, None, True),  # type: ignore[list-item]
        ("d", 5, 5.0, None),
    ]
    failed = merge(database, 2, *second, **more)
    assert "amount" in failed.pop("m5")
    assert failed == {"m6": "column 'version' is null", "m7": "column 'gone' is null"}
    merged = {
        "a": (3, 1.0, True),
        "b": (3, 3.0, True),
        "c": (1, 1.0, False),
        "d": (1, 1.0, False),
        "n": (2, 4.0, True),
    }
    assert table_of(engine) == merged
    # The batch comes again, with fewer rows, and as it was.
    merge(database, 2, ("a", 2, 2.0, False), epoch=2, **more)
    assert table_of(engine) == dict.fromkeys("abcd", (1, 1.0, False)) | {"a": (2, 2.0, False)}
    merge(database, 2, *second, epoch=3, **more)
    assert table_of(engine) == merged
    # Late, of the same instant, and newer: a key that lives again.
    third: list[Row] = [
        ("a", 2, 9.0, False),
        ("b", 3, 9.0, False),
        ("n", 3, 5.0, False),
        ("c", 2, None, True),
    ]
    assert not merge(database, 3, *third, epoch=3, **more)
    assert table_of(engine) == merged | {"n": (3, 5.0, False), "c": (2, 1.0, True)}


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_what_the_table_refuses_is_no_row_that_a_deletion_keeps(engine: sa.Engine, database: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(CREATE.format(" NOT NULL CHECK (amount < 100)"))
    failed = merge(database, 1, ("a", 3, 100.0, False), ("a", 2, None, True), ("a", 1, 1.0, False))
    assert failed.keys() == {"m0"}
    assert table_of(engine) == {"a": (2, 1.0, True)}


@settings(max_examples=examples(40), deadline=None)
@given(batches=st.lists(ROWS, min_size=1, max_size=4), bad=st.sets(st.integers(1, 6)), not_null=st.booleans())
@example(
    batches=[[("a", 1, 10.0, False)], [("a", 2, 20.0, False), ("a", 3, None, True)]], bad={2}, not_null=True
)
@example(
    batches=[[("a", n, 10.0 * n, False) for n in (1, 2)] + [("a", n, None, True) for n in (3, 4)]],
    bad={2},
    not_null=True,
)
def test_a_row_that_the_table_refuses_takes_no_deletion_after_it_along(
    batches: list[list[Row]], bad: set[int], not_null: bool
) -> None:
    amounts = [10 * version + own for version in bad for own in (0, 1)]
    check = f" CHECK (amount NOT IN ({', '.join(map(str, amounts or [0]))}))"
    with TemporaryDirectory() as folder:
        database = f"sqlite:///{Path(folder)}/orders.db"
        engine = sa.create_engine(database)
        with engine.begin() as connection:
            connection.exec_driver_sql(CREATE.format((" NOT NULL" if not_null else "") + check))
        expected: Table = {}
        for txid, rows in enumerate(batches, 1):
            good = [row for row in rows if row[3] or row[1] not in bad]
            failed = merge(database, txid, *rows)
            names = {f"m{place}" for place, row in enumerate(rows) if row in good}
            expected, refused = expect(expected, good, not_null=not_null)
            assert table_of(engine) == expected
            assert len(failed.keys() & names) == len(refused)
        engine.dispose()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"order_by": []}, "order_by names no column"),
        ({"order_by": "gone"}, "deleted names 'gone', and order_by no other column. Name there the time"),
        (
            {"deleted": "gnoe"},
            "deleted names 'gnoe', which is not a column of the rows. The rows have amount",
        ),
        ({"deleted": "amount"}, "deleted names 'amount', which is double. Select a boolean"),
        ({"key": ["order_id", "gone"]}, "deleted names 'gone', which is in key. Name a column beside it"),
    ],
)
def test_a_column_that_cannot_tell_deletions_is_refused(
    database: str, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(SinkError, match=f"^merge_into: {said}"):
        merge(database, 1, ("a", 1, 1.0, False), **given)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_table_without_the_column_is_refused_and_one_that_is_created_has_it(
    engine: sa.Engine, database: str
) -> None:
    merge(database, 1, ("a", 1, None, True))
    assert table_of(engine) == {"a": (1, None, True)}
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE orders DROP COLUMN gone")
    with pytest.raises(SinkError, match="column 'gone' is boolean, in the table missing"):
        merge(database, 2, ("a", 2, 1.0, False))
