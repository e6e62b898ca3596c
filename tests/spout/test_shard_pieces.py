"""One shard that several tasks of a batch read: each record once, in even shares, within the limits of the shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from thorough import examples

from kinesis_trident.spout.batch.batch_read import (
    KinesisBatchReader,
    RangesPartition,
    _ranges,
)
from kinesis_trident.spout.batch.pushed_filters import NO_FILTERS, OUT_OF_ORDER_MS, PushedFilters, ShardRange
from kinesis_trident.spout.batch.range_limits import share_limits
from kinesis_trident.spout.batch.range_read import Loaded, read_range
from kinesis_trident.spout.batch.shard_looks import cut_range, cut_ranges
from kinesis_trident.spout.batch.shard_pieces import PIECES_PER_TASK, Border, cut_at, find_borders
from kinesis_trident.spout.errors import DataLossError
from kinesis_trident.spout.kinesis import AccessDeniedError, ThrottledError
from kinesis_trident.spout.kinesis.rate_limit import ShardBudget, shard_limiter
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.positions import TRIM_HORIZON, After, At, AtTimestamp, Position, ShardEnd
from kinesis_trident.spout.testing import FakeTime, MemoryKinesis, Quotas, ScriptedKinesis, aggregate
from kinesis_trident.spout.testing.quotas import ShardQuota
from kinesis_trident.tracker.records import RecordPosition

A = "shardId-000000000000"
HOUR = 3_600_000
MOST = 2**62


def options(**given: str) -> SourceOptions:
    return SourceOptions.parse_batch(
        {"streamName": "orders", "minFetchPeriod": "0ms", "maxRecordsPerFetch": "40", **given}
    )


def read(
    kinesis: MemoryKinesis,
    given: SourceOptions,
    parts: Sequence[ShardRange],
    pushed: PushedFilters = NO_FILTERS,
) -> list[dict[str, Any]]:
    """Return the rows of some ranges, each list in the order of its shard."""
    return [
        row
        for part in parts
        for batch in read_range(kinesis, given, part, pushed=pushed)
        for row in batch.to_pylist()
    ]


def place(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["shardId"], int(row["sequenceNumber"]), row["subSequenceNumber"]


class Arrivals:
    """Finds records by time, as Kinesis does, and counts the looks."""

    def __init__(self, arrivals: Sequence[int], until: int) -> None:
        self.records = [
            Border(RecordPosition(number + 100), arrival) for number, arrival in enumerate(arrivals)
        ]
        self.until = until
        self.times: list[int] = []

    def look(self, time: int) -> Border | None:
        self.times.append(time)
        found = next((one for one in self.records if one.arrival >= time), None)
        return found if found is not None and found.arrival < self.until else None

    def borders(self, pieces: int, first: int = 0) -> list[Border]:
        return find_borders(self.records[first], self.until, pieces, self.look)


@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=60),
    st.integers(0, 59),
    st.integers(-5, 10**6),
    st.integers(1, 40),
)
def test_borders_are_records_in_order_behind_the_first(
    arrivals: list[int], drawn: int, later: int, pieces: int
) -> None:
    """In whatever order they have arrived."""
    begin = drawn % len(arrivals)
    shard = Arrivals(arrivals, arrivals[begin] + later)
    borders = shard.borders(pieces, begin)
    assert all(one.record < other.record for one, other in pairwise([shard.records[begin], *borders]))
    assert all(one in shard.records and one.arrival < shard.until for one in borders)
    assert len(borders) < pieces
    assert len(shard.times) < pieces + 8
    assert len(set(shard.times)) == len(shard.times)
    assert all(time % 1000 == 0 and arrivals[begin] < time < shard.until for time in shard.times)


def test_evenly_written_records_are_cut_into_equal_times() -> None:
    shard = Arrivals(range(0, 16 * HOUR, 1000), 16 * HOUR)
    assert [one.arrival for one in shard.borders(16)] == [n * HOUR for n in range(1, 16)]
    assert len(shard.times) == 15


def test_looks_close_in_on_the_time_that_has_records() -> None:
    """A shard that was closed after an hour of seven days."""
    shard = Arrivals(range(0, HOUR, 1000), 168 * HOUR)
    spans = [b.arrival - a.arrival for a, b in pairwise([shard.records[0], *shard.borders(16)])]
    assert len(spans) >= 12
    assert max(spans) <= HOUR / 4


@pytest.mark.parametrize("tasks", [2, 4, 8])
def test_shares_are_even_although_rates_vary(tasks: int) -> None:
    """A day of which two hours have ten times as many records."""
    arrivals = [
        minute * 60_000 + n for minute in range(24 * 60) for n in range(100 if 600 <= minute < 720 else 10)
    ]
    shard = Arrivals(arrivals, 24 * HOUR)
    whole = ShardRange("orders", A, TRIM_HORIZON, ShardEnd())
    dealt = cut_at(whole, shard.borders(PIECES_PER_TASK * tasks), tasks)
    shares = [sum(_count(shard, piece) for piece in pieces) for pieces in dealt]
    assert sum(shares) == len(arrivals)
    assert max(shares) <= 1.25 * len(arrivals) / tasks


def _count(shard: Arrivals, piece: ShardRange) -> int:
    first = piece.start.record if isinstance(piece.start, At) else RecordPosition(0)
    last = piece.end.record if isinstance(piece.end, At) else RecordPosition(MOST)
    return sum(first <= one.record < last for one in shard.records)


@settings(max_examples=examples(100), deadline=None)
@given(st.data(), st.randoms(use_true_random=False))
def test_each_record_is_in_one_piece(data: st.DataObject, rng: Random) -> None:
    """Arrival times decrease within the bound, or are unknown; there are aggregates, and empty answers."""
    time, early = FakeTime(), 0
    kinesis = MemoryKinesis(clock=lambda: time.milliseconds() - early)
    times, numbers = [], []
    for number in range(data.draw(st.integers(1, 60))):
        time.sleep(rng.choice([0, 0.2, 30, 600]))
        early = rng.choice([0, 0, rng.randrange(OUT_OF_ORDER_MS)])
        shard = rng.choice(kinesis.open_shards)
        text = str(number).encode()
        body = aggregate([(text + b"a", "k"), (text + b"b", "l")]) if rng.random() < 0.2 else text
        numbers.append((shard, kinesis.put(shard, body)))
        times.append(time.milliseconds() - early)
        if rng.random() < 0.1:
            kinesis.garble(shard, numbers[-1][1], {"ApproximateArrivalTimestamp": None})
        if rng.random() < 0.1:
            kinesis.gap(shard, rng.randint(1, 7))
        if number % 25 == 24:
            kinesis.split(shard)
    early = 0
    time.sleep(2)
    now = time.milliseconds()
    given = {"maxRecordsPerFetch": str(rng.choice([1, 3, 10]))}
    start, end = (
        data.draw(st.sampled_from(["", "time", "number"])),
        data.draw(st.sampled_from(["", "time", "number"])),
    )
    if start == "time":
        given["startingPosition"] = f"AT_TIMESTAMP {rng.choice(times)}"
    if start == "number":
        shard, sequence = rng.choice(numbers)
        given["startingPosition"] = f'{{"{shard}": "AFTER_SEQUENCE_NUMBER {sequence}", "*": "TRIM_HORIZON"}}'
    if end == "time" and start != "time":
        given["endingPosition"] = f"AT_TIMESTAMP {max(times) + rng.choice([-600_000, 0, 1])}"
    if end == "number" and start != "number":
        shard, sequence = rng.choice(numbers)
        kind = rng.choice(["AT", "AFTER"])
        given["endingPosition"] = f'{{"{shard}": "{kind}_SEQUENCE_NUMBER {sequence}", "*": "LATEST"}}'
    parsed = options(**given)
    tasks = data.draw(st.integers(2, 5))
    whole = list(_ranges(parsed, kinesis, "orders", now, NO_FILTERS))
    dealt = cut_ranges(kinesis, parsed, whole, now, tasks)
    assert all(len(pieces) for pieces in dealt)
    assert len(dealt) <= tasks * len(whole)
    found = [row for pieces in dealt for row in read(kinesis, parsed, pieces)]
    expected = read(kinesis, parsed, whole)
    assert sorted(found, key=place) == sorted(expected, key=place)


@pytest.mark.parametrize("by_number", [False, True])
def test_no_border_is_behind_the_end_where_arrival_times_decrease(by_number: bool) -> None:
    now = 0
    kinesis = MemoryKinesis(clock=lambda: now)
    begin, numbers = 10**12, []
    for second in (0, 10, 100, *range(41, 100)):
        now = begin + second * 1000
        numbers.append(kinesis.put(A, str(second).encode()))
    now += 10**6
    end = At(RecordPosition(numbers[2])) if by_number else AtTimestamp(begin + 100_000)
    whole = ShardRange("orders", A, TRIM_HORIZON, end)
    assert [row["data"] for row in read(kinesis, options(), [whole])] == [b"0", b"10"]
    dealt = cut_range(kinesis, options(), whole, now, 4)
    assert [row["data"] for own in dealt for row in read(kinesis, options(), own)] == [b"0", b"10"]


class Day:
    """A shard with a record of each minute of a day."""

    def __init__(self, **more: Any) -> None:
        self.time = FakeTime()
        self.kinesis = MemoryKinesis(clock=self.time.milliseconds, **more)
        self.arrivals, self.sequences = [], []
        for minute in range(24 * 60):
            self.arrivals.append(self.time.milliseconds())
            self.sequences.append(self.kinesis.put(A, str(minute).encode()))
            self.time.sleep(60)

    def cut(
        self, start: Position = TRIM_HORIZON, end: Position | None = None, tasks: int = 4, **more: Any
    ) -> list[tuple[ShardRange, ...]]:
        now = self.time.milliseconds()
        part = ShardRange("orders", A, start, end or AtTimestamp(now), **more)
        return cut_range(self.kinesis, options(), part, now, tasks)

    def minutes(self, dealt: Sequence[Sequence[ShardRange]]) -> list[list[int]]:
        """Return the minutes that each task reads."""
        given = options(maxRecordsPerFetch="10000")
        return [[int(row["data"]) for row in read(self.kinesis, given, own)] for own in dealt]


def test_a_cut_shard_is_read_by_all_its_tasks_in_even_shares() -> None:
    day = Day()
    dealt = day.cut()
    minutes = day.minutes(dealt)
    assert sorted(minute for own in minutes for minute in own) == list(range(24 * 60))
    assert all(own == sorted(own) for own in minutes)
    assert max(map(len, minutes)) <= 1.1 * 24 * 60 / 4
    # A look for each border, and one for the first record.
    assert {part.tasks for own in dealt for part in own} == {4}
    day.kinesis.clear()


def test_a_cut_costs_a_call_for_each_border() -> None:
    day = Day()
    day.cut()
    assert day.kinesis.calls["get_records", A] == PIECES_PER_TASK * 4


def test_a_piece_asks_for_little_beyond_its_end() -> None:
    day = Day()
    dealt = day.cut()
    returned: list[int] = []
    get_records = day.kinesis.get_records

    def counted(iterator: str, limit: int) -> Any:
        page = get_records(iterator, limit)
        returned.append(page.records.num_rows)
        return page

    day.kinesis.get_records = counted  # type: ignore[method-assign]
    day.minutes([[replace(piece, until=None) for piece in own] for own in dealt])
    without, returned[:] = sum(returned), []
    day.minutes(dealt)
    assert sum(returned) < without


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (lambda day: At(day(60)), lambda day: At(day(1000))),
        (lambda day: After(day(59)), lambda day: After(day(999))),
        (lambda day: At(day(60)), lambda _: ShardEnd()),
        (lambda _: TRIM_HORIZON, lambda day: At(day(1000))),
    ],
)
def test_positions_by_number_are_cut_too(
    start: Callable[[Callable[[int], RecordPosition]], Position],
    end: Callable[[Callable[[int], RecordPosition]], Position],
) -> None:
    day = Day()

    def record(minute: int) -> RecordPosition:
        return RecordPosition(day.sequences[minute])

    first, last = start(record), end(record)
    minutes = day.minutes(day.cut(first, last))
    begin = 0 if first == TRIM_HORIZON else 60
    stop = 1440 if isinstance(last, ShardEnd) else 1000
    assert sorted(minute for own in minutes for minute in own) == list(range(begin, stop))
    assert len(minutes) == 4
    assert max(map(len, minutes)) <= 1.2 * (stop - begin) / 4


def test_nothing_is_cut_where_there_is_little_or_one_record_is_wanted() -> None:
    day = Day()
    (one,) = day.cut(AtTimestamp(day.arrivals[-2]))
    assert len(one) == 1
    (one,) = day.cut(At(RecordPosition(day.sequences[5])), last=day.sequences[5])
    assert len(one) == 1
    (one,) = day.cut(After(RecordPosition(day.sequences[-1])))
    assert one == (replace(one[0], tasks=1),)
    assert day.cut(ShardEnd()) == [(ShardRange("orders", A, ShardEnd(), one[0].end),)]


@pytest.mark.parametrize(("records", "pieces"), [(999, 1), (1001, 16)])
def test_few_records_are_not_cut(records: int, pieces: int) -> None:
    """A page of a thousand is one call, and the end of the range may be in it, or the tip."""
    day = Day()
    for end in (At(RecordPosition(day.sequences[records])), AtTimestamp(day.arrivals[records])):
        part, given = ShardRange("orders", A, TRIM_HORIZON, end), options(maxRecordsPerFetch="10000")
        day.kinesis.calls.clear()
        dealt = cut_range(day.kinesis, given, part, day.time.milliseconds(), 2)
        assert sum(map(len, dealt)) == pieces
        assert (day.kinesis.calls["get_records", A] == 1) == (pieces == 1)
    start = At(RecordPosition(day.sequences[-records]))
    dealt = cut_range(
        day.kinesis, given, replace(part, start=start, end=ShardEnd()), day.time.milliseconds(), 2
    )
    assert sum(map(len, dealt)) == pieces


def test_a_start_that_kinesis_refuses_leaves_the_shard_whole() -> None:
    day = Day()
    day.kinesis.fail(A, AccessDeniedError("not yours"))
    start, otherwise = At(RecordPosition(day.sequences[60])), TRIM_HORIZON
    ((part,),) = day.cut(start, otherwise=otherwise)
    assert (part.start, part.otherwise, part.tasks) == (start, otherwise, 1)
    # Only the first piece has another start.
    assert [piece.otherwise for own in day.cut(start, otherwise=otherwise) for piece in own].count(None) == 31


def test_a_look_that_is_refused_is_made_again() -> None:
    day = Day()
    day.kinesis.fail(A, *[ThrottledError("slow down")] * 2)
    assert len(day.cut(tasks=2)) == 2


@pytest.mark.parametrize("everything", [False, True])
def test_what_expires_between_the_plan_and_the_read_is_data_loss(
    everything: bool, caplog: pytest.LogCaptureFixture
) -> None:
    day = Day()
    dealt = day.cut(tasks=2)
    first, second = dealt[0][0], dealt[1][0]
    assert isinstance(second.start, At)
    day.kinesis.trim(A, day.sequences[-1] if everything else second.start.record.number)
    # What a batch reads from TRIM_HORIZON is what the shard still has.
    assert read(day.kinesis, options(), [first]) == []
    with pytest.raises(DataLossError, match=f"shard {A}: reading is to go on from AT_SEQUENCE_NUMBER"):
        read(day.kinesis, options(), [second])
    lenient = options(failOnDataLoss="false")
    minutes = sorted(int(row["data"]) for own in dealt for row in read(day.kinesis, lenient, own))
    gone = 1440 if everything else day.sequences.index(second.start.record.number) + 1
    assert minutes == list(range(gone, 1440))
    assert "continuing with the remaining records" in caplog.text


@pytest.mark.parametrize("limits", [{}, {"maxFetchRate": "1", "minFetchPeriod": "500ms"}])
@pytest.mark.parametrize("size", [1_000, 100_000, 4_000_000])
def test_tasks_together_keep_to_the_limits_of_a_shard(limits: dict[str, str], size: int) -> None:
    """Each has a budget of its own, in its own process, and they begin at one time."""
    given = SourceOptions.parse_batch({"streamName": "orders", **limits})
    tasks, seconds, calls = 4, 300, 0
    share = share_limits(given, tasks)
    for _ in range(tasks):
        budget, now = ShardBudget(share.min_fetch_period, share.max_fetch_rate), 0.0
        while now < seconds:
            if wait := budget.wait(now):
                now += wait
            else:
                budget.note_call()
                budget.note_end(now)
                budget.note_answer(size, now)
                calls += 1
    most = min(seconds / given.min_fetch_period, seconds * given.max_fetch_rate / size)
    assert 0.9 * most <= calls <= most + tasks


@pytest.mark.parametrize(("tasks", "factor"), [(1, 1.01), (2, 1.15), (4, 1.2), (8, 1.3)])
@pytest.mark.parametrize("size", [1024, 20_000])
def test_tasks_that_only_read_get_nearly_all_of_a_shard(tasks: int, factor: float, size: int) -> None:
    """400 MB in full pages from a shard that refuses what exceeds its limits; none waits for long for an answer."""
    given = SourceOptions.parse_batch({"streamName": "orders"})
    share, quotas, rng = share_limits(given, tasks), Quotas(), Random(1)
    shard, page = ShardQuota("orders"), min(10_000 * size, 10 * 2**20)
    limits = share.min_fetch_period, share.max_fetch_rate
    waits = share.client_retry_interval, share.client_max_retry_interval
    budgets = [ShardBudget(*limits, *waits) for _ in range(tasks)]
    left, answered = [400 * 2**20 // tasks] * tasks, [0.0] * tasks
    calls = [(rng.random() / 5, task) for task in range(tasks)]
    while calls:
        now, task = heappop(calls)
        if wait := budgets[task].wait(now):
            heappush(calls, (now + wait + 1e-6, task))
            continue
        budgets[task].note_call()
        end = now + 0.02
        budgets[task].note_end(end)
        try:
            shard.read(quotas, int(now * 1000))
        except ThrottledError:
            budgets[task].note_refusal(end, rng)
        else:
            shard.note_answer(page, quotas, int(now * 1000))
            budgets[task].note_answer(page, end)
            left[task] -= page
            assert end - answered[task] < given.read_timeout / 2
            answered[task] = end
        if left[task] > 0:
            heappush(calls, (end, task))
    assert max(answered) <= factor * 200


def test_a_task_of_several_takes_its_share() -> None:
    day = Day()
    given = options(minFetchPeriod="1h", endpointUrl="http://shared")
    part = ShardRange("orders", A, TRIM_HORIZON, At(RecordPosition(day.sequences[5])), tasks=4)
    assert len(read(day.kinesis, given, [part])) == 5
    assert not shard_limiter(share_limits(given, 4), "orders", A).acquire(patience=0)
    assert shard_limiter(given, "orders", A).acquire(patience=0)


def reader(server: ScriptedKinesis, **given: str) -> KinesisBatchReader:
    where = {"streamName": "orders", "endpointUrl": server.endpoint_url, "region": "us-east-1"}
    return KinesisBatchReader(
        SourceOptions.parse_batch(where | {"minFetchPeriod": "0ms", "maxRecordsPerFetch": "40"} | given),
        Loaded(server.now),
    )


def test_as_many_tasks_read_each_shard_as_max_partitions_allows() -> None:
    with ScriptedKinesis(quotas=Quotas.none()) as server:
        server.create_stream("orders", 2)
        for minute in range(60):
            for shard in server.shards("orders"):
                server.put("orders", shard, str(minute).encode())
            server.advance(60)

        def tasks(**given: str) -> list[RangesPartition]:
            return [
                part for part in reader(server, **given).partitions() if isinstance(part, RangesPartition)
            ]

        assert len(tasks(tasksPerShard="3")) == 6
        assert len(tasks(tasksPerShard="3", maxPartitions="5")) == 4
        assert len(tasks(tasksPerShard="3", maxPartitions="3")) == 2
        assert len(tasks(tasksPerShard="3", maxPartitions="1")) == 1
        assert len(tasks()) == 2
        batch = reader(
            server, tasksPerShard="3", startingPosition=f"AT_TIMESTAMP {server.now - HOUR // 2 - 30_000}"
        )
        read = [
            (one["shardId"], int(one["data"]))
            for part in batch.partitions()
            for rows in batch.read(part)
            for one in rows.to_pylist()
        ]
        assert sorted(read) == sorted((shard, n) for shard in server.shards("orders") for n in range(30, 60))
