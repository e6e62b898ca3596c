"""The runbook's errors of Kinesis: each refusal comes from an endpoint over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from by_hand import Lives, Query, numbers
from command_line import Command
from night import Night, entry
from pyspark.sql.types import BinaryType, StringType, StructType
from situations import looked, moved_clock

from kinesis_trident.checkpoint.embedded import free_port
from kinesis_trident.spout.errors import OptionsError, WriteError
from kinesis_trident.spout.kinesis import (
    AccessDeniedError,
    ConsumerMissingError,
    InUseError,
    InvalidPositionError,
    IteratorExpiredError,
    KeyUnusableError,
    KinesisError,
    RequestTooLargeError,
    ShardMissingError,
    StreamMissingError,
    ThrottledError,
    Unavailable,
)
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.options.sink import WriteOptions
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.sink.writer import KinesisWriter
from kinesis_trident.spout.testing import Quotas, Refuse, ScriptedKinesis

A = "shardId-000000000000"
STREAM = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
FRAME = StructType().add("partitionKey", StringType()).add("data", BinaryType())


@pytest.fixture
def server() -> Iterator[ScriptedKinesis]:
    """A stream that holds 1."""
    with ScriptedKinesis() as made:
        made.create_stream("orders")
        made.put("orders", A, b"1")
        yield made


@pytest.fixture
def start(lives: Lives, server: ScriptedKinesis, night: Night) -> Callable[..., Query]:
    """`start(**options)`: a life of the query over the endpoint."""
    night.names[server.endpoint_url] = "https://kinesis.us-east-1.amazonaws.com"

    def begin(**options: Any) -> Query:
        return lives.begin(**{"endpointUrl": server.endpoint_url, "clientNumRetries": "0"} | options)

    return begin


def client_of(server: ScriptedKinesis) -> BotoKinesis:
    given = {"streamName": "orders", "applicationName": "a", "zookeeper.hosts": "z", "clientNumRetries": "0"}
    return BotoKinesis(SourceOptions.parse(given | {"endpointUrl": server.endpoint_url}))


@entry("StreamMissingError")
def test_a_stream_that_is_not_there(
    night: Night, start: Callable[..., Query], server: ScriptedKinesis
) -> None:
    with night.raises(StreamMissingError):
        start(streamName="ordres").plan()
    night.tries("Correct the option")
    query = start(streamName="orders")
    assert numbers(query.batch()) == [1]
    client = server.client()
    client.delete_stream(StreamName="orders")
    with pytest.raises(StreamMissingError):
        start(streamName="orders").plan()
    night.tries("create it again and start with a new checkpointLocation")
    client.create_stream(StreamName="orders", ShardCount=1)
    server.put("orders", A, b"2")
    assert numbers(start(streamName="orders").drain()) == [2]


@entry("AccessDeniedError")
def test_credentials_that_may_not_do_it(
    night: Night, start: Callable[..., Query], server: ScriptedKinesis
) -> None:
    what = (
        "User: arn:aws:sts::123456789012:assumed-role/orders/i-0abc is not authorized to perform: "
        "kinesis:ListShards on resource: arn:aws:kinesis:us-east-1:123456789012:stream/orders"
    )
    server.script("ListShards", Refuse("AccessDeniedException", what))
    with night.raises(AccessDeniedError):
        start()
    night.tries("start the query again")
    assert numbers(start().batch()) == [1]


@entry("ThrottledError")
def test_a_stream_with_too_few_shards_to_write_to(night: Night, server: ScriptedKinesis) -> None:
    night.names[server.endpoint_url] = "https://kinesis.us-east-1.amazonaws.com"
    server.limit(Quotas(write_records=0))
    given = {"streamName": "orders", "endpointUrl": server.endpoint_url, "clientNumRetries": "0"}
    rows = pa.RecordBatch.from_pydict({"partitionKey": ["k"], "data": [b"x"]})

    def write() -> None:
        options = WriteOptions.parse(given | {"writeTimeout": "50ms"})
        KinesisWriter(options, FRAME, overwrite=False).write(iter([rows]))

    with night.raises(ThrottledError):
        write()
    night.tries("More shards")
    server.limit(Quotas())
    night.tries("then run the write again")
    write()
    assert server.client().describe_stream_summary(StreamName="orders")


@entry("InUseError")
def test_a_consumer_that_another_application_uses(night: Night, server: ScriptedKinesis) -> None:
    night.names[server.endpoint_url] = "https://kinesis.us-east-1.amazonaws.com"
    client = server.client()
    stream = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
    ours, own = (
        client.register_stream_consumer(StreamARN=stream, ConsumerName=name)["Consumer"]["ConsumerARN"]
        for name in ("ours", "own")
    )
    reader = client_of(server)
    held = reader.subscribe(ours, A, "TRIM_HORIZON")
    with night.raises(InUseError):
        reader.subscribe(ours, A, "TRIM_HORIZON")
    night.tries("its own `consumerName`")
    others = reader.subscribe(own, A, "TRIM_HORIZON")
    assert others is not held
    for one in (held, others):
        one.close()


@entry("consumer-shared")
def test_a_query_whose_consumer_another_application_uses(
    night: Night,
    start: Callable[..., Query],
    server: ScriptedKinesis,
    lives: Lives,
    command: Command,
    app: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = lives.clock = moved_clock(monkeypatch)
    query, others = start(consumerMode="efo", consumerName="ours"), client_of(server)
    assert numbers(query.batch()) == [1]
    (ours,) = server.client().list_stream_consumers(StreamARN=STREAM)["Consumers"]
    for number in range(2, 6):
        clock.ahead += 10
        server.advance(10)
        others.subscribe(ours["ConsumerARN"], A, "TRIM_HORIZON").close()
        server.put("orders", A, b"%d" % number)
        query.planned()
        assert numbers(query.batch()) == [number]
    looked(query)
    night.finds(command, app, "consumer-shared")
    query.end()
    night.tries("another `consumerName`")
    query = start(checkpoint=query.checkpoint, consumerMode="efo", consumerName="own")
    server.put("orders", A, b"6")
    assert numbers(query.drain()) == [6]
    looked(query)
    assert night.is_over(command, app)


@entry("ConsumerMissingError")
def test_an_external_consumer_that_nobody_registered(
    night: Night, start: Callable[..., Query], server: ScriptedKinesis
) -> None:
    given = {"consumerMode": "efo", "consumerLifecycle": "external"}
    with night.raises(ConsumerMissingError):
        start(**given)
    night.tries("`consumerLifecycle=managed`")
    assert start(consumerMode="efo").planned()
    client = server.client()
    (old,) = client.list_stream_consumers(StreamARN=STREAM)["Consumers"]
    client.deregister_stream_consumer(ConsumerARN=old["ConsumerARN"])
    with pytest.raises(ConsumerMissingError, match="ask the stream's owner"):
        start(consumerMode="efo", consumerARN=old["ConsumerARN"])
    # The time of its registration is part of an ARN.
    server.advance(2)
    new = client.register_stream_consumer(StreamARN=STREAM, ConsumerName=old["ConsumerName"])["Consumer"]
    night.tries("the ARN of the new consumer")
    assert numbers(start(consumerMode="efo", consumerARN=new["ConsumerARN"]).batch()) == [1]


@entry("ShardMissingError")
def test_a_shard_past_the_retention(night: Night, server: ScriptedKinesis) -> None:
    night.names[server.endpoint_url] = "https://kinesis.us-east-1.amazonaws.com"
    with night.raises(ShardMissingError):
        client_of(server).iterator("orders", "shardId-000000000007", "TRIM_HORIZON")


@entry("IteratorExpiredError")
def test_an_iterator_of_more_than_five_minutes(night: Night, server: ScriptedKinesis) -> None:
    night.names[server.endpoint_url] = "https://kinesis.us-east-1.amazonaws.com"
    client = client_of(server)
    old = client.iterator("orders", A, "TRIM_HORIZON")
    server.script("GetRecords", Refuse.expired())
    with night.raises(IteratorExpiredError):
        client.get_records(old, 10)
    night.tries("A new iterator")
    assert client.get_records(client.iterator("orders", A, "TRIM_HORIZON"), 10).records.num_rows == 1


@entry("RequestTooLargeError")
def test_more_in_a_request_than_the_endpoint_takes(night: Night, server: ScriptedKinesis) -> None:
    night.names[server.endpoint_url] = "https://kinesis.us-east-1.amazonaws.com"
    server.script("PutRecords", Refuse("InvalidArgumentException", "Records size exceeds 5 MB limit"))
    client = client_of(server)
    big = [(bytes(2**20 - 1), "k")] * 6
    with night.raises(RequestTooLargeError):
        client.put_entries("orders", [{"Data": data, "PartitionKey": key} for data, key in big])
    night.tries("the records are sent in smaller requests")
    server.script("PutRecords", Refuse("InvalidArgumentException", "Records size exceeds 5 MB limit"))
    given = {"streamName": "orders", "endpointUrl": server.endpoint_url, "clientNumRetries": "0"}
    rows = pa.RecordBatch.from_pydict({"partitionKey": ["k"] * 6, "data": [data for data, _ in big]})
    server.limit(Quotas.none())
    KinesisWriter(WriteOptions.parse(given), FRAME, overwrite=False).write(iter([rows]))
    page = client.get_records(client.iterator("orders", A, "TRIM_HORIZON"), 100)
    assert page.records.num_rows == 7


@entry("kinesis.Unavailable")
def test_an_endpoint_that_does_not_answer(night: Night, lives: Lives) -> None:
    port = free_port()
    night.names[f"127.0.0.1:{port}"] = "kinesis.us-east-1.amazonaws.com"
    with night.raises(Unavailable):
        lives.begin(endpointUrl=f"http://127.0.0.1:{port}", clientNumRetries="0").plan()
    night.tries("start the query again")
    with ScriptedKinesis(port=port) as server:
        server.create_stream("orders")
        server.put("orders", A, b"1")
        again = lives.begin(endpointUrl=server.endpoint_url, clientNumRetries="0")
        assert numbers(again.batch()) == [1]
        lives.end()


@entry("KinesisError")
def test_a_refusal_of_another_kind(
    night: Night, start: Callable[..., Query], server: ScriptedKinesis
) -> None:
    server.script("ListShards", Refuse("LimitedException", "Not in this region."))
    with night.raises(KinesisError):
        start()
    night.tries("start the query again")
    assert numbers(start().batch()) == [1]


@entry("InvalidPositionError")
def test_a_position_of_another_stream(
    night: Night, start: Callable[..., Query], server: ScriptedKinesis, command: Command, app: str
) -> None:
    (old,) = (
        client_of(server)
        .get_records(client_of(server).iterator("orders", A, "TRIM_HORIZON"), 1)
        .records["sequenceNumber"]
    )
    server.recreate("orders")
    server.put("orders", A, b"2")
    query = start()
    assert numbers(query.batch()) == [2]
    assert query.plan() is None
    query.end()
    assert command("checkpoints", app, "set", str(old), "--shard", A, "--yes")[0] == 0
    with night.raises(InvalidPositionError):
        start(checkpoint=query.checkpoint)
    night.tries("`kinesis-trident checkpoints APP set TRIM_HORIZON --shard ID`")
    assert command("checkpoints", app, "set", "TRIM_HORIZON", "--shard", A, "--yes")[0] == 0
    assert numbers(start(checkpoint=query.checkpoint).drain()) == [2]


@entry("KeyUnusableError")
def test_a_key_that_is_gone(
    night: Night, start: Callable[..., Query], server: ScriptedKinesis, command: Command, app: str
) -> None:
    query = start(maxRecordsPerTrigger="1", retryLimit="9")
    assert numbers(query.batch(failing={1})) == [1]
    server.put("orders", A, b"2")
    query.planned()
    refused = Refuse("KMSNotFoundException", "Key 'arn:aws:kms:us-east-1:1:key/5' does not exist")
    server.script("GetRecords", refused, times=None)
    with night.raises(KeyUnusableError):
        query.batch()
    query.end()
    server.advance(10)
    changed = datetime.fromtimestamp(server.now / 1000, UTC)
    server.put("orders", A, b"3")

    night.tries("`kinesis-trident checkpoints APP abandon-batch`")
    assert command("checkpoints", app, "abandon-batch", "--yes")[0] == 0
    query = start(checkpoint=query.checkpoint)
    assert query.batch() == []
    with pytest.raises(KeyUnusableError, match=f"shard {A}"):
        query.plan()
    query.end()
    night.tries("`kinesis-trident checkpoints APP set TRIM_HORIZON --shard ID`")
    assert command("checkpoints", app, "set", "TRIM_HORIZON", "--shard", A, "--yes")[0] == 0
    night.tries("`kinesis-trident checkpoints APP set 'AT_TIMESTAMP <time>' --shard ID`")
    when = f"AT_TIMESTAMP {changed.isoformat()}"
    night.tries("the ID is `stream/shardId-...`")
    assert command("checkpoints", app, "set", when, "--shard", f"orders/{A}", "--yes")[0] == 0
    # The key of the newer records is there.
    server.clear()
    assert numbers(start(checkpoint=query.checkpoint).drain()) == [3]


@entry("WriteError")
def test_a_frame_that_cannot_be_written(night: Night) -> None:
    options = WriteOptions.parse({"streamName": "orders"})
    with night.raises(WriteError):
        KinesisWriter(options, StructType().add("order", StringType()), overwrite=False)
    night.tries("Select `data`")
    KinesisWriter(options, FRAME, overwrite=False)


@entry("OptionsError")
def test_an_option_of_a_wrong_name(night: Night, start: Callable[..., Query]) -> None:
    with night.raises(OptionsError):
        start(startingPositon="LATEST")
    night.tries("Correct the option")
    assert start(startingPosition="LATEST").run
