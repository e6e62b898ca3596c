"""Trident's API on Spark: states kept exactly once."""

from trident.aggregators import (
    Aggregator,
    CombinerAggregator,
    Count,
    FirstN,
    Max,
    Min,
    ReducerAggregator,
    Sum,
)
from trident.errors import FailedException, OperationError, TopologyError, TridentError
from trident.guarantees import GuaranteeWarning
from trident.operations import ArrowFunction, BaseFilter, BaseFunction, Debug, Filter, FilterNull, Function
from trident.queries import MapGet, SnapshotGet
from trident.state import QueryFunction, State, StateFactory, StateType, StateUpdater
from trident.stream import GroupedStream, Stream, TridentState
from trident.topology import RunningTopology, TridentTopology
from trident.tuples import TridentCollector, TridentTuple

__all__ = [
    "Aggregator",
    "ArrowFunction",
    "BaseFilter",
    "BaseFunction",
    "CombinerAggregator",
    "Count",
    "Debug",
    "FailedException",
    "Filter",
    "FilterNull",
    "FirstN",
    "Function",
    "GroupedStream",
    "GuaranteeWarning",
    "MapGet",
    "Max",
    "Min",
    "OperationError",
    "QueryFunction",
    "ReducerAggregator",
    "RunningTopology",
    "SnapshotGet",
    "State",
    "StateFactory",
    "StateType",
    "StateUpdater",
    "Stream",
    "Sum",
    "TopologyError",
    "TridentCollector",
    "TridentError",
    "TridentState",
    "TridentTopology",
    "TridentTuple",
]
