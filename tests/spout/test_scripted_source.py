"""The source against an endpoint that reshards, throttles, breaks and forgets, with a real ZooKeeper."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from by_hand import Lives, Query, Row, numbers
from thorough import cases

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.spout.acks import Acks
from kinesis_trident.spout.errors import DataLossError, PinnedRecordsGoneError, StreamChangedError
from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters
from kinesis_trident.spout.kinesis import ConsumerMissingError
from kinesis_trident.spout.testing import Cut, Quotas, Refuse, ScriptedKinesis

Start = Callable[..., Query]
KEYS = 12
HOUR = 3600
BEGUN = int(time.time() * 1000)
BOTH_MODES = pytest.mark.parametrize("mode", ["polling", "efo"])
EFO_LATER = pytest.mark.parametrize("mode", cases("polling", long=("efo",)))


class Stream:
    """A stream of numbers; a number's partition key is what is left of it modulo `KEYS`."""

    def __init__(self, server: ScriptedKinesis) -> None:
        self.server = server
        self._client = server.client()
        self._next = 0

    def put(self, count: int = 1) -> list[int]:
        """Put the next numbers into the stream, each with a call of its own: in order, whatever happens."""
        numbers = list(range(self._next, self._next + count))
        for number in numbers:
            data, key = str(number).encode(), str(number % KEYS)
            self._client.put_record(StreamName="orders", Data=data, PartitionKey=key)
        self._next += count
        return numbers

    def split(self) -> None:
        """Split the first open shard."""
        self.server.split("orders", self.server.shards("orders")[0])

    def merge(self) -> None:
        """Merge the first two open shards."""
        self.server.merge("orders", *self.server.shards("orders")[:2])


@pytest.fixture
def clock() -> Callable[[], int]:
    """The endpoint's time in epoch milliseconds."""
    return lambda: int(time.time() * 1000)


@pytest.fixture
def server(clock: Callable[[], int]) -> Iterator[ScriptedKinesis]:
    with ScriptedKinesis(clock=clock, quotas=Quotas.none()) as server:
        server.create_stream("orders", 2)
        yield server


@pytest.fixture
def stream(server: ScriptedKinesis) -> Stream:
    return Stream(server)


@pytest.fixture
def mode() -> str:
    """The `consumerMode` of all queries of a test."""
    return "polling"


@pytest.fixture
def start(server: ScriptedKinesis, mode: str, make_lives: Callable[..., Lives]) -> Start:
    """`start(checkpoint=None, **options)`: a life of the query; a new checkpoint by default."""
    return partial(make_lives(endpointUrl=server.endpoint_url, consumerMode=mode, retryLimit="3").begin, None)


@BOTH_MODES
@pytest.mark.parametrize(
    "code", ["KMSDisabledException", "KMSInvalidStateException", "KMSThrottlingException"]
)
def test_a_key_that_is_disabled_for_a_while_stops_no_query(
    stream: Stream, server: ScriptedKinesis, start: Start, code: str
) -> None:
    written = stream.put(12)
    query = start(maxFetchTime="1s", clientRetryInterval="10ms")
    server.script("GetRecords", Refuse(code, "The key is disabled"), skip=1, times=9)
    server.script("SubscribeToShard", Refuse(code, "The key is disabled"), times=3)
    server.script("SubscribeToShardEvent", Refuse(code, "The key is disabled"), times=3)
    rows = until(query, written, failing={5})
    while query.plan() is not None:
        rows += query.batch()
    assert sorted({row[0] for row in rows}) == written
    query.end()


@BOTH_MODES
def test_a_start_ahead_of_the_clock_of_kinesis_waits_and_says_by_how_much(
    stream: Stream, server: ScriptedKinesis, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    query = start(startingPosition=f"AT_TIMESTAMP {server.now + 3_600_000}")
    rows: list[Row] = []
    for _ in range(3):
        stream.put(5)
        if query.plan() is not None:
            rows += query.batch()
    assert rows == []
    assert "s ahead of Kinesis' clock: what arrives before is not read" in caplog.text
    server.advance(HOUR)
    late = stream.put(20)
    assert numbers(until(query, late)) == late
    query.end()


def place(row: Row) -> tuple[str, int]:
    """Shard and sequence number."""
    shard, _, sequence = row[1].rpartition("/")[2].partition(":")
    return shard, int(sequence)


def check_order(rows: Sequence[Row]) -> None:
    """Records of one key come in the order in which they were written: by batch, in a batch within one shard."""
    by_key: dict[int, list[Row]] = defaultdict(list)
    for row in sorted(rows):
        by_key[row[0] % KEYS].append(row)
    for found in by_key.values():
        came = [(row[3], place(row)[1]) for row in found]
        assert came == sorted(came)
        shards: dict[int, set[str]] = defaultdict(set)
        for row in found:
            shards[row[3]].add(place(row)[0])
        assert all(len(names) == 1 for names in shards.values())


def check_children_after_parents(rows: Sequence[Row], server: ScriptedKinesis) -> None:
    txids: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        txids[place(row)[0]].append(row[3])
    for shard in server.client().list_shards(StreamName="orders")["Shards"]:
        for parent in (shard.get("ParentShardId"), shard.get("AdjacentParentShardId")):
            if parent is not None and txids[parent] and txids[shard["ShardId"]]:
                assert max(txids[parent]) < min(txids[shard["ShardId"]])


def until(query: Query, wanted: Sequence[int], failing: Iterable[int] = ()) -> list[Row]:
    """Batches until all these numbers have come; some fail whenever they come."""
    rows: list[Row] = []
    while not set(wanted) <= {row[0] for row in rows}:
        rows += query.batch(failing)
    return rows


@BOTH_MODES
def test_splits_and_merges_under_load(start: Start, stream: Stream, server: ScriptedKinesis) -> None:
    written: list[int] = []
    troubles: list[BaseException] = []

    def write() -> None:
        try:
            for change in (
                stream.split,
                stream.merge,
                stream.split,
                stream.split,
                stream.merge,
                stream.merge,
            ):
                written.extend(stream.put(40))
                change()
            written.extend(stream.put(40))
        except BaseException as error:
            troubles.append(error)

    query = start(maxFetchRecordsPerShard="15")
    writer = threading.Thread(target=write)
    rows: list[Row] = []
    writer.start()
    while writer.is_alive():
        if query.plan() is not None:
            rows += query.batch()
    writer.join()
    rows += query.drain()
    assert troubles == []
    assert numbers(rows) == written
    check_order(rows)
    check_children_after_parents(rows, server)
    assert len({place(row)[0] for row in rows}) > 4


def test_closed_shards_are_read_first_from_the_trim_horizon(
    start: Start, stream: Stream, server: ScriptedKinesis
) -> None:
    written = stream.put(30)
    stream.split()
    written += stream.put(30)
    stream.merge()
    written += stream.put(30)
    rows = start(maxFetchRecordsPerShard="7").drain()
    assert numbers(rows) == written
    check_order(rows)
    check_children_after_parents(rows, server)


@EFO_LATER
def test_a_reshard_while_the_query_is_down_loses_nothing_with_latest(start: Start, stream: Stream) -> None:
    stream.put(10)
    life = start(startingPosition="LATEST")
    life.run.initial()
    # LATEST is a whole second by the endpoint's clock: what came in that second may come again.
    stream.server.advance(2)
    first = stream.put(24)
    rows = until(life, first)
    life.end()
    written = stream.put(24)
    stream.split()
    written += stream.put(24)
    stream.merge()
    written += stream.put(24)
    rows = [row for row in rows if row[0] >= 10]
    later = start(life.checkpoint, startingPosition="LATEST").drain()
    assert numbers(later) == written
    assert numbers(rows) == first
    check_order([*rows, *later])


@EFO_LATER
def test_failed_records_of_a_closed_shard_come_back_after_its_children_were_opened(
    start: Start, stream: Stream
) -> None:
    written = stream.put(24)
    query = start()
    rows = query.batch(failing={0, 7, 23})
    stream.split()
    stream.merge()
    written += stream.put(24)
    rows += query.drain()
    assert numbers(rows) == sorted([*written, 0, 7, 23])
    assert sorted(row[0] for row in rows if row[2] == 2) == [0, 7, 23]


def test_iterators_that_expire_within_a_turn(start: Start, stream: Stream, server: ScriptedKinesis) -> None:
    written = stream.put(60)
    query = start(maxRecordsPerFetch="5")
    query.planned()
    for skip in (1, 3, 4):
        server.script("GetRecords", Refuse.expired(), skip=skip)
    assert numbers(query.batch()) == written
    assert server.faults_left == 0
    # While it is idle, too, where only the looks hold one.
    server.advance(301)
    later = stream.put(10)
    assert numbers(until(query, later)) == later


def test_a_throttle_ends_the_turn_of_its_shard_and_not_the_task(
    start: Start, stream: Stream, server: ScriptedKinesis
) -> None:
    written = stream.put(60)
    first, second = server.shards("orders")
    query = start(maxRecordsPerFetch="5", maxPartitions="1", maxFetchTime="60s")
    query.planned()
    server.script("GetRecords", Refuse.throttled(), shard=first, skip=2, times=None)
    rows = query.batch()
    shards = [place(row)[0] for row in rows]
    # What the look found, and two pages.
    assert shards.count(first) == 11
    assert shards.count(second) > 10
    server.clear()
    rows += query.drain()
    assert numbers(rows) == written
    check_order(rows)


def test_the_quotas_of_the_service_cost_time_and_no_records(
    start: Start, stream: Stream, server: ScriptedKinesis
) -> None:
    """Somebody else reads the stream too, so the source's own limits do not keep it from being refused."""
    written = stream.put(60)
    server.limit(Quotas(read_calls=3))
    query = start(maxRecordsPerFetch="5", minFetchPeriod="50ms", maxFetchTime="400ms")
    rows = query.drain()
    assert numbers(rows) == written
    check_order(rows)


class StoppedClock:
    """The endpoint's time in epoch milliseconds, which stands still until it is started."""

    def __init__(self) -> None:
        self._started: float | None = None

    def start(self) -> None:
        self._started = time.monotonic()

    def __call__(self) -> int:
        return BEGUN if self._started is None else BEGUN + int(1000 * (time.monotonic() - self._started))


@pytest.mark.parametrize("clock", [StoppedClock()], ids=["a clock that stands still"])
def test_the_largest_record_blocks_its_shard_but_not_for_ever(
    start: Start, server: ScriptedKinesis, clock: StoppedClock
) -> None:
    """Looking at it blocks the shard for five seconds, so the turn after a look is refused."""
    first, second = server.shards("orders")
    server.put("orders", first, b"0".ljust(10 * 2**20))
    server.put("orders", first, b"1")
    server.put("orders", second, b"2")
    server.limit(Quotas())
    query = start(minFetchPeriod="200ms", describeShardInterval="1h", maxFetchTime="1s")
    rows = query.batch()
    assert numbers(rows) == [2]
    assert server.refused["GetRecords", first]
    clock.start()
    rows += until(query, [0, 1])
    assert [row[0] for row in rows] == [2, 0, 1]


Fault = tuple[str, Any]
FAULTS: list[Fault] = [
    ("GetRecords", Cut(0)),
    ("GetRecords", Refuse("ServiceUnavailable", status=503)),
    *(
        (call, fault)
        for call in ("GetRecords", "GetShardIterator", "ListShards", "DescribeStreamSummary")
        for fault in (Refuse.failed(), Cut())
    ),
]
FAULTS_OF_SUBSCRIPTIONS: list[Fault] = [
    ("SubscribeToShard", Refuse("ResourceInUseException")),
    ("SubscribeToShard", Cut()),
    ("SubscribeToShardEvent", Cut()),
    ("SubscribeToShardEvent", Refuse("InternalFailureException")),
    ("SubscribeToShardEvent", Refuse("ResourceInUseException")),
    ("SubscribeToShardEvent", Refuse("KMSThrottlingException")),
]


def side_by_side(faults: list[Fault], play: Callable[[int, Fault], None]) -> None:
    """Play all of them at a time, by their number: each waits for a second now and then."""
    with ThreadPoolExecutor(len(faults)) as pool:
        played = [pool.submit(play, number, fault) for number, fault in enumerate(faults)]
    errors = [(fault, one.exception()) for fault, one in zip(faults, played, strict=True)]
    assert [(fault, repr(error)) for fault, error in errors if error is not None] == []


def loses_nothing(hosts: str, app: str, call: str, fault: Any, skips: Sequence[int], **options: str) -> None:
    """All records come, and those that fail come again, through faults that come after so many calls each.

    The streams are described every ten seconds; here one takes a twentieth of it.
    """
    with ScriptedKinesis(quotas=Quotas.none()) as server, ExitStack() as ending:
        server.create_stream("orders", 2)
        stream = Stream(server)
        lives = Lives(hosts, app, endpointUrl=server.endpoint_url, retryLimit="3", **options)
        ending.callback(lives.end)
        written = stream.put(36)
        query = lives.begin(pace={"steady": lambda: 20 * time.monotonic()})
        for skip in skips:
            server.script(call, fault, skip=skip)
        rows = until(query, written, failing={5})
        # Until the script is used up: how many calls a batch makes depends on how the faults fall.
        while server.faults_left:
            later = stream.put(12)
            written += later
            rows += until(query, later)
        rows += query.drain()
    assert numbers(row for row in rows if row[0] != 5) == [number for number in written if number != 5]
    attempts = [row[2] for row in rows if row[0] == 5]
    assert attempts == list(range(1, len(attempts) + 1))
    assert len(attempts) > 1


def test_faults_and_cut_answers_lose_nothing(zookeeper: EmbeddedZooKeeper, app: str) -> None:
    def play(number: int, fault: Fault) -> None:
        options = {"maxRecordsPerFetch": "6", "clientNumRetries": "0"}
        loses_nothing(zookeeper.hosts, f"{app}-{number}", *fault, (0, 1, 2), **options)

    side_by_side(FAULTS, play)


def test_faults_of_subscriptions_lose_nothing(zookeeper: EmbeddedZooKeeper, app: str) -> None:
    def play(number: int, fault: Fault) -> None:
        # A subscription that has begun goes on from batch to batch.
        skips = (0, 0, 0) if fault[0] == "SubscribeToShard" else (0, 2, 2)
        loses_nothing(zookeeper.hosts, f"{app}-{number}", *fault, skips, consumerMode="efo")

    side_by_side(FAULTS_OF_SUBSCRIPTIONS, play)


@pytest.mark.parametrize("mode", ["efo"])
def test_a_turn_that_has_to_be_polled_takes_what_the_look_before_it_has_left(
    start: Start, stream: Stream
) -> None:
    """A shard allows five calls a second: with one for each look and one more for each turn a batch waits for them."""
    stream.server.script("SubscribeToShard", Refuse("ResourceInUseException"), times=None)
    put = stream.put(8)
    query = start()
    assert numbers(query.batch()) == put
    before = Counter(stream.server.calls)
    put = stream.put(8)
    assert numbers(query.batch()) == put
    calls = Counter(call for call, _ in (stream.server.calls - before).elements())
    assert calls["GetRecords"] == 2
    query.end()


@pytest.mark.parametrize("mode", ["efo"])
def test_a_consumer_that_is_deleted_stops_the_query_and_the_next_start_goes_on(
    start: Start, stream: Stream, server: ScriptedKinesis
) -> None:
    written = stream.put(12)
    life = start()
    rows = life.batch()
    client, arn = server.client(), "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
    (consumer,) = client.list_stream_consumers(StreamARN=arn)["Consumers"]
    client.deregister_stream_consumer(ConsumerARN=consumer["ConsumerARN"])
    written += stream.put(12)
    with pytest.raises(ConsumerMissingError, match=f"{consumer['ConsumerARN']}.*consumerLifecycle=managed"):
        life.batch()
    life.end()
    rows += start(life.checkpoint).drain()
    assert numbers(rows) == written


@BOTH_MODES
def test_a_stream_of_another_account_is_read_by_its_arn(
    zookeeper: EmbeddedZooKeeper, app: str, mode: str
) -> None:
    arn = "arn:aws:kinesis:us-east-1:999988887777:stream/orders"
    with ScriptedKinesis(
        owner="999988887777", quotas=Quotas(None, None, None, None, resubscribe_ms=300)
    ) as server:
        server.create_stream("orders", 2)

        def put(numbers: range) -> list[int]:
            for number in numbers:
                server.put("orders", server.shards("orders")[number % 2], b"%d" % number)
            return list(numbers)

        given = {"streamARN": arn}
        if mode == "efo":
            made = server.client().register_stream_consumer(StreamARN=arn, ConsumerName="theirs")
            given = {"consumerARN": made["Consumer"]["ConsumerARN"]}
        before = Counter(server.calls)
        lives = Lives(
            zookeeper.hosts, app, endpointUrl=server.endpoint_url, consumerMode=mode, retryLimit="3"
        )
        try:
            written = put(range(20))
            life = lives.begin(**given)
            rows = life.batch(failing=written[:3])
            server.split("orders", server.shards("orders")[0])
            written += put(range(20, 40))
            life.end()
            rows = [row for row in rows if row[0] not in written[:3]]
            rows += lives.begin(checkpoint=life.checkpoint, **given).drain()
        finally:
            lives.end()
        assert numbers(rows) == written
        names = {call for (call, _), _ in (server.calls - before).items()}
        assert not names & {"RegisterStreamConsumer", "DeregisterStreamConsumer"}
        assert ("SubscribeToShard" in names) == (mode == "efo")
        if mode == "efo":
            assert (
                server.client().list_stream_consumers(StreamARN=arn)["Consumers"][0]["ConsumerName"]
                == "theirs"
            )


@BOTH_MODES
def test_tasks_that_read_the_same_turns_give_the_same_rows(start: Start, stream: Stream, mode: str) -> None:
    written = stream.put(40)
    query = start()
    end = query.planned()
    tasks = query.run.partitions(query.committed, end)
    read = 4 * tasks
    with ThreadPoolExecutor(len(read) + 1) as pool:
        # Side by side as speculative tasks are, while more records come.
        more = pool.submit(stream.put, 40)
        found = list(pool.map(query.task, read))
        written += more.result()
    # And after all of them, as a task that is tried again.
    found += map(query.task, tasks)
    by_task = [found[index :: len(tasks)] for index in range(len(tasks))]
    assert all(rows == same[0] for same in by_task for rows in same)
    rows = query.batch()
    assert rows == sorted(row for same in by_task for row in same[0])
    assert numbers([*rows, *query.drain()]) == written
    calls = stream.server.calls
    assert any(calls["SubscribeToShard", shard] for shard in stream.server.shards("orders")) == (
        mode == "efo"
    )


def test_empty_answers_behind_the_tip_are_walked_through(
    start: Start, stream: Stream, server: ScriptedKinesis
) -> None:
    written = stream.put(24)
    for shard in server.shards("orders"):
        server.gap("orders", shard, 20)
    written += stream.put(24)
    assert numbers(start().drain()) == written


def half_expired(start: Start, stream: Stream, **given: str) -> tuple[Query, list[int]]:
    """A batch that was read and not committed, and whose older half is past retention: what is left of it."""
    stream.put(24)
    stream.server.advance(13 * HOUR)
    left = stream.put(24)
    life = start(maxShardSkew="off", **given)
    life.planned()
    assert len(life.rows()) == 48
    life.end()
    stream.server.advance(12 * HOUR)
    return life, left


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_transactional_batch_whose_records_are_gone_stops_the_query(
    start: Start, stream: Stream, strict: str
) -> None:
    given = {"spout": "transactional", "onExhausted": "fail", "failOnDataLoss": strict}
    life, _ = half_expired(start, stream, **given)
    with pytest.raises(
        PinnedRecordsGoneError, match=r"shard shardId-\d+, txid 1: the batch held \d+ records"
    ):
        start(life.checkpoint, **given).rows()


def test_an_opaque_batch_goes_on_with_what_is_left_and_says_so(
    start: Start, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    life, left = half_expired(start, stream)
    again = start(life.checkpoint)
    assert numbers(again.rows()) == left
    assert "a replay finds" in caplog.text
    assert "continuing with the remaining records (spout=opaque)" in caplog.text
    again.publish()
    again.commit()
    later = stream.put(12)
    assert numbers(again.drain()) == later
    assert "records had left the stream when the batch was replayed" in again.run.report()["lastLosses"][0]


def test_a_due_retry_that_has_expired_is_dead_lettered_without_its_payload(
    start: Start, stream: Stream, tmp_path: Path
) -> None:
    stream.put(12)
    given = {"onExhausted": "deadLetter", "deadLetter": str(tmp_path), "failOnDataLoss": "false"}
    life = start(**given)
    life.batch(failing={3})
    stream.server.advance(25 * HOUR)
    later = stream.put(12)
    assert numbers(life.drain()) == later
    [letter] = read_dead_letters(str(tmp_path))
    assert letter.data is None
    assert letter.message_id.startswith("orders/shardId-")
    assert letter.attempts == 1
    assert [reason.reason.partition(":")[0] for reason in letter.reasons] == ["ValueError", "EXPIRED"]
    assert life.run.report()["deadLettered"] == 1
    assert life.run.report()["retrying"] == 0


def test_records_that_expired_unread(start: Start, stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    first = stream.put(12)
    life = start()
    assert numbers(life.batch()) == first
    # Settled only when the next batch is asked for.
    assert life.plan() is None
    life.end()
    stream.put(12)
    stream.server.advance(25 * HOUR)
    left = stream.put(12)
    with pytest.raises(DataLossError, match=r"stream 'orders', shard shardId-\d+: reading stands at .* 24 h"):
        start(life.checkpoint)
    again = start(life.checkpoint, failOnDataLoss="false")
    assert numbers(again.drain()) == left
    # Said once for each shard, however often it is looked at.
    said = [
        line
        for line in caplog.messages
        if "continuing with the remaining records (failOnDataLoss=false)" in line
    ]
    losses = again.run.report()["lastLosses"]
    assert sorted(said) == sorted(
        f"{loss}; continuing with the remaining records (failOnDataLoss=false)" for loss in losses
    )
    assert len(losses) == again.run.report()["losses"] == 2


@pytest.mark.parametrize("later", [0, 12])
def test_records_that_expired_while_the_machine_stood_still(start: Start, stream: Stream, later: int) -> None:
    """The clock that counts the time until the next listing does not count a machine's sleep."""
    first = stream.put(12)
    life = start(describeShardInterval="1h")
    assert numbers(life.batch()) == first
    assert life.plan() is None
    stream.put(12)
    stream.server.advance(25 * HOUR)
    stream.put(later)
    with pytest.raises(DataLossError, match=r"reading stands at .*, but the stream keeps only 24 h"):
        until(life, [later])


@pytest.mark.parametrize("fail", ["true", "false"])
def test_records_that_expired_between_the_plan_of_a_batch_and_its_task(
    start: Start, server: ScriptedKinesis, caplog: pytest.LogCaptureFixture, fail: str
) -> None:
    shard = server.shards("orders")[0]
    life = start(failOnDataLoss=fail)
    server.put("orders", shard, b"0")
    assert numbers(life.batch()) == [0]
    # More than a look brings along.
    for number in range(1, 100):
        server.put("orders", shard, str(number).encode().rjust(2000))
    life.planned()
    # No executor, or a machine that sleeps.
    server.advance(25 * HOUR)
    server.put("orders", shard, b"100")
    if fail == "true":
        with pytest.raises(DataLossError, match=f"shard {shard}: reading stands at AFTER_SEQUENCE_NUMBER"):
            life.rows()
    else:
        assert numbers(life.rows()) == [100]
        assert "continuing with the remaining records (failOnDataLoss=false)" in caplog.text


def test_a_stream_that_is_idle_for_longer_than_its_retention_has_lost_nothing(
    start: Start, stream: Stream
) -> None:
    first = stream.put(12)
    life = start()
    assert numbers(life.batch()) == first
    for _ in range(5):
        assert life.plan() is None
        stream.server.advance(8 * HOUR)
    later = stream.put(12)
    assert numbers(until(life, later)) == later


def test_a_stream_that_is_recreated_stops_the_query_and_begins_anew(start: Start, stream: Stream) -> None:
    stream.put(12)
    life = start()
    life.batch()
    assert life.plan() is None
    stream.server.recreate("orders")
    later = stream.put(12)
    with pytest.raises(StreamChangedError, match="created"):
        life.plan()
    with pytest.raises(StreamChangedError, match="deleted and created again"):
        start(life.checkpoint).plan()
    assert numbers(start().drain()) == later


def test_a_stream_that_is_recreated_under_a_planned_batch_gives_no_rows(start: Start, stream: Stream) -> None:
    stream.put(12)
    life = start()
    life.batch()
    stream.put(12)
    life.planned()
    life.end()
    stream.server.recreate("orders")
    stream.put(12)
    with pytest.raises(StreamChangedError):
        start(life.checkpoint).rows()


def test_an_idle_source_asks_a_shard_once_a_period_and_plans_nothing(
    start: Start, stream: Stream, server: ScriptedKinesis
) -> None:
    """The period of a query is a second; here it is a quarter of that."""
    written = stream.put(12)
    query = start(describeShardInterval="1h", pace={"hold": 0.25, "look_period": 0.25})
    assert numbers(query.batch()) == written
    before, began = server.calls.copy(), time.monotonic()
    plans = [query.plan() for _ in range(3)]
    seconds = time.monotonic() - began
    assert plans == [None] * 3
    asked = server.calls - before
    for shard in server.shards("orders"):
        assert 1 <= asked["GetRecords", shard] <= 4 * seconds + 1
        assert asked["GetShardIterator", shard] <= 1
    assert {call for call, _ in asked} <= {"GetRecords", "GetShardIterator"}


@EFO_LATER
def test_explicit_acks_over_a_split_and_a_restart(
    start: Start, server: ScriptedKinesis, stream: Stream, app: str, zookeeper: EmbeddedZooKeeper
) -> None:
    """Read by either consumer: what was acked is not read again, what was not is, whichever shard it is of by then."""
    before = stream.put(12)
    query = start(ackMode="explicit", messageTimeout="1h", onExhausted="skip")
    rows = query.batch()
    stream.split()
    after = stream.put(12)
    while len(rows) < len(before) + len(after):
        rows += query.batch()
    assert sorted(row[0] for row in rows) == [*before, *after]
    with Acks(app, {"zookeeper.hosts": zookeeper.hosts}) as acks:
        acks.ack([row[1] for row in rows if row[0] % 3])
        acks.fail([row[1] for row in rows if row[0] % 3 == 0], "not yet")
        again = start(query.checkpoint, ackMode="explicit", messageTimeout="1h", onExhausted="skip")
        found: list[Row] = []
        while len(found) < 8:
            found += again.batch()
        assert sorted((row[0], row[2]) for row in found) == [(n, 2) for n in (*before, *after) if n % 3 == 0]
        acks.ack([row[1] for row in found])
        assert again.drain() == []
    assert again.run.report()["inflight"] == 0


@BOTH_MODES
def test_shards_are_read_in_step(start: Start, server: ScriptedKinesis) -> None:
    begun = server.now
    full, other = server.shards("orders")
    for number in range(24):
        server.put("orders", full, str(number).encode())
        if number % 12 == 0:
            server.put("orders", other, str(number).encode())
        server.advance(HOUR / 2)
    query = start(maxShardSkew="2h", maxFetchRecordsPerShard="3")
    found: list[int] = []
    while len(found) < 26:
        rows = numbers(query.batch())
        # In half hours, which took some moments besides.
        assert min(rows) >= max([0, *found]) - 5
        found += rows
    assert sorted(found) == sorted([*range(24), 0, 12])
    assert server.now - begun >= 12 * HOUR * 1000
