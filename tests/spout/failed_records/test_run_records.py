"""Records of runs in few slices, against a list for each run."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pyarrow as pa
from hypothesis import given, strategies as st

from kinesis_trident.spout.failed_records.retry_ranges import RunRecords
from kinesis_trident.spout.kinesis.record_batches import Slice

COUNTS = st.lists(st.integers(-1, 3), max_size=20)


@st.composite
def found(draw: st.DrawFn, counts: list[int], start: int = 0) -> RunRecords:
    """Numbers from `start` on, in slices of batches that hold other numbers besides."""
    values = range(start, start + sum(max(count, 0) for count in counts))
    slices, at = [], 0
    while at < len(values):
        size = draw(st.integers(1, len(values) - at))
        around = draw(st.integers(0, 2))
        numbers = [-1] * around + list(values[at : at + size]) + [-2]
        slices.append(Slice(pa.RecordBatch.from_pydict({"n": numbers}), around, size))
        at += size
    return RunRecords(slices, np.array(counts, np.int64))


def lists(counts: list[int], start: int = 0) -> list[list[int]]:
    """The numbers of each run."""
    runs = []
    for count in counts:
        runs.append(list(range(start, start + max(count, 0))))
        start += max(count, 0)
    return runs


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    return [n for batch in batches for n in batch.column("n").to_pylist()]


@given(COUNTS, st.data())
def test_some_of_the_runs_have_their_own_records(counts: list[int], data: st.DataObject) -> None:
    records, wanted = data.draw(found(counts)), lists(counts)
    assert numbers(records.batches()) == list(chain(*wanted))
    assert [numbers(records.of_run(index)) for index in range(len(counts))] == wanted
    assert records.reached.tolist() == [count >= 0 for count in counts]
    chosen = data.draw(st.lists(st.booleans(), min_size=len(counts), max_size=len(counts)))
    some = records.of(np.array(chosen, np.bool_))
    mine = [run for run, is_chosen in zip(wanted, chosen, strict=True) if is_chosen]
    assert [numbers(some.of_run(index)) for index in range(len(mine))] == mine
    assert numbers(some.batches()) == list(chain(*mine))
    assert some.counts.tolist() == [c for c, is_chosen in zip(counts, chosen, strict=True) if is_chosen]


@given(COUNTS, st.data())
def test_runs_replaced_by_those_of_another(counts: list[int], data: st.DataObject) -> None:
    others = data.draw(st.lists(st.integers(-1, 3), min_size=len(counts), max_size=len(counts)))
    chosen = data.draw(st.lists(st.booleans(), min_size=len(counts), max_size=len(counts)))
    records, other = data.draw(found(counts)), data.draw(found(others, 1000))
    both = records.replace_some(other, np.array(chosen, np.bool_))
    wanted = [
        theirs if is_chosen else mine
        for mine, theirs, is_chosen in zip(lists(counts), lists(others, 1000), chosen, strict=True)
    ]
    assert [numbers(both.of_run(index)) for index in range(len(counts))] == wanted
    assert numbers(both.batches()) == list(chain(*wanted))


def test_neighbours_are_one_slice_however_many_runs_they_are() -> None:
    batch = pa.RecordBatch.from_pydict({"n": list(range(1000))})
    records = RunRecords([Slice(batch, 0, 1000)], np.ones(1000, np.int64))
    chosen = np.ones(1000, np.bool_)
    chosen[500] = False
    assert [(one.start, one.num_rows) for one in records.of(chosen).slices] == [(0, 500), (501, 499)]
