"""Merges a batch into a table of a database exactly once: of each key the newest row stays, in one fenced transaction.

Tasks give few rows to the driver, which loads them in that transaction. A task with many loads them itself, under a
name of its own, so what a cancelled or repeated attempt of it has loaded counts for nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructType
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from kinesis_trident.bolt.errors import SinkError, TargetAwayError
from kinesis_trident.bolt.mark import Batch
from kinesis_trident.bolt.outcomes import Outcomes
from kinesis_trident.bolt.sinks.fence import begin_fenced, bound_waits, describe, sink_error
from kinesis_trident.bolt.sinks.merge_rows import ChangedMeanwhileError, Merging
from kinesis_trident.bolt.sinks.merge_tables import MESSAGE_ID, MergeTables, load_rows, marks_of, open_tables
from kinesis_trident.common.database import Cause, cause_of, engine_of, is_mysql

_TRIES = 10
"""Transactions, each of which gave way to another writer of the table."""

_DAY = 24 * 3600 * 1_000_000
"""In microseconds."""

_AT_ONCE = 10_000
"""Rows in one call of the database's driver."""

_LOADED = (
    StructType()
    .add("load", StringType())
    .add("rows", LongType())
    .add("arrow", BinaryType())
    .add("ids", ArrayType(StringType()))
    .add("reasons", ArrayType(StringType()))
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
        tables = open_tables(engine, table, outcomes.application, df.schema, keys, order)
    loader = _Loader(address, tables, outcomes.batch, bytes_by_driver)
    loaded = [_Loaded(**row.asDict()) for row in df.mapInArrow(loader, _LOADED).collect()]
    _MergeSink(engine, tables, timeout).write(loader, outcomes, loaded)


def _nameless(table: str, reason: str) -> str:
    return (
        f"a row does not fit into table {table}: {reason}. Keep the column {MESSAGE_ID!r} in the rows: then such "
        "records fail alone. It need not be in the table"
    )


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

    def write(self, loader: _Loader, outcomes: Outcomes, loaded: Sequence[_Loaded]) -> None:
        """Merge what the tasks have loaded, and the rows that they gave."""
        refused = {k: v for one in loaded for k, v in zip(one.ids, one.reasons, strict=True)}
        loads = {one.load: one.rows for one in loaded if one.load is not None}

        def load(connection: sa.Connection) -> str | None:
            name = uuid.uuid4().hex
            for one in loaded:
                if one.arrow is not None:
                    for batch in pa.ipc.open_stream(one.arrow):
                        refused.update(loader.load(connection, name, batch)[1])
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
                        self._refuse_nameless(found)
        except ChangedMeanwhileError as error:
            raise TargetAwayError(str(error)) from None
        refused.update((name, reason) for name, reason in found.items() if name is not None)
        for reason in set(refused.values()):
            outcomes.fail([name for name, why in refused.items() if why == reason], reason)

    def _refuse_nameless(self, refused: Mapping[str | None, str]) -> None:
        if None in refused:
            raise SinkError(_nameless(self.tables.target.fullname, refused[None]))

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


@dataclass(frozen=True)
class _Loader:
    """Loads the rows of a task, or gives them to the driver; for `mapInArrow` with the schema `_LOADED`."""

    url: sa.URL
    tables: MergeTables
    attempt: Batch
    bytes_by_driver: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row: where the task's rows are."""
        refused: dict[str, str] = {}
        few: list[pa.RecordBatch] = []
        for batch in batches:
            few.append(self._fitting(batch, refused))
            if sum(one.nbytes for one in few) > self.bytes_by_driver:
                load, rows = self._load_all(few, batches, refused)
                yield _loaded(load, rows, None, refused)
                return
        few = [batch for batch in few if batch.num_rows]
        yield _loaded(None, sum(one.num_rows for one in few), _stream(few) if few else None, refused)

    def _load_all(
        self, first: Sequence[pa.RecordBatch], rest: Iterator[pa.RecordBatch], refused: dict[str, str]
    ) -> tuple[str, int]:
        name, rows = uuid.uuid4().hex, 0
        engine = _engine(self.url)
        with _telling(engine), engine.begin() as connection:
            for batch in first:
                rows += self._count(connection, name, batch, refused)
            for batch in rest:
                rows += self._count(connection, name, self._fitting(batch, refused), refused)
        return name, rows

    def _count(
        self, connection: sa.Connection, name: str, batch: pa.RecordBatch, refused: dict[str, str]
    ) -> int:
        count, more = self.load(connection, name, batch)
        refused.update(more)
        return count

    def load(self, connection: sa.Connection, name: str, batch: pa.RecordBatch) -> tuple[int, dict[str, str]]:
        """Insert rows; return how many, and the records that the database does not take, with its reasons."""
        marks = marks_of(self.attempt, name)
        rows, refused = self._as_values(batch), dict[str, str]()
        for start in range(0, batch.num_rows, _AT_ONCE):
            part = rows.slice(start, _AT_ONCE)
            for place, reason in load_rows(connection, self.tables.batch, part, marks).items():
                refused[self._message_id(batch, start + place, reason)] = reason
        return batch.num_rows - len(refused), refused

    def _fitting(self, batch: pa.RecordBatch, refused: dict[str, str]) -> pa.RecordBatch:
        """Return the rows without those that cannot be merged, which are added to `refused`."""
        fits = None
        for name, is_wrong, what in self._checks(batch):
            if not pc.any(is_wrong).as_py():
                continue
            for place in pc.indices_nonzero(is_wrong).to_pylist():
                reason = f"column {name!r} is {what}"
                refused[self._message_id(batch, place, reason)] = reason
            right = pc.invert(is_wrong)
            fits = right if fits is None else pc.and_(fits, right)
        return batch if fits is None else batch.filter(fits)

    def _checks(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array, str]]:
        for name in self.tables.required:
            yield name, pc.is_null(batch[name]), "null"
        for name in self.tables.columns:
            if pa.types.is_timestamp(batch[name].type) or pa.types.is_date(batch[name].type):
                yield name, _is_outside_of_calendar(batch[name]), "no time of the years 1 to 9999"
        if is_mysql(self.url):
            for name in self.tables.columns:
                if pa.types.is_floating(batch[name].type):
                    finite = pc.fill_null(pc.is_finite(batch[name]), fill_value=True)
                    yield name, pc.invert(finite), "no finite number"

    def _message_id(self, batch: pa.RecordBatch, place: int, reason: str) -> str:
        if MESSAGE_ID not in batch.schema.names:
            raise SinkError(_nameless(self.tables.target.fullname, reason))
        return str(batch[MESSAGE_ID][place].as_py())

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
        if MESSAGE_ID in batch.schema.names:
            arrays.append(batch[MESSAGE_ID].cast(pa.string()))
            columns = [*columns, "kt_id"]
        return pa.RecordBatch.from_arrays(arrays, columns)


def _is_outside_of_calendar(times: pa.Array) -> pa.Array:
    """Return which times databases and Python do not have: milliseconds, say, that were taken for seconds."""
    first, last = ((day - date(1970, 1, 1)).days for day in (date.min, date.max))
    if pa.types.is_date(times.type):
        numbers = times.cast(pa.int32())
    else:
        numbers, first, last = times.cast(pa.int64()), first * _DAY, (last + 1) * _DAY - 1
    outside = pc.or_(pc.less(numbers, first), pc.greater(numbers, last))
    return pc.fill_null(outside, fill_value=False)


def _stream(batches: Sequence[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    result: bytes = sink.getvalue().to_pybytes()
    return result


def _loaded(load: str | None, rows: int, arrow: bytes | None, refused: dict[str, str]) -> pa.RecordBatch:
    texts = pa.list_(pa.string())
    return pa.RecordBatch.from_arrays(
        [
            pa.array([load], pa.string()),
            pa.array([rows], pa.int64()),
            pa.array([arrow], pa.binary()),
            pa.array([list(refused)], texts),
            pa.array([list(refused.values())], texts),
        ],
        names=["load", "rows", "arrow", "ids", "reasons"],
    )
