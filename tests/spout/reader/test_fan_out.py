"""A shard read by subscriptions: the source's client and fetcher against the scripted endpoint."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed
from thorough import examples

from kinesis_trident.checkpoint.model.nodes import Subscribing
from kinesis_trident.spout.kinesis import (
    AccessDeniedError,
    ConsumerMissingError,
    InUseError,
    KinesisError,
    ThrottledError,
    Unavailable,
)
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.kinesis.rate_limit import Budget, ShardLimiter
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.positions import TRIM_HORIZON, After, At, AtTimestamp, Position, ShardEnd
from kinesis_trident.spout.reader.answers import Answered, Closing, Denied, End
from kinesis_trident.spout.reader.fan_out import FanOut, OpenSubscriptions, SubscriptionPager
from kinesis_trident.spout.reader.fetch import Bounds, ShardFetcher, Turn
from kinesis_trident.spout.testing import Cut, FakeTime, Quotas, Refuse, ScriptedKinesis, Slow, aggregate
from kinesis_trident.spout.testing.fan_out import HeldSubscription, event_message
from kinesis_trident.spout.testing.server import LoopbackServer, Reply, Request
from kinesis_trident.tracker.records import RecordPosition, Run

SHARD = "shardId-000000000000"
EVENT = "SubscribeToShardEvent"
PLENTY = Bounds(records=10**9, bytes=10**12, seconds=60)


@dataclass
class Rig:
    """A stream of one shard with a consumer, and a clock that stands still but for sleeping."""

    server: ScriptedKinesis
    client: BotoKinesis
    consumer: str
    time: FakeTime
    options: SourceOptions
    kept: OpenSubscriptions = field(default_factory=OpenSubscriptions)

    def put(self, *payloads: bytes) -> list[RecordPosition]:
        return [RecordPosition(self.server.put("orders", SHARD, data)) for data in payloads]

    def pager(self, position: Position = TRIM_HORIZON, *, deaggregate: bool = True) -> SubscriptionPager:
        return SubscriptionPager(
            FanOut(self.client, self.consumer, rng=random.Random(3)),
            Closing(self.client, "orders", SHARD),
            position,
            deaggregate=deaggregate,
            clock=self.time,
            sleep=self.time.sleep,
        )

    def fetcher(
        self, *, pushed: bool = True, kept: OpenSubscriptions | None = None, is_held: bool = False
    ) -> ShardFetcher:
        """A fetcher in a process of its own, or in the one that has kept subscriptions open."""
        limiter = ShardLimiter(Budget.of(0, 1e15), clock=self.time, sleep=self.time.sleep)
        kept = kept or OpenSubscriptions()
        fan_out = FanOut(self.client, self.consumer, kept, is_held=is_held) if pushed else None
        return ShardFetcher(
            self.client,
            "orders",
            SHARD,
            self.options,
            fan_out=fan_out,
            limiter=limiter,
            wall=self.time.milliseconds,
        )

    def turn(self, position: Position = TRIM_HORIZON, bounds: Bounds = PLENTY) -> Turn:
        return self.fetcher().fetch_new(position, bounds)

    def next_turn(self, position: Position, bounds: Bounds = PLENTY) -> Turn:
        """A turn in the process of the turns before."""
        return self.fetcher(kept=self.kept).fetch_new(position, bounds)

    def until_waiting(self, events: int) -> None:
        """Wait until so many events have arrived for the next turn."""
        ((_, pager),) = self.kept._pagers.values()
        Retrying(
            stop=stop_after_delay(60), wait=wait_fixed(0.01), retry=retry_if_result(lambda n: n < events)
        )(lambda: pager.waiting)

    def calls(self, name: str) -> int:
        return self.server.calls[name, SHARD]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[tuple[ScriptedKinesis, BotoKinesis, FakeTime, SourceOptions]]:
    time = FakeTime()
    with ScriptedKinesis(clock=time.milliseconds) as server:
        given = {
            "streamName": "orders",
            "applicationName": "app",
            "zookeeper.hosts": "zk:2181",
            "clientNumRetries": "0",
            "endpointUrl": server.endpoint_url,
            "consumerMode": "efo",
        }
        options = SourceOptions.parse(given)
        yield server, BotoKinesis(options), time, options


@pytest.fixture
def rig(endpoint: tuple[ScriptedKinesis, BotoKinesis, FakeTime, SourceOptions]) -> Rig:
    """A new stream of the same name each time, on one endpoint."""
    server, client, time, options = endpoint
    return fresh(server, client, time, options)


def fresh(server: ScriptedKinesis, client: BotoKinesis, time: FakeTime, options: SourceOptions) -> Rig:
    try:
        server.recreate("orders")
    except KinesisError:
        server.create_stream("orders")
    server.clear()
    server.calls.clear()
    server.limit(Quotas())
    time.sleeps.clear()
    arn = client.describe("orders").arn
    client.register_consumer(arn, "app")
    return Rig(server, client, client.describe_consumer(arn, "app").arn, time, options)


def payloads(batches: list[pa.RecordBatch]) -> list[bytes]:
    return [data for batch in batches for data in batch.column("data").to_pylist()]


def event_of(pager: SubscriptionPager) -> Answered:
    """The next event, or the error that says why there is none."""
    answer = pager.next(60)
    if isinstance(answer, Denied):
        assert answer.error is not None
        raise answer.error
    return answer


def given_by(pager: SubscriptionPager, events: int) -> list[bytes]:
    """The payloads of so many events."""
    return payloads([event_of(pager).records for _ in range(events)])


def test_a_turn_holds_what_polling_would_have_given(rig: Rig) -> None:
    rig.put(b"a", b"", b"ccc")
    rig.time.sleep(7)
    rig.put(aggregate([(b"x", "k"), (b"y", "k")]), b"e")
    pushed, polled = rig.turn(), rig.fetcher(pushed=False).fetch_new(TRIM_HORIZON, PLENTY)
    assert payloads(pushed.batches) == [b"a", b"", b"ccc", b"x", b"y", b"e"]
    table, expected = pa.Table.from_batches(pushed.batches), pa.Table.from_batches(polled.batches)
    assert table.equals(expected)
    for name in ("count", "size", "last", "end", "closed", "behind_ms", "arrival", "seen"):
        assert getattr(pushed, name) == getattr(polled, name), name


@pytest.mark.parametrize("start", ["horizon", "after", "at", "time", "inside"])
def test_every_position_begins_a_subscription(rig: Rig, start: str) -> None:
    (first,) = rig.put(b"a")
    rig.time.sleep(2)
    (second,) = rig.put(aggregate([(b"x", "k"), (b"y", "k")]))
    rig.put(b"z")
    positions: dict[str, tuple[Position, list[bytes]]] = {
        "horizon": (TRIM_HORIZON, [b"a", b"x", b"y", b"z"]),
        "after": (After(first), [b"x", b"y", b"z"]),
        "at": (At(second), [b"x", b"y", b"z"]),
        "time": (AtTimestamp(rig.time.milliseconds()), [b"x", b"y", b"z"]),
        "inside": (After(RecordPosition(second.sequence, 0)), [b"y", b"z"]),
    }
    position, expected = positions[start]
    assert payloads(rig.turn(position).batches) == expected


def test_a_turn_is_one_subscription_and_no_polling(rig: Rig) -> None:
    rig.put(b"a")
    assert rig.turn().seen is not None
    assert (rig.calls("SubscribeToShard"), rig.calls("GetRecords")) == (1, 0)


def test_the_bounds_of_a_turn_hold_and_the_rest_comes_next(rig: Rig) -> None:
    rig.put(*[b"%d" % n for n in range(10)])
    first = rig.turn(bounds=Bounds(7, 10**9, 60))
    assert payloads(first.batches) == [b"%d" % n for n in range(7)]
    assert first.seen is None
    second = rig.turn(first.end)
    assert payloads(second.batches) == [b"7", b"8", b"9"]


def test_an_idle_position_advances_with_time(rig: Rig) -> None:
    began = rig.time.milliseconds()
    rig.time.sleep(3600)
    turn = rig.turn(AtTimestamp(began))
    # When the subscription began, in whole seconds as the service tells the time.
    seen = rig.time.milliseconds() // 1000 * 1000
    assert (turn.count, turn.seen) == (0, seen)
    assert turn.end == AtTimestamp(seen - 300_000)


def test_a_subscription_is_renewed_where_it_ended(rig: Rig) -> None:
    rig.put(b"a")
    pager = rig.pager()
    assert given_by(pager, 1) == [b"a"]
    rig.put(b"b")
    assert given_by(pager, 1) == [b"b"]
    rig.server.advance(300)
    rig.put(b"c")
    assert given_by(pager, 1) == [b"c"]
    assert rig.calls("SubscribeToShard") == 2
    pager.close()


def test_a_subscription_without_records_keeps_its_position_and_is_renewed_behind_it(rig: Rig) -> None:
    rig.server.gap("orders", SHARD, 1)
    pager = rig.pager()
    assert given_by(pager, 1) == []
    answer = event_of(pager)
    assert not isinstance(answer, End)
    assert (answer.records.num_rows, answer.page.next_iterator is None) == (0, False)
    assert pager.position == TRIM_HORIZON
    rig.server.advance(300)
    rig.put(b"a")
    assert given_by(pager, 1) == [b"a"]
    # The renewed one was after the continuation: the walk through empty answers did not start over.
    assert rig.calls(EVENT) == 3
    pager.close()


def test_a_turn_is_polled_while_another_process_has_the_subscription(rig: Rig) -> None:
    (first,) = rig.put(b"a")
    rig.client.subscribe(rig.consumer, SHARD, str(TRIM_HORIZON)).close()
    fetcher = rig.fetcher()
    turn = fetcher.fetch_new(TRIM_HORIZON, PLENTY)
    assert payloads(turn.batches) == [b"a"]
    assert (turn.end, rig.calls("SubscribeToShard"), rig.calls("GetRecords")) == (After(first), 2, 1)
    assert (fetcher.calls.throttles, fetcher.calls.reads) == (0, 1)
    assert fetcher.calls.subscribing == Subscribing.REFUSED
    # Nobody waits for it, and five seconds after its beginning a turn takes it over.
    rig.put(b"b")
    rig.server.advance(5)
    assert payloads(rig.turn(turn.end).batches) == [b"b"]
    assert (rig.calls("SubscribeToShard"), rig.calls("GetRecords")) == (3, 1)
    with pytest.raises(InUseError, match=rf"stream 'orders', shard {SHARD}.*in one application only"):
        event_of(rig.pager())


def test_a_turn_does_not_ask_for_a_subscription_that_would_be_refused(rig: Rig) -> None:
    rig.put(b"a")
    end = rig.next_turn(TRIM_HORIZON).end
    rig.put(b"b")
    fetcher = rig.fetcher(is_held=True)
    assert payloads(fetcher.fetch_new(end, PLENTY).batches) == [b"b"]
    assert (rig.calls("SubscribeToShard"), rig.calls("GetRecords")) == (1, 1)
    assert fetcher.calls.subscribing == Subscribing.REFUSED


def test_a_subscription_goes_on_after_turns_of_other_processes(rig: Rig) -> None:
    position: Position = TRIM_HORIZON
    for number in range(6):
        rig.put(b"%d" % number)
        turn = (
            rig.fetcher(is_held=True).fetch_new(position, PLENTY) if number % 3 else rig.next_turn(position)
        )
        assert payloads(turn.batches) == [b"%d" % number]
        position = turn.end
    assert (rig.calls("SubscribeToShard"), rig.calls("GetRecords")) == (1, 4)


def test_what_another_process_has_read_before_it_is_pushed_does_not_end_a_turn(rig: Rig) -> None:
    rig.put(b"a")
    end = rig.next_turn(TRIM_HORIZON).end
    rig.server.script(EVENT, Slow(0.5))
    rig.put(b"b")
    end = rig.fetcher(is_held=True).fetch_new(end, PLENTY).end
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(rig.next_turn, end)
        Retrying(stop=stop_after_delay(60), wait=wait_fixed(0.01), retry=retry_if_result(bool))(
            lambda: rig.server.faults_left
        )
        rig.put(b"c")
        assert payloads(turn.result().batches) == [b"c"]


def test_who_is_taken_over_by_its_own_query_meets_no_stranger(rig: Rig) -> None:
    rig.put(b"a")
    end = rig.next_turn(TRIM_HORIZON).end
    rig.server.advance(5)
    rig.put(b"b")
    end = rig.fetcher().fetch_new(end, PLENTY).end
    rig.put(b"c")
    fetcher = rig.fetcher(kept=rig.kept, is_held=True)
    assert payloads(fetcher.fetch_new(end, PLENTY).batches) == [b"c"]
    assert fetcher.calls.subscribing == Subscribing.REFUSED


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(1, 5)), max_size=20),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
@settings(
    max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_record_comes_once_whoever_reads_the_turns(
    endpoint: tuple[ScriptedKinesis, BotoKinesis, FakeTime, SourceOptions],
    steps: list[tuple[int, bool, int]],
    aggregates: list[int],
) -> None:
    """The process that has the subscription reads turns of a few records, and so does one that polls."""
    rig = fresh(*endpoint)
    written: list[bytes] = []
    found: list[bytes] = []
    position: Position = TRIM_HORIZON
    for puts, pushed, bound in [*steps, (1, True, 10**6), (1, True, 10**6)]:
        for put in range(puts):
            size = aggregates[put % len(aggregates)]
            some = [b"%d" % (len(written) + number) for number in range(size)]
            rig.put(aggregate([(data, "k") for data in some]) if size > 1 else some[0])
            written += some
        if len(found) < len(written):
            kept = rig.kept if pushed else None
            turn = rig.fetcher(kept=kept, is_held=not pushed).fetch_new(position, Bounds(bound, 10**9, 60))
            position = turn.end
            found += payloads(turn.batches)
    while len(found) < len(written):
        turn = rig.next_turn(position)
        position = turn.end
        found += payloads(turn.batches)
    assert found == written
    assert rig.calls("SubscribeToShard") == 1


def test_a_turn_that_is_read_twice_is_polled_the_second_time_and_waits_for_nothing(rig: Rig) -> None:
    """As the first one of a run of `foreach_batch`: its first row says whose batch it is."""
    (first,) = rig.put(b"a")
    turns = [rig.next_turn(TRIM_HORIZON) for _ in range(2)]
    assert [payloads(turn.batches) for turn in turns] == [[b"a"]] * 2
    rig.put(b"b")
    assert payloads(rig.next_turn(After(first)).batches) == [b"b"]
    assert (rig.calls("SubscribeToShard"), rig.calls("GetRecords")) == (3, 2)
    assert rig.time.sleeps == []


def test_a_subscription_stays_open_from_turn_to_turn(rig: Rig) -> None:
    position: Position = TRIM_HORIZON
    for number in range(5):
        rig.put(b"%d" % number)
        turn = rig.next_turn(position)
        assert payloads(turn.batches) == [b"%d" % number]
        position = turn.end
    assert (rig.calls("SubscribeToShard"), rig.calls("GetRecords")) == (1, 0)


def test_what_arrives_between_two_turns_comes_in_one(rig: Rig) -> None:
    rig.put(b"a")
    end = rig.next_turn(TRIM_HORIZON).end
    for number in range(4):
        rig.put(b"%d" % number)
        rig.until_waiting(number + 1)
    assert payloads(rig.next_turn(end).batches) == [b"0", b"1", b"2", b"3"]
    assert rig.calls("SubscribeToShard") == 1


def test_an_idle_event_from_before_a_turn_does_not_end_it(rig: Rig) -> None:
    rig.put(b"a")
    end = rig.next_turn(TRIM_HORIZON).end
    rig.server.advance(5)
    rig.until_waiting(1)
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(rig.next_turn, end)
        rig.put(b"b")
        # Had the idle event ended the turn, it would be empty.
        assert payloads(turn.result().batches) == [b"b"]
    assert rig.calls("SubscribeToShard") == 1


def test_the_rest_of_an_event_that_a_bound_cut_comes_next_without_another_subscription(rig: Rig) -> None:
    rig.put(*[b"%d" % n for n in range(10)], aggregate([(b"x", "k"), (b"y", "k"), (b"z", "k")]), b"e")
    found: list[list[bytes]] = []
    position: Position = TRIM_HORIZON
    while sum(map(len, found)) < 14:
        turn = rig.next_turn(position, Bounds(4, 10**9, 60))
        position = turn.end
        found.append(payloads(turn.batches))
    # Aggregates are never cut.
    assert [len(some) for some in found] == [4, 4, 2, 4]
    assert [data for some in found for data in some][8:] == [b"8", b"9", b"x", b"y", b"z", b"e"]
    assert turn.seen is not None
    assert rig.calls("SubscribeToShard") == 1


def test_a_turn_from_another_position_begins_another_subscription(rig: Rig) -> None:
    rig.server.limit(Quotas(resubscribe_ms=None))
    first, _ = rig.put(b"a", b"b")
    rig.next_turn(TRIM_HORIZON)
    # Another attempt has pinned a shorter turn.
    assert payloads(rig.next_turn(After(first)).batches) == [b"b"]
    assert rig.calls("SubscribeToShard") == 2


def test_a_subscription_that_ended_between_two_turns_is_renewed(rig: Rig) -> None:
    rig.put(b"a")
    end = rig.next_turn(TRIM_HORIZON).end
    rig.server.advance(300)
    rig.put(b"b")
    turn = rig.next_turn(end)
    assert payloads(turn.batches) == [b"b"]
    assert rig.calls("SubscribeToShard") == 2
    assert rig.calls("GetRecords") == 0


def test_a_turn_that_is_replaced_before_its_first_record_is_polled(rig: Rig) -> None:
    (first,) = rig.put(b"a")
    rig.server.script(EVENT, Refuse("ResourceInUseException", "Another subscription has taken over"))
    fetcher = rig.fetcher()
    turn = fetcher.fetch_new(TRIM_HORIZON, PLENTY)
    assert (payloads(turn.batches), turn.end) == ([b"a"], After(first))
    assert (fetcher.calls.throttles, fetcher.calls.reads) == (0, 1)
    assert fetcher.calls.subscribing == Subscribing.TAKEN


def test_who_is_taken_over_ends_the_turn_with_what_it_holds(rig: Rig) -> None:
    rig.put(b"a")
    pager = rig.pager()
    assert given_by(pager, 1) == [b"a"]
    rig.server.advance(5)
    other = rig.client.subscribe(rig.consumer, SHARD, str(TRIM_HORIZON))
    with pytest.raises(InUseError, match="taken over"):
        # The five seconds may bring an empty event first, but no more than that one.
        given_by(pager, 2)
    assert other.next(60) is not None
    other.close()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_stream_cut_in_an_event_gives_nothing_of_it_and_goes_on(rig: Rig, share: float) -> None:
    rig.server.limit(Quotas(resubscribe_ms=None))
    rig.put(b"a", b"b")
    pager = rig.pager()
    assert given_by(pager, 1) == [b"a", b"b"]
    rig.server.script(EVENT, Cut(share))
    rig.put(b"c", b"d")
    with pytest.raises(Unavailable, match=f"shard {SHARD}"):
        event_of(pager)
    assert given_by(pager, 1) == [b"c", b"d"]
    assert rig.server.faults_left == 0
    pager.close()


def test_a_connection_that_closes_before_the_first_event_is_no_end(rig: Rig) -> None:
    rig.server.limit(Quotas(resubscribe_ms=None))
    rig.put(b"a")
    rig.server.script("SubscribeToShard", Cut(0.5))
    rig.server.script("SubscribeToShard", Cut(0))
    turn = rig.turn()
    assert (payloads(turn.batches), turn.closed) == ([b"a"], False)
    assert rig.server.faults_left == 0


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InternalFailureException", Unavailable),
        ("KMSThrottlingException", ThrottledError),
        ("KMSAccessDeniedException", AccessDeniedError),
        ("KMSDisabledException", KinesisError),
    ],
)
def test_errors_inside_the_stream_say_what_they_are(rig: Rig, code: str, kind: type[KinesisError]) -> None:
    rig.server.script(EVENT, Refuse(code, "said in the stream"))
    with pytest.raises(kind, match=f"position TRIM_HORIZON: .*{code}.*said in the stream"):
        event_of(rig.pager())


def test_a_fault_inside_the_stream_is_waited_out(rig: Rig) -> None:
    rig.server.limit(Quotas(resubscribe_ms=None))
    rig.put(b"a")
    rig.server.script(EVENT, Refuse("InternalFailureException"), times=3)
    rig.server.script("SubscribeToShard", Refuse.failed(), skip=1)
    assert payloads(rig.turn().batches) == [b"a"]
    assert rig.server.faults_left == 0
    assert len(rig.time.sleeps) == 4


def test_a_throttle_ends_the_turn_with_what_it_holds(rig: Rig) -> None:
    rig.server.limit(Quotas(resubscribe_ms=None))
    rig.put(b"a")
    rig.server.gap("orders", SHARD, 1)
    rig.server.script(EVENT, Refuse("KMSThrottlingException"), skip=1)
    turn = rig.turn()
    assert payloads(turn.batches) == [b"a"]
    assert turn.seen is None


def test_a_closed_parent_is_drained_by_its_last_event(rig: Rig) -> None:
    (last,) = rig.put(b"a")
    children = rig.server.split("orders", SHARD)
    turn = rig.turn()
    assert payloads(turn.batches) == [b"a"]
    assert turn.closed
    assert turn.end == ShardEnd(last)
    rig.server.put("orders", children[0], b"child")
    child = ShardFetcher(
        rig.client, "orders", children[0], rig.options, fan_out=FanOut(rig.client, rig.consumer)
    )
    assert payloads(child.fetch_new(TRIM_HORIZON, PLENTY).batches) == [b"child"]


def test_a_parent_that_closes_under_a_subscription_is_drained(rig: Rig) -> None:
    rig.put(b"a")
    pager = rig.pager()
    assert given_by(pager, 1) == [b"a"]
    rig.server.split("orders", SHARD)
    answer = event_of(pager)
    assert isinstance(answer, End)
    assert answer.records.num_rows == 0
    pager.close()


def test_records_of_ten_mebibytes_come_whole(rig: Rig) -> None:
    large = [bytes([n]) * (10 * 2**20) for n in range(2)]
    rig.put(*large)
    turn = rig.turn()
    assert payloads(turn.batches) == large


def test_a_turn_does_not_wait_longer_than_its_bound_for_the_next_event(rig: Rig) -> None:
    stream = rig.client.subscribe(rig.consumer, SHARD, str(TRIM_HORIZON))
    assert stream.next(60) is not None
    # The shard is idle and the endpoint's clock stands still: no other event will come.
    with pytest.raises(Unavailable, match="Read timeout"):
        stream.next(0.05)
    stream.close()


def test_a_consumer_that_is_gone_is_named(rig: Rig) -> None:
    rig.server.client().deregister_stream_consumer(ConsumerARN=rig.consumer)
    with pytest.raises(ConsumerMissingError, match=rf"{rig.consumer}.*consumerLifecycle=managed"):
        rig.turn()


def test_a_consumer_that_goes_while_it_is_subscribed_is_named(rig: Rig) -> None:
    rig.put(b"a")
    pager = rig.pager()
    assert given_by(pager, 1) == [b"a"]
    rig.server.client().deregister_stream_consumer(ConsumerARN=rig.consumer)
    with pytest.raises(
        ConsumerMissingError, match=rf"shard {SHARD}.*{rig.consumer}.*consumerLifecycle=managed"
    ):
        event_of(pager)


def test_what_is_read_again_is_polled(rig: Rig) -> None:
    _, second, third = rig.put(b"a", b"b", b"c")
    fetcher = rig.fetcher()
    assert payloads(fetcher.fetch_until(TRIM_HORIZON, second).batches) == [b"a", b"b"]
    due = fetcher.fetch_due([Run(first=str(third), last=str(third))], 1, None)
    assert payloads(due.records.batches()) == [b"c"]
    assert (rig.calls("SubscribeToShard"), rig.calls("GetRecords")) == (0, 2)


def test_an_event_that_cannot_be_read_is_a_fault(rig: Rig) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield event_message(EVENT, b"<html>")

    def answer(request: Request) -> Reply:
        return Reply(200, {"Content-Type": "application/vnd.amazon.eventstream"}, parts=parts())

    server = LoopbackServer(answer)
    options = replace(rig.options, endpoint_url=f"http://127.0.0.1:{server.start()}")
    try:
        stream = BotoKinesis(options).subscribe(rig.consumer, SHARD, str(TRIM_HORIZON))
        with pytest.raises(Unavailable, match=r"an event of SubscribeToShard cannot be read \(6 bytes\)"):
            stream.next(60)
        stream.close()
    finally:
        server.stop()


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    steps=st.lists(
        st.one_of(
            st.integers(1, 30).map(lambda count: ("put", count)),
            st.floats(0, 0.99).map(lambda share: ("fault", Cut(share))),
            st.just(("fault", Refuse("InternalFailureException"))),
            st.just(("damage", None)),
            st.just(("in use", None)),
            st.just(("taken", None)),
            st.just(("end", None)),
            st.just(("turn", None)),
        ),
        max_size=12,
    )
)
def test_every_record_comes_once_in_order_whatever_happens(
    endpoint: tuple[ScriptedKinesis, BotoKinesis, FakeTime, SourceOptions], steps: list[tuple[str, object]]
) -> None:
    rig = fresh(*endpoint)
    rig.server.limit(Quotas(resubscribe_ms=None))
    written: list[bytes] = []
    found: list[bytes] = []
    position: Position = TRIM_HORIZON
    pager = rig.pager(position)
    damaged: list[bool] = []
    whole = rig.server._next_message

    def next_message(subscription: HeldSubscription) -> tuple[bytes | None, Slow | Cut | None]:
        """Damage the message after each step that says so: its checksum is wrong."""
        message, fault = whole(subscription)
        if message is not None and damaged:
            damaged.pop()
            message = message[:-1] + bytes([message[-1] ^ 1])
        return message, fault

    def read_on() -> None:
        while len(found) < len(written):
            try:
                found.extend(given_by(pager, 1))
            except (InUseError, Unavailable):
                continue

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.server, "_next_message", next_message)
        for what, given_ in steps:
            if what == "put":
                assert isinstance(given_, int)
                for _ in range(given_):
                    written.append(b"%d" % len(written))
                    rig.put(written[-1])
            elif what == "fault":
                assert isinstance(given_, Cut | Refuse)
                rig.server.script(EVENT, given_)
            elif what == "damage":
                damaged.append(True)
            elif what == "in use":
                rig.server.script("SubscribeToShard", Refuse("ResourceInUseException"))
            elif what == "taken":
                with suppress(InUseError):
                    rig.client.subscribe(rig.consumer, SHARD, str(TRIM_HORIZON)).close()
            elif what == "end":
                rig.server.advance(300)
            else:
                read_on()
        read_on()
        pager.close()
    assert found == written
