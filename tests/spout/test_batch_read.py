"""A batch between two places: every record between them once, shard by shard, whatever happens to the stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from kinesis_trident.spout.batch.batch_read import (
    KinesisBatchReader,
    RangesPartition,
    load_streams,
    sort_by_lineage,
)
from kinesis_trident.spout.batch.pushed_filters import ShardRange
from kinesis_trident.spout.batch.range_read import Loaded, read_range
from kinesis_trident.spout.errors import DataLossError
from kinesis_trident.spout.kinesis import (
    KeyAwayError,
    KeyUnusableError,
    Shard,
    StreamMissingError,
    ThrottledError,
    Unavailable,
)
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.positions import TRIM_HORIZON, After, At, AtTimestamp, Position, ShardEnd
from kinesis_trident.spout.reader.rows import ARROW_SCHEMA
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis, Quotas, ScriptedKinesis
from kinesis_trident.tracker.records import RecordPosition

A = "shardId-000000000000"
OPTIONS = SourceOptions.parse_batch(
    {"streamName": "orders", "minFetchPeriod": "0ms", "maxRecordsPerFetch": "2"}
)


class Shelf:
    """A shard of five records, one second apart."""

    def __init__(self) -> None:
        self.time = FakeTime()
        self.kinesis = MemoryKinesis(clock=self.time.milliseconds)
        self.arrivals, self.sequences = [], []
        for number in range(5):
            self.arrivals.append(self.time.milliseconds())
            self.sequences.append(self.kinesis.put(A, str(number).encode()))
            self.time.sleep(1)

    def read(self, start: Position, end: Position) -> list[int]:
        """Return what the records between the two say."""
        batches = list(read_range(self.kinesis, OPTIONS, ShardRange("orders", A, start, end)))
        assert all(batch.num_rows for batch in batches)
        return [int(data) for batch in batches for data in batch.column("data").to_pylist()]


def test_a_range_begins_at_its_start_and_ends_before_its_end() -> None:
    shelf = Shelf()

    def record(number: int) -> RecordPosition:
        return RecordPosition(shelf.sequences[number])

    now = AtTimestamp(shelf.time.milliseconds())
    assert shelf.read(TRIM_HORIZON, now) == [0, 1, 2, 3, 4]
    assert shelf.read(At(record(1)), At(record(3))) == [1, 2]
    assert shelf.read(After(record(1)), After(record(3))) == [2, 3]
    assert shelf.read(AtTimestamp(shelf.arrivals[2]), AtTimestamp(shelf.arrivals[4])) == [2, 3]
    assert shelf.read(TRIM_HORIZON, ShardEnd()) == [0, 1, 2, 3, 4]
    assert shelf.read(TRIM_HORIZON, TRIM_HORIZON) == shelf.read(ShardEnd(), now) == []
    assert shelf.read(After(record(4)), now) == []


def test_what_arrives_after_the_end_is_not_read_however_late_one_reads() -> None:
    shelf = Shelf()
    end = AtTimestamp(shelf.time.milliseconds())
    first = shelf.read(TRIM_HORIZON, end)
    shelf.kinesis.put(A, b"9")
    shelf.kinesis.split(A)
    assert shelf.read(TRIM_HORIZON, end) == first


def test_a_record_without_an_arrival_time_ends_no_range_and_is_read() -> None:
    shelf = Shelf()
    for number in (1, 4):
        shelf.kinesis.garble(A, shelf.sequences[number], {"ApproximateArrivalTimestamp": None})
    assert shelf.read(TRIM_HORIZON, AtTimestamp(shelf.time.milliseconds())) == [0, 1, 2, 3, 4]
    assert shelf.read(TRIM_HORIZON, AtTimestamp(shelf.arrivals[3])) == [0, 1, 2]
    assert shelf.read(AtTimestamp(shelf.arrivals[2]), ShardEnd())[-3:] == [2, 3, 4]


def test_rows_are_those_of_the_stream_but_nothing_tracks_them() -> None:
    shelf = Shelf()
    (first, *_) = read_range(
        shelf.kinesis, OPTIONS, ShardRange("orders", A, TRIM_HORIZON, AtTimestamp(shelf.time.milliseconds()))
    )
    assert first.schema == ARROW_SCHEMA
    row = first.to_pylist()[0]
    assert row["messageId"] == f"orders/{A}:{shelf.sequences[0]}"
    assert (row["stream"], row["shardId"], row["attempt"], row["txid"]) == ("orders", A, 1, 0)
    assert row["__anchors"] == []


def test_a_throttled_call_is_made_again() -> None:
    shelf = Shelf()
    shelf.kinesis.fail(A, ThrottledError("slow down"))
    assert shelf.read(TRIM_HORIZON, AtTimestamp(shelf.time.milliseconds())) == [0, 1, 2, 3, 4]


@given(st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.randoms(use_true_random=False))))
def test_parents_come_before_their_children(drawn: tuple[int, object]) -> None:
    n, r = drawn
    listed = [
        Shard(f"s{i:03}", tuple(f"s{r.randrange(i):03}" for _ in range(r.randint(0, 2)) if i))  # type: ignore[attr-defined]
        for i in range(n)
    ]
    r.shuffle(listed)  # type: ignore[attr-defined]
    ordered = [shard.id for shard in sort_by_lineage(listed)]
    assert sorted(ordered) == sorted(shard.id for shard in listed)
    for shard in listed:
        assert all(ordered.index(parent) < ordered.index(shard.id) for parent in shard.parents)


@pytest.fixture
def reader() -> Iterator[Callable[..., tuple[ScriptedKinesis, KinesisBatchReader]]]:
    with ScriptedKinesis(quotas=Quotas.none()) as server:
        server.create_stream("orders", 1)

        def make(**given: str) -> tuple[ScriptedKinesis, KinesisBatchReader]:
            options = {
                "streamName": "orders",
                "endpointUrl": server.endpoint_url,
                "region": "us-east-1",
            } | given
            return server, KinesisBatchReader(SourceOptions.parse_batch(options), Loaded(server.now))

        yield make


def test_a_batch_describes_its_stream_and_lists_it_twice_however_many_tasks_a_process_reads(
    reader: Callable[..., tuple[ScriptedKinesis, KinesisBatchReader]],
) -> None:
    server, _ = reader()
    server.client().update_shard_count(StreamName="orders", TargetShardCount=6, ScalingType="UNIFORM_SCALING")
    for shard in server.shards("orders"):
        server.put("orders", shard, b"1")
    options = reader(startingPosition="TRIM_HORIZON", minFetchPeriod="0ms")[1]._options
    batch = KinesisBatchReader(options, load_streams(options))
    partitions = batch.partitions()
    assert len(partitions) > 6
    assert sum(rows.num_rows for part in partitions for rows in batch.read(part)) == 6
    # When it is loaded; and after its end, whether the stream is the same, and which shards have closed before.
    assert server.times.most("DescribeStreamSummary", 3600) == 2
    assert server.times.most("ListShards", 3600) == 2


def test_closed_shards_are_read_before_those_that_came_of_them(
    reader: Callable[..., tuple[ScriptedKinesis, KinesisBatchReader]],
) -> None:
    server, _ = reader()
    server.put("orders", A, b"1")
    left, right = server.split("orders", A)
    server.put("orders", left, b"2")
    server.put("orders", right, b"3")
    child = server.merge("orders", left, right)
    server.put("orders", child, b"4")
    server.advance(1)
    _, batch = reader(minFetchPeriod="0ms")
    partitions = batch.partitions()
    found = [
        (part.ranges[0].shard, data)
        for part in partitions
        if isinstance(part, RangesPartition)
        for rows in batch.read(part)
        for data in rows.column("data").to_pylist()
    ]
    assert found == [(A, b"1"), (left, b"2"), (right, b"3"), (child, b"4")]
    _, grouped = reader(maxPartitions="2")
    assert [len(part.ranges) for part in grouped.partitions() if isinstance(part, RangesPartition)] == [2, 2]


def test_a_shard_that_expires_after_the_batch_was_planned_is_data_loss(
    reader: Callable[..., tuple[ScriptedKinesis, KinesisBatchReader]], caplog: pytest.LogCaptureFixture
) -> None:
    server, _ = reader()
    server.put("orders", A, b"1")
    left, _ = server.split("orders", A)
    server.put("orders", left, b"2")
    server.advance(1)
    _, lenient = reader(minFetchPeriod="0ms", failOnDataLoss="false", maxPartitions="1")
    _, strict = reader(minFetchPeriod="0ms", maxPartitions="1")
    (part,), (same,) = lenient.partitions(), strict.partitions()
    server.forget("orders", A)
    with pytest.raises(DataLossError, match=f"shard {A} was to be read from TRIM_HORIZON to AT_TIMESTAMP"):
        list(strict.read(same))
    assert [data for rows in lenient.read(part) for data in rows.column("data").to_pylist()] == [b"2"]
    assert f"shard {A} was to be read" in caplog.text
    assert "continuing with the remaining records" in caplog.text


def test_a_stream_that_is_gone_is_no_data_loss_that_one_goes_on_from(
    reader: Callable[..., tuple[ScriptedKinesis, KinesisBatchReader]],
) -> None:
    server, lenient = reader(failOnDataLoss="false")
    (part,) = lenient.partitions()
    server.client().delete_stream(StreamName="orders")
    with pytest.raises(StreamMissingError):
        list(lenient.read(part))


def test_a_shard_that_a_place_names_and_the_stream_does_not_have_is_data_loss(
    reader: Callable[..., tuple[ScriptedKinesis, KinesisBatchReader]],
) -> None:
    place = '{"shardId-000000000009": "TRIM_HORIZON", "*": "TRIM_HORIZON"}'
    with pytest.raises(DataLossError, match="shardId-000000000009"):
        reader(startingPosition=place)[1].partitions()
    assert len(reader(startingPosition=place, failOnDataLoss="false")[1].partitions()) == 1


def test_a_batch_gives_a_shard_up_when_the_read_timeout_is_over() -> None:
    shelf = Shelf()
    impatient = replace(OPTIONS, read_timeout=1e-9, client_retry_interval=1e-9)
    whole = ShardRange("orders", A, TRIM_HORIZON, After(RecordPosition(shelf.sequences[-1])))
    shelf.kinesis.fail(A, Unavailable("503"))
    with pytest.raises(Unavailable, match=f"shard {A}, position TRIM_HORIZON: 503"):
        list(read_range(shelf.kinesis, impatient, whole))
    shelf.kinesis.fail(A, Unavailable("503"))
    assert sum(batch.num_rows for batch in read_range(shelf.kinesis, OPTIONS, whole)) == 5


def test_a_batch_waits_for_a_key_that_is_disabled() -> None:
    shelf = Shelf()
    whole = ShardRange("orders", A, TRIM_HORIZON, After(RecordPosition(shelf.sequences[-1])))
    quick = replace(OPTIONS, client_retry_interval=1e-9)
    shelf.kinesis.fail(A, *[KeyAwayError("disabled")] * 3)
    assert sum(batch.num_rows for batch in read_range(shelf.kinesis, quick, whole)) == 5
    shelf.kinesis.fail(A, KeyAwayError("disabled"))
    with pytest.raises(KeyUnusableError, match=f"shard {A}, position TRIM_HORIZON: disabled") as caught:
        list(read_range(shelf.kinesis, replace(quick, read_timeout=1e-9), whole))
    assert type(caught.value) is KeyUnusableError
