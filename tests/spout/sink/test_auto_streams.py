"""Writes to a stream that distributes records by itself: without partition keys and aggregates."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from driven import stream_of
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from kinesis_trident.spout.kinesis import AccessDeniedError, KinesisError, StreamInfo, ThrottledError
from kinesis_trident.spout.kinesis.aggregation import MAGIC
from kinesis_trident.spout.kinesis.put_entries import Entries
from kinesis_trident.spout.options.sink import WriteOptions
from kinesis_trident.spout.patience import Patience
from kinesis_trident.spout.sink.known_stream import KnownStream
from kinesis_trident.spout.sink.pool import WritePool
from kinesis_trident.spout.sink.targets import StreamTarget
from kinesis_trident.spout.sink.writer import KinesisWriter
from kinesis_trident.spout.testing import FakeTime, Quotas, ScriptedKinesis

KEY, DATA = StructField("partitionKey", StringType()), StructField("data", BinaryType())


@pytest.fixture
def server() -> Iterator[ScriptedKinesis]:
    with ScriptedKinesis() as server:
        server.create_stream("orders", 2)
        server.distribute("orders")
        yield server


def write(server: ScriptedKinesis, *batches: dict[str, list[Any]], **options: str) -> None:
    """One task that writes."""
    schema = StructType([KEY, DATA] if "partitionKey" in batches[0] else [DATA])
    types = {"partitionKey": pa.string(), "data": pa.binary()}
    rows = [
        pa.record_batch({name: pa.array(column, types[name]) for name, column in one.items()})
        for one in batches
    ]
    given = WriteOptions.parse({"streamName": "orders", "endpointUrl": server.endpoint_url, **options})
    KinesisWriter(given, schema, overwrite=False).write(iter(rows))


def read(server: ScriptedKinesis) -> dict[bytes, str | None]:
    """The partition keys of all records by payload."""
    client, found = server.client(), {}
    for shard in client.list_shards(StreamName="orders")["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName="orders", ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )
        records = client.get_records(ShardIterator=iterator["ShardIterator"])["Records"]
        found |= {record["Data"]: record.get("PartitionKey") for record in records}
    return found


def test_a_row_without_a_key_is_written_without_one(server: ScriptedKinesis) -> None:
    write(server, {"partitionKey": ["a", None, "c"], "data": [b"1", b"2", b"3"]})
    write(server, {"data": [b"4", b"5"]})
    assert read(server) == {b"1": "a", b"2": None, b"3": "c", b"4": None, b"5": None}


def test_in_a_stream_that_places_by_keys_it_gets_one(server: ScriptedKinesis) -> None:
    server.distribute("orders", auto=False)
    write(server, {"partitionKey": ["a", None], "data": [b"1", b"2"]})
    write(server, {"data": [b"3"]})
    found = read(server)
    assert found[b"1"] == "a"
    assert [len(found[data] or "") for data in (b"2", b"3")] == [16, 16]


def test_aggregates_are_switched_off_and_said_once(
    server: ScriptedKinesis, caplog: pytest.LogCaptureFixture
) -> None:
    rows = {"partitionKey": ["k"] * 50, "data": [b"%d" % n for n in range(50)]}
    with caplog.at_level(logging.WARNING, logger="kinesis_trident"):
        for _ in range(3):
            write(server, rows, aggregate="true")
    assert set(read(server)) == set(rows["data"])
    [said] = [record.getMessage() for record in caplog.records]
    assert "stream 'orders': aggregate=true has no effect" in said
    server.distribute("orders", auto=False)


def test_a_stream_that_places_by_keys_takes_aggregates(server: ScriptedKinesis) -> None:
    server.distribute("orders", auto=False)
    write(server, {"partitionKey": ["k"] * 50, "data": [b"%d" % n for n in range(50)]}, aggregate="true")
    [data] = read(server)
    assert data.startswith(MAGIC)


def test_many_tasks_of_a_process_describe_the_stream_once(server: ScriptedKinesis) -> None:
    for _ in range(10):
        write(server, {"data": [b"1"]}, aggregate="true")
    assert server.calls["DescribeStreamSummary", None] == 1
    for _ in range(10):
        write(server, {"partitionKey": ["k"], "data": [b"1"]})
    assert server.calls["DescribeStreamSummary", None] == 1


def test_a_stream_that_is_switched_back_gets_keys_in_the_same_task(server: ScriptedKinesis) -> None:
    write(server, {"data": [b"1"]})
    server.distribute("orders", auto=False)
    write(
        server, {"partitionKey": ["a", None], "data": [b"2", b"3"]}, {"partitionKey": [None], "data": [b"4"]}
    )
    found = read(server)
    assert (found[b"1"], found[b"2"]) == (None, "a")
    assert [len(found[data] or "") for data in (b"3", b"4")] == [16, 16]


class Description:
    """DescribeStreamSummary, as it is set; counts the calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.answer: bool | KinesisError = True

    def __call__(self) -> StreamInfo:
        self.calls += 1
        if isinstance(self.answer, KinesisError):
            raise self.answer
        return StreamInfo("orders", "arn", 1, 24, "ACTIVE", 1, is_auto=self.answer)


def test_a_switched_stream_is_noticed_within_a_minute() -> None:
    time, description = FakeTime(), Description()
    stream = KnownStream(description, list, clock=time)
    assert stream.is_auto()
    description.answer = False
    time.sleep(59)
    assert stream.takes_no_aggregates()
    assert description.calls == 1
    time.sleep(1)
    assert not stream.takes_no_aggregates()
    description.answer = True
    assert stream.is_auto(anew=True)
    assert description.calls == 3


@pytest.mark.parametrize(
    ("error", "is_off"), [(ThrottledError("slow"), True), (AccessDeniedError("no"), False)]
)
def test_where_the_stream_cannot_be_described_rows_get_keys(error: KinesisError, is_off: bool) -> None:
    """What is right in any stream: a key, and while it is only throttled, no aggregate."""
    description = Description()
    description.answer = error
    stream = KnownStream(description, list)
    assert not stream.is_auto()
    assert stream.takes_no_aggregates() == is_off


def test_a_failed_description_is_remembered_for_seconds_but_not_where_the_write_depends_on_it() -> None:
    time, description = FakeTime(), Description()
    description.answer = ThrottledError("slow")
    stream = KnownStream(description, list, clock=time)
    for _ in range(50):
        assert stream.takes_no_aggregates()
        assert not stream.is_auto()
    assert description.calls == 1
    description.answer = True
    assert stream.limit() == 10 * 2**20
    assert description.calls == 2
    assert stream.is_auto()
    description.answer = ThrottledError("slow")
    time.sleep(60)
    assert not stream.is_auto()
    description.answer = True
    time.sleep(5)
    assert stream.is_auto()
    assert description.calls == 4


def test_no_shard_of_a_stream_that_distributes_by_itself_is_taken_for_busy(server: ScriptedKinesis) -> None:
    server.limit(replace(Quotas.none(), write_records=40))
    write(server, {"partitionKey": [f"k{n}" for n in range(160)], "data": [b"%d" % n for n in range(160)]})
    assert len(read(server)) == 160
    assert server.calls["ListShards", None] == 1  # by `read`
    is_auto, time = False, FakeTime()
    stream = stream_of(lambda: [(2**128 - 1, "s")], time, is_auto=lambda: is_auto)
    assert stream.shards_of_keys(listing=True) is not None
    is_auto = True
    time.sleep(60)
    assert stream.shards_of_keys(listing=True) is None


def test_shards_that_cannot_be_listed_are_asked_for_again_after_a_minute() -> None:
    """All tasks of a process know the stream by one object: each asked once."""
    time, asked, may_list = FakeTime(), 0, False

    def listed() -> list[tuple[int, str]]:
        nonlocal asked
        asked += 1
        if not may_list:
            raise AccessDeniedError("no kinesis:ListShards")
        return [(2**128 - 1, "s")]

    stream = stream_of(listed, time)
    assert [stream.shards_of_keys(listing=True) for _ in range(9)] == [None] * 9
    assert asked == 1
    may_list = True
    time.sleep(60)
    found = stream.shards_of_keys(listing=True)
    assert found is not None
    assert stream.shards_of_keys(listing=False) is found
    assert asked == 2


def test_others_go_on_while_a_stream_is_described_and_listed() -> None:
    """All these calls find the lock of the pool free."""
    found: list[bool] = []
    pool: WritePool

    def is_free() -> bool:
        def look() -> None:
            if free := pool._lock.acquire(timeout=60):
                pool._lock.release()
            found.append(free)

        other = threading.Thread(target=look)
        other.start()
        other.join()
        return False

    def listed() -> list[tuple[int, str]]:
        is_free()
        return [(2**128 - 1, "s")]

    answers = [[{"ErrorCode": "ProvisionedThroughputExceededException"}], [{}], [{}]]
    with WritePool(1, Patience(60.0, FakeTime()), wait=lambda *_: None) as pool:
        for most in (None, 100):
            stream = stream_of(listed, lambda: float("inf"), is_auto=is_free)
            target = StreamTarget(lambda _: answers.pop(0), stream, most=most)
            pool.add(target, [Entries.of([{"Data": b"a", "PartitionKey": "k"}])])
        pool.finish()
    assert len(found) >= 5
    assert all(found)


def test_rows_without_keys_use_all_requests() -> None:
    requests: list[int] = []

    def send(entries: Entries) -> list[dict[str, Any]]:
        requests.append(len(entries))
        return [{}] * len(entries)

    with WritePool(4, Patience(60.0, FakeTime())) as pool:
        pool.add(
            StreamTarget(send, stream_of(list)),
            [Entries.of({"Data": b"x"} for _ in range(400))],
        )
        pool.finish()
    assert len(requests) == 4
    assert sum(requests) == 400
    assert min(requests) > 50


def test_the_size_of_a_record_without_a_key() -> None:
    entries = Entries.of([{"Data": b"abc"}, {"Data": b"abc", "PartitionKey": "ü"}])
    assert entries.sizes.tolist() == [3, 5]
    assert list(entries) == [{"Data": b"abc"}, {"Data": b"abc", "PartitionKey": "ü"}]
