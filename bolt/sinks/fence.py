"""A fence in a database: only the newest run of an application writes there, checked in the transaction that writes.

The driver checks its epoch in ZooKeeper before it calls `write`, but it can be paused inside `write` while a newer run
takes over. The fence is a row of the application in the sink's own database, with the epoch and the txid that wrote
last. Each transaction first raises it, and so holds its lock to the end. An older run that wakes finds a higher epoch,
and is rolled back. A newer run waits for the transaction of an older one, and one that is paused is ended for it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from kinesis_trident.bolt.errors import FenceHeldError, SinkError, TargetAwayError
from kinesis_trident.bolt.mark import Batch, WriterMark
from kinesis_trident.bolt.outcomes import Outcomes
from kinesis_trident.bolt.sinks.waits import saying_who_holds
from kinesis_trident.common.database import PASSING, Cause, cause_of, explain, place_of, words_of

FENCE = sa.Table(
    "kt_fence",
    sa.MetaData(),
    # The default collations of MySQL compare "a" equal to "A".
    sa.Column(
        "application",
        sa.Text().with_variant(
            mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
        ),
        primary_key=True,
    ),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("txid", sa.BigInteger, nullable=False),
    # A table of a release before has none.
    sa.Column("home", sa.String(255)),
    # Others have no transactions.
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)

_TRIES = 10
"""Attempts to lock the fence, each of which lost to a transaction that came first, or found a dead connection."""

_MARGIN = 5
"""Seconds that a newer run waits longer than the database lets an older one be idle."""

_NO_TXID = -1
"""While the row changes, for the database that would not change it otherwise."""

_ENDS_TRANSACTION = re.compile(
    r"""(?: \s | /\*.*?\*/ | (?:--|\#)[^\n]*\n )*
    (?P<what> ALTER | CREATE (?! \s+ (?:OR\s+REPLACE\s+)? TEMPORARY\b ) | DROP (?! \s+ TEMPORARY\b ) | FLUSH
      | GRANT | LOCK | RENAME | REVOKE
      | TRUNCATE | UNLOCK | (?:ANALYZE|CHECK|OPTIMIZE|REPAIR) \s+ (?:(?:LOCAL|NO_WRITE_TO_BINLOG)\s+)? TABLE
      | BEGIN (?=\s*(?:WORK\b|;|$)) | COMMIT | ROLLBACK (?! \s+ (?:WORK\s+)? TO\b ) | START \s+ TRANSACTION
      | SET \s+ (?:SESSION\s+|@@(?:SESSION\.)?)? autocommit
    ) \b""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
"""What commits a transaction of MySQL and MariaDB, or ends it: https://mariadb.com/kb/en/sql-statements-that-cause-an-implicit-commit/"""


@dataclass(frozen=True, slots=True)
class _Dialect:
    """What the fence needs from a kind of database, as SQL.

    Attributes:
        bound: bounds the wait for the fence (`wait`), and where the database does that by itself, the time for which
            the driver sends nothing (`idle`): both in seconds.
        unbound: lifts the bound of the wait, once the fence is locked.
        rebound: bounds the waits in the rest of the transaction (`wait`).
        proof: returns true in a transaction that an UPDATE has begun, false where each statement commits by itself.
        end_idle: ends the transaction that holds the fence, if it has sent nothing for `idle` seconds.
        restore: gives the connection the settings back that it had, for those that outlast the transaction.
        skips_same: whether an UPDATE to the values that a row has leaves it as it is.
    """

    bound: str = ""
    unbound: str = ""
    rebound: str = ""
    proof: str = ""
    end_idle: str = ""
    restore: str = ""
    skips_same: bool = False


_MYSQL = _Dialect(
    "SET @kt_wait = CAST(COALESCE(@kt_wait, @@SESSION.innodb_lock_wait_timeout) AS SIGNED), "
    "@kt_table = CAST(COALESCE(@kt_table, @@SESSION.lock_wait_timeout) AS SIGNED), "
    "@kt_idle = CAST(COALESCE(@kt_idle, @@SESSION.wait_timeout) AS SIGNED), "
    "SESSION innodb_lock_wait_timeout = {wait}, SESSION lock_wait_timeout = {wait}, SESSION wait_timeout = {idle}",
    "SET SESSION innodb_lock_wait_timeout = @kt_wait, SESSION lock_wait_timeout = @kt_table",
    "SET SESSION innodb_lock_wait_timeout = {wait}, SESSION lock_wait_timeout = {wait}",
    "SELECT @@SESSION.autocommit = 0",
    restore="SET SESSION innodb_lock_wait_timeout = @kt_wait, SESSION lock_wait_timeout = @kt_table, "
    "SESSION wait_timeout = @kt_idle, @kt_wait = NULL, @kt_table = NULL, @kt_idle = NULL",
    skips_same=True,
)
_DIALECTS = {
    "postgresql": _Dialect(
        "SET LOCAL lock_timeout = '1s'",
        "SET LOCAL lock_timeout TO DEFAULT",
        "SET LOCAL lock_timeout = '{wait}s'",
        "SELECT txid_current_if_assigned() IS NOT NULL",
        # Its own idle_in_transaction_session_timeout does not count after a pipeline, as psycopg's executemany is one.
        "SELECT pg_terminate_backend(pid) FROM kt_fence JOIN pg_locks ON transactionid = kt_fence.xmax AND granted "
        "JOIN pg_stat_activity USING (pid) WHERE application = :application AND mode = 'ExclusiveLock' "
        "AND state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - make_interval(secs => :idle)",
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    # It locks the database as a whole, for the `timeout` of its connection, and ends no transaction by itself.
    "sqlite": _Dialect(),
}


@contextmanager
def begin_fenced(engine: sa.Engine, outcomes: Outcomes, *, timeout: float = 60) -> Iterator[sa.Connection]:
    """Begin a transaction in which only the newest run of the application writes; the end of the block commits it.

        def write(df, txid, outcomes):
            rows = [row.asDict() for row in df.collect()]
            with begin_fenced(engine, outcomes) as connection:
                ...     # delete what this txid wrote before, and insert the rows

    The fence is a row of the application in the table `kt_fence`, which is created at the first use. The transaction
    locks it: those of one application follow one another.

    Args:
        engine: of SQLAlchemy, for PostgreSQL, MySQL, MariaDB or SQLite.
        outcomes: the third argument of `write`.
        timeout: the seconds after which a transaction is ended in which the driver sends nothing, so that a newer run
            need not wait for one that is paused: compute the rows before the block. With SQLite, which ends none, the
            connection's own `timeout` bounds the wait.

    Raises:
        FencedError: a newer run has written here; nothing of this transaction was written.
        StaleBatchError: this application has written a later batch here; nothing was written.
        TargetAwayError: the database does not answer, or has ended the transaction for another one, or a paused one:
            the batch is tried again in place. It is a FenceHeldError if another run's transaction has held the fence
            for longer than the timeout.
        SinkError: the engine cannot be used, or the database does not let this user in.
    """
    dialect = _DIALECTS.get(engine.dialect.name) if isinstance(engine, sa.Engine) else None
    if dialect is None:
        given = engine.dialect.name if isinstance(engine, sa.Engine) else type(engine).__name__
        msg = (
            f"begin_fenced cannot use {given}. Give it sqlalchemy.create_engine(...) of a PostgreSQL, MySQL, MariaDB "
            "or SQLite database"
        )
        raise SinkError(msg)
    is_begun = False
    try:
        what = f"batch {outcomes.txid} of {outcomes.application!r} in {describe(engine)}"
        with (
            engine.connect() as connection,
            _restoring(connection, dialect),
            saying_who_holds(connection, what),
        ):
            transaction = _Fence(connection, outcomes.batch, dialect, timeout).begin()
            if dialect is _MYSQL:
                sa.event.listen(connection, "before_cursor_execute", _refuse_implicit_commit)
            is_begun = True
            with transaction:
                yield connection
    except sa.exc.DBAPIError as error:
        cause = cause_of(error)
        if is_begun and cause not in PASSING:
            # It is of the block's own statements.
            raise
        told = sink_error(error, engine)
        if is_begun and cause is Cause.AWAY:
            msg = (
                f"{describe(engine)} has ended the transaction of batch {outcomes.txid} ({words_of(error)}). The batch "
                f"is tried again. Unless the connection failed, this driver was paused, or computed in the block of "
                f"begin_fenced, for more than {timeout:g} s: compute the rows before it"
            )
            told = TargetAwayError(msg)
        raise told from error


def bound_waits(connection: sa.Connection, timeout: float) -> None:
    """Let a transaction of `begin_fenced` wait at most so many seconds for a lock of another one."""
    if rebound := _DIALECTS[connection.dialect.name].rebound:
        connection.exec_driver_sql(rebound.format(wait=max(1, math.ceil(timeout))))


@contextmanager
def _restoring(connection: sa.Connection, dialect: _Dialect) -> Iterator[None]:
    try:
        yield
    finally:
        if dialect.restore and not connection.invalidated:
            # If the connection is dead, the pool finds out.
            with suppress(sa.exc.DBAPIError):
                connection.exec_driver_sql(dialect.restore)


@dataclass(frozen=True, slots=True)
class _Fence:
    """The fence of one transaction."""

    connection: sa.Connection
    batch: Batch
    dialect: _Dialect
    timeout: float

    def begin(self) -> sa.RootTransaction:
        """Begin a transaction that holds the fence."""
        tries, waits_until = 0, time.monotonic() + self._idle + _MARGIN
        while tries < _TRIES:
            tries += 1
            transaction = self.connection.begin()
            try:
                if self._raise():
                    return transaction
                transaction.rollback()
                self._make_row()
            except sa.exc.DBAPIError as error:
                transaction.rollback()
                cause = cause_of(error)
                if cause is Cause.LOCKED:
                    if not self.dialect.end_idle or time.monotonic() > waits_until:
                        raise self._held() from error
                    self._end_idle()
                    tries -= 1
                elif cause is Cause.NO_TABLE:
                    make_table(self.connection, FENCE)
                elif cause is not Cause.CONFLICT and not self.connection.invalidated:
                    if self._has_home():
                        raise
                    self._add_home()
            except BaseException:
                transaction.rollback()
                raise
        raise self._held()

    @property
    def _idle(self) -> int:
        return max(1, math.ceil(self.timeout))

    def _raise(self) -> bool:
        """Raise the fence to this run's epoch and txid; return False if the application has no fence yet."""
        connection, batch, dialect = self.connection, self.batch, self.dialect
        self._bound_wait()
        is_mine = FENCE.c.application == batch.application
        mine = FENCE.update().where(is_mine)
        # Always an update first, which locks the row, and of a row that changes: a transaction that sees the database
        # as it was before it got the lock would otherwise miss what the run before it has written. Here the fence tells
        # it to begin again.
        if not connection.execute(mine.values(epoch=FENCE.c.epoch)).rowcount:
            return False
        asked = sa.select(FENCE.c.epoch, FENCE.c.txid, FENCE.c.home).where(is_mine)
        row = connection.execute(asked.with_for_update()).one()
        mark = WriterMark(batch.application, row.epoch, row.txid, row.home or "")
        batch.meet(mark, describe(connection.engine))
        if dialect.skips_same:
            connection.execute(mine.values(txid=_NO_TXID))
        connection.execute(mine.values(epoch=batch.epoch, txid=batch.txid, home=batch.home or row.home))
        if not self._is_transaction():
            msg = (
                f"{describe(connection.engine)}: each statement commits by itself (AUTOCOMMIT), so nothing can be "
                "fenced. Create the engine without isolation_level='AUTOCOMMIT'"
            )
            raise SinkError(msg)
        if dialect.unbound:
            connection.exec_driver_sql(dialect.unbound)
        return True

    def _bound_wait(self) -> None:
        if self.dialect.bound:
            bound = self.dialect.bound.format(wait=self._idle + _MARGIN, idle=self._idle)
            self.connection.exec_driver_sql(bound)

    def _has_home(self) -> bool:
        """Return whether the table has the column that a release before has not made."""
        columns = sa.inspect(self.connection).get_columns(FENCE.name)
        self.connection.rollback()
        return any(column["name"] == FENCE.c.home.name for column in columns)

    def _add_home(self) -> None:
        """Add that column, in a transaction of its own; where another one holds a lock, nothing is done."""
        ddl = f"ALTER TABLE {FENCE.name} ADD COLUMN {sa.schema.CreateColumn(FENCE.c.home).compile(self.connection)}"
        try:
            with self.connection.begin():
                self._bound_wait()
                self.connection.exec_driver_sql(ddl)
        except sa.exc.DBAPIError as error:
            # Another run may have added it meanwhile.
            if cause_of(error) in PASSING or self._has_home():
                return
            msg = (
                f"{describe(self.connection.engine)} refused to alter {FENCE.name} ({words_of(error)}). Give "
                f"this user the right, or alter it as another one: {ddl}"
            )
            raise SinkError(msg) from error

    def _is_transaction(self) -> bool:
        if self.dialect.proof:
            return bool(self.connection.exec_driver_sql(self.dialect.proof).scalar())
        driver: Any = self.connection.connection.dbapi_connection
        return bool(driver.in_transaction)

    def _held(self) -> FenceHeldError:
        return FenceHeldError(
            f"the fence of application {self.batch.application!r} in {describe(self.connection.engine)} stays "
            "locked: another run's transaction is writing, or is paused and cannot be ended from here. The batch is "
            "tried again; if it stays so, end that run's process or its session in the database"
        )

    def _end_idle(self) -> None:
        # This user may see that session, and not be allowed to end it.
        with suppress(sa.exc.DBAPIError), self.connection.begin():
            asked = {"application": self.batch.application, "idle": self._idle}
            self.connection.execute(sa.text(self.dialect.end_idle), asked)

    def _make_row(self) -> None:
        try:
            with self.connection.begin():
                self.connection.execute(
                    FENCE.insert().values(application=self.batch.application, epoch=0, txid=0)
                )
        except sa.exc.DBAPIError as error:
            # Else another run has inserted it meanwhile.
            if cause_of(error) is not Cause.TAKEN:
                raise


def make_table(connection: sa.Connection, table: sa.Table) -> None:
    """Create a table, in a transaction of its own, unless another run has created it meanwhile.

    Raises:
        SinkError: the database refuses to.
    """
    try:
        with connection.begin():
            table.create(connection)
    except sa.exc.DBAPIError as error:
        # Databases report in different ways that it exists.
        if not sa.inspect(connection).has_table(table.name, table.schema):
            if cause_of(error) in PASSING:
                raise
            ddl = " ".join(str(sa.schema.CreateTable(table).compile(connection)).split())
            msg = (
                f"{describe(connection.engine)} refused to create {table.name} ({words_of(error)}). Give this "
                f"user the right, or create it as another one: {ddl}"
            )
            raise SinkError(msg) from error
        connection.rollback()


def _refuse_implicit_commit(_connection: sa.Connection, _cursor: object, statement: str, *_: object) -> None:
    if found := _ENDS_TRANSACTION.match(statement):
        msg = (
            f"MySQL and MariaDB end a transaction at {found['what'].split(maxsplit=1)[0].upper()}, which would end the "
            "fence. Do it outside of the block of begin_fenced"
        )
        raise SinkError(msg)


def describe(engine: sa.Engine) -> str:
    """Return the database's address without secrets."""
    return place_of(engine.url)


def sink_error(error: sa.exc.DBAPIError, engine: sa.Engine, where: str = "") -> SinkError:
    """Return the error of a sink for one of its database; `where`: the place there, if it is not the whole."""
    cause, said = explain(error, engine, where or describe(engine))
    return TargetAwayError(said) if cause in PASSING else SinkError(said)
