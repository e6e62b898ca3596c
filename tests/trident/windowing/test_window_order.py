"""The order in which windows by count take tuples: that of the records and of emission, however batches fall."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.testing import Batches, run_topology
from kinesis_trident.trident import (
    Count,
    KinesisSpout,
    ReducerAggregator,
    Stream,
    TridentTopology,
    TridentTuple,
)
from kinesis_trident.trident.stores import MemoryMapState

START = datetime(2026, 1, 1, tzinfo=UTC)


class Values(ReducerAggregator):
    def init(self) -> list[int]:
        return []

    def reduce(self, current: list[int], tup: TridentTuple) -> list[int]:
        return [*current, tup["n"]]


def numbers_of(tup: TridentTuple) -> list[list[int]]:
    return [[int(one)] for one in bytes(tup["data"]).split()]


def doubled(tup: TridentTuple) -> list[list[int]]:
    return [[tup["n"]], [-tup["n"]]]


def keyed(tup: TridentTuple) -> list[Any]:
    return [tup["n"], f"k{tup['n'] % 2}"]


def stream_of(topology: TridentTopology, *, tracking: bool = True) -> Stream:
    spout = KinesisSpout(
        streamName="s", applicationName="a", zookeeper__hosts="zk:2181", tracking=tracking, spout="opaque"
    )
    return topology.new_stream("s", spout)


def windows_of(
    build: Callable[[Stream], Stream],
    batches: Sequence[Sequence[Any]],
    *,
    tracking: bool = True,
    parallelism: int = 2,
) -> list[list[int]]:
    topology = TridentTopology(None)
    build(stream_of(topology, tracking=tracking)).name("windows").tumbling_window(
        3, MemoryMapState.opaque(), Values(), "seen array<int>", ["n"]
    )
    given = {"s": Batches(*batches)}
    result = run_topology(topology, given, parallelism=parallelism)
    return [list(row.seen) for row in result.emitted["windows: window(Values)"]]


def by_three(values: Sequence[int]) -> list[list[int]]:
    return [list(values[at : at + 3]) for at in range(0, len(values) - len(values) % 3, 3)]


OPERATIONS: dict[str, tuple[Callable[[Stream], Stream], Callable[[list[int]], list[int]]]] = {
    "flat_map": (lambda s: s, lambda values: values),
    "filter": (lambda s: s.filter(lambda tup: tup["n"] != 9), lambda values: [n for n in values if n != 9]),
    "emit two": (
        lambda s: s.flat_map(doubled, "n int"),
        lambda values: [one for n in values for one in (n, -n)],
    ),
    "shuffle": (
        lambda s: s.shuffle().flat_map(doubled, "n int").shuffle(),
        lambda values: [one for n in values for one in (n, -n)],
    ),
    "project": (lambda s: s.map(keyed, "n int, key string").project(["n"]), lambda values: values),
}
RECORDS = st.lists(st.lists(st.integers(0, 1000), max_size=4), min_size=1, max_size=8)


@given(
    records=RECORDS,
    cuts=st.sets(st.integers(1, 7)),
    name=st.sampled_from(sorted(OPERATIONS)),
    tracking=st.booleans(),
    # Arrival times of a shard may step back.
    arrivals=st.lists(st.integers(0, 5), min_size=8, max_size=8),
)
def test_the_order_is_that_of_the_records_and_of_emission(
    records: list[list[int]], cuts: set[int], name: str, tracking: bool, arrivals: list[int]
) -> None:
    build, simulate = OPERATIONS[name]
    given = [
        {"data": " ".join(map(str, one)), "approximateArrivalTimestamp": START + timedelta(seconds=at)}
        for one, at in zip(records, arrivals, strict=False)
    ]
    ends = sorted(cut for cut in cuts if cut < len(given))
    batches = [given[a:b] for a, b in zip([0, *ends], [*ends, len(given)], strict=True)]
    found = windows_of(lambda s: build(s.flat_map(numbers_of, "n int")), batches, tracking=tracking)
    assert found == by_three(simulate([n for one in records for n in one]))


def test_two_branches_of_which_one_reads_no_order() -> None:
    topology = TridentTopology(None)
    numbers = stream_of(topology).flat_map(numbers_of, "n int")
    numbers.filter(lambda tup: tup["n"] > 0).tumbling_window(
        2, MemoryMapState.opaque(), Values(), "seen array<int>", ["n"]
    )
    numbers.group_by("n").persistent_aggregate(MemoryMapState.opaque(), Count(), "count")
    result = run_topology(topology, {"s": ["10 9", "100 8"]})
    assert [row.seen for row in result.emitted["window(Values)"]] == [[10, 9], [100, 8]]
    assert sorted(result.emitted["persistent_aggregate(Count)"]) == [(8, 1), (9, 1), (10, 1), (100, 1)]


def test_a_merge_keeps_the_order_of_each_branch() -> None:
    def merged(stream: Stream) -> Stream:
        numbers = stream.flat_map(numbers_of, "n int")
        return numbers.merge(numbers.map(lambda tup: [tup["n"] + 1000], "n int"))

    found = [n for window in windows_of(merged, [["10 9 8", "7"], ["60 50"]]) for n in window]
    assert [n for n in found if n < 1000] == [10, 9, 8, 7, 60, 50]
    assert [n for n in found if n > 1000] == [1010, 1009, 1008, 1007, 1060, 1050]


def test_windows_of_windows_come_by_their_start() -> None:
    def windows(stream: Stream) -> Stream:
        timed = stream.map(lambda tup: [START + timedelta(seconds=int(tup["data"]))], "at timestamp")
        minutes = timed.tumbling_window(
            timedelta(minutes=1), MemoryMapState.opaque(), Count(), "n", time="at"
        )
        return minutes.map(lambda tup: [int((tup["window_start"] - START).total_seconds())], "n int")

    # All windows close in one batch, whose tuples come in no order of time.
    assert windows_of(windows, [["610", "0", "300", "9", "61", "130", "100"]]) == [[0, 60, 120]]


def test_tuples_of_one_time_stay_in_their_order() -> None:
    topology = TridentTopology(None)
    timed = stream_of(topology).flat_map(
        lambda tup: [[START, 10], [START, 9], [START + timedelta(hours=int(tup["data"])), 100]],
        "at timestamp, n int",
    )
    timed.tumbling_window(
        timedelta(hours=1), MemoryMapState.opaque(), Values(), "seen array<int>", ["n"], time="at"
    )
    result = run_topology(topology, {"s": ["0", "0", "2"]})
    assert [row.seen for row in result.emitted["window(Values)"]] == [[10, 9, 100, 10, 9, 100, 10, 9]]


def test_without_an_order_windows_by_count_are_refused() -> None:
    stream = stream_of(TridentTopology(None)).flat_map(numbers_of, "n int")
    counted = stream.group_by("n").aggregate(Count(), "count")
    updated = stream.group_by("n").persistent_aggregate(MemoryMapState.opaque(), Count(), "count")
    for one in (counted, updated.new_values_stream()):
        with pytest.raises(TopologyError, match=r"window\(Count\): the tuples have no order .* with order="):
            one.tumbling_window(3, MemoryMapState.opaque(), Count(), "n_of")
        with pytest.raises(TopologyError, match="there is no field 'x'"):
            one.tumbling_window(3, MemoryMapState.opaque(), Count(), "n_of", order=["x"])
        # Time brings an order of its own.
    windows = windows_of(
        lambda s: (
            s.flat_map(numbers_of, "n int")
            .tumbling_window(1, MemoryMapState.opaque(), Count(), "count")
            .map(lambda tup: [tup["window_start"]], "n int")
        ),
        [["10 9", "8 7"], ["6 5"]],
    )
    assert windows == [[0, 1, 2], [3, 4, 5]]


def test_an_order_of_fields() -> None:
    topology = TridentTopology(None)
    counted = stream_of(topology).flat_map(numbers_of, "n int").group_by("n").aggregate(Count(), "count")
    counted.tumbling_window(
        2, MemoryMapState.opaque(), Values(), "seen array<int>", ["n"], order=["count", "n"]
    )
    result = run_topology(topology, {"s": ["10 9 10", "100 8"]})
    assert [row.seen for row in result.emitted["window(Values)"]] == [[8, 9], [100, 10]]


def test_groups_by_an_array() -> None:
    """Their windows stay open over batches."""
    topology = TridentTopology(None)
    timed = stream_of(topology).map(
        lambda tup: [[[n] for n in range(int(tup["data"]))], START + timedelta(seconds=int(tup["data"]))],
        "path array<array<int>>, at timestamp",
    )
    timed.group_by("path").tumbling_window(
        timedelta(seconds=10), MemoryMapState.opaque(), Count(), "number", time="at"
    )
    result = run_topology(topology, {"s": Batches(["1", "2", "2"], ["2", "1"], ["25"])})
    found = sorted((row.path, row.number) for row in result.emitted["window(Count)"])
    assert found == [([[0]], 2), ([[0], [1]], 3)]
