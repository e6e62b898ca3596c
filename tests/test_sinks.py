"""The recipes of docs/sinks.md as they stand there, by drivers that are paused, and wake after a takeover.

Two runs have one batch in hand, in which a record x fails in one of them. The older run's driver is paused at a place;
the newer one finishes the batch and all that follows; then the older one goes on. Whatever a recipe does, each record
must be in the sink once. What the page warns of is played too: there the same test finds the loss.
"""

from __future__ import annotations

import itertools
import operator
import random
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from deltalake import DeltaTable
from lives import PATIENCE, eventually, remove
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from server_fixtures import empty_database
from servers import RedisServer
from thorough import cases
from waiting_task import WaitingTask

from kinesis_trident import KinesisTridentError, Outcomes
from kinesis_trident.bolt.errors import FenceHeldError, StaleBatchError
from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import FencedError
from kinesis_trident.checkpoint.model.nodes import BatchNode
from kinesis_trident.testing import MemoryKinesis, QueryByHand, SparkCheckpoint
from kinesis_trident.trident import RedisState
from kinesis_trident.trident.state import ATTEMPT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TEXT = (Path(__file__).parents[1] / "docs" / "sinks.md").read_text(encoding="utf-8")
DELTA, ICEBERG, MERGE, FOLDER, DATABASE, STAGING = re.findall(
    r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL
)
EXAMPLE = "postgresql+psycopg://user:password@host/shop"
RECORDS = ["a", "b", "x"]
Write = Callable[[Any, int, Outcomes], None]


class Pause:
    """A place in a driver, which waits there until somebody wakes it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.wake = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.wake.wait(PATIENCE), "nobody woke the driver"


class Run(QueryByHand):
    """A run of the application with a sink; the epoch is checked before `write`, as `reliable` does."""

    write: Write
    spark: SparkSession
    pauses: Mapping[str, Callable[[], None]]

    def read_batch(self) -> tuple[list[Any], BatchNode]:
        """Read the batch in hand, or else plan one, and check the epoch: from here on the driver may be paused."""
        if self.in_hand is None:
            self.planned()
        rows = self.rows()
        assert self.in_hand is not None
        batch = self.store.batches.get(self.in_hand.txid)
        assert batch is not None
        self.store.epochs.check_epoch(batch.epoch)
        self.pauses.get("before", bool)()
        return rows, batch

    def handle(self, failing: str = "") -> None:
        """Handle a batch, in which the record that says `failing` fails, from its plan to its commit."""
        rows, batch = self.read_batch()
        good = [(row.message_id, row.data.decode(), 1.0) for row in rows if row.data.decode() != failing]
        frame = self.spark.createDataFrame(good, "messageId string, order_id string, amount double")
        txid = batch.plan.txid
        self.write(frame.coalesce(1), txid, Outcomes(batch.epoch, self.run.layout.application, txid))
        self.pauses.get("after", bool)()
        self.publish(row for row in rows if row.data.decode() == failing)
        self.pauses.get("published", bool)()
        self.commit()

    def finish(self, failing: str = "") -> None:
        """Handle what is in hand, and all that comes after it."""
        self.run.drain_and_end()
        if self.in_hand is not None:
            self.handle(failing)
        while self.plan() is not None:
            self.handle()


class Topology(Run):
    """A run of a topology: it publishes the verdict, or adopts the one that is there, before it changes its state."""

    def handle(self, failing: str = "") -> None:
        """See `Run.handle`."""
        rows, batch = self.read_batch()
        failed = [row for row in rows if row.data.decode() == failing]
        if (verdict := self.publish(failed)) is not None:
            out = {piece.last for pieces in verdict.not_done.values() for piece in pieces}
            failed = [row for row in rows if row.message_id.rpartition(":")[2] in out]
        good = [row.data.decode() for row in rows if row not in failed]
        self.write(good, batch.plan.txid, Outcomes(batch.epoch))
        self.pauses.get("after", bool)()
        self.commit()
        # Spark asks for the next batch.
        self.run.latest(self.committed, None)


@dataclass
class Sink:
    """A sink of one kind: `connect(pauses)` gives a driver's `write`, `read` what readers see.

    Attributes:
        locked_for_good: nobody ends the transaction in which a driver is paused.
        run: how a driver handles a batch.
    """

    connect: Callable[[Mapping[str, Callable[[], None]]], Write]
    read: Callable[[], list[str]]
    locked_for_good: bool = False
    run: type[Run] = Run


@pytest.fixture
def stream() -> MemoryKinesis:
    return MemoryKinesis("orders")


def put(stream: MemoryKinesis, records: Iterable[str]) -> None:
    for record in records:
        stream.put(stream.open_shards[0], record.encode())


@pytest.fixture
def begin(
    spark: SparkSession, zookeeper: EmbeddedZooKeeper, app: str, stream: MemoryKinesis
) -> Iterator[Callable[..., Run]]:
    """`begin(sink, checkpoint, pauses)`: a run of the application."""
    options = {
        "streamName": "orders",
        "region": "us-east-1",
        "applicationName": app,
        "zookeeper.hosts": zookeeper.hosts,
        "startingPosition": "TRIM_HORIZON",
        "retryBackoff": "1ms..1ms x1",
        "minFetchPeriod": "0ms",
        "maxFetchTime": "60s",
    }
    with ExitStack() as ending:

        def started(
            sink: Sink,
            log: SparkCheckpoint | None = None,
            pauses: Mapping[str, Callable[[], None]] | None = None,
            **more: str,
        ) -> Run:
            run = sink.run.start(options | more, stream, log)
            run.spark, run.pauses, run.write = spark, pauses or {}, sink.connect(pauses or {})
            ending.callback(run.end)
            return run

        yield started


@pytest.fixture
def play(begin: Callable[..., Run], stream: MemoryKinesis) -> Callable[..., list[str]]:
    """`play(sink, where, direction, records)`: the orders in the sink at the end."""

    def played(sink: Sink, where: str, direction: str, records: Iterable[str] = RECORDS) -> list[str]:
        put(stream, records)
        checkpoint, pause = SparkCheckpoint(), Pause()
        fails = "x" if direction == FAILS_OLDER else ""
        older = begin(sink, checkpoint, {where: pause})
        with ThreadPoolExecutor() as pool:
            sleeping = pool.submit(older.handle, fails)
            sleeping.add_done_callback(lambda _: pause.reached.set())
            try:
                assert pause.reached.wait(PATIENCE), "the driver does not come to the pause"
                assert not sleeping.done(), sleeping.exception()
                newer = begin(sink, checkpoint.copy())
                fails = "" if fails else "x"
                try:
                    newer.finish(fails)
                except FenceHeldError:
                    if not sink.locked_for_good:
                        raise
                    # The query was stopped: the lock is the paused process's until that goes on.
                    pause.wake.set()
                    assert sleeping.exception(PATIENCE) is not None
                    begin(sink, newer.checkpoint).finish(fails)
            finally:
                pause.wake.set()
            # It has written, or not: it never publishes.
            assert isinstance(sleeping.exception(PATIENCE), KinesisTridentError)
        return sink.read()

    return played


FAILS_OLDER, FAILS_NEWER = "the older run fails x", "the newer run fails x"
BOTH = (FAILS_OLDER, FAILS_NEWER)
DIRECTIONS = pytest.mark.parametrize("direction", BOTH)


# A folder.


def folder_sink(code: str, spark: SparkSession, folder: Path) -> Sink:
    def connect(pauses: Mapping[str, Callable[[], None]]) -> Write:
        names: dict[str, Any] = {"folder": str(folder / "orders")}
        exec(code, names)

        def write(df: DataFrame, txid: int, outcomes: Outcomes) -> None:
            if "inside" not in pauses:
                names["write"](df, txid, outcomes)
                return
            task = WaitingTask(folder)
            with ThreadPoolExecutor() as pool:
                writing = pool.submit(names["write"], df.mapInArrow(task.function, df.schema), txid, outcomes)
                task.reached()
                pauses["inside"]()
                task.wake()
                writing.result(PATIENCE)

        return write

    def read() -> list[str]:
        names: dict[str, Any] = {"folder": str(folder / "orders")}
        exec(code, names)
        return sorted(row.order_id for row in names["read"](spark).collect())

    return Sink(connect, read)


@pytest.mark.parametrize(
    ("where", "direction"),
    cases(
        *(("inside", direction) for direction in BOTH),
        *(("before", FAILS_OLDER), ("after", FAILS_NEWER)),
        long=(("before", FAILS_NEWER), ("after", FAILS_OLDER)),
    ),
)
def test_a_folder_for_each_txid_and_epoch(
    play: Callable[..., list[str]], spark: SparkSession, tmp_path: Path, where: str, direction: str
) -> None:
    assert play(folder_sink(FOLDER, spark, tmp_path), where, direction) == RECORDS


@pytest.mark.parametrize("where", cases("inside", long=("before", "after")))
def test_a_batch_of_which_the_newest_run_writes_no_row(
    play: Callable[..., list[str]], spark: SparkSession, tmp_path: Path, where: str
) -> None:
    """The folder of its epoch is empty, and counts."""
    assert play(folder_sink(FOLDER, spark, tmp_path), where, FAILS_NEWER, ["x"]) == ["x"]


@pytest.fixture
def patient_spark(spark: SparkSession) -> Iterator[SparkSession]:
    """A Spark that does not kill the Python worker of a cancelled task after two to four seconds."""
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.python.task.killTimeout", "10min")
    yield spark
    conf.remove("spark.python.task.killTimeout")


def test_a_late_task_that_appends_repeats_records(patient_spark: SparkSession, tmp_path: Path) -> None:
    """What a task writes by itself stays, though its attempt was cancelled."""
    task, orders = WaitingTask(tmp_path), tmp_path / "orders"
    waits = task.function

    def append(rows: Iterable[Any]) -> None:
        with orders.open("a") as file:
            file.writelines(f"{row.order_id}\n" for row in rows)

    def append_late(rows: Iterable[Any]) -> None:
        # Spark gives a cancelled task no more rows.
        append([*waits(iter([*rows]))])

    frame = patient_spark.createDataFrame([("a",)], "order_id string").coalesce(1)
    context = patient_spark.sparkContext

    def late() -> None:
        context.setJobGroup(str(tmp_path), "is cancelled")
        frame.foreachPartition(append_late)

    with ThreadPoolExecutor() as pool:
        writing = pool.submit(late)
        task.reached()
        context.cancelJobGroup(str(tmp_path))
        assert "cancelled" in str(writing.exception(PATIENCE))
        task.wake()
    frame.foreachPartition(append)
    eventually(lambda: orders.read_text() == "a\na\n", "both have written", PATIENCE)


# A table of files.

TABLE = "s3://my-bucket/orders"
GLUE = '{"type": "glue"}'


def table_sink(
    orders: Sink,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    commit_name: str,
    read: Callable[[], list[str]],
) -> Sink:
    """Return a sink whose drivers may be paused before and after a commit of `owner`."""
    driver: ContextVar[Mapping[str, Callable[[], None]]] = ContextVar("driver")
    commit = getattr(owner, commit_name)

    def committed(table: object, *given: Any, **named: Any) -> Any:
        driver.get({}).get("before the commit", bool)()
        answer = commit(table, *given, **named)
        driver.get({}).get("after the commit", bool)()
        return answer

    monkeypatch.setattr(owner, commit_name, committed)

    def connect(pauses: Mapping[str, Callable[[], None]]) -> Write:
        write = orders.connect(pauses)

        def with_pauses(df: DataFrame, txid: int, outcomes: Outcomes) -> None:
            driver.set(pauses)
            write(df, txid, outcomes)

        return with_pauses

    return Sink(connect, read)


@pytest.fixture
def delta_sink(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sink:
    orders = folder_sink(DELTA.replace(TABLE, str(tmp_path / "orders")), spark, tmp_path)

    def read() -> list[str]:
        rows = DeltaTable(tmp_path / "orders").to_pyarrow_table()
        return sorted(rows["order_id"].to_pylist())

    return table_sink(orders, monkeypatch, DeltaTable, "create_write_transaction", read)


@pytest.fixture
def iceberg_sink(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sink:
    ours = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    catalog = load_catalog(**ours)
    catalog.create_namespace("shop")
    assert GLUE in ICEBERG
    orders = folder_sink(ICEBERG.replace(GLUE, repr(ours)), spark, tmp_path)

    def read() -> list[str]:
        rows = catalog.load_table("shop.orders").scan().to_arrow()
        return sorted(rows["order_id"].to_pylist())

    return table_sink(orders, monkeypatch, SqlCatalog, "commit_table", read)


COMMITTED = pytest.mark.parametrize(
    ("where", "direction"),
    cases(
        ("before the commit", FAILS_NEWER),
        long=(
            ("before the commit", FAILS_OLDER),
            *itertools.product(("before", "inside", "after the commit", "after"), BOTH),
        ),
    ),
)
"""The sink of folders is left inside a task in both directions."""


@COMMITTED
def test_a_delta_table(play: Callable[..., list[str]], delta_sink: Sink, where: str, direction: str) -> None:
    assert play(delta_sink, where, direction) == RECORDS


@COMMITTED
def test_an_iceberg_table(
    play: Callable[..., list[str]], iceberg_sink: Sink, where: str, direction: str
) -> None:
    assert play(iceberg_sink, where, direction) == RECORDS


@pytest.mark.parametrize("kind", cases("folder", "delta", "postgres", long=("iceberg",)))
def test_a_late_task_of_an_attempt_that_was_cancelled(
    patient_spark: SparkSession, sink_of: Callable[[str], Sink], tmp_path: Path, kind: str
) -> None:
    """It writes its rows when the next attempt has written all of its own under the same epoch."""
    sink = sink_of(kind)
    write, batch = sink.connect({}), Outcomes(1, "orders", 1)
    task = WaitingTask(tmp_path)
    frame = patient_spark.createDataFrame(
        [("m1", "a", 1.0)], "messageId string, order_id string, amount double"
    )
    context = patient_spark.sparkContext
    tracker = context._jsc.sc().statusTracker()

    def late() -> None:
        context.setJobGroup(str(tmp_path), "is cancelled")
        write(frame.coalesce(1).mapInArrow(task.function, frame.schema), 1, batch)

    with ThreadPoolExecutor() as pool:
        writing = pool.submit(late)
        task.reached()
        context.cancelJobGroup(str(tmp_path))
        assert "cancelled" in str(writing.exception(PATIENCE))
        write(frame, 1, batch)
        task.wake()
    eventually(
        lambda: not any(one.numRunningTasks() for one in tracker.getExecutorInfos()), "the late task ends"
    )
    assert sink.read() == ["a"]


class Killed(BaseException):
    """The end of a driver, as by a kill: nothing that it could still do is done."""


KILLED_AT = {
    "delta": ["before the commit", "after the commit"],
    "iceberg": ["before the commit", "after the commit"],
    "postgres": ["before the fence", "before the cleaning", "before the commit"],
    "mariadb": ["before the fence", "before the cleaning", "before the commit"],
}


@pytest.mark.parametrize(
    ("kind", "kills"),
    cases(("delta", 5), ("postgres", 5), long=tuple((kind, 200) for kind in KILLED_AT)),
)
def test_a_sink_whose_drivers_are_killed(
    begin: Callable[..., Run], sink_of: Callable[[str], Sink], stream: MemoryKinesis, kind: str, kills: int
) -> None:
    """At a step drawn by chance; which records fail is drawn in each attempt, until an outcome is published."""
    rng, sink = random.Random(11), sink_of(kind)
    checkpoint, orders, published = SparkCheckpoint(), list[str](), None
    steps = ["before", *KILLED_AT[kind], "after", "published"]

    def put_more() -> None:
        more = [f"{len(orders) + number}" for number in range(rng.randint(1, 3))]
        put(stream, more)
        orders.extend(more)

    def die() -> None:
        raise Killed

    for _ in range(kills):
        step = rng.choice(steps)
        run = begin(sink, checkpoint, {step: die}, retryLimit="100")
        if run.in_hand is None:
            put_more()
            run.planned()
        failing = rng.choice(["", orders[-1]]) if published is None else published
        with pytest.raises(Killed):
            run.handle(failing)
        published = failing if step == "published" else published
        run.end()
        if rng.random() < 0.3:
            # It is not killed this time.
            run = begin(sink, checkpoint, retryLimit="100")
            run.handle(rng.choice(["", orders[-1]]) if published is None else published)
            published = None
            run.end()
    begin(sink, checkpoint, retryLimit="100").finish(published or "")
    assert sink.read() == sorted(orders)


# A state of Trident.


@DIRECTIONS
@pytest.mark.parametrize("where", ["before", "inside", "after"])
def test_a_state_of_trident(
    play: Callable[..., list[str]], redis_server: RedisServer, app: str, where: str, direction: str
) -> None:
    factory = RedisState.opaque(redis_server.url, keyPrefix=app)

    def connect(pauses: Mapping[str, Callable[[], None]]) -> Write:
        def write(orders: list[str], txid: int, outcomes: Outcomes) -> None:
            state = factory.make_state({ATTEMPT: outcomes.epoch}, 0, 1)
            state.begin_commit(txid)
            state.multi_combine([(order,) for order in orders[:1]], operator.add, [1])
            pauses.get("inside", bool)()
            state.multi_combine([(order,) for order in orders[1:]], operator.add, [1] * len(orders[1:]))
            state.commit(txid)

        return write

    def read() -> list[str]:
        counts = factory.make_state({}, 0, 1).multi_get([(order,) for order in RECORDS])
        return [order for order, count in zip(RECORDS, counts, strict=True) for _ in range(count or 0)]

    assert play(Sink(connect, read, run=Topology), where, direction) == RECORDS


OVERWRITTEN = """
def write(df, txid, outcomes):
    df.write.mode("overwrite").parquet(f"{folder}/txid={txid}")

def read(spark):
    return spark.read.parquet(folder)
"""
RENAMED = """
import os, shutil

def write(df, txid, outcomes):
    beside, place = f"{folder}/_{txid}-{outcomes.epoch}", f"{folder}/txid={txid}"
    df.write.mode("overwrite").parquet(beside)
    shutil.rmtree(place, ignore_errors=True)
    os.rename(beside, place)

def read(spark):
    return spark.read.parquet(folder)
"""
APPENDED = """
def write(df, txid, outcomes):
    df.write.mode("append").parquet(folder)

def read(spark):
    return spark.read.parquet(folder)
"""
LOST, TWICE = ["a", "b"], ["a", "b", "x", "x"]


@pytest.mark.parametrize(
    ("code", "where", "direction", "found"),
    cases(
        (OVERWRITTEN, "before", FAILS_OLDER, LOST),
        (RENAMED, "inside", FAILS_NEWER, TWICE),
        (APPENDED, "after", FAILS_NEWER, sorted(RECORDS + RECORDS)),
        long=(
            (OVERWRITTEN, "before", FAILS_NEWER, TWICE),
            (RENAMED, "inside", FAILS_OLDER, LOST),
            (RENAMED, "before", FAILS_OLDER, LOST),
            (RENAMED, "before", FAILS_NEWER, TWICE),
            (OVERWRITTEN, "after", FAILS_OLDER, RECORDS),
            (RENAMED, "after", FAILS_NEWER, RECORDS),
            (APPENDED, "before", FAILS_NEWER, sorted(RECORDS + RECORDS)),
        ),
    ),
)
def test_folders_that_the_page_warns_of(
    play: Callable[..., list[str]],
    spark: SparkSession,
    tmp_path: Path,
    code: str,
    where: str,
    direction: str,
    found: list[str],
) -> None:
    assert play(folder_sink(code, spark, tmp_path), where, direction) == found


# A database.

STEPS = {
    "before the fence": "UPDATE kt_fence",
    "before the deletion": "DELETE FROM orders",
    "before the insertion": "INSERT INTO orders",
    "before the cleaning": "DELETE FROM kt_orders",
    "before the drop": "DROP TABLE staging",
}


@contextmanager
def database_sinks(database: str) -> Iterator[Callable[..., Sink]]:
    """`make(*codes, **replaced)`: the sink of recipes, with other words in them."""
    driver: ContextVar[tuple[Mapping[str, Callable[[], None]], list[str]]] = ContextVar("driver")

    def before(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        pauses, _inserted = driver.get(({}, []))
        for step, words in STEPS.items():
            if statement.startswith(words) and step in pauses:
                pauses[step]()

    def after(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith(("INSERT INTO orders", "DELETE FROM kt_orders")):
            driver.get(({}, []))[1].append(statement)

    def commit(_connection: object) -> None:
        pauses, inserted = driver.get(({}, []))
        if inserted and "before the commit" in pauses:
            pauses["before the commit"]()

    listeners = {"before_cursor_execute": before, "after_cursor_execute": after, "commit": commit}
    with ExitStack() as ending:
        for name, listener in listeners.items():
            sa.event.listen(sa.Engine, name, listener)
            ending.callback(sa.event.remove, sa.Engine, name, listener)

        def make(*codes: str, **replaced: str) -> Sink:
            def connect(pauses: Mapping[str, Callable[[], None]]) -> Write:
                names: dict[str, Any] = {}
                # A second instead of a minute, after which the database ends the transaction of a paused driver. The
                # others keep their minute: a loaded machine stands still for a second.
                timeout = ", timeout=1" if pauses else ""
                for code in codes:
                    assert code not in (MERGE, DATABASE) or EXAMPLE in code
                    ours = code.replace("outcomes) as", f"outcomes{timeout}) as")
                    ours = ours.replace('"updated_at")', f'"amount"{timeout})')
                    for theirs, mine in ({EXAMPLE: _impatient(database)} | replaced).items():
                        ours = ours.replace(theirs, mine)
                    exec(ours, names)
                if "engine" in names:
                    ending.callback(names["engine"].dispose)

                def write(df: DataFrame, txid: int, outcomes: Outcomes) -> None:
                    driver.set((pauses, []))
                    names["write"](df, txid, outcomes)

                return write

            def read() -> list[str]:
                engine = sa.create_engine(database)
                ending.callback(engine.dispose)
                with engine.connect() as connection:
                    return sorted(connection.exec_driver_sql("SELECT order_id FROM orders").scalars())

            return Sink(connect, read, database.startswith("sqlite"))

        yield make


def _impatient(database: str) -> str:
    return f"{database}?timeout=1" if database.startswith("sqlite") else database


@pytest.fixture
def database_sink(database: str) -> Iterator[Callable[..., Sink]]:
    with database_sinks(database) as make:
        yield make


@pytest.fixture
def sink_of(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> Iterator[Callable[[str], Sink]]:
    """`sink_of(kind)`: a sink of the package, of which many drivers are killed."""
    with ExitStack() as ending:

        def make(kind: str) -> Sink:
            if kind == "folder":
                return folder_sink(FOLDER, spark, tmp_path)
            if kind in ("postgres", "mariadb"):
                database = empty_database(kind, request, tmp_path)
                by_tasks = {'"updated_at")': '"amount", bytes_by_driver=0)'}
                return ending.enter_context(database_sinks(database))(MERGE.replace(*by_tasks.popitem()))
            return request.getfixturevalue(f"{kind}_sink")  # type: ignore[no-any-return]

        yield make


UNFENCED = """
from contextlib import contextmanager

@contextmanager
def begin_fenced(engine, outcomes, timeout=60):
    with engine.begin() as connection:
        yield connection
"""


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    ("where", "direction", "found"),
    cases(
        ("before the deletion", FAILS_OLDER, LOST),
        ("before the deletion", FAILS_NEWER, TWICE),
        long=(
            ("before", FAILS_OLDER, LOST),
            ("before", FAILS_NEWER, TWICE),
            ("after", FAILS_OLDER, RECORDS),
            ("after", FAILS_NEWER, RECORDS),
        ),
    ),
)
def test_a_transaction_without_the_fence(
    play: Callable[..., list[str]],
    database_sink: Callable[..., Sink],
    where: str,
    direction: str,
    found: list[str],
) -> None:
    assert play(database_sink(DATABASE, UNFENCED), where, direction) == found


PLACES = ("before", *list(STEPS)[:3], "before the commit", "after")
DATABASES = ("postgres", "mariadb", "sqlite")


def each_case(places: Iterable[str], usual: Iterable[tuple[str, str, str]]) -> list[object]:
    """Return a case for each database, place and direction; `make test` plays the usual ones."""
    often = [*usual]
    rest = [case for case in itertools.product(DATABASES, places, BOTH) if case not in often]
    return cases(*often, long=tuple(rest))


@pytest.mark.parametrize(
    ("database", "where", "direction"),
    each_case(
        PLACES,
        [
            *(("postgres", "before the commit", direction) for direction in BOTH),
            *(("mariadb", "before the fence", FAILS_NEWER), ("sqlite", "before the commit", FAILS_OLDER)),
        ],
    ),
    indirect=["database"],
)
def test_a_fenced_transaction(
    play: Callable[..., list[str]], database_sink: Callable[..., Sink], where: str, direction: str
) -> None:
    assert play(database_sink(DATABASE), where, direction) == RECORDS


@pytest.mark.parametrize(
    ("database", "where", "direction"),
    each_case(
        ("before", "before the fence", "before the insertion", "before the commit", "after"),
        [
            *(("postgres", "before the fence", FAILS_OLDER), ("mariadb", "before the commit", FAILS_NEWER)),
            ("sqlite", "after", FAILS_OLDER),
        ],
    ),
    indirect=["database"],
)
def test_a_table_of_a_database(
    play: Callable[..., list[str]], database_sink: Callable[..., Sink], where: str, direction: str
) -> None:
    assert play(database_sink(MERGE), where, direction) == RECORDS


POSTGRES = pytest.mark.parametrize("database", ["postgres"], indirect=True)


@POSTGRES
def test_an_application_whose_zookeeper_was_wiped_replaces_no_rows(
    begin: Callable[..., Run], database_sink: Callable[..., Sink], stream: MemoryKinesis, app: str
) -> None:
    """Neither at its first start nor at a later one, whose epoch is high enough; the remedy of the errors is tried."""
    sink = database_sink(DATABASE)
    put(stream, RECORDS)
    run = begin(sink)
    run.finish("x")
    run.end()
    put(stream, ["y"])
    run = begin(sink)
    run.finish()
    remove(run.store.client, f"/kinesis-trident/{app}")
    run.end()
    for error in (FencedError, StaleBatchError, StaleBatchError):
        with pytest.raises(error, match="use a new applicationName"):
            begin(sink).finish()
    assert sink.read() == [*RECORDS, "y"]
    begin(sink, applicationName=f"{app}-2").finish()
    assert sink.read() == sorted([*RECORDS, "y"] * 2)


# A staging table.


@pytest.fixture
def staging_sink(
    database_sink: Callable[..., Sink], program_of: Callable[[str], Path], spark: SparkSession, database: str
) -> Sink:
    jar = program_of("postgresql.jar")
    url, _, schema = database.partition("?options=-csearch_path%3D")
    jdbc = url.replace("postgresql+psycopg://postgres@", "jdbc:postgresql://")
    mine = {
        "jdbc:postgresql://host/shop": f"{jdbc}?currentSchema={schema}",
        '"user": "user"': '"user": "postgres"',
    }
    assert all(theirs in STAGING for theirs in mine)
    sink = database_sink(DATABASE, STAGING, **mine)

    def connect(pauses: Mapping[str, Callable[[], None]]) -> Write:
        write = sink.connect(pauses)

        def with_jar(df: DataFrame, txid: int, outcomes: Outcomes) -> None:
            # For this thread; a job's own jars are known to all.
            spark.sql(f"ADD JAR {jar}")
            write(df, txid, outcomes)

        return with_jar

    return Sink(connect, sink.read)


@POSTGRES
@pytest.mark.parametrize(
    ("where", "direction"),
    cases(
        ("before the fence", FAILS_OLDER),
        ("before the drop", FAILS_NEWER),
        long=(
            *(("before the fence", FAILS_NEWER), ("before the commit", FAILS_OLDER)),
            *itertools.product(("before", "before the insertion", "after"), BOTH),
        ),
    ),
)
def test_a_staging_table(
    play: Callable[..., list[str]], staging_sink: Sink, where: str, direction: str
) -> None:
    assert play(staging_sink, where, direction) == RECORDS


@POSTGRES
def test_a_task_that_ran_twice_and_one_that_is_late(
    staging_sink: Sink, spark: SparkSession, database: str
) -> None:
    engine = sa.create_engine(database)

    def twice() -> None:
        (staging,) = (name for name in sa.inspect(engine).get_table_names() if name.startswith("staging"))
        tables.append(staging)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"INSERT INTO {staging} SELECT * FROM {staging}")

    tables: list[str] = []
    write = staging_sink.connect({"before the fence": twice})
    rows = [("m1", "a", 1.0), ("m2", "a", 1.0), ("m3", "b", 2.0)]
    frame = spark.createDataFrame(rows, "messageId string, order_id string, amount double")
    for _ in range(2):
        write(frame, 1, Outcomes(1, "orders", 1))
    assert staging_sink.read() == ["a", "a", "b"]
    with pytest.raises(sa.exc.ProgrammingError, match="does not exist"), engine.begin() as connection:
        connection.exec_driver_sql(f"INSERT INTO {tables[0]} VALUES ('m4', 'c', 3.0)")
    assert staging_sink.read() == ["a", "a", "b"]
    engine.dispose()


@pytest.mark.parametrize("refused", [False, True])
def test_a_batch_whose_records_all_fail_leaves_nothing(
    database_sink: Callable[..., Sink], spark: SparkSession, *, refused: bool
) -> None:
    sink = database_sink(DATABASE)
    write = sink.connect({})
    schema = "messageId string, order_id string, amount double"
    for rows in ([("m1", "a", 1.0)], []) if refused else ([],):
        write(spark.createDataFrame(rows, schema), 1, Outcomes(1, "orders", 1))
    assert sink.read() == []
