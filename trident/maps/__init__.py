"""For authors of stores: the maps between a topology's updates and a store (`org.apache.storm.trident.state.map`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinesis_trident.lazy_names import lazy_names

if TYPE_CHECKING:
    from kinesis_trident.trident.maps.backing import LOST, BackingMap, VersionedBackingMap
    from kinesis_trident.trident.maps.batch_reads import CachedBatchReadsMap
    from kinesis_trident.trident.maps.cached import CachedMap
    from kinesis_trident.trident.maps.micro_batch import MicroBatchBackingMap
    from kinesis_trident.trident.maps.nontransactional import NonTransactionalMap
    from kinesis_trident.trident.maps.opaque import OpaqueMap
    from kinesis_trident.trident.maps.snapshottable import SnapshottableMap
    from kinesis_trident.trident.maps.transactional import TransactionalMap
    from kinesis_trident.trident.maps.values import OpaqueValue, TransactionalValue
    from kinesis_trident.trident.state import StateType
    from kinesis_trident.trident.stores.bytestore import ByteStore
    from kinesis_trident.trident.stores.factory import map_state
    from kinesis_trident.trident.stores.storemap import StoreMap

__all__ = [
    "BackingMap",
    "ByteStore",
    "CachedBatchReadsMap",
    "CachedMap",
    "LOST",
    "MicroBatchBackingMap",
    "NonTransactionalMap",
    "OpaqueMap",
    "OpaqueValue",
    "SnapshottableMap",
    "StateType",
    "StoreMap",
    "TransactionalMap",
    "TransactionalValue",
    "VersionedBackingMap",
    "map_state",
]

_HOMES = {
    "BackingMap": "kinesis_trident.trident.maps.backing",
    "ByteStore": "kinesis_trident.trident.stores.bytestore",
    "CachedBatchReadsMap": "kinesis_trident.trident.maps.batch_reads",
    "CachedMap": "kinesis_trident.trident.maps.cached",
    "LOST": "kinesis_trident.trident.maps.backing",
    "MicroBatchBackingMap": "kinesis_trident.trident.maps.micro_batch",
    "NonTransactionalMap": "kinesis_trident.trident.maps.nontransactional",
    "OpaqueMap": "kinesis_trident.trident.maps.opaque",
    "OpaqueValue": "kinesis_trident.trident.maps.values",
    "SnapshottableMap": "kinesis_trident.trident.maps.snapshottable",
    "StateType": "kinesis_trident.trident.state",
    "StoreMap": "kinesis_trident.trident.stores.storemap",
    "TransactionalMap": "kinesis_trident.trident.maps.transactional",
    "TransactionalValue": "kinesis_trident.trident.maps.values",
    "VersionedBackingMap": "kinesis_trident.trident.maps.backing",
    "map_state": "kinesis_trident.trident.stores.factory",
}
"""The module of each name."""

if not TYPE_CHECKING:
    # A type checker reads the imports above, and so knows a wrong name.
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
