"""The calls of Spark 4.0 and 4.1, which do not say where a batch starts; `tests/model` plays both protocols."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from by_hand import Lives, SparkCheckpoint, numbers
from kazoo.client import KazooClient
from lives import eventually

from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.spout.engines import StartlessEngine
from kinesis_trident.spout.errors import CheckpointMismatchError, OffsetError
from kinesis_trident.spout.testing import MemoryKinesis
from kinesis_trident.testing import EmbeddedZooKeeper


@pytest.fixture
def kinesis() -> MemoryKinesis:
    kinesis = MemoryKinesis("orders")
    put(kinesis, 1, 2)
    return kinesis


def put(kinesis: MemoryKinesis, *said: int) -> None:
    for number in said:
        kinesis.put(kinesis.open_shards[0], str(number).encode())


def test_a_restart_that_names_an_offset_opens_the_run_only_where_it_stands(
    lives: Lives, kinesis: MemoryKinesis
) -> None:
    first = lives.begin(kinesis, protocol="4.0")
    first.planned()
    first.end()
    opened = []
    last = first.checkpoint.logged(1)
    engine = StartlessEngine(lambda offsets: opened.append(offsets) or first.run)  # type: ignore[func-returns-value]
    assert engine.partitions(last, last) == []
    assert not opened
    with pytest.raises(Exception, match="closed"):
        engine.partitions(engine._offsets.offset(first.run.initial()), last)
    assert [len(offsets) for offsets in opened] == [2]


def test_a_spark_that_does_not_say_where_it_stands_is_stopped(lives: Lives, kinesis: MemoryKinesis) -> None:
    """As a changed Spark would that asks for an offset first; with a new checkpoint, as is said, each record comes."""
    first = lives.begin(kinesis, protocol="4.0")
    rows = first.batch()
    first.end()
    put(kinesis, 3)

    silent = lives.begin(kinesis, SparkCheckpoint(), protocol="4.0")
    silent.planned()
    silent.checkpoint = SparkCheckpoint([*first.checkpoint.offsets, *silent.checkpoint.offsets], 1)
    with pytest.raises(
        CheckpointMismatchError, match=r"txid 1 to txid \d that was not.*new checkpointLocation"
    ):
        silent.rows()
    silent.end()

    last = lives.begin(kinesis, SparkCheckpoint(), protocol="4.0")
    again = last.drain()
    assert set(numbers(again)) == {1, 2, 3}
    # The batch that had not been settled comes again as it was, under its txid.
    assert [row for row in again if row[3] == 1] == rows
    last.end()


def test_an_offset_of_another_source_is_named_once_it_is_used(lives: Lives, kinesis: MemoryKinesis) -> None:
    query = lives.begin(kinesis)
    engine = StartlessEngine(lambda _: query.run)
    assert engine.partitions({"n": 5}, {"n": 5}) == []
    with pytest.raises(OffsetError, match="not ours"):
        engine.latest(None, None)


def test_a_run_that_is_asked_to_drain_reads_on_before_it_ends(lives: Lives, kinesis: MemoryKinesis) -> None:
    query = lives.begin(kinesis, maxRecordsPerTrigger="1", retryLimit="2")
    query.store.stop.ask(query.run.epoch, drain=True)
    rows = []
    while query.plan() is not None:
        rows += query.batch(failing={2} if len(rows) < 2 else ())
    assert numbers(rows) == [1, 2, 2]
    assert query.plan() is None
    asked = query.store.stop.get()
    assert asked is not None
    assert asked.settled == query.run.settled > 2


def test_a_run_reads_on_once_nobody_asks_it_to_drain_any_more(
    lives: Lives,
    kinesis: MemoryKinesis,
    zookeeper: EmbeddedZooKeeper,
    make_client: Callable[..., KazooClient],
) -> None:
    """As `stop` does whose timeout is over; the next one drains what is there by then."""
    query = lives.begin(kinesis)
    takeover = query.run._takeover

    def ask() -> KazooClient:
        client = make_client(zookeeper.hosts)
        SourceStore(client, query.run.layout).stop.ask(query.run.epoch, drain=True)
        eventually(lambda: takeover.drain_asked, "the run sees the request")
        return client

    def end(client: KazooClient) -> None:
        client.stop()
        eventually(lambda: not takeover.stop_asked, "the run sees that it was withdrawn")

    client = ask()
    assert numbers(query.batch()) == [1, 2]
    assert query.plan() is None
    put(kinesis, 3)
    assert query.plan() is None
    assert [run.how for run in query.store.ends.runs()] == ["finished"]
    end(client)
    assert numbers(query.batch()) == [3]
    # It has not ended: if it is killed, it is not one that has read everything.
    assert query.store.ends.runs() == ()

    client = ask()
    query.plan()
    put(kinesis, 4)
    end(client)
    # Between two batches nobody looks.
    client = ask()
    put(kinesis, 5)
    rows = query.batch()
    while query.plan() is not None:
        rows += query.batch()
    assert 4 in numbers(rows)
