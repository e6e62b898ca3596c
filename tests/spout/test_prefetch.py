"""`prefetch`: the next batch's records are read beside the running batch, and are the same as without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

import pytest
from by_hand import Lives, Row, numbers
from hypothesis import given, settings, strategies as st
from model.zookeeper import MemoryZooKeeper
from stepped import SlowKinesis, SteppedQuery
from thorough import examples

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.kinesis import (
    AccessDeniedError,
    IteratorExpiredError,
    KinesisError,
    Page,
    ThrottledError,
    Unavailable,
)
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.tip.read_ahead import MOST_BYTES, MOST_BYTES_OF_A_SHARD
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis, ScriptedKinesis, aggregate

A = "shardId-000000000000"
BOTH = pytest.mark.parametrize("prefetch", ["true", "false"])


@pytest.fixture
def kinesis(time: FakeTime) -> MemoryKinesis:
    return MemoryKinesis(clock=time.milliseconds)


def put(kinesis: MemoryKinesis, *numbers: int, shard: str = A) -> None:
    for number in numbers:
        kinesis.put(shard, str(number).encode())


@BOTH
def test_a_slow_endpoint_is_read_while_the_batch_before_runs(
    server: ScriptedKinesis, time: FakeTime, prefetch: str
) -> None:
    """Each answer takes a second; the endpoint has AWS's limits, and counts its calls."""
    server.put("orders", A, b"0")
    options = SourceOptions(
        stream_name="orders",
        endpoint_url=server.endpoint_url,
        region="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    query = SteppedQuery(SlowKinesis(BotoKinesis(options), time, 1.0), time, prefetch=prefetch)
    assert numbers(query.batch()) == [0]
    for first in (1, 4, 7):
        server.put("orders", A, str(first).encode())
        query.planned()
        rows = query.rows()
        for number in (first + 1, first + 2):
            server.put("orders", A, str(number).encode())
        before = server.calls["GetRecords", A]
        query.beside(2.5)
        beside = server.calls["GetRecords", A] - before
        query.publish()
        query.commit()
        ended, now = server.calls["GetRecords", A], time.now
        rows += query.batch()
        assert numbers(rows) == [first, first + 1, first + 2]
        after = server.calls["GetRecords", A] - ended
        if prefetch == "true":
            assert (beside > 0, after, time.now - now) == (True, 0, 0)
        else:
            assert (beside, after > 0) == (0, True)


def test_what_was_read_ahead_is_read_once_and_within_the_limits(time: FakeTime) -> None:
    """With AWS's limits nothing is refused, and no answer is thrown away."""
    kinesis = MemoryKinesis(clock=time.milliseconds)
    put(kinesis, *range(5))
    query = SteppedQuery(kinesis, time, prefetch="true")
    query.batch()
    for batch in range(1, 6):
        put(kinesis, *range(10 * batch, 10 * batch + 10))
        query.planned()
        query.rows()
        calls = kinesis.calls["get_records", A]
        query.beside(3.0)
        # Four calls in each of three seconds, and one that begins the fourth.
        assert kinesis.calls["get_records", A] - calls <= 13
        query.publish()
        query.commit()


def test_calls_of_tasks_and_those_beside_them_share_a_second(kinesis: MemoryKinesis, time: FakeTime) -> None:
    at: list[float] = []
    read = kinesis.get_records

    def noted(iterator: str, limit: int) -> Page:
        at.append(time.now)
        return read(iterator, limit)

    kinesis.get_records = noted  # type: ignore[method-assign]
    put(kinesis, *range(200))
    # A turn that leaves something unread, so that nothing beside it waits for more to come.
    query = SteppedQuery(kinesis, time, prefetch="true", maxRecordsPerFetch="3", maxFetchRecordsPerShard="9")
    for _ in range(5):
        query.planned()
        query.rows()
        query.beside(2.0)
        query.publish()
        query.commit()
    assert len(at) > 15
    for first in range(len(at) - 5):
        assert at[first + 5] - at[first] >= 0.99


@given(
    sizes=st.lists(st.sampled_from([1, 200, 3_000, 50_000, 400_000]), min_size=1, max_size=8),
    shards=st.integers(1, 6),
)
@settings(max_examples=examples(20), deadline=None)
def test_memory_stays_within_the_bound(sizes: list[int], shards: int) -> None:
    time = FakeTime()
    kinesis = MemoryKinesis(shards=shards, clock=time.milliseconds)
    names = kinesis.open_shards
    for shard in names:
        kinesis.put(shard, b"0")
    query = SteppedQuery(kinesis, time, prefetch="true", minFetchPeriod="0ms", maxFetchRate="1000")
    query.planned()
    query.rows()
    for shard in names:
        for number in range(60):
            kinesis.put(shard, b"%d" % number + b" " * sizes[number % len(sizes)])
    query.beside(5.0)
    query.publish()
    query.commit()
    query.planned()
    parts = query.run.partitions(query.committed, query._require(in_hand=True))
    held = [
        turn.cursor.page.records.nbytes
        for part in parts
        for turn in part.turns
        if turn.cursor is not None and turn.cursor.page is not None
    ]
    assert all(size <= MOST_BYTES_OF_A_SHARD for size in held)
    assert sum(held) <= MOST_BYTES


def running(kinesis: MemoryKinesis, time: FakeTime, *, seconds: float = 0.0, **options: str) -> SteppedQuery:
    """A query with prefetch whose second batch was read; 3 and 4 came since, and were read beside it.

    A read takes so many `seconds`.
    """
    put(kinesis, 0, 1)
    given = {"prefetch": "true", "minFetchPeriod": "0ms", **options}
    query = SteppedQuery(SlowKinesis(kinesis, time, seconds), time, **given)
    query.batch()
    put(kinesis, 2)
    query.planned()
    query.rows()
    put(kinesis, 3, 4)
    query.beside(0.5)
    return query


def go_on(query: SteppedQuery) -> list[Row]:
    """End the batch in hand, and run another."""
    query.publish()
    query.commit()
    return query.batch()


def test_the_next_batch_is_given_what_was_read_ahead(kinesis: MemoryKinesis, time: FakeTime) -> None:
    query = running(kinesis, time, seconds=1.0)
    calls = kinesis.calls["get_records", A]
    assert numbers(go_on(query)) == [3, 4]
    assert query.carried == 2
    assert kinesis.calls["get_records", A] == calls
    pin = query.store.batches.get_pin(query.committed.txid, A)
    assert pin is not None
    assert (pin.reads, pin.seen is not None, pin.behind_ms) == (0, True, 0)


def test_what_arrived_after_a_tip_that_is_long_past_comes_too(kinesis: MemoryKinesis, time: FakeTime) -> None:
    query = running(kinesis, time, idlePollInterval="1h")
    time.sleep(5)
    put(kinesis, 5)
    assert numbers(go_on(query)) == [3, 4, 5]


def test_a_pinned_batch_is_replayed_without_it(kinesis: MemoryKinesis, time: FakeTime) -> None:
    zookeeper = MemoryZooKeeper(time.milliseconds)
    put(kinesis, 0)
    options = {"prefetch": "true", "minFetchPeriod": "0ms"}
    query = SteppedQuery(kinesis, time, zookeeper, **options)
    query.batch()
    put(kinesis, 1, 2)
    query.planned()
    rows = query.rows()
    put(kinesis, 3)
    query.beside(1.0)
    # A newer run takes over; what the old one reads from here on it cannot use.
    again = SteppedQuery(kinesis, time, zookeeper, query.checkpoint, **options)
    assert again.rows() == rows
    assert again.carried == 0
    calls = kinesis.calls["get_records", A]
    query.beside(10.0)
    assert kinesis.calls["get_records", A] == calls
    assert numbers(go_on(again)) == [3]


@pytest.mark.parametrize(
    "error",
    [ThrottledError("slow"), Unavailable("503"), IteratorExpiredError("old"), AccessDeniedError("no")],
)
def test_a_failure_beside_a_batch_is_no_error(
    kinesis: MemoryKinesis, time: FakeTime, error: KinesisError
) -> None:
    put(kinesis, 0)
    query = SteppedQuery(kinesis, time, prefetch="true", minFetchPeriod="0ms")
    query.planned()
    query.rows()
    put(kinesis, 1, 2)
    kinesis.fail(A, error)
    query.beside(2.0)
    kinesis.clear()
    assert numbers(go_on(query)) == [1, 2]


def test_it_ends_at_the_end_of_a_shard_and_its_children_are_read_after_it(
    kinesis: MemoryKinesis, time: FakeTime
) -> None:
    query = running(kinesis, time)
    for number, child in enumerate(kinesis.split(A), 5):
        put(kinesis, number, shard=child)
    query.beside(2.0)
    rows = go_on(query)
    rows += query.drain()
    assert numbers(rows) == [3, 4, 5, 6]
    assert max(row[3] for row in rows if row[0] < 5) < min(row[3] for row in rows if row[0] >= 5)


def test_only_what_a_turn_may_hold_is_asked_for(kinesis: MemoryKinesis, time: FakeTime) -> None:
    query = running(kinesis, time, maxFetchRecordsPerShard="2", maxRecordsPerTrigger="2")
    put(kinesis, *range(5, 30))
    query.beside(3.0)
    assert numbers(go_on(query)) == [3, 4]
    assert query.carried <= 2


def test_aggregates_are_read_ahead_too(kinesis: MemoryKinesis, time: FakeTime) -> None:
    query = running(kinesis, time, maxFetchRecordsPerShard="3", maxRecordsPerFetch="1")
    rows: list[Row] = []
    for first in range(10, 40, 10):
        query.publish()
        query.commit()
        query.planned()
        rows += query.rows()
        kinesis.put(A, aggregate([(b"%d" % n, "key") for n in range(first, first + 4)]))
        put(kinesis, first + 4)
        query.beside(1.0)
    rows += go_on(query) + query.drain()
    assert numbers(rows) == [3, 4, *(first + n for first in (10, 20, 30) for n in range(5))]


def test_an_old_answer_is_not_used(kinesis: MemoryKinesis, time: FakeTime) -> None:
    query = running(kinesis, time)
    time.sleep(120)
    assert numbers(go_on(query)) == [3, 4]


def test_a_query_that_nobody_asks_any_more_stops_reading(kinesis: MemoryKinesis, time: FakeTime) -> None:
    query = running(kinesis, time)
    query.beside(70.0)
    calls = kinesis.calls["get_records", A]
    query.beside(3600.0)
    assert kinesis.calls["get_records", A] == calls


def test_available_now_ends_with_what_was_there_at_its_start(kinesis: MemoryKinesis, time: FakeTime) -> None:
    put(kinesis, *range(20))
    query = SteppedQuery(
        kinesis,
        time,
        prefetch="true",
        minFetchPeriod="0ms",
        maxFetchRecordsPerShard="4",
        maxRecordsPerFetch="2",
    )
    late: list[int] = []

    def write() -> None:
        # As fast as they are read.
        late.append(100 + len(late))
        put(kinesis, late[-1])
        query.beside(0.3)

    query.during = write
    rows = query.drain()
    assert set(range(20)) <= set(numbers(rows))
    assert len(rows) == len({row[0] for row in rows}) <= 20 + len(late)


def test_with_a_tip_from_before_a_drain_it_does_not_end_early(kinesis: MemoryKinesis, time: FakeTime) -> None:
    query = running(kinesis, time)
    query.beside(1.0)
    put(kinesis, 5)
    query.publish()
    query.commit()
    assert numbers(query.drain()) == [3, 4, 5]


FAULTS: dict[str, Callable[[], KinesisError]] = {
    "throttled": lambda: ThrottledError("slow"),
    "away": lambda: Unavailable("503"),
    "expired": lambda: IteratorExpiredError("old"),
}


@dataclass(frozen=True)
class Step:
    """What happens in one batch: records to shards, a reshard, faults, and for how long the batch runs."""

    records: tuple[int, ...]
    reshard: str
    faults: tuple[str, ...]
    seconds: float


STEPS = st.builds(
    Step,
    st.lists(st.integers(0, 5), max_size=6).map(tuple),
    st.sampled_from(["", "", "", "split", "merge"]),
    st.lists(st.sampled_from(["", *FAULTS, "gap", "iterators"]), max_size=2).map(tuple),
    st.sampled_from([0.0, 0.1, 0.7, 3.0]),
)
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "maxRecordsPerTrigger": st.sampled_from(["1", "3", "100"]),
        "maxFetchRecordsPerShard": st.sampled_from(["1", "2", "100"]),
        "maxRecordsPerFetch": st.sampled_from(["1", "2"]),
        "maxBytesPerTrigger": st.sampled_from(["1", "3"]),
        "shardOrdering": st.just("none"),
    },
)


def played(steps: list[Step], limits: dict[str, str], prefetch: str) -> list[tuple[int, str, int]]:
    """All rows of a query over a stream with which this happens: number, messageId, attempt."""
    time = FakeTime()
    kinesis = MemoryKinesis(shards=2, clock=time.milliseconds)
    query = SteppedQuery(kinesis, time, prefetch=prefetch, minFetchPeriod="0ms", **limits)
    script, written = iter(steps), 0
    rows: list[Row] = []

    def happen() -> None:
        nonlocal written
        step = next(script, None)
        if step is None:
            return
        for choice in step.records:
            put(kinesis, written, shard=kinesis.open_shards[choice % len(kinesis.open_shards)])
            written += 1
        shards = kinesis.open_shards
        if step.reshard == "split":
            kinesis.split(shards[0])
        elif step.reshard and len(shards) > 1:
            kinesis.merge(shards[0], shards[1])
        for fault in step.faults:
            if fault in FAULTS:
                kinesis.fail(shards[-1], FAULTS[fault]())
            elif fault == "gap":
                kinesis.gap(shards[-1], 2)
            elif fault == "iterators":
                kinesis.expire_iterators(shards[-1])
        query.beside(step.seconds)

    query.during = happen
    happen()
    for _ in range(len(steps)):
        if query.plan() is not None:
            rows += query.batch(failing=[row for row in range(written + 40) if row % 7 == 3])
    for _ in steps:
        happen()
    kinesis.clear()
    rows += query.drain()
    return sorted(row[:3] for row in rows)


@given(steps=st.lists(STEPS, min_size=1, max_size=8), limits=LIMITS)
@settings(max_examples=examples(40), deadline=None)
def test_the_records_are_those_without_it(steps: list[Step], limits: dict[str, str]) -> None:
    with_it, without = (played(steps, limits, prefetch) for prefetch in ("true", "false"))
    # Which records fail depends on the batch they come in: how often they do is no promise here.
    assert {row[:2] for row in with_it} == {row[:2] for row in without}
    for rows in (with_it, without):
        assert len(set(rows)) == len(rows)


class Gate(MemoryKinesis):
    """Answers reads only while it is open.

    Attributes:
        asked: somebody has asked since it was cleared.
        held: somebody waits for it to open.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open = Event()
        self.open.set()
        self.asked = Event()
        self.held = Event()

    def get_records(self, iterator: str, limit: int) -> Page:
        """See `Kinesis.get_records`."""
        self.asked.set()
        if not self.open.is_set():
            self.held.set()
            self.open.wait()
        return super().get_records(iterator, limit)


def test_a_thread_reads_beside_a_batch(zookeeper: EmbeddedZooKeeper, app: str) -> None:
    """With a real ZooKeeper and a thread of the planning process; waits are for conditions."""
    kinesis, lives = Gate(), Lives(zookeeper.hosts, app, prefetch="true")
    try:
        query = lives.begin(kinesis)
        put(kinesis, 0)
        query.planned()
        query.rows()
        put(kinesis, 1, 2)
        kinesis.asked.clear()
        # Nobody but the thread beside the batch asks here.
        assert kinesis.asked.wait(60)
        query.publish()
        query.commit()
        assert numbers(query.batch()) == [1, 2]
        # An answer that does not come keeps no run from its end.
        put(kinesis, 3)
        query.planned()
        query.rows()
        kinesis.open.clear()
        assert kinesis.held.wait(60)
        query.end()
    finally:
        kinesis.open.set()
        lives.end()
