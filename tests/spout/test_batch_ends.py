"""A batch reads all that arrives before its end and after its start, or says what it does not."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import UTC, datetime
from unittest.mock import patch

import pytest
from batch_at_hand import Frame

from kinesis_trident.spout.batch.batch_read import load_streams
from kinesis_trident.spout.errors import DataLossError, OptionsError, StreamRecreatedError
from kinesis_trident.spout.kinesis import Shard, Unavailable
from kinesis_trident.spout.kinesis.client import BotoKinesis
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.testing import Quotas, ScriptedKinesis, aggregate

A = "shardId-000000000000"
HOUR = 3600.0


@pytest.fixture
def server() -> Iterator[ScriptedKinesis]:
    with ScriptedKinesis(quotas=Quotas.none()) as server:
        server.create_stream("orders", 1)
        yield server


def put(server: ScriptedKinesis, shard: str, *numbers: int) -> None:
    for number in numbers:
        server.put("orders", shard, str(number).encode())


def numbers(rows: list[bytes]) -> list[int]:
    return sorted(map(int, rows))


def at(milliseconds: int) -> str:
    return f"AT_TIMESTAMP {datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()}"


def later_by(seconds: float) -> Callable[[], float]:
    clock = time.time
    return lambda: clock() + seconds


# What a split moves.


@pytest.mark.parametrize("action", ["first", "second"])
def test_what_a_split_moves_before_the_end_is_in_the_batch(server: ScriptedKinesis, action: str) -> None:
    put(server, A, *range(10))
    frame = Frame(server, endingPosition=at(server.now + 60_000), maxRecordsPerFetch="2")
    task = frame.act().task(0)
    rows = [next(task)]
    left, right = server.split("orders", A)
    put(server, left, *range(10, 20))
    put(server, right, *range(20, 30))
    server.advance(61)
    put(server, right, 99)
    rows = [*rows, *task] if action == "first" else frame.rows()
    assert numbers(rows) == list(range(30))


def test_what_is_merged_and_split_before_the_end_is_read_by_one_task(server: ScriptedKinesis) -> None:
    left, right = server.split("orders", A)
    put(server, left, 1)
    put(server, right, 2)
    frame = Frame(server, endingPosition=at(server.now + 60_000), maxRecordsPerFetch="1")
    action = frame.act()
    tasks = [action.task(number) for number in range(len(action.parts))]
    rows = [next(task) for task in tasks[1:]]
    merged = server.merge("orders", left, right)
    put(server, merged, 3)
    for child in server.split("orders", merged):
        put(server, child, 4)
    server.advance(61)
    rows += [data for task in tasks for data in task]
    assert numbers(rows) == [1, 2, 3, 4, 4]


def test_a_split_within_the_second_that_the_clock_of_kinesis_rounds_loses_nothing(
    server: ScriptedKinesis,
) -> None:
    put(server, A, *range(10))
    frame = Frame(server)
    action = frame.act()
    left, _ = server.split("orders", A)
    with server._lock:
        held = server._stream("orders")
        for number in range(10, 20):
            held.put(held.shard(left), str(number).encode(), "key", held.shard(A).records[-1].arrival)
    server.advance(2)
    assert numbers(action.rows()) == numbers(frame.rows()) == list(range(20))


def test_a_shard_that_still_answers_behind_its_end_hands_over_too(server: ScriptedKinesis) -> None:
    put(server, A, 1)
    server.linger("orders", A, 3)
    frame = Frame(server, endingPosition=at(server.now + 60_000))
    task = frame.act().task(0)
    rows = [next(task)]
    left, _ = server.split("orders", A)
    put(server, left, 2)
    server.advance(61)
    assert numbers([*rows, *task]) == [1, 2]


def test_children_that_a_listing_lacks_are_listed_again(server: ScriptedKinesis) -> None:
    put(server, A, 1)
    left, right = server.split("orders", A)
    put(server, left, 2)
    put(server, right, 3)
    server.advance(2)
    whole, lags = BotoKinesis.list_shards, [1, 2, 1]

    def lagging(self: BotoKinesis, *asked: object) -> list[Shard]:
        listed = whole(self, *asked)  # type: ignore[arg-type]
        return listed[: lags.pop(0)] if lags else listed

    # The plan has the closed parent alone; later one child, and neither.
    with patch.object(BotoKinesis, "list_shards", lagging):
        assert numbers(Frame(server).rows()) == [1, 2, 3]


def test_a_listing_that_still_has_the_parent_open_loses_nothing(server: ScriptedKinesis) -> None:
    """The frame is planned long after it was loaded, from a listing that is older than the split."""
    put(server, A, 1)
    frame = Frame(server)
    left, _ = server.split("orders", A)
    with server._lock:
        held = server._stream("orders")
        held.put(held.shard(left), b"2", "key", held.shard(A).records[-1].arrival)
    server.advance(2)
    whole, stale = BotoKinesis.list_shards, [True]

    def lagging(self: BotoKinesis, *asked: object) -> list[Shard]:
        listed = whole(self, *asked)  # type: ignore[arg-type]
        return [replace(listed[0], closed=False)] if stale and stale.pop() else listed

    with patch.object(BotoKinesis, "list_shards", lagging), patch.object(time, "time", later_by(5)):
        assert numbers(frame.rows()) == [1, 2]


def test_children_that_are_never_listed_are_an_error(server: ScriptedKinesis) -> None:
    put(server, A, 1)
    server.split("orders", A)
    server.advance(2)
    whole = BotoKinesis.list_shards

    def lagging(self: BotoKinesis, *asked: object) -> list[Shard]:
        return whole(self, *asked)[:1]  # type: ignore[arg-type]

    with (
        patch.object(BotoKinesis, "list_shards", lagging),
        pytest.raises(
            Unavailable, match=f"shard {A} is closed, but the shards that came of it are not listed"
        ),
    ):
        Frame(server, readTimeout="1s").rows()


def test_an_end_that_names_one_shard_leaves_the_others_at_latest(server: ScriptedKinesis) -> None:
    server.create_stream("more", 3)
    shards = server.shards("more")
    first = [server.put("more", shards[0], b"0") for _ in range(4)]
    for shard in shards[1:]:
        for _ in range(7):
            server.put("more", shard, b"1")
    server.advance(2)
    end = f'{{"more": {{"{shards[0]}": "AT_SEQUENCE_NUMBER {first[3]}"}}}}'
    assert numbers(Frame(server, "more", endingPosition=end).rows()) == [0] * 3 + [1] * 14
    none = f'{{"more": {{"{shards[0]}": "AT_SEQUENCE_NUMBER {first[3]}", "*": "TRIM_HORIZON"}}}}'
    assert numbers(Frame(server, "more", endingPosition=none).rows()) == [0] * 3


def test_two_ranges_that_meet_at_an_aggregate_have_each_of_its_records(server: ScriptedKinesis) -> None:
    put(server, A, 0)
    met = server.put("orders", A, aggregate([(b"1", "key"), (b"2", "key")]))
    put(server, A, 3)
    server.advance(2)
    cut = json.dumps({"orders": {A: f"AFTER_SEQUENCE_NUMBER {met}"}})
    assert numbers(Frame(server, endingPosition=cut).rows()) == [0, 1, 2]
    assert numbers(Frame(server, startingPosition=cut).rows()) == [3]
    within = json.dumps({"orders": {A: f"AFTER_SEQUENCE_NUMBER {met}:0"}})
    assert numbers(Frame(server, endingPosition=within).rows()) == [0, 1]
    assert numbers(Frame(server, startingPosition=within).rows()) == [2, 3]


@pytest.mark.parametrize("end", ["at", "TRIM_HORIZON", "number"])
def test_a_parent_with_an_earlier_end_of_its_own_loses_nothing_of_what_comes_of_it(
    server: ScriptedKinesis, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.create_stream("more", 3)
    left, right, third = server.shards("more")
    numbered = server.put("more", left, b"1")
    server.put("more", right, b"2")
    server.advance(2)
    own = {"at": at(server.now), "number": f"AFTER_SEQUENCE_NUMBER {numbered}"}.get(end, end)
    rest = at(server.now + 60_000)
    given = {"more": {left: own, third: own if end != "number" else rest, "*": rest}}
    frame = Frame(server, "more", endingPosition=json.dumps(given))
    action = frame.act()
    server.put("more", left, b"98")
    merged = server.merge("more", left, right)
    server.put("more", merged, b"3")
    for child in server.split("more", third):
        server.put("more", child, b"4")
    server.advance(61)
    server.put("more", merged, b"99")
    first = [] if end == "TRIM_HORIZON" else [1]
    assert numbers(action.rows()) == numbers(frame.rows()) == [*first, 2, 3, 4, 4]
    assert numbers(Frame(server, "more", endingPosition=json.dumps({"more": {left: own}})).rows())[-1] == 99
    assert "ahead of Kinesis' clock" not in caplog.text


def test_a_start_at_the_end_of_an_open_shard_reads_what_comes_of_it(server: ScriptedKinesis) -> None:
    put(server, A, 1)
    start = json.dumps({"orders": {A: "SHARD_END", "*": "TRIM_HORIZON"}})
    assert Frame(server, startingPosition=start).rows() == []
    frame = Frame(server, startingPosition=start, endingPosition=at(server.now + 60_000))
    action = frame.act()
    left, _ = server.split("orders", A)
    put(server, left, 2)
    server.advance(61)
    assert numbers(action.rows()) == numbers(frame.rows()) == [2]


# What is lost.


def fill(server: ScriptedKinesis) -> None:
    """Write records of a day, one an hour."""
    for number in range(24):
        put(server, A, number)
        server.advance(HOUR)


def test_records_that_expire_between_load_and_read_are_data_loss(
    server: ScriptedKinesis, caplog: pytest.LogCaptureFixture
) -> None:
    fill(server)
    oldest, some = Frame(server), Frame(server, startingPosition=at(server.now - int(12.5 * HOUR * 1000)))
    lenient = Frame(server, failOnDataLoss="false")
    planned = oldest.act()
    assert numbers(planned.rows()) == numbers(oldest.rows()) == list(range(1, 24))
    server.advance(10 * HOUR)
    assert len(some.rows()) == 12
    for late in (planned, oldest.act()):
        with pytest.raises(
            DataLossError, match=f"shard {A}: .* may have expired unread. Load the frame again"
        ):
            late.rows()
    assert numbers(lenient.rows()) == list(range(11, 24))
    assert "may have expired unread" in caplog.text
    server.advance(3 * HOUR)
    with pytest.raises(DataLossError, match="may have expired unread"):
        some.rows()


def test_records_that_expire_beneath_a_slow_reader_are_data_loss(server: ScriptedKinesis) -> None:
    fill(server)
    frame = Frame(server, startingPosition=at(server.now - int(22.5 * HOUR * 1000)), maxRecordsPerFetch="5")
    task = frame.act().task(0)
    assert [next(task) for _ in range(5)]
    server.advance(10 * HOUR)
    with pytest.raises(DataLossError, match="may have expired unread"):
        list(task)


def test_the_first_hour_of_a_full_stream_is_no_loss_nor_is_a_young_stream(server: ScriptedKinesis) -> None:
    young = Frame(server)
    server.advance(20 * HOUR)
    put(server, A, 1)
    server.advance(3 * HOUR)
    assert young.rows() == []
    fill(server)
    full = Frame(server)
    assert len(full.rows()) == 23
    server.advance(HOUR * 0.9)
    assert len(full.rows()) == 23


def raise_retention(server: ScriptedKinesis, hours: int) -> None:
    server.client().increase_stream_retention_period(StreamName="orders", RetentionPeriodHours=hours)


def test_a_retention_that_is_raised_beneath_a_slow_reader_loses_nothing(server: ScriptedKinesis) -> None:
    fill(server)
    frame = Frame(server, startingPosition=at(server.now - int(22.5 * HOUR * 1000)), maxRecordsPerFetch="5")
    task = frame.act().task(0)
    rows = [next(task)]
    raise_retention(server, 96)
    server.advance(30 * HOUR)
    assert numbers([*rows, *task]) == list(range(2, 24))
    # Once it has noticed the new one, that holds.
    task = frame.act().task(0)
    with pytest.raises(
        DataLossError, match=r"keeps only 24 h.* raised to 96 h since it was loaded. Load the frame"
    ):
        next(task)
    again = Frame(server, startingPosition=at(server.now - int(60 * HOUR * 1000)), maxRecordsPerFetch="5")
    assert numbers(again.rows()) == list(range(1, 24))


def test_a_start_by_a_number_that_has_expired_is_data_loss(server: ScriptedKinesis) -> None:
    sequences = [server.put("orders", A, str(number).encode()) for number in range(3)]
    for kind, count in (("AT", 2), ("AFTER", 1)):
        start = f'{{"orders": {{"{A}": "{kind}_SEQUENCE_NUMBER {sequences[1]}"}}}}'
        frame = Frame(server, startingPosition=start)
        server.advance(2)
        assert len(frame.rows()) == count
    server.trim("orders", A, sequences[1])
    for kind in ("AT", "AFTER"):
        start = f'{{"orders": {{"{A}": "{kind}_SEQUENCE_NUMBER {sequences[1]}"}}}}'
        with pytest.raises(DataLossError, match="the stream does not hold that record"):
            Frame(server, startingPosition=start).rows()
        assert numbers(Frame(server, startingPosition=start, failOnDataLoss="false").rows()) == [2]


@pytest.mark.parametrize("moment", ["load", "plan", "page"])
@pytest.mark.parametrize("start", ["TRIM_HORIZON", "AT_TIMESTAMP 2020-01-01"])
def test_a_stream_that_was_created_again_is_an_error(
    server: ScriptedKinesis, moment: str, start: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(server, A, *range(5))
    server.advance(2)
    end = at(server.now + 60_000)
    frame = Frame(server, startingPosition=start, endingPosition=end, maxRecordsPerFetch="2")
    lenient = Frame(
        server, startingPosition=start, endingPosition=end, maxRecordsPerFetch="2", failOnDataLoss="false"
    )
    task = frame.act().task(0) if moment != "load" else None
    if task is not None and moment == "page":
        next(task)
    server.recreate("orders")
    put(server, A, 7)
    server.advance(61)
    with pytest.raises(StreamRecreatedError, match=r"deleted and created again.* Load the frame again"):
        list(frame.act().task(0) if task is None else task)
    if moment == "load":
        lenient.rows()
        assert "deleted and created again" in caplog.text


def test_an_empty_stream_in_the_place_of_another_is_no_empty_batch(server: ScriptedKinesis) -> None:
    put(server, A, *range(5))
    server.advance(2)
    frame = Frame(server)
    server.recreate("orders")
    with pytest.raises(StreamRecreatedError):
        frame.rows()


# Two clocks.


def test_a_range_whose_start_is_its_end_is_empty_without_a_call(server: ScriptedKinesis) -> None:
    server.create_stream("two", 2)
    first, second = server.shards("two")
    server.put("two", first, b"1")
    server.put("two", second, b"2")
    server.advance(2)
    start = f'{{"two": {{"{first}": "LATEST", "{second}": "TRIM_HORIZON"}}}}'
    assert numbers(Frame(server, "two", startingPosition=start).rows()) == [2]
    assert server.calls["GetShardIterator", first] == 0


def test_a_start_after_the_end_of_a_batch_says_by_how_much(
    server: ScriptedKinesis, caplog: pytest.LogCaptureFixture
) -> None:
    put(server, A, 1)
    with caplog.at_level(logging.WARNING):
        assert Frame(server, startingPosition=at(server.now + 5_000)).rows() == []
    assert "the start is 4." in caplog.text


def test_a_batch_whose_start_is_ahead_waits_for_it(server: ScriptedKinesis) -> None:
    put(server, A, 1)
    start, end = server.now + 60_000, server.now + 120_000
    task = Frame(server, startingPosition=at(start), endingPosition=at(end)).act().task(0)
    with ThreadPoolExecutor(1) as pool:
        rows = pool.submit(list, task)
        while not server.calls["GetRecords", A]:
            wait([rows], 0.02)
        put(server, A, 2)
        server.advance(90)
        put(server, A, 3)
        server.advance(90)
        assert numbers(rows.result()) == [3]


@pytest.mark.parametrize("given", ["99999999999", "AT_TIMESTAMP 10000000000"])
def test_a_number_that_is_neither_seconds_nor_milliseconds_is_no_time(given: str) -> None:
    text = given if given.startswith("AT") else f"AT_TIMESTAMP {given}"
    with pytest.raises(OptionsError, match="is neither: a digit is missing, or one is too many"):
        SourceOptions.parse_batch({"streamName": "orders", "region": "us-east-1", "startingPosition": text})


@pytest.mark.parametrize("ahead", [-20.0, 20.0])
def test_latest_is_the_time_of_the_load_by_the_clock_of_kinesis(ahead: float) -> None:
    """Also with the options of a query, of which a load does not know that they are for a batch."""
    with ScriptedKinesis(quotas=Quotas.none(), clock=lambda: int((time.time() + ahead) * 1000)) as server:
        server.create_stream("orders", 1)
        server.advance(HOUR)
        loaded_at = int(time.time() * 1000) - 5_000
        put(server, A, 1)
        where = {"streamName": "orders", "endpointUrl": server.endpoint_url, "region": "us-east-1"}
        loaded = load_streams(SourceOptions.parse_batch(where), loaded_at)
        assert -7_000 < loaded.time - server.now < -3_000
        frame = Frame(server, **{"applicationName": "shop", "zookeeper.hosts": "zk:2181"})
        server.advance(2)
        assert numbers(frame.rows()) == [1]
