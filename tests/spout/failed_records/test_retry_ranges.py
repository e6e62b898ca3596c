from __future__ import annotations

from itertools import pairwise

import pytest
from found_records import payloads_by_run, records, served
from hypothesis import given, strategies as st

from kinesis_trident.spout.failed_records.retry_ranges import (
    DeaggregateChangedError,
    Picker,
    check_whole,
    gather,
    start_of,
)
from kinesis_trident.spout.positions import TRIM_HORIZON, After, At
from kinesis_trident.tracker.records import RecordPosition, Run


def single(sequence: int) -> Run:
    return Run(first=str(sequence), last=str(sequence))


@given(st.sets(st.integers(1, 10**6), max_size=40), st.integers(1, 6))
def test_ranges_hold_every_run_once_and_in_order(sequences: set[int], ranges: int) -> None:
    runs = [single(sequence) for sequence in sorted(sequences)]
    gathered = gather(runs, ranges)
    assert [index for one in gathered for index in one] == list(range(len(runs)))
    assert min(len(runs), 1) <= len(gathered) <= min(ranges, len(runs))


@given(st.sets(st.integers(1, 10**6), min_size=2, max_size=40), st.integers(1, 6))
def test_the_gaps_left_out_are_the_widest(sequences: set[int], ranges: int) -> None:
    ordered = sorted(sequences)
    gathered = gather([single(sequence) for sequence in ordered], ranges)
    cuts = {one.start for one in gathered} - {0}
    gaps = {index + 1: after - before for index, (before, after) in enumerate(pairwise(ordered))}
    kept = [gap for index, gap in gaps.items() if index not in cuts]
    assert all(gaps[index] >= gap for index in cuts for gap in kept)
    eighth = (ordered[-1] - ordered[0]) / 8
    assert all(gaps[index] >= eighth for index in cuts)
    assert len(cuts) == ranges - 1 or all(gap < eighth for gap in kept)


def test_nothing_gives_no_range_and_none_allowed_is_an_error() -> None:
    assert gather([], 2) == []
    with pytest.raises(ValueError, match="0 ranges"):
        gather([single(1)], 0)


def test_a_run_begins_at_its_first_record_or_after_the_one_before() -> None:
    assert start_of(Run(first="7", last="9", prev="5")) == At(RecordPosition(7))
    assert start_of(Run(first="", last="9", prev="5:2")) == After(RecordPosition(5, 2))
    assert start_of(Run(first="", last="9")) == TRIM_HORIZON


POSITIONS = st.builds(RecordPosition, st.integers(0, 10**4), st.integers(-1, 3))


@given(st.sets(POSITIONS, min_size=1, max_size=40).map(sorted), st.data())
def test_each_run_gets_the_records_that_the_pages_hold_of_it(
    shard: list[RecordPosition], data: st.DataObject
) -> None:
    """Some have left the stream since the runs were made, and pages may begin and end within a run."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(shard)), max_size=12)) | {0, len(shard)})
    parts = [range(start, stop) for start, stop in pairwise(cuts)]
    mine = [part for part in parts if data.draw(st.booleans())]
    runs = []
    for part in mine:
        before = str(shard[part.start - 1]) if part.start else None
        first = str(shard[part.start]) if data.draw(st.booleans()) else ""
        known = before if not first or data.draw(st.booleans()) else None
        runs.append(Run(first, str(shard[part.stop - 1]), len(part), known))
    left = shard[data.draw(st.integers(0, len(shard))) :]
    picker = Picker(runs)
    page = data.draw(st.integers(1, 9))
    for start in range(0, len(left), page):
        picker.offer(records(left[start : start + page]))
    expected = [[str(shard[index]) for index in part if shard[index] in left] for part in mine]
    reached = [part for part in mine if left and shard[part.start] <= left[-1]]
    found = [[text.decode() for text in texts] for texts in payloads_by_run(picker.records)]
    assert found == expected[: len(reached)]
    assert served(picker.records) == tuple(map(len, found))
    assert picker.missing == tuple(
        index for index, texts in enumerate(found) if len(texts) < len(mine[index])
    )
    assert picker.through == (left[-1] if left else None)
    # What has left the stream was in it.
    assert picker.strange == []


@given(st.sets(st.integers(1, 200), min_size=2, max_size=60).map(sorted), st.data())
def test_what_a_page_lacks_between_its_records_was_never_in_the_stream(
    numbers: list[int], data: st.DataObject
) -> None:
    foreign = data.draw(st.sets(st.sampled_from(numbers)))
    shard = [RecordPosition(number) for number in numbers if number not in foreign]
    picker = Picker([single(number) for number in numbers])
    page = data.draw(st.integers(1, 20))
    pages = [shard[start : start + page] for start in range(0, len(shard), page)]
    for one in pages:
        picker.offer(records(one))
    picker.note_passed(RecordPosition(numbers[-1]))
    assert picker.strange == [
        index
        for index, number in enumerate(numbers)
        if number in foreign and any(one[0].number < number < one[-1].number for one in pages)
    ]
    assert picker.missing == tuple(index for index, number in enumerate(numbers) if number in foreign)


def test_a_page_is_copied_once_however_many_runs_take_of_it() -> None:
    """A copy takes as long for a record as for a thousand: of half of a shard's records it was most of the time."""
    shard = [RecordPosition(number) for number in range(100, 600)]
    picker = Picker([single(position.number) for position in shard[::2]])
    picker.offer(records(shard))
    assert served(picker.records) == (1,) * 250
    (copied,) = picker.records.batches()
    # The records that are of no run are not held with them.
    assert copied.column("data").buffers()[2].size < 250 * 4


@given(
    st.lists(st.tuples(st.integers(10, 99), st.integers(-1, 3)), max_size=30),
    st.sets(st.tuples(st.integers(1, 120), st.integers(-1, 2)), max_size=30),
)
def test_a_record_that_was_delivered_whole_is_never_split(
    page: list[tuple[int, int]], delivered: set[tuple[int, int]]
) -> None:
    positions = sorted({RecordPosition(*one) for one in page})
    texts = [str(one) for one in sorted(RecordPosition(*one) for one in delivered)]
    split = {one.sequence for one in positions if one.sub == 0}
    wrong = [text for text in texts if ":" not in text and int(text) in split]
    batch = records(positions)
    if wrong:
        with pytest.raises(DeaggregateChangedError, match=f"record {wrong[0]} was delivered"):
            check_whole(batch, texts, "here")
    else:
        check_whole(batch, texts, "here")


def test_only_the_runs_within_a_page_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be very many runs, and a page for each few of them."""
    looked: list[str] = []
    parse = RecordPosition.parse
    monkeypatch.setattr(RecordPosition, "parse", lambda text: looked.append(text) or parse(text))
    check_whole(
        records([RecordPosition(5_000, sub) for sub in range(5)]),
        [f"{n}:0" for n in range(1000, 9000)],
        "here",
    )
    assert len(looked) < 60
