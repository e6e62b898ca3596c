"""Each cause of an error at each step of `merge_into`: the batch is tried again in place, or the query ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql.types import DoubleType, IntegerType, StringType, StructType

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
pytestmark = pytest.mark.parametrize("database", ["postgres"], indirect=True)


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


def test_a_conflict_is_tried_again_in_the_call(engine: sa.Engine, database: str) -> None:
    merge(orders(("a", 1, 1.0)), Outcomes(1, "job", 1), database)
    raise_at(engine, "commit", "40001", times=2)
    merge(orders(("a", 2, 2.0)), Outcomes(1, "job", 2), database)
    assert rows_of(engine) == [("a", 2, 2.0)]


@pytest.mark.parametrize("code", ["40P01", "57P01", "23514"])
def test_an_error_in_the_block_of_begin_fenced(engine: sa.Engine, database: str, code: str) -> None:
    """One that passes replays the batch; another one is the block's own, and stays as it is."""
    raising = f"DO $$ BEGIN RAISE 'broken' USING ERRCODE = '{code}'; END $$"
    expected = sa.exc.DBAPIError if code == "23514" else TargetAwayError
    with pytest.raises(expected, match="broken"), begin_fenced(engine, Outcomes(1, "job", 1)) as connection:
        connection.exec_driver_sql(raising)
