"""The objects and functions that a topology is given: checked when it is built, as those of bolts are."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getattr_static
from typing import Any

from kinesis_trident.bolt.calls import check_call, check_pickled, check_runs
from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.storm.unsupported import camel
from kinesis_trident.trident.aggregators import (
    Aggregator,
    CombinerAggregator,
    GroupedMultiReducer,
    MultiReducer,
    ReducerAggregator,
)
from kinesis_trident.trident.build.lambdas import name_of
from kinesis_trident.trident.operations import ArrowFunction, Filter, Function, Operation
from kinesis_trident.trident.state import QueryFunction, StateFactory, StateUpdater

_PREPARED = {"prepare": ("conf",), "cleanup": ()}

_METHODS: dict[type, dict[str, tuple[str, ...]]] = {
    Operation: _PREPARED,
    Function: {"execute": ("tup", "collector")},
    ArrowFunction: {"execute": ("batch",)},
    Filter: {"is_keep": ("tup",)},
    CombinerAggregator: {"init": ("tup",), "combine": ("left", "right"), "zero": ()},
    ReducerAggregator: {"init": (), "reduce": ("current", "tup")},
    Aggregator: {
        "init": ("batch_id", "collector"),
        "aggregate": ("value", "tup", "collector"),
        "complete": ("value", "collector"),
    },
    GroupedMultiReducer: {
        "init": ("collector", "group"),
        "execute": ("value", "stream", "group", "tup", "collector"),
        "complete": ("value", "group", "collector"),
    },
    MultiReducer: {
        "init": ("collector",),
        "execute": ("value", "stream", "tup", "collector"),
        "complete": ("value", "collector"),
    },
    StateFactory: {"make_state": ("conf", "partition_index", "num_partitions")},
    StateUpdater: {**_PREPARED, "update_state": ("state", "tuples", "collector")},
    QueryFunction: {
        **_PREPARED,
        "batch_retrieve": ("state", "tuples"),
        "execute": ("tuple_", "result", "collector"),
    },
}
"""The methods that tasks call, each with what it gets."""

_REQUIRED: dict[type, tuple[str, ...]] = {
    Function: ("execute",),
    ArrowFunction: ("execute",),
    Filter: ("is_keep",),
    CombinerAggregator: ("init", "combine"),
    ReducerAggregator: ("init", "reduce"),
    Aggregator: ("init", "aggregate", "complete"),
    GroupedMultiReducer: ("init", "execute"),
    MultiReducer: ("init", "execute"),
}
"""Those that a class must have: without one every record would fail."""


def check_operation(operation: str, given: object, *, travels: bool = True) -> None:
    """Check that tasks can call the methods of an object, and that it can travel to them, unless it stays here.

    Raises:
        TopologyError: a method takes other arguments, is missing, has Storm's spelling, is async or yields; or the
            object cannot be pickled.
    """
    kind = type(given)
    for base in _METHODS.keys() & set(kind.__mro__):
        for method, arguments in _METHODS[base].items():
            if getattr_static(given, camel(method), None) is not None and camel(method) != method:
                msg = f"{operation}: {kind.__name__}.{camel(method)}() of Storm is never called here. Name it {method}"
                raise TopologyError(msg)
            is_own = method in getattr(given, "__dict__", {})
            if is_own or getattr(kind, method) is not getattr(base, method):
                what = f"{operation}: {kind.__name__}.{method}()"
                check_call(what, getattr(given, method), arguments)
                check_runs(what, getattr(given, method))
            elif method in _REQUIRED.get(base, ()):
                msg = f"{operation}: {kind.__name__} has no {method}(), which is called for each tuple. Write it"
                raise TopologyError(msg)
    if not travels:
        return
    has_prepare = isinstance(given, Operation | StateUpdater | QueryFunction)
    check_pickled(
        f"{operation}: {kind.__name__}", given, "prepare()" if has_prepare else "a function that runs there"
    )


def check_function(
    operation: str, function: Callable[..., Any], *arguments: str, yields: bool = False
) -> None:
    """Check that a function takes these arguments, runs when it is called, and can travel to the tasks.

    `yields`: it may be a generator function, whose values are taken.

    Raises:
        TopologyError: it takes others, is async or yields, or cannot be pickled.
    """
    check_call(f"{operation}: {name_of(function)}()", function, arguments)
    check_runs(f"{operation}: {name_of(function)}()", function, yields=yields)
    check_pickled(f"{operation}: {name_of(function)}", function, "a Function's prepare()")
