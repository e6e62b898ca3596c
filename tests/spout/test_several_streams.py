"""Several streams in one source: one plan and txid for all, each with its own shards, on a real ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from by_hand import Lives, Query, SparkCheckpoint, numbers
from kazoo.client import KazooClient
from memory_streams import A, MemoryStreams

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.errors import FencedError, HomeError, StateMissingError
from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.checkpoint.store.source_store import SourceStore, streams_of
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect
from kinesis_trident.spout.acks import Acks
from kinesis_trident.spout.errors import CheckpointMismatchError, DataLossError, StreamChangedError
from kinesis_trident.spout.testing import MemoryKinesis

Start = Callable[..., Query]


@pytest.fixture
def start(lives: Lives) -> Start:
    """`start(kinesis, streams, checkpoint=None, **options)`: a life of the query; a new checkpoint by default."""

    def begin(kinesis: Any, streams: str, checkpoint: SparkCheckpoint | None = None, **options: str) -> Query:
        return lives.begin(kinesis, checkpoint, streamName=streams, **options)

    return begin


def said(rows: list[Any]) -> list[tuple[str, int, int]]:
    """(stream, number, attempt) of each row, sorted."""
    return sorted((row[1].partition("/")[0], row[0], row[2]) for row in rows)


def test_the_shards_of_all_streams_share_plans_retries_and_dead_letters(start: Start) -> None:
    kinesis = MemoryStreams("orders", "payments")
    kinesis.put("orders", 1, 2)
    kinesis.put("payments", 1, 3)
    query = start(kinesis, "orders,payments")
    rows = query.batch(failing=[1])
    assert said(rows) == [("orders", 1, 1), ("orders", 2, 1), ("payments", 1, 1), ("payments", 3, 1)]
    assert {row[3] for row in rows} == {1}
    retried = query.batch(failing=[1])
    assert said(retried) == [("orders", 1, 2), ("payments", 1, 2)]
    kinesis.put("payments", 4)
    assert said(query.drain()) == [("payments", 4, 1)]
    report = query.run.report()
    assert {name: shard["deadLettered"] for name, shard in report["shards"].items()} == {
        f"orders/{A}": 1,
        f"payments/{A}": 1,
    }
    letters = [node.last[0].message_id for node in query.store.shards.dead_letters().values()]
    assert sorted(letter.partition(":")[0] for letter in letters) == [f"orders/{A}", f"payments/{A}"]


def test_a_stream_joins_later_and_one_left_out_keeps_its_state(start: Start) -> None:
    kinesis = MemoryStreams("orders", "payments", "refunds")
    kinesis.put("orders", 1)
    kinesis.put("payments", 1)
    first = start(kinesis, "orders,payments")
    assert len(first.batch(failing=[1])) == 2
    first.end()
    kinesis.put("orders", 2)
    kinesis.put("payments", 2)
    kinesis.put("refunds", 7)
    alone = start(kinesis, "orders,refunds", first.checkpoint)
    assert said(alone.drain()) == [("orders", 1, 2), ("orders", 2, 1), ("refunds", 7, 1)]
    alone.end()
    back = start(kinesis, "payments,refunds,orders", alone.checkpoint)
    assert said(back.drain()) == [("payments", 1, 2), ("payments", 2, 1)]
    back.end()
    only = start(kinesis, "payments", back.checkpoint)
    kinesis.put("payments", 3)
    assert said(only.drain()) == [("payments", 3, 1)]


def test_a_stream_read_alone_takes_its_state_along_to_the_others(start: Start) -> None:
    kinesis = MemoryStreams("orders", "payments")
    kinesis.put("orders", 1, 2)
    alone = start(kinesis, "orders")
    assert said(alone.batch(failing=[2])) == [("orders", 1, 1), ("orders", 2, 1)]
    with pytest.raises(HomeError, match=r"not settled.*kinesis_trident\.stop"):
        start(kinesis, "orders,payments", alone.checkpoint)
    settling = start(kinesis, "orders", alone.checkpoint)
    settling.run.settle_finished(settling.committed)
    kinesis.put("payments", 5)
    together = start(kinesis, "orders,payments", settling.checkpoint)
    settling.until_replaced()
    with pytest.raises(FencedError):
        settling.plan()
    rows = together.drain()
    assert said(rows) == [("orders", 2, 2), ("payments", 5, 1)]
    assert min(row[3] for row in rows) == 2


@pytest.mark.parametrize("idle", ["alpha", "zulu"])
def test_a_stream_that_was_only_begun_takes_nothing_from_the_checkpoint_of_another(
    start: Start, idle: str
) -> None:
    """In whatever order the two join."""
    kinesis = MemoryStreams("orders", idle)
    kinesis.put("orders", 1)
    query = start(kinesis, "orders")
    query.batch(failing=[1])
    query.plan()
    query.end()
    start(kinesis, idle).end()
    kinesis.put("orders", 2)
    kinesis.put(idle, 3)
    together = start(kinesis, f"{idle},orders", query.checkpoint)
    assert said(together.drain()) == sorted([("orders", 1, 2), ("orders", 2, 1), (idle, 3, 1)])


@pytest.mark.parametrize("order", ["b,a", "a,b"])
def test_streams_that_were_read_alone_go_on_above_all_their_txids_and_epochs(
    start: Start, order: str
) -> None:
    """`a` had four batches, `b` one: whichever comes first, the txids of both are used."""
    kinesis = MemoryStreams("a", "b", "c")
    ended: dict[str, Query] = {}
    for stream, batches in (("a", 4), ("b", 1), ("c", 9)):
        for number in range(batches):
            kinesis.put(stream, number)
            checkpoint = ended[stream].checkpoint if stream in ended else None
            ended[stream] = life = start(kinesis, stream, checkpoint)
            life.batch()
            life.run.settle_finished(life.committed)
            life.end()
    kinesis.put("a", 10)
    kinesis.put("b", 10)
    together = start(kinesis, order, ended[order[0]].checkpoint)
    assert {(row[0], row[3]) for row in together.batch()} == {(10, 5)}
    assert together.run.epoch > ended["a"].run.epoch
    together.end()
    kinesis.put("c", 11)
    # The last batch is not settled yet.
    later = start(kinesis, "a,b,c", together.checkpoint)
    assert {(row[0], row[3]) for row in later.drain()} == {(11, 10)}
    assert later.run.epoch > ended["c"].run.epoch
    later.end()
    kinesis.put("b", 12)
    assert {(row[0], row[3]) for row in start(kinesis, "b", later.checkpoint).drain()} == {(12, 11)}


def test_a_stream_made_again_is_noticed_and_starts_afresh_with_a_new_checkpoint(start: Start) -> None:
    kinesis = MemoryStreams("orders", "payments")
    kinesis.put("orders", 1)
    kinesis.put("payments", 1)
    query = start(kinesis, "orders,payments")
    assert len(query.batch()) == 2
    kinesis.held["orders"] = MemoryKinesis("orders", created=1_700_000_000_000)
    kinesis.put("orders", 10)
    kinesis.put("payments", 2)
    with pytest.raises(StreamChangedError, match="'orders' was deleted and created again"):
        query.planned()
    query.end()
    with pytest.raises(StreamChangedError, match="'orders' was deleted and created again"):
        start(kinesis, "orders,payments", query.checkpoint).plan()
    fresh = start(kinesis, "orders,payments")
    assert said(fresh.drain()) == [("orders", 10, 1), ("payments", 2, 1)]


def test_a_stream_made_again_is_read_from_its_beginning_where_a_loss_is_put_up_with(start: Start) -> None:
    """The batch in hand holds both streams: of the one that is gone it holds nothing any more."""
    kinesis = MemoryStreams("orders", "payments")
    kinesis.put("orders", 1)
    kinesis.put("payments", 1)
    query = start(kinesis, "orders,payments")
    query.planned()
    query.end()
    kinesis.held["orders"] = MemoryKinesis("orders", created=1_700_000_000_000)
    kinesis.put("orders", 10)
    again = start(
        kinesis, "orders,payments", query.checkpoint, failOnDataLoss="false", startingPosition="LATEST"
    )
    assert said(again.batch()) == [("payments", 1, 1)]
    assert said(again.drain()) == [("orders", 10, 1)]
    assert "'orders' was deleted and created again" in again.run.report()["lastLosses"][0]


def test_a_batch_begun_elsewhere_comes_first_with_the_stream_that_is_left_out(start: Start) -> None:
    kinesis = MemoryStreams("orders", "payments")
    kinesis.put("orders", 1)
    kinesis.put("payments", 1)
    begun = start(kinesis, "orders,payments")
    begun.planned()
    rows = begun.rows()
    begun.end()
    resumed = start(kinesis, "orders")
    resumed.planned()
    assert resumed.rows() == rows


@pytest.mark.parametrize("pinned", [False, True])
def test_a_stream_deleted_with_a_batch_at_hand_is_a_loss(start: Start, pinned: bool) -> None:
    kinesis = MemoryStreams("orders", "clicks")
    kinesis.put("orders", 1)
    kinesis.put("clicks", 2)
    query = start(kinesis, "orders,clicks")
    query.planned()
    if pinned:
        assert numbers(query.rows()) == [1, 2]
    query.end()
    del kinesis.held["clicks"]
    again = start(kinesis, "orders", query.checkpoint)
    with pytest.raises(DataLossError, match=r"stream 'clicks' was deleted.*failOnDataLoss=false"):
        again.batch()
    again.end()
    last = start(kinesis, "orders", query.checkpoint, failOnDataLoss="false")
    assert numbers(last.batch()) == [1]
    kinesis.put("orders", 3)
    assert numbers(last.batch()) == [3]
    assert last.run.report()["losses"] >= 1


def test_two_streams_have_one_home_and_it_says_whose(start: Start) -> None:
    kinesis = MemoryStreams("orders", "payments")
    query = start(kinesis, "payments,orders")
    store: SourceStore = query.store
    assert store.layout.base.endswith("/@streams")
    node = store.streams.get()
    assert node is not None
    assert (set(node.streams), node.active) == ({"orders", "payments"}, ("orders", "payments"))


def test_each_stream_starts_at_its_place_and_bytes_are_shared_out(start: Start) -> None:
    kinesis = MemoryStreams("orders", "payments")
    kinesis.put("orders", *range(10, 20))
    kinesis.put("payments", *range(20, 30))
    third = kinesis.held["payments"].put(A, b"30")
    kinesis.put("payments", *range(31, 39))
    places = {"orders": "TRIM_HORIZON", "payments": {A: f"AT_SEQUENCE_NUMBER {third}"}}
    query = start(kinesis, "orders,payments", startingPosition=json.dumps(places), maxBytesPerTrigger="9")
    assert said(query.batch()) == [
        *(("orders", number, 1) for number in (10, 11)),
        *(("payments", number, 1) for number in (30, 31)),
    ]
    plan = query.planned()
    assert plan.limitBytes == 4
    rows = query.batch() + query.drain()
    assert [row[1] for row in said(rows)] == [*range(12, 20), *range(32, 39)]


def test_a_named_shard_that_is_not_there_is_data_loss(start: Start) -> None:
    kinesis = MemoryStreams("orders", "payments")
    place = json.dumps({"orders": {"shardId-000000000009": "TRIM_HORIZON"}, "*": "LATEST"})
    with pytest.raises(DataLossError, match="startingPosition names shard shardId-000000000009"):
        start(kinesis, "orders,payments", startingPosition=place)


def test_what_zookeeper_has_lost_is_read_again_from_the_offset_of_all_streams(
    start: Start, zookeeper: EmbeddedZooKeeper
) -> None:
    kinesis = MemoryStreams("orders", "payments", "refunds")
    kinesis.put("orders", 1)
    kinesis.put("payments", 1)
    query = start(kinesis, "orders,payments")
    query.batch()
    kinesis.put("payments", 2)
    assert said(query.batch()) == [("payments", 2, 1)]
    query.end()
    client = connect(ZooKeeperConfig(zookeeper.hosts))
    client.delete(query.store.layout.base, recursive=True)
    client.stop()
    client.close()
    kinesis.put("orders", 3)
    kinesis.put("refunds", 4)
    fifth = kinesis.held["refunds"].put(A, b"5")
    place = json.dumps({"refunds": {A: f"AT_SEQUENCE_NUMBER {fifth}"}, "*": "TRIM_HORIZON"})
    options = {
        "streams": "orders,payments,refunds",
        "checkpoint": query.checkpoint,
        "startingPosition": place,
    }
    with pytest.raises(CheckpointMismatchError):
        start(kinesis, **options).plan()
    again = start(kinesis, **options, onCheckpointMismatch="continue")
    # Of the streams in the offset, what its batch began with; the new one begins where it was told to.
    assert said(again.drain()) == [("orders", 3, 1), ("payments", 2, 1), ("refunds", 5, 1)]


def test_records_of_a_stream_read_alone_are_acked_before_it_joins_others(
    start: Start, zookeeper: EmbeddedZooKeeper, app: str
) -> None:
    kinesis = MemoryStreams("orders", "payments")
    kinesis.put("orders", 1)
    alone = start(kinesis, "orders", ackMode="explicit")
    ids = [row[1] for row in alone.batch()]
    alone.run.settle_finished(alone.committed)
    with pytest.raises(HomeError, match="1 of its records are not acked"):
        start(kinesis, "orders,payments", alone.checkpoint, ackMode="explicit")
    again = start(kinesis, "orders", alone.checkpoint, ackMode="explicit")
    with Acks(app, {"zookeeper.hosts": zookeeper.hosts}) as acks:
        assert acks.ack(ids) == 1
        assert again.drain() == []
        kinesis.put("payments", 2)
        both = start(kinesis, "orders,payments", again.checkpoint, ackMode="explicit")
        kinesis.put("orders", 3)
        more = {row[1]: row[0] for row in both.batch()}
        assert sorted(more.values()) == [2, 3]
    with Acks(app, {"zookeeper.hosts": zookeeper.hosts}) as acks:
        assert acks.ack(more) == 2
    assert both.drain() == []
    assert both.run.report()["inflight"] == 0


def end_of(alone: Query) -> SparkCheckpoint:
    """Settle the last batch of a life, end it, and return its checkpoint."""
    alone.run.settle_finished(alone.committed)
    alone.end()
    return alone.checkpoint


def test_what_was_asked_of_a_stream_read_alone_is_done_in_the_shared_home(
    start: Start, client: KazooClient
) -> None:
    """A replay of a dead letter, and a waiting record that a person gives up."""
    kinesis = MemoryStreams("orders", "payments")
    kinesis.put("orders", 1, 2, 3)
    options = {"retryBackoff": "1h..1h x1"}
    alone = start(kinesis, "orders", **options, retryLimit="0")
    ids = {row[0]: row[1].rpartition(":")[2] for row in alone.batch(failing=[1])}
    alone.drain()
    assert alone.run.report()["shards"][A]["deadLettered"] == 1
    alone = start(kinesis, "orders", end_of(alone), **options)
    kinesis.put("orders", 4)
    ids |= {row[0]: row[1].rpartition(":")[2] for row in alone.batch(failing=[4])}
    checkpoint = end_of(alone)
    old = SourceStore(client, alone.run.layout)
    old.external.add(A, ExternalNode(op="replay", records=(ids[1],)))
    old.external.add(A, ExternalNode(op="bury", records=(ids[4],)))
    together = start(kinesis, "orders,payments", checkpoint, **options)
    assert old.external.read().asked == {}
    assert said(together.drain()) == [("orders", 1, 1)]
    letters = [node.count for node in together.store.shards.dead_letters().values()]
    assert letters == [2]


def test_a_home_that_a_stream_has_left_takes_no_requests(
    start: Start, zookeeper: EmbeddedZooKeeper, client: KazooClient, app: str
) -> None:
    kinesis = MemoryStreams("orders", "payments")
    kinesis.put("orders", 1)
    alone = start(kinesis, "orders", ackMode="explicit")
    options = {"zookeeper.hosts": zookeeper.hosts}
    with Acks(app, options) as acks:
        assert acks.ack([row[1] for row in alone.batch()]) == 1
        assert alone.drain() == []
        together = start(kinesis, "orders,payments", end_of(alone), ackMode="explicit")
        with pytest.raises(StateMissingError, match="read together with others by now"):
            SourceStore(client, alone.run.layout).external.add(A, ExternalNode(op="replay", records=("1",)))
        kinesis.put("orders", 2)
        kinesis.put("payments", 3)
        # Opened before, and told of a record since: it looks for the home anew.
        assert acks.ack([row[1] for row in together.batch()]) == 2
    assert together.drain() == []
    assert together.run.report()["inflight"] == 0


@pytest.mark.parametrize("streams", ["orders", "orders,payments"])
def test_acks_of_a_stream_that_was_created_again_go_to_the_new_one(
    start: Start, zookeeper: EmbeddedZooKeeper, app: str, streams: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever acks may have looked at the streams before: acks that went to the old home were applied nowhere."""
    kinesis = MemoryStreams("orders", "payments")
    kinesis.put("orders", 1, 2)
    first = start(kinesis, streams, ackMode="explicit")
    with Acks(app, {"zookeeper.hosts": zookeeper.hosts}) as acks:
        ids = [row[1] for row in first.batch()]
        # Nobody takes this in: the query has ended.
        first.end()
        assert acks.ack(ids) == 2
        kinesis.held["orders"] = MemoryKinesis("orders", created=1_700_000_000_000)
        kinesis.put("orders", 10, 11)
        again = start(kinesis, streams, ackMode="explicit", failOnDataLoss="false")
        # Of the batch in hand nothing is left to read.
        rows = again.batch() or again.batch()
        assert sorted(row[0] for row in rows) == [10, 11]
        assert acks.ack([row[1] for row in rows]) == 2
        assert again.drain() == []
        assert again.run.report()["inflight"] == 0
    if streams == "orders":
        assert "stream orders was created again: 1 requests for its old records are removed" in caplog.text


def test_latest_stays_the_time_it_was_for_a_stream_that_is_read_together_with_others(start: Start) -> None:
    kinesis = MemoryStreams("orders", "payments")
    alone = start(kinesis, "orders", startingPosition="LATEST")
    alone.plan()
    ((stream, created),) = streams_of(alone.store).items()
    resolved = alone.store.streams.start(stream, created)
    assert resolved is not None
    alone.end()
    together = start(kinesis, "orders,payments", startingPosition="LATEST")
    assert together.store.streams.start(stream, created) == resolved


def test_what_was_kept_of_a_failed_record_goes_along_to_the_shared_home(start: Start, tmp_path: Path) -> None:
    """Its record has left the stream since."""
    kinesis = MemoryStreams("orders", "payments")
    kinesis.put("orders", 1, 2)
    options = {"retrySpool": str(tmp_path), "retryLimit": "5"}
    alone = start(kinesis, "orders", **options)
    alone.batch(failing=[1])
    rows = alone.batch(failing=[1])
    assert said(rows) == [("orders", 1, 2)]
    checkpoint = end_of(alone)
    kinesis.held["orders"].trim(A, int(rows[0][1].rpartition(":")[2]))
    together = start(kinesis, "orders,payments", checkpoint, **options)
    assert said(together.drain()) == [("orders", 1, 3)]
