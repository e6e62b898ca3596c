"""The sink in a real Spark: batch and streaming, what is refused, and what is wrong."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from kinesis_trident.checkpoint.embedded import EmbeddedKinesis
from kinesis_trident.spout.errors import OptionsError, WriteError
from kinesis_trident.spout.kinesis import KinesisError, StreamMissingError
from kinesis_trident.spout.options.sink import WriteOptions
from kinesis_trident.spout.sink.pool import Sent
from kinesis_trident.spout.sink.writer import KinesisStreamWriter, KinesisWriter, Written
from kinesis_trident.spout.source import KinesisTridentSource

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = StructType([StructField("partitionKey", StringType()), StructField("data", BinaryType())])


@pytest.fixture
def read(kinesis: KinesisClient) -> Callable[[str], list[tuple[str, bytes, str]]]:
    """All records of a stream as (partition key, payload, shard), in the order of each shard."""

    def read(stream: str) -> list[tuple[str, bytes, str]]:
        found = []
        for shard in kinesis.list_shards(StreamName=stream)["Shards"]:
            iterator = kinesis.get_shard_iterator(
                StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            while records := (answer := kinesis.get_records(ShardIterator=iterator))["Records"]:
                found += [(record["PartitionKey"], record["Data"], shard["ShardId"]) for record in records]
                iterator = answer["NextShardIterator"]
        return found

    return read


@pytest.fixture
def format_of(kinesis_server: EmbeddedKinesis) -> Callable[..., dict[str, str]]:
    """`format_of(stream, **options)`: the options of a write."""

    def options(stream: str, **more: str) -> dict[str, str]:
        # Two requests at once to one shard of moto's overwrite each other's records.
        given = {"endpointUrl": kinesis_server.endpoint_url, "maxRequestsInFlight": "1"}
        return {"streamName": stream, **given, **more}

    return options


def numbers(spark: SparkSession, count: int, keys: int = 7) -> DataFrame:
    return spark.range(count).select(
        sql.concat(sql.lit("key-"), sql.col("id") % keys).alias("partitionKey"),
        sql.col("id").cast("string").alias("data"),
    )


class Endpoint:
    """A Kinesis on loopback that answers PutRecords as `answer` says, and keeps what it took."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, bytes]] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.lock = threading.Lock()
        self.answer: Callable[[int, list[dict[str, Any]]], list[bool] | int] = lambda _, records: (
            [True] * len(records)
        )
        self.largest_kib: int | None = None
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                operation = self.headers["X-Amz-Target"].rpartition(".")[2]
                with endpoint.lock:
                    status, said = endpoint.respond(operation, body)
                content = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def respond(self, operation: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.calls.append((operation, body))
        if operation == "DescribeStreamSummary":
            summary = {
                "StreamName": "orders",
                "StreamARN": "arn:aws:kinesis:us-east-1:123456789012:stream/orders",
                "StreamStatus": "ACTIVE",
                "RetentionPeriodHours": 24,
                "StreamCreationTimestamp": 1.7e9,
                "MaxRecordSizeInKiB": self.largest_kib,
            }
            if self.largest_kib is None:
                return 400, {"__type": "AccessDeniedException", "message": "not allowed"}
            return 200, {"StreamDescriptionSummary": summary}
        puts = sum(operation == "PutRecords" for operation, _ in self.calls)
        taken = self.answer(puts, body["Records"])
        if isinstance(taken, int):
            return taken, {"__type": "InternalFailure", "message": "oh"}
        results = []
        for record, kept in zip(body["Records"], taken, strict=True):
            if kept:
                self.taken.append((record["PartitionKey"], base64.b64decode(record["Data"])))
                results.append({"SequenceNumber": "1", "ShardId": "shardId-000000000000"})
            else:
                results.append(
                    {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slow"}
                )
        return 200, {"FailedRecordCount": taken.count(False), "Records": results}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.server.shutdown()
    made.server.server_close()


def writer_to(endpoint: Endpoint, **options: str) -> KinesisWriter:
    given = {"streamName": "orders", "endpointUrl": endpoint.url, "clientNumRetries": "0", **options}
    return KinesisWriter(WriteOptions.parse(given), SCHEMA, overwrite=False)


def batch(rows: list[tuple[str | None, bytes]]) -> pa.RecordBatch:
    keys, data = [key for key, _ in rows], [data for _, data in rows]
    return pa.record_batch(
        [pa.array(keys, pa.string()), pa.array(data, pa.binary())], names=["partitionKey", "data"]
    )


def test_every_row_of_a_batch_arrives(
    spark: SparkSession,
    format_of: Callable[..., dict[str, str]],
    make_stream: Callable[..., str],
    read: Callable[[str], list[tuple[str, bytes, str]]],
) -> None:
    stream = make_stream(3)
    frame = numbers(spark, 3000).coalesce(1)
    frame.write.format("kinesis-trident").options(**format_of(stream)).mode("append").save()
    found = read(stream)
    assert sorted((key, int(data)) for key, data, _ in found) == sorted(
        (f"key-{n % 7}", n) for n in range(3000)
    )
    in_order_of_each_key([(key, data) for key, data, _ in found])


def test_rows_that_name_their_streams_are_aggregated_and_read_back(
    spark: SparkSession, format_of: Callable[..., dict[str, str]], make_stream: Callable[..., str]
) -> None:
    streams = [make_stream(2), make_stream()]
    names = sql.when(sql.col("data").cast("int") % 3 == 0, streams[0]).otherwise(streams[1])
    options = format_of("", aggregate="true")
    del options["streamName"]
    frame = numbers(spark, 3000).withColumn("streamName", names)
    frame.write.format("kinesis-trident").options(**options).mode("append").save()
    for at, stream in enumerate(streams):
        reading = {"endpointUrl": options["endpointUrl"], "startingPosition": "TRIM_HORIZON"}
        found = spark.read.format("kinesis-trident").options(streamName=stream, **reading).load().collect()
        assert sorted((row.partitionKey, int(row.data)) for row in found) == sorted(
            (f"key-{n % 7}", n) for n in range(3000) if (n % 3 == 0) == (at == 0)
        )
        assert len({row.sequenceNumber for row in found}) < 20


def test_tasks_and_their_requests_side_by_side_keep_the_order_of_each_key(
    spark: SparkSession, format_of: Callable[..., dict[str, str]], endpoint: Endpoint
) -> None:
    frame = numbers(spark, 6000).repartition(2, "partitionKey")
    frame = frame.sortWithinPartitions(sql.col("data").cast("int"))
    options = format_of("orders", endpointUrl=endpoint.url, maxRequestsInFlight="4")
    frame.write.format("kinesis-trident").options(**options).mode("append").save()
    assert sorted(int(data) for _, data in endpoint.taken) == list(range(6000))
    in_order_of_each_key(endpoint.taken)


def in_order_of_each_key(found: list[tuple[str, bytes]]) -> None:
    for key in {key for key, _ in found}:
        of_key = [int(data) for other, data in found if other == key]
        assert of_key == sorted(of_key)


def test_binary_payloads_random_keys_and_hash_keys(
    spark: SparkSession,
    format_of: Callable[..., dict[str, str]],
    make_stream: Callable[..., str],
    read: Callable[[str], list[tuple[str, bytes, str]]],
) -> None:
    stream = make_stream(2)
    rows = [
        (b"\x00\xff", None, None),
        (b"low", "k", "0"),
        (b"high", "k", str(2**128 - 2)),
        (b"", "\u00fc", None),
    ]
    frame = spark.createDataFrame(rows, "data binary, PartitionKey string, explicitHashKey string").coalesce(
        1
    )
    frame.write.format("kinesis-trident").options(**format_of(stream)).mode("append").save()
    found = {data: (key, shard) for key, data, shard in read(stream)}
    assert set(found) == {b"\x00\xff", b"low", b"high", b""}
    assert len(found[b"\x00\xff"][0]) == 16
    assert found[b""][0] == "\u00fc"
    assert found[b"low"] == ("k", "shardId-000000000000")
    assert found[b"high"] == ("k", "shardId-000000000001")


def test_no_rows_are_no_error(
    spark: SparkSession,
    format_of: Callable[..., dict[str, str]],
    make_stream: Callable[..., str],
    read: Callable[[str], list[tuple[str, bytes, str]]],
) -> None:
    stream = make_stream()
    frame = numbers(spark, 0).repartition(2)
    frame.write.format("kinesis-trident").options(**format_of(stream)).mode("append").save()
    assert read(stream) == []


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (lambda frame: frame.withColumn("amount", sql.lit(1)), {}, "column amount is unknown"),
        (lambda frame: frame.withColumn("data", sql.lit(1)), {}, "column data is int, not binary or string"),
        (lambda frame: frame, {"applicationName": "app"}, "option applicationName is for reading only"),
        (lambda frame: frame, {"streamNme": "x"}, "Did you mean streamName?"),
        (
            lambda frame: frame.withColumn("partitionKey", sql.repeat(sql.lit("k"), 257)),
            {},
            "the key has 257 characters, but Kinesis allows 1 to 256",
        ),
    ],
)
def test_what_is_wrong_fails_before_anything_is_written(
    spark: SparkSession,
    format_of: Callable[..., dict[str, str]],
    make_stream: Callable[..., str],
    read: Callable[[str], list[tuple[str, bytes, str]]],
    change: Callable[[DataFrame], DataFrame],
    options: dict[str, str],
    said: str,
) -> None:
    stream = make_stream()
    write = change(numbers(spark, 3)).write.format("kinesis-trident").options(**format_of(stream, **options))
    with pytest.raises(PySparkException) as error:
        write.mode("append").save()
    assert said in str(error.value)
    assert read(stream) == []


def test_a_stream_is_not_overwritten(
    spark: SparkSession, format_of: Callable[..., dict[str, str]], make_stream: Callable[..., str]
) -> None:
    write = numbers(spark, 3).write.format("kinesis-trident").options(**format_of(make_stream()))
    with pytest.raises(PySparkException, match=r"cannot be replaced.*append"):
        write.mode("overwrite").save()


def test_a_stream_that_is_not_there_is_named(
    spark: SparkSession, format_of: Callable[..., dict[str, str]]
) -> None:
    write = numbers(spark, 3).write.format("kinesis-trident").options(**format_of("nowhere"))
    with pytest.raises(PySparkException, match=r"stream 'nowhere' in us-east-1.*check the stream's name"):
        write.mode("append").save()


def test_a_streaming_query_writes_each_batch_and_a_replay_writes_it_again(
    spark: SparkSession,
    format_of: Callable[..., dict[str, str]],
    make_stream: Callable[..., str],
    read: Callable[[str], list[tuple[str, bytes, str]]],
    tmp_path: Path,
) -> None:
    stream = make_stream(2)
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"

    def add(name: str, first: int, last: int) -> None:
        source.mkdir(exist_ok=True)
        lines = [json.dumps({"partitionKey": f"k{n % 5}", "data": str(n)}) for n in range(first, last)]
        (source / name).write_text("\n".join(lines))

    def run() -> None:
        frame = spark.readStream.schema("partitionKey string, data string").json(str(source))
        query = (
            frame.writeStream.format("kinesis-trident")
            .options(**format_of(stream))
            .option("checkpointLocation", str(checkpoint))
            .queryName("copy")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)

    def found() -> list[int]:
        return sorted(int(data) for _, data, _ in read(stream))

    add("a.json", 0, 700)
    run()
    assert found() == list(range(700))
    add("b.json", 700, 1000)
    run()
    run()
    assert found() == list(range(1000))
    # A crash after the last rows were written, and before Spark noted the batch as done.
    for path in (checkpoint / "commits").glob("*1*"):
        path.unlink()
    run()
    assert found() == sorted([*range(1000), *range(700, 1000)])


def test_a_streaming_query_with_wrong_columns_says_so(
    spark: SparkSession,
    format_of: Callable[..., dict[str, str]],
    make_stream: Callable[..., str],
    tmp_path: Path,
) -> None:
    query = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", "100")
        .load()
        .writeStream.format("kinesis-trident")
        .options(**format_of(make_stream()))
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    with pytest.raises(PySparkException) as error:
        query.awaitTermination(300)
    assert "column timestamp is unknown; column value is unknown" in str(error.value)
    assert "column data (binary or string) is missing" in str(error.value)


def test_all_rows_of_a_complete_result_are_written_each_time(
    spark: SparkSession,
    format_of: Callable[..., dict[str, str]],
    make_stream: Callable[..., str],
    read: Callable[[str], list[tuple[str, bytes, str]]],
    tmp_path: Path,
) -> None:
    stream = make_stream()
    (tmp_path / "in").mkdir()

    def run(number: int) -> None:
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"word": f"w{number}"}))
        words = spark.readStream.schema("word string").json(str(tmp_path / "in"))
        counts = words.groupBy("word").count()
        query = (
            counts.select(
                sql.col("word").alias("partitionKey"), sql.col("count").cast("string").alias("data")
            )
            .writeStream.format("kinesis-trident")
            .options(**format_of(stream))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .outputMode("complete")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)

    run(1)
    run(2)
    assert sorted((key, data) for key, data, _ in read(stream)) == [("w1", b"1"), ("w1", b"1"), ("w2", b"1")]


def test_what_a_shard_refuses_is_sent_again_record_by_record(
    spark: SparkSession, format_of: Callable[..., dict[str, str]], endpoint: Endpoint
) -> None:
    def answer(call: int, records: list[dict[str, Any]]) -> list[bool]:
        return [(call + at) % 3 == 0 for at in range(len(records))]

    endpoint.answer = answer
    options = format_of("orders", endpointUrl=endpoint.url, maxRequestsInFlight="4")
    numbers(spark, 600).coalesce(1).write.format("kinesis-trident").options(**options).mode("append").save()
    assert sorted(int(data) for _, data in endpoint.taken) == list(range(600))
    sent = sum(len(body["Records"]) for operation, body in endpoint.calls if operation == "PutRecords")
    assert 600 < sent < 4 * 600


def test_a_write_counts_what_it_did_and_what_was_refused(endpoint: Endpoint) -> None:
    endpoint.answer = lambda call, records: 503 if call == 1 else [call > 2] * len(records)
    written = writer_to(endpoint, maxRequestsInFlight="1").write(
        iter([batch([("k", b"a")]), batch([]), batch([("k", b"bc")])])
    )
    assert written == Written(Sent(records=2, size=5, refusals=2))
    assert endpoint.taken == [("k", b"a"), ("k", b"bc")]
    assert pickle.loads(pickle.dumps(written)) == written


def test_a_stream_that_takes_nothing_fails_the_task_with_its_name(endpoint: Endpoint) -> None:
    endpoint.answer = lambda _, records: [False] * len(records)
    with pytest.raises(KinesisError) as error:
        writer_to(endpoint, writeTimeout="10ms").write(iter([batch([("k", b"a"), ("k", b"b")])]))
    assert "2 of 2 records were refused, the last with ProvisionedThroughputExceededException: slow" in str(
        error.value
    )
    assert "stream 'orders' has too few shards" in str(error.value)


def test_the_streams_own_limit_is_asked_for_once(endpoint: Endpoint) -> None:
    endpoint.largest_kib = 2048
    writer = writer_to(endpoint)
    big = batch([("a", bytes(2**20)), ("b", bytes(2**21 - 1)), ("c", b"small")])
    assert writer.write(iter([big])).sent.records == 3
    assert [operation for operation, _ in endpoint.calls].count("DescribeStreamSummary") == 1
    with pytest.raises(
        WriteError, match="'d' has 2097153 bytes with its key, but the stream allows at most 2097152"
    ):
        writer.write(iter([batch([("d", bytes(2**21))])]))


def test_who_may_not_describe_the_stream_can_write_large_records(endpoint: Endpoint) -> None:
    assert writer_to(endpoint).write(iter([batch([("a", bytes(2**21))])])).sent.records == 1
    with pytest.raises(
        WriteError, match="has 10485761 bytes with its key, but the stream allows at most 10485760"
    ):
        writer_to(endpoint).write(iter([batch([("a", bytes(10 * 2**20))])]))


def test_a_writer_travels_and_says_what_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    options = WriteOptions.parse({"streamName": "orders"})
    messages = [Written(Sent(5, 50)), None, Written(Sent(2, 20))]
    said = "'orders' failed; 2 of its 3 tasks finished and wrote 7 records"
    with caplog.at_level(logging.WARNING):
        pickle.loads(pickle.dumps(KinesisWriter(options, SCHEMA, overwrite=False))).abort(messages)
        pickle.loads(pickle.dumps(KinesisStreamWriter(options, SCHEMA))).abort(messages, 3)
    assert [said in record.getMessage() for record in caplog.records] == [True, True]


def test_the_format_makes_writers_and_reads_options_first() -> None:
    made = KinesisTridentSource({"streamName": "orders"})
    assert isinstance(made.writer(SCHEMA, False), KinesisWriter)
    assert isinstance(made.streamWriter(SCHEMA, True), KinesisStreamWriter)
    with pytest.raises(WriteError, match=r"records in stream .orders. cannot be replaced"):
        made.writer(SCHEMA, True)
    with pytest.raises(OptionsError, match="for reading only"):
        KinesisTridentSource({"streamName": "orders", "spout": "opaque"}).streamWriter(SCHEMA, False)


def test_a_missing_stream_is_its_own_error(kinesis_server: EmbeddedKinesis) -> None:
    options = WriteOptions.parse({"streamName": "nowhere", "endpointUrl": kinesis_server.endpoint_url})
    with pytest.raises(StreamMissingError, match="stream 'nowhere'"):
        KinesisWriter(options, SCHEMA, overwrite=False).write(iter([batch([(None, b"x")])]))
