"""A batch is read again as it was planned, whatever the option `deaggregate` says by then."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from by_hand import Lives, Query, SparkCheckpoint

from kinesis_trident.spout.batch.batch_read import _ranges
from kinesis_trident.spout.batch.pushed_filters import NO_FILTERS
from kinesis_trident.spout.batch.range_read import read_range
from kinesis_trident.spout.failed_records.retry_ranges import DeaggregateChangedError
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.positions import ShardEnd
from kinesis_trident.spout.reader.task import TurnReader
from kinesis_trident.spout.testing import MemoryKinesis, aggregate

A = "shardId-000000000000"
USERS = [(b"10", "a"), (b"11", "b"), (b"12", "c")]


@pytest.fixture
def kinesis() -> MemoryKinesis:
    kinesis = MemoryKinesis("orders", created=1_600_000_000_000)
    kinesis.put(A, b"1")
    kinesis.put(A, aggregate(USERS))
    kinesis.put(A, b"2")
    return kinesis


def read(query: Query) -> list[tuple[str, bytes]]:
    """The messageId and the payload of each row of the batch in hand."""
    assert query.in_hand is not None
    rows = []
    for part in query.run.partitions(query.committed, query.in_hand):
        for batch in TurnReader(part, query.kinesis, query.store, look_first=part.replay).rows():
            columns = (batch.column(name).to_pylist() for name in ("messageId", "data"))
            rows += zip(*columns, strict=True)
    return rows


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize(("was", "now", "count"), [("true", "false", 5), ("false", "true", 3)])
def test_a_batch_at_hand_keeps_its_way_of_reading(
    lives: Lives, kinesis: MemoryKinesis, was: str, now: str, count: int, pinned: bool
) -> None:
    spark = SparkCheckpoint()
    first = lives.begin(kinesis, spark, deaggregate=was)
    first.planned()
    before = read(first) if pinned else []
    first.end()
    second = lives.begin(kinesis, spark, deaggregate=now)
    again = read(second)
    assert len(again) == count
    assert not pinned or again == before
    assert read(second) == again
    second.commit()

    # What is planned from here on follows the option.
    kinesis.put(A, aggregate(USERS))
    second.planned()
    assert len(read(second)) == (1 if now == "false" else 3)
    second.commit()
    assert second.plan() is None
    assert second.run.settled == 2


def test_a_new_spark_checkpoint_reads_the_batch_of_the_old_one_as_it_was_planned(
    lives: Lives, kinesis: MemoryKinesis
) -> None:
    first = lives.begin(kinesis, deaggregate="true")
    first.planned()
    before = read(first)
    first.end()
    second = lives.begin(kinesis, SparkCheckpoint(), deaggregate="false")
    second.planned()
    assert read(second) == before


def test_a_failed_record_is_not_delivered_in_another_way(lives: Lives, kinesis: MemoryKinesis) -> None:
    spark = SparkCheckpoint()
    first = lives.begin(kinesis, spark, deaggregate="true")
    assert len(first.batch(failing=[11])) == 5
    first.end()
    second = lives.begin(kinesis, spark, deaggregate="false")
    second.planned()
    with pytest.raises(DeaggregateChangedError, match="Set deaggregate=true until no failed record waits"):
        read(second)


@pytest.mark.parametrize(("was", "now"), [("true", "false"), ("false", "true")])
def test_the_option_set_back_delivers_the_failed_record_of_a_batch_planned_otherwise(
    lives: Lives, kinesis: MemoryKinesis, was: str, now: str
) -> None:
    spark = SparkCheckpoint()
    first = lives.begin(kinesis, spark, deaggregate=was)
    first.planned()
    # A user record of the aggregate, or all of it.
    failed = [(0, name, 0, 0) for name, data in read(first) if data == b"11" or len(data) > 10]
    assert len(failed) == 1
    first.publish(failed)
    first.commit()
    first.end()
    second = lives.begin(kinesis, spark, deaggregate=now)
    second.planned()
    with pytest.raises(DeaggregateChangedError, match=f"Set deaggregate={was} until"):
        read(second)
    second.end()
    back = lives.begin(kinesis, spark, deaggregate=was)
    rows = read(back)
    assert [name for name, _ in rows] == [failed[0][1]]
    back.end()
    # What was read so is read so again, as long as the option says so.
    again = lives.begin(kinesis, spark, deaggregate=was)
    assert read(again) == rows


def test_a_plan_of_a_release_that_did_not_say_is_read_as_the_option_says(
    lives: Lives, kinesis: MemoryKinesis
) -> None:
    query = lives.begin(kinesis, deaggregate="false")
    query.planned()
    offset = json.loads(query.checkpoint.offsets[-1])
    assert offset.pop("deaggregate") is False
    query.checkpoint.offsets[-1] = json.dumps(offset)
    assert len(read(query)) == 3


@pytest.mark.parametrize(
    ("kind", "sub", "is_inside"),
    [("AFTER", 0, True), ("AFTER", 1, True), ("AFTER", 2, False), ("AT", 2, True), ("AT", 1, True)],
)
def test_a_start_inside_of_an_aggregate_leaves_out_nothing(
    lives: Lives, kinesis: MemoryKinesis, kind: str, sub: int, is_inside: bool
) -> None:
    sequence = kinesis._stream.shard(A).records[1].sequence
    start = f'{{"orders": {{"{A}": "{kind}_SEQUENCE_NUMBER {sequence}:{sub}"}}}}'
    options = SourceOptions.parse_batch(
        {"streamName": "orders", "minFetchPeriod": "0ms", "deaggregate": "false", "startingPosition": start}
    )
    (whole,) = _ranges(options, kinesis, "orders", 2**42, NO_FILTERS)
    batch = read_range(kinesis, options, replace(whole, end=ShardEnd(), others=None))
    query = lives.begin(kinesis, deaggregate="false", startingPosition=start)
    query.planned()
    if is_inside:
        with pytest.raises(
            DeaggregateChangedError, match="inside of an aggregate, and deaggregate=false would leave"
        ):
            list(batch)
        with pytest.raises(
            DeaggregateChangedError, match=f"the rest of it, up to {sequence}:2. Set deaggregate=true"
        ):
            read(query)
    else:
        assert [data for rows in batch for data in rows.column("data").to_pylist()] == [b"2"]
        assert [data for _, data in read(query)] == [b"2"]
