"""Test whether a record is still in its shard: yes, no, or not known now."""

from __future__ import annotations

import pytest

from kinesis_trident.checkpoint.model.layout import ShardKey
from kinesis_trident.spout.kinesis import AccessDeniedError, ThrottledError
from kinesis_trident.spout.planner.streams import check_still_there
from kinesis_trident.spout.testing import MemoryKinesis
from kinesis_trident.tracker.records import RecordPosition

A = "shardId-000000000000"


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
    kinesis.fail(A, ThrottledError("slow"))
    assert is_there(kinesis, only) is None
    assert is_there(kinesis, only) is True
    kinesis.fail(A, AccessDeniedError("no"))
    with pytest.raises(AccessDeniedError):
        is_there(kinesis, only)


def test_nothing_is_asked_of_no_shards() -> None:
    assert check_still_there(MemoryKinesis(), {}) == {}
