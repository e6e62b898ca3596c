"""For authors of stores: the maps between a topology's updates and a store (`org.apache.storm.trident.state.map`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinesis_trident.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from kinesis_trident.trident.maps.backing import (
        LOST as LOST,
        BackingMap as BackingMap,
        VersionedBackingMap as VersionedBackingMap,
    )
    from kinesis_trident.trident.maps.batch_reads import CachedBatchReadsMap as CachedBatchReadsMap
    from kinesis_trident.trident.maps.cached import CachedMap as CachedMap
    from kinesis_trident.trident.maps.nontransactional import NonTransactionalMap as NonTransactionalMap
    from kinesis_trident.trident.maps.transactions import (
        OpaqueMap as OpaqueMap,
        TransactionalMap as TransactionalMap,
    )
    from kinesis_trident.trident.maps.values import (
        OpaqueValue as OpaqueValue,
        TransactionalValue as TransactionalValue,
    )
    from kinesis_trident.trident.state import StateType as StateType
    from kinesis_trident.trident.stores.bytestore import ByteStore as ByteStore
    from kinesis_trident.trident.stores.factory import map_state as map_state
    from kinesis_trident.trident.stores.storemap import StoreMap as StoreMap
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__)
