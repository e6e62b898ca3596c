"""Trident's API on Spark: topologies, their operations and aggregators, and states that are kept exactly once.

    from kinesis_trident.trident import Count, KinesisSpout, RedisState, TridentTopology

A name is imported when it is first asked for, so a store's client is needed only where that store is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinesis_trident.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from kinesis_trident.bolt.errors import (
        FailedException as FailedException,
        TopologyError as TopologyError,
    )
    from kinesis_trident.bolt.storm.spout import (
        KinesisSpout as KinesisSpout,
        string_scheme as string_scheme,
    )
    from kinesis_trident.trident.aggregators import (
        Aggregator as Aggregator,
        CombinerAggregator as CombinerAggregator,
        Count as Count,
        FirstN as FirstN,
        GroupedMultiReducer as GroupedMultiReducer,
        Max as Max,
        Min as Min,
        MultiReducer as MultiReducer,
        ReducerAggregator as ReducerAggregator,
        Sum as Sum,
    )
    from kinesis_trident.trident.bolts import (
        KeyValueState as KeyValueState,
        StatefulBolt as StatefulBolt,
        TupleWindow as TupleWindow,
        WindowedBolt as WindowedBolt,
    )
    from kinesis_trident.trident.build.checks import GuaranteeWarning as GuaranteeWarning
    from kinesis_trident.trident.errors import (
        BrokenBatchError as BrokenBatchError,
        ConflictError as ConflictError,
        ForeignValueError as ForeignValueError,
        MissingExtraError as MissingExtraError,
        OperationError as OperationError,
        ReplayDiffersError as ReplayDiffersError,
        SerializationError as SerializationError,
        SharedKeyError as SharedKeyError,
        StaleTransactionError as StaleTransactionError,
        StateBehindError as StateBehindError,
        StateError as StateError,
        StateFencedError as StateFencedError,
        StateOptionsError as StateOptionsError,
        StateOwnedError as StateOwnedError,
        StateShapeError as StateShapeError,
        StoreError as StoreError,
        StoreUnavailableError as StoreUnavailableError,
        TridentError as TridentError,
        ValueTooLargeError as ValueTooLargeError,
    )
    from kinesis_trident.trident.maps.metering import StateMetrics as StateMetrics
    from kinesis_trident.trident.operations import (
        ArrowFunction as ArrowFunction,
        BaseFilter as BaseFilter,
        BaseFunction as BaseFunction,
        Debug as Debug,
        Equals as Equals,
        Filter as Filter,
        FilterNull as FilterNull,
        Function as Function,
        MapGet as MapGet,
        Negate as Negate,
        SnapshotGet as SnapshotGet,
        TupleCollectionGet as TupleCollectionGet,
    )
    from kinesis_trident.trident.state import (
        ATTEMPT as ATTEMPT,
        MapState as MapState,
        QueryFunction as QueryFunction,
        ReadOnlyState as ReadOnlyState,
        Snapshottable as Snapshottable,
        State as State,
        StateFactory as StateFactory,
        StateType as StateType,
        StateUpdater as StateUpdater,
        ValueUpdater as ValueUpdater,
    )
    from kinesis_trident.trident.stores.dynamodb import DynamoDBState as DynamoDBState
    from kinesis_trident.trident.stores.factory import MapStateFactory as MapStateFactory
    from kinesis_trident.trident.stores.files import FileState as FileState
    from kinesis_trident.trident.stores.memcached import MemcachedState as MemcachedState
    from kinesis_trident.trident.stores.memory import MemoryMapState as MemoryMapState
    from kinesis_trident.trident.stores.redis import RedisState as RedisState
    from kinesis_trident.trident.stores.serializers import (
        JsonSerializer as JsonSerializer,
        MsgpackSerializer as MsgpackSerializer,
        Serializer as Serializer,
    )
    from kinesis_trident.trident.stores.sql import SqlState as SqlState
    from kinesis_trident.trident.stream import (
        GroupedStream as GroupedStream,
        Stream as Stream,
        TridentState as TridentState,
    )
    from kinesis_trident.trident.topology import (
        RunningTopology as RunningTopology,
        TridentTopology as TridentTopology,
    )
    from kinesis_trident.trident.tuples import (
        TridentCollector as TridentCollector,
        TridentTuple as TridentTuple,
    )
    from kinesis_trident.trident.windowing.windows import (
        SlidingCountWindow as SlidingCountWindow,
        SlidingDurationWindow as SlidingDurationWindow,
        TumblingCountWindow as TumblingCountWindow,
        TumblingDurationWindow as TumblingDurationWindow,
    )
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__)
