"""`maxMultiGetBatchSize` and `maxMultiPutBatchSize`: the requests of the layer of the release before, without it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from hypothesis import given, strategies as st
from overlapping import Overlapping

from kinesis_trident.trident.maps import OpaqueMap, VersionedBackingMap
from kinesis_trident.trident.maps.backing import Change, Version
from kinesis_trident.trident.state import Key, StateType
from kinesis_trident.trident.stores.memory import MemoryByteStore
from kinesis_trident.trident.stores.serializers import JsonSerializer
from kinesis_trident.trident.stores.storemap import StoreMap
from kinesis_trident.trident.stores.task import StateTask

SIZES = st.integers(0, 9)


class Layer(VersionedBackingMap[Any]):
    """The layer of the release before."""

    def __init__(self, backing: StoreMap, get_size: int, put_size: int) -> None:
        self.backing, self.get_size, self.put_size = backing, get_size, put_size

    def parts(self, count: int, size: int) -> list[slice]:
        step = size if size > 0 else max(count, 1)
        return [slice(start, start + step) for start in range(0, count, step)]

    def begin_batch(self, txid: int | None) -> int | None:
        return self.backing.begin_batch(txid)

    def end_batch(self, txid: int | None) -> None:
        self.backing.end_batch(txid)

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        return self.multi_get_versioned(keys)[0]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        for part in self.parts(len(keys), self.put_size):
            self.backing.multi_put(keys[part], values[part])

    def multi_get_versioned(self, keys: Sequence[Key]) -> tuple[list[Any], list[Version]]:
        values: list[Any] = []
        versions: list[Version] = []
        for part in self.parts(len(keys), self.get_size):
            more, their = self.backing.multi_get_versioned(keys[part])
            values += more
            versions += their
        return values, versions

    def multi_compare_and_set(
        self, keys: Sequence[Key], values: Sequence[Any], versions: Sequence[Version]
    ) -> list[Version]:
        return [
            version
            for part in self.parts(len(keys), self.put_size)
            for version in self.backing.multi_compare_and_set(keys[part], values[part], versions[part])
        ]

    def multi_exchange(self, keys: Sequence[Key], change: Change) -> list[Version]:
        if 0 < self.put_size < self.get_size:
            return super().multi_exchange(keys, change)
        written: list[Version] = []
        for part in self.parts(len(keys), self.get_size or self.put_size):

            def shifted(inner: slice, found: list[Any], start: int = part.start) -> Any:
                return change(slice(start + inner.start, start + inner.stop), found)

            written += self.backing.multi_exchange(keys[part], shifted)
        return written


class Recorded(MemoryByteStore):
    """Notes its requests."""

    def __init__(self) -> None:
        super().__init__("memory")
        self.asked: list[tuple[str, ...]] = []

    def get_many(self, keys: Sequence[str]) -> Any:
        self.asked.append(("get", *keys))
        return super().get_many(keys)

    def set_many(self, keys: Sequence[str], values: Sequence[bytes | None]) -> None:
        self.asked.append(("set", *keys))
        super().set_many(keys, values)

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        self.asked.append(("compare", *keys))
        return super().compare_and_set_many(keys, values, versions)


class RecordedOverlapping(Overlapping, Recorded):
    """As a store far away."""


def requests(*, layered: bool, far: bool, read: int, written: int, count: int, holds: bool) -> Any:
    """The requests of two batches of a state, and what it holds."""
    store = RecordedOverlapping() if far else Recorded()
    keys: list[Key] = [(f"key {i}",) for i in range(count)]
    for txid in (1, 2):
        sizes = {} if layered else {"most_read": read, "most_written": written}
        mapped = StoreMap(store, JsonSerializer(StateType.OPAQUE), task=StateTask(txid), **sizes)
        state = OpaqueMap[int](Layer(mapped, read, written) if layered else mapped)
        state.begin_commit(txid)
        if holds:
            state.hold_writes()
        state.multi_combine(keys, operator.add, list(range(count)))
        state.multi_combine(keys[:3], operator.add, list(range(count))[:3])
        state.multi_put(keys[2:4], [txid] * len(keys[2:4]))
        state.commit(txid)
        state.multi_get(keys)
    return store.asked, store._values


@given(far=st.booleans(), read=SIZES, written=SIZES, count=st.integers(0, 25), holds=st.booleans())
def test_the_same_requests(far: bool, read: int, written: int, count: int, holds: bool) -> None:
    drawn = {"far": far, "read": read, "written": written, "count": count, "holds": holds}
    assert requests(layered=False, **drawn) == requests(layered=True, **drawn)
