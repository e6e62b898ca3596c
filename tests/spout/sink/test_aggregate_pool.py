"""Rows written as aggregates: packed by hash range, refused, cut, and resharded in between; read by us and others."""

from __future__ import annotations

import base64
import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from aws_kinesis_agg.deaggregator import deaggregate_records
from driven import backlog_of, drive, stream_of
from hypothesis import given, settings, strategies as st
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from thorough import examples

from kinesis_trident.spout.kinesis import (
    AccessDeniedError,
    RequestTooLargeError,
    StreamMissingError,
    ThrottledError,
)
from kinesis_trident.spout.kinesis.aggregation import MAGIC, deaggregate_page
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.kinesis.packing import MOST_USERS, Pack, hash_key
from kinesis_trident.spout.kinesis.put_entries import Entries, Entry, RequestBound
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.spout.options.sink import WriteOptions
from kinesis_trident.spout.patience import Patience
from kinesis_trident.spout.sink.backlog import Backlog
from kinesis_trident.spout.sink.known_stream import KnownStream
from kinesis_trident.spout.sink.writer import KinesisWriter
from kinesis_trident.spout.testing import FakeTime, Quotas, Refuse, ScriptedKinesis
from kinesis_trident.spout.testing.stream import HeldStream

SCHEMA = StructType([StructField("partitionKey", StringType()), StructField("data", BinaryType())])
KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=200)
THROTTLED = {"ErrorCode": "ProvisionedThroughputExceededException"}

User = tuple[str, bytes, int]
"""Partition key, payload, and the hash key that a consumer computes."""


def published(payload: bytes, key: str = "a") -> list[User]:
    """The user records of a record, as the published de-aggregator finds them."""
    record = {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "sequenceNumber": "1",
            "approximateArrivalTimestamp": 1.0,
            "partitionKey": key,
            "data": base64.b64encode(payload),
        }
    }
    found = []
    for one in deaggregate_records([record]):
        user = one["kinesis"]
        own, explicit = user["partitionKey"], user.get("explicitHashKey")
        found.append((own, base64.b64decode(user["data"]), int(explicit) if explicit else hash_key(own)))
    return found


def ours(payload: bytes) -> list[tuple[str, bytes]]:
    """The user records of a record, as the source finds them."""
    columns = [
        pa.array(["a"]),
        pa.array([payload], pa.binary()),
        pa.array(["1"]),
        pa.array([-1]),
        pa.array([0], pa.timestamp("us", tz="UTC")),
    ]
    page = pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)
    key, data, *_ = deaggregate_page(page).columns
    return list(zip(key.to_pylist(), data.to_pylist(), strict=True))


@settings(deadline=None, max_examples=examples(40))
@given(
    st.lists(st.tuples(st.binary(max_size=300), KEYS), min_size=1, max_size=150),
    st.none() | st.integers(0, 2**128 - 1).map(str),
)
def test_an_aggregate_is_as_large_as_said_and_read_by_us_and_by_others(
    users: list[tuple[bytes, str]], hash_key: str | None
) -> None:
    pack = Pack(hash_key)
    for data, key in users:
        before = pack.size
        assert pack.add(data, key, 0) == 0
        assert before + pack.add(data, key) == pack.size
    payload = pack.pack()
    assert len(payload) == pack.size
    assert ours(payload) == [(key, data) for data, key in users]
    found = published(payload)
    assert [(key, data) for key, data, _ in found] == [(key, data) for data, key in users]
    if hash_key is not None:
        assert {hashed for _, _, hashed in found} == {int(hash_key)}


def test_the_largest_aggregate_is_one_that_our_reader_splits() -> None:
    pack = Pack("0")
    key = "\U0001f600" * 256
    while pack.add(b"", key, 2**20 - pack.size):
        pass
    assert pack.add(b"", "other", 2**20) == 0
    assert pack.size < 2**20
    assert len(ours(pack.pack())) == MOST_USERS


class Stream:
    """A stream that accepts what `refuse` does not refuse, and is resharded between two requests."""

    def __init__(self, shards: int, rng: random.Random, share: float = 0.0, reshards: float = 0.0) -> None:
        self.held = HeldStream("orders", shards, 1)
        self.listings = 0
        self.requests: list[Sequence[Entry]] = []
        self.refused = 0
        self._rng, self._share, self._reshards = rng, share, reshards

    def open_shards(self) -> list[tuple[int, str]]:
        self.listings += 1
        return [(shard.hashes[1], shard.name) for shard in self.held.open_shards]

    def __call__(self, entries: Sequence[Entry]) -> Sequence[dict[str, Any]]:
        self.requests.append(entries)
        results: list[dict[str, Any]] = []
        for entry in entries:
            if self._rng.random() < self._reshards:
                self.reshard()
            if self._rng.random() < self._share:
                self.refused += 1
                results.append(THROTTLED)
                continue
            key, explicit = entry["PartitionKey"], entry.get("ExplicitHashKey")
            shard = self.held.find_home(hash_key(key) if explicit is None else int(explicit))
            record = self.held.put(shard, entry["Data"], key, 1)
            results.append({"ShardId": shard.name, "SequenceNumber": str(record.sequence)})
        return results

    def reshard(self) -> None:
        shards = self.held.open_shards
        if len(shards) > 1 and self._rng.random() < 0.5:
            at = self._rng.randrange(len(shards) - 1)
            self.held.merge(shards[at].name, shards[at + 1].name, 1)
        else:
            self.held.split(self._rng.choice(shards).name, 1)

    def users(self, *, check_ranges: bool = True) -> list[User]:
        """All user records; with the rule of the Kinesis Client Library, each belongs to its shard."""
        found = []
        for shard in self.held.shards.values():
            for record in shard.records:
                users = published(record.data, record.key)
                if record.data.startswith(MAGIC):
                    assert [(key, data) for key, data, _ in users] == ours(record.data)
                    if check_ranges:
                        assert all(shard.hashes[0] <= hashed <= shard.hashes[1] for *_, hashed in users)
                found += users
        return found


def rows(rng: random.Random, count: int, keys: int, largest: int, explicit: bool) -> list[Entry]:
    found: list[Entry] = []
    for n in range(count):
        key = f"key-{rng.randrange(keys)}"
        entry: Entry = {"Data": b"%d " % n + bytes(rng.randrange(largest)), "PartitionKey": key}
        if explicit and rng.random() < 0.3:
            entry["ExplicitHashKey"] = str(rng.randrange(2**128))
        found.append(entry)
    return found


def number(data: bytes) -> int:
    return int(data.split(b" ")[0])


def aggregating(
    written: Sequence[Entry],
    stream: KnownStream,
    most: int,
    time: FakeTime | None = None,
    bound: RequestBound | None = None,
) -> Backlog:
    backlog = backlog_of(
        stream,
        time or FakeTime(),
        lambda *_: 0.0,
        busy_jitter=random.Random(3).uniform,
        patience=Patience(1.0, lambda: 0.0),
        bound=bound,
        most=most,
    )
    backlog.add(Entries.of(written))
    return backlog


def write(stream: Callable[[Sequence[Entry]], Any], backlog: Backlog) -> int:
    time = backlog._clock
    assert isinstance(time, FakeTime)
    drive(stream, backlog, time)
    return backlog.tries.refusals


@settings(deadline=None, max_examples=examples(30))
@given(
    st.integers(1, 400),
    st.sampled_from([1, 5, 300]),
    st.sampled_from([5, 400]),
    st.sampled_from([64, 1000, 51_200]),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from([0.0, 0.4]),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([RequestBound(), RequestBound(3, 5000)]),
    st.randoms(use_true_random=False),
)
def test_each_row_is_written_once_whatever_is_refused_and_resharded(
    count: int,
    keys: int,
    largest: int,
    most: int,
    shards: int,
    explicit: bool,
    share: float,
    reshards: float,
    bound: RequestBound,
    rng: random.Random,
) -> None:
    stream = Stream(shards, rng, share, reshards)
    written = rows(rng, count, keys, largest, explicit)
    time = FakeTime()

    def clock() -> float:
        # The map may be listed again at each look.
        time.sleep(2.0)
        return time()

    backlog = aggregating(written, stream_of(stream.open_shards, clock), most, bound=bound)
    assert write(stream, backlog) == stream.refused
    assert (backlog.size, backlog.waiting) == (0, 0)
    found = sorted(stream.users(), key=lambda user: number(user[1]))
    assert [(key, data) for key, data, _ in found] == [
        (entry["PartitionKey"], entry["Data"]) for entry in written
    ]
    for request in stream.requests:
        assert 0 < len(request) <= bound.records
        assert len(request) == 1 or Entries.of(request).size <= bound.bytes
        for entry in request:
            if entry["Data"].startswith(MAGIC):
                assert Entries.of([entry]).size <= min(most, bound.bytes)
                assert len(published(entry["Data"])) > 1
    if not share and not reshards:
        order = defaultdict(list)
        for shard in stream.held.shards.values():
            for record in shard.records:
                for key, data, _ in published(record.data, record.key):
                    order[shard.name, key].append(number(data))
        assert all(found == sorted(found) for found in order.values())
        assert stream.listings == 1


def test_rows_of_a_busy_shard_do_not_hold_up_those_of_others() -> None:
    """A hot shard with 6 MiB, and three with 0.6 each: a shard takes one in a second."""
    time, stream = FakeTime(), Stream(4, random.Random(1))
    taken: dict[str, list[tuple[float, int]]] = defaultdict(list)
    began = time()
    homes = list(stream.held.shards.values())

    def feed() -> None:
        if coming and not backlog.is_full:
            backlog.add(coming.popleft())

    def sleep(seconds: float) -> None:
        feed()
        time.sleep(seconds)

    def send(entries: Sequence[Entry]) -> Sequence[dict[str, Any]]:
        sleep(0.01)
        results: list[dict[str, Any]] = []
        for entry in entries:
            some = taken[stream.held.find_home(int(entry["ExplicitHashKey"])).name]
            if sum(size for at, size in some if at > time() - 1) >= 2**20:
                results.append(THROTTLED)
            else:
                some.append((time(), len(entry["Data"])))
                results += stream([entry])
        return results

    written = [
        {
            "Data": b"%d " % n + bytes(2000),
            "PartitionKey": f"{n % 9}",
            "ExplicitHashKey": str(home.hashes[0] + n % 9),
        }
        for n, home in enumerate(random.Random(2).choices(homes, [10, 1, 1, 1], k=3900))
    ]
    coming = deque(Entries.of(written[at : at + 400]) for at in range(0, len(written), 400))
    backlog = aggregating([], stream_of(stream.open_shards, time), 51_200, time)
    while coming:
        feed()
        drive(send, backlog, time, sleep=sleep)
    found = defaultdict(list)
    for home in homes:
        for record in home.records:
            for key, data, _ in published(record.data, record.key):
                found[home.name, key].append(number(data))
    assert sorted(n for some in found.values() for n in some) == list(range(3900))
    assert all(some == sorted(some) for some in found.values())
    hot, *others = (taken[home.name][-1][0] - began for home in homes)
    assert hot > 5
    assert max(others) < 2


def test_an_aggregate_has_the_rows_of_one_shard_and_its_first_rows_hash_key() -> None:
    stream = Stream(4, random.Random(1))
    written = rows(random.Random(2), 400, 400, 20, explicit=False)
    write(stream, aggregating(written, stream_of(stream.open_shards), 51_200))
    [request] = stream.requests
    assert len(request) == 4
    assert {entry["PartitionKey"] for entry in request} == {"a"}
    homes = list(stream.held.shards.values())
    assert [len(shard.records) for shard in homes] == [1, 1, 1, 1]
    for shard in homes:
        users = published(shard.records[0].data)
        assert all(shard.hashes[0] <= hash_key(key) <= shard.hashes[1] for key, *_ in users)
        assert {hashed for *_, hashed in users} == {hash_key(users[0][0])}


def test_rows_of_a_refused_aggregate_are_packed_anew_with_what_is_left_and_in_their_order() -> None:
    stream = Stream(1, random.Random(1))
    sent: list[list[list[int]]] = []

    def send(entries: Sequence[Entry]) -> Sequence[dict[str, Any]]:
        sent.append([[number(data) for _, data, _ in published(entry["Data"])] for entry in entries])
        if len(sent) == 1:
            accepted = stream(entries[1:2])
            return [THROTTLED, *accepted, THROTTLED]
        return stream(entries)

    # Each aggregate holds three rows of 90 bytes, a request at most three of them.
    written: list[Entry] = [{"Data": b"%03d " % n + bytes(86), "PartitionKey": "k"} for n in range(11)]
    refusals = write(send, aggregating(written, stream_of(stream.open_shards), 400, bound=RequestBound(3)))
    assert refusals == 2
    assert sent[0] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert sent[1] == [[0, 1, 2], [6, 7, 8], [9, 10]]
    assert sorted(number(data) for _, data, _ in stream.users()) == list(range(11))


def test_a_413_cuts_requests_then_aggregates_and_names_the_row_that_is_too_large_alone() -> None:
    stream = Stream(1, random.Random(1))
    limit = 2500

    def send(entries: Sequence[Entry]) -> Sequence[dict[str, Any]]:
        if Entries.of(entries).size > limit:
            raise RequestTooLargeError("HTTP 413")
        return stream(entries)

    written: list[Entry] = [{"Data": b"%03d " % n + bytes(196), "PartitionKey": f"k{n}"} for n in range(500)]
    bound = RequestBound()
    write(send, aggregating(written, stream_of(stream.open_shards), 51_200, bound=bound))
    assert sorted(number(data) for _, data, _ in stream.users()) == list(range(500))
    assert bound.bytes <= limit
    assert len(stream.requests) < 500
    # What was learnt counts for the next request.
    before = len(stream.requests)
    write(send, aggregating(written[:5], stream_of(stream.open_shards), 51_200, bound=bound))
    assert len(stream.requests) == before + 1
    large: Entry = {"Data": bytes(limit), "PartitionKey": "the large one"}
    with pytest.raises(RequestTooLargeError, match="of 2513 bytes with its partition key 'the large one'"):
        write(send, aggregating([*written[:5], large], stream_of(stream.open_shards), 51_200, bound=bound))


def test_the_shards_are_listed_again_at_most_once_a_second_and_a_listing_may_fail() -> None:
    time = FakeTime()
    answers: list[Any] = [[(9, "a")], ThrottledError("slow"), [(4, "b"), (9, "c")]]

    def listed() -> list[tuple[int, str]]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    def home(key: int) -> str:
        entry = {"Data": b"", "PartitionKey": "k", "ExplicitHashKey": str(key)}
        return stream.shards().homes(Entries.of([entry]))[0]

    stream = stream_of(listed, time)
    stream.shards()
    stream.refresh()
    assert (len(answers), home(3)) == (2, "a")
    for left in (1, 0):
        time.sleep(1.0)
        stream.refresh()
        stream.refresh()
        assert len(answers) == left
    assert [home(key) for key in (0, 4, 5, 9, 10)] == ["b", "b", "c", "c", "c"]


def batch(first: int, last: int) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([f"key-{n % 50}" for n in range(first, last)]),
            pa.array([b"%d " % n for n in range(first, last)], pa.binary()),
        ],
        names=["partitionKey", "data"],
    )


def read_all(endpoint: ScriptedKinesis, client: BotoKinesis) -> tuple[list[tuple[str, int]], int]:
    """Every user record, as the source reads it, and the number of records of the stream."""
    found: list[tuple[str, int]] = []
    records = 0
    for shard in client.list_shards("orders"):
        iterator: str | None = client.iterator("orders", shard.id, "TRIM_HORIZON")
        while iterator is not None and (page := client.get_records(iterator, 1000)).records.num_rows:
            records += page.records.num_rows
            key, data, *_ = deaggregate_page(page.records).columns
            found += zip(key.to_pylist(), map(number, data.to_pylist()), strict=True)
            iterator = page.next_iterator
    return found, records


def test_a_write_over_a_reshard_is_read_whole_and_takes_few_records() -> None:
    with ScriptedKinesis(quotas=Quotas.none()) as endpoint:
        endpoint.create_stream("orders", 2)
        given = {"streamName": "orders", "endpointUrl": endpoint.endpoint_url, "aggregate": "true"}
        keys = {"region": "us-east-1", "awsAccessKeyId": "a", "awsSecretAccessKey": "b"}
        options = WriteOptions.parse(given | keys | {"maxRequestsInFlight": "2"})
        client = BotoKinesis(options)

        def batches() -> Any:
            yield batch(0, 20_000)
            endpoint.split("orders", endpoint.shards("orders")[0])
            yield batch(20_000, 40_000)
            endpoint.merge("orders", *endpoint.shards("orders")[1:])
            yield batch(40_000, 60_000)

        sent = KinesisWriter(options, SCHEMA, overwrite=False).write(batches()).sent
        assert (sent.records, sent.refusals) == (60_000, 0)
        found, records = read_all(endpoint, client)
        assert sorted(found) == sorted((f"key-{n % 50}", n) for n in range(60_000))
        assert records < 600
        assert client.open_shards("orders") == [
            (2**126 - 1, "shardId-000000000002"),
            (2**128 - 1, "shardId-000000000004"),
        ]


def test_a_shard_that_refuses_most_of_it_gets_it_all_and_a_map_needs_a_permission() -> None:
    with ScriptedKinesis(quotas=Quotas.none()) as endpoint:
        endpoint.create_stream("orders", 1)
        given = {"streamName": "orders", "endpointUrl": endpoint.endpoint_url, "aggregate": "true"}
        keys = {"region": "us-east-1", "awsAccessKeyId": "a", "awsSecretAccessKey": "b"}
        options = WriteOptions.parse(given | keys | {"clientNumRetries": "0", "maxAggregateBytes": "100B"})
        # It takes some tens of aggregates.
        endpoint.limit(replace(Quotas.none(), write_records=20))
        sent = KinesisWriter(options, SCHEMA, overwrite=False).write(iter([batch(0, 60)])).sent
        assert sent.records == 60
        assert sent.refusals > 0
        found, _ = read_all(endpoint, BotoKinesis(options))
        assert sorted(found) == sorted((f"key-{n % 50}", n) for n in range(60))
        # The process knows the shards.
        listed = endpoint.calls["ListShards", None]
        KinesisWriter(options, SCHEMA, overwrite=False).write(iter([batch(0, 3)]))
        assert endpoint.calls["ListShards", None] == listed
        endpoint.create_stream("others", 1)
        endpoint.script("ListShards", Refuse("AccessDeniedException", "no kinesis:ListShards"), times=None)
        with pytest.raises(AccessDeniedError, match=r"stream 'others'.*no kinesis:ListShards.*grant it"):
            KinesisWriter(replace(options, stream_name="others"), SCHEMA, overwrite=False).write(
                iter([batch(0, 3)])
            )


@pytest.mark.parametrize("option", ["streamARN", "awsAccessKeyId"])
def test_a_map_is_of_the_stream_that_these_credentials_reach(option: str) -> None:
    """Two accounts behind one address have a stream of the same name; the second has two shards."""
    values = {
        "streamARN": [
            f"arn:aws:kinesis:us-east-1:{account}:stream/orders" for account in ("1" * 12, "2" * 12)
        ],
        "awsAccessKeyId": ["a", "b"],
    }[option]
    with ScriptedKinesis(quotas=Quotas.none()) as endpoint:
        endpoint.create_stream("orders", 1)
        for shards, value in enumerate(values):
            if shards:
                endpoint.split("orders", endpoint.shards("orders")[0])
            given = {"streamName": "orders", "endpointUrl": endpoint.endpoint_url, "aggregate": "true"}
            given |= {"region": "us-east-1", "awsAccessKeyId": "a", "awsSecretAccessKey": "b", option: value}
            options = WriteOptions.parse(given)
            KinesisWriter(options, SCHEMA, overwrite=False).write(iter([batch(0, 500)]))
        for shard in endpoint._service.streams["orders"].shards.values():
            keys = {key for record in shard.records for key, *_ in published(record.data, record.key)}
            assert keys
            assert all(shard.hashes[0] <= hash_key(key) <= shard.hashes[1] for key in keys)


def test_the_rows_of_an_answer_are_not_written_again_if_the_shards_cannot_be_listed() -> None:
    time, listings = FakeTime(), 0

    def listed() -> list[tuple[int, str]]:
        nonlocal listings
        listings += 1
        if listings > 1:
            raise AccessDeniedError("stream 'orders': expired token")
        return [(2**128 - 1, "s0")]

    backlog = aggregating(rows(random.Random(1), 2, 1, 10, False), stream_of(listed, time), 51_200, time)

    def send(request: Entries) -> list[dict[str, Any]]:
        assert len(request) == 1
        time.sleep(5)
        return [{"ShardId": "s1", "SequenceNumber": "1"}]

    assert write(send, backlog) == 0
    assert listings == 2
    assert (backlog.size, backlog.waiting) == (0, 0)


def test_rows_for_several_streams_and_one_that_does_not_exist() -> None:
    with ScriptedKinesis(quotas=Quotas.none()) as endpoint:
        for name in ("orders", "others"):
            endpoint.create_stream(name, 2)
        given = {"endpointUrl": endpoint.endpoint_url, "region": "us-east-1", "clientNumRetries": "0"}
        keys = {"awsAccessKeyId": "a", "awsSecretAccessKey": "b"}
        schema = StructType([*SCHEMA, StructField("streamName", StringType())])

        def write_to(names: list[str | None], **more: str) -> Any:
            options = WriteOptions.parse({**given, **keys, **more}, rows_name_streams=True)
            rows = pa.record_batch(
                [
                    *batch(0, 900).columns,
                    pa.array([names[n % len(names)] for n in range(900)], pa.string()),
                ],
                names=schema.names,
            )
            return KinesisWriter(options, schema, overwrite=False).write(iter([rows]))

        for aggregate in ("true", "false"):
            assert write_to(["orders", "others"], aggregate=aggregate).sent.records == 900
        write_to(["others", None], streamName="orders")
        client = BotoKinesis(WriteOptions.parse({"streamName": "orders", **given, **keys}))
        found, _ = read_all(endpoint, client)
        assert sorted(n for _, n in found) == sorted([*range(0, 900, 2)] * 2 + [*range(1, 900, 2)])
        with pytest.raises(
            StreamMissingError, match=r"stream 'nowhere' in us-east-1.*check the stream's name"
        ):
            write_to(["orders", "nowhere"])
