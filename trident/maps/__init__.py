"""The logic between a topology's updates and a store's keys and values (`org.apache.storm.trident.state.map`)."""

from kinesis_trident.trident.maps.backing import LOST, BackingMap, VersionedBackingMap
from kinesis_trident.trident.maps.batch_reads import CachedBatchReadsMap
from kinesis_trident.trident.maps.cached import CachedMap
from kinesis_trident.trident.maps.micro_batch import MicroBatchBackingMap
from kinesis_trident.trident.maps.nontransactional import NonTransactionalMap
from kinesis_trident.trident.maps.opaque import OpaqueMap
from kinesis_trident.trident.maps.snapshottable import SnapshottableMap
from kinesis_trident.trident.maps.transactional import TransactionalMap

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
