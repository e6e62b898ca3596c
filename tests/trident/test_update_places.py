"""Two updates of a topology never go to one place, where the second would lose what it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from samples_topology import a_stream

from kinesis_trident.trident import Count, Stream, TopologyError, TridentTopology
from kinesis_trident.trident.state import StateUpdater
from kinesis_trident.trident.stores import MemoryMapState
from kinesis_trident.trident.stores.dynamodb import DynamoDBState
from kinesis_trident.trident.stores.files import FileState
from kinesis_trident.trident.stores.redis import RedisState
from kinesis_trident.trident.stores.sql import SqlState

URL = "redis://host"


class Update(StateUpdater[Any]):
    def update_state(self, state, tuples, collector):  # type: ignore[no-untyped-def]
        raise NotImplementedError


def check(*streams: Stream) -> None:
    topology = TridentTopology()
    for stream in streams:
        for node in (stream.node, *stream._declared.nodes):
            topology._declared.add(node)
    topology.check(strict=False)


def counts(stream: Stream, factory: Any, *keys: str) -> None:
    of = stream.group_by(list(keys)) if keys else stream
    of.persistent_aggregate(factory, Count(), ["n"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: RedisState.opaque(URL, keyPrefix="a"),
        lambda: RedisState.opaque(URL, dataType="HASH", additionalKey="a"),
        lambda: SqlState.opaque("sqlite://", tableName="a"),
        lambda: DynamoDBState.opaque("a", region="eu-west-1"),
        lambda: FileState.opaque("/tmp/a"),
    ],
)
def test_two_factories_of_one_place(make: Callable[[], Any]) -> None:
    stream = a_stream()
    counts(stream, make(), "partitionKey")
    counts(stream, make(), "shardId")
    with pytest.raises(
        TopologyError, match=r"persistent_aggregate\(Count\) and .*own keyPrefix, table or folder"
    ):
        check(stream)


@pytest.mark.parametrize("factory", [RedisState.opaque(URL), MemoryMapState.opaque()])
def test_one_factory_for_two_updates(factory: Any) -> None:
    stream = a_stream()
    counts(stream, factory, "partitionKey")
    stream.partition_persist(factory, ["partitionKey"], Update())
    with pytest.raises(TopologyError, match=r"Count\) and partition_persist\(Update\) update one state"):
        check(stream)


def test_two_streams_of_one_state() -> None:
    """Each has txids of its own, so not even their global aggregates go together."""
    streams = [a_stream("a"), a_stream("b")]
    for stream, key in zip(streams, "ab", strict=True):
        counts(stream, RedisState.opaque(URL, globalKey=key))
    with pytest.raises(TopologyError, match="update one state, a RedisState in one place"):
        check(*streams)


def test_places_of_their_own() -> None:
    stream = a_stream()
    counts(stream, RedisState.opaque(URL, keyPrefix="a"), "partitionKey")
    counts(stream, RedisState.opaque(URL, keyPrefix="b"), "partitionKey")
    counts(stream, RedisState.opaque(URL, globalKey="a"))
    counts(stream, RedisState.opaque(URL, globalKey="b"))
    counts(stream, MemoryMapState.opaque(), "partitionKey")
    counts(stream, MemoryMapState.opaque(), "partitionKey")
    check(stream)


@pytest.mark.parametrize("prefixes", [("count", "count:er"), ("count:er", "count"), ("", "x")])
def test_a_prefix_that_begins_another_one(prefixes: tuple[str, str]) -> None:
    stream = a_stream()
    for prefix in prefixes:
        counts(stream, RedisState.opaque(URL, keyPrefix=prefix), "partitionKey")
    with pytest.raises(TopologyError, match=r"begin with '.+', and those of .* can be one of the first"):
        check(stream)
    stream = a_stream()
    for prefix in prefixes:
        accepted = "shop/lines@1/persistent_aggregate(Count) by partitionKey in count"
        counts(stream, RedisState.opaque(URL, keyPrefix=prefix, acceptOwner=accepted), "partitionKey")
    check(stream)


def test_global_aggregates_under_one_key() -> None:
    stream = a_stream()
    counts(stream, RedisState.opaque(URL))
    counts(stream, RedisState.opaque(URL))
    with pytest.raises(TopologyError, match="update one state"):
        check(stream)
