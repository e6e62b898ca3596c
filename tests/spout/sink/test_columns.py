from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyspark.sql.types import BinaryType, LongType, NullType, StringType, StructField, StructType, VarcharType

from kinesis_trident.spout.errors import WriteError
from kinesis_trident.spout.kinesis.put_entries import Entry
from kinesis_trident.spout.reader.rows import SCHEMA
from kinesis_trident.spout.sink.columns import (
    SURE_RECORD_BYTES,
    WriteColumns,
    entries_of,
    has_stream_column,
    streams_of,
)


def frame(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def entries(
    rows: list[tuple[Any, ...]],
    *,
    data: pa.DataType | None = None,
    limit: Callable[[], int] = lambda: SURE_RECORD_BYTES,
) -> list[Any]:
    names, kinds = (
        ["explicitHashKey", "data", "partitionKey"],
        [pa.string(), data or pa.binary(), pa.string()],
    )
    batch = pa.record_batch(
        [pa.array([row[at] for row in rows], kind) for at, kind in zip((2, 0, 1), kinds, strict=True)],
        names=names,
    )
    return written(batch, WriteColumns(1, 2, 0), limit)


def written(
    batch: pa.RecordBatch,
    columns: WriteColumns,
    limit: Callable[[], int] = lambda: 0,
    is_auto: Callable[[], bool] = lambda: False,
) -> list[tuple[Entry, int]]:
    parts = list(entries_of(batch, columns, limit=limit, is_auto=is_auto, rng=random.Random(1)))
    return [row for part in parts for row in zip(part, part.sizes.tolist(), strict=True)]


def test_columns_are_found_in_any_order_and_case() -> None:
    assert WriteColumns.of(frame(data=BinaryType())) == WriteColumns(0, None, None)
    found = WriteColumns.of(
        frame(explicithashkey=StringType(), PARTITIONKEY=VarcharType(9), Data=StringType())
    )
    assert found == WriteColumns(data=2, partition_key=1, explicit_hash_key=0)


def test_a_frame_of_the_source_can_be_written_as_it_is() -> None:
    assert WriteColumns.of(SCHEMA) == WriteColumns(data=1, partition_key=0, explicit_hash_key=None)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (frame(partitionKey=StringType()), ["column data (binary or string) is missing"]),
        (
            frame(data=LongType(), partitionKey=BinaryType(), explicitHashKey=LongType(), amount=LongType()),
            [
                "column data is bigint, not binary or string",
                "column partitionKey is binary, not string",
                "column explicitHashKey is bigint, not string",
                "column amount is unknown",
            ],
        ),
        (frame(data=NullType()), ["column data is void"]),
        (frame(data=BinaryType(), DATA=BinaryType()), ["column data is duplicate"]),
        (
            frame(value=StringType()),
            ["column value is unknown", "data (binary or string) is miss"],
        ),
    ],
)
def test_all_that_is_wrong_with_the_columns_is_said_at_once(schema: StructType, said: list[str]) -> None:
    with pytest.raises(WriteError) as error:
        WriteColumns.of(schema)
    for part in said:
        assert part in str(error.value)
    assert "to_json(struct(...))" in str(error.value)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.binary(max_size=20),
            st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=256),
            st.none() | st.integers(0, 2**128 - 1).map(str),
        ),
        max_size=30,
    )
)
def test_rows_become_entries_in_their_order(rows: list[tuple[bytes, str, str | None]]) -> None:
    found = entries(rows)
    assert [
        (entry["Data"], entry["PartitionKey"], entry.get("ExplicitHashKey")) for entry, _ in found
    ] == rows
    assert [size for _, size in found] == [len(data) + len(key.encode()) for data, key, _ in rows]
    assert all("ExplicitHashKey" not in entry for entry, _ in found if entry.get("ExplicitHashKey") is None)


def test_more_rows_than_are_taken_at_one_time() -> None:
    found = entries([(b"%d" % n, "k", None) for n in range(4500)])
    assert [int(entry["Data"]) for entry, _ in found] == list(range(4500))


def test_text_is_written_as_utf_8() -> None:
    [(entry, size)] = entries([("grün", "schlüssel", None)], data=pa.string())
    assert (entry["Data"], size) == ("grün".encode(), 5 + 10)


def test_a_row_without_a_key_gets_one_of_its_own() -> None:
    keys = [entry["PartitionKey"] for entry, _ in entries([(b"x", None, None)] * 100)]
    assert len(set(keys)) == 100
    batch = pa.record_batch({"data": pa.array([b"a", b"b"])})
    found = written(batch, WriteColumns(0, None, None))
    assert [entry["Data"] for entry, _ in found] == [b"a", b"b"]
    assert found[0][0]["PartitionKey"] != found[1][0]["PartitionKey"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ((None, "order-1", None), "data is null in the row with the partition key 'order-1'"),
        ((b"x", "", None), "the key has 0 characters, but Kinesis allows 1 to 256"),
        (
            (b"x", "k" * 257, None),
            f"the row with the partition key '{'k' * 64}'...: the key has 257 characters",
        ),
        (
            (b"x", "order-1", "-1"),
            "'order-1': explicitHashKey is '-1'. Expected: digits of a number from 0 to 2**128",
        ),
        ((b"x", "order-1", str(2**128)), "explicitHashKey is '340282366920938463463374607431768211456'"),
        ((b"x", "order-1", "007"), "explicitHashKey is '007'"),
        ((b"x", "order-1", "\u0661"), "explicitHashKey is '\u0661'"),
        (
            (bytes(SURE_RECORD_BYTES), "order-1", None),
            "the row with the partition key 'order-1' has 1048583 bytes with its key, but the stream allows at most "
            "1048576",
        ),
    ],
)
def test_a_row_that_kinesis_would_not_take_is_named(row: tuple[Any, ...], said: str) -> None:
    with pytest.raises(WriteError, match=re.escape(said)):
        entries([(b"fine", "order-0", None), row])


def test_the_stream_is_asked_for_its_limit_only_for_a_record_that_may_be_above() -> None:
    asked: list[int] = []

    def limit() -> int:
        asked.append(1)
        return 3 * 2**20

    entries([(bytes(SURE_RECORD_BYTES - 1), "k", None)], limit=limit)
    assert asked == []
    assert len(entries([(bytes(3 * 2**20 - 1), "k", None)], limit=limit)) == 1
    assert asked == [1]
    with pytest.raises(
        WriteError, match="has 3145729 bytes with its key, but the stream allows at most 3145728"
    ):
        entries([(bytes(3 * 2**20), "k", None)], limit=limit)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_every_kind_of_column_that_spark_may_hand_over_is_written(kind: pa.DataType) -> None:
    texts = pa.large_string() if pa.types.is_large_string(kind) else pa.string()
    data = pa.array(["grün", "", "x"], pa.string()).cast(kind)
    batch = pa.record_batch({"data": data, "partitionKey": pa.array(["a", "ü", None], texts)})
    found = written(batch, WriteColumns(0, 1, None))
    assert [entry["Data"] for entry, _ in found] == ["grün".encode(), b"", b"x"]
    assert [entry["PartitionKey"] for entry, _ in found][:2] == ["a", "ü"]
    assert [size for _, size in found] == [6, 2, 17]


@settings(deadline=None)
@given(st.lists(st.sampled_from([None, "a", "b", "c.d_e-1"]), max_size=40), st.sampled_from(["a", "z"]))
def test_rows_go_to_the_stream_that_they_name_in_their_order(names: list[str | None], default: str) -> None:
    batch = pa.record_batch(
        {"streamName": pa.array(names, pa.string()), "data": pa.array([b"%d" % n for n in range(len(names))])}
    )
    found = list(streams_of(batch, WriteColumns(1, None, None, 0), default))
    streams = [stream for stream, _ in found]
    assert len(set(streams)) == len(streams)
    assert set(streams) == {name or default for name in names}
    for stream, part in found:
        assert [int(data) for data in part.column("data").to_pylist()] == [
            n for n, name in enumerate(names) if (name or default) == stream
        ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (None, "the column streamName is null in a row, and the option streamName is not set"),
        ("", "the column streamName is '' in a row. Expected: the name of one stream"),
        ("a,b", "the column streamName is 'a,b' in a row"),
        ("a b", "the column streamName is 'a b' in a row"),
    ],
)
def test_a_row_without_a_stream_that_can_be_is_named(name: str | None, said: str) -> None:
    batch = pa.record_batch(
        {"streamName": pa.array(["a", name], pa.string()), "data": pa.array([b"1", b"2"])}
    )
    with pytest.raises(WriteError, match=re.escape(said)):
        list(streams_of(batch, WriteColumns(1, None, None, 0), None))


def test_only_the_column_of_a_write_names_streams() -> None:
    assert WriteColumns.of(frame(data=BinaryType(), STREAMNAME=StringType())).stream_name == 1
    assert has_stream_column(frame(data=BinaryType(), streamname=StringType()))
    # Where a row was read is not where it goes.
    assert not has_stream_column(SCHEMA)
    with pytest.raises(WriteError, match="column streamName is bigint, not string"):
        WriteColumns.of(frame(data=BinaryType(), streamName=LongType()))
