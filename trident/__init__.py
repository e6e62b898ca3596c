"""Trident's API on Spark: states kept exactly once."""

from kinesis_trident._spark import spark_needed

with spark_needed("kinesis_trident.trident"):
    from kinesis_trident.bolt.errors import FailedException, TopologyError
    from kinesis_trident.trident.aggregators import (
        Aggregator,
        CombinerAggregator,
        Count,
        FirstN,
        Max,
        Min,
        ReducerAggregator,
        Sum,
    )
    from kinesis_trident.trident.errors import OperationError, TridentError
    from kinesis_trident.trident.guarantees import GuaranteeWarning
    from kinesis_trident.trident.operations import (
        ArrowFunction,
        BaseFilter,
        BaseFunction,
        Debug,
        Filter,
        FilterNull,
        Function,
    )
    from kinesis_trident.trident.queries import MapGet, SnapshotGet
    from kinesis_trident.trident.state import QueryFunction, State, StateFactory, StateType, StateUpdater
    from kinesis_trident.trident.stream import GroupedStream, Stream, TridentState
    from kinesis_trident.trident.topology import RunningTopology, TridentTopology
    from kinesis_trident.trident.tuples import TridentCollector, TridentTuple

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
