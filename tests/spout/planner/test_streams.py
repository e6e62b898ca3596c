"""Test the time of streams, and whether a record is still in its shard: yes, no, or not known now."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from kinesis_trident.checkpoint.model.layout import Layout, ShardKey
from kinesis_trident.spout.kinesis import AccessDeniedError, KeyUnusableError, StreamInfo, ThrottledError
from kinesis_trident.spout.planner.streams import Streams
from kinesis_trident.spout.shard_rules import check_still_there, describe_streams
from kinesis_trident.spout.testing import MemoryKinesis
from kinesis_trident.tracker.records import RecordPosition

A = "shardId-000000000000"


class Distant(MemoryKinesis):
    """Kinesis whose answers have whole seconds, and are on the way for some milliseconds."""

    def __init__(self, now: int, there: int, back: int) -> None:
        super().__init__()
        self.moment, self._there, self._back = now, there, back

    def describe(self, stream: str) -> StreamInfo:
        self.moment += self._there
        found = replace(super().describe(stream), server_time=self.moment // 1000 * 1000)
        self.moment += self._back
        return found


MILLISECONDS = st.integers(0, 5_000)


@given(begun=st.integers(10**12, 10**12 + 5_000), there=MILLISECONDS, back=MILLISECONDS, later=MILLISECONDS)
def test_no_record_of_by_now_has_arrived_after_the_bound(
    begun: int, there: int, back: int, later: int
) -> None:
    kinesis = Distant(begun, there, back)
    infos = describe_streams(kinesis, ["orders"])
    streams = Streams(kinesis, Layout("/", "app", "orders", 1), infos, begun / 1000)
    for _ in range(2):
        kinesis.moment += later
        assert 0 <= streams.bound_now(kinesis.moment / 1000) - kinesis.moment <= 1_000 + there
        streams.describe_again({}, kinesis.moment / 1000)


def is_there(kinesis: MemoryKinesis, sequence: int, sub: int = -1) -> bool | None:
    key = ShardKey("orders", 1, A)
    return check_still_there(kinesis, {key: RecordPosition(sequence, sub)})[key]


def test_a_record_is_there_until_it_expires() -> None:
    kinesis = MemoryKinesis()
    first, second = kinesis.put(A, b"1"), kinesis.put(A, b"2")
    assert is_there(kinesis, first) is True
    assert is_there(kinesis, second, sub=3) is True
    kinesis.trim(A, first)
    assert is_there(kinesis, first) is False
    assert is_there(kinesis, second) is True


def test_a_shard_that_holds_nothing_any_more_does_not_hold_it() -> None:
    kinesis = MemoryKinesis()
    only = kinesis.put(A, b"1")
    kinesis.trim(A, only)
    assert is_there(kinesis, only) is False
    kinesis.close(A)
    assert is_there(kinesis, only) is False


def test_what_cannot_be_seen_now_is_not_known() -> None:
    kinesis = MemoryKinesis()
    only = kinesis.put(A, b"1")
    for error in (ThrottledError("slow"), KeyUnusableError("its key is gone")):
        kinesis.fail(A, error)
        assert is_there(kinesis, only) is None
    assert is_there(kinesis, only) is True
    kinesis.fail(A, AccessDeniedError("no"))
    with pytest.raises(AccessDeniedError):
        is_there(kinesis, only)


def test_nothing_is_asked_of_no_shards() -> None:
    assert check_still_there(MemoryKinesis(), {}) == {}
