"""Answers that could be taken for a loss, through Spark: a shard's own first number, a listing that lacks a shard.

Without Spark these are in tests/spout/test_checked_causes.py, with others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from stage import Stage

from kinesis_trident.spout.testing import Quotas, ScriptedKinesis
from kinesis_trident.spout.testing.server import Reply, Request


class ForgetfulKinesis(ScriptedKinesis):
    """Its next full listing lacks a shard, as that of a service which is eventually consistent."""

    hidden: str | None = None

    def _reply(self, request: Request) -> Reply:
        reply = super()._reply(request)
        if self.hidden is None or not request.headers.get("x-amz-target", "").endswith(".ListShards"):
            return reply
        listed = json.loads(reply.body)
        if all(shard["ShardId"] != self.hidden for shard in listed["Shards"]):
            return reply
        listed["Shards"] = [shard for shard in listed["Shards"] if shard["ShardId"] != self.hidden]
        self.hidden = None
        return replace(reply, body=json.dumps(listed).encode())


@pytest.fixture
def forgetful(make_stage: Callable[..., Stage]) -> Iterator[tuple[Stage, ForgetfulKinesis]]:
    """A stage with a stream of two shards at such an endpoint."""
    with ForgetfulKinesis(quotas=Quotas.none()) as kinesis:
        one = make_stage()
        one.client, one.endpoint, one.stream = kinesis.client(), kinesis.endpoint_url, "orders"
        kinesis.create_stream("orders", 2)
        yield one, kinesis
        one.end()


@pytest.mark.parametrize("kind", ["AT", "AFTER"])
def test_a_start_at_the_number_that_a_shard_begins_with_reads_all_of_it(
    forgetful: tuple[Stage, ForgetfulKinesis], kind: str
) -> None:
    stage, _ = forgetful
    stage.put([0], shard=1)
    stage.put([1, 2, 3], shard=0)
    shards = stage.client.list_shards(StreamName="orders")["Shards"]
    starts = {
        shard["ShardId"]: f"{kind}_SEQUENCE_NUMBER {shard['SequenceNumberRange']['StartingSequenceNumber']}"
        for shard in shards
    }
    stream = stage.parsed(startingPosition=json.dumps({"orders": starts}))
    assert stage.drained(stream).texts == ["0", "1", "2", "3"]


def test_a_listing_that_lacks_a_known_shard_once_ends_no_query(
    forgetful: tuple[Stage, ForgetfulKinesis],
) -> None:
    stage, kinesis = forgetful
    for number in range(3):
        for shard in range(2):
            stage.put([f"{number}{shard}"], shard=shard)
        # The first start makes the shards known; each lists all of them.
        kinesis.hidden = kinesis.shards("orders")[1] if number else None
        assert stage.drained(stage.parsed()).texts == [f"{number}0", f"{number}1"]
        assert kinesis.hidden is None
