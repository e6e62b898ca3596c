"""Where states are kept."""

from trident.state import StateType
from trident.stores.bytestore import ByteStore
from trident.stores.factory import MapStateFactory, map_state
from trident.stores.memory import MemoryMapState
from trident.stores.serializers import JsonSerializer, MsgpackSerializer, Serializer
from trident.stores.storemap import StoreMap

__all__ = [
    "ByteStore",
    "JsonSerializer",
    "MapStateFactory",
    "MemoryMapState",
    "MsgpackSerializer",
    "Serializer",
    "StateType",
    "StoreMap",
    "map_state",
]
