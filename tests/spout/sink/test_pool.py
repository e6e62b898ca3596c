from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from driven import stream_of
from hypothesis import given, settings, strategies as st
from thorough import examples

from kinesis_trident.spout.kinesis import AccessDeniedError, ThrottledError, Unavailable
from kinesis_trident.spout.kinesis.put_entries import (
    REQUEST_BYTES,
    REQUEST_RECORDS,
    Entries,
    Entry,
    RequestBound,
)
from kinesis_trident.spout.patience import Patience
from kinesis_trident.spout.sink.backlog import Backlog
from kinesis_trident.spout.sink.known_stream import KnownStream
from kinesis_trident.spout.sink.pool import Sent, Waitable, WritePool
from kinesis_trident.spout.sink.targets import Pacing, StreamTarget
from kinesis_trident.spout.testing import FakeTime

if TYPE_CHECKING:
    from kinesis_trident.spout.kinesis.put_records import Send

THROTTLED = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slow"}
TAKEN = {"SequenceNumber": "1"}


def unlisted() -> KnownStream:
    """A stream whose shards a task may not list."""

    def refused() -> list[tuple[int, str]]:
        raise AccessDeniedError("no kinesis:ListShards")

    return stream_of(refused)


def rows(count: int, keys: int, size: int = 10) -> Iterator[tuple[Entry, int]]:
    for n in range(count):
        yield {"Data": b"%d" % n, "PartitionKey": f"key-{n % keys}"}, size


def parts(entries: Iterable[tuple[Entry, int]], count: int = 1) -> Iterator[Entries]:
    """The entries, `count` at a time, with the sizes that they are said to have."""
    left = iter(entries)
    while part := list(islice(left, count)):
        made = Entries.of(entry for entry, _ in part)
        yield replace(made, sizes=np.array([size for _, size in part]))


def send_side_by_side(
    send: Send,
    entries: Iterable[tuple[Entry, int]],
    *,
    together: int = 1,
    requests: int,
    patience: Patience,
    time: FakeTime | None = None,
    where: str = "the stream",
) -> Sent:
    """Write the entries; in simulated time, if one is given."""
    simulated = {} if time is None else {"wait": lambda _, seconds: time.sleep(seconds), "clock": time}
    with WritePool(requests, patience, **simulated) as writing:  # type: ignore[arg-type]
        writing.add(StreamTarget(send, unlisted(), where), parts(entries, together))
        return writing.finish()


class Kinesis:
    """Takes what `refuse` does not want refused; sees whether a key is ever in two requests at once."""

    def __init__(self, rng: random.Random | None = None, share: float = 0.0) -> None:
        self._rng, self._share = rng or random.Random(0), share
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self.under_way = 0
        self.most = 0
        self.refused = 0
        self.arrived: dict[str, list[int]] = defaultdict(list)
        self.requests: list[Sequence[Entry]] = []

    def __call__(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        keys = {entry["PartitionKey"] for entry in entries}
        with self._lock:
            assert not keys & self._busy, "a partition key is in two requests at once"
            self._busy |= keys
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self.requests.append(entries)
        try:
            return self.answer(entries)
        finally:
            with self._lock:
                self._busy -= keys
                self.under_way -= 1

    def answer(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        results = []
        with self._lock:
            for entry in entries:
                if self._rng.random() < self._share:
                    self.refused += 1
                    results.append(THROTTLED)
                else:
                    self.arrived[entry["PartitionKey"]].append(int(entry["Data"]))
                    results.append(TAKEN)
        return results


def forever() -> Patience:
    return Patience(1.0, lambda: 0.0)


@settings(deadline=None, max_examples=examples(30))
@given(
    st.integers(0, 2500),
    st.sampled_from([1, 3, 200]),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.4]),
    st.sampled_from([10, 100_000]),
    st.randoms(use_true_random=False),
)
def test_everything_arrives_once_and_all_refusals_are_counted(
    count: int, keys: int, requests: int, share: float, size: int, rng: random.Random
) -> None:
    kinesis = Kinesis(rng, share)
    sent = send_side_by_side(
        kinesis,
        rows(count, keys, size),
        requests=requests,
        patience=forever(),
        time=FakeTime(),
        together=rng.choice([7, 700, 3000]),
    )
    assert sorted(n for numbers in kinesis.arrived.values() for n in numbers) == list(range(count))
    assert sent == Sent(count, count * size, kinesis.refused)
    assert kinesis.most <= requests
    for request in kinesis.requests:
        assert 0 < len(request) <= REQUEST_RECORDS
        assert len(request) * size <= REQUEST_BYTES
    if not share:
        assert all(numbers == sorted(numbers) for numbers in kinesis.arrived.values())


def test_a_key_is_refused_as_often_as_it_may_be_nothing_later_overtakes_its_request() -> None:
    kinesis = Kinesis(random.Random(7), 0.5)
    send_side_by_side(kinesis, rows(3000, 1), requests=4, patience=forever(), time=FakeTime())
    [arrived] = kinesis.arrived.values()
    assert [n // REQUEST_RECORDS for n in arrived] == sorted(n // REQUEST_RECORDS for n in arrived)


def test_requests_are_under_way_side_by_side() -> None:
    meeting = threading.Barrier(3, timeout=300)

    class Meeting(Kinesis):
        def answer(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
            meeting.wait()
            return super().answer(entries)

    kinesis = Meeting()
    # Each backlog has a key, so one request of each can only meet the others if all three are under way.
    sent = send_side_by_side(kinesis, rows(300, 50), requests=3, patience=forever())
    assert (sent.records, kinesis.most) == (300, 3)


def test_rows_are_taken_as_there_is_room_not_all_at_once() -> None:
    taken = 0

    def counted() -> Iterator[tuple[Entry, int]]:
        nonlocal taken
        for row in rows(20_000, 97):
            taken += 1
            yield row

    class Slow(Kinesis):
        ahead = 0

        def answer(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
            results = super().answer(entries)
            with self._lock:
                # No records of another request arrive between the two counts.
                arrived = sum(len(numbers) for numbers in self.arrived.values())
                self.ahead = max(self.ahead, taken - arrived)
            return results

    kinesis = Slow()
    send_side_by_side(kinesis, counted(), requests=2, patience=forever())
    # For each request: what is under way, what is collected, and the row that found both full.
    assert kinesis.ahead <= 2 * (2 * REQUEST_RECORDS + 1)


def test_what_fails_for_good_ends_the_waits_of_the_others() -> None:
    waiting = threading.Event()

    def send(entries: Sequence[Entry]) -> list[dict[str, Any]]:
        if entries[0]["PartitionKey"] == "key-0":
            waiting.wait(300)
            raise AccessDeniedError("no")
        return [THROTTLED] * len(entries)

    def wait(what: Waitable, _seconds: float) -> None:
        waiting.set()
        assert what.wait(300), "the wait was not ended"

    with WritePool(8, forever(), wait=wait) as writing:
        writing.add(StreamTarget(send, unlisted()), parts(rows(4, 2)))
        with pytest.raises(AccessDeniedError, match="no"):
            writing.finish()


def test_no_more_rows_are_taken_after_a_failure_of_another_request() -> None:
    failing = threading.Event()

    def rows_of_two_requests() -> Iterator[tuple[Entry, int]]:
        for _ in range(REQUEST_RECORDS + 1):
            yield {"Data": b"1", "PartitionKey": "key-0"}, 1
        assert failing.wait(300)
        for _ in range(2_000 * REQUEST_RECORDS):
            yield {"Data": b"1", "PartitionKey": "key-1"}, 1
        raise AssertionError("all rows were taken")

    def send(entries: Sequence[Entry]) -> list[dict[str, Any]]:
        if entries[0]["PartitionKey"] == "key-0":
            failing.set()
            raise AccessDeniedError("no")
        return [TAKEN] * len(entries)

    with pytest.raises(AccessDeniedError, match="no"):
        send_side_by_side(send, rows_of_two_requests(), requests=8, patience=forever())


def test_a_row_that_is_refused_here_ends_the_write_with_its_own_error() -> None:
    def broken() -> Iterator[tuple[Entry, int]]:
        yield from rows(2000, 1)
        raise ValueError("row 2000")

    kinesis = Kinesis()
    with pytest.raises(ValueError, match="row 2000"):
        send_side_by_side(kinesis, broken(), requests=2, patience=forever())
    assert kinesis.under_way == 0


def test_a_stream_that_takes_nothing_is_given_up_when_patience_ends() -> None:
    time = FakeTime()
    calls = []

    def send(entries: Sequence[Entry]) -> list[dict[str, Any]]:
        calls.append(time())
        if len(calls) % 2:
            raise Unavailable("503")
        return [THROTTLED] * len(entries)

    with pytest.raises((ThrottledError, Unavailable)):
        send_side_by_side(
            send,
            rows(3, 1),
            requests=1,
            patience=Patience(60.0, time),
            time=time,
            where="stream 'orders'",
        )
    assert 60.0 <= calls[-1] - calls[0] <= 65.0


def test_a_stream_that_takes_one_record_at_a_time_is_not_given_up() -> None:
    time = FakeTime()

    def send(entries: Sequence[Entry]) -> list[dict[str, Any]]:
        time.sleep(9.0)
        return [TAKEN] + [THROTTLED] * (len(entries) - 1)

    sent = send_side_by_side(send, rows(50, 1), requests=1, patience=Patience(10.0, time), time=time)
    assert (sent.records, sent.refusals) == (50, 49 * 50 // 2)
    assert time() - 1_700_000_000.0 >= 50 * 9.0


def test_rows_that_are_long_in_coming_cost_no_patience() -> None:
    time = FakeTime()
    answers = iter([[THROTTLED], [TAKEN]])

    def late() -> Iterator[tuple[Entry, int]]:
        time.sleep(3600.0)
        yield from rows(1, 1)

    sent = send_side_by_side(
        lambda _: next(answers), late(), requests=1, patience=Patience(10.0, time), time=time
    )
    assert sent.refusals == 1


def test_what_is_known_of_the_shards_is_used_while_a_thread_lists_them_again() -> None:
    time, asked = FakeTime(), []

    def shards() -> list[tuple[int, str]]:
        for ask in asked:
            # Another thread gets its answer before this listing has one.
            seen.append(others.submit(ask).result(60))
        return [(2**128 - 1, f"s{len(asked)}")]

    seen: list[object] = []
    stream = stream_of(shards, time)
    before = stream.shards()
    target = StreamTarget(lambda _: [], stream, most=1000)
    asked += [stream.shards, lambda: stream.shards_of_keys(listing=True), lambda: target.filling().bytes]
    time.sleep(60.0)
    with ThreadPoolExecutor(1) as others:
        stream.refresh()
    assert seen == [before, before, 256 * 2**10]
    assert stream.shards().names == ["s3"]


def test_nothing_to_write_sends_nothing() -> None:
    kinesis = Kinesis()
    assert send_side_by_side(kinesis, iter(()), requests=4, patience=forever()) == Sent()
    assert kinesis.requests == []


def test_rows_of_many_streams_share_the_memory_of_one_request() -> None:
    ahead = 0
    taken = 0
    written: dict[str, list[int]] = {name: [] for name in "abcd"}
    lock = threading.Lock()

    def sender(name: str) -> Send:
        def send(entries: Sequence[Entry]) -> list[dict[str, Any]]:
            nonlocal ahead
            with lock:
                written[name] += [int(entry["Data"]) for entry in entries]
                ahead = max(ahead, taken - sum(map(len, written.values())))
            return [TAKEN] * len(entries)

        return send

    def counted(first: int, last: int) -> Iterator[tuple[Entry, int]]:
        nonlocal taken
        for n in range(first, last):
            taken += 1
            yield {"Data": b"%d" % n, "PartitionKey": "key"}, 2**20

    targets = {name: StreamTarget(sender(name), unlisted()) for name in "abcd"}
    with WritePool(1, forever()) as pool:
        for start in range(0, 40, 2):
            for name in "abcd":
                pool.add(targets[name], parts(counted(start, start + 2)))
        sent = pool.finish()
    assert written == {name: list(range(40)) for name in "abcd"}
    assert sent == Sent(160, 160 * 2**20, 0)
    # Two requests of 10 rows, and the rows of the batch that was added last.
    assert ahead <= 2 * 10 + 2


def test_a_rate_is_kept_over_all_requests_and_refused_records_count() -> None:
    time = FakeTime()
    sends: list[tuple[float, int]] = []
    lock = threading.Lock()

    def send(entries: Sequence[Entry]) -> list[dict[str, Any]]:
        with lock:
            sends.append((time(), len(entries)))
        return [THROTTLED if len(sends) == 2 else TAKEN] * len(entries)

    def wait(_: Waitable, seconds: float) -> None:
        with lock:
            time.sleep(seconds)

    pacing = Pacing(100, 10**9)
    began = time()
    with WritePool(3, Patience(5.0, time), pacing=pacing, wait=wait, clock=time) as pool:
        pool.add(StreamTarget(send, unlisted(), bound=pacing.bound()), parts(rows(2000, 50), 500))
        sent = pool.finish()
    assert sent.records == 2000
    assert max(count for _, count in sends) <= 100
    again = sum(count for _, count in sends) - 2000
    assert again == sends[1][1]
    assert time() - began >= (2000 + again - 100) / 100


def test_a_paced_stream_that_takes_nothing_is_given_up_however_many_requests_wait_at_once() -> None:
    """The waits of 32 requests, one after the other in the stream's time, overlap in that of the write."""
    waits = 0

    def wait(what: Waitable, seconds: float) -> object:
        nonlocal waits
        if isinstance(what, threading.Event):
            waits += 1
            assert waits < 300, "it is tried for ever"
        return what.wait(seconds)

    pacing = Pacing(5, 10**9)
    target = StreamTarget(lambda some: [THROTTLED] * len(some), unlisted(), bound=RequestBound(1))
    with (
        pytest.raises(ThrottledError, match="1 of 1 records were refused"),
        WritePool(32, Patience(0.5, monotonic), pacing=pacing, wait=wait) as pool,
    ):
        pool.add(target, parts(rows(200, 200), 200))


def test_a_rate_of_bytes_cuts_a_request_into_what_a_second_allows() -> None:
    pacing = Pacing.of(None, 1000)
    assert pacing is not None
    waits: list[float] = []
    sizes: list[int] = []

    def send(entries: Sequence[Entry]) -> list[dict[str, Any]]:
        sizes.append(len(entries))
        return [TAKEN] * len(entries)

    with WritePool(1, forever(), pacing=pacing, wait=lambda _, s: waits.append(s), clock=lambda: 0.0) as pool:
        records = [({"Data": bytes(395), "PartitionKey": "key-1"}, 400) for _ in range(5)]
        pool.add(
            StreamTarget(send, unlisted(), bound=pacing.bound()),
            parts([*records, ({"Data": bytes(2500), "PartitionKey": "k"}, 2501)], 6),
        )
        pool.finish()
    assert sizes == [2, 2, 1, 1]
    assert waits == pytest.approx([0.8, 1.6, 2.0])
    assert Pacing.of(None, None) is None


def test_what_a_request_costs_does_not_grow_with_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    streams, requests, looks = 60, 4, 0
    look, is_full = Backlog.earliest, Backlog.is_full.fget
    assert is_full is not None

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **given: Any) -> Any:
            nonlocal looks
            looks += 1
            return method(*args, **given)

        return call

    monkeypatch.setattr(Backlog, "earliest", counted(look))
    monkeypatch.setattr(Backlog, "is_full", property(counted(is_full)))
    kinesis = [Kinesis() for _ in range(streams)]
    with WritePool(requests, forever()) as pool:
        for one in kinesis:
            pool.add(StreamTarget(one, unlisted()), parts(rows(40, 40), 40))
        sent = pool.finish()
    assert sent.records == 40 * streams
    made = sum(len(one.requests) for one in kinesis)
    assert made == requests * streams
    assert looks < 10 * made
