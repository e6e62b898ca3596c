"""Drawn batches: whatever is split, merged, lost from a listing or asked for twice meanwhile, each record is read once.

`make chaos` plays more seeds, from other ones on; a failure names its own: `play(SEED)`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from thorough import CHAOS

from kinesis_trident.spout.batch.batch_read import _ranges
from kinesis_trident.spout.batch.pushed_filters import NO_FILTERS, PushedFilters
from kinesis_trident.spout.batch.range_read import Loaded, read_range
from kinesis_trident.spout.kinesis import Page, Shard, Since
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis
from kinesis_trident.spout.testing.shard import aggregate

SEEDS = range(4000, 4400) if CHAOS else range(40)


class Moving(MemoryKinesis):
    """A stream that is written, split and merged between the calls of whoever reads it, until a time.

    Attributes:
        written: what each record of a user says, with its arrival and its shard.
    """

    def __init__(self, rng: Random, time: FakeTime) -> None:
        super().__init__(shards=rng.randint(1, 3), clock=time.milliseconds)
        self.rng = rng
        self.time = time
        self.written: list[tuple[str, int, str]] = []
        self.until = 0
        self._unlisted: dict[str, int] = {}

    def step(self) -> None:
        """Let something happen."""
        rng, shards = self.rng, self.open_shards
        match rng.randrange(12):
            case 0 | 1 | 2 | 3 | 4:
                self.write(rng.choice(shards))
            case 5 if len(shards) < 6:
                self.hide(self.split(rng.choice(shards)))
            case 6 if len(shards) > 1:
                at = rng.randrange(len(shards) - 1)
                self.hide((self.merge(*shards[at : at + 2]),))
            case 7:
                self.expire_iterators(rng.choice(list(self._stream.shards)))
            case 8:
                self.gap(rng.choice(shards), rng.randint(1, 3))
            case 9:
                self.linger(rng.choice(shards), rng.randint(1, 3))
            case _:
                self.time.sleep(rng.choice([0.001, 0.1, 0.5]))

    def write(self, shard: str) -> None:
        """Write a record, or an aggregate of several."""
        texts = [f"{len(self.written) + number}" for number in range(self.rng.choice([1, 1, 3]))]
        data = aggregate([(text.encode(), "key") for text in texts]) if len(texts) > 1 else texts[0].encode()
        now = self.time.milliseconds()
        self.put(shard, data)
        self.written += [(text, now, shard) for text in texts]

    def hide(self, children: tuple[str, ...]) -> None:
        """Leave out shards, and those after them, of the next listings."""
        for child in children:
            self._unlisted[child] = self.rng.choice([0, 0, 1, 2])

    def list_shards(self, stream: str, since: Since | None = None) -> list[Shard]:
        """See `Kinesis.list_shards`."""
        listed = super().list_shards(stream, since)
        for shard, times in self._unlisted.items():
            self._unlisted[shard] = times - 1
        first = min((shard for shard, times in self._unlisted.items() if times >= 0), default="z")
        return [one for one in listed if one.id < first]

    def get_records(self, iterator: str, limit: int) -> Page:
        """See `Kinesis.get_records`."""
        while self.time.milliseconds() < self.until and self.rng.random() < 0.7:
            self.step()
        self.time.sleep(0.05)
        return super().get_records(iterator, limit)


def read_in_turns(tasks: list[Iterator[Any]], rng: Random) -> list[str]:
    """Return what all tasks read, a batch of any of them at a time."""
    found: list[str] = []
    while tasks:
        task = rng.choice(tasks)
        rows = next(task, None)
        if rows is None:
            tasks.remove(task)
        else:
            found += [data.decode() for data in rows.column("data").to_pylist()]
    return found


def play(seed: int) -> None:
    """Play one batch: its actions, and two attempts of each task of an action side by side."""
    rng, time = Random(seed), FakeTime()
    kinesis = Moving(rng, time)
    for _ in range(rng.randint(0, 40)):
        kinesis.step()
    given = {
        "streamName": "orders",
        "minFetchPeriod": "0ms",
        "clientRetryInterval": "1ms",
        "maxRecordsPerFetch": rng.choice(["1", "2", "1000"]),
    }
    loaded_at = time.milliseconds() + rng.choice([0, 500, 999])
    start, end = 0, loaded_at
    if rng.random() < 0.4:
        start = time.milliseconds() - rng.choice([0, 300, 2_000])
        given["startingPosition"] = f"AT_TIMESTAMP {start}"
    if rng.random() < 0.6:
        end = max(time.milliseconds() + rng.choice([-500, 700, 3_000]), start + 1)
        given["endingPosition"] = f"AT_TIMESTAMP {end}"
    kinesis.until = max(end, time.milliseconds()) + 500
    ends: dict[str, int] = {}
    if rng.random() < 0.3:
        # Some shards have an end of their own.
        shards_now = {one.id: one for one in kinesis.list_shards("orders")}
        for shard in rng.sample(sorted(shards_now), rng.randint(1, min(3, len(shards_now)))):
            ends[shard] = max(time.milliseconds() + rng.choice([-900, -100, 1_500, 4_000]), start + 1)
        named = {shard: f"AT_TIMESTAMP {own}" for shard, own in ends.items()}
        given["endingPosition"] = json.dumps({"orders": named | {"*": f"AT_TIMESTAMP {end}"}})
        kinesis.until = max([kinesis.until, *(own + 500 for own in ends.values())])
        # Their ancestors are read whole.
        above = [parent for shard in ends for parent in shards_now[shard].parents]
        while above:
            shard = above.pop()
            above += shards_now[shard].parents
            ends.setdefault(shard, kinesis.until)
    loaded = Loaded(loaded_at, 0, {"orders": kinesis.describe("orders")})
    for _ in range(rng.randint(1, 2)):
        options = SourceOptions.parse_batch(given | {"maxRecordsPerFetch": rng.choice(["1", "3", "1000"])})
        pushed, shards = NO_FILTERS, None
        if rng.random() < 0.2:
            shards = {"shardId-000000000000", "shardId-000000000001"}
            pushed = only(shards)
        parts = list(_ranges(options, kinesis, "orders", loaded_at, pushed))
        attempts = rng.choice([1, 1, 2])
        found = read_in_turns(
            [
                iter(read_range(kinesis, options, part, loaded, pushed))
                for part in parts
                for _ in range(attempts)
            ],
            rng,
        )
        wanted = [
            text
            for text, arrival, shard in kinesis.written
            if start <= arrival < ends.get(shard, end) and (shards is None or shard in shards)
        ]
        assert Counter(found) == Counter(wanted * attempts), f"seed {seed}: {given}"


def only(shards: set[str]) -> PushedFilters:
    """Return a filter of shards, as Spark gives it."""

    class In:
        attribute = ("shardId",)
        value = sorted(shards)

    return PushedFilters.take([In()])[0]


@pytest.mark.parametrize("first", range(SEEDS.start, SEEDS.stop, 10))
def test_each_record_between_start_and_end_is_read_once(first: int) -> None:
    with patch("kinesis_trident.spout.batch.heirs.time.sleep"):
        for seed in range(first, first + 10):
            play(seed)
