"""The stores of states."""

from kinesis_trident.trident.state import StateType
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.factory import MapStateFactory, map_state
from kinesis_trident.trident.stores.memory import MemoryMapState
from kinesis_trident.trident.stores.serializers import JsonSerializer, MsgpackSerializer, Serializer
from kinesis_trident.trident.stores.storemap import StoreMap

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
