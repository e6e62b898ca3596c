"""Enhanced fan-out where Spark gives the tasks of a shard to one worker process after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest
from by_hand import numbers
from stepped import SteppedQuery

from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.reader import turn_source
from kinesis_trident.spout.reader.fan_out import OpenSubscriptions
from kinesis_trident.spout.testing import FakeTime, ScriptedKinesis

A = "shardId-000000000000"


@dataclass
class Workers:
    """A query whose batches are read by two processes in turns; the endpoint has AWS's limits.

    Spark keeps idle workers in a queue: of two that are idle the one that waits for longer gets the next task.
    """

    server: ScriptedKinesis
    query: SteppedQuery
    time: FakeTime
    processes: tuple[OpenSubscriptions, OpenSubscriptions] = field(
        default_factory=lambda: (OpenSubscriptions(), OpenSubscriptions())
    )
    turn: int = 0

    def open_subscriptions(self) -> OpenSubscriptions:
        """Those of the process that reads the batch in hand."""
        return self.processes[self.turn % 2]

    def batch(self, number: int) -> int:
        """Read a record that has just been put, in a batch of a tenth of a second; return the calls of its turn."""
        self.server.put("orders", A, b"%d" % number)
        while self.query.plan() is None:
            pass
        assert numbers(self.query.rows()) == [number]
        pin = self.query.store.batches.get_pin(self.query.committed.txid + 1, A)
        assert pin is not None
        self.time.sleep(0.1)
        self.query.commit()
        return pin.reads


@pytest.fixture
def workers(time: FakeTime, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    with ScriptedKinesis(clock=time.milliseconds) as server:
        server.create_stream("orders")
        options = {
            "streamName": "orders",
            "endpointUrl": server.endpoint_url,
            "region": "us-east-1",
            "awsAccessKeyId": "testing",
            "awsSecretAccessKey": "testing",
        }
        client = BotoKinesis(SourceOptions.parse_batch(options))
        arn = client.describe("orders").arn
        client.register_consumer(arn, "app")
        consumer = client.describe_consumer(arn, "app").arn
        query = SteppedQuery(client, time, consumer=consumer, consumerMode="efo", describeShardInterval="1m")
        query.judges = False
        found = Workers(server, query, time)
        monkeypatch.setattr(turn_source, "open_subscriptions", found.open_subscriptions)
        yield found


def test_what_another_worker_would_be_pushed_a_look_brings(workers: Workers) -> None:
    """For twenty seconds, in which each process may subscribe every five, only the first such turn calls."""
    begun, reads = workers.time.now, []
    for number in count():
        workers.turn += 1
        reads.append(workers.batch(number))
        if workers.time.now > begun + 20:
            break
    assert sum(reads) <= 1
    # The worker that has no subscription asks for one every five seconds, and so does the one that has just lost it.
    assert workers.server.calls["SubscribeToShard", A] <= 2 * 5


def test_a_look_brings_the_records_also_where_a_subscription_has_moved_seldom(workers: Workers) -> None:
    """The worker without the subscription reads a turn in a quarter of a minute: it does not wait for a call."""
    begun, reads = workers.time.now, []
    for number in count():
        workers.turn = int((workers.time.now - begun) % 15 > 14)
        reads.append(workers.batch(number))
        if workers.time.now > begun + 50:
            break
    assert sum(reads) <= 1
