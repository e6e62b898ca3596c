"""The logic between a topology's updates and a store's keys and values (`org.apache.storm.trident.state.map`)."""

from trident.maps.backing import LOST, BackingMap, VersionedBackingMap
from trident.maps.cached import CachedMap
from trident.maps.microbatch import MicroBatchBackingMap
from trident.maps.nontransactional import NonTransactionalMap
from trident.maps.opaque import OpaqueMap
from trident.maps.reads import CachedBatchReadsMap
from trident.maps.snapshottable import SnapshottableMap
from trident.maps.transactional import TransactionalMap

__all__ = [
    "LOST",
    "BackingMap",
    "CachedBatchReadsMap",
    "CachedMap",
    "MicroBatchBackingMap",
    "NonTransactionalMap",
    "OpaqueMap",
    "SnapshottableMap",
    "TransactionalMap",
    "VersionedBackingMap",
]
