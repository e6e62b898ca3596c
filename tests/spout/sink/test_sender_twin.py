"""The sender with one pool against the one with lanes, pools of each, and busy shards beside: `tests/twins/old_sink`.

Both write to the same drawn server: it throttles, refuses a part, is resharded, refuses requests for their size, and
loses requests and answers. They must make the same calls, so the same records are written in the same order.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from driven import backlog_of, drive, stream_of
from thorough import examples
from twins.old_sink import busy_shards as old_busy, lanes as old_lanes, targets as old_targets
from twins.old_sink.put_pools import RequestBound as OldBound
from twins.old_sink.put_records import put_pool
from twins.old_sink.shard_map import Aggregation, ShardMap

from kinesis_trident.spout.kinesis import AccessDeniedError, KinesisError, RequestTooLargeError, Unavailable
from kinesis_trident.spout.kinesis.packing import hash_key
from kinesis_trident.spout.kinesis.put_entries import Entries, Entry, RequestBound
from kinesis_trident.spout.patience import Patience
from kinesis_trident.spout.sink.busy_shards import BusyShards
from kinesis_trident.spout.sink.pool import WritePool
from kinesis_trident.spout.sink.targets import StreamTarget
from kinesis_trident.spout.testing import FakeTime
from kinesis_trident.spout.testing.stream import HeldStream

Answers = list[dict[str, Any]]
CODES = ("ProvisionedThroughputExceededException", "InternalFailure")


def middle(first: float, last: float) -> float:
    return (first + last) / 2


class Server:
    """A stream in simulated time; what it does with a call follows from its number and what is in it."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.time = FakeTime()
        self.held = HeldStream("orders", rng.randint(1, 4), 1)
        self.calls: list[list[tuple[str, bytes]]] = []
        self.listings = 0
        self._seed = seed
        self._refused = rng.choice([0.0, 0.1, 0.6])
        self._hot = rng.choice([0.0, 0.0, 0.9])
        self._lost = rng.choice([0.0, 0.1])
        self._resharded = rng.choice([0.0, 0.15])
        self._most = rng.choice([10**9, 10**9, 3000])
        self._may_list = rng.random() < 0.8

    def open_shards(self) -> list[tuple[int, str]]:
        self.listings += 1
        if not self._may_list:
            raise AccessDeniedError("no kinesis:ListShards")
        return [(shard.hashes[1], shard.name) for shard in self.held.open_shards]

    def shard_map(self) -> ShardMap:
        return ShardMap(self.open_shards, self.time)

    def __call__(self, entries: Sequence[Entry]) -> Answers:
        self.time.sleep(0.01)
        rng = random.Random(f"{self._seed} {len(self.calls)}")
        # A server that takes nothing for ever is for other tests.
        is_calm = len(self.calls) > 200
        self.calls.append([(entry["PartitionKey"], entry["Data"]) for entry in entries])
        if Entries.of(entries).size > self._most and len(entries) > 1:
            raise RequestTooLargeError("413")
        is_lost, is_answer_lost = (rng.random() < self._lost and not is_calm for _ in range(2))
        if is_lost:
            raise Unavailable("503")
        if rng.random() < self._resharded and not is_calm:
            shards = self.held.open_shards
            if len(shards) > 1 and rng.random() < 0.5:
                at = rng.randrange(len(shards) - 1)
                self.held.merge(shards[at].name, shards[at + 1].name, 1)
            else:
                self.held.split(rng.choice(shards).name, 1)
        results: Answers = []
        for entry in entries:
            explicit = entry.get("ExplicitHashKey")
            shard = self.held.find_home(
                hash_key(entry["PartitionKey"]) if explicit is None else int(explicit)
            )
            is_hot = shard is self.held.open_shards[0]
            if rng.random() < max(self._refused, self._hot * is_hot) and not is_calm:
                results.append({"ErrorCode": rng.choice(CODES), "ErrorMessage": "slow"})
                continue
            record = self.held.put(shard, entry["Data"], entry["PartitionKey"], 1)
            results.append({"ShardId": shard.name, "SequenceNumber": str(record.sequence)})
        if is_answer_lost:
            raise Unavailable("the connection was closed")
        return results

    def written(self) -> dict[str, list[bytes]]:
        """The records of each shard."""
        return {name: [record.data for record in shard.records] for name, shard in self.held.shards.items()}


def rows(rng: random.Random, count: int) -> Entries:
    def row(number: int) -> Entry:
        given: Entry = {
            "Data": b"%d " % number + bytes(rng.randrange(rng.choice([5, 300]))),
            "PartitionKey": f"key-{rng.randrange(9)}",
        }
        if rng.random() < 0.2:
            given["ExplicitHashKey"] = str(rng.randrange(2**128))
        return given

    return Entries.of(row(number) for number in range(count))


def evenly(_first: float, _last: float) -> float:
    """Wait as long after each failure: a look that found nothing to send was a failure too."""
    return 0.05


class OldPool(old_busy.ShardPool):
    """The pool of one lane, to which the lane adds a request as soon as there is room."""

    def __init__(self, target: old_targets.StreamTarget, coming: Entries, *args: Any) -> None:
        super().__init__(*args)
        self._target = target
        self.coming = coming

    def feed(self) -> None:
        if self.coming and not self.is_ready:
            filling = self._target.filling()
            [request, *_] = [*filling.add(self.coming), *([filling.take()] if len(filling) else [])]
            self.add(request)
            self.coming = self.coming[len(request) :]

    def pause(self) -> float:
        self.feed()
        return super().pause()


def write_as_before(server: Server, given: Entries, bound: tuple[int, int], most: int | None) -> int:
    maps: list[ShardMap] = []

    def shards() -> ShardMap:
        if not maps:
            maps.append(server.shard_map())
        return maps[0]

    aggregation = None if most is None else Aggregation(shards(), most)
    busy = old_busy.BusyShards(shards, middle)
    target = old_targets.StreamTarget(server, busy, bound=OldBound(*bound), aggregation=aggregation)  # type: ignore[arg-type]
    pool = OldPool(target, given, busy, server.time, threading.Condition(), aggregation)
    refusals = 0
    while pool.coming or pool:
        pool.feed()
        refusals += put_pool(
            server,  # type: ignore[arg-type]
            pool,
            sleep=server.time.sleep,
            patience=Patience(1e9, server.time),
            bound=target.bound,
            jitter=evenly,
        )
    return refusals


def write_now(server: Server, given: Entries, bound: tuple[int, int], most: int | None) -> int:
    backlog = backlog_of(
        stream_of(server.open_shards, server.time),
        server.time,
        evenly,
        busy_jitter=middle,
        patience=Patience(1e9, server.time),
        bound=RequestBound(*bound),
        most=most,
    )
    backlog.add(given)
    drive(server, backlog, server.time)
    return backlog.tries.refusals


@pytest.mark.parametrize("seed", range(examples(150)))
def test_one_backlog_makes_the_calls_of_a_lane(seed: int) -> None:
    rng = random.Random(seed)
    given = rows(rng, rng.choice([0, 1, 60, 400]))
    bound = rng.choice([(500, 10 * 2**20), (7, 10 * 2**20), (50, 4000)])
    most = rng.choice([None, None, 400, 51_200])
    found = []
    for write in (write_as_before, write_now):
        server = Server(seed)
        try:
            refusals: object = write(server, given, bound, most)
        except KinesisError as error:
            refusals = repr(error)
        found.append((refusals, server.calls, server.written(), server.listings))
    before, now = found
    assert now == before


class Counting(Server):
    """The same server for several threads: what it does with a call does not depend on the others."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._guard = threading.Lock()
        self._lost = self._resharded = self._refused = self._hot = 0.0
        self._most = 10**9

    def __call__(self, entries: Sequence[Entry]) -> Answers:
        with self._guard:
            return super().__call__(entries)


@pytest.mark.parametrize("seed", range(examples(40)))
def test_a_pool_makes_the_calls_of_the_lanes(seed: int) -> None:
    rng = random.Random(seed)
    requests, count, bound = rng.choice([1, 2, 5]), rng.choice([1, 60, 1000]), rng.choice([500, 7])
    given = rows(rng, count)
    parts = [given[at : at + 90] for at in range(0, count, 90)]
    before, now = Counting(seed), Counting(seed)
    patience = Patience(1e9, before.time)
    with old_lanes.Lanes(requests, patience) as lanes:
        lanes.add(
            old_targets.StreamTarget(before, old_busy.BusyShards(before.shard_map), bound=OldBound(bound)),  # type: ignore[arg-type]
            parts,
        )
        sent_before = lanes.finish()
    with WritePool(requests, patience) as pool:
        pool.add(StreamTarget(now, stream_of(now.open_shards), bound=RequestBound(bound)), parts)
        sent = pool.finish()
    assert (sent.records, sent.size, sent.refusals) == (
        sent_before.records,
        sent_before.size,
        sent_before.refusals,
    )
    assert sorted(now.calls) == sorted(before.calls)
    assert (now.listings, before.listings) == (0, 0)


def write_to(server: Server, requests: int, given: Entries, most: int | None) -> None:
    """Write by threads in simulated time."""
    target = StreamTarget(
        server,
        stream_of(server.open_shards, server.time),
        bound=RequestBound(40),
        most=most,
        busy=BusyShards(middle),
    )
    with WritePool(
        requests, Patience(1e9, server.time), wait=lambda _, s: server.time.sleep(s), clock=server.time
    ) as pool:
        pool.add(target, (given[at : at + 30] for at in range(0, len(given), 30)))
        assert pool.finish().records == len(given)


class Crowd(Server):
    """A server for several threads that sees how many calls are under way, and whether two have one key."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._guard = threading.Lock()
        self._may_list = True
        self._lost = 0.0
        self._under_way: list[set[str]] = []
        self.most = 0

    def __call__(self, entries: Sequence[Entry]) -> Answers:
        keys = {entry["PartitionKey"] for entry in entries}
        with self._guard:
            assert not any(keys & others for others in self._under_way)
            self._under_way.append(keys)
            self.most = max(self.most, len(self._under_way))
        try:
            with self._guard:
                return super().__call__(entries)
        finally:
            with self._guard:
                self._under_way.remove(keys)


@pytest.mark.parametrize("seed", range(examples(40)))
def test_threads_write_each_row_once_and_never_two_requests_with_a_key(seed: int) -> None:
    rng = random.Random(seed)
    given, requests, server = rows(rng, rng.choice([30, 500])), rng.choice([2, 5]), Crowd(seed)
    write_to(server, requests, given, None)
    written = [data for some in server.written().values() for data in some]
    assert sorted(written) == sorted(given.data.tolist())
    assert server.most <= requests
