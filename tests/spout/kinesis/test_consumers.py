from __future__ import annotations

import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from kinesis_trident.spout.kinesis import AccessDeniedError, ConsumerMissingError, KinesisError
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.kinesis.consumers import ready_consumers
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.testing import FakeTime, Quotas, Refuse, ScriptedKinesis


@pytest.fixture
def ready(server: ScriptedKinesis, time: FakeTime) -> Callable[..., str]:
    """`ready(consumerName="x", ...)`: the ARN of the consumer of a source with these options."""

    def find(**more: str) -> str:
        given = {
            "streamName": "orders",
            "applicationName": "app",
            "zookeeper.hosts": "zk:2181",
            "clientNumRetries": "0",
            "endpointUrl": server.endpoint_url,
            "consumerMode": "efo",
        }
        options = SourceOptions.parse(given | more)
        found = ready_consumers(
            BotoKinesis(options), options, clock=time, sleep=time.sleep, rng=random.Random(3)
        )
        assert list(found) == list(options.streams)
        return found[options.streams[-1]]

    return find


def consumers(server: ScriptedKinesis) -> list[str]:
    client = server.client()
    arn = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
    return [one["ConsumerName"] for one in client.list_stream_consumers(StreamARN=arn)["Consumers"]]


def test_a_consumer_is_registered_once_and_said_to_cost_until_deregistered(
    server: ScriptedKinesis, ready: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "kinesis_trident.spout.kinesis.consumers"):
        arn = ready()
    (said,) = caplog.messages
    assert "aws kinesis deregister-stream-consumer --stream-arn arn:aws:kinesis:" in said
    assert re.search(r"stream/orders/consumer/app:\d+$", arn)
    assert ready() == arn
    assert ready(consumerLifecycle="external") == arn
    assert consumers(server) == ["app"]
    assert server.calls["RegisterStreamConsumer", None] == 1


def test_it_is_waited_for_until_active(
    server: ScriptedKinesis, ready: Callable[..., str], time: FakeTime
) -> None:
    server.limit(Quotas(registration_ms=30_000))
    began = time.now
    arn = ready(consumerName="other")
    assert "consumer/other:" in arn
    assert 30 <= time.now - began < 34
    assert all(1 <= seconds <= 2 for seconds in time.sleeps)


def test_one_that_never_becomes_active_is_given_up(
    server: ScriptedKinesis, ready: Callable[..., str]
) -> None:
    server.limit(Quotas(registration_ms=3_600_000))
    with pytest.raises(KinesisError, match=r"'app' is CREATING on 'orders', and was not ACTIVE within 300 s"):
        ready()


def test_an_external_one_has_to_be_there(server: ScriptedKinesis, ready: Callable[..., str]) -> None:
    with pytest.raises(ConsumerMissingError, match=r"register-stream-consumer .*--consumer-name app"):
        ready(consumerLifecycle="external")
    assert consumers(server) == []


def test_another_process_may_be_faster(server: ScriptedKinesis, ready: Callable[..., str]) -> None:
    arn = ready()
    server.script("DescribeStreamConsumer", Refuse("ResourceNotFoundException"))
    assert ready() == arn
    assert server.calls["RegisterStreamConsumer", None] == 2


def test_a_full_stream_says_what_to_do(server: ScriptedKinesis, ready: Callable[..., str]) -> None:
    client = server.client()
    arn = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
    for n in range(20):
        client.register_stream_consumer(StreamARN=arn, ConsumerName=f"app-{n}")
    with pytest.raises(KinesisError, match=r"'one-more' cannot be registered: .*at most 20 consumers"):
        ready(consumerName="one-more")


@pytest.fixture
def theirs() -> Iterator[ScriptedKinesis]:
    """An endpoint whose streams belong to another account."""
    with ScriptedKinesis(owner="999988887777") as made:
        made.create_stream("orders")
        yield made


def register(server: ScriptedKinesis, name: str = "theirs") -> str:
    """Register a consumer as the stream's owner does; return its ARN."""
    arn = "arn:aws:kinesis:us-east-1:999988887777:stream/orders"
    made = server.client().register_stream_consumer(StreamARN=arn, ConsumerName=name)
    found: str = made["Consumer"]["ConsumerARN"]
    return found


def by_arn(server: ScriptedKinesis, time: FakeTime, arn: str) -> dict[str, str]:
    given = {"applicationName": "app", "zookeeper.hosts": "zk:2181", "clientNumRetries": "0"}
    options = SourceOptions.parse(
        given | {"endpointUrl": server.endpoint_url, "consumerMode": "efo", "consumerARN": arn}
    )
    return ready_consumers(BotoKinesis(options), options, clock=time, sleep=time.sleep, rng=random.Random(3))


def test_one_of_another_account_is_only_looked_at_and_waited_for(
    theirs: ScriptedKinesis, time: FakeTime
) -> None:
    arn = register(theirs)
    before = Counter(theirs.calls)
    assert by_arn(theirs, time, arn) == {"orders": arn}
    assert theirs.calls - before == Counter({("DescribeStreamConsumer", None): 1})
    theirs.limit(Quotas(registration_ms=3_600_000))
    with pytest.raises(
        KinesisError, match=r"consumer/theirs:\d+' is CREATING on 'orders', and was not ACTIVE"
    ):
        by_arn(theirs, time, arn)


def test_one_whose_arn_is_of_the_past_needs_its_owner(theirs: ScriptedKinesis, time: FakeTime) -> None:
    arn = register(theirs)
    theirs.client().deregister_stream_consumer(ConsumerARN=arn)
    with pytest.raises(
        ConsumerMissingError, match=r"was deregistered, or never existed: ask the stream's owner"
    ):
        by_arn(theirs, time, arn)
    # A name is another consumer the next time.
    theirs.advance(2)
    again = register(theirs)
    with pytest.raises(ConsumerMissingError, match=re.escape(arn)):
        by_arn(theirs, time, arn)
    assert by_arn(theirs, time, again) == {"orders": again}


def test_one_that_is_being_deleted_is_not_waited_for(theirs: ScriptedKinesis, time: FakeTime) -> None:
    arn = register(theirs)
    theirs.limit(Quotas(deregistration_ms=60_000))
    theirs.client().deregister_stream_consumer(ConsumerARN=arn)
    with pytest.raises(ConsumerMissingError, match=r"is DELETING. Ask the stream's owner"):
        by_arn(theirs, time, arn)
    assert time.sleeps == []
    theirs.advance(60)
    with pytest.raises(ConsumerMissingError, match=r"was deregistered"):
        by_arn(theirs, time, arn)


def test_one_that_is_not_shared_says_whose_policy(theirs: ScriptedKinesis, time: FakeTime) -> None:
    arn = register(theirs)
    theirs.script("DescribeStreamConsumer", Refuse("AccessDeniedException", "no policy allows it"))
    with pytest.raises(
        AccessDeniedError, match=r"no policy allows it.*policy of a consumer of another account"
    ):
        by_arn(theirs, time, arn)
    theirs.script("SubscribeToShard", Refuse("AccessDeniedException", "no policy allows it"))
    reader = BotoKinesis(
        SourceOptions.parse_batch({"streamName": "orders", "endpointUrl": theirs.endpoint_url})
    )
    with pytest.raises(
        AccessDeniedError, match=r"no policy allows it.*policy of a consumer of another account"
    ):
        reader.subscribe(arn, "shardId-000000000000", "TRIM_HORIZON")


def test_each_stream_has_a_consumer_of_that_name(server: ScriptedKinesis, ready: Callable[..., str]) -> None:
    more = ["returns", "carts", "visits", "alerts"]
    for stream in more:
        server.create_stream(stream)
    assert "stream/alerts/consumer/app:" in ready(streamName=",".join(["orders", *more]))
    assert consumers(server) == ["app"]
