"""Listings that lag, each of any moment before: no record is lost, and none comes twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest
from by_hand import Lives, numbers
from stepped import SteppedQuery
from thorough import examples

from kinesis_trident.spout.kinesis import AfterShard, KinesisError, Shard, Since
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis


class Lagging(MemoryKinesis):
    """Answers a listing, now and then, as it was after one of the reshards."""

    def __init__(self, r: random.Random) -> None:
        super().__init__(shards=r.choice([1, 2]))
        self.r = r
        self.lag = 0.0
        self.before = [self.list_shards("orders")]

    def list_shards(self, stream: str, since: Since | None = None) -> list[Shard]:
        if self.r.random() >= self.lag:
            return super().list_shards(stream, since)
        newest = since.id if isinstance(since, AfterShard) else ""
        return [shard for shard in self.r.choice(self.before) if shard.id > newest]

    def reshard(self) -> None:
        """Split a shard, or merge two that are neighbours."""
        shards = self.open_shards
        if len(shards) < 4 and self.r.random() < 0.5:
            self.split(self.r.choice(shards))
        elif len(shards) > 1:
            with suppress(KinesisError, ValueError):
                self.merge(*self.r.sample(shards, 2))
        self.before.append(super().list_shards("orders"))


def play(lives: Lives, seed: int) -> None:
    """Put, read, reshard, list and restart at random; then read all that is left."""
    r = random.Random(seed)
    kinesis = Lagging(r)
    query = lives.begin(kinesis)
    kinesis.lag = r.choice([0.3, 0.8])
    put, came = 0, list[int]()
    for act in r.choices(["put", "reshard", "list", "new", "batch", "restart"], [2, 2, 1, 1, 2, 1], k=30):
        match act:
            case "put":
                kinesis.put(r.choice(kinesis.open_shards), str(put).encode())
                put += 1
            case "reshard":
                kinesis.reshard()
            case "list" | "new":
                query.run._state.list_shards(everything=act == "list")
            case "batch":
                if query.plan() is not None:
                    came += numbers(query.batch())
            case "restart":
                query.end()
                query = lives.begin(kinesis, query.checkpoint)
    kinesis.lag = 0.0
    query.run._state.list_shards(everything=True)
    came += numbers(query.drain())
    assert sorted(came) == list(range(put))


@pytest.mark.parametrize("seed", [22, 106, 170, 199, *range(examples(24))])
def test_listings_that_lag_neither_lose_a_record_nor_repeat_one(lives: Lives, seed: int) -> None:
    play(lives, seed)


class LateChildren(MemoryKinesis):
    """Its listings show what came of a shard so many seconds after it was split."""

    after, split_at = 0.0, 0.0
    seconds: Callable[[], float]

    def split(self, shard: str) -> tuple[str, str]:
        self.split_at = self.seconds()
        return super().split(shard)

    def list_shards(self, stream: str, since: Since | None = None) -> list[Shard]:
        listed = super().list_shards(stream, since)
        hides = self.seconds() < self.split_at + self.after
        return [shard for shard in listed if not (hides and shard.parents)]


@pytest.mark.parametrize(("after", "came", "least", "most"), [(40, [1, 2], 40, 50), (3_600, [1], 60, 70)])
def test_a_drain_waits_a_minute_for_what_came_of_a_shard_to_be_listed(
    after: float, came: list[int], least: float, most: float
) -> None:
    time = FakeTime()
    kinesis = LateChildren(clock=time.milliseconds)
    kinesis.seconds, kinesis.after = time, after
    query = SteppedQuery(kinesis, time, describeShardInterval="10m")
    (shard,) = kinesis.open_shards
    kinesis.put(shard, b"1")
    assert query.plan() is not None
    kinesis.put(kinesis.split(shard)[0], b"2")
    begun = time()
    assert numbers(query.drain()) == came
    assert least <= time() - begun <= most
