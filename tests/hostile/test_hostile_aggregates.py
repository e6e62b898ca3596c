"""Aggregates of the KPL: their user records, or the record as it came; never an error, never more than the limit."""

from __future__ import annotations

import hashlib
import tracemalloc

import pyarrow as pa
import pytest
from hostility import hostile, mutated, read_bounded
from hypothesis import given, strategies as st

from kinesis_trident.spout.kinesis.aggregation import MAGIC, deaggregate_page
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA, UNREADABLE_SUB, without_row
from kinesis_trident.spout.testing import aggregate

LIMIT = 64 * 2**20


def sealed(message: bytes) -> bytes:
    """An aggregate with the right checksum, whatever its message is."""
    return MAGIC + message + hashlib.md5(message).digest()


AGGREGATES = [
    aggregate([(b"one", "a"), (b"two", "bb"), (b"three", "a")]),
    aggregate([(b"", "")]),
    aggregate([(bytes([n]), str(n)) for n in range(40)]),
]
MESSAGES = [one[len(MAGIC) : -16] for one in AGGREGATES] + [
    # Tags, hash keys, unknown fields, groups.
    b"\x0a\x01a\x12\x011\x1a\x12\x08\x00\x10\x00\x1a\x01x\x22\x09\x0a\x01k\x12\x04text",
    b"\x0a\x01a\x1a\x05\x08\x00\x1a\x01x\x7a\x02hi\x23\x08\x01\x24",
]


def page(payloads: list[bytes]) -> pa.RecordBatch:
    columns = [
        pa.array([f"key {at}" for at in range(len(payloads))], pa.string()),
        pa.array(payloads, pa.binary()),
        pa.array([str(10**55 + at) for at in range(len(payloads))], pa.string()),
        pa.array([-1] * len(payloads), pa.int64()),
        pa.array([1_700_000_000_000_000] * len(payloads), pa.timestamp("us", tz="UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def read(payloads: list[bytes]) -> None:
    records = page(payloads)

    def call() -> pa.RecordBatch:
        return deaggregate_page(records)

    found = read_bounded(call, sum(map(len, payloads)), ())
    assert found is not None
    found.validate(full=True)
    rows = found.to_pylist()
    for at, payload in enumerate(payloads):
        mine = [row for row in rows if row["sequenceNumber"] == str(10**55 + at)]
        if [row["subSequenceNumber"] for row in mine] in ([-1], [UNREADABLE_SUB]):
            assert mine[0]["data"] == payload
            assert mine[0]["partitionKey"] == f"key {at}"
        else:
            assert all(
                row["subSequenceNumber"] == (without_row(sub) if row["partitionKey"] is None else sub)
                for sub, row in enumerate(mine)
            )
            assert sum(len(row["data"]) for row in mine) <= len(payload)
            assert all(len(row["partitionKey"] or "") <= len(payload) for row in mine)


# Loads protobuf, which is none of a record's cost.
deaggregate_page(page(AGGREGATES[:1]))


@hostile
@given(st.lists(mutated(AGGREGATES), min_size=1, max_size=3))
def test_damaged_aggregates(payloads: list[bytes]) -> None:
    read(payloads)


@hostile
@given(st.lists(mutated(MESSAGES).map(sealed), min_size=1, max_size=3))
def test_damaged_messages_with_a_right_checksum(payloads: list[bytes]) -> None:
    read(payloads)


@pytest.mark.parametrize(
    ("begin", "again"),
    [
        pytest.param(b"\x0a\x01a", b"\x1a\x04\x08\x00\x1a\x00", id="empty records"),
        pytest.param(b"\x1a\x04\x08\x00\x1a\x00", b"\x0a\x00", id="empty keys"),
        pytest.param(b"\x1a\x04\x08\x00\x1a\x00", b"\x0a\x02kk", id="short keys"),
        pytest.param(b"\x0a\x01a\x1a\x04\x08\x00\x1a\x00", b"\x12\x00", id="empty hash keys"),
        pytest.param(b"\x0a\x01a\x1a\x04\x08\x00\x1a\x00", b"\x7a\x00", id="unknown fields"),
        pytest.param(b"\x0a\x01a\x1a\x04\x08\x00\x1a\x00", b"\x7b", id="open groups"),
        pytest.param(b"\x0a\x01a", b"\x1a\x08\x08\x00\x1a\x00\x22\x02\x0a\x00", id="tags"),
    ],
)
def test_a_large_message_stays_within_the_limit(begin: bytes, again: bytes) -> None:
    payload = sealed(begin + again * (4 * 2**20 // len(again)))
    records = page([payload])
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        found = deaggregate_page(records)
        peak = tracemalloc.get_traced_memory()[1]
        arrow = pa.total_allocated_bytes() - before
    finally:
        tracemalloc.stop()
    assert found.num_rows >= 1
    assert peak + arrow <= LIMIT, f"{peak >> 20} MiB of Python, {arrow >> 20} MiB of Arrow"
