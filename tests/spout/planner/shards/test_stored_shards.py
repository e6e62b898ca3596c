"""Shards that retention has removed are forgotten: ZooKeeper keeps what is open, not history."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from by_hand import Lives, Query, numbers

from kinesis_trident.checkpoint.model.layout import PAST_RETENTION
from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.spout.kinesis import Shard, ShardMissingError, Since
from kinesis_trident.spout.testing import MemoryKinesis

A = "shardId-000000000000"
Start = Callable[..., Query]


def resharded(query: Query, kinesis: MemoryKinesis, times: int) -> list[str]:
    """Split and merge a stream of one shard, each shard read to its end: those that are closed now."""
    closed = []
    for time in range(times):
        (shard,) = kinesis.open_shards
        kinesis.put(shard, str(time).encode())
        parts = kinesis.split(shard)
        kinesis.merge(*parts)
        closed += [shard, *parts]
    query.drain()
    return closed


def stored(query: Query) -> set[str]:
    """The shards that ZooKeeper has nodes of."""
    store, client = query.store, query.store.client
    return {
        *store.shards.checkpoints(),
        *store.shards.inflight(),
        *store.shards.dead_letters(),
        *client.get_children(store.layout.external),
    }


def listed_again(query: Query, times: int = 1) -> None:
    for _ in range(times):
        query.run._state.list_shards(everything=True)


def test_shards_past_retention_leave_nothing(lives: Lives) -> None:
    kinesis = MemoryKinesis()
    query = lives.begin(kinesis)
    closed = resharded(query, kinesis, 10)
    assert stored(query) >= set(closed)
    for shard in closed:
        kinesis.forget(shard)
    listed_again(query, 2)
    assert stored(query) <= set(kinesis.open_shards)
    # And the query goes on, here and after a restart.
    (shard,) = kinesis.open_shards
    kinesis.put(shard, b"99")
    query.end()
    again = lives.begin(kinesis, query.checkpoint)
    assert numbers(again.drain()) == [99]


def test_what_an_earlier_release_left_goes_at_the_first_listing(lives: Lives) -> None:
    kinesis = MemoryKinesis()
    query = lives.begin(kinesis)
    closed = resharded(query, kinesis, 3)
    checkpoints = {shard: query.store.shards.checkpoints()[shard] for shard in closed}
    for shard in closed:
        kinesis.forget(shard)
    listed_again(query, 2)
    for shard, node in checkpoints.items():
        query.store.shards.amend(shard, query.run.epoch, checkpoint=node)
    query.end()
    again = lives.begin(kinesis, query.checkpoint)
    assert stored(again) >= set(closed)
    assert again.plan() is None
    assert stored(again) <= set(kinesis.open_shards)


def test_dead_letters_of_forgotten_shards_are_counted_on(lives: Lives) -> None:
    kinesis = MemoryKinesis()
    query = lives.begin(kinesis, retryLimit="0")
    for number in (1, 2, 3):
        kinesis.put(A, str(number).encode())
    query.batch(failing=[1, 3])
    children = kinesis.split(A)
    kinesis.put(children[0], b"4")
    while 4 not in numbers(query.batch(failing=[4])):
        pass
    query.drain()
    letters = query.store.shards.dead_letters()
    assert {shard: node.count for shard, node in letters.items()} == {A: 2, children[0]: 1}
    for shard, left in ((A, 2), (children[0], 3)):
        if shard != A:
            kinesis.merge(*children)
            query.drain()
        kinesis.forget(shard)
        listed_again(query, 2)
        assert query.store.shards.dead_letters()[PAST_RETENTION].count == left
        assert query.run.report()["deadLettered"] == 3
    assert set(query.store.shards.dead_letters()) == {PAST_RETENTION}
    last = query.store.shards.dead_letters()[PAST_RETENTION].last
    assert [letter.message_id.rpartition("/")[2].partition(":")[0] for letter in last] == [A, A, children[0]]
    query.end()
    again = lives.begin(kinesis, query.checkpoint)
    assert again.run.report()["deadLettered"] == 3


def test_what_is_in_flight_keeps_its_shard(lives: Lives) -> None:
    kinesis = MemoryKinesis()
    query = lives.begin(kinesis, retryBackoff="1h..1h x1")
    kinesis.put(A, b"1")
    kinesis.split(A)
    query.batch(failing=[1])
    assert query.plan() is None
    assert query.run._state.shards.lineage[A].state == "drained"
    kinesis.forget(A)
    listed_again(query)
    listed_again(query)
    assert A in query.store.shards.inflight()
    query.end()
    again = lives.begin(kinesis, query.checkpoint)
    listed_again(again)
    assert A in again.store.shards.checkpoints()


def test_a_shard_that_a_listing_lacks_by_mistake_is_not_started_over(lives: Lives) -> None:
    kinesis = MemoryKinesis(shards=2)
    query = lives.begin(kinesis, failOnDataLoss="false")
    kinesis.put(A, b"1")
    query.drain()
    kinesis.forget(A)
    listed_again(query)
    assert A in query.store.shards.checkpoints()
    listed_again(query)
    assert A not in query.store.shards.checkpoints()


class Forgetful(MemoryKinesis):
    """Its answers lack some shards for a while; such a one may not be read either."""

    lacks: frozenset[str] = frozenset()
    reads = True

    def list_shards(self, stream: str, since: Since | None = None) -> list[Shard]:
        return [shard for shard in super().list_shards(stream, since) if shard.id not in self.lacks]

    def iterator(self, stream: str, shard: str, position: str) -> str:
        if shard in self.lacks and not self.reads:
            msg = f"no shard {shard}"
            raise ShardMissingError(msg)
        return super().iterator(stream, shard, position)


def test_a_shard_that_was_read_to_its_end_is_not_read_again_after_a_listing_of_before_it(
    lives: Lives,
) -> None:
    kinesis = Forgetful()
    query = lives.begin(kinesis)
    kinesis.put(A, b"1")
    children = kinesis.split(A)
    kinesis.lacks = frozenset(children)
    assert numbers(query.batch()) == [1]
    assert query.plan() is None
    assert query.run._state.shards.lineage[A].state == "drained"
    # A server that lags answers as if there was neither the shard nor what came of it.
    kinesis.lacks = frozenset((A, *children))
    listed_again(query)
    kinesis.lacks = frozenset()
    kinesis.put(children[0], b"2")
    assert numbers(query.drain()) == [2]
    kinesis.forget(A)
    listed_again(query, 2)
    assert A not in stored(query)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_shard_that_was_read_to_its_end_and_is_back_is_not_read_again(lives: Lives, restarts: bool) -> None:
    """Nobody knows a child of it: neither its lineage nor an answer of Kinesis says that it was read."""
    kinesis = Forgetful()
    query = lives.begin(kinesis)
    kinesis.put(A, b"1")
    children = kinesis.split(A)
    kinesis.lacks = frozenset(children)
    assert numbers(query.batch()) == [1]
    assert query.plan() is None
    assert query.run._state.shards.lineage[A].state == "drained"
    kinesis.lacks, kinesis.reads = frozenset((A, *children)), False
    listed_again(query)
    assert A not in query.run._state.shards.lineage
    if restarts:
        query.end()
        query = lives.begin(kinesis, query.checkpoint)
    kinesis.lacks, kinesis.reads = frozenset(), True
    kinesis.put(children[0], b"2")
    assert numbers(query.drain()) == [2]
    assert query.run._state.shards.lineage[A].state == "drained"


@pytest.mark.parametrize("restarts", [False, True])
def test_a_shard_that_is_back_with_the_next_listing_goes_on_where_it_stood(
    lives: Lives, restarts: bool
) -> None:
    kinesis = Forgetful(shards=2)
    query = lives.begin(kinesis, failOnDataLoss="false")
    kinesis.put(A, b"1")
    assert numbers(query.drain()) == [1]
    kinesis.lacks, kinesis.reads = frozenset([A]), False
    listed_again(query)
    assert A not in query.run._state.shards.states
    if restarts:
        query.end()
        query = lives.begin(kinesis, query.checkpoint, failOnDataLoss="false")
        assert A not in query.run._state.shards.states
    kinesis.lacks = frozenset()
    listed_again(query)
    kinesis.put(A, b"2")
    assert numbers(query.drain()) == [2]
    assert query.run._state.shards.states[A].checkpoint == query.store.shards.checkpoints()[A]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_parent_with_unread_records_that_is_back_with_the_next_listing_goes_on_too(
    lives: Lives, restarts: bool
) -> None:
    kinesis = Forgetful()
    query = lives.begin(kinesis, failOnDataLoss="false")
    kinesis.put(A, b"1")
    assert numbers(query.drain()) == [1]
    kinesis.put(A, b"2")
    kinesis.put(kinesis.split(A)[0], b"3")
    listed_again(query)
    kinesis.lacks, kinesis.reads = frozenset([A]), False
    listed_again(query)
    assert A not in query.run._state.shards.states
    if restarts:
        query.end()
        query = lives.begin(kinesis, query.checkpoint, failOnDataLoss="false")
    kinesis.lacks = frozenset()
    listed_again(query)
    assert sorted(numbers(query.drain())) == [2, 3]


def test_nothing_counts_as_lost_that_was_forgotten_after_a_batch_that_came_between(lives: Lives) -> None:
    kinesis = Forgetful()
    query = lives.begin(kinesis, failOnDataLoss="false")
    kinesis.put(A, b"1")
    child, _ = kinesis.split(A)
    query.drain()
    kinesis.forget(A)
    listed_again(query)
    kinesis.put(child, b"2")
    query.drain()
    listed_again(query)
    kinesis.lacks, kinesis.reads = frozenset([child]), False
    listed_again(query, 2)
    assert not stored(query) & {A, child}
    query.end()
    assert lives.begin(kinesis, query.checkpoint, failOnDataLoss="false").plan() is None


def test_requests_for_a_forgotten_shard_stay_until_they_are_taken_in(lives: Lives) -> None:
    kinesis = MemoryKinesis()
    query = lives.begin(kinesis)
    (first, *_) = resharded(query, kinesis, 1)
    query.store.external.add(first, ExternalNode(op="replay", records=("1",)))
    kinesis.forget(first)
    listed_again(query, 2)
    asked, _ = query.store.external.read()
    assert list(asked) == [first]
    assert first not in query.store.shards.checkpoints()
