"""A shard that refuses records gets what it can take, in their order; the records of the others do not wait for it."""

from __future__ import annotations

import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from driven import backlog_of, drive, stream_of
from hypothesis import given, settings, strategies as st
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from kinesis_trident.spout.kinesis import AccessDeniedError, RequestTooLargeError, Unavailable
from kinesis_trident.spout.kinesis.put_entries import REQUEST_BYTES, Entries, RequestBound
from kinesis_trident.spout.kinesis.put_records import Tries, put_request
from kinesis_trident.spout.options.sink import WriteOptions
from kinesis_trident.spout.patience import Patience
from kinesis_trident.spout.sink.busy_shards import BusyShards
from kinesis_trident.spout.sink.pool import WritePool
from kinesis_trident.spout.sink.shard_map import KnownShards
from kinesis_trident.spout.sink.targets import StreamTarget
from kinesis_trident.spout.sink.writer import KinesisWriter
from kinesis_trident.spout.testing import FakeTime, Quotas, ScriptedKinesis

SHARDS = 4
STEP = 2**128 // SHARDS
THROTTLED = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slow"}

Row = tuple[int, int, int]
"""A number, the index of its shard, and its key there."""


def entries(rows: Sequence[Row], size: int = 10) -> Entries:
    return Entries.of(
        {
            "Data": b"%d" % number + bytes(size),
            "PartitionKey": f"{shard}-{key}",
            "ExplicitHashKey": str(shard * STEP),
        }
        for number, shard, key in rows
    )


def open_shards() -> list[tuple[int, str]]:
    return [((at + 1) * STEP - 1, f"s{at}") for at in range(SHARDS)]


def refuse_to_list() -> list[tuple[int, str]]:
    raise AccessDeniedError("no kinesis:ListShards")


class Shards:
    """A stream in simulated time whose shards take so many records a second, from each request the first ones."""

    def __init__(self, time: FakeTime, limits: Sequence[int], seconds: float = 0.01) -> None:
        self._time = time
        self._limits = limits
        self._seconds = seconds
        self._taken: dict[int, deque[float]] = defaultdict(deque)
        self.lock = threading.Lock()
        self.arrived: dict[str, list[int]] = defaultdict(list)
        self.done = [0.0] * SHARDS
        self.sent = self.refused = 0

    def __call__(self, request: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        with self.lock:
            self._time.sleep(self._seconds)
            now, results = self._time(), []
            for entry in request:
                shard = int(entry["ExplicitHashKey"]) // STEP
                taken = self._taken[shard]
                while taken and taken[0] <= now - 1:
                    taken.popleft()
                self.sent += 1
                if len(taken) >= self._limits[shard]:
                    self.refused += 1
                    results.append(THROTTLED)
                    continue
                taken.append(now)
                self.done[shard] = now
                self.arrived[entry["PartitionKey"]].append(int(entry["Data"].rstrip(b"\0")))
                results.append({"SequenceNumber": "1", "ShardId": f"s{shard}"})
            return results


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 2, 3]), st.integers(0, 2)), max_size=150),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    limits=st.lists(st.sampled_from([1, 3, 20, 1000]), min_size=SHARDS, max_size=SHARDS),
    troubles=st.lists(
        st.sampled_from([None, None, Unavailable("503"), RequestTooLargeError("413")]), max_size=12
    ),
    rng=st.randoms(use_true_random=False),
)
def test_each_record_arrives_once_and_those_of_a_key_in_their_order(
    rows: list[tuple[int, int]],
    cuts: list[int],
    limits: list[int],
    troubles: list[Exception | None],
    rng: random.Random,
) -> None:
    """Requests come while others are sent, answers are lost before they arrive, and a server takes only small ones."""
    time = FakeTime()
    shards = Shards(time, limits)
    numbered = [(number, *row) for number, row in enumerate(rows)]
    coming = deque(entries(numbered[at : at + cuts[0]]) for at in range(0, len(numbered), cuts[0]))
    backlog = backlog_of(stream_of(open_shards), time, rng.uniform, bound=RequestBound(rng.choice([7, 500])))

    def send(request: Entries) -> Sequence[dict[str, Any]]:
        trouble = troubles.pop() if troubles else None
        if coming and rng.random() < 0.5:
            backlog.add(coming.popleft())
        if isinstance(trouble, Unavailable) or (trouble is not None and len(request) > 1):
            raise trouble
        return shards(list(request))

    while coming:
        backlog.add(coming.popleft())
        drive(send, backlog, time, flush=rng.random() < 0.5 or not coming)
    drive(send, backlog, time)
    arrived = sorted(number for some in shards.arrived.values() for number in some)
    assert arrived == list(range(len(rows)))
    assert all(some == sorted(some) for some in shards.arrived.values())
    assert backlog.waiting == backlog.size == 0


def parts(rows: Sequence[Row], size: int = 10) -> Iterator[Entries]:
    for at in range(0, len(rows), 250):
        yield entries(rows[at : at + 250], size)


def one_hot_shard(hot: int, others: int) -> list[Row]:
    rows = [(0, 0, n % 10) for n in range(hot)]
    rows += [(0, shard, n % 10) for shard in range(1, SHARDS) for n in range(others)]
    random.Random(5).shuffle(rows)
    return [(number, shard, key) for number, (_, shard, key) in enumerate(rows)]


def write(
    time: FakeTime,
    shards: Shards,
    rows: Sequence[Row],
    listing: Callable[[], list[tuple[int, str]]],
    requests: int = 1,
) -> None:
    def wait(_: object, seconds: float) -> None:
        with shards.lock:
            time.sleep(seconds)

    with WritePool(requests, Patience(600, time), wait=wait, clock=time) as writing:
        writing.add(
            StreamTarget(shards, stream_of(listing), busy=BusyShards(random.Random(3).uniform)), parts(rows)
        )  # type: ignore[arg-type]
        sent = writing.finish()
    assert sent.records == len(rows)
    assert sorted(number for some in shards.arrived.values() for number in some) == list(range(len(rows)))
    assert sent.refusals == shards.refused


def test_a_busy_shard_does_not_hold_up_the_others_and_loses_no_time_itself() -> None:
    """The next request begins as soon as nothing but records of busy shards is left of the last one."""
    rows = one_hot_shard(8_000, 300)
    requests = [entries(rows[at : at + 500]) for at in range(0, len(rows), 500)]
    together, apart, time = (FakeTime() for _ in range(3))
    before, jitter = Shards(together, [1000] * SHARDS), random.Random(3).uniform
    tries = Tries(Patience(600, together), jitter=jitter)
    for request in requests:
        put_request(before, request, sleep=together.sleep, tries=tries)
    after, coming = Shards(apart, [1000] * SHARDS), deque(requests)
    backlog = backlog_of(stream_of(open_shards), apart, jitter)

    def feed() -> None:
        if coming and not backlog.is_full:
            backlog.add(coming.popleft())

    def send(request: Entries) -> Sequence[dict[str, Any]]:
        feed()
        return after(list(request))

    def sleep(seconds: float) -> None:
        feed()
        apart.sleep(seconds)

    while coming:
        feed()
        drive(send, backlog, apart, sleep=sleep)
    assert sorted(n for some in after.arrived.values() for n in some) == list(range(len(rows)))
    # 8,000 records of one shard take 7 seconds.
    assert max(before.done[1:]) - time() > 6
    assert max(after.done[1:]) - time() < 2.5
    # The waits of the former have a jitter.
    assert after.done[0] - time() < 1.05 * (before.done[0] - time())
    assert after.refused < before.refused / 3


def test_a_shard_that_others_write_to_gets_ever_less_and_then_more_again() -> None:
    time = FakeTime()
    busy = BusyShards(lambda _, b: b)
    rows = entries([(n, 0, 0) for n in range(5_000)])
    assert busy.allow("s0", rows, time()) == 5_000
    busy.settle("s0", 100, 400, time())
    assert busy.find_busy() == {"s0"}
    assert busy.allow("s0", rows, time()) == 0
    waits, counts = [], []
    for _ in range(6):
        waits.append(busy.free(["s0"]) - time())
        time.sleep(waits[-1])
        counts.append(busy.allow("s0", rows, time()))
        busy.settle("s0", 0, counts[-1], time())
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2])
    assert max(counts) <= 100
    time.sleep(5)
    seconds = 0
    while busy.find_busy():
        count = busy.allow("s0", rows, time())
        assert 1 <= count <= 1000 * 4
        busy.settle("s0", count, 0, time())
        time.sleep(1)
        seconds += 1
    assert 5 < seconds < 60
    assert busy.allow("s0", rows, time()) == 5_000


def test_without_the_permission_to_list_the_shards_they_wait_for_each_other() -> None:
    time = FakeTime()
    shards = Shards(time, [1000] * SHARDS)
    write(time, shards, one_hot_shard(3_000, 100), refuse_to_list, requests=2)


def test_what_waits_for_a_busy_shard_is_bounded() -> None:
    """A request has room for nine rows; the busy shard takes none for a minute."""
    time = FakeTime()
    most, rows = 0, 200

    class Closed(Shards):
        def __call__(self, request: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
            nonlocal most
            most = max(most, taken - sum(map(len, self.arrived.values())))
            return super().__call__(request)

    shards = Closed(time, [0, 10**6, 10**6, 10**6])
    taken = 0

    def counted() -> Iterator[Entries]:
        nonlocal taken
        for number in range(rows):
            taken += 1
            yield entries([(number, number % 2, 0)], 2**20)

    def wait(_: object, seconds: float) -> None:
        with shards.lock:
            time.sleep(seconds)
            if time() > 1_700_000_000 + 60:
                shards._limits = [10**6] * SHARDS

    with WritePool(1, Patience(10**6, time), wait=wait, clock=time) as writing:
        writing.add(
            StreamTarget(shards, stream_of(open_shards), busy=BusyShards(random.Random(3).uniform)), counted()
        )  # type: ignore[arg-type]
        writing.finish()
    assert sum(map(len, shards.arrived.values())) == rows
    # What waits, what is sent and what is collected, each up to a request.
    assert 10 < most <= 3 * REQUEST_BYTES // 2**20 + 2


def test_the_sink_lists_the_shards_when_one_of_them_refuses_a_record_and_not_before() -> None:
    with ScriptedKinesis(quotas=Quotas.none()) as endpoint:
        endpoint.create_stream("orders", 2)
        keys = {"region": "us-east-1", "awsAccessKeyId": "a", "awsSecretAccessKey": "b"}
        options = WriteOptions.parse({"streamName": "orders", "endpointUrl": endpoint.endpoint_url} | keys)
        fields = [("partitionKey", StringType()), ("data", BinaryType()), ("explicitHashKey", StringType())]
        schema = StructType([StructField(*field) for field in fields])
        # Three quarters are of the first shard.
        rows = [(f"{n % 20}", b"%d" % n, str(2**127 * (n % 4 == 0))) for n in range(160)]
        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        batch = pa.record_batch(columns, names=schema.names)
        for quotas, listings in ((Quotas.none(), 0), (replace(Quotas.none(), write_records=40), 1)):
            endpoint.limit(quotas)
            held = endpoint._service.streams["orders"].shards.values()
            before = [len(shard.records) for shard in held]
            assert KinesisWriter(options, schema, overwrite=False).write(iter([batch])).sent.records == 160
            assert endpoint.calls["ListShards", None] == listings
        busy, other = [shard.records[count:] for shard, count in zip(held, before, strict=True)]
        assert (len(busy), len(other)) == (120, 40)
        # The busy shard takes its last third two seconds after its first one.
        assert max(one.arrival for one in other) < sorted(one.arrival for one in busy)[80]


def test_a_map_that_is_out_of_date_is_read_again() -> None:
    time, listed = FakeTime(), 0

    def old() -> list[tuple[int, str]]:
        nonlocal listed
        listed += 1
        return [(2**128 - 1, "parent")] if listed == 1 else open_shards()

    stream = stream_of(old, time)
    stream.shards()
    time.sleep(60)
    shards, jitter = Shards(time, [20] * SHARDS), random.Random(3).uniform
    backlog = backlog_of(stream, time, jitter)
    backlog.add(entries([(n, n % SHARDS, 0) for n in range(300)]))
    began = time()
    drive(lambda some: shards(list(some)), backlog, time)
    assert listed == 2
    assert all(some == sorted(some) for some in shards.arrived.values())
    # 75 records of each take 4 seconds; one after the other they would take 15.
    assert time() - began < 6


def test_records_without_a_key_have_a_place_of_their_own() -> None:
    entries = Entries.of(
        [{"Data": b"1"}, {"Data": b"2", "PartitionKey": "a", "ExplicitHashKey": str(3 * STEP)}]
    )
    assert KnownShards.of(open_shards()).homes(entries) == ["", "s3"]
