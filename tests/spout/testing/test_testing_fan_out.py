"""Consumers and subscriptions of the scripted endpoint, as boto3's own event stream sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError, EventStreamError
from urllib3.exceptions import ProtocolError

from kinesis_trident.spout.testing import Cut, FakeTime, Quotas, Refuse, ScriptedKinesis

FIRST = "shardId-000000000000"


@pytest.fixture
def client(server: ScriptedKinesis) -> Any:
    return server.client()


@pytest.fixture
def stream(client: Any) -> str:
    arn: str = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
    return arn


@pytest.fixture
def consumer(client: Any, stream: str) -> str:
    """The ARN of a consumer."""
    arn: str = client.register_stream_consumer(StreamARN=stream, ConsumerName="app")["Consumer"][
        "ConsumerARN"
    ]
    return arn


def subscribe(client: Any, consumer: str, shard: str = FIRST, **position: object) -> Iterator[dict[str, Any]]:
    answer = client.subscribe_to_shard(
        ConsumerARN=consumer, ShardId=shard, StartingPosition=position or {"Type": "TRIM_HORIZON"}
    )
    return (event["SubscribeToShardEvent"] for event in answer["EventStream"])


def data(event: dict[str, Any]) -> list[bytes]:
    return [record["Data"] for record in event["Records"]]


def code(error: pytest.ExceptionInfo[ClientError]) -> str:
    return error.value.response["Error"]["Code"]


def test_consumers_are_registered_described_listed_and_deregistered(
    server: ScriptedKinesis, client: Any, stream: str, time: FakeTime
) -> None:
    server.limit(Quotas(registration_ms=30_000))
    made = client.register_stream_consumer(StreamARN=stream, ConsumerName="app")["Consumer"]
    assert (made["ConsumerName"], made["ConsumerStatus"]) == ("app", "CREATING")
    assert made["ConsumerARN"] == f"{stream}/consumer/app:1700000000"
    with pytest.raises(ClientError) as error:
        client.register_stream_consumer(StreamARN=stream, ConsumerName="app")
    assert code(error) == "ResourceInUseException"
    with pytest.raises(ClientError) as error:
        subscribe(client, made["ConsumerARN"])
    assert code(error) == "ResourceInUseException"
    time.sleep(30)
    by_name = client.describe_stream_consumer(StreamARN=stream, ConsumerName="app")["ConsumerDescription"]
    by_arn = client.describe_stream_consumer(ConsumerARN=made["ConsumerARN"])["ConsumerDescription"]
    assert by_name == by_arn
    assert (by_name["ConsumerStatus"], by_name["StreamARN"]) == ("ACTIVE", stream)
    client.register_stream_consumer(StreamARN=stream, ConsumerName="other")
    pages = client.get_paginator("list_stream_consumers").paginate(
        StreamARN=stream, PaginationConfig={"PageSize": 1}
    )
    assert [[one["ConsumerName"] for one in page["Consumers"]] for page in pages] == [["app"], ["other"]]
    summary = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]
    assert summary["ConsumerCount"] == 2
    client.deregister_stream_consumer(ConsumerARN=made["ConsumerARN"])
    with pytest.raises(ClientError) as error:
        client.describe_stream_consumer(StreamARN=stream, ConsumerName="app")
    assert code(error) == "ResourceNotFoundException"


def test_a_stream_has_twenty_consumers_at_most(client: Any, stream: str) -> None:
    for n in range(20):
        client.register_stream_consumer(StreamARN=stream, ConsumerName=f"app-{n}")
    with pytest.raises(ClientError) as error:
        client.register_stream_consumer(StreamARN=stream, ConsumerName="one-more")
    assert code(error) == "LimitExceededException"


def test_records_are_pushed_as_they_come(server: ScriptedKinesis, client: Any, consumer: str) -> None:
    sequence = server.put("orders", FIRST, b"a")
    events = subscribe(client, consumer)
    first = next(events)
    assert data(first) == [b"a"]
    assert first["ContinuationSequenceNumber"] == str(sequence)
    assert first["MillisBehindLatest"] == 0
    server.put("orders", FIRST, b"")
    assert data(next(events)) == [b""]


def test_an_idle_shard_is_heard_of_at_once_and_every_five_seconds(
    server: ScriptedKinesis, client: Any, consumer: str
) -> None:
    events = subscribe(client, consumer, Type="LATEST")
    assert data(next(events)) == []
    server.advance(5)
    beat = next(events)
    assert (data(beat), beat["MillisBehindLatest"]) == ([], 0)
    server.put("orders", FIRST, b"new")
    assert data(next(events)) == [b"new"]


def test_a_subscription_goes_on_from_a_continuation(
    server: ScriptedKinesis, client: Any, consumer: str
) -> None:
    empty = next(subscribe(client, consumer))["ContinuationSequenceNumber"]
    server.put("orders", FIRST, b"a")
    server.advance(5)
    after = {"Type": "AFTER_SEQUENCE_NUMBER"}
    first = next(subscribe(client, consumer, **after, SequenceNumber=empty))
    assert data(first) == [b"a"]
    server.put("orders", FIRST, b"b")
    server.advance(5)
    again = subscribe(client, consumer, **after, SequenceNumber=first["ContinuationSequenceNumber"])
    assert data(next(again)) == [b"b"]


def test_a_subscription_ends_after_five_minutes(server: ScriptedKinesis, client: Any, consumer: str) -> None:
    events = subscribe(client, consumer)
    next(events)
    server.advance(300)
    assert list(events) == []


def test_one_subscription_at_a_time_and_after_five_seconds_the_next_takes_over(
    server: ScriptedKinesis, client: Any, consumer: str
) -> None:
    events = subscribe(client, consumer)
    next(events)
    server.advance(4)
    with pytest.raises(ClientError) as error:
        subscribe(client, consumer)
    assert code(error) == "ResourceInUseException"
    server.advance(1)
    assert data(next(subscribe(client, consumer))) == []
    with pytest.raises(EventStreamError) as taken:
        list(events)
    assert code(taken) == "ResourceInUseException"


def test_a_closed_shard_ends_and_names_its_children(
    server: ScriptedKinesis, client: Any, consumer: str
) -> None:
    server.put("orders", FIRST, b"a")
    children = server.split("orders", FIRST)
    (last,) = subscribe(client, consumer)
    assert data(last) == [b"a"]
    assert "ContinuationSequenceNumber" not in last
    assert [child["ShardId"] for child in last["ChildShards"]] == list(children)


def test_errors_in_the_stream_and_broken_connections_are_scripted(
    server: ScriptedKinesis, client: Any, consumer: str
) -> None:
    server.limit(Quotas(resubscribe_ms=None))
    server.put("orders", FIRST, b"a")
    server.script("SubscribeToShardEvent", Refuse("InternalFailureException"), skip=1)
    events = subscribe(client, consumer)
    assert data(next(events)) == [b"a"]
    server.put("orders", FIRST, b"b")
    with pytest.raises(EventStreamError) as error:
        next(events)
    assert code(error) == "InternalFailureException"
    server.script("SubscribeToShardEvent", Cut(), stream="orders", shard=FIRST)
    with pytest.raises(ProtocolError):
        list(subscribe(client, consumer))
    assert server.faults_left == 0
    assert server.calls["SubscribeToShardEvent", FIRST] == 3


def test_a_consumer_that_is_deregistered_loses_its_subscription(
    server: ScriptedKinesis, client: Any, consumer: str
) -> None:
    events = subscribe(client, consumer)
    next(events)
    client.deregister_stream_consumer(ConsumerARN=consumer)
    with pytest.raises(EventStreamError) as error:
        next(events)
    assert code(error) == "ResourceNotFoundException"
    with pytest.raises(ClientError) as refused:
        subscribe(client, consumer)
    assert code(refused) == "ResourceNotFoundException"
