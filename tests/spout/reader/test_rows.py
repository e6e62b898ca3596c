"""Rows: their schema, their numbering, and what identifies a turn."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from operator import xor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from kinesis_trident.common.arrow_schemas import arrow_schema
from kinesis_trident.spout.failed_records.retry_ranges import RunRecords
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA, Slice, digest_of
from kinesis_trident.spout.reader.rows import ANCHORS, ARROW_SCHEMA, SCHEMA, Retried, Segment, TurnRows
from kinesis_trident.tracker.ids import of_turn, ordinal_of, tag_of, tuple_ids, turn_of
from kinesis_trident.tracker.records import Run

TAG = 0xABCDEF
POSITIONS = st.lists(st.tuples(st.integers(0, 10**56), st.integers(-1, 3)), max_size=12)


def batch(positions: list[tuple[int, int]]) -> pa.RecordBatch:
    n = len(positions)
    columns = [
        pa.array([f"key {i}" for i in range(n)], pa.string()),
        pa.array([b"" if i % 3 == 0 else bytes([i % 256]) for i in range(n)], pa.binary()),
        pa.array([str(sequence) for sequence, _ in positions], pa.string()),
        pa.array([sub for _, sub in positions], pa.int64()),
        pa.array([1_700_000_000_000_000 + i for i in range(n)], pa.timestamp("us", tz="UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def in_parts(whole: pa.RecordBatch, cuts: list[int]) -> list[pa.RecordBatch]:
    bounds = [0, *sorted(cut % (whole.num_rows + 1) for cut in cuts), whole.num_rows]
    return [whole.slice(start, stop - start) for start, stop in pairwise(bounds)]


def turn(*segments: Segment | Retried) -> TurnRows:
    return TurnRows("orders", "shardId-000000000001", 3, 17, TAG, list(segments))


def anchors(rows: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    root, edge = rows.column(ANCHORS).flatten().flatten()
    return root.to_numpy(), edge.to_numpy()


def test_the_schema_is_the_one_that_spark_expects() -> None:
    assert arrow_schema(SCHEMA).equals(ARROW_SCHEMA)


def test_rows_have_all_columns() -> None:
    held = batch([(5, -1), (6, 0), (6, 1)])
    (rows,) = turn(Segment([held], 2)).record_batches()
    assert rows.schema.equals(ARROW_SCHEMA)
    rows.validate(full=True)
    for name in (
        "partitionKey",
        "data",
        "sequenceNumber",
        "subSequenceNumber",
        "approximateArrivalTimestamp",
    ):
        assert rows.column(name).equals(held.column(name))
    assert rows.column("messageId").to_pylist() == [
        "orders/shardId-000000000001:5",
        "orders/shardId-000000000001:6:0",
        "orders/shardId-000000000001:6:1",
    ]
    for name, value in (
        ("stream", "orders"),
        ("shardId", "shardId-000000000001"),
        ("attempt", 2),
        ("txid", 17),
    ):
        assert rows.column(name).to_pylist() == [value] * 3
    root, edge = anchors(rows)
    assert (tag_of(root) == TAG).all()
    assert [of_turn(turn)[1] for turn in turn_of(root).tolist()] == [3] * len(root)
    assert edge.tolist() == tuple_ids("orders", 17, "shardId-000000000001", ordinal_of(root)).tolist()
    assert [len(row) for row in rows.column(ANCHORS).to_pylist()] == [1, 1, 1]


def test_ordinals_are_consecutive_only_where_records_are_neighbours() -> None:
    rows = turn(
        Segment([batch([(1, -1), (2, -1)])], 2),
        Segment([batch([(7, -1)])], 3),
        Segment([batch([(20, -1)]), batch([]), batch([(21, -1), (22, -1)])], 1),
    )
    (together,) = rows.record_batches()
    assert together.column("attempt").to_pylist() == [2, 2, 3, 1, 1, 1]
    assert ordinal_of(anchors(together)[0]).tolist() == [0, 1, 3, 5, 6, 7]
    assert rows.count == 6


def test_records_that_come_back_one_by_one_share_a_batch() -> None:
    """A batch for each of them took most of the time of a batch of which half had failed."""
    page = batch([(n, -1) for n in range(1000, 21000)])
    segments = [*(Segment([batch([(2 * n, -1)])], 2) for n in range(300)), Segment([page, page], 2)]
    small, *large = turn(*segments).record_batches()
    assert small.column("sequenceNumber").to_pylist() == [str(2 * n) for n in range(300)]
    assert ordinal_of(anchors(small)[0]).tolist() == list(range(0, 600, 2))
    # Pages are not copied.
    assert [rows.num_rows for rows in large] == [20000, 20000]
    assert large[0].column("data").buffers()[2].address == page.column("data").buffers()[2].address


def test_rows_of_a_large_batch_come_in_parts() -> None:
    """A spool can hold very many records of small size: the text of their rows takes more memory than they do."""
    page = batch([(n, -1) for n in range(100_000, 150_000)])
    parts = list(turn(Segment([page], 2)).record_batches())
    assert max(rows.num_rows for rows in parts) < 40_000
    assert [n for rows in parts for n in rows.column("sequenceNumber").to_pylist()] == [
        str(n) for n in range(100_000, 150_000)
    ]
    assert [n for rows in parts for n in ordinal_of(anchors(rows)[0]).tolist()] == list(range(50_000))


@given(
    counts=st.lists(st.integers(0, 4), max_size=30),
    taken=st.lists(st.booleans(), min_size=30, max_size=30),
    pages=st.integers(1, 3),
)
def test_records_cut_out_of_pages_are_the_rows_that_batches_of_them_would_be(
    counts: list[int], taken: list[bool], pages: int
) -> None:
    """Runs that come again are parts of a page, some of them next to each other, and may go on in the next page."""
    every = batch([(n, -1) for n in range(sum(counts))])
    middle = every.num_rows // pages
    parts: list[list[Slice]] = []
    start = 0
    for count, is_taken in zip(counts, taken, strict=False):
        cuts = sorted({start, min(max(middle, start), start + count), start + count})
        if is_taken:
            parts.append([Slice(every, first, last - first) for first, last in pairwise(cuts)])
        start += count
    cut = turn(*(Segment(part, attempt) for attempt, part in enumerate(parts, 1)))
    apart = turn(
        *(Segment([one.records() for one in part], attempt) for attempt, part in enumerate(parts, 1))
    )
    tables = [pa.Table.from_batches(rows.record_batches(), ARROW_SCHEMA) for rows in (cut, apart)]
    assert tables[0].equals(tables[1])
    assert (cut.count, cut.xor(), cut.digest()) == (apart.count, apart.xor(), apart.digest())


@given(
    counts=st.lists(st.integers(-1, 4), max_size=30),
    attempts=st.lists(st.integers(1, 3), min_size=30, max_size=30),
    chosen=st.lists(st.booleans(), min_size=30, max_size=30),
    cuts=st.lists(st.integers(0, 200), max_size=5),
)
def test_retried_runs_are_the_rows_that_a_segment_for_each_would_be(
    counts: list[int], attempts: list[int], chosen: list[bool], cuts: list[int]
) -> None:
    """Their ordinals are in the tuple ids, by which a replay has to agree with the run before it."""
    every = batch([(n, -1) for n in range(sum(max(count, 0) for count in counts))])
    pages = [Slice(page, 0, page.num_rows) for page in in_parts(every, cuts) if page.num_rows]
    runs = [Run("", "9", attempt=attempt) for attempt in attempts[: len(counts)]]
    records = RunRecords(pages, np.array(counts, np.int64))
    new = Segment([batch([(1000, -1), (1001, -1)])], 1)
    segments, start = [], 0
    for count, run, is_chosen in zip(counts, runs, chosen, strict=False):
        if count > 0:
            if is_chosen:
                segments.append(Segment([every.slice(start, count)], run.attempt + 1))
            start += count
    apart = turn(*segments, new)
    retried = turn(Retried.of(runs, records, np.array(chosen[: len(counts)], np.bool_)), new)
    tables = [pa.Table.from_batches(rows.record_batches(), ARROW_SCHEMA) for rows in (retried, apart)]
    assert tables[0].equals(tables[1])
    assert (retried.count, retried.xor(), retried.digest()) == (apart.count, apart.xor(), apart.digest())


def test_an_empty_turn_yields_nothing() -> None:
    rows = turn(Segment([batch([])], 1))
    assert list(rows.record_batches()) == []
    assert (rows.count, rows.xor(), rows.digest()) == (0, 0, digest_of([]))


@given(POSITIONS, POSITIONS, st.lists(st.integers(0, 100), max_size=4))
def test_xor_and_digest_are_the_same_whatever_batches_the_rows_come_in(
    retried: list[tuple[int, int]], new: list[tuple[int, int]], cuts: list[int]
) -> None:
    whole = turn(Segment([batch(retried)], 2), Segment([batch(new)], 1))
    parts = turn(Segment(in_parts(batch(retried), cuts), 2), Segment(in_parts(batch(new), cuts), 1))
    assert whole.digest() == parts.digest()
    ids = [int(edge) for rows in parts.record_batches() for edge in anchors(rows)[1]]
    assert whole.xor() == parts.xor() == reduce(xor, ids, 0)
    assert whole.count == parts.count == len(ids)
    assert -(2**63) <= whole.xor() < 2**63


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([(1, -1), (23, -1)], [(12, -1), (3, -1)]),
        ([(1, -1), (2, -1)], [(2, -1), (1, -1)]),
        ([(1, -1)], [(1, 0)]),
        ([(1, 0), (1, 1)], [(1, 0), (1, 0)]),
        ([(1, -1)], []),
        ([(1, -1), (1, -1)], [(1, -1)]),
    ],
)
def test_other_records_give_another_digest(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    assert digest_of([batch(one)]) != digest_of([batch(other)])


@given(POSITIONS, POSITIONS)
def test_equal_digests_mean_equal_positions(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    assert (digest_of([batch(one)]) == digest_of([batch(other)])) == (one == other)
