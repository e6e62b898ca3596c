"""`failOnDataLoss`, case by case, on the scripted endpoint: what is lost is said with shard, position and times.

Each case leads a query to where records are gone. With `failOnDataLoss` it stops; without it goes on with what is left,
and says the same in its log and in its progress.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from by_hand import Lives, Query, SparkCheckpoint
from pyspark.sql.streaming.datasource import ReadAllAvailable

from checkpoint.embedded import EmbeddedZooKeeper
from spout.client import BotoKinesis
from spout.errors import DataLossError, SpoutError, StreamChangedError
from spout.source import KinesisTridentReader
from spout.testing import Quotas, ScriptedKinesis
from spout.turns import read_turns

HOUR = 3600
FIRST = "shardId-000000000000"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"
SEQUENCE = r"AFTER_SEQUENCE_NUMBER \d{56}"


@dataclass
class World:
    """A stream of numbers with one shard, and the lives of one application that reads it."""

    server: ScriptedKinesis
    lives: Lives
    given: dict[str, str] = field(default_factory=dict)

    def put(self, *numbers: int) -> None:
        for number in numbers:
            self.server.client().put_record(
                StreamName="orders", Data=str(number).encode(), PartitionKey=str(number)
            )

    def start(self, checkpoint: SparkCheckpoint | None = None, **given: str) -> Query:
        kinesis = BotoKinesis(self.lives.parsed())
        return self.lives.begin(kinesis, checkpoint, **self.given, **given)

    def settled(self) -> SparkCheckpoint:
        """A life that has read and settled all that is there, and has ended."""
        query = self.start()
        query.batch()
        assert query.plan() is None
        query.end()
        return query.checkpoint


@pytest.fixture
def world(zookeeper: EmbeddedZooKeeper, app: str) -> Iterator[World]:
    with ScriptedKinesis(quotas=Quotas.none()) as server:
        server.create_stream("orders", 1)
        lives = Lives(zookeeper.hosts, app, endpointUrl=server.endpoint_url)
        yield World(server, lives)
        lives.end()


def resharded_long_ago(world: World) -> None:
    world.server.split("orders", FIRST)
    world.server.advance(25 * HOUR)
    world.put(3)


def checkpoint_older_than_retention(world: World) -> SparkCheckpoint:
    world.put(1)
    checkpoint = world.settled()
    world.put(2)
    world.server.advance(25 * HOUR)
    world.put(3)
    return checkpoint


def trimmed_parent_never_read(world: World) -> SparkCheckpoint:
    query = world.start()
    query.run.initial()
    query.end()
    world.put(1)
    resharded_long_ago(world)
    return query.checkpoint


def missing_shard_read_in_part(world: World) -> SparkCheckpoint:
    world.put(1)
    checkpoint = world.settled()
    world.server.advance(HOUR)
    world.put(2)
    world.server.split("orders", FIRST)
    world.server.forget("orders", FIRST)
    world.put(3)
    return checkpoint


def planned(world: World) -> SparkCheckpoint:
    """A batch that Spark has logged and nobody has read."""
    world.put(1)
    query = world.start()
    query.planned()
    query.end()
    return query.checkpoint


def shard_gone_under_its_plan(world: World) -> SparkCheckpoint:
    checkpoint = planned(world)
    resharded_long_ago(world)
    return checkpoint


def recreated_before_the_next_batch(world: World) -> SparkCheckpoint:
    world.put(1)
    checkpoint = world.settled()
    world.put(2)
    world.server.recreate("orders")
    world.put(3)
    return checkpoint


def recreated_under_a_planned_batch(world: World) -> SparkCheckpoint:
    checkpoint = planned(world)
    world.server.recreate("orders")
    world.put(3)
    return checkpoint


def named_shard_is_not_there(world: World) -> SparkCheckpoint:
    world.put(3)
    place = {"shardId-000000000007": "AFTER_SEQUENCE_NUMBER 49590", "*": "TRIM_HORIZON"}
    world.given["startingPosition"] = json.dumps(place)
    return SparkCheckpoint()


CASES: dict[Callable[[World], SparkCheckpoint], tuple[type[SpoutError], str]] = {
    checkpoint_older_than_retention: (
        DataLossError,
        rf"'orders', shard {FIRST}: reading stands at {SEQUENCE}, whose last record arrived 25\.0 h ago \({TIME}\), "
        r"but the stream keeps only 24 h",
    ),
    trimmed_parent_never_read: (
        DataLossError,
        rf"'orders': shard {FIRST} is no longer listed and was read only to TRIM_HORIZON, with no record read; what "
        rf"came after is past the retention of 24 h at {TIME}",
    ),
    missing_shard_read_in_part: (
        DataLossError,
        rf"'orders': shard {FIRST} is no longer listed and was read only to {SEQUENCE}, whose last record arrived "
        rf"1\.0 h ago \({TIME}\); what came after is past the retention of 24 h at {TIME}",
    ),
    shard_gone_under_its_plan: (
        DataLossError,
        rf"'orders': shard {FIRST} was to be read from TRIM_HORIZON in txid 1, but is past the retention of 24 h and "
        rf"no longer listed at {TIME}",
    ),
    recreated_before_the_next_batch: (
        StreamChangedError,
        rf"'orders' was deleted and created again: the one that was read was created at {TIME}, the one there now at "
        rf"{TIME}; what was unread of the first is lost \(shard {FIRST} stood at \S+",
    ),
    recreated_under_a_planned_batch: (
        StreamChangedError,
        rf"'orders' was deleted and created again: .* {TIME}.* {TIME}.*shard {FIRST} stood at TRIM_HORIZON",
    ),
    named_shard_is_not_there: (
        DataLossError,
        r"'orders': startingPosition names shard shardId-000000000007 at AFTER_SEQUENCE_NUMBER 49590, which is not "
        rf"listed at {TIME}: it is past the retention of 24 h, or of another stream than this one, created at {TIME}",
    ),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_loss_stops_the_query(world: World, case: Callable[[World], SparkCheckpoint]) -> None:
    checkpoint = case(world)
    kind, said = CASES[case]
    with pytest.raises(kind, match=said) as raised:
        world.start(checkpoint).drain()
    assert "failOnDataLoss=false" in str(raised.value)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_loss_is_said_and_the_query_goes_on(
    world: World, case: Callable[[World], SparkCheckpoint], caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = case(world)
    _, said = CASES[case]
    query = world.start(checkpoint, failOnDataLoss="false")
    assert [row[0] for row in query.drain()] == [3]
    assert re.search(rf"{said}.*going on with what is left \(failOnDataLoss=false\)", caplog.text)
    report = query.run.report()
    assert any(re.search(said, loss) for loss in report["lastLosses"])
    assert report["losses"] == len(report["lastLosses"])
    # And from there on as ever.
    query.end()
    world.put(4)
    assert [row[0] for row in world.start(query.checkpoint).drain()] == [4]


def test_a_stream_recreated_while_it_is_read_is_read_on_from_its_first_record(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    options = world.lives.parsed(failOnDataLoss="false", startingPosition="LATEST")
    reader = KinesisTridentReader(options)
    start = reader.initialOffset()
    world.server.advance(2)

    def batch() -> list[bytes]:
        nonlocal start
        end = start
        while end == start:
            end = reader.latestOffset(start, ReadAllAvailable())
        parts = reader.partitions(start, end)
        start = end
        return [
            data
            for part in parts
            for rows in read_turns(part, first_attempt=True)  # type: ignore[arg-type]
            for data in rows.column("data").to_pylist()
        ]

    try:
        world.put(1)
        assert batch() == [b"1"]
        txid = start["txid"]
        world.server.recreate("orders")
        world.put(2)
        assert batch() == [b"2"]
        assert start["txid"] == txid + 1
        assert "was deleted and created again" in caplog.text
        report = reader.reportLatestOffset()
        assert report is not None
        assert report["losses"] == 1
    finally:
        reader.stop()
