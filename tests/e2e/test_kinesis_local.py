"""Resharding against kinesis-local and kinesalite, servers that this project did not write: through Spark, every record
exactly once and the records of a key in order.

What is different there from AWS: a merge or split is done at once (its delays are set to nothing), nothing is
throttled, and iterators do not expire. `spout.testing` covers those. kinesalite ends a closed shard later than AWS:
after an empty answer, "0 behind".
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from servers import Kinesalite, KinesisLocal
from stage import AVAILABLE_NOW, Stage, ended
from thorough import cases

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient
    from pyspark.sql import DataFrame

KEYS = [f"key-{n}" for n in range(16)]


@dataclass
class Resharded:
    """A stream that is written to and resharded: each round puts one record of every key, numbered by the round."""

    client: KinesisClient
    stream: str
    rounds: int = 0

    def put(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            records: Any = [{"Data": b"%d" % self.rounds, "PartitionKey": key} for key in KEYS]
            answer = self.client.put_records(StreamName=self.stream, Records=records)
            assert not answer["FailedRecordCount"]
            self.rounds += 1

    @contextmanager
    def load(self, pause: float = 0.0) -> Iterator[None]:
        """Puts go on in another thread, some of them before, and some after what happens here."""
        stop, put = threading.Event(), threading.Semaphore(0)
        failed: list[BaseException] = []

        def run() -> None:
            try:
                while not stop.is_set():
                    self.put()
                    put.release()
                    stop.wait(pause)
            except BaseException as error:
                failed.append(error)
                put.release(1000)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            for _ in range(5):
                put.acquire()
            yield
            for _ in range(5):
                put.acquire()
        finally:
            stop.set()
            thread.join()
        assert not failed, failed

    def all(self) -> list[Any]:
        """The shards, open and closed."""
        return list(self.client.list_shards(StreamName=self.stream)["Shards"])

    def open(self) -> list[Any]:
        """The open shards, neighbours side by side."""
        still = [one for one in self.all() if "EndingSequenceNumber" not in one["SequenceNumberRange"]]
        return sorted(still, key=lambda one: int(one["HashKeyRange"]["StartingHashKey"]))

    def split(self, number: int = 0) -> None:
        """Split an open shard in the middle."""
        shard = self.open()[number]
        first, last = (int(shard["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))
        self.client.split_shard(
            StreamName=self.stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((first + last) // 2)
        )
        self._wait()

    def merge(self, number: int = 0) -> None:
        """Merge an open shard with the next one."""
        left, right = self.open()[number : number + 2]
        self.client.merge_shards(
            StreamName=self.stream, ShardToMerge=left["ShardId"], AdjacentShardToMerge=right["ShardId"]
        )
        self._wait()

    def _wait(self) -> None:
        self.client.get_waiter("stream_exists").wait(StreamName=self.stream, WaiterConfig={"Delay": 1})


@dataclass
class Seen:
    """A sink that keeps what each micro-batch gave; a batch given again, by a query that was stopped, is the same."""

    batches: dict[int, dict[str, list[tuple[str, int]]]] = field(default_factory=dict)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Keep, for each key, the shards and rounds in the order in which they came."""
        given: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for row in rows.select("partitionKey", "data", "shardId").collect():
            given[row.partitionKey].append((row.shardId, int(row.data)))
        assert self.batches.setdefault(batch, given) == given

    def _all(self) -> list[tuple[str, str, int]]:
        # At once: a query's thread adds to it.
        kept = sorted(self.batches.copy().items())
        return [(key, *row) for _, given in kept for key, rows in given.items() for row in rows]

    @property
    def rounds(self) -> dict[str, list[int]]:
        """For each key, the rounds in the order in which they came."""
        rounds: dict[str, list[int]] = defaultdict(list)
        for key, _, number in self._all():
            rounds[key].append(number)
        return rounds

    @property
    def shards(self) -> set[str]:
        return {shard for _, shard, _ in self._all()}

    @property
    def count(self) -> int:
        return len(self._all())


def on(*servers: str) -> pytest.MarkDecorator:
    """Play a test on these servers, and on the others in `make long`."""
    others = tuple(name for name in ("kinesis_local", "kinesalite") if name not in servers)
    return pytest.mark.parametrize("server", cases(*servers, long=others))


@pytest.fixture
def reshard_stage(make_stage: Callable[..., Stage], request: pytest.FixtureRequest, server: str) -> Stage:
    """A stage on a stream of one of the servers with two shards."""
    running: KinesisLocal | Kinesalite = request.getfixturevalue(server)
    one = make_stage()
    one.client = boto3.client("kinesis", endpoint_url=running.endpoint_url)
    one.endpoint = running.endpoint_url
    one.stream = f"resharded-{uuid.uuid4().hex[:12]}"
    one.client.create_stream(StreamName=one.stream, ShardCount=2)
    one.client.get_waiter("stream_exists").wait(StreamName=one.stream, WaiterConfig={"Delay": 1})
    return one


def every_round(first: int, end: int) -> dict[str, list[int]]:
    return {key: list(range(first, end)) for key in KEYS}


@pytest.mark.long
@on("kinesis_local")
def test_splits_and_merges_under_load(reshard_stage: Stage) -> None:
    """tests/spout/test_scripted_source.py does the same, without Spark."""
    source, seen = Resharded(reshard_stage.client, reshard_stage.stream), Seen()
    stream = reshard_stage.load(describeShardInterval="200ms")
    query = reshard_stage.start_plain(stream, seen)
    for reshard in (source.split, source.merge, lambda: source.split(1), lambda: source.merge(1)):
        with source.load():
            reshard()
        at_least = source.rounds * len(KEYS)
        reshard_stage.until(lambda least=at_least: seen.count >= least, "all records of the reshard")
    query.stop()

    assert seen.rounds == every_round(0, source.rounds)
    # Two at first, then two children, one, two, one.
    assert len(seen.shards) > 4


@on("kinesalite")
def test_closed_shards_are_read_before_their_children_from_the_horizon(reshard_stage: Stage) -> None:
    source, seen = Resharded(reshard_stage.client, reshard_stage.stream), Seen()
    for reshard in (source.split, lambda: source.split(2), lambda: source.merge(1), source.merge):
        source.put(3)
        reshard()
    source.put(3)

    ended(reshard_stage.start_plain(reshard_stage.load(), seen, **AVAILABLE_NOW))

    assert seen.rounds == every_round(0, source.rounds)
    assert seen.shards == {one["ShardId"] for one in source.all()}
    assert len(source.all()) == 8

    # Records that arrive a second from now, as kinesalite has them in a new shard, are none of a batch until now.
    listed = len(KEYS) * source.rounds
    reshard_stage.until(lambda: reshard_stage.read().count() == listed, "a batch that has them all")
    rows = reshard_stage.read().select("partitionKey", "data").collect()
    assert sorted((row.partitionKey, int(row.data)) for row in rows) == sorted(
        (key, number) for key, numbers in every_round(0, source.rounds).items() for number in numbers
    )


@pytest.mark.long
@on("kinesis_local")
def test_a_reshard_while_a_query_from_latest_is_down(reshard_stage: Stage) -> None:
    """tests/spout/test_scripted_source.py does the same, without Spark."""
    source, seen = Resharded(reshard_stage.client, reshard_stage.stream), Seen()
    source.put(2)
    put = int(time.time())
    reshard_stage.until(lambda: int(time.time()) > put, "LATEST is a whole second, that of the put is over")
    stream = reshard_stage.load(startingPosition="LATEST", describeShardInterval="200ms")
    # Asked for an iterator from a time on, kinesalite never answers while it has no record since then.
    with source.load(pause=0.05):
        query = reshard_stage.start_plain(stream, seen)
        reshard_stage.until(reshard_stage.started, "LATEST is resolved")
        before = source.rounds
    last = source.rounds - 1
    reshard_stage.until(lambda: all(last in seen.rounds[key] for key in KEYS), "what came after the start")
    query.stop()

    source.put(3)
    source.split()
    source.put(3)
    source.merge(1)
    source.put(3)
    ended(reshard_stage.start_plain(stream, seen, **AVAILABLE_NOW))

    first = {key: rounds[0] for key, rounds in seen.rounds.items()}
    assert all(2 <= number <= before for number in first.values())
    assert seen.rounds == {key: list(range(first[key], source.rounds)) for key in KEYS}
