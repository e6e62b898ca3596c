"""Listings that lag, lack shards or end half-way: what is written, and the shards after it, are as they were before."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import pytest
from stepped import SteppedQuery
from thorough import examples
from twins.old_listing import forgetting
from twins.old_listing.shadow import Shadow, shadowed

from kinesis_trident.checkpoint.errors import CheckpointError, ZooKeeperUnavailableError
from kinesis_trident.spout.errors import SpoutError
from kinesis_trident.spout.kinesis import (
    AfterShard,
    KinesisError,
    Shard,
    ShardMissingError,
    Since,
    ThrottledError,
)
from kinesis_trident.spout.planner.settling import listing
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis

WRITES = ("put_lineage", "forget", "amend", "settle")


class Wrong(MemoryKinesis):
    """Answers a listing as it was before, without some shards, or not at all; those may not be read either."""

    def __init__(self, r: random.Random, time: FakeTime) -> None:
        super().__init__(shards=r.choice([1, 2, 3]), clock=time.milliseconds)
        self.r, self.wrong = r, 0.0
        self.lacks: set[str] = set()
        self.reads = True
        self.before = [super().list_shards("orders")]

    def list_shards(self, stream: str, since: Since | None = None) -> list[Shard]:
        listed = super().list_shards(stream, since)
        if self.r.random() >= self.wrong:
            return [shard for shard in listed if shard.id not in self.lacks]
        if self.r.random() < 0.1:
            msg = "slow down"
            raise ThrottledError(msg)
        newest = since.id if isinstance(since, AfterShard) else ""
        listed = self.r.choice([listed, *self.before])
        return [shard for shard in listed if shard.id > newest and self.r.random() < 0.8]

    def iterator(self, stream: str, shard: str, position: str) -> str:
        if shard in self.lacks and not self.reads:
            msg = f"no shard {shard}"
            raise ShardMissingError(msg)
        return super().iterator(stream, shard, position)

    def reshard(self) -> None:
        """Split a shard, or merge two that are neighbours; retention takes one that is closed, now and then."""
        shards = self.open_shards
        self.before.append(super().list_shards("orders"))
        if len(shards) < 4 and self.r.random() < 0.6:
            self.split(self.r.choice(shards))
        elif len(shards) > 1:
            with suppress(KinesisError, ValueError):
                self.merge(*self.r.sample(shards, 2))
        closed = [shard.id for shard in super().list_shards("orders") if shard.closed]
        if closed and self.r.random() < 0.5:
            self.forget(closed[0])


@contextmanager
def cut(query: SteppedQuery, number: int, *, after: bool) -> Any:
    """Let a write of the run be the last one: it is not made, or not answered."""
    shards, left = query.run._store.shards, [number]

    def limited(call: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any, **nodes: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                if after:
                    call(*args, **nodes)
                raise ZooKeeperUnavailableError("away")
            return call(*args, **nodes)

        return write

    with mock.patch.multiple(shards, **{name: limited(getattr(shards, name)) for name in WRITES}):
        yield left


def play(seed: int) -> None:
    """Put, read, reshard, list and restart at random, while listings are wrong and writes fail."""
    r, time = random.Random(seed), FakeTime()
    kinesis = Wrong(r, time)
    given = {
        "failOnDataLoss": r.choice(["false", "false", "true"]),
        "retryLimit": "0",
        "startingPosition": r.choice(["TRIM_HORIZON", "LATEST"]),
    }
    query = SteppedQuery(kinesis, time, **given)
    kinesis.wrong = r.choice([0.0, 0.3, 0.8])
    put = 0
    acts = r.choices(
        ["put", "reshard", "all", "new", "tips", "batch", "lack", "restart"], [3, 3, 4, 2, 2, 3, 2, 1], k=40
    )
    for act in acts:
        state = query.run._state
        ends = r.choice([(9, False), (9, False), (0, False), (0, True), (1, False), (1, True), (2, True)])
        with cut(query, ends[0], after=ends[1]) as limit, suppress(SpoutError, KinesisError, CheckpointError):
            match act:
                case "put":
                    kinesis.put(r.choice(kinesis.open_shards), str(put).encode())
                    put += 1
                case "reshard":
                    kinesis.reshard()
                case "all" | "new":
                    state.list_shards(everything=act == "all")
                case "tips":
                    time.sleep(r.choice([1, 700]))
                    if query.in_hand is None:
                        with suppress(ThrottledError):
                            query.plan()
                    state.note_at_tip(state.sights)
                case "lack":
                    kinesis.lacks = {r.choice(["", *sorted(state.shards.states)])}
                    kinesis.reads = r.random() < 0.5
        if act == "batch":
            with suppress(SpoutError, KinesisError):
                if query.in_hand is not None or query.plan() is not None:
                    query.batch(failing=range(0, put, 3))
        # A query whose write was not answered ends with that.
        if act == "restart" or (limit[0] < 0 and ends[1]):
            kinesis.wrong, wrong = 0.0, kinesis.wrong
            query.end()
            try:
                query = SteppedQuery(kinesis, time, query._client._zookeeper, query.checkpoint, **given)
            except SpoutError:
                return
            kinesis.wrong = wrong


@pytest.fixture
def shadow() -> Any:
    with shadowed() as shadow:
        yield shadow


def test_listings_write_what_they_wrote(shadow: Shadow) -> None:
    for seed in range(examples(100)):
        play(seed)
    assert shadow.listed > 50
    assert shadow.noted > 5
    assert shadow.cut > 5
    assert len(shadow.forgotten) > 3
    assert len(shadow.missed) > 3


def list_and_cut(number: int, *, after: bool) -> tuple[Any, ...]:
    """List shards of which two are to be forgotten, a new one is there, and one is gone; return what is stored."""
    time = FakeTime()
    kinesis = MemoryKinesis(shards=3, clock=time.milliseconds)
    query = SteppedQuery(kinesis, time, retryLimit="0")
    first, second, third = kinesis.open_shards
    for shard in (first, second):
        kinesis.put(shard, b"1")
        kinesis.split(shard)
    while query.plan() is not None:
        query.batch(failing=[1])
    for shard in (first, second):
        kinesis.forget(shard)
    query.run._state.list_shards(everything=True)
    assert query.run._state.shards.missed.keys() == {first, second}
    kinesis.split(third)
    with cut(query, number, after=after), suppress(ZooKeeperUnavailableError):
        query.run._state.list_shards(everything=True)
    if after:
        query.end()
        query = SteppedQuery(kinesis, time, query._client._zookeeper, query.checkpoint)
    query.run._state.list_shards(everything=True)
    store, shards = query.store.shards, query.run._state.shards
    assert not shards.missed
    assert store.dead_letters() == shards.dead_letters
    node = store.lineage()
    assert node is not None
    assert node.shards == shards.lineage
    return node.shards, store.checkpoints().keys(), shards.states.keys(), shards.dead_letters


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_listing_that_ends_before_or_after_a_write_is_made_again(
    number: int, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    """The first one is that of the lineage, each other forgets a shard."""
    for module in (listing, forgetting):
        monkeypatch.setattr(module, "_AT_A_TIME", 1)
    with shadowed() as shadow:
        assert list_and_cut(number, after=after) == list_and_cut(9, after=False)
    assert (shadow.cut, len(shadow.forgotten)) == (1, 2)
