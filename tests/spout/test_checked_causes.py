"""What is said of a loss was looked at: a stream that is younger than its retention has lost nothing to it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from by_hand import Lives, numbers

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.errors import DataLossError
from kinesis_trident.spout.kinesis import KinesisError, Shard, Since
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.testing import MemoryKinesis, Quotas, ScriptedKinesis

A, B = "shardId-000000000000", "shardId-000000000001"


class ForgetfulKinesis(MemoryKinesis):
    """Its listings lack shards now and then, as those of a service that is eventually consistent."""

    def __init__(self, **given: Any) -> None:
        super().__init__(created=int(time.time() * 1000), **given)
        self.hidden: list[str] = []

    def list_shards(self, stream: str, since: Since | None = None) -> list[Shard]:
        """See `Kinesis.list_shards`."""
        return [shard for shard in super().list_shards(stream, since) if shard.id not in self.hidden]


def put(kinesis: MemoryKinesis, shard: str, *some: int) -> None:
    for number in some:
        kinesis.put(shard, str(number).encode())


@pytest.mark.parametrize("kind", ["AT", "AFTER"])
def test_a_start_at_the_number_that_a_shard_begins_with_has_lost_nothing(lives: Lives, kind: str) -> None:
    kinesis = ForgetfulKinesis()
    put(kinesis, A, 1, 2, 3)
    [shard] = kinesis.list_shards("orders")
    assert shard.sequences is not None
    start = {"orders": {A: f"{kind}_SEQUENCE_NUMBER {shard.sequences[0]}"}}
    query = lives.begin(kinesis, startingPosition=json.dumps(start))
    assert numbers(query.drain()) == [1, 2, 3]
    assert not query.run.report().get("losses")


def test_a_record_that_is_not_there_is_not_said_to_have_expired_in_a_young_stream(lives: Lives) -> None:
    kinesis = ForgetfulKinesis()
    put(kinesis, A, 1, 2, 3)
    number = kinesis.put(A, b"4")
    kinesis.trim(A, number)
    start = {"orders": {A: f"AT_SEQUENCE_NUMBER {number}"}}
    with pytest.raises(DataLossError) as told:
        lives.begin(kinesis, startingPosition=json.dumps(start)).plan()
    assert "min old and keeps 24 h, so this is not its retention" in str(told.value)
    assert "expired" not in str(told.value)
    assert "Raise the stream's retention" not in str(told.value)


def test_a_listing_that_lacks_a_shard_is_no_loss_of_it(
    lives: Lives, caplog: pytest.LogCaptureFixture
) -> None:
    kinesis = ForgetfulKinesis(shards=2)
    put(kinesis, A, 1)
    put(kinesis, B, 2)
    query = lives.begin(kinesis)
    assert numbers(query.drain()) == [1, 2]
    kinesis.hidden = [B]
    with caplog.at_level(logging.INFO):
        query.run._state.list_shards(everything=True)
    assert f"a listing lacks {B}, which can be read" in caplog.text
    put(kinesis, B, 3)
    assert numbers(query.drain()) == [3]
    kinesis.hidden = []
    query.run._state.list_shards(everything=True)
    put(kinesis, B, 4)
    assert numbers(query.drain()) == [4]
    assert not query.run.report().get("losses")


def test_a_server_that_drops_the_parents_of_a_split_is_said_to_do_so(lives: Lives) -> None:
    kinesis = ForgetfulKinesis()
    put(kinesis, A, 1)
    query = lives.begin(kinesis)
    assert numbers(query.drain()) == [1]
    query.end()
    put(kinesis, A, 2)
    left, _ = kinesis.split(A)
    put(kinesis, left, 3)
    kinesis.forget(A)
    with pytest.raises(DataLossError) as told:
        lives.begin(kinesis, query.checkpoint, describeShardInterval="1h").plan()
    said = str(told.value)
    assert f"shard {A} is no longer listed" in said
    assert "so this is not its retention: the server has dropped the shard" in said
    assert "Check the server at endpointUrl" in said
    again = lives.begin(kinesis, query.checkpoint, failOnDataLoss="false")
    assert numbers(again.drain()) == [3]


def test_a_shard_that_the_first_listing_lacked_starts_where_the_start_was(lives: Lives) -> None:
    kinesis = ForgetfulKinesis(shards=2)
    put(kinesis, A, 1)
    put(kinesis, B, 2)
    time.sleep(0.01)
    kinesis.hidden = [B]
    query = lives.begin(kinesis, startingPosition="LATEST")
    assert query.plan() is None
    kinesis.hidden = []
    query.run._state.list_shards(everything=True)
    put(kinesis, A, 3)
    put(kinesis, B, 4)
    assert numbers(query.drain()) == [3, 4]
    # What reshards make is read from its beginning.
    left, _ = kinesis.split(B)
    put(kinesis, left, 5)
    assert numbers(query.drain()) == [5]


@pytest.fixture
def server() -> Iterator[ScriptedKinesis]:
    """A stream of one shard."""
    with ScriptedKinesis(quotas=Quotas.none()) as one:
        one.create_stream("orders")
        yield one


@pytest.mark.parametrize("number", [5, "", "x"])
def test_answers_that_cannot_be_read_end_the_query_with_what_is_wrong(
    server: ScriptedKinesis, zookeeper: EmbeddedZooKeeper, app: str, number: object
) -> None:
    server.garble("orders", A, server.put("orders", A, b"1"), {"SequenceNumber": number})
    lives = Lives(zookeeper.hosts, app, endpointUrl=server.endpoint_url, readTimeout="1s")
    query = lives.begin(BotoKinesis(lives.parsed()))

    def read() -> None:
        while query.plan() is None:
            pass

    with pytest.raises(KinesisError) as told:
        read()
    lives.end()
    assert "no answer could be read for" in str(told.value)
    assert "the answer to GetRecords cannot be read" in str(told.value)
