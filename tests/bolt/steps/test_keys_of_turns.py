"""What follows a failed record of its key waits with it, whatever the functions are and however the rows are cut."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from heard import Heard, told_by
from hypothesis import given, strategies as st

from kinesis_trident.bolt.steps import functions
from kinesis_trident.bolt.steps.functions import ArrowStep, RowStep, Step
from kinesis_trident.bolt.tracking.failed import Failed
from kinesis_trident.bolt.tracking.operators import StepOperator, Tag
from kinesis_trident.spout.kinesis.record_batches import RECORD_SCHEMA
from kinesis_trident.spout.reader.rows import Segment, TurnRows
from kinesis_trident.tracker.failure import Failure
from kinesis_trident.tracker.ids import hash_of
from kinesis_trident.tracker.records import keys_of_piece
from kinesis_trident.tracker.runs import ALL, MOST_KEYS

NUMBERS = pa.schema([("number", pa.int64())])
SHARDS = ("shardId-000000000000", "shardId-000000000001")
_ARRIVAL = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def number_of(record: Any) -> tuple[int]:
    text = record.data.decode()
    if text.startswith("x"):
        raise ValueError(text)
    return (int(text),)


def numbers_at_once(batch: pa.RecordBatch) -> pa.RecordBatch:
    texts = [data.decode() for data in batch.column("data").to_pylist()]
    numbers = [None if text.startswith("x") else int(text) for text in texts]
    failed = [text if text.startswith("x") else None for text in texts]
    return pa.RecordBatch.from_arrays(
        [pa.array(numbers, pa.int64()), pa.array(failed, pa.string())], names=["number", "__failed"]
    )


def not_below_zero(record: Any) -> tuple[int]:
    if record.number < 0:
        msg = "below zero"
        raise ValueError(msg)
    return (record.number,)


STEPS: dict[str, tuple[Step, ...]] = {
    "rows": (RowStep(number_of, NUMBERS),),
    "at once": (ArrowStep(numbers_at_once, NUMBERS),),
    "two": (ArrowStep(numbers_at_once, NUMBERS), RowStep(not_below_zero, NUMBERS)),
    "twice": (RowStep(number_of, NUMBERS), RowStep(not_below_zero, NUMBERS)),
}

Record = tuple[str, str]
"""A key, and what becomes of the record: it is good, or fails at the first function or at a later one."""

records = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["good", "good", "bad", "late"])), max_size=14
)


def batch_of(some: list[Record], is_late: bool) -> pa.RecordBatch:
    texts = [
        f"x{at}"
        if fate == "bad" or (fate == "late" and not is_late)
        else f"{'-' if fate == 'late' else ''}{at + 1}"
        for at, (_, fate) in enumerate(some)
    ]
    count = len(some)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([key for key, _ in some], pa.string()),
            pa.array([text.encode() for text in texts], pa.binary()),
            pa.array([str(100 + at) for at in range(count)], pa.string()),
            pa.array(np.full(count, -1)),
            pa.array([_ARRIVAL] * count, pa.timestamp("us", tz="UTC")),
        ],
        schema=RECORD_SCHEMA,
    )


def judge(turns: list[TurnRows], steps: tuple[Step, ...], cut: int) -> tuple[list[int], dict[int, Failed]]:
    """Return the numbers that come out, and what failed of each shard; the rows come in batches of so many."""
    heard = Heard()

    def batches() -> Iterator[pa.RecordBatch]:
        for turn in turns:
            for rows in turn.record_batches():
                for at in range(0, rows.num_rows, cut):
                    yield rows.slice(at, cut)

    operator = StepOperator(Tag("map", 7, heard), steps, anchored=False, in_order=True)
    made = [number for rows in operator(batches()) for number in rows.column("number").to_pylist()]
    return made, {key.shard: failed for key, failed in heard.reports.items()}


@pytest.mark.parametrize("steps", STEPS)
@given(st.lists(records, min_size=1, max_size=2), st.integers(1, 6), st.sets(st.sampled_from("abc")))
def test_a_turn_is_judged_as_record_by_record(
    steps: str, shards: list[list[Record]], cut: int, ahead: set[str]
) -> None:
    is_late = len(STEPS[steps]) > 1
    held = frozenset(map(hash_of, ahead))
    turns = []
    expected, states = list[int](), dict[int, dict[int, str]]()
    for index, some in enumerate(shards):
        turn = TurnRows(
            "s", SHARDS[index], index, 7, 1, [Segment([batch_of(some, is_late)], 1)] if some else []
        )
        turn.mark([], held)
        turns.append(turn)
        blocked = set(ahead)
        for at, (key, fate) in enumerate(some):
            if key in blocked:
                states.setdefault(index, {})[at] = "BEHIND"
            elif fate == "good":
                expected.append(at + 1)
            else:
                states.setdefault(index, {})[at] = "failed"
                blocked.add(key)
    made, failed = judge(turns, STEPS[steps], cut)
    assert made == expected
    found = {
        index: {ordinal: "BEHIND" if why == "BEHIND" else "failed" for ordinal, why in told_by(some).items()}
        for index, some in failed.items()
        if some
    }
    assert found == states
    for index, some in failed.items():
        for piece in some.not_done():
            at = [int(text) - 100 for text in (piece.first, piece.last)]
            keys = {hash_of(key) for key, _ in shards[index][at[0] : at[1] + 1]}
            assert keys_of_piece(piece) == tuple(sorted(keys))


def with_text(record: Any) -> tuple[int, str]:
    return (*number_of(record), "text" * 10)


@pytest.mark.parametrize("steps", [1, 2])
@given(some=records, flushed=st.sampled_from([1, 90, 1_000]))
def test_large_rows_in_parts_wait_as_well(steps: int, some: list[Record], flushed: int) -> None:
    schema = pa.schema([*NUMBERS, ("text", pa.string())])
    functions_of = (RowStep(with_text, schema), RowStep(lambda row: (row.number, row.text), schema))[:steps]
    turn = TurnRows("s", SHARDS[0], 0, 7, 1, [Segment([batch_of(some, False)], 1)] if some else [])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(functions, "FLUSH_BYTES", flushed)
        made, failed = judge([turn], functions_of, 99)
    expected = [
        at + 1
        for at, (key, _) in enumerate(some)
        if all(fate == "good" for other, fate in some[: at + 1] if other == key)
    ]
    assert made == expected
    assert sum(one.count for one in failed.values()) == len(some) - len(expected)


def test_records_that_come_again_wait_for_what_was_not_reached_before_them() -> None:
    again = [("a", "good"), ("b", "good"), ("a", "good")]
    segments = [Segment([batch_of(again, False)], 2), Segment([batch_of([("b", "good")], False)], 1)]
    turn = TurnRows("s", SHARDS[0], 0, 7, 1, segments)
    a = frozenset({hash_of("a")})
    turn.mark([(1, frozenset()), (2, a)], a | {hash_of("b")})
    (rows,) = pa.Table.from_batches(turn.record_batches()).combine_chunks().to_batches()
    assert rows.column("attempt").to_pylist() == [2, 2, 0, 0]
    turn.mark([(1, frozenset()), (2, frozenset({ALL}))], ())
    (rows,) = pa.Table.from_batches(turn.record_batches()).combine_chunks().to_batches()
    assert rows.column("attempt").to_pylist() == [2, 0, 0, 0]


def test_more_keys_than_are_named_are_not_known() -> None:
    def keys_in(count: int) -> set[int]:
        ordinals = range(0, 2 * count, 2)
        texts = list(map(str, ordinals))
        failures = [Failure.said("no")] * count
        failed = Failed.over(ordinals, ordinals, failures, texts, texts)
        keyed = failed.with_keys({at: hash_of(str(at)) for at in ordinals})
        return {len(keys_of_piece(piece)) for piece in keyed.not_done()}

    assert keys_in(MOST_KEYS) == {1}
    assert keys_in(MOST_KEYS + 1) == {0}


def test_a_record_whose_key_nobody_has_told_leaves_its_neighbours_without() -> None:
    failed = Failed.over([1, 2, 5], [1, 3, 5], [Failure.said("no")] * 3, ["1", "2", "5"], ["1", "3", "5"])
    keyed = failed.with_keys({1: hash_of("a"), 2: hash_of("b"), 5: hash_of("a")})
    assert [keys_of_piece(piece) for piece in keyed.not_done()] == [(), (hash_of("a"),)]
    other = Failed.over([3], [3], [Failure.said("no")], ["3"], ["3"]).with_keys({3: hash_of("c")})
    both = keyed.union(other)
    assert [len(keys_of_piece(piece)) for piece in both.not_done()] == [3, 1]


def test_records_without_a_key_have_one_in_common_also_among_user_records() -> None:
    some = batch_of([("a", "good"), ("b", "good"), ("a", "good")], False)
    keys = pa.array(["a", None, "a"], pa.string())
    for column in (keys, keys.dictionary_encode()):
        given = pa.RecordBatch.from_arrays([column, *some.columns[1:]], names=some.schema.names)
        for held, attempts in ((frozenset({hash_of("")}), [1, 0, 1]), (frozenset({hash_of("a")}), [0, 1, 0])):
            turn = TurnRows("s", SHARDS[0], 0, 7, 1, [Segment([given], 1)])
            turn.mark([], held)
            assert [one.attempts.tolist() for one in turn._numbered] == [attempts]
