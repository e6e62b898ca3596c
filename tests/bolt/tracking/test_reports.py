"""Reports of tracked operators: exact over any batches, and merged as sets whatever the order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given, strategies as st

from kinesis_trident.bolt.tracking.anchors import Anchors, anchors_of
from kinesis_trident.bolt.tracking.failed import NONE, Failed
from kinesis_trident.bolt.tracking.reports import (
    OperatorLedger,
    ReportKey,
    ReportParam,
    Reports,
)
from kinesis_trident.checkpoint.model.nodes import NotDone
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.spout.reader.rows import MESSAGE_ID, Segment, TurnRows
from kinesis_trident.tracker.failure import Failure

TAG = 0xABC123
Position = tuple[int, int]


def records(positions: list[Position]) -> pa.RecordBatch:
    n = len(positions)
    columns = [
        pa.array(["k"] * n, pa.string()),
        pa.array([b"d"] * n, pa.binary()),
        pa.array([str(sequence) for sequence, _ in positions], pa.string()),
        pa.array([sub for _, sub in positions], pa.int64()),
        pa.array([0] * n, pa.timestamp("us", tz="UTC")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def turn(*segments: list[Position], index: int = 0, shard: str = "shardId-0") -> TurnRows:
    held = [Segment([records(segment)], 1) for segment in segments]
    return TurnRows("orders", shard, index, 7, TAG, held)


def table(*turns: TurnRows) -> pa.RecordBatch:
    return pa.concat_batches([rows for held in turns for rows in held.record_batches()])


def reported(rows: pa.RecordBatch, reasons: dict[int, str], cuts: list[int]) -> Reports:
    """Return what one task says of these rows, which come in batches cut anywhere."""
    ledger = OperatorLedger("map", 7)
    bounds = [0, *sorted(cut % (rows.num_rows + 1) for cut in cuts), rows.num_rows]
    for start, stop in pairwise(bounds):
        part = rows.slice(start, stop - start)
        failed = {row - start: Failure.said(reason) for row, reason in reasons.items() if start <= row < stop}
        ledger.consume_records(anchors_of(part), part.column(MESSAGE_ID), failed)
    return ledger.reports()


def not_done(reports: Reports) -> list[NotDone]:
    return [run for failed in reports.values() for run in failed.not_done()]


def test_neighbours_that_fail_alike_are_one_run_with_the_record_before_it() -> None:
    rows = table(turn([(1, -1), (2, 0), (2, 1), (5, -1), (6, -1)]))
    reports = reported(rows, {1: "A", 2: "A", 3: "B"}, [])
    assert not_done(reports) == [NotDone("2:0", "2:1", 2, "A", "1"), NotDone("5", "5", 1, "B", "2:1")]


def test_a_gap_between_segments_breaks_a_run_and_hides_the_record_before() -> None:
    rows = table(turn([(1, -1), (2, -1)], [(8, -1), (9, -1)]))
    assert not_done(reported(rows, {1: "A", 2: "A"}, [])) == [
        NotDone("2", "2", 1, "A", "1"),
        NotDone("8", "8", 1, "A", None),
    ]


def test_each_shard_has_its_own_report_with_what_the_pin_says() -> None:
    one, other = turn([(1, -1), (2, -1)]), turn([(2, -1), (3, -1)], index=1, shard="shardId-1")
    reports = reported(table(one, other), {1: "A", 2: "A"}, [])
    assert {key: [*failed.not_done()] for key, failed in reports.items()} == {
        ReportKey(7, TAG, "map", 0, 2, one.xor()): [NotDone("2", "2", 1, "A", "1")],
        ReportKey(7, TAG, "map", 1, 2, other.xor()): [NotDone("2", "2", 1, "A", None)],
    }


def test_shards_may_take_turns_within_a_task() -> None:
    one, other = turn([(1, -1), (2, -1), (3, -1)]), turn([(7, -1)], index=1, shard="shardId-1")
    a, b = table(one), table(other)
    mixed = pa.concat_batches([a.slice(0, 1), b, a.slice(1)])
    reports = reported(mixed, {0: "A", 2: "A", 3: "B"}, [])
    assert {(key.shard, key.rows, key.consumed) for key in reports} == {
        (0, 3, one.xor()),
        (1, 1, other.xor()),
    }
    assert not_done(reports) == [NotDone("1", "2", 2, "A", None), NotDone("3", "3", 1, "B", "2")]


def test_nothing_is_said_of_nothing() -> None:
    ledger = OperatorLedger("map", 7)
    ledger.consume_records(
        Anchors(np.empty(0, np.int64), np.empty(0, np.int64)), pa.array([], pa.string()), {}
    )
    assert ledger.reports() == {}


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    reasons=st.dictionaries(st.integers(0, 23), st.sampled_from("AB")),
    cuts=st.lists(st.integers(0, 30), max_size=5),
)
def test_a_report_is_exact_whatever_batches_the_rows_come_in(
    sizes: list[int], reasons: dict[int, str], cuts: list[int]
) -> None:
    segments, sequence = [], 0
    for size in sizes:
        segments.append([(sequence + i, -1) for i in range(size)])
        sequence += size + 5
    held = turn(*segments)
    flat = [position[0] for segment in segments for position in segment]
    starts = {segment[0][0] for segment in segments}
    reasons = {row: reason for row, reason in reasons.items() if row < len(flat)}
    reports = reported(table(held), reasons, cuts)
    assert reports == reported(table(held), reasons, [])
    assert list(reports) == [ReportKey(7, TAG, "map", 0, held.count, held.xor())]
    pieces = not_done(reports)
    said = {}
    for piece in pieces:
        rows = range(flat.index(int(piece.first)), flat.index(int(piece.last)) + 1)
        assert len(rows) == piece.count
        assert all(flat[row] not in starts for row in rows[1:])
        first_of_segment = flat[rows[0]] in starts
        assert piece.prev == (None if first_of_segment else str(flat[rows[0] - 1]))
        said |= dict.fromkeys(rows, piece.reason)
    assert said == reasons


KEY = ReportKey(7, TAG, "map", 0, 30, 1)
SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4), st.sampled_from("AB")), max_size=8)


def told(spans: list[tuple[int, int, str]]) -> Failed:
    """Return what one task reports."""
    firsts = [first for first, _, _ in spans]
    return Failed.over(
        firsts, [first + more for first, more, _ in spans], [Failure.said(text) for *_, text in spans]
    )


def added(*parts: Failed) -> Failed:
    """Return what a Spark accumulator comes to that these reports are added to."""
    param = ReportParam()
    total = param.zero({})
    for part in parts:
        total = param.addInPlace(total, {KEY: part})
    return total[KEY]


@given(SPANS, SPANS, SPANS)
def test_failures_merge_whatever_the_order(a: list, b: list, c: list) -> None:  # type: ignore[type-arg]
    one, two, three = told(a), told(b), told(c)
    assert added(one, one) == added(one) == one
    assert added(one, two) == added(two, one)
    assert added(one, two, three) == added(three, two, one) == added(one, added(two, three))


def test_reports_on_other_things_stand_side_by_side() -> None:
    param = ReportParam()
    others = [
        KEY._replace(txid=8),
        KEY._replace(tag=1),
        KEY._replace(operator="b"),
        KEY._replace(shard=1),
        KEY._replace(rows=29),
        KEY._replace(consumed=2),
    ]
    total: Reports = {KEY: NONE}
    for other in others:
        total = param.addInPlace(total, {other: NONE})
    assert set(total) == {KEY, *others}
