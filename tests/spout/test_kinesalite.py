"""Random splits and merges at kinesalite, a server that this project did not write, with stops and starts between.

Behind the last record of a closed shard kinesalite gives an empty answer, "0 behind" and with an iterator; only the one
after it is the end. Who takes the first for the tip never reads the children.
`make test` has reading to the end, and batches, in tests/e2e/test_kinesis_local.py.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from by_hand import Lives, Query, SparkCheckpoint
from servers import Kinesalite
from thorough import cases

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.batch.batch_read import KinesisBatchReader, load_streams
from kinesis_trident.spout.options.source import SourceOptions

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

pytestmark = pytest.mark.chaos

KEYS = 12


@dataclass
class Source:
    """A stream of numbers; a number's partition key is what is left of it modulo `KEYS`."""

    client: KinesisClient
    name: str
    rng: random.Random
    written: int = 0

    def put(self) -> None:
        """Put some numbers into the stream."""
        for number in range(self.written, self.written + self.rng.randint(1, 2 * KEYS)):
            data, key = str(number).encode(), str(number % KEYS)
            self.client.put_record(StreamName=self.name, Data=data, PartitionKey=key)
            self.written += 1

    def reshard(self) -> None:
        """Split one open shard, or merge two neighbours."""
        shards = self._open()
        if len(shards) > 1 and self.rng.random() < 0.5:
            left, right = self.rng.choice(list(pairwise(shards)))
            self.client.merge_shards(
                StreamName=self.name, ShardToMerge=left["ShardId"], AdjacentShardToMerge=right["ShardId"]
            )
        else:
            shard = self.rng.choice(shards)
            first, last = (int(shard["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))
            self.client.split_shard(
                StreamName=self.name,
                ShardToSplit=shard["ShardId"],
                NewStartingHashKey=str((first + last) // 2),
            )
        self.client.get_waiter("stream_exists").wait(StreamName=self.name, WaiterConfig={"Delay": 1})

    def rest(self) -> None:
        """Let two seconds pass: what is closed then ends in a later one than its last record, after an empty answer."""
        end = int(time.time()) + 2
        while (left := end - time.time()) > 0:
            time.sleep(left)

    def change(self) -> None:
        """Put and reshard some times, in any order."""
        for _ in range(self.rng.randint(1, 4)):
            self.rng.choice([self.put, self.reshard, self.reshard, self.rest])()
        self.put()

    def _open(self) -> list[Any]:
        """The open shards, neighbours side by side."""
        listed = self.client.list_shards(StreamName=self.name)["Shards"]
        still = [one for one in listed if "EndingSequenceNumber" not in one["SequenceNumberRange"]]
        return sorted(still, key=lambda one: int(one["HashKeyRange"]["StartingHashKey"]))


@pytest.fixture(params=cases(0, chaos=(1,)))
def source(request: pytest.FixtureRequest, kinesalite: Kinesalite) -> Source:
    """A stream of two shards, and what happens to it drawn from a seed."""
    client = boto3.client("kinesis", endpoint_url=kinesalite.endpoint_url)
    name = f"stream-{uuid.uuid4().hex[:12]}"
    client.create_stream(StreamName=name, ShardCount=2)
    client.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})
    return Source(client, name, random.Random(request.param))


@pytest.fixture
def begin(
    source: Source, kinesalite: Kinesalite, zookeeper: EmbeddedZooKeeper, app: str
) -> Iterator[Callable[[SparkCheckpoint], Query]]:
    """A life of the query with a checkpoint."""
    given = {"streamName": source.name, "endpointUrl": kinesalite.endpoint_url, "minFetchPeriod": "20ms"}
    lives = Lives(zookeeper.hosts, app, **given)
    yield lambda checkpoint: lives.begin(None, checkpoint)
    lives.end()


def check(numbers: Iterable[int], written: int) -> None:
    """Every number came once, and those of a key in order."""
    by_key: dict[int, list[int]] = defaultdict(list)
    for number in numbers:
        by_key[number % KEYS].append(number)
    assert by_key == {key: list(range(key, written, KEYS)) for key in range(min(KEYS, written))}


def in_order(rows: Iterable[tuple[int, str, int, int]]) -> list[int]:
    """Return what the rows say, by batch, and in a batch by shard and sequence number."""
    return [row[0] for row in sorted(rows, key=lambda row: (row[3], row[1]))]


def test_a_query_that_is_stopped_and_started(source: Source, begin: Callable[..., Query]) -> None:
    checkpoint = SparkCheckpoint()
    rows = []
    for _ in range(2):
        source.put()
        query = begin(checkpoint)
        for _ in range(2):
            source.change()
            while len(rows) < source.written:
                rows += query.batch()
        source.change()
        query.end()
    source.change()
    query = begin(checkpoint)
    while len(rows) < source.written:
        rows += query.batch()
    check(in_order(rows), source.written)


@pytest.mark.long
def test_what_is_there_is_read_to_its_end_each_time(source: Source, begin: Callable[..., Query]) -> None:
    checkpoint = SparkCheckpoint()
    rows = []
    for _ in range(2):
        source.change()
        query = begin(checkpoint)
        # Between the first listing of the shards and the draining.
        source.change()
        rows += query.drain()
        query.end()
        check(in_order(rows), source.written)


@pytest.mark.long
def test_a_batch_reads_all_there_is(source: Source, kinesalite: Kinesalite) -> None:
    options = SourceOptions.parse_batch(
        {"streamName": source.name, "endpointUrl": kinesalite.endpoint_url, "minFetchPeriod": "20ms"}
    )
    for _ in range(3):
        source.change()
    # Its records of a shard that was just made arrive up to a second from now.
    loaded = load_streams(options)
    reader = KinesisBatchReader(options, replace(loaded, time=loaded.time + 1_000))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    check((int(data) for batch in batches for data in batch.column("data").to_pylist()), source.written)
