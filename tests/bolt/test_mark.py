"""The mark of a batch in a table: one rule for all sinks says what goes on, what is replaced and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from hypothesis import HealthCheck, given, settings, strategies as st
from local_rows import local_rows, order_rows
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from thorough import examples

from kinesis_trident import Outcomes, begin_fenced, merge_into, write_delta, write_iceberg
from kinesis_trident.bolt.errors import OtherHomeError, SinkError, StaleBatchError, TwiceError
from kinesis_trident.bolt.mark import Again, Batch, New, WriterMark
from kinesis_trident.bolt.tracking.current_batch import CurrentBatch
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import FencedError
from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.checkpoint.model.nodes import Plan, StreamsNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect

ORDERS, AGAIN, PAYMENTS, TOGETHER = "orders@1", "orders@2", "payments@1", "@streams"


# The rule.


def batch(home: str = ORDERS, epoch: int = 5, txid: int = 7, token: str = "mine", **more: Any) -> Batch:
    return Batch("shop", home, epoch=epoch, txid=txid, token=token, **more)


@pytest.mark.parametrize(
    ("mark", "met"),
    [
        (None, New),
        (WriterMark("shop", 5, 6), New),
        (WriterMark("shop", 4, 6, AGAIN, "theirs", 2), New),
        (WriterMark("shop", 5, 7), Again),
        (WriterMark("shop", 4, 7, ORDERS, "mine", 2), Again),
        (WriterMark("shop", 5, 7, ORDERS, "theirs", 2), Again),
        (WriterMark("shop", 5, 7, ORDERS, "mine", 2), TwiceError),
        (WriterMark("shop", 6, 7, ORDERS), FencedError),
        (WriterMark("shop", 6, 1), FencedError),
        (WriterMark("shop", 4, 8), StaleBatchError),
        (WriterMark("shop", 4, 6, PAYMENTS), OtherHomeError),
        (WriterMark("shop", 6, 8, PAYMENTS), OtherHomeError),
        (WriterMark("shop", 4, 6, TOGETHER), OtherHomeError),
        # A newer run has put the streams together.
        (WriterMark("shop", 6, 8, TOGETHER), FencedError),
    ],
)
def test_what_a_batch_meets(mark: WriterMark | None, met: type) -> None:
    if issubclass(met, Exception):
        with pytest.raises(met, match="a table"):
            batch().meet(mark, "a table")
    else:
        assert isinstance(batch().meet(mark, "a table"), met)


def test_a_try_that_follows_another_one_in_its_call_may_meet_its_own_mark() -> None:
    assert isinstance(batch().meet(batch().mark(), "a table", has_put=True), Again)


def test_the_streams_and_the_remedy_are_named() -> None:
    said = r"batches of 'shop' from stream payments stand in a table; this is stream orders, and nothing was written\. "
    with pytest.raises(OtherHomeError, match=said + "Give each query its own applicationName"):
        batch().meet(WriterMark("shop", 1, 1, PAYMENTS), "a table")


MOVES = [
    ("created again", ORDERS, AGAIN, ()),
    ("put together", ORDERS, TOGETHER, (PAYMENTS, ORDERS)),
    ("put together, and one was created again", ORDERS, TOGETHER, (PAYMENTS, AGAIN)),
    ("another one has left", TOGETHER, TOGETHER, (ORDERS,)),
    ("of a release before", "", ORDERS, ()),
    ("by hand", ORDERS, "", ()),
]


@pytest.mark.parametrize(
    ("before", "now", "merged"), [one[1:] for one in MOVES], ids=[one[0] for one in MOVES]
)
def test_streams_go_on(before: str, now: str, merged: tuple[str, ...]) -> None:
    ours = batch(now, merged=frozenset(merged))
    assert isinstance(ours.meet(WriterMark("shop", 4, 6, before), "a table"), New)


def test_a_shared_home_goes_on_with_the_batches_of_each_stream_that_joined_it(
    zookeeper: EmbeddedZooKeeper, app: str
) -> None:
    """Also of one that has left before its table was written to again."""
    client = connect(ZooKeeperConfig(zookeeper.hosts))
    store = SourceStore(client, Layout("/kinesis-trident", app))
    epoch = store.epochs.raise_epoch("here", 1, 1)
    store.streams.put(StreamsNode(streams={"orders": 1, "payments": 1}, active=("orders",)), epoch)
    store.batches.put(Plan(txid=7, plan="p", streams={"orders": 1}, positions={}, read=()), epoch)
    now = CurrentBatch.newest(store)
    ours = batch(now.home, merged=frozenset(now.merged_homes))
    client.stop()
    client.close()
    for home in (ORDERS, PAYMENTS, TOGETHER):
        assert isinstance(ours.meet(WriterMark("shop", 4, 6, home), "a table"), New)


# The sinks.


@dataclass
class Place:
    """A table of one kind.

    Attributes:
        write: writes orders, by one of the names of the table.
        read: the orders that readers see.
        names: of the one table.
        forget: lets others rewrite the table's files, and lets it forget its past.
        lose: in its block the answer of one commit is lost.
    """

    write: Callable[[Iterable[str], Outcomes, str], None]
    read: Callable[[], list[str]]
    names: list[str]
    forget: Callable[[], object]
    lose: Callable[[], Any]


@contextmanager
def losing(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: Exception) -> Iterator[None]:
    commit, lost = getattr(owner, name), [True]

    def committed(*given: Any, **named: Any) -> Any:
        answer = commit(*given, **named)
        if lost.pop() if lost else False:
            raise error
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, committed)
        yield


def delta_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    table = folder / "orders"

    def write(orders: Iterable[str], outcomes: Outcomes, name: str) -> None:
        write_delta(local_rows(order_rows(orders)), outcomes, name)

    def read() -> list[str]:
        return sorted(DeltaTable(table).to_pyarrow_table()["order_id"].to_pylist()) if table.exists() else []

    return Place(
        write,
        read,
        [str(table), f"{folder}/./orders/", f"file://{table}"],
        partial(forget_delta, table),
        lambda: losing(monkeypatch, DeltaTable, "create_write_transaction", CommitFailedError("no answer")),
    )


def forget_delta(table: Path) -> None:
    """Optimize, and remove what the log says of the past."""
    if not table.exists():
        return
    found = DeltaTable(table)
    if "delta.logRetentionDuration" not in found.metadata().configuration:
        found.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    DeltaTable(table).optimize.compact()
    found = DeltaTable(table)
    found.create_checkpoint()
    found.cleanup_metadata()


def catalog_at(folder: Path) -> Catalog:
    made = load_catalog(type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    made.create_namespace_if_not_exists("shop")
    return made


def iceberg_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    catalog = catalog_at(folder)

    def write(orders: Iterable[str], outcomes: Outcomes, name: str) -> None:
        write_iceberg(local_rows(order_rows(orders)), outcomes, name, catalog=catalog_at(folder))

    def read() -> list[str]:
        if not catalog.table_exists("shop.orders"):
            return []
        return sorted(catalog.load_table("shop.orders").scan().to_arrow()["order_id"].to_pylist())

    def forget() -> None:
        if not catalog.table_exists("shop.orders"):
            return
        table = catalog.load_table("shop.orders")
        if (now := table.current_snapshot()) is not None:
            table.overwrite(table.scan().to_arrow())
            table = catalog.load_table("shop.orders")
            now = table.current_snapshot()
            assert now is not None
            expired = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != now.snapshot_id]
            table.maintenance.expire_snapshots().by_ids(expired).commit()

    return Place(
        write,
        read,
        ["shop.orders"],
        forget,
        lambda: losing(monkeypatch, SqlCatalog, "commit_table", CommitFailedException("no answer")),
    )


def merge_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    engine = sa.create_engine(f"sqlite:///{folder}/shop.db")

    def write(orders: Iterable[str], outcomes: Outcomes, name: str) -> None:
        rows = local_rows(order_rows(orders))
        merge_into(rows, outcomes, engine.url, name, key="order_id", order_by="version")

    def read() -> list[str]:
        with engine.connect() as connection:
            if not sa.inspect(connection).has_table("orders"):
                return []
            return sorted(connection.exec_driver_sql("SELECT order_id FROM orders").scalars())

    @contextmanager
    def lose() -> Iterator[None]:
        yield

    return Place(write, read, ["orders", "main.orders"], bool, lose)


PLACES = {"delta": delta_place, "iceberg": iceberg_place, "merge": merge_place}
KINDS = pytest.mark.parametrize("kind", PLACES)


@pytest.fixture
def place(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return PLACES[kind](tmp_path, monkeypatch)


@KINDS
def test_two_queries_of_one_application_on_two_streams(place: Place) -> None:
    """Their txids both begin at 1; each of the second one's batches was taken for one of the first's."""
    place.write(["a", "b"], Outcomes(1, "shop", 1, home=ORDERS), place.names[0])
    for epoch, txid in ((1, 1), (1, 2), (2, 1), (9, 9)):
        with pytest.raises(OtherHomeError, match=r"from stream orders stand in .*; this is stream payments"):
            place.write(["c"], Outcomes(epoch, "shop", txid, home=PAYMENTS), place.names[0])
    assert place.read() == ["a", "b"]
    # The remedy.
    place.write(["c"], Outcomes(1, "payments", 1, home=PAYMENTS), place.names[0])
    place.write(["d"], Outcomes(1, "shop", 2, home=ORDERS), place.names[0])
    assert place.read() == ["a", "b", "c", "d"]


@KINDS
def test_one_table_by_two_names_in_one_batch(place: Place) -> None:
    attempt = Outcomes(1, "shop", 1, home=ORDERS)
    place.write(["a"], attempt, place.names[0])
    for name in (*place.names, place.names[0]):
        with pytest.raises(TwiceError, match=r"twice for .* in batch 1: .* Join the rows by df\.unionByName"):
            place.write(["b"], attempt, name)
    assert place.read() == ["a"]
    # Another attempt at the batch is no second call.
    place.write(["c"], Outcomes(1, "shop", 1, home=ORDERS), place.names[-1])
    assert place.read() == ["c"]


def test_one_table_by_rows_of_other_columns_in_one_batch(tmp_path: Path) -> None:
    """Each kind of rows has a table of its own beside it, and has been merged in a batch of its own before."""
    narrow = order_rows(["a"]).drop_columns("messageId")
    kinds = [narrow.append_column("more", pa.array(["x"])), narrow]

    def merge(rows: pa.Table, outcomes: Outcomes) -> None:
        url = f"sqlite:///{tmp_path}/shop.db"
        merge_into(local_rows(rows), outcomes, url, "orders", key="order_id", order_by="version")

    for txid, rows in enumerate(kinds, 1):
        merge(rows, Outcomes(1, "shop", txid))
    for txid, (first, second) in enumerate((kinds, kinds[::-1]), 3):
        attempt = Outcomes(1, "shop", txid)
        merge(first, attempt)
        with pytest.raises(TwiceError):
            merge(second, attempt)


@dataclass
class Told:
    """The calls of a story, and what the table must hold."""

    place: Place
    streams: dict[str, int] = field(default_factory=dict)
    epoch: int = 0
    homes: set[str] = field(default_factory=set)
    rows: dict[int, list[str]] = field(default_factory=dict)

    def call(self, orders: list[str], outcomes: Outcomes, name: str, *, lost: bool) -> bool:
        """Write; return whether it was done. What is refused changes nothing."""
        try:
            if lost:
                with self.place.lose():
                    self.place.write(orders, outcomes, name)
            else:
                self.place.write(orders, outcomes, name)
        except (SinkError, StaleBatchError, FencedError):
            done = False
        else:
            self.rows[outcomes.txid] = orders
            done = True
        assert self.place.read() == sorted(order for of in self.rows.values() for order in of)
        return done


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("attempt"),
            st.sampled_from([ORDERS, ORDERS, AGAIN, PAYMENTS, TOGETHER]),
            st.sampled_from(["next", "again", "before"]),
            st.integers(0, 2),
            st.sets(st.integers(0, 3)),
            st.booleans(),
            st.booleans(),
            st.booleans(),
        ),
        st.tuples(st.just("forget")),
    ),
    max_size=8,
)
"""Attempts by streams at batches, each with a name of the table, rows, a new run or not, a lost answer or not, and a
second call or not; and what others do to the table."""


@KINDS
def test_each_row_is_there_once_or_refused(
    kind: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    @settings(
        max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(STEPS)
    def play(steps: list[tuple[Any, ...]]) -> None:
        told, txid, epoch, first, others = (
            Told(PLACES[kind](tmp_path_factory.mktemp("t"), monkeypatch)),
            1,
            1,
            "",
            False,
        )
        for step in steps:
            if step[0] == "forget":
                told.place.forget()
                others = True
                continue
            _, home, which, name, numbers, is_new_run, lost, second = step
            epoch += is_new_run
            number = max(1, txid + {"next": 1, "again": 0, "before": -1}[which])
            merged = (ORDERS, PAYMENTS) if home == TOGETHER else ()
            attempt = Outcomes(epoch, "shop", number, home=home, merged=merged)
            orders = [f"{number}-{one}" for one in sorted(numbers)]
            names = told.place.names
            done = told.call(orders, attempt, names[name % len(names)], lost=lost)
            if done:
                assert number >= txid or not told.rows
                first, txid = first or home.partition("@")[0], number
                if second and orders:
                    assert not told.call(["more"], attempt, names[(name + 1) % len(names)], lost=False)
            elif which == "next" and not others:
                # Only another stream stops a new batch.
                assert home.partition("@")[0] != first

    play()


# What others did to the table's past.


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_batch_whose_files_and_whose_history_are_gone_is_not_written_twice(
    place: Place, tmp_path: Path
) -> None:
    """OPTIMIZE and the log's clean-up, or compaction and expired snapshots."""
    name = place.names[0]
    place.write(["a"], Outcomes(1, "shop", 1), name)
    place.write(["b", "c"], Outcomes(1, "shop", 2), name)
    place.forget()
    place.forget()
    said = r"batch 2 of application 'shop' is to be written again, but another operation .* has changed its files"
    with pytest.raises(SinkError, match=said) as raised:
        place.write(["b", "c"], Outcomes(2, "shop", 2), name)
    assert "It no longer has the state in which they were added" in str(raised.value)
    assert place.read() == ["a", "b", "c"]
    place.write(["d"], Outcomes(2, "shop", 3), name)
    assert place.read() == ["a", "b", "c", "d"]


def test_the_log_s_clean_up_alone_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of files and the token outlast the commit that said them."""
    place, table = delta_place(tmp_path, monkeypatch), tmp_path / "orders"
    name, first = place.names[0], Outcomes(1, "shop", 1, home=ORDERS)
    place.write(["a"], first, name)
    forget_delta(table)
    found = DeltaTable(table)
    assert not [one for one in found.history() if "kinesis-trident" in one]
    with pytest.raises(TwiceError):
        place.write(["b"], first, name)
    with pytest.raises(OtherHomeError, match="from stream of another name stand in"):
        place.write(["b"], Outcomes(2, "shop", 2, home=PAYMENTS), name)
    place.write(["b"], Outcomes(2, "shop", 1, home=ORDERS), name)
    assert place.read() == ["b"]


def test_what_the_release_before_wrote_and_its_log_forgot_is_not_taken_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, table = delta_place(tmp_path, monkeypatch), tmp_path / "orders"
    place.write(["a"], Outcomes(1, "shop", 1, home=ORDERS), place.names[0])
    commit_as_before(table, epoch=2, txid=2, files=0)
    forget_delta(table)
    with pytest.raises(SinkError, match="delete the rows of this batch from a copy of the table"):
        place.write(["b"], Outcomes(3, "shop", 2, home=ORDERS), place.names[0])


def test_the_table_beside_a_merge_s_was_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is equal to the table's changes nothing: each is there once, whatever is known of the attempt."""
    place, engine = merge_place(tmp_path, monkeypatch), sa.create_engine(f"sqlite:///{tmp_path}/shop.db")
    place.write(["a", "b"], Outcomes(1, "shop", 1, home=ORDERS), "orders")
    with engine.begin() as connection:
        [beside] = [one for one in sa.inspect(connection).get_table_names() if one.startswith("kt_orders_")]
        connection.exec_driver_sql(f"DROP TABLE {beside}")
    place.write(["b", "c"], Outcomes(2, "shop", 1, home=ORDERS), "main.orders")
    assert place.read() == ["a", "b", "c"]
    engine.dispose()


# The release before.


def commit_as_before(table: Path, *, epoch: int, txid: int, files: int) -> None:
    """Commit to a Delta table as the release before does, without files of its own."""
    found = DeltaTable(table)
    said = {"application": "shop", "txid": txid, "epoch": epoch, "files": files}
    found.create_write_transaction(
        [],
        "append",
        found.schema(),
        commit_properties=CommitProperties(
            custom_metadata={"kinesis-trident": json.dumps(said)},
            app_transactions=[
                Transaction("kinesis-trident/shop/epoch", epoch),
                Transaction("kinesis-trident/shop/txid", txid),
            ],
        ),
    )


def test_a_delta_table_goes_from_release_to_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, table = delta_place(tmp_path, monkeypatch), tmp_path / "orders"
    place.write(["a"], Outcomes(1, "shop", 1, home=PAYMENTS), place.names[0])
    newest = DeltaTable(table).history(1)[0]
    # It reads these.
    assert {"application": "shop", "txid": 1, "epoch": 1, "files": 1}.items() <= json.loads(
        newest["kinesis-trident"]
    ).items()
    assert DeltaTable(table).transaction_version("kinesis-trident/shop/txid") == 1
    assert DeltaTable(table).transaction_version("kinesis-trident/shop/epoch") == 1
    # It writes, and knows nothing of homes: what is here of them is of a run before.
    commit_as_before(table, epoch=2, txid=2, files=0)
    place.write(["b"], Outcomes(3, "shop", 2, home=ORDERS), place.names[0])
    assert place.read() == ["a", "b"]
    with pytest.raises(OtherHomeError):
        place.write(["c"], Outcomes(4, "shop", 3, home=PAYMENTS), place.names[0])


def test_an_iceberg_table_goes_from_release_to_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, catalog = iceberg_place(tmp_path, monkeypatch), catalog_at(tmp_path)
    place.write(["a"], Outcomes(1, "shop", 1, home=PAYMENTS), "shop.orders")
    table = catalog.load_table("shop.orders")
    assert {"epoch": 1, "txid": 1, "files": 1}.items() <= json.loads(
        table.properties["kinesis-trident.shop"]
    ).items()
    with table.transaction() as transaction:
        transaction.set_properties({"kinesis-trident.shop": json.dumps({"epoch": 2, "txid": 2, "files": 0})})
    place.write(["b"], Outcomes(3, "shop", 2, home=ORDERS), "shop.orders")
    assert place.read() == ["a", "b"]
    with pytest.raises(OtherHomeError):
        place.write(["c"], Outcomes(4, "shop", 3, home=PAYMENTS), "shop.orders")


FENCE_BEFORE = (
    "CREATE TABLE kt_fence (application VARCHAR(99) PRIMARY KEY, epoch BIGINT NOT NULL, txid BIGINT NOT NULL)"
)


@pytest.mark.parametrize("has_row", [False, True])
def test_a_fence_goes_from_release_to_release(database: str, *, has_row: bool) -> None:
    engine = sa.create_engine(database)

    def begin(epoch: int, home: str) -> None:
        with begin_fenced(engine, Outcomes(epoch, "shop", epoch, home=home)):
            pass

    with engine.begin() as connection:
        connection.exec_driver_sql(FENCE_BEFORE)
        if has_row:
            connection.exec_driver_sql("INSERT INTO kt_fence VALUES ('shop', 1, 1)")
    begin(2, ORDERS)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE kt_fence SET epoch = 3, txid = 3 WHERE application = 'shop'")
        connection.exec_driver_sql("INSERT INTO kt_fence (application, epoch, txid) VALUES ('other', 0, 0)")
    begin(4, AGAIN)
    with pytest.raises(OtherHomeError, match="this is stream payments, and nothing was written"):
        begin(5, PAYMENTS)
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT application, epoch, txid, home FROM kt_fence ORDER BY epoch"
        )
        assert [tuple(row) for row in rows] == [("other", 0, 0, None), ("shop", 4, 4, AGAIN)]
    engine.dispose()


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_user_who_may_not_alter_the_fence_is_told_how(database: str) -> None:
    admin = sa.create_engine(database)
    schema = database.rpartition("%3D")[2]
    with admin.begin() as connection:
        connection.exec_driver_sql(FENCE_BEFORE)
        connection.exec_driver_sql(f"CREATE ROLE w_{schema} LOGIN")
        connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {schema} TO w_{schema}")
        connection.exec_driver_sql(f"GRANT ALL ON kt_fence TO w_{schema}")
    writer = sa.create_engine(database.replace("//postgres@", f"//w_{schema}@"))
    with (
        pytest.raises(SinkError, match=r"refused to alter kt_fence .*must be owner") as raised,
        begin_fenced(writer, Outcomes(1, "shop", 1, home=ORDERS)),
    ):
        pass
    with admin.begin() as connection:
        connection.exec_driver_sql(re.split("another one: ", str(raised.value))[1])
    with begin_fenced(writer, Outcomes(1, "shop", 1, home=ORDERS)):
        pass
    for engine in (admin, writer):
        engine.dispose()
