"""A query with `retryOrder=shard`, call by call: what failed is over before anything new of its shard is read."""

from __future__ import annotations

import pytest
from model.zookeeper import MemoryZooKeeper
from stepped import SteppedQuery

from kinesis_trident.checkpoint.model.standing import RETRIES_FIRST
from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.kinesis import Shard, Since
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis

FIRST = "shardId-000000000000"


class Hiding(MemoryKinesis):
    """Lists some shards no more although their records are there, as far as a spool keeps them."""

    hidden: frozenset[str] = frozenset()

    def list_shards(self, stream: str, since: Since | None = None) -> list[Shard]:
        return [shard for shard in super().list_shards(stream, since) if shard.id not in self.hidden]


class Ordered:
    """A query over one stream, whose failed records wait ten seconds, and at most two retries of each."""

    def __init__(self, before: Ordered | None = None, **options: str) -> None:
        self.time = before.time if before else FakeTime()
        self.kinesis = before.kinesis if before else Hiding("orders", clock=self.time.milliseconds)
        self.zookeeper = before.zookeeper if before else MemoryZooKeeper(self.time.milliseconds)
        given = {"retryOrder": "shard", "retryBackoff": "10s..10s x1", "retryLimit": "2"}
        checkpoint = before.query.checkpoint if before else None
        self.query = SteppedQuery(self.kinesis, self.time, self.zookeeper, checkpoint, **given | options)

    def go_on(self, **options: str) -> Ordered:
        """End the query, and start it with other options."""
        self.query.end()
        return Ordered(self, **options)

    def put(self, shard: str, *numbers: int) -> None:
        for number in numbers:
            self.kinesis.put(shard, str(number).encode())

    def batches(self, failing: set[int], most: int = 9) -> list[list[int]]:
        """Run what is planned: what each batch has delivered."""
        found: list[list[int]] = []
        while len(found) < most and self.query.plan() is not None:
            found.append(
                [row[0] for row in sorted(self.query.batch(failing=failing), key=lambda row: row[1])]
            )
        return found


def test_nothing_new_is_read_until_what_failed_is_done() -> None:
    ordered = Ordered()
    ordered.put(FIRST, 1, 2, 3)
    assert ordered.batches({1, 3}) == [[1, 2, 3]]
    ordered.put(FIRST, 4)
    assert ordered.batches(set()) == []
    ordered.time.sleep(20)
    assert ordered.batches(set()) == [[1, 3], [4]]


def test_what_failed_for_good_holds_nothing_back() -> None:
    ordered = Ordered(retryLimit="1")
    ordered.put(FIRST, 1)
    assert ordered.batches({1}) == [[1]]
    ordered.put(FIRST, 2)
    ordered.time.sleep(20)
    # The second batch of these writes off what the first one has given up.
    assert ordered.batches({1}) == [[1], [2]]


def test_a_child_is_read_once_what_its_parent_has_failed_is_done_although_that_one_is_listed_no_more() -> (
    None
):
    ordered = Ordered()
    ordered.put(FIRST, 1)
    child, _ = ordered.kinesis.split(FIRST)
    ordered.put(child, 2)
    assert ordered.batches({1}) == [[1]]
    state = ordered.query.run._state
    ordered.kinesis.hidden = frozenset({FIRST})
    for _ in range(3):
        state.list_shards(everything=True)
    assert RETRIES_FIRST in state.shards.standing(child).causes
    assert ordered.batches(set()) == []
    ordered.time.sleep(20)
    assert ordered.batches(set()) == [[1], [2]]
    for _ in range(3):
        state.list_shards(everything=True)
    assert FIRST not in state.shards.lineage


def test_what_several_generations_have_failed_without_an_order_is_done_in_order_with_it() -> None:
    before = Ordered(retryOrder="none")
    before.put(FIRST, 1)
    child, other = before.kinesis.split(FIRST)
    before.put(child, 2)
    last = before.kinesis.merge(child, other)
    before.put(last, 3)
    assert before.batches({1, 2, 3}, 3) == [[1], [2], [3]]
    ordered = before.go_on(retryOrder="shard")
    state = ordered.query.run._state
    ordered.kinesis.hidden = frozenset({child, other})
    for _ in range(3):
        state.list_shards(everything=True)
    ordered.put(last, 4)
    delivered = []
    for _ in range(4):
        # The last batch is settled with the next plan, and only from then on its failures wait.
        ordered.time.sleep(20)
        delivered += ordered.batches(set())
    assert delivered == [[1], [2], [3], [4]]


@pytest.mark.parametrize(
    ("key", "value"), [("ackMode", "explicit"), ("spout", "nontransactional"), ("shardOrdering", "none")]
)
def test_what_keeps_no_order_is_refused(key: str, value: str) -> None:
    given = {
        "streamName": "orders",
        "region": "us-east-1",
        "applicationName": "app",
        "zookeeper.hosts": "memory:1",
        key: value,
    }
    SourceOptions.parse(given)
    with pytest.raises(
        OptionsError, match=f"retryOrder=shard cannot be combined with {key}={value}, .* Use "
    ):
        SourceOptions.parse(given | {"retryOrder": "shard"})
