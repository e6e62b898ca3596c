"""Spans of ordinals: together they are the ranges asked for, and sums over them are those over the whole."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from kinesis_trident.bolt.tracking.anchors import Anchors
from kinesis_trident.bolt.tracking.coverage import SOURCE, find_lost, find_uncovered, spans_of, whole
from kinesis_trident.bolt.tracking.reports import OperatorLedger
from kinesis_trident.bolt.tracking.spans import WHOLE, Range, Spans
from kinesis_trident.tracker.failure import Failure
from kinesis_trident.tracker.ids import roots, tuple_ids

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=4).map(
    lambda pairs: [(first, first + length) for first, length in pairs]
)


@given(RANGES, st.integers(1, 50))
def test_each_ordinal_asked_for_is_in_one_span_and_no_other_is(ranges: list[Range], limit: int) -> None:
    spans = Spans.over({3: ranges}, limit)
    wanted = {one for first, until in ranges for one in range(first, until)}
    found = spans.of(3, np.arange(100)).tolist()
    assert {at for at, span in enumerate(found) if span != WHOLE} == wanted
    for at, span in enumerate(found):
        if span != WHOLE:
            first, until = spans.range_of(3, span)
            assert first == span <= at < until <= first + spans.size
    assert spans.of(2, np.arange(4)).tolist() == [WHOLE] * 4
    assert len({span for span in found if span != WHOLE}) <= limit + len(spans.ranges[3])
    assert Spans.parse(spans.text()) == spans


def anchors(ordinals: list[int]) -> Anchors:
    numbers = np.array(sorted(ordinals), dtype=np.int64)
    return Anchors(roots(5, 0, numbers), tuple_ids("lines", 7, "shard", numbers))


@given(
    st.sets(st.integers(0, 40), min_size=1),
    st.sets(st.integers(0, 40)),
    st.sets(st.integers(0, 40)),
    st.integers(1, 60),
)
def test_exactly_the_spans_of_records_lost_or_doubled_are_found(
    given_: set[int], without: set[int], twice: set[int], limit: int
) -> None:
    spans = Spans.over({0: [(0, 50)]}, limit)
    wrong = given_ & (without ^ twice)
    source, first, second = (OperatorLedger(name, 7, spans) for name in ("source", "first", "second"))
    read = anchors([*given_])
    for ledger in (source, first):
        ledger.consume(read)
    made = read.children(np.arange(len(given_)), 99)
    first.produce(made)
    numbers = sorted(given_)
    second.consume(
        made.take(np.array([at for at, n in enumerate(numbers) if n not in without - twice], dtype=int))
    )
    second.consume(
        made.take(np.array([at for at, n in enumerate(numbers) if n in twice - without], dtype=int))
    )
    reports = {**source.reports(1), **first.reports(1), **second.reports(2)}
    wiring = {"first": (SOURCE,), "second": ("first",)}
    found = find_lost(wiring, reports, spans_of(reports, "source"))
    assert found == {(0, int(spans.of(0, np.array([n]))[0])): "second" for n in wrong}
    # Added up they say what a ledger without spans says.
    ledger = OperatorLedger("first", 7)
    ledger.consume(read)
    ledger.produce(made)
    assert set(ledger.reports(1)) <= set(whole(reports))
    total = {0: (len(given_), int(np.bitwise_xor.reduce(read.edges)))}
    assert bool(find_uncovered(wiring, whole(reports), total)) == bool(wrong)


def test_a_failure_is_told_with_its_span_and_without_its_position() -> None:
    spans = Spans.over({0: [(0, 8)]}, 4)
    ledger = OperatorLedger("map", 7, spans)
    ledger.consume_records(anchors([0, 1, 2, 3]), None, dict.fromkeys([1, 2], Failure.said("A")))
    found = {
        key.span: [*zip(failed.firsts.tolist(), failed.starts, map(str, failed.failures), strict=True)]
        for key, failed in ledger.reports().items()
    }
    assert found == {0: [(1, "", "A")], 2: [(2, "", "A")]}
