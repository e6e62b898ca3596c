"""The stores of states. A name is imported when it is first asked for: the console needs none of them, nor PySpark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinesis_trident.common.lazy_names import lazy_names

if TYPE_CHECKING:
    from kinesis_trident.trident.state import StateType as StateType
    from kinesis_trident.trident.stores.bytestore import ByteStore as ByteStore
    from kinesis_trident.trident.stores.factory import (
        MapStateFactory as MapStateFactory,
        map_state as map_state,
    )
    from kinesis_trident.trident.stores.memory import MemoryMapState as MemoryMapState
    from kinesis_trident.trident.stores.serializers import (
        JsonSerializer as JsonSerializer,
        MsgpackSerializer as MsgpackSerializer,
        Serializer as Serializer,
    )
    from kinesis_trident.trident.stores.storemap import StoreMap as StoreMap
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__)
