"""What a collector is given after its call is refused by each operation; an end that raises lets others be called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from border_paths import texts

from kinesis_trident.testing import Batches, run_topology
from kinesis_trident.trident import (
    Aggregator,
    Function,
    MemoryMapState,
    MultiReducer,
    OperationError,
    QueryFunction,
    StateUpdater,
    Stream,
    TridentCollector,
    TridentTopology,
)

KEPT: list[TridentCollector] = []


class KeepsOfFunction(Function):
    def execute(self, tup: Any, collector: Any) -> None:
        KEPT.append(collector)
        collector.emit([tup[0]])


class KeepsOfQuery(QueryFunction[Any, Any]):
    def batch_retrieve(self, state: Any, tuples: Sequence[Any]) -> list[Any]:
        return [None for _ in tuples]

    def execute(self, tuple_: Any, result: Any, collector: Any) -> None:
        KEPT.append(collector)
        collector.emit([tuple_[0]])


class KeepsOfUpdater(StateUpdater[Any]):
    def update_state(self, state: Any, tuples: Sequence[Any], collector: Any) -> None:
        KEPT.append(collector)
        collector.emit([tuples[0][0]])


class EmitsAtItsEnd(KeepsOfUpdater):
    def cleanup(self) -> None:
        KEPT[-1].emit(["late"])


class KeepsOfAggregator(Aggregator):
    def init(self, batch_id: int | None, collector: Any) -> str:
        return ""

    def aggregate(self, value: str, tup: Any, collector: Any) -> str:
        return value + str(tup[0])

    def complete(self, value: str, collector: Any) -> None:
        KEPT.append(collector)
        collector.emit([value])


class KeepsOfReducer(MultiReducer[Any]):
    def init(self, collector: Any) -> None:
        KEPT.append(collector)

    def execute(self, value: Any, stream: int, tup: Any, collector: Any) -> None:
        collector.emit([tup[0]])

    def complete(self, value: Any, collector: Any) -> None:
        return None


def _window(topology: TridentTopology, stream: Stream) -> object:
    return stream.tumbling_window(
        1, MemoryMapState.opaque("late-emits"), KeepsOfAggregator(), ["x string"], ["text"]
    )


OPERATIONS: dict[str, Callable[[TridentTopology, Stream], object]] = {
    "each": lambda t, s: s.each(["text"], KeepsOfFunction(), ["x string"]),
    "state_query": lambda t, s: s.aggregate(KeepsOfAggregator(), ["x string"], ["text"]).state_query(
        t.new_static_state(MemoryMapState.opaque("late-query")), ["x"], KeepsOfQuery(), ["y string"]
    ),
    "partition_persist": lambda t, s: s.partition_persist(
        MemoryMapState.opaque("late-p"), ["text"], KeepsOfUpdater(), ["x string"]
    ).new_values_stream(),
    "aggregate": lambda t, s: s.aggregate(KeepsOfAggregator(), ["x string"], ["text"]),
    "chained_agg": lambda t, s: (
        s.chained_agg().aggregate(KeepsOfAggregator(), ["x string"], ["text"]).chain_end()
    ),
    "partition_aggregate": lambda t, s: s.partition_aggregate(KeepsOfAggregator(), ["x string"], ["text"]),
    "multi_reduce": lambda t, s: t.multi_reduce([s, s], KeepsOfReducer(), "x string"),
    "window": _window,
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_a_collector_is_given_after_its_call_is_refused(operation: str) -> None:
    KEPT.clear()
    topology, stream = texts()
    OPERATIONS[operation](topology, stream)
    result = run_topology(topology, {"texts": Batches(["x"])})
    assert not result.failed
    assert KEPT
    for collector in KEPT:
        before = list(collector.rows)
        with pytest.raises(OperationError, match="after its end"):
            collector.emit(["late"])
        assert collector.rows == before


def test_an_updater_that_emits_at_its_end_is_refused() -> None:
    topology, stream = texts()
    stream.partition_persist(MemoryMapState.opaque("late-end"), ["text"], EmitsAtItsEnd(), ["x string"])
    with pytest.raises(OperationError, match="after its end"):
        run_topology(topology, {"texts": Batches(["x"])})


class Ends(Function):
    """Passes tuples on, and raises where it is told to."""

    calls: list[str] = []  # noqa: RUF012

    def __init__(self, name: str, fails: str) -> None:
        self.__name__, self.fails = name, fails

    def _call(self, what: str) -> None:
        self.calls.append(f"{what} {self.__name__}")
        if self.fails == f"{what} {self.__name__}":
            raise ValueError(what)

    def prepare(self, conf: Any) -> None:
        self._call("prepare")

    def cleanup(self) -> None:
        self._call("cleanup")

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit([tup[0]])


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("fails", ["prepare b", "cleanup a", "cleanup b"])
def test_an_end_that_raises_is_named_and_the_others_are_called(fails: str, behind: bool) -> None:
    Ends.calls.clear()
    topology, stream = texts()
    if behind:
        # What comes out belongs to no single record.
        stream = stream.aggregate(KeepsOfAggregator(), ["x string"], ["text"])
    for name in "ab":
        stream = stream.each([stream.fields[-1]], Ends(name, fails), [f"of_{name} string"])
    what, name = fails.split()
    said = rf"each.*: {what}\(\) raised ValueError: {what}. Correct it"
    with pytest.raises(OperationError, match=said):
        run_topology(topology, {"texts": Batches(["x"])})
    prepared = {call.split()[1] for call in Ends.calls if call.startswith("prepare") and call != fails}
    assert {call.split()[1] for call in Ends.calls if call.startswith("cleanup")} == prepared
