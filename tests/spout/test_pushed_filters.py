"""Filters that a batch takes over: the rows are those that Spark would keep, and little else is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from pyspark.sql.datasource import DataSourceReader
from thorough import examples

from kinesis_trident.spout.batch.batch_read import (
    FilteringBatchReader,
    KinesisBatchReader,
    RangesPartition,
    _ranges,
)
from kinesis_trident.spout.batch.pushed_filters import OUT_OF_ORDER_MS, PushedFilters, ShardRange
from kinesis_trident.spout.batch.range_read import Loaded, read_range
from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.kinesis import KinesisError, Page
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.positions import TRIM_HORIZON, After, At
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis, Quotas, ScriptedKinesis
from kinesis_trident.tracker.records import RecordPosition

pytest.importorskip("pyspark", minversion="4.1")
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

ARRIVAL, SEQUENCE, SHARD = ("approximateArrivalTimestamp",), ("sequenceNumber",), ("shardId",)
A, B = "shardId-000000000000", "shardId-000000000001"
MEANING: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda one, other: one == other,
    EqualNullSafe: lambda one, other: one == other,
    GreaterThan: lambda one, other: one > other,
    GreaterThanOrEqual: lambda one, other: one >= other,
    LessThan: lambda one, other: one < other,
    LessThanOrEqual: lambda one, other: one <= other,
    In: lambda one, others: one in others,
}
COMPARISONS = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]


def read(kinesis: MemoryKinesis, filters: Iterable[Filter], now: int, **given: str) -> list[dict[str, Any]]:
    """Return the rows of a batch that has taken over filters."""
    options = SourceOptions.parse_batch({"streamName": "orders", "minFetchPeriod": "0ms", **given})
    pushed, left = PushedFilters.take(filters)
    assert left == []
    return [
        row
        for part in _ranges(options, kinesis, "orders", now, pushed)
        for batch in read_range(kinesis, options, part, pushed=pushed)
        for row in batch.to_pylist()
    ]


def count_returned(kinesis: MemoryKinesis) -> list[int]:
    """Return a list that gets the number of records of each answer."""
    returned: list[int] = []
    get_records = kinesis.get_records

    def counted(iterator: str, limit: int) -> Page:
        page = get_records(iterator, limit)
        returned.append(page.records.num_rows)
        return page

    kinesis.get_records = counted  # type: ignore[method-assign]
    return returned


def at(milliseconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


@st.composite
def filters_of(draw: st.DrawFn, times: list[int], sequences: list[int]) -> list[Filter]:
    """Draw filters near the values of a stream's records."""
    comparison = st.sampled_from(COMPARISONS)
    time = st.sampled_from(times).flatmap(lambda t: st.sampled_from([t - 1, t - 0.5, t, t + 0.001, t + 1]))
    number = st.sampled_from([*map(str, sequences), "0", "5", "abc", "007", str(max(sequences) + 1)])
    shard = st.sampled_from([A, B, "shardId-000000000007", None])
    one = st.one_of(
        st.builds(lambda kind, t: kind(ARRIVAL, at(t)), comparison, time),
        st.builds(lambda kind, t: kind(ARRIVAL, at(t)), comparison, time),
        st.builds(lambda kind, text: kind(SEQUENCE, text), comparison, number),
        st.builds(lambda names: In(SHARD, tuple(names)), st.lists(shard, min_size=1, max_size=2)),
        st.builds(lambda name: EqualTo(SHARD, name), shard.filter(bool)),
    )
    return draw(st.lists(one, max_size=4))


@pytest.mark.parametrize("names", [[0], [1], [2], [0, 2], [1, 9]])
def test_a_shard_that_no_listing_shows_yet_is_read_where_a_filter_names_it(names: list[int]) -> None:
    """It comes of a listed one, which is asked what does, and of which no record is a row."""
    time = FakeTime()
    kinesis = MemoryKinesis(shards=1, clock=time.milliseconds)
    held = {A: b"0"}
    kinesis.put(A, b"0")
    listings, shown = [kinesis.list_shards("orders")], kinesis.list_shards
    for _ in range(2):
        time.sleep(5)
        parent = max(kinesis.open_shards)
        for child, data in zip(kinesis.split(parent), (b"left", b"right"), strict=True):
            kinesis.put(child, data)
            held[child] = data
    time.sleep(5)
    kinesis.list_shards = lambda *given: listings.pop() if listings else shown(*given)  # type: ignore[method-assign]
    wanted = [f"shardId-{name:012d}" for name in names]
    rows = read(kinesis, [In(SHARD, tuple(wanted))], time.milliseconds())
    assert sorted((row["shardId"], row["data"]) for row in rows) == sorted(
        (name, held[name]) for name in wanted if name in held
    )


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), st.randoms(use_true_random=False))
def test_rows_are_those_that_spark_would_keep(data: st.DataObject, rng: Random) -> None:
    """Arrival times decrease within the bound, shards split, and the options bound the batch too."""
    time = FakeTime()
    early = 0
    kinesis = MemoryKinesis(shards=2, clock=lambda: time.milliseconds() - early)
    times, sequences = [], []
    for number in range(data.draw(st.integers(1, 40))):
        time.sleep(rng.choice([0, 0, 0.2, 30, 600]))
        early = rng.choice([0, 0, rng.randrange(OUT_OF_ORDER_MS)])
        shards = kinesis.open_shards
        sequences.append(kinesis.put(rng.choice(shards), str(number).encode()))
        times.append(time.milliseconds() - early)
        if number % 15 == 14:
            kinesis.split(shards[0])
    early = 0
    time.sleep(2)
    now = time.milliseconds()
    filters = data.draw(filters_of(times, sequences))
    given = {}
    if data.draw(st.booleans()):
        given["startingPosition"] = f"AT_TIMESTAMP {data.draw(st.sampled_from(times))}"
    if data.draw(st.booleans()):
        given["endingPosition"] = f"AT_TIMESTAMP {max(times) + data.draw(st.sampled_from([-600_000, 0, 1]))}"
        given.pop("startingPosition", None)
    expected = [
        row
        for row in read(kinesis, [], now, **given)
        if all(MEANING[type(one)](row[one.attribute[0]], one.value) for one in filters)
    ]
    assert read(kinesis, filters, now, **given) == expected


def test_arrival_times_may_decrease() -> None:
    now = 0
    kinesis = MemoryKinesis(clock=lambda: now)
    start = 10**12
    seconds = [0, 100, 41, 42, 43, 300, 101]
    for second in seconds:
        now = start + second * 1000
        kinesis.put(A, str(second).encode())
    now += 10**6

    def found(*filters: Filter) -> list[int]:
        return [int(row["data"]) for row in read(kinesis, filters, now)]

    edge = at(start + 100_000)
    assert found(GreaterThanOrEqual(ARRIVAL, edge)) == [100, 300, 101]
    assert found(GreaterThan(ARRIVAL, edge)) == [300, 101]
    assert found(LessThan(ARRIVAL, edge)) == [0, 41, 42, 43]
    assert found(LessThan(ARRIVAL, at(start + 99_000))) == [0, 41, 42, 43]
    assert found(LessThanOrEqual(ARRIVAL, edge)) == [0, 100, 41, 42, 43]
    assert found(EqualTo(ARRIVAL, edge)) == [100]


def test_other_filters_stay_with_spark() -> None:
    day = datetime(2026, 1, 31, tzinfo=UTC)
    ours = [GreaterThanOrEqual(ARRIVAL, day), EqualTo(SHARD, A), In(("stream",), ("orders", None))]
    others = [
        IsNotNull(ARRIVAL),
        Not(EqualTo(SHARD, A)),
        StringStartsWith(SHARD, "shardId"),
        GreaterThan(SHARD, A),
        EqualTo(("partitionKey",), "key"),
        GreaterThanOrEqual(ARRIVAL, day.replace(tzinfo=None)),
        EqualTo(ARRIVAL, None),
        EqualTo(("decoded", "shardId"), A),
        In(ARRIVAL, (day,)),
    ]
    pushed, left = PushedFilters.take([*ours, *others])
    assert left == others
    assert all(one is other for one, other in zip(left, others, strict=True))
    assert [one.column for one in pushed.comparisons] == ["approximateArrivalTimestamp", "shardId", "stream"]
    assert pushed.admits("stream", "orders")
    assert not pushed.admits("stream", "payments")


def test_records_outside_the_filter_are_not_judged() -> None:
    """One that cannot be decoded stops a batch only if it belongs to it."""
    time = FakeTime()
    kinesis = MemoryKinesis(clock=time.milliseconds)
    odd = kinesis.put(A, b"odd")
    kinesis.garble(A, odd, {"Data": 7})
    time.sleep(1)
    second = time.milliseconds()
    kinesis.put(A, b"good")
    time.sleep(2)
    (row,) = read(kinesis, [GreaterThanOrEqual(ARRIVAL, at(second))], time.milliseconds())
    assert row["data"] == b"good"
    with pytest.raises(Exception, match="cannot be decoded"):
        read(kinesis, [LessThanOrEqual(ARRIVAL, at(second))], time.milliseconds())


def test_a_sequence_number_starts_its_shard_only() -> None:
    time = FakeTime()
    kinesis = MemoryKinesis(shards=2, clock=time.milliseconds)
    numbers = [kinesis.put(A, b"") for _ in range(40)]
    kinesis.put(B, b"")
    time.sleep(2)
    options = SourceOptions.parse_batch({"streamName": "orders"})
    width = len(str(next(one for one in kinesis.list_shards("orders") if one.id == A).sequences[0]))
    middle = next(one for one in numbers if len(str(one)) == width)

    def ranges(*filters: Filter) -> list[ShardRange]:
        return list(_ranges(options, kinesis, "orders", time.milliseconds(), PushedFilters.take(filters)[0]))

    since, only = GreaterThanOrEqual(SEQUENCE, str(middle)), EqualTo(SHARD, A)
    assert [one.start for one in ranges(since)] == [TRIM_HORIZON, TRIM_HORIZON]
    (part,) = ranges(since, only)
    assert (part.start, part.otherwise) == (At(RecordPosition(middle)), TRIM_HORIZON)
    (part,) = ranges(GreaterThanOrEqual(SEQUENCE, f"{middle}0"), only)
    assert part.start == TRIM_HORIZON
    later = f'{{"{A}": "AFTER_SEQUENCE_NUMBER {middle}", "*": "TRIM_HORIZON"}}'
    options = SourceOptions.parse_batch({"streamName": "orders", "startingPosition": later})
    (part,) = ranges(since, only)
    assert part.start == After(RecordPosition(middle))


def test_one_sequence_number_is_read_in_a_call() -> None:
    time = FakeTime()
    kinesis = MemoryKinesis(clock=time.milliseconds)
    numbers = [kinesis.put(A, b"") for _ in range(40)]
    time.sleep(2)
    returned = count_returned(kinesis)
    filters = [EqualTo(SEQUENCE, str(numbers[0])), EqualTo(SHARD, A)]
    assert len(read(kinesis, filters, time.milliseconds(), maxRecordsPerFetch="2")) == 1
    assert sum(returned) == 2


def test_a_number_that_kinesis_refuses_costs_a_call() -> None:
    time = FakeTime()
    kinesis = MemoryKinesis(clock=time.milliseconds)
    first = kinesis.put(A, b"1")
    time.sleep(2)
    for kind in (EqualTo, GreaterThanOrEqual):
        kinesis.fail(A, KinesisError("it did not come from this stream"))
        filters = [kind(SEQUENCE, str(first)), EqualTo(SHARD, A)]
        assert [row["data"] for row in read(kinesis, filters, time.milliseconds())] == [b"1"]


@pytest.mark.parametrize("seconds_apart", [1.0, 0.05])
def test_an_hour_of_a_day_reads_little_more_than_an_hour(seconds_apart: float) -> None:
    time = FakeTime()
    kinesis = MemoryKinesis(clock=time.milliseconds)
    begin = time.milliseconds()
    for _ in range(int((24 if seconds_apart == 1 else 3) * 3600 / seconds_apart)):
        kinesis.put(A, b"")
        time.sleep(seconds_apart)
    returned = count_returned(kinesis)
    first, last = at(begin + 3_600_000), at(begin + 7_200_000)
    filters = [GreaterThanOrEqual(ARRIVAL, first), LessThan(ARRIVAL, last)]
    rows = read(kinesis, filters, time.milliseconds())
    assert len(rows) == 3600 / seconds_apart
    assert sum(returned) <= 1.1 * len(rows)


def test_a_batch_of_no_shard_has_a_task_without_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    with ScriptedKinesis(quotas=Quotas.none()) as server:
        server.create_stream("orders", 1)
        options = {"streamName": "orders", "endpointUrl": server.endpoint_url, "region": "us-east-1"}
        batch = FilteringBatchReader(SourceOptions.parse_batch(options), Loaded(server.now), "a-load")
        assert batch.pushFilters([EqualTo(SHARD, B)]) == []
        (part,) = batch.partitions()
        assert isinstance(part, RangesPartition)
        assert list(batch.read(part)) == []
        other = KinesisBatchReader(SourceOptions.parse_batch(options), Loaded(server.now))
        assert len(other.partitions()) == 1


def test_filters_of_a_second_query_are_refused_where_spark_mixes_them_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    folders[0].mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", ",".join(map(str, folders)))
    options = SourceOptions.parse_batch({"streamName": "orders"})
    first, second = [EqualTo(SHARD, A)], [EqualTo(SHARD, B)]

    def push(load: str | None, filters: list[Filter]) -> list[Filter]:
        return list(FilteringBatchReader(options, Loaded(0), load).pushFilters(filters))

    assert push("one", first) == push("one", first) == push("two", second) == []
    for filters in (second, []):
        with pytest.raises(OptionsError, match="Call load"):
            push("one", filters)
    # A load that is not known takes over nothing.
    assert push(None, first) == first
    monkeypatch.setattr(DataSourceReader, "pushLimit", None, raising=False)
    assert push("one", second) == push(None, first) == []
