from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_trident.spout.failed_records.retry_ranges import gather, start_of
from kinesis_trident.spout.positions import TRIM_HORIZON, After, At
from kinesis_trident.tracker.records import RecordPosition, Run


def single(sequence: int) -> Run:
    return Run(first=str(sequence), last=str(sequence))


@given(st.sets(st.integers(1, 10**6), max_size=40), st.integers(1, 6))
def test_ranges_hold_every_run_once_and_in_order(sequences: set[int], ranges: int) -> None:
    runs = [single(sequence) for sequence in sorted(sequences)]
    gathered = gather(runs, ranges)
    assert [index for one in gathered for index in one] == list(range(len(runs)))
    assert len(gathered) == min(ranges, len(runs))


@given(st.sets(st.integers(1, 10**6), min_size=2, max_size=40), st.integers(1, 6))
def test_the_gaps_left_out_are_the_widest(sequences: set[int], ranges: int) -> None:
    ordered = sorted(sequences)
    gathered = gather([single(sequence) for sequence in ordered], ranges)
    cuts = {one.start for one in gathered} - {0}
    gaps = {index + 1: after - before for index, (before, after) in enumerate(pairwise(ordered))}
    kept = [gap for index, gap in gaps.items() if index not in cuts]
    assert all(gaps[index] >= gap for index in cuts for gap in kept)


def test_nothing_gives_no_range_and_none_allowed_is_an_error() -> None:
    assert gather([], 2) == []
    with pytest.raises(ValueError, match="0 ranges"):
        gather([single(1)], 0)


def test_a_run_begins_at_its_first_record_or_after_the_one_before() -> None:
    assert start_of(Run(first="7", last="9", prev="5")) == At(RecordPosition(7))
    assert start_of(Run(first="", last="9", prev="5:2")) == After(RecordPosition(5, 2))
    assert start_of(Run(first="", last="9")) == TRIM_HORIZON
