from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from thorough import examples

from kinesis_trident.spout.kinesis import (
    AccessDeniedError,
    KinesisError,
    RequestTooLargeError,
    ThrottledError,
    Unavailable,
)
from kinesis_trident.spout.kinesis.put_entries import (
    MAX_RECORD_BYTES,
    REQUEST_BYTES,
    SMALLER_REQUEST_BYTES,
    Entries,
    Entry,
    RequestBound,
)
from kinesis_trident.spout.kinesis.put_records import Tries, put_all, put_request, requests_of
from kinesis_trident.spout.patience import Patience
from kinesis_trident.spout.testing import FakeTime


@settings(deadline=None)
@given(st.lists(st.sampled_from([0, 1, 700_000, 3_000_000, 6_000_000]), max_size=30))
def test_requests_keep_the_order_and_the_size(sizes: list[int]) -> None:
    payloads = {size: bytes(size) for size in set(sizes)}
    records = [(payloads[size], f"key-{index}") for index, size in enumerate(sizes)]
    requests = list(requests_of(records))
    sent = [(entry["Data"], entry["PartitionKey"]) for request in requests for entry in request]
    assert sent == records
    for request in requests:
        assert request
        total = sum(len(entry["Data"]) + len(entry["PartitionKey"]) for entry in request)
        assert len(request) == 1 or total <= REQUEST_BYTES


def test_a_request_has_at_most_500_records() -> None:
    assert [len(request) for request in requests_of([(b"", "k")] * 1234)] == [500, 500, 234]


def test_a_record_that_never_fits_is_an_error_before_anything_is_sent() -> None:
    sent: list[Any] = []
    with pytest.raises(KinesisError, match="record 1 of 2 has 10485761 bytes with its partition key 'k'"):
        put_all(sent.append, [(b"", "k"), (bytes(MAX_RECORD_BYTES), "k")], sleep=FakeTime().sleep)  # type: ignore[arg-type]
    assert sent == []


@settings(deadline=None, max_examples=examples(20))
@given(st.integers(0, 1200), st.randoms(use_true_random=False))
def test_everything_arrives_and_what_was_refused_keeps_its_order(count: int, rng: Any) -> None:
    arrived: list[bytes] = []
    requests: list[list[bytes]] = []

    def send(entries: Sequence[Entry]) -> list[dict[str, Any]]:
        requests.append([entry["Data"] for entry in entries])
        results = []
        for entry in entries:
            if rng.random() < 0.3:
                results.append(
                    {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slow"}
                )
            else:
                arrived.append(entry["Data"])
                results.append({"SequenceNumber": "1"})
        return results

    payloads = [b"%d" % n for n in range(count)]
    put_all(send, [(data, "k") for data in payloads], sleep=lambda _: None)
    assert sorted(arrived) == sorted(payloads)
    assert all(request == sorted(request, key=int) for request in requests)
    # Nothing of a later request is sent before all of an earlier one is in.
    assert [int(data) // 500 for data in arrived] == sorted(int(data) // 500 for data in arrived)


def test_a_passing_fault_is_tried_again_and_another_error_is_not() -> None:
    answers: list[Any] = [
        Unavailable("503"),
        ThrottledError("slow"),
        [{"SequenceNumber": "1"}],
        AccessDeniedError("no"),
    ]

    def send(entries: Sequence[Entry]) -> list[dict[str, Any]]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    time = FakeTime()
    put_all(send, [(b"x", "k")], sleep=time.sleep)
    assert len(time.sleeps) == 2
    with pytest.raises(AccessDeniedError):
        put_all(send, [(b"x", "k")], sleep=time.sleep)


def test_what_is_never_taken_says_how_much_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinesis_trident.spout.kinesis.put_records._PATIENCE", 0.0)

    def send(entries: Sequence[Entry]) -> list[dict[str, Any]]:
        return [{"SequenceNumber": "1"}] + [{"ErrorCode": "InternalFailure", "ErrorMessage": "oh"}] * (
            len(entries) - 1
        )

    with pytest.raises(
        ThrottledError, match="2 of 3 records were refused, the last with InternalFailure: oh"
    ):
        put_all(send, [(b"x", "k")] * 3, sleep=FakeTime().sleep)


def test_only_a_refusal_for_too_much_speaks_of_shards() -> None:
    time = FakeTime()

    def said(code: str) -> str:
        with pytest.raises(ThrottledError) as error:
            put_request(
                lambda _: [{"ErrorCode": code}],
                [{"Data": b"x", "PartitionKey": "k"}],
                sleep=time.sleep,
                tries=Tries(Patience(0.0, time)),
            )
        return str(error.value)

    assert "too few shards" in said("ProvisionedThroughputExceededException")
    assert "too few shards" not in said("InternalFailure")
    assert "Kinesis itself failed" in said("InternalFailure")


def test_a_server_that_takes_less_gets_smaller_requests_from_then_on() -> None:
    asked: list[int] = []
    arrived: list[bytes] = []
    time = FakeTime()

    def send(entries: Sequence[Entry]) -> list[dict[str, Any]]:
        asked.append(Entries.of(entries).size)
        if asked[-1] > SMALLER_REQUEST_BYTES:
            raise RequestTooLargeError("Records size exceeds 5 MB limit")
        arrived.extend(entry["Data"] for entry in entries)
        return [{"SequenceNumber": "1"}] * len(entries)

    data = [b"%d" % n + bytes(2**20 - 2) for n in range(9)]
    bound = RequestBound()
    for _ in range(2):
        request = [{"Data": one, "PartitionKey": "k"} for one in data]
        put_request(send, request, sleep=time.sleep, tries=Tries(Patience(0.0, time)), bound=bound)
    assert arrived == data * 2
    assert sum(size > SMALLER_REQUEST_BYTES for size in asked) == 1
    assert not time.sleeps
    assert len(bound.take_fitting(Entries.of(request))) == 5
    with pytest.raises(RequestTooLargeError, match="5 MB"):
        put_all(send, [(bytes(6 * 2**20), "k")], sleep=time.sleep)


def test_waits_grow_while_nothing_is_taken_in_and_shrink_while_something_is() -> None:
    time = FakeTime()
    refused, taken = {"ErrorCode": "InternalFailure"}, {"SequenceNumber": "1"}
    takes = iter([False] * 9 + [True] * 12)

    def send(entries: Sequence[Entry]) -> list[dict[str, Any]]:
        first = taken if next(takes) else refused
        return [first] + [refused] * (len(entries) - 1)

    entries = [{"Data": b"x", "PartitionKey": "k"}] * 12
    tries = Tries(Patience(60.0, time), jitter=lambda _, longest: longest)
    put_request(send, entries, sleep=time.sleep, tries=tries)
    assert time.sleeps[:9] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert time.sleeps[9:] == [5.0, 5.0, 3.2, 1.6, 0.8, 0.4, 0.2, 0.1, 0.1, 0.1, 0.1]
    assert tries.refusals == 9 * 12 + sum(range(12))


def test_a_wait_is_drawn_from_nothing_to_its_bound() -> None:
    time = FakeTime()
    drawn: list[tuple[float, float]] = []

    def jitter(least: float, longest: float) -> float:
        drawn.append((least, longest))
        return longest / 4

    answers = iter([Unavailable("503"), Unavailable("503"), None])

    def send(entries: Sequence[Entry]) -> list[dict[str, Any]]:
        if (error := next(answers)) is not None:
            raise error
        return [{"SequenceNumber": "1"}]

    put_request(
        send,
        [{"Data": b"x", "PartitionKey": "k"}],
        sleep=time.sleep,
        tries=Tries(Patience(60.0, time), jitter=jitter),
    )
    assert drawn == [(0.0, 0.1), (0.0, 0.2)]
    assert time.sleeps == [0.025, 0.05]
