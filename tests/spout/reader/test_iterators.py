"""A turn that continues where the last one of its process ended asks Kinesis for no iterator."""

from __future__ import annotations

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.kinesis.cursor import ShardCursor
from kinesis_trident.spout.positions import TRIM_HORIZON, After
from kinesis_trident.spout.reader.turn_source import KeptCursors, kept_cursors
from kinesis_trident.spout.testing import FakeTime
from kinesis_trident.testing import MemoryKinesis, QueryByHand
from kinesis_trident.tracker.records import RecordPosition

HERE = After(RecordPosition(7))
ONE, TWO = ShardCursor(HERE, "one"), ShardCursor(HERE, "two")


def test_an_iterator_is_given_once_and_at_its_position_alone() -> None:
    kept = KeptCursors()
    kept.keep("a", ONE)
    assert kept.take("b", HERE) is None
    assert kept.take("a", HERE) == ONE
    assert kept.take("a", HERE) is None
    kept.keep("a", TWO)
    assert kept.take("a", TRIM_HORIZON) is None
    assert kept.take("a", HERE) is None


def test_an_iterator_that_may_have_expired_is_not_given() -> None:
    time = FakeTime()
    kept = KeptCursors(time)
    kept.keep("a", ONE)
    time.sleep(239)
    assert kept.take("a", HERE) == ONE
    kept.keep("a", TWO)
    time.sleep(241)
    assert kept.take("a", HERE) is None


def test_each_client_has_its_own() -> None:
    one, other = MemoryKinesis("orders"), MemoryKinesis("orders")
    kept_cursors(one).keep("a", ONE)
    assert kept_cursors(other).take("a", HERE) is None
    assert kept_cursors(one).take("a", HERE) == ONE


def options(zookeeper: EmbeddedZooKeeper, app: str, **more: str) -> dict[str, str]:
    return {
        "streamName": "orders",
        "region": "us-east-1",
        "applicationName": app,
        "zookeeper.hosts": zookeeper.hosts,
        "startingPosition": "TRIM_HORIZON",
        "minFetchPeriod": "0ms",
        **more,
    }


def test_a_backlog_is_read_with_one_iterator(zookeeper: EmbeddedZooKeeper, app: str) -> None:
    kinesis = MemoryKinesis("orders")
    (shard,) = kinesis.open_shards
    for number in range(10):
        kinesis.put(shard, b"%d" % number)
    query = QueryByHand.start(options(zookeeper, app, maxFetchRecordsPerShard="2"), kinesis)
    asked = []
    found = []
    for _ in range(5):
        query.planned()
        before = kinesis.calls["iterator", shard]
        found += [row.data for row in query.rows()]
        asked.append(kinesis.calls["iterator", shard] - before)
        query.commit()
    query.end()
    assert found == [b"%d" % number for number in range(10)]
    # The look at the shard has left the first one, which is not asked for either.
    assert asked == [0] * 5


def test_an_iterator_that_has_expired_is_replaced(zookeeper: EmbeddedZooKeeper, app: str) -> None:
    kinesis = MemoryKinesis("orders")
    (shard,) = kinesis.open_shards
    query = QueryByHand.start(options(zookeeper, app, maxFetchRecordsPerShard="1"), kinesis)
    found = []
    for data in (b"a", b"b", b"c"):
        kinesis.put(shard, data)
        query.planned()
        kinesis.expire_iterators(shard)
        found += [row.data for row in query.rows()]
        query.commit()
    query.end()
    assert found == [b"a", b"b", b"c"]
