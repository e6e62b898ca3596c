"""Aggregates that hold far more than they are: counted before they are opened, in parts, beyond a bound not at all."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from kinesis_trident.spout.kinesis.aggregate_messages import AggregatedRecord
from kinesis_trident.spout.kinesis.aggregation import (
    MAGIC,
    deaggregate_first,
    deaggregate_page,
)
from kinesis_trident.spout.kinesis.record_batches import (
    RECORD_SCHEMA,
    compact,
    copy_keys,
    memory_of,
    payload_size,
    portions,
)
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.positions import TRIM_HORIZON
from kinesis_trident.spout.reader import polling
from kinesis_trident.spout.reader.fetch import Bounds, ShardFetcher
from kinesis_trident.spout.reader.rows import Segment, TurnRows, make_untracked_rows
from kinesis_trident.spout.testing import MemoryKinesis, aggregate

SHARD = "shardId-000000000000"
ROOT = Path(__file__).parents[2]

USERS = st.lists(
    st.tuples(st.binary(max_size=9), st.sampled_from(["a", "bb", "", "key"])), min_size=1, max_size=5
)
PAGES = st.lists(st.one_of(st.binary(max_size=9), USERS), min_size=1, max_size=8)


def swelling(size: int, key: str = "k" * 256) -> bytes:
    """An aggregate of `size` bytes: empty user records that all have one key."""
    message = AggregatedRecord()
    message.partition_key_table.append(key.encode())
    table = message.SerializeToString()
    packed = table + b"\x1a\x04\x08\x00\x1a\x00" * ((size - len(table) - 20) // 6)
    return MAGIC + packed + hashlib.md5(packed).digest()


def page(payloads: Sequence[bytes]) -> pa.RecordBatch:
    n = len(payloads)
    columns = [
        pa.array([f"key {at}" for at in range(n)], pa.string()),
        pa.array(payloads, pa.binary()),
        pa.array([str(10**55 + at) for at in range(n)], pa.string()),
        pa.array([-1] * n, pa.int64()),
        pa.array([1_700_000_000_000_000] * n, pa.timestamp("us", tz="UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def made(content: list[bytes | list[tuple[bytes, str]]]) -> pa.RecordBatch:
    return page([one if isinstance(one, bytes) else aggregate(one) for one in content])


@given(PAGES, st.integers(1, 2000))
def test_the_parts_of_a_page_are_the_page(content: list[bytes | list[tuple[bytes, str]]], most: int) -> None:
    records = made(content)
    whole, parts, rest = deaggregate_page(records), [], records
    while rest.num_rows:
        part, taken = deaggregate_first(rest, most)
        assert taken
        parts.append(part)
        rest = rest.slice(taken)
    assert [row for part in parts for row in part.to_pylist()] == whole.to_pylist()


@given(PAGES, st.data())
def test_shared_keys_are_the_keys_however_records_are_cut(
    content: list[bytes | list[tuple[bytes, str]]], data: st.DataObject
) -> None:
    records = deaggregate_page(made(content))
    start = data.draw(st.integers(0, records.num_rows))
    stop = data.draw(st.integers(start, records.num_rows))
    wanted = records.to_pylist()[start:stop]
    cut = compact(records, np.arange(start, stop))
    assert cut.to_pylist() == wanted
    assert memory_of(cut) <= memory_of(records) + 8
    own = copy_keys(cut)
    assert own.schema == RECORD_SCHEMA
    assert own.to_pylist() == wanted
    assert payload_size(own) == sum(len(row["data"]) for row in wanted)


def test_a_mebibyte_of_the_smallest_user_records_is_opened_and_more_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    users = deaggregate_page(page([swelling(2**20)]))
    assert users.num_rows > 170_000
    # The key is there once.
    assert memory_of(users) < 100 * users.num_rows
    larger = page([b"before", swelling(2 * 2**20), b"after"])
    assert deaggregate_page(larger) is larger
    assert f"record {10**55 + 1} is an aggregate of " in caplog.text
    # Whether it is one row or many does not depend on how much may be taken.
    assert deaggregate_first(larger, 1)[0] is larger
    four_bytes = page([swelling(2**20, "\U0001f600" * 256)])
    assert deaggregate_page(four_bytes) is four_bytes


def test_rows_are_made_in_portions_of_bounded_size() -> None:
    users = deaggregate_page(page([b"plain", swelling(2**19)]))
    rows = TurnRows("orders", SHARD, 0, 7, 1, [Segment([users], attempt=1)])
    batches = list(rows.record_batches())
    assert len(batches) > 1
    assert max(batch.nbytes for batch in batches) < 32 * 2**20
    assert sum(batch.num_rows for batch in batches) == rows.count == users.num_rows
    ids = pa.concat_arrays([batch.column("__anchors").values.field("edge") for batch in batches])
    assert len(ids.unique()) == users.num_rows
    keys = pa.chunked_array([batch.column("partitionKey") for batch in batches])
    assert keys.unique().to_pylist() == ["key 0", "k" * 256]
    untracked = [make_untracked_rows(portion, "orders", SHARD) for portion in portions(users)]
    assert sum(batch.num_rows for batch in untracked) == users.num_rows


@settings(max_examples=25, deadline=None)
@given(PAGES, st.integers(1, 12), st.integers(1, 500))
def test_turns_over_pages_in_parts_give_each_record_once(
    content: list[bytes | list[tuple[bytes, str]]], most: int, part: int
) -> None:
    kinesis = MemoryKinesis()
    for one in content:
        kinesis.put(SHARD, one if isinstance(one, bytes) else aggregate(one))
    options = SourceOptions(stream_name="orders", min_fetch_period=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polling, "_PART", part)
        fetcher = ShardFetcher(kinesis, "orders", SHARD, options)
        whole = fetcher.fetch_new(TRIM_HORIZON, Bounds(10**6, 10**9, 60))
        assert whole.seen is not None
        found, position = [], TRIM_HORIZON
        while True:
            turn = fetcher.fetch_new(position, Bounds(most, 10**9, 60))
            found += [data for batch in turn.batches for data in batch.column("data").to_pylist()]
            if not turn.count:
                break
            position = turn.end  # type: ignore[assignment]
        assert whole.last is not None
        again = fetcher.fetch_until(TRIM_HORIZON, whole.last)
    wanted = [data for one in content for data, _ in ([(one, "")] if isinstance(one, bytes) else one)]
    assert found == wanted
    assert [data for batch in again.batches for data in batch.column("data").to_pylist()] == wanted


MEMORY = """
import sys
sys.path[:0] = ["{tests}", "{root}"]
from benchmarks.memory import peak
from test_swelling import SHARD, swelling
from kinesis_trident.spout.reader.fetch import Bounds, ShardFetcher
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.positions import TRIM_HORIZON
from kinesis_trident.spout.reader.rows import Segment, TurnRows
from kinesis_trident.spout.testing import MemoryKinesis

kinesis = MemoryKinesis()
for _ in range(9):
    kinesis.put(SHARD, swelling(2**20))
before = peak()
turn = ShardFetcher(kinesis, "orders", SHARD, SourceOptions(stream_name="orders")).fetch_new(
    TRIM_HORIZON, Bounds(100_000, 2**24, 60, memory=2**24)
)
rows = TurnRows("orders", SHARD, 0, 7, 1, [Segment(turn.batches, attempt=1)])
print(sum(batch.num_rows for batch in rows.record_batches()))
print((peak() - before) // 2**20)
"""


def test_a_turn_opens_no_more_than_it_takes() -> None:
    script = MEMORY.format(tests=Path(__file__).parent, root=ROOT)
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    count, mebibytes = map(int, done.stdout.split())
    # One of the nine is more than the turn takes; opened together they took more than a gibibyte.
    assert 170_000 < count < 180_000
    assert mebibytes < 300
