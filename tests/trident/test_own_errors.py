"""Errors of a user's own code where no single record is to blame: each names its operation, and the group."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from border_paths import texts

from kinesis_trident.testing import Batches, run_topology
from kinesis_trident.trident import (
    Aggregator,
    CombinerAggregator,
    Count,
    GroupedMultiReducer,
    MapState,
    MemoryMapState,
    OperationError,
    QueryFunction,
    ReducerAggregator,
    StateFactory,
    StateType,
    StateUpdater,
    Stream,
    TridentTopology,
)


def divides(*given: Any) -> Any:
    return 1 // 0


class Combines(CombinerAggregator):
    def init(self, tup: Any) -> int:
        return 1

    def combine(self, left: Any, right: Any) -> Any:
        return divides()

    def zero(self) -> int:
        return 0


class Reduces(ReducerAggregator):
    def init(self) -> int:
        return 0

    def reduce(self, current: Any, tup: Any) -> Any:
        return divides()


class Aggregates(Aggregator):
    def init(self, batch_id: int | None, collector: Any) -> int:
        return 0

    def aggregate(self, value: int, tup: Any, collector: Any) -> Any:
        return divides()

    def complete(self, value: int, collector: Any) -> None:
        return None


class Merges(GroupedMultiReducer[int]):
    def init(self, collector: Any, group: Any) -> int:
        return 0

    def execute(self, value: int, stream: int, group: Any, tup: Any, collector: Any) -> None:
        divides()


class Updates(StateUpdater[Any]):
    def update_state(self, state: Any, tuples: Any, collector: Any) -> None:
        divides()


class Queries(QueryFunction[Any, Any]):
    def batch_retrieve(self, state: Any, tuples: Any) -> Any:
        return divides()

    def execute(self, tuple_: Any, result: Any, collector: Any) -> None:
        return None


class Broken(MemoryMapState):
    """A state of the user's own that cannot be made."""

    def make_state(self, *given: Any) -> Any:
        return divides()


class OwnCounts(MapState[Any]):
    """A state of the user's own, whose code is between the group and the one who tells it."""

    def begin_commit(self, txid: int | None) -> None:
        return None

    def commit(self, txid: int | None) -> None:
        return None

    def multi_get(self, keys: Sequence[Any]) -> list[Any]:
        return [1 for _ in keys]

    def multi_update(self, keys: Sequence[Any], updaters: Sequence[Any]) -> list[Any]:
        return [updater.update(1) for updater in updaters]

    def multi_put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        return None


class Own(StateFactory):
    driver_local = True
    kind = StateType.OPAQUE

    def make_state(self, *given: Any) -> OwnCounts:
        return OwnCounts()


class Once(Combines):
    """Is refused where its value meets that of the state: of each group there is one."""

    def combine(self, left: Any, right: Any) -> Any:
        return divides() if (left, right) == (1, 1) else left

    def init(self, tup: Any) -> int:
        return 1 if tup["text"] == "b" else 2


def by_time(groups: Any, *given: Any) -> object:
    return groups.tumbling_window(timedelta(days=1), *given, ["text"], time="approximateArrivalTimestamp")


def state(name: str) -> MemoryMapState:
    return MemoryMapState.opaque(f"own-errors-{name}")


OF_GROUPS: dict[str, Callable[[TridentTopology, Any], object]] = {
    "aggregate(Reduces)": lambda t, groups: groups.aggregate(Reduces(), "n bigint"),
    "aggregate(Combines)": lambda t, groups: groups.aggregate(Combines(), "n bigint"),
    "aggregate(Aggregates)": lambda t, groups: groups.aggregate(Aggregates(), "n bigint"),
    "chained_agg(Aggregates, Count)": lambda t, groups: (
        groups.chained_agg().aggregate(Aggregates(), "n bigint").aggregate(Count(), "m").chain_end()
    ),
    "min_by(FirstN)": lambda t, groups: groups.min_by("sequenceNumber", divides),
    "persistent_aggregate(Reduces)": lambda t, groups: groups.persistent_aggregate(
        state("reduces"), Reduces(), "n bigint"
    ),
    "persistent_aggregate(Combines)": lambda t, groups: groups.persistent_aggregate(
        state("combines"), Combines(), "n bigint"
    ),
    "persistent_aggregate(Reduces), own state": lambda t, groups: groups.persistent_aggregate(
        Own(), Reduces(), "n bigint"
    ),
    "window(Combines)": lambda t, groups: groups.tumbling_window(
        2, state("by-count"), Combines(), "n bigint", ["text"]
    ),
    "window(Combines), by time": lambda t, groups: by_time(groups, state("by-time"), Combines(), "n bigint"),
    "window(Aggregates)": lambda t, groups: groups.tumbling_window(
        1, state("window"), Aggregates(), "n bigint", ["text"]
    ),
    "multi_reduce(Merges)": lambda t, groups: t.multi_reduce([groups, groups], Merges(), "n bigint"),
}

OF_ALL: dict[str, Callable[[TridentTopology, Stream], object]] = {
    "aggregate(Reduces)": lambda t, stream: stream.aggregate(Reduces(), "n bigint"),
    "min(FirstN)": lambda t, stream: stream.min(divides),
    "persistent_aggregate(Reduces)": lambda t, stream: stream.persistent_aggregate(
        state("all-reduces"), Reduces(), "n bigint"
    ),
    "persistent_aggregate(Combines)": lambda t, stream: stream.persistent_aggregate(
        state("all-combines"), Combines(), "n bigint"
    ),
    "persistent_aggregate(Count)": lambda t, stream: stream.persistent_aggregate(
        Broken.opaque("own-errors-broken"), Count(), "n"
    ),
    "partition_persist(Updates)": lambda t, stream: stream.partition_persist(
        state("updates"), ["text"], Updates()
    ),
    "window(Combines)": lambda t, stream: stream.tumbling_window(2, state("panes"), Combines(), "n bigint"),
    "state_query(Queries): batch_retrieve()": lambda t, stream: stream.aggregate(Count(), "n").state_query(
        t.new_static_state(state("query")), ["n"], Queries(), ["m int"]
    ),
}


def told(build: Callable[[TridentTopology, Stream], object]) -> str:
    topology, stream = texts()
    build(topology, stream)
    with pytest.raises(OperationError) as stopped:
        run_topology(topology, {"texts": Batches(["a", "a"], ["a"])})
    return str(stopped.value)


@pytest.mark.parametrize("operation", OF_GROUPS)
def test_an_error_of_a_users_own_names_operation_and_group(operation: str) -> None:
    text = told(lambda topology, stream: OF_GROUPS[operation](topology, stream.group_by(["text"])))
    name = re.escape(operation.partition("), ")[0])
    assert re.match(rf"{name}\)? raised ZeroDivisionError: [a-z ]+, in the group 'a'\. Correct it", text)


def test_a_group_is_named_whose_partial_result_does_not_combine_with_the_stored_one() -> None:
    topology, stream = texts()
    stream.group_by(["text"]).persistent_aggregate(Own(), Once(), "n bigint")
    with pytest.raises(OperationError, match=r"persistent_aggregate\(Once\) raised .*, in the group 'b'\. "):
        run_topology(topology, {"texts": Batches(["a", "b", "c"])})


class Grows(Combines):
    """Its results are whole numbers beyond those that a column of Spark has, once two are added."""

    def init(self, tup: Any) -> Any:
        return 1 << 62

    def combine(self, left: Any, right: Any) -> Any:
        return left + right


class Says(Grows):
    """Its results are texts."""

    def init(self, tup: Any) -> Any:
        return "x"


def chained(groups: Any, aggregator: CombinerAggregator) -> object:
    return groups.chained_agg().aggregate(aggregator, "total bigint").aggregate(Count(), "n").chain_end()


UNFIT: dict[str, Callable[[Any, CombinerAggregator], object]] = {
    "chained_agg": chained,
    "by time": lambda groups, aggregator: by_time(groups, state("grows"), aggregator, "total bigint"),
    "by count": lambda groups, aggregator: groups.tumbling_window(
        2, state("grown"), aggregator, "total bigint", ["text"]
    ),
}


@pytest.mark.parametrize("operation", UNFIT)
def test_a_result_that_does_not_fit_is_told_with_its_field_and_group(operation: str) -> None:
    text = told(lambda topology, stream: UNFIT[operation](stream.group_by(["text"]), Grows()))
    assert re.search(
        r"\): the field 'total' is bigint, but a value is not: .*, in the group 'a'\. Write", text
    )


@pytest.mark.parametrize("operation", UNFIT)
def test_a_first_result_that_does_not_fit_fails_its_record_under_a_known_name(operation: str) -> None:
    topology, stream = texts()
    UNFIT[operation](stream.group_by(["text"]), Says())
    result = run_topology(topology, {"texts": Batches(["a"])})
    [reason] = result.failed
    what = "the result" if operation == "by count" else "the field 'total'"
    assert f"{what} is bigint, but a value is 'x' (in " in str(reason)


@pytest.mark.parametrize("operation", OF_ALL)
def test_an_error_of_a_users_own_names_its_operation(operation: str) -> None:
    assert re.match(
        rf"{re.escape(operation)} raised ZeroDivisionError: [a-z ]+\. Correct it", told(OF_ALL[operation])
    )


async def _never() -> int:
    return 0


class BeginsNothing(Aggregates):
    def init(self, batch_id: int | None, collector: Any) -> Any:
        return _never()


class AggregatesNothing(Aggregates):
    """Its last value is what the method has made, and has not run."""

    def init(self, batch_id: int | None, collector: Any) -> int:
        return 0

    def aggregate(self, value: Any, tup: Any, collector: Any) -> Any:
        return _never()


class MergesNothing(Merges):
    def init(self, collector: Any, group: Any) -> Any:
        return _never()


@pytest.mark.parametrize(
    "build",
    [
        lambda t, groups: groups.aggregate(BeginsNothing(), "n bigint"),
        lambda t, groups: groups.chained_agg().aggregate(BeginsNothing(), "n bigint").chain_end(),
        lambda t, groups: groups.tumbling_window(1, state("begins"), BeginsNothing(), "n bigint", ["text"]),
        lambda t, groups: t.multi_reduce([groups, groups], MergesNothing(), "n bigint"),
        lambda t, groups: groups.aggregate(AggregatesNothing(), "n bigint"),
        lambda t, groups: groups.chained_agg().aggregate(AggregatesNothing(), "n bigint").chain_end(),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_group_whose_value_is_a_coroutine_stops_with_words(
    build: Callable[[TridentTopology, Any], object],
) -> None:
    text = told(lambda topology, stream: build(topology, stream.group_by(["text"])))
    assert re.search(
        r"\w\): (init|aggregate)\(\) returned coroutine, which nobody runs\. Write no async and no yield",
        text,
    )
