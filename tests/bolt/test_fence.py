"""The fence of a database: of two runs the newer one's transactions count, whatever the older one wakes up in."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from harness import eventually
from thorough import examples

from kinesis_trident import Outcomes, begin_fenced
from kinesis_trident.bolt.errors import FenceHeldError, SinkError, StaleBatchError, TargetAwayError
from kinesis_trident.bolt.sinks.fence import _ENDS_TRANSACTION, FENCE
from kinesis_trident.checkpoint.errors import FencedError

SERVERS = pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)
ROWS = sa.Table(
    "written",
    sa.MetaData(),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("epoch", sa.Integer),
    mysql_engine="InnoDB",
)
PATIENCE = 60
SNAPSHOTS = "SET SESSION innodb_snapshot_isolation = ON"
WAITING = (
    "SELECT COUNT(*) FROM information_schema.processlist "
    "WHERE info LIKE 'UPDATE kt_fence%%' AND state = 'Updating' AND time_ms > 100"
)

Connect = Callable[..., sa.Engine]


@pytest.fixture
def connect(database: str) -> Iterator[Connect]:
    """`connect()`: an engine of a process of its own."""
    with ExitStack() as ending:

        def make(url: str = database, **options: object) -> sa.Engine:
            engine = sa.create_engine(url, **options)
            ending.callback(engine.dispose)
            return engine

        ROWS.create(make())
        yield make


def write(
    engine: sa.Engine,
    epoch: int,
    txid: int = 1,
    timeout: float = 60,
    then: Callable[[sa.Connection], object] = lambda _: None,
) -> None:
    """Write a row, and do something else in the same transaction."""
    with begin_fenced(engine, Outcomes(epoch, "orders", txid), timeout=timeout) as connection:
        connection.execute(ROWS.insert().values(epoch=epoch))
        then(connection)


def session_of(connection: sa.Connection) -> int:
    postgres = connection.dialect.name == "postgresql"
    return connection.exec_driver_sql(
        "SELECT pg_backend_pid()" if postgres else "SELECT CONNECTION_ID()"
    ).scalar_one()  # type: ignore[no-any-return]


def end_session(engine: sa.Engine, session: int) -> None:
    postgres = engine.dialect.name == "postgresql"
    with engine.connect() as connection:
        connection.exec_driver_sql(
            f"SELECT pg_terminate_backend({session})" if postgres else f"KILL {session}"
        )


def written(engine: sa.Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(sa.select(ROWS.c.epoch).order_by(ROWS.c.number)).scalars())


def fence(engine: sa.Engine) -> list[tuple[str, int, int]]:
    with engine.connect() as connection:
        rows = sa.select(FENCE.c.application, FENCE.c.epoch, FENCE.c.txid).order_by(FENCE.c.application)
        return [tuple(row) for row in connection.execute(rows)]


def test_an_older_run_writes_nothing_once_a_newer_one_has_written(connect: Connect) -> None:
    older, newer = connect(), connect()
    write(older, 1)
    write(older, 1)
    write(newer, 3)
    with pytest.raises(
        FencedError, match="its epoch is 3, this run has epoch 1 and writes nothing"
    ) as raised:
        write(older, 1)
    assert (raised.value.epoch, raised.value.by_epoch) == (1, 3)
    write(newer, 3, txid=2)
    assert written(newer) == [1, 1, 3, 3]
    assert fence(newer) == [("orders", 3, 2)]


def test_a_batch_before_the_last_one_is_not_written(connect: Connect) -> None:
    """ZooKeeper was wiped: the application's txids start over, and would replace other batches' rows."""
    engine = connect()
    write(engine, 1, txid=7)
    with pytest.raises(StaleBatchError, match=r"has written batch 7 .* so batch 1 is not written"):
        write(engine, 2, txid=1)
    assert written(engine) == [1]


def test_each_application_has_a_fence_of_its_own(connect: Connect) -> None:
    engine = connect()
    for name in ("orders", "Orders", "orders 2"):
        with begin_fenced(engine, Outcomes(len(name), name, 1)):
            pass
    assert fence(engine) == sorted((name, len(name), 1) for name in ("orders", "Orders", "orders 2"))


def test_an_error_in_the_block_rolls_all_of_it_back(connect: Connect) -> None:
    engine = connect()
    write(engine, 1)
    with pytest.raises(sa.exc.DBAPIError, match="nowhere"):
        write(engine, 2, txid=2, then=lambda connection: connection.exec_driver_sql("DELETE FROM nowhere"))
    assert written(engine) == [1]
    assert fence(engine) == [("orders", 1, 1)]


@SERVERS
def test_the_database_ends_the_transaction_of_a_paused_run_for_the_newer_one(connect: Connect) -> None:
    older, newer = connect(), connect()

    def sleep(connection: sa.Connection) -> None:
        # Its own minute: a loaded machine stands still for a second.
        write(newer, 2)
        connection.execute(ROWS.insert().values(epoch=1))

    with pytest.raises(TargetAwayError, match="has ended the transaction of batch 1") as raised:
        write(older, 1, timeout=1, then=sleep)
    assert "compute the rows before it" in str(raised.value)
    assert written(newer) == [2]
    # Its connections are of use again.
    with pytest.raises(FencedError):
        write(older, 1)


@SERVERS
def test_a_run_that_writes_for_long_is_waited_for_and_then_named(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinesis_trident.bolt.sinks.fence._MARGIN", 0)
    older, newer = connect(), connect()
    begun = threading.Event()
    sessions: list[int] = []

    def long(connection: sa.Connection) -> None:
        sessions.append(session_of(connection))
        begun.set()
        postgres = connection.dialect.name == "postgresql"
        connection.exec_driver_sql("SELECT pg_sleep(60)" if postgres else "SELECT SLEEP(60)")

    with ThreadPoolExecutor() as pool:
        running = pool.submit(write, older, 1, then=long)
        assert begun.wait(PATIENCE)
        with pytest.raises(FenceHeldError, match=r"'orders' in .* stays locked"):
            write(newer, 2, timeout=1)
        # What the error advises.
        end_session(newer, *sessions)
        with pytest.raises(TargetAwayError, match="has ended the transaction"):
            running.result(PATIENCE)
    write(newer, 2)
    assert written(newer) == [2]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_sqlite_waits_as_long_as_its_connection_does(connect: Connect) -> None:
    older, newer = connect(), connect(connect_args={"timeout": 0.1})
    with begin_fenced(older, Outcomes(1, "orders", 1)) as connection:
        connection.execute(ROWS.insert().values(epoch=1))
        with pytest.raises(FenceHeldError, match="'orders' in sqlite"):
            write(newer, 2)
    write(newer, 2)
    assert written(newer) == [1, 2]


def take_over(older: sa.Engine, newer: sa.Engine, waits: Callable[[], bool]) -> list[int]:
    """Let a newer run replace what an older one wrote twice for a batch, the second time while the newer one waits."""

    def replace() -> None:
        with begin_fenced(newer, Outcomes(2, "orders", 1)) as connection:
            connection.execute(ROWS.delete())
            connection.execute(ROWS.insert().values(epoch=2))

    write(older, 1)
    with ThreadPoolExecutor() as pool:
        with begin_fenced(older, Outcomes(1, "orders", 1)) as connection:
            connection.execute(ROWS.insert().values(epoch=1))
            running = pool.submit(replace)
            eventually(waits, "the newer run to wait", PATIENCE)
        running.result(PATIENCE)
    return written(newer)


@SERVERS
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_newer_run_that_waited_sees_what_the_older_one_has_committed(connect: Connect, level: str) -> None:
    """It replaces those rows: with the database as it was before the wait it would leave them."""
    older, newer = (connect(isolation_level=level) for _ in range(2))
    waits = threading.Event()

    @sa.event.listens_for(newer, "before_cursor_execute")
    def arrives(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE"):
            waits.set()

    assert take_over(older, newer, waits.is_set) == [2]


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_a_newer_run_begins_again_where_its_snapshot_is_too_old(connect: Connect) -> None:
    """MariaDB from 11.6 on refuses by default to change rows that are newer than what a transaction sees."""
    strict = {"isolation_level": "SERIALIZABLE", "connect_args": {"init_command": SNAPSHOTS}}
    older, newer, other = connect(**strict), connect(**strict), connect()

    def waits() -> bool:
        with other.connect() as connection:
            return bool(connection.exec_driver_sql(WAITING).scalar())

    assert take_over(older, newer, waits) == [2]


@pytest.mark.parametrize("seed", range(examples(3)))
def test_of_runs_that_begin_and_write_at_once_each_write_is_newer_than_those_before(
    connect: Connect, seed: int
) -> None:
    """The first use included: all of them create the table and the row."""
    rng = random.Random(seed)
    runs = [rng.sample(range(1, 7), 6) for _ in range(4)]
    start = threading.Barrier(len(runs))

    def run(epochs: list[int]) -> list[int]:
        engine, done = connect(), []
        start.wait(PATIENCE)
        for epoch in epochs:
            with suppress(FencedError):
                write(engine, epoch)
                done.append(epoch)
        return done

    with ThreadPoolExecutor(len(runs)) as pool:
        done = [epoch for epochs in pool.map(run, runs) for epoch in epochs]
    found = written(connect())
    assert found == sorted(found)
    assert sorted(done) == found
    assert fence(connect()) == [("orders", 6, 1)]


@SERVERS
def test_a_connection_that_died_between_two_batches_is_made_anew(connect: Connect) -> None:
    engine = connect()
    with engine.connect() as connection:
        session = session_of(connection)
    end_session(connect(), session)
    write(engine, 1)
    assert written(engine) == [1]


@pytest.mark.parametrize("level", ["engine", "option"])
def test_statements_that_commit_by_themselves_are_refused(connect: Connect, level: str) -> None:
    engine = (
        connect(isolation_level="AUTOCOMMIT")
        if level == "engine"
        else connect().execution_options(isolation_level="AUTOCOMMIT")
    )
    with pytest.raises(SinkError, match="Create the engine without isolation_level='AUTOCOMMIT'"):
        write(engine, 1)
    assert written(engine) == []


@pytest.mark.parametrize(
    ("ends", "statements"),
    [
        (
            True,
            "COMMIT; BEGIN; begin work; START TRANSACTION; ROLLBACK; SET autocommit=1; SET SESSION autocommit = 0; "
            "SET @@session.autocommit=1; GRANT ALL ON t TO u; ANALYZE TABLE t; OPTIMIZE LOCAL TABLE t; "
            "create  table t; /* a */ -- b\n DROP TABLE t; # c\nTRUNCATE t",
        ),
        (
            False,
            "CREATE  TEMPORARY TABLE t; CREATE OR REPLACE TEMPORARY TABLE t; DROP TEMPORARY TABLE t; SAVEPOINT s; "
            "ROLLBACK TO SAVEPOINT s; rollback work to s; SELECT 1; INSERT INTO commits VALUES (1); SET @a = 1; "
            "ANALYZE FORMAT=JSON SELECT 1",
        ),
    ],
)
def test_which_statements_end_a_transaction_of_mariadb(ends: bool, statements: str) -> None:
    for one in statements.split("; "):
        assert (_ENDS_TRANSACTION.match(one) is not None) is ends, one


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
@pytest.mark.parametrize(
    "ddl", ["CREATE TABLE more (n int)", "/* all */ truncate table written", "DROP TABLE written", "COMMIT"]
)
def test_a_statement_at_which_mariadb_commits_is_refused(connect: Connect, ddl: str) -> None:
    engine = connect()
    write(
        engine, 1, then=lambda connection: connection.exec_driver_sql("CREATE TEMPORARY TABLE some (n int)")
    )
    with pytest.raises(SinkError, match="MySQL and MariaDB end a transaction at"):
        write(engine, 1, then=lambda connection: connection.exec_driver_sql(ddl))
    assert written(engine) == [1]


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_a_connection_of_the_pool_keeps_its_settings(connect: Connect) -> None:
    engine = connect(
        pool_size=1,
        max_overflow=0,
        connect_args={"init_command": "SET wait_timeout = 1234, innodb_lock_wait_timeout = 56"},
    )

    def settings(connection: sa.Connection) -> tuple[int, ...]:
        asked = "SELECT @@SESSION.wait_timeout, @@SESSION.innodb_lock_wait_timeout"
        return tuple(connection.exec_driver_sql(asked).one())

    found: list[tuple[int, ...]] = []
    write(engine, 2, timeout=3, then=lambda connection: found.append(settings(connection)))
    with pytest.raises(FencedError):
        write(engine, 1, timeout=3)
    with pytest.raises(sa.exc.DBAPIError, match="nowhere"):
        write(engine, 2, timeout=3, then=lambda connection: connection.exec_driver_sql("DELETE FROM nowhere"))
    assert found == [(3, 56)]
    with engine.connect() as connection:
        assert settings(connection) == (1234, 56)


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_user_who_may_not_create_the_table_is_told_how(connect: Connect, database: str) -> None:
    admin = connect()
    schema = database.rpartition("%3D")[2]
    user = f"writer_{schema}"
    with admin.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {user} LOGIN")
        connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {schema} TO {user}")
        connection.exec_driver_sql(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {user}")
        connection.exec_driver_sql(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {user}")
    writer = connect(database.replace("//postgres@", f"//{user}@"))
    with pytest.raises(SinkError, match=r"refused to create kt_fence .*permission denied") as raised:
        write(writer, 1)
    with admin.begin() as connection:
        connection.exec_driver_sql(str(raised.value).rpartition("another one: ")[2])
        connection.exec_driver_sql(f"GRANT ALL ON kt_fence TO {user}")
    write(writer, 1)
    assert written(writer) == [1]


def test_what_is_no_engine_of_a_known_database_is_refused() -> None:
    for given, said in (("sqlite://", "str"), (sa.create_mock_engine("oracle://", print), "MockConnection")):
        with (
            pytest.raises(SinkError, match=f"begin_fenced cannot use {said}"),
            begin_fenced(given, Outcomes()),
        ):  # type: ignore[arg-type]
            pass


def test_the_block_of_a_test_without_a_run(tmp_path: Path) -> None:
    """A user's test of `write` gives it `Outcomes()`."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/test.db")
    for _ in range(2):
        with begin_fenced(engine, Outcomes()) as connection:
            assert connection.in_transaction()
    engine.dispose()
