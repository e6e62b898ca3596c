"""Trident's API on Spark: topologies, their operations and aggregators, and states that are kept exactly once.

    from kinesis_trident.trident import Count, KinesisSpout, RedisState, TridentTopology

A name is imported when it is first asked for, so a store's client is needed only where that store is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinesis_trident.lazy_names import lazy_names

if TYPE_CHECKING:
    from kinesis_trident.bolt.errors import FailedException, TopologyError
    from kinesis_trident.bolt.storm.spout import KinesisSpout, string_scheme
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
    from kinesis_trident.trident.errors import (
        BrokenBatchError,
        ConflictError,
        FencedError,
        ForeignValueError,
        MissingExtraError,
        OperationError,
        SerializationError,
        StaleTransactionError,
        StateBehindError,
        StateError,
        StateOptionsError,
        StateOwnedError,
        StoreError,
        StoreUnavailableError,
        TridentError,
        ValueTooLargeError,
    )
    from kinesis_trident.trident.guarantees import GuaranteeWarning
    from kinesis_trident.trident.maps.metering import StateMetrics
    from kinesis_trident.trident.operations import (
        ArrowFunction,
        BaseFilter,
        BaseFunction,
        Debug,
        Equals,
        Filter,
        FilterNull,
        Function,
        Negate,
    )
    from kinesis_trident.trident.queries import MapGet, SnapshotGet, TupleCollectionGet
    from kinesis_trident.trident.sketches import (
        ApproxDistinct,
        ApproxQuantiles,
        DistinctEstimate,
        QuantileEstimates,
    )
    from kinesis_trident.trident.state import (
        ATTEMPT,
        MapState,
        QueryFunction,
        ReadOnlyState,
        Snapshottable,
        State,
        StateFactory,
        StateType,
        StateUpdater,
        ValueUpdater,
    )
    from kinesis_trident.trident.stores.dynamodb import DynamoDBState
    from kinesis_trident.trident.stores.factory import MapStateFactory
    from kinesis_trident.trident.stores.files import FileState
    from kinesis_trident.trident.stores.memcached import MemcachedState
    from kinesis_trident.trident.stores.memory import MemoryMapState
    from kinesis_trident.trident.stores.redis import RedisState
    from kinesis_trident.trident.stores.serializers import JsonSerializer, MsgpackSerializer, Serializer
    from kinesis_trident.trident.stores.sql import SqlState
    from kinesis_trident.trident.stream import GroupedStream, Stream, TridentState
    from kinesis_trident.trident.topology import RunningTopology, TridentTopology
    from kinesis_trident.trident.tuples import TridentCollector, TridentTuple
    from kinesis_trident.trident.windowing.config import (
        SlidingCountWindow,
        SlidingDurationWindow,
        TumblingCountWindow,
        TumblingDurationWindow,
    )

__all__ = [
    "ATTEMPT",
    "Aggregator",
    "ApproxDistinct",
    "ApproxQuantiles",
    "ArrowFunction",
    "BaseFilter",
    "BaseFunction",
    "BrokenBatchError",
    "CombinerAggregator",
    "ConflictError",
    "Count",
    "Debug",
    "DistinctEstimate",
    "DynamoDBState",
    "Equals",
    "FailedException",
    "FencedError",
    "FileState",
    "Filter",
    "FilterNull",
    "FirstN",
    "ForeignValueError",
    "Function",
    "GroupedStream",
    "GuaranteeWarning",
    "JsonSerializer",
    "KinesisSpout",
    "MapGet",
    "MapState",
    "MapStateFactory",
    "Max",
    "MemcachedState",
    "MemoryMapState",
    "Min",
    "MissingExtraError",
    "MsgpackSerializer",
    "Negate",
    "OperationError",
    "QuantileEstimates",
    "QueryFunction",
    "ReadOnlyState",
    "RedisState",
    "ReducerAggregator",
    "RunningTopology",
    "SerializationError",
    "Serializer",
    "SlidingCountWindow",
    "SlidingDurationWindow",
    "SnapshotGet",
    "Snapshottable",
    "SqlState",
    "StaleTransactionError",
    "State",
    "StateBehindError",
    "StateError",
    "StateFactory",
    "StateMetrics",
    "StateOptionsError",
    "StateOwnedError",
    "StateType",
    "StateUpdater",
    "StoreError",
    "StoreUnavailableError",
    "Stream",
    "Sum",
    "TopologyError",
    "TridentCollector",
    "TridentError",
    "TridentState",
    "TridentTopology",
    "TridentTuple",
    "TumblingCountWindow",
    "TumblingDurationWindow",
    "TupleCollectionGet",
    "ValueTooLargeError",
    "ValueUpdater",
    "string_scheme",
]

_HOMES = {
    "ATTEMPT": "kinesis_trident.trident.state",
    "Aggregator": "kinesis_trident.trident.aggregators",
    "ApproxDistinct": "kinesis_trident.trident.sketches",
    "ApproxQuantiles": "kinesis_trident.trident.sketches",
    "ArrowFunction": "kinesis_trident.trident.operations",
    "BaseFilter": "kinesis_trident.trident.operations",
    "BaseFunction": "kinesis_trident.trident.operations",
    "BrokenBatchError": "kinesis_trident.trident.errors",
    "CombinerAggregator": "kinesis_trident.trident.aggregators",
    "ConflictError": "kinesis_trident.trident.errors",
    "Count": "kinesis_trident.trident.aggregators",
    "Debug": "kinesis_trident.trident.operations",
    "DistinctEstimate": "kinesis_trident.trident.sketches",
    "DynamoDBState": "kinesis_trident.trident.stores.dynamodb",
    "Equals": "kinesis_trident.trident.operations",
    "FailedException": "kinesis_trident.bolt.errors",
    "FencedError": "kinesis_trident.trident.errors",
    "FileState": "kinesis_trident.trident.stores.files",
    "Filter": "kinesis_trident.trident.operations",
    "FilterNull": "kinesis_trident.trident.operations",
    "FirstN": "kinesis_trident.trident.aggregators",
    "ForeignValueError": "kinesis_trident.trident.errors",
    "Function": "kinesis_trident.trident.operations",
    "GroupedStream": "kinesis_trident.trident.stream",
    "GuaranteeWarning": "kinesis_trident.trident.guarantees",
    "JsonSerializer": "kinesis_trident.trident.stores.serializers",
    "KinesisSpout": "kinesis_trident.bolt.storm.spout",
    "MapGet": "kinesis_trident.trident.queries",
    "MapState": "kinesis_trident.trident.state",
    "MapStateFactory": "kinesis_trident.trident.stores.factory",
    "Max": "kinesis_trident.trident.aggregators",
    "MemcachedState": "kinesis_trident.trident.stores.memcached",
    "MemoryMapState": "kinesis_trident.trident.stores.memory",
    "Min": "kinesis_trident.trident.aggregators",
    "MissingExtraError": "kinesis_trident.trident.errors",
    "MsgpackSerializer": "kinesis_trident.trident.stores.serializers",
    "Negate": "kinesis_trident.trident.operations",
    "OperationError": "kinesis_trident.trident.errors",
    "QuantileEstimates": "kinesis_trident.trident.sketches",
    "QueryFunction": "kinesis_trident.trident.state",
    "ReadOnlyState": "kinesis_trident.trident.state",
    "RedisState": "kinesis_trident.trident.stores.redis",
    "ReducerAggregator": "kinesis_trident.trident.aggregators",
    "RunningTopology": "kinesis_trident.trident.topology",
    "SerializationError": "kinesis_trident.trident.errors",
    "Serializer": "kinesis_trident.trident.stores.serializers",
    "SlidingCountWindow": "kinesis_trident.trident.windowing.config",
    "SlidingDurationWindow": "kinesis_trident.trident.windowing.config",
    "SnapshotGet": "kinesis_trident.trident.queries",
    "Snapshottable": "kinesis_trident.trident.state",
    "SqlState": "kinesis_trident.trident.stores.sql",
    "StaleTransactionError": "kinesis_trident.trident.errors",
    "State": "kinesis_trident.trident.state",
    "StateBehindError": "kinesis_trident.trident.errors",
    "StateError": "kinesis_trident.trident.errors",
    "StateFactory": "kinesis_trident.trident.state",
    "StateMetrics": "kinesis_trident.trident.maps.metering",
    "StateOptionsError": "kinesis_trident.trident.errors",
    "StateOwnedError": "kinesis_trident.trident.errors",
    "StateType": "kinesis_trident.trident.state",
    "StateUpdater": "kinesis_trident.trident.state",
    "StoreError": "kinesis_trident.trident.errors",
    "StoreUnavailableError": "kinesis_trident.trident.errors",
    "Stream": "kinesis_trident.trident.stream",
    "Sum": "kinesis_trident.trident.aggregators",
    "TopologyError": "kinesis_trident.bolt.errors",
    "TridentCollector": "kinesis_trident.trident.tuples",
    "TridentError": "kinesis_trident.trident.errors",
    "TridentState": "kinesis_trident.trident.stream",
    "TridentTopology": "kinesis_trident.trident.topology",
    "TridentTuple": "kinesis_trident.trident.tuples",
    "TumblingCountWindow": "kinesis_trident.trident.windowing.config",
    "TumblingDurationWindow": "kinesis_trident.trident.windowing.config",
    "TupleCollectionGet": "kinesis_trident.trident.queries",
    "ValueTooLargeError": "kinesis_trident.trident.errors",
    "ValueUpdater": "kinesis_trident.trident.state",
    "string_scheme": "kinesis_trident.bolt.storm.spout",
}
"""The module of each name."""

if not TYPE_CHECKING:
    # A type checker reads the imports above, and so knows a wrong name.
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
