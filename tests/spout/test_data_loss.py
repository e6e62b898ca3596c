"""`failOnDataLoss`, case by case, on the scripted endpoint: what is lost is said with shard, position and times.

Each case leads a query to where records are gone. With `failOnDataLoss` it stops; without it goes on with what
is left,
and says the same in its log and in its progress.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from by_hand import Lives, Query, SparkCheckpoint
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_none

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.model.nodes import CheckpointNode
from kinesis_trident.spout.errors import DataLossError, SpoutError, StreamChangedError, StreamRecreatedError
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.reader.task import read_turns
from kinesis_trident.spout.source import KinesisTridentReader
from kinesis_trident.spout.testing import Quotas, Refuse, ScriptedKinesis

HOUR = 3600
FIRST = "shardId-000000000000"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
DROPPED = r"stream is \d+\.\d min old and keeps 24 h, so this is not its retention: the server has dropped the shard"
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


def parent_that_went_unread(world: World) -> SparkCheckpoint:
    query = world.start()
    query.run.initial()
    query.end()
    world.put(1)
    world.server.split("orders", FIRST)
    world.server.forget("orders", FIRST)
    world.put(3)
    return query.checkpoint


def idle_since_latest(world: World) -> SparkCheckpoint:
    """Found at its tip, never read; what came and expired while the query was down is in no listing."""
    world.given["startingPosition"] = "LATEST"
    query = world.start()
    assert query.plan() is None
    query.end()
    world.put(1)
    world.server.advance(25 * HOUR)
    world.put(3)
    return query.checkpoint


def child_never_read(world: World) -> SparkCheckpoint:
    world.put(1)
    query = world.start()
    query.batch()
    world.server.split("orders", FIRST)
    while query.plan() is not None:
        query.batch()
    query.end()
    world.put(2)
    world.server.advance(25 * HOUR)
    world.put(3)
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
    world.server.split("orders", FIRST)
    world.server.forget("orders", FIRST)
    world.put(3)
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


def expired_foreign_position(world: World) -> SparkCheckpoint:
    """Of a query that another connector read, as its offset says it."""
    first = world.server.put("orders", FIRST, b"1")
    world.server.put("orders", FIRST, b"2")
    world.server.advance(25 * HOUR)
    world.put(3)
    world.given["startingPosition"] = json.dumps({FIRST: f"AFTER_SEQUENCE_NUMBER {first}"})
    return SparkCheckpoint()


def expired_seed(world: World) -> SparkCheckpoint:
    """A checkpoint of Storm's, taken over."""
    first = world.server.put("orders", FIRST, b"1")
    world.server.put("orders", FIRST, b"2")
    unread = world.start()
    seed = CheckpointNode(checkpoint=str(first), txid=0, position=f"AFTER_SEQUENCE_NUMBER {first}")
    unread.store.shards.amend(FIRST, unread.run.epoch, checkpoint=seed)
    unread.end()
    world.server.advance(23 * HOUR)
    world.put(3)
    world.server.advance(2 * HOUR)
    return SparkCheckpoint()


def offset_alone_of_expired_records(world: World) -> SparkCheckpoint:
    """ZooKeeper's data is lost, so nothing tells when the last record arrived."""
    query = world.start()
    for number in (1, 2):
        world.put(number)
        query.batch()
    assert query.plan() is None
    query.end()
    world.server.advance(25 * HOUR)
    world.put(3)
    world.given["applicationName"] = f"{world.lives.parsed().application_name}-lost"
    world.given["onCheckpointMismatch"] = "continue"
    return query.checkpoint


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
        rf"'orders', shard {FIRST}: reading stands at TRIM_HORIZON, with nothing read since it was last looked at "
        rf"25\.0 h ago \({TIME}\), but the stream keeps only 24 h: records may have expired unread",
    ),
    idle_since_latest: (
        DataLossError,
        rf"'orders', shard {FIRST}: reading stands at AT_TIMESTAMP \d+, with nothing read since it was last looked at "
        rf"25\.0 h ago \({TIME}\), but the stream keeps only 24 h",
    ),
    child_never_read: (
        DataLossError,
        r"'orders', shard shardId-00000000000[12]: reading stands at TRIM_HORIZON, with nothing read since it was last "
        rf"looked at 25\.0 h ago \({TIME}\), but the stream keeps only 24 h",
    ),
    parent_that_went_unread: (
        DataLossError,
        rf"'orders': shard {FIRST} is no longer listed and was read only to TRIM_HORIZON, with no record read; the "
        rf"{DROPPED}",
    ),
    missing_shard_read_in_part: (
        DataLossError,
        rf"'orders': shard {FIRST} is no longer listed and was read only to {SEQUENCE}, whose last record arrived "
        rf"1\.0 h ago \({TIME}\); the {DROPPED}",
    ),
    shard_gone_under_its_plan: (
        DataLossError,
        rf"'orders': shard {FIRST} was to be read from TRIM_HORIZON in txid 1, but is no longer listed at "
        rf"{TIME}; the {DROPPED}",
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
    expired_foreign_position: (
        DataLossError,
        rf"'orders', shard {FIRST}: reading is to go on from {SEQUENCE}, but the stream does not hold that record at "
        rf"{TIME}, and keeps only 24 h: records after it may have expired unread",
    ),
    expired_seed: (
        DataLossError,
        rf"'orders', shard {FIRST}: reading is to go on from {SEQUENCE}, but the stream does not hold that record at "
        rf"{TIME}, and keeps only 24 h: records after it may have expired unread",
    ),
    offset_alone_of_expired_records: (
        DataLossError,
        rf"'orders', shard {FIRST}: reading is to go on from {SEQUENCE}, but the stream does not hold that record at ",
    ),
    named_shard_is_not_there: (
        DataLossError,
        r"'orders': startingPosition names shard shardId-000000000007 at AFTER_SEQUENCE_NUMBER 49590, which is not "
        rf"listed at {TIME}: it is of another stream than this one, created at {TIME}",
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
    assert re.search(rf"{said}.*continuing with the remaining records \(failOnDataLoss=false\)", caplog.text)
    report = query.run.report()
    assert any(re.search(said, loss) for loss in report["lastLosses"])
    assert report["losses"] == len(report["lastLosses"])
    # And from there on as ever.
    query.end()
    world.put(4)
    assert [row[0] for row in world.start(query.checkpoint).drain()] == [4]


def test_what_was_looked_at_within_retention_has_lost_nothing(world: World) -> None:
    world.given["startingPosition"] = "LATEST"
    first = world.start()
    assert first.plan() is None
    world.server.advance(20 * HOUR)
    first.run.initial()
    assert first.plan() is None
    # The shards are listed after a look: the second one notes what the first one saw.
    assert first.plan() is None
    first.end()
    world.server.advance(5 * HOUR)
    world.put(3)
    second = world.start(first.checkpoint)
    assert [row[0] for row in second.drain()] == [3]
    assert second.run.report().get("losses") is None


@pytest.mark.parametrize("refused", [False, True])
def test_a_foreign_position_whose_record_is_there_loses_nothing(world: World, *, refused: bool) -> None:
    """Where Kinesis does not say whether it is there, it is asked again."""
    first = world.server.put("orders", FIRST, b"1")
    world.put(2)
    if refused:
        world.server.script("GetRecords", Refuse.throttled(), shard=FIRST)
    query = world.start(startingPosition=json.dumps({FIRST: f"AFTER_SEQUENCE_NUMBER {first}"}))
    assert [row[0] for row in query.drain()] == [2]
    assert query.run.report().get("losses") is None


INTERVAL = "1000s"
"""Of describeShardInterval: who reads finds out by itself."""


def looked_for(reader: KinesisTridentReader, start: dict[str, Any]) -> dict[str, Any]:
    """Ask until there is a next batch, as Spark does."""
    found = Retrying(
        stop=stop_after_delay(60), wait=wait_none(), retry=retry_if_result(lambda end: end == start)
    )(reader.latestOffset, start)
    assert isinstance(found, dict)
    return found


def data_of(reader: KinesisTridentReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    return [
        data
        for part in reader.partitions(start, end)
        for rows in read_turns(part, first_attempt=True)  # type: ignore[arg-type]
        for data in rows.column("data").to_pylist()
    ]


@pytest.fixture
def reading(world: World) -> Iterator[Callable[..., KinesisTridentReader]]:
    """Begins a query of one record as Spark does, listing its shards once."""
    begun: list[KinesisTridentReader] = []

    def begin(**given: str) -> KinesisTridentReader:
        world.put(1)
        begun.append(KinesisTridentReader(world.lives.parsed(describeShardInterval=INTERVAL, **given)))
        return begun[-1]

    yield begin
    for reader in begun:
        reader.stop()


def first_batch(reader: KinesisTridentReader) -> dict[str, Any]:
    """Read the one record that is there; return the offset behind it."""
    start = reader.initialOffset()
    end = looked_for(reader, start)
    assert data_of(reader, start, end) == [b"1"]
    return end


def test_a_recreated_stream_is_found_where_it_is_read_not_only_where_it_is_listed(
    world: World, reading: Callable[..., KinesisTridentReader]
) -> None:
    reader = reading()
    end = first_batch(reader)
    world.server.recreate("orders")
    world.put(2)
    with pytest.raises(
        StreamRecreatedError,
        match=rf"created again.* {TIME}.* {TIME}.*shard {FIRST} stood at {SEQUENCE}.*failOnDataLoss=false",
    ):
        looked_for(reader, end)


def test_a_stream_recreated_after_planning_gives_its_batch_no_rows(
    world: World, reading: Callable[..., KinesisTridentReader], caplog: pytest.LogCaptureFixture
) -> None:
    # From TRIM_HORIZON any stream can be read, so nothing is refused.
    reader = reading(failOnDataLoss="false")
    start = reader.initialOffset()
    end = looked_for(reader, start)
    world.server.recreate("orders")
    world.put(2)
    assert data_of(reader, start, end) == []
    assert f"shard {FIRST} stood at TRIM_HORIZON" in caplog.text


@pytest.mark.parametrize("read_before", [False, True])
def test_a_stream_recreated_after_planning_fails_the_task(
    world: World, reading: Callable[..., KinesisTridentReader], read_before: bool
) -> None:
    # What a look finds is not all that the turn asks for.
    reader = reading(maxRecordsPerFetch="1")
    start = reader.initialOffset()
    end = looked_for(reader, start)
    stood = "TRIM_HORIZON"
    if read_before:
        assert data_of(reader, start, end) == [b"1"]
        world.put(1)
        start, end = end, looked_for(reader, end)
        stood = SEQUENCE
    world.server.recreate("orders")
    world.put(2)
    with pytest.raises(StreamRecreatedError, match=rf"shard {FIRST} stood at {stood}.*failOnDataLoss=false"):
        data_of(reader, start, end)


def test_what_was_found_before_a_stream_was_recreated_is_delivered(
    world: World, reading: Callable[..., KinesisTridentReader]
) -> None:
    reader = reading()
    start = first_batch(reader)
    world.put(1)
    end = looked_for(reader, start)
    world.server.recreate("orders")
    world.put(2)
    assert data_of(reader, start, end) == [b"1"]
    with pytest.raises(
        StreamRecreatedError, match=f"shard {FIRST} stood at {SEQUENCE}.*failOnDataLoss=false"
    ):
        looked_for(reader, end)


@pytest.mark.parametrize("interval", ["1ms", INTERVAL])
def test_a_stream_recreated_while_it_is_read_is_read_on_from_its_first_record(
    world: World, caplog: pytest.LogCaptureFixture, interval: str
) -> None:
    options = world.lives.parsed(
        failOnDataLoss="false", startingPosition="LATEST", describeShardInterval=interval
    )
    reader = KinesisTridentReader(options)
    start = reader.initialOffset()
    world.server.advance(2)

    def batch() -> list[bytes]:
        nonlocal start
        end = start
        while end == start:
            end = reader.latestOffset(start)
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
