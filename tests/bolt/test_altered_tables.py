"""A table that others alter while a batch is merged into it: it holds the batch once, or this was refused in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from altering import CHANGES, CREATE, ENDS
from doc_tables import ALTERING_TABLE
from meanwhile import ADDED, AGAIN, REFUSED
from test_merge_causes import merge, orders
from thorough import CHAOS, cases

from kinesis_trident import Outcomes
from kinesis_trident.bolt.errors import BatchFailedError, SinkError, TableChangedError
from kinesis_trident.bolt.sinks.relied import Relied, ReliedColumn
from kinesis_trident.common.database import engine_of

WAITS = {
    "postgresql": "SET lock_timeout = '50ms'",
    "mysql": "SET lock_wait_timeout = 1, innodb_lock_wait_timeout = 1",
    "sqlite": "PRAGMA busy_timeout = 20",
}


class Interrupted:
    """Alters the table before one of the statements of a process, the first one being 0."""

    def __init__(self, engine: sa.Engine, url: str, at: int, statements: list[str]) -> None:
        self.seen = -1
        self._engine, self._at, self._statements = engine, at, statements
        self._other = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        self.altered = False

    def __enter__(self) -> Interrupted:
        sa.event.listen(self._engine, "before_cursor_execute", self._before)
        return self

    def __exit__(self, *_: object) -> None:
        sa.event.remove(self._engine, "before_cursor_execute", self._before)
        self._other.dispose()

    def _before(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "= @kt_wait," in statement:
            # The session gets its settings back, after the commit.
            return
        self.seen += 1
        if self.seen == self._at:
            # Where the batch holds the table the other one waits in vain.
            with suppress(sa.exc.DBAPIError), self._other.connect() as connection:
                connection.exec_driver_sql(WAITS[self._engine.dialect.name])
                for one in self._statements:
                    connection.exec_driver_sql(one)
                self.altered = True


@pytest.fixture
def again(database: str) -> Iterator[Callable[[], sa.Engine]]:
    """`again()`: an empty database with a table of one batch."""
    engine = engine_of(database)

    def make() -> sa.Engine:
        with engine.connect() as connection:
            names = sa.inspect(connection).get_table_names()
            connection.rollback()
            for name in names:
                connection.exec_driver_sql(f"DROP TABLE {name}")
            connection.exec_driver_sql(CREATE)
            connection.commit()
        merge(orders(("a", 1, 1.25)), Outcomes(1, "job", 1), database)
        return engine

    yield make
    engine.dispose()


def rows_of(engine: sa.Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        columns = [one["name"] for one in sa.inspect(connection).get_columns("orders")]
        amount = next((name for name in ("amount", "price") if name in columns), "NULL")
        return sorted(
            map(tuple, connection.exec_driver_sql(f"SELECT order_id, version, {amount} FROM orders"))
        )


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("database", cases("postgres", "sqlite", long=("mariadb",)), indirect=True)
def test_a_batch_is_there_once_or_refused_whatever_others_do_at_any_step(
    again: Callable[[], sa.Engine], database: str, change: str
) -> None:
    batch = orders(("a", 2, 2.25), ("b", 1, 3.5))
    by_kind = CHANGES[change]
    at, played = hash_of(change) % STRIDE, 0
    while True:
        engine = again()
        statements = by_kind if isinstance(by_kind, list) else by_kind.get(engine.dialect.name)
        if statements is None:
            pytest.skip("this database has no such statement")
        with Interrupted(engine, database, at, statements) as interrupted:
            refused: Exception | None = None
            for _ in range(3):
                try:
                    merge(
                        batch, Outcomes(1, "job", 2), database, bytes_by_driver=0 if played % 2 else 1 << 20
                    )
                except SinkError as error:
                    refused = error
                    if not isinstance(error, BatchFailedError):
                        break
                else:
                    refused = None
                    break
        if interrupted.seen < at:
            assert played
            return
        played += 1
        if refused is None:
            assert rows_of(engine) == [("a", 2, 2.25), ("b", 1, 3.5)], at
        else:
            assert interrupted.altered
            assert "orders" in str(refused), at
            if sa.inspect(engine).has_table("orders"):
                kept = [row[:2] for row in rows_of(engine)]
                assert kept in ([("a", 1)], []), at
        at += STRIDE


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_what_another_session_may_do_meanwhile(
    again: Callable[[], sa.Engine], database: str, change: str
) -> None:
    engine, by_kind, altered = again(), CHANGES[change], list[str]()

    def alter(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE kt_fence") and not altered:
            altered.append(statement)
            with sa.create_engine(database).begin() as connection:
                for one in by_kind if isinstance(by_kind, list) else by_kind["postgresql"]:
                    connection.exec_driver_sql(one)

    def tell() -> str:
        end = ADDED
        while True:
            try:
                merge(orders(("a", 2, 2.25), ("b", 1, 3.5)), Outcomes(1, "job", 2), database)
            except BatchFailedError:
                end = AGAIN
            except SinkError:
                return REFUSED
            else:
                return end

    sa.event.listen(engine, "before_cursor_execute", alter)
    try:
        assert tell() == ENDS[change]
    finally:
        sa.event.remove(engine, "before_cursor_execute", alter)


def test_the_page_has_what_was_played() -> None:
    assert ENDS.keys() == CHANGES.keys()
    assert ALTERING_TABLE.read() == ALTERING_TABLE.render()


STRIDE = 1 if CHAOS else 7
"""Every which step is played."""


def hash_of(text: str) -> int:
    return sum(text.encode())


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_what_has_changed_is_named_and_the_next_attempt_takes_the_table_as_it_is(
    again: Callable[[], sa.Engine], database: str
) -> None:
    engine = again()

    def alter(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE kt_fence") and not altered:
            altered.append(statement)
            with sa.create_engine(database).begin() as connection:
                connection.exec_driver_sql("ALTER TABLE orders ALTER version TYPE BIGINT")
                connection.exec_driver_sql("ALTER TABLE orders DROP COLUMN note")
                connection.exec_driver_sql("ALTER TABLE orders ADD COLUMN city TEXT")
                connection.exec_driver_sql("ALTER TABLE orders ADD COLUMN at DATE DEFAULT now() NOT NULL")

    altered: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", alter)
    try:
        with pytest.raises(TableChangedError) as raised:
            merge(orders(("a", 2, 2.25)), Outcomes(1, "job", 2), database)
    finally:
        sa.event.remove(engine, "before_cursor_execute", alter)
    said = str(raised.value)
    assert said.startswith("table orders of postgresql+psycopg://")
    assert (
        "was changed while a batch was written to it: column 'version' is BIGINT(), and was INTEGER(); column 'note' "
        "was dropped or renamed. Nothing was written; the batch is tried again with the table as it is now"
    ) in said
    assert rows_of(engine) == [("a", 1, 1.25)]
    merge(orders(("a", 2, 2.25)), Outcomes(1, "job", 2), database)
    assert rows_of(engine) == [("a", 2, 2.25)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_table_that_was_altered_between_two_batches_is_seen(
    again: Callable[[], sa.Engine], database: str
) -> None:
    engine = again()
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE orders")
        connection.exec_driver_sql(CREATE.replace("DOUBLE PRECISION", "INTEGER"))
    with pytest.raises(SinkError, match="column 'amount' is double, in the table INTEGER"):
        merge(orders(("a", 2, 2.25)), Outcomes(1, "job", 2), database)
    assert rows_of(engine) == []


def test_only_columns_that_may_be_null_may_be_new() -> None:
    (a, b), more = (
        (ReliedColumn("INT", is_nullable=False), ReliedColumn("TEXT", is_nullable=True)),
        {"key": "there"},
    )
    before = Relied("", {"a": a, "b": b}, rules=more)
    assert before.changes(Relied("", {"c": b, "b": b, "a": a}, rules=more)) == []
    assert before.changes(Relied("", {"a": a, "b": a, "c": a})) == [
        "column 'b' is INT, and was TEXT",
        "column 'c' was added, which must not be null",
        "key is not set, and was there",
    ]


@pytest.mark.parametrize("database", ["postgres", "mariadb"], indirect=True)
@pytest.mark.parametrize(
    "name",
    ["Größenänderungsübersichtstabelle", "注文の一覧を保存する長い表の名前です注文", "o" * 60],
)
def test_the_table_of_a_batch_is_found_again_whatever_the_target_is_called(database: str, name: str) -> None:
    from kinesis_trident import merge_into

    for txid in (1, 2, 2):
        merge_into(
            orders(("a", txid, 1.0)),
            Outcomes(1, "job", txid),
            database,
            name,
            key="order_id",
            order_by="version",
        )
    with engine_of(database).connect() as connection:
        assert len(sa.inspect(connection).get_table_names()) == 3
        table = sa.table(name, sa.column("version"))
        assert connection.execute(sa.select(table.c.version)).scalars().all() == [2]
