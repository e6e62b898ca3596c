"""Splitting aggregates: those of a published aggregator, made by hand, damaged, and mixed with plain records."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from hypothesis import example, given, settings, strategies as st

from kinesis_trident.spout.kinesis import aggregation
from kinesis_trident.spout.kinesis.aggregate_messages import AggregatedRecord
from kinesis_trident.spout.kinesis.aggregation import MAGIC, deaggregate_page, why_unreadable
from kinesis_trident.spout.kinesis.record_batches import (
    RECORD_SCHEMA,
    SHARED_KEYS_SCHEMA,
    UNREADABLE_SUB,
    compact,
    copy_keys,
    keys_in,
    memory_of,
    most_memory,
    portions,
    position_at,
    unreadable_in,
    without_row,
)
from kinesis_trident.spout.testing import aggregate

KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
USERS = st.lists(st.tuples(st.binary(max_size=20), KEYS), min_size=1, max_size=6)
HASH_KEYS = st.one_of(st.none(), st.integers(0, 2**128 - 1).map(str))

Row = tuple[str, bytes, str, int, int]
"""Partition key, payload, sequence number, sub-sequence number, arrival (microseconds)."""


def page(payloads: Sequence[bytes]) -> pa.RecordBatch:
    count = len(payloads)
    columns = [
        pa.array([f"key {n}" for n in range(count)], pa.string()),
        pa.array(payloads, pa.binary()),
        pa.array([str(10**55 + n) for n in range(count)], pa.string()),
        pa.array([-1] * count, pa.int64()),
        pa.array([1_700_000_000_000_000 + n for n in range(count)], pa.timestamp("us", tz="UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def rows(batch: pa.RecordBatch) -> list[Row]:
    assert batch.schema in (RECORD_SCHEMA, SHARED_KEYS_SCHEMA)
    batch.validate(full=True)
    key, data, sequence, sub, arrival = batch.columns
    columns = (key, data, sequence, sub, arrival.cast(pa.int64()))
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def split(records: pa.RecordBatch, users: dict[int, list[tuple[bytes, str]]]) -> list[Row]:
    """Return what the records come to when those at the keys of `users` hold them."""
    found: list[Row] = []
    for index, row in enumerate(rows(records)):
        if index in users:
            found += [(key, data, row[2], sub, row[4]) for sub, (data, key) in enumerate(users[index])]
        else:
            found.append(row)
    return found


def sealed(message: bytes) -> bytes:
    return MAGIC + message + hashlib.md5(message).digest()


def of_a_published_aggregator(users: list[tuple[bytes, str]], hash_keys: Sequence[str | None]) -> bytes:
    aggregator = RecordAggregator()
    for number, (data, key) in enumerate(users):
        assert aggregator.add_user_record(key, data, hash_keys[number % len(hash_keys)]) is None
    data: bytes = aggregator.clear_and_get().get_contents()[2]
    return data


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.binary(max_size=30), USERS), max_size=8),
    st.lists(HASH_KEYS, min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 3),
)
@example([b""], [None], True, 0)
@example([MAGIC, [(b"", "k")], MAGIC + b"\0" * 16, [(b"a", "k"), (b"b", "k")]], [None], False, 1)
def test_aggregates_come_apart_where_they_stand(
    items: list[bytes | list[tuple[bytes, str]]], hash_keys: list[str | None], ours: bool, skipped: int
) -> None:
    users = {n: item for n, item in enumerate(items) if isinstance(item, list)}
    payloads = [
        item
        if isinstance(item, bytes)
        else aggregate(item)
        if ours
        else of_a_published_aggregator(item, hash_keys)
        for item in items
    ]
    records = page(payloads)
    assert rows(deaggregate_page(records)) == split(records, users)
    # A slice of a page is one too.
    left = {n - skipped: item for n, item in users.items() if n >= skipped}
    assert rows(deaggregate_page(records.slice(skipped))) == split(records.slice(skipped), left)


def test_without_aggregates_nothing_is_copied() -> None:
    records = page([b"a", b"", MAGIC[:3], MAGIC])
    assert deaggregate_page(records) is records
    assert deaggregate_page(records.slice(4)).num_rows == 0


def test_all_of_the_published_format_is_read() -> None:
    message = AggregatedRecord(
        partition_key_table=[b"not used", "é".encode() * 256], explicit_hash_key_table=[b"0", b"not a number"]
    )
    message.records.add(partition_key_index=1, data=b"one", explicit_hash_key_index=1)
    message.records.add(partition_key_index=1, data=b"", tags=[{"key": "k", "value": "v"}, {"key": "only"}])
    message.records.add(partition_key_index=0, data=b"three", explicit_hash_key_index=0)
    users = [(b"one", "é" * 256), (b"", "é" * 256), (b"three", "not used")]
    # A later version of the format may have more fields.
    for extra in (b"", b"\x22\x03new"):
        records = page([sealed(message.SerializeToString() + extra)])
        assert rows(deaggregate_page(records)) == split(records, {0: users})


def one_field_short(**fields: object) -> bytes:
    message = AggregatedRecord(partition_key_table=[b"k"])
    message.records.add(partition_key_index=0, data=b"fine")
    message.records.add(**fields)
    packed: bytes = message.SerializePartialToString()
    return packed


@pytest.mark.parametrize(
    "message",
    [
        one_field_short(partition_key_index=0),
        one_field_short(data=b"x"),
        AggregatedRecord(partition_key_table=[b"k"]).SerializeToString(),
        b"\x0a\x09k",
        b"\x1a",
        b"just text",
    ],
)
def test_a_message_that_cannot_be_opened_is_a_record_that_cannot_be_decoded(
    message: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregation, "_told", set())
    records = page([b"before", sealed(message), sealed(message), aggregate([(b"a", "k")])])
    found = deaggregate_page(records)
    want = split(records, {3: [(b"a", "k")]})
    assert rows(found) == [want[0], *((*row[:3], UNREADABLE_SUB, row[4]) for row in want[1:3]), want[3]]
    assert why_unreadable(want[1][1], UNREADABLE_SUB).startswith(
        "UNREADABLE: an aggregate whose checksum is right"
    )
    assert [position_at(found, at).sub for at in range(4)] == [-1, -1, -1, 0]
    (line,) = caplog.messages
    assert line.startswith(f"record {want[1][2]} cannot be decoded: it is an aggregate")


@pytest.mark.parametrize(
    ("key", "read"),
    [
        (b"k" * 257, "k" * 257),
        ("é".encode() * 5_000, "é" * 5_000),
        (b"cut \xc3", "cut \ufffd"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"half \xed\xa0\xbd", "half \ufffd\ufffd\ufffd"),
        (b"", ""),
    ],
)
def test_any_key_is_read(key: bytes, read: str) -> None:
    message = AggregatedRecord(partition_key_table=[b"k", key])
    for index in (0, 1, 0):
        message.records.add(partition_key_index=index, data=b"%d" % index)
    records = page([b"before", sealed(message.SerializeToString())])
    found = deaggregate_page(records)
    assert rows(found) == split(records, {1: [(b"0", "k"), (b"1", read), (b"0", "k")]})
    assert [batch.schema for batch in portions(found)] == [RECORD_SCHEMA]


@pytest.mark.parametrize("index", [1, 2**64 - 1])
def test_a_user_record_without_a_key_in_the_table_fails_alone(index: int) -> None:
    records = page([b"before", sealed(one_field_short(partition_key_index=index, data=b"x")), b"after"])
    found = deaggregate_page(records)
    want = split(records, {1: [(b"fine", "k"), (b"x", "")]})
    want[2] = (None, *want[2][1:3], without_row(1), want[2][4])  # type: ignore[assignment]
    assert rows(found) == want
    assert unreadable_in(found).tolist() == [2]
    places = [position_at(found, at) for at in range(4)]
    assert [place.sub for place in places] == [-1, 0, 1, -1]
    assert keys_in(found).positions == places
    assert (
        why_unreadable(b"x", without_row(1))
        == "UNREADABLE: its partition key is not in the table of its aggregate"
    )


def test_an_explicit_hash_key_that_is_not_in_the_table_is_of_no_concern() -> None:
    records = page([sealed(one_field_short(partition_key_index=0, data=b"x", explicit_hash_key_index=0))])
    assert rows(deaggregate_page(records)) == split(records, {0: [(b"fine", "k"), (b"x", "k")]})


@settings(deadline=None)
@given(USERS, st.data())
def test_a_damaged_aggregate_is_a_plain_record(users: list[tuple[bytes, str]], data: st.DataObject) -> None:
    whole = aggregate(users)
    short = whole[: data.draw(st.integers(0, len(whole) - 1))]
    at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    flipped = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
    records = page([short, flipped, whole + b"\0"])
    assert deaggregate_page(records) is records


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_no_message_makes_it_fail(message: bytes) -> None:
    records = page([sealed(message), b"after"])
    found = rows(deaggregate_page(records))
    assert found[-1] == rows(records)[-1]
    assert found[0][3] in {-1, UNREADABLE_SUB, 0, without_row(0)}


def test_records_without_a_key_beside_user_records_with_their_own() -> None:
    """A stream that distributes by itself may give an aggregate no key."""
    users = [(b"u0", "a"), (b"u1", "b"), (b"u2", "a")]
    plain = page([b"x", aggregate(users), b"y", b"z"])
    keys = pa.array([None, None, "k", None], pa.string())
    odd = pa.array([-1, -1, -1, UNREADABLE_SUB], pa.int64())
    given = pa.RecordBatch.from_arrays(
        [keys, *plain.columns[1:3], odd, plain.column(4)], schema=RECORD_SCHEMA
    )
    found = deaggregate_page(given)
    assert [(row[0], row[3]) for row in rows(found)] == [
        (None, -1),
        ("a", 0),
        ("b", 1),
        ("a", 2),
        ("k", -1),
        (None, UNREADABLE_SUB),
    ]
    for batch in (copy_keys(found), *portions(compact(found, np.array([0, 2, 5])))):
        batch.validate(full=True)
        assert batch.schema == RECORD_SCHEMA
    assert compact(found, np.array([0, 2, 5])).column(0).to_pylist() == [None, "b", None]
    assert copy_keys(found).column(0).null_count == 2
    assert memory_of(found) > 0
    assert most_memory(found) > 0
