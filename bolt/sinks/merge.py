"""Merges a batch into a table of a database exactly once: of each key the newest row stays, in one fenced transaction.

Tasks give few rows to the driver, which loads them in that transaction. A task with many loads them itself, under a
name of its own, so what a cancelled or repeated attempt of it has loaded counts for nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, DecimalType, LongType, StringType, StructField, StructType
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from kinesis_trident.bolt.errors import SinkError, TargetAwayError
from kinesis_trident.bolt.mark import Batch
from kinesis_trident.bolt.outcomes import Outcomes
from kinesis_trident.bolt.sinks.fence import begin_fenced, bound_waits, describe, sink_error
from kinesis_trident.bolt.sinks.fitting import UNFIT, Fitting, Unfit, has_ids
from kinesis_trident.bolt.sinks.kinds import (
    DOUBLE,
    NAN,
    NOT_FINITE,
    TOO_EXACT,
    checks_of,
)
from kinesis_trident.bolt.sinks.merge_loading import load_rows, marks_of
from kinesis_trident.bolt.sinks.merge_rows import ChangedMeanwhileError, Merging
from kinesis_trident.bolt.sinks.merge_tables import MergeTables, open_tables
from kinesis_trident.bolt.steps.poison import ColumnCheck, Poison
from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.common.arrow_streams import from_stream, to_stream
from kinesis_trident.common.database import Cause, cause_of, engine_of, is_mysql

_TRIES = 10
"""Transactions, each of which gave way to another writer of the table."""

_AT_ONCE = 10_000
"""Rows in one call of the database's driver."""

_LOADED = StructType(
    [
        StructField("load", StringType()),
        StructField("rows", LongType()),
        StructField("arrow", BinaryType()),
        *UNFIT,
    ]
)
"""The row that a task gives instead of its own: a load, or rows as an Arrow stream; and the records that do not fit."""


def merge_into(
    df: DataFrame,
    outcomes: Outcomes,
    url: str | sa.URL,
    table: str,
    *,
    key: str | Sequence[str],
    order_by: str | Sequence[str],
    deleted: str | None = None,
    timeout: float = 60,
    bytes_by_driver: int = 1 << 20,
) -> None:
    """Merge the rows of a batch into a table of a database: of each key the newest row stays.

        def write(df, txid, outcomes):
            merge_into(df, outcomes, "postgresql+psycopg://user:password@host/shop", "orders",
                key="order_id", order_by="updated_at")

    A row of a new key is inserted, and one that is newer than the table's updates the columns that it has. Older and
    equal ones, late events and duplicates, change nothing. What an earlier attempt at this batch has merged is taken
    back first. The table is created if it does not exist.

    A record that the table cannot hold, as its key is null or a text is too long, fails alone if the rows have the
    column `messageId`, which need not be in the table.

    Args:
        df: the rows; their names are those of the table's columns.
        outcomes: the third argument of `write`.
        url: of SQLAlchemy, of a PostgreSQL, MySQL, MariaDB or SQLite database.
        table: the name of the table, or `schema.table`. One application writes a key of it.
        key: the columns of a primary key or of a unique index.
        order_by: the columns of which the greatest values are the newest, such as a time or a version.
        deleted: a boolean column. A row in which it is true deletes its key: it stays in the table, so that older rows
            change nothing, and is newer than others that `order_by` finds equal. It keeps the values of the row that it
            deletes; its own columns beside `key` and `order_by` may be null. A newer row brings the key back.
        timeout: see `begin_fenced`. The transaction waits no longer for a lock of another one either.
        bytes_by_driver: the bytes of rows that a task gives to the driver. A task with more writes them into a table
            beside the table, and needs SQLAlchemy, the database's driver and a way to the database.

    Raises:
        FencedError: a newer run has written to this database; nothing of this batch was merged.
        StaleBatchError: this application has written a later batch to it; nothing was merged.
        TargetAwayError: the database does not answer, or gives way to other writers: the batch is tried again in place.
        TableChangedError: the table was altered meanwhile: the batch is tried again with it as it is now.
        SinkError: the table has other columns than the rows or no such key, or the database refuses the rows.
    """
    keys, order = _names(key), _names(order_by)
    address = sa.make_url(url)
    engine = _engine(address)
    with _telling(engine):
        tables = open_tables(engine, table, outcomes.application, df.schema, keys, order, deleted)
    fitting = _fitting(tables, df.schema, address)
    loader = _Loader(address, tables, fitting, outcomes.batch, bytes_by_driver)
    loaded = [_Loaded(**row.asDict()) for row in df.mapInArrow(loader, _LOADED).collect()]
    outcomes.refuse(_MergeSink(engine, tables, timeout).write(loader, outcomes, loaded, df.schema))


def _names(columns: str | Sequence[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


@dataclass
class _Loaded:
    """A row of `_LOADED`."""

    load: str | None
    rows: int
    arrow: bytes | None
    ids: list[str]
    reasons: list[str]


@dataclass(frozen=True)
class _MergeSink:
    """A table as it was when the batch began."""

    engine: sa.Engine
    tables: MergeTables
    timeout: float

    def write(
        self, loader: _Loader, outcomes: Outcomes, loaded: Sequence[_Loaded], schema: StructType
    ) -> dict[str, str]:
        """Merge what the tasks have loaded, and the rows that they gave; return the reasons of the others."""
        unfit = Unfit()
        for one in loaded:
            unfit.add(one.ids, one.reasons)
        unfit.refuse_nameless(schema, self.where)
        # Of a load without rows nothing is left: the database has refused each of them.
        loads = {one.load: one.rows for one in loaded if one.load is not None and one.rows}

        refused: dict[str, str] = {}

        def load(connection: sa.Connection) -> str | None:
            name, more = uuid.uuid4().hex, Unfit()
            for one in loaded:
                if one.arrow is not None:
                    for batch in from_stream(one.arrow).to_batches():
                        loader.load(connection, name, batch, more)
            more.refuse_nameless(schema, self.where)
            # The try before was taken back, with what was refused in it.
            refused.clear()
            refused.update(more.reasons)
            return name if any(one.arrow for one in loaded) else None

        try:
            with _telling(self.engine, self.where):
                for attempt in Retrying(
                    stop=stop_after_attempt(_TRIES),
                    wait=wait_random_exponential(multiplier=0.05, max=5),
                    retry=retry_if_exception(_gave_way),
                    reraise=True,
                ):
                    with attempt, begin_fenced(self.engine, outcomes, timeout=self.timeout) as connection:
                        bound_waits(connection, self.timeout)
                        self.tables.refuse_changes(connection)
                        found = Merging(connection, self.tables, outcomes.batch).merge(loads, load)
                        more = Unfit()
                        more.add(found.keys(), found.values())
                        more.refuse_nameless(schema, self.where)
                        refused.update(more.reasons)
        except ChangedMeanwhileError as error:
            raise TargetAwayError(str(error)) from None
        return refused | unfit.reasons

    @property
    def where(self) -> str:
        """Return the table's name and place, for errors."""
        return f"table {self.tables.target.fullname} of {describe(self.engine)}"


def _gave_way(error: BaseException) -> bool:
    """Return whether another transaction came first: locked other rows first, or has inserted one of the keys."""
    if isinstance(error, ChangedMeanwhileError):
        return True
    # begin_fenced has put it into words.
    return cause_of(error.__cause__ if isinstance(error, TargetAwayError) else error) in (
        Cause.CONFLICT,
        Cause.TAKEN,
    )


@contextmanager
def _telling(engine: sa.Engine, where: str = "") -> Iterator[None]:
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise sink_error(error, engine, where) from error


def _engine(url: sa.URL) -> sa.Engine:
    try:
        return engine_of(url)
    except ImportError as error:
        msg = f"merge_into needs the driver of {url.drivername} ({error}). Install it, on the executors too"
        raise SinkError(msg) from error


def _fitting(tables: MergeTables, schema: StructType, url: sa.URL) -> Fitting:
    """Return which rows a table takes."""
    strict: dict[str, Poison] = {}
    if is_mysql(url):
        strict = dict.fromkeys(tables.columns, NOT_FINITE)
    elif url.get_backend_name() == "sqlite":
        # It takes a NaN for null.
        strict = dict.fromkeys(tables.columns, NAN)
    # To PostgreSQL a NaN is newer than each number: it would hide every later row of its key.
    deciding = (*tables.key, *tables.order_by)
    strict.update(dict.fromkeys(deciding, NOT_FINITE))
    checks = checks_of(schema, tables.columns, strict)
    if url.get_backend_name() == "sqlite":
        # It has doubles for decimals: two keys would become one, or a newer row an equal one.
        checks += [
            ColumnCheck(name, name, TOO_EXACT)
            for name in deciding
            if isinstance(kind := schema[name].dataType, DecimalType) and kind.precision > DOUBLE
        ]
    return Fitting(tables.required, checks, has_ids(schema), tables.spared)


@dataclass(frozen=True)
class _Loader:
    """Loads the rows of a task, or gives them to the driver; for `mapInArrow` with the schema `_LOADED`."""

    url: sa.URL
    tables: MergeTables
    fitting: Fitting
    attempt: Batch
    bytes_by_driver: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row: where the task's rows are."""
        unfit = Unfit()
        few: list[pa.RecordBatch] = []
        for batch in batches:
            few.append(self.fitting.fit(batch, unfit))
            if sum(one.nbytes for one in few) > self.bytes_by_driver:
                load, rows = self._load_all(few, batches, unfit)
                yield _loaded(load, rows, None, unfit)
                return
        few = [batch for batch in few if batch.num_rows]
        yield _loaded(None, sum(one.num_rows for one in few), to_stream(few) if few else None, unfit)

    def _load_all(
        self, first: Sequence[pa.RecordBatch], rest: Iterator[pa.RecordBatch], unfit: Unfit
    ) -> tuple[str, int]:
        name, rows = uuid.uuid4().hex, 0
        engine = _engine(self.url)
        with _telling(engine), engine.begin() as connection:
            for batch in first:
                rows += self.load(connection, name, batch, unfit)
            for batch in rest:
                rows += self.load(connection, name, self.fitting.fit(batch, unfit), unfit)
        return name, rows

    def load(self, connection: sa.Connection, name: str, batch: pa.RecordBatch, unfit: Unfit) -> int:
        """Insert rows; return how many. Those that the database does not take are added to `unfit`."""
        marks = marks_of(self.attempt, name)
        rows, refused = self._as_values(batch), dict[int, str]()
        for start in range(0, batch.num_rows, _AT_ONCE):
            part = rows.slice(start, _AT_ONCE)
            found = load_rows(connection, self.tables.batch, part, marks)
            refused.update((start + place, reason) for place, reason in found.items())
        unfit.add_places(self.fitting.ids_of(batch), refused)
        count: int = batch.num_rows - len(refused)
        return count

    def _as_values(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that are written; times are in UTC, without a zone where the table has none."""
        columns = self.tables.columns
        arrays: list[pa.Array] = []
        for name in columns:
            array = batch[name]
            if pa.types.is_timestamp(array.type) and array.type.tz is not None:
                has_zone = getattr(self.tables.target.c[name].type, "timezone", False)
                array = array.cast(pa.timestamp("us", "UTC" if has_zone else None))
            arrays.append(array)
        if self.fitting.has_ids:
            arrays.append(self.fitting.ids_of(batch))
            columns = [*columns, "kt_id"]
        return pa.RecordBatch.from_arrays(arrays, columns)


def _loaded(load: str | None, rows: int, arrow: bytes | None, unfit: Unfit) -> pa.RecordBatch:
    row = {"load": load, "rows": rows, "arrow": arrow, **unfit.columns()}
    return pa.RecordBatch.from_pylist([row], arrow_schema(_LOADED))
