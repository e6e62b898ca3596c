"""A sink writes each row whatever a server does; no two requests with a key are under way at once.

The server is drawn: it throttles, refuses a part, is resharded, refuses requests for their size, and loses requests and
answers.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from driven import backlog_of, drive, stream_of
from thorough import examples

from kinesis_trident.spout.kinesis import AccessDeniedError, RequestTooLargeError, Unavailable
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
        self.calls = self.lost_answers = 0
        self.taken: list[tuple[str, bytes]] = []
        self._seed = seed
        self._refused = rng.choice([0.0, 0.1, 0.6])
        self._hot = rng.choice([0.0, 0.0, 0.9])
        self._lost = rng.choice([0.0, 0.1])
        self._resharded = rng.choice([0.0, 0.15])
        self._most = rng.choice([10**9, 10**9, 3000])
        self._may_list = rng.random() < 0.8

    def open_shards(self) -> list[tuple[int, str]]:
        if not self._may_list:
            raise AccessDeniedError("no kinesis:ListShards")
        return [(shard.hashes[1], shard.name) for shard in self.held.open_shards]

    def __call__(self, entries: Sequence[Entry]) -> Answers:
        self.time.sleep(0.01)
        rng = random.Random(f"{self._seed} {self.calls}")
        # A server that takes nothing for ever is for other tests.
        is_calm = self.calls > 200
        self.calls += 1
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
            self.taken.append((entry["PartitionKey"], entry["Data"]))
            results.append({"ShardId": shard.name, "SequenceNumber": str(record.sequence)})
        if is_answer_lost:
            self.lost_answers += 1
            raise Unavailable("the connection was closed")
        return results


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


def check_written(server: Server, given: Entries) -> None:
    """Check that each row was taken, and once unless an answer was lost."""
    taken, wanted = sorted(server.taken), sorted((one["PartitionKey"], one["Data"]) for one in given)
    assert wanted == (sorted({*taken}) if server.lost_answers else taken)


@pytest.mark.parametrize("seed", range(examples(150)))
def test_one_backlog_writes_each_row_of_all_its_keys(seed: int) -> None:
    rng = random.Random(seed)
    given, server = rows(rng, rng.choice([0, 1, 60, 400])), Server(seed)
    backlog = backlog_of(
        stream_of(server.open_shards, server.time),
        server.time,
        evenly,
        busy_jitter=middle,
        patience=Patience(1e9, server.time),
        bound=RequestBound(*rng.choice([(500, 10 * 2**20), (7, 10 * 2**20), (50, 4000)])),
    )
    backlog.add(given)
    drive(server, backlog, server.time)
    check_written(server, given)


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
    check_written(server, given)
    assert server.most <= requests
