"""The conformance kit on every store."""

from __future__ import annotations

import pytest

from trident.stores import StateType, StoreMap
from trident.stores.memory import MemoryByteStore
from trident.stores.serializers import JsonSerializer, MsgpackSerializer
from trident.testing import BackingMapConformance
from trident.testing.conformance import Connect


class TestMemory(BackingMapConformance):
    @pytest.fixture(params=[JsonSerializer, MsgpackSerializer])
    def connect(self, request: pytest.FixtureRequest) -> Connect:
        store = MemoryByteStore("memory")

        def connect(kind: StateType) -> StoreMap:
            return StoreMap(store, request.param(kind))

        return connect
