"""Test what a listing is asked for, and that no record is lost or read needlessly by it: on a real ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from by_hand import Lives, Query

from kinesis_trident.spout.kinesis import AccessDeniedError, AfterShard, Shard, Since
from kinesis_trident.spout.kinesis.answers import ListedShard
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.options.connection import ConnectionOptions
from kinesis_trident.spout.planner.sight import Sight, Sights
from kinesis_trident.spout.positions import TRIM_HORIZON, AtTimestamp
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis, Quotas, Refuse, ScriptedKinesis

Start = Callable[..., Query]
HOUR = 3600
FIRST = "shardId-000000000000"


class Unfiltered(MemoryKinesis):
    """A server that lists everything, whatever it is asked for."""

    def list_shards(self, stream: str, since: Since | None = None) -> list[Shard]:
        return super().list_shards(stream)


@pytest.fixture
def start(lives: Lives) -> Start:
    """`start(kinesis, checkpoint=None, **options)`: a life of the query; a new checkpoint by default."""
    return lives.begin


@pytest.fixture
def server() -> Iterator[ScriptedKinesis]:
    with ScriptedKinesis(quotas=Quotas.none()) as server:
        server.create_stream("orders", 1)
        yield server


def client_of(server: ScriptedKinesis, asked: list[Any]) -> BotoKinesis:
    """A client that keeps which filters it asked for."""
    options = ConnectionOptions(
        stream_name="orders", region="us-east-1", endpoint_url=server.endpoint_url, client_num_retries=0
    )

    class Spied(BotoKinesis):
        def _list_once(self, stream: str, which: dict[str, Any]) -> list[ListedShard]:
            asked.append(which.get("ShardFilter", {}).get("Type"))
            return super()._list_once(stream, which)

    return Spied(options)


def put(server: ScriptedKinesis, *numbers: int) -> None:
    for number in numbers:
        server.client().put_record(StreamName="orders", Data=str(number).encode(), PartitionKey="key")


def test_a_listing_leaves_out_what_is_of_no_interest(server: ScriptedKinesis) -> None:
    """0 is split into 1 and 2, and an hour later they are merged into 3."""
    server.split("orders", FIRST)
    server.advance(HOUR)
    asked: list[Any] = []
    client = client_of(server, asked)
    later = client.describe("orders").server_time
    server.merge("orders", *server.shards("orders"))

    def listed(since: Since | None) -> list[str]:
        return [shard.id[-1] for shard in client.list_shards("orders", since)]

    assert listed(None) == ["0", "1", "2", "3"]
    assert listed(TRIM_HORIZON) == ["0", "1", "2", "3"]
    assert listed(AtTimestamp(later)) == ["1", "2", "3"]
    assert listed(AfterShard("shardId-000000000001")) == ["2", "3"]
    assert asked == [None, "FROM_TRIM_HORIZON", "FROM_TIMESTAMP", "AFTER_SHARD_ID"]


def test_a_server_that_refuses_a_filter_is_asked_without_it(server: ScriptedKinesis) -> None:
    asked: list[Any] = []
    client = client_of(server, asked)
    server.script("ListShards", Refuse("InvalidArgumentException"))
    assert [shard.id for shard in client.list_shards("orders", AtTimestamp(1000))] == [FIRST]
    assert asked == ["FROM_TIMESTAMP", None]
    server.script("ListShards", Refuse("AccessDeniedException"))
    with pytest.raises(AccessDeniedError):
        client.list_shards("orders", AtTimestamp(1000))


def test_a_source_asks_for_what_it_needs_and_reads_no_shard_that_was_closed_before_its_start(
    start: Start, server: ScriptedKinesis
) -> None:
    put(server, 1, 2)
    server.split("orders", FIRST)
    server.advance(2)
    asked: list[Any] = []
    query = start(client_of(server, asked), startingPosition="LATEST")
    query.run.initial()
    assert asked == ["FROM_TIMESTAMP"]
    put(server, 3)
    rows = query.batch()
    server.merge("orders", *server.shards("orders"))
    put(server, 4)
    rows += query.drain()
    assert sorted(row[0] for row in rows) == [3, 4]
    # All are listed once, and after that only what is new.
    assert asked[:3] == ["FROM_TIMESTAMP", None, "AFTER_SHARD_ID"]
    assert set(asked[2:]) == {"AFTER_SHARD_ID"}
    assert not [call for call, shard in server.calls if shard == FIRST and call == "GetShardIterator"]


@pytest.mark.parametrize("kind", [MemoryKinesis, Unfiltered])
@pytest.mark.parametrize("position", ["LATEST", "AT_TIMESTAMP"])
def test_servers_without_filters_give_the_same_rows(
    start: Start, kind: type[MemoryKinesis], position: str
) -> None:
    time = FakeTime()
    kinesis = kind(clock=time.milliseconds)
    kinesis.put(FIRST, b"0")
    left, right = kinesis.split(FIRST)
    time.sleep(5)
    place = position if position == "LATEST" else f"AT_TIMESTAMP {time.milliseconds()}"
    query = start(kinesis, startingPosition=place)
    query.run.initial()
    kinesis.put(left, b"1")
    kinesis.put(right, b"2")
    child = kinesis.merge(left, right)
    kinesis.put(child, b"3")
    assert sorted(row[0] for row in query.drain()) == [1, 2, 3]


def test_a_closed_shard_that_an_offset_knows_is_read_on_although_zookeeper_is_lost(start: Start) -> None:
    """LATEST is resolved anew, and leaves the shard out of the first listing."""
    time = FakeTime()
    kinesis = MemoryKinesis(clock=time.milliseconds)
    given = {"startingPosition": "LATEST", "onCheckpointMismatch": "continue"}
    query = start(kinesis, **given)
    query.run.initial()
    kinesis.put(FIRST, b"1")
    assert [row[0] for row in query.batch()] == [1]
    assert query.plan() is None
    query.end()
    kinesis.put(FIRST, b"2")
    left, right = kinesis.split(FIRST)
    kinesis.put(left, b"3")
    child = kinesis.merge(left, right)
    kinesis.put(child, b"4")
    time.sleep(60)
    again = start(kinesis, query.checkpoint, **given, **{"zookeeper.root": "/lost"})
    # The batch of the offset is read again, and nothing of what came after it is left out.
    assert sorted(row[0] for row in again.drain()) == [1, 2, 3, 4]


def test_all_shards_are_listed_now_and_then_so_that_a_loss_is_found(start: Start) -> None:
    kinesis = MemoryKinesis()
    kinesis.put(FIRST, b"1")
    query = start(kinesis, failOnDataLoss="false")
    query.batch()
    assert query.plan() is None
    assert kinesis.calls["list_shards", ""] == 1
    assert kinesis.calls["list_shards", "AfterShard"] > 0


def test_positions_whose_records_are_gone_cost_no_copy_of_all_shards_each(
    lives: Lives, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, put = [0], Sights.put

    def count(self: Sights, changed: Mapping[str, Sight]) -> Sights:
        copied[0] += len(self.by_shard) + len(changed) if changed else 0
        return put(self, changed)

    monkeypatch.setattr(Sights, "put", count)
    costs = []
    for many in (8, 32):
        copied[0], kinesis = 0, MemoryKinesis(shards=many)
        names = [shard.id for shard in kinesis.list_shards("orders")]
        foreign = dict.fromkeys(names, "AFTER_SEQUENCE_NUMBER 7")
        given = {"applicationName": f"{app}{many}", "startingPosition": json.dumps(foreign)}
        query = lives.begin(kinesis, failOnDataLoss="false", **given)
        report = query.run.report()
        assert (report["losses"], len(report["lastLosses"])) == (many, 5)
        query.run._state.lister.check_retention(query.run._state.shards, query.run._state.sights)
        assert query.run.report()["losses"] == many
        costs.append(copied[0])
        query.end()
    assert costs[1] <= 4 * costs[0]
