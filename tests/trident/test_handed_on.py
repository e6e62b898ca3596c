"""Test what the states of one batch hand on to the next, in one process: a topology makes new ones each time."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import pytest

from kinesis_trident.trident.maps.backing import Version
from kinesis_trident.trident.state import ATTEMPT
from kinesis_trident.trident.stores import MapStateFactory, MemoryMapState, StateType
from kinesis_trident.trident.stores.bytestore import ByteStore
from kinesis_trident.trident.stores.memory import MemoryByteStore

KINDS = [StateType.TRANSACTIONAL, StateType.OPAQUE]


class Watched(MemoryByteStore):
    """Knows which keys it was asked for."""

    def __init__(self) -> None:
        super().__init__("watched")
        self.asked: list[str] = []

    def get_many(self, keys: Sequence[str]) -> tuple[list[bytes | None], list[Version]]:
        self.asked += [key for key in keys if not key.startswith("[")]
        return super().get_many(keys)


class InOneStore(MapStateFactory):
    """Each factory stands for a process of its own."""

    def __init__(self, kind: StateType, store: ByteStore, **options: Any) -> None:
        super().__init__(kind, "one", **options)
        self._one = store

    def _connect(self) -> ByteStore:
        return self._one


def count(factory: MapStateFactory, txid: int, words: str, number: int = 1, attempt: int = 1) -> list[Any]:
    state = factory.make_state({ATTEMPT: attempt}, 0, 1)
    state.begin_commit(txid)
    values = state.multi_combine([(word,) for word in words], operator.add, [number] * len(words))
    state.commit(txid)
    return values


def remove(factory: MapStateFactory, txid: int, words: str, attempt: int = 1) -> None:
    state = factory.make_state({ATTEMPT: attempt}, 0, 1)
    state.begin_commit(txid)
    state.multi_remove([(word,) for word in words])
    state.commit(txid)


def values(factory: MapStateFactory, words: str) -> list[Any]:
    return factory.make_state({}, 0, 1).multi_get([(word,) for word in words])


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_batch_removes_the_next_one_drops(kind: StateType) -> None:
    factory = MemoryMapState(kind)
    store = factory.store()
    count(factory, 1, "ab")
    remove(factory, 2, "a")
    assert values(factory, "ab") == [None, 1]
    assert store.get_many(["a"])[0] != [None]
    count(factory, 3, "c")
    assert store.get_many(["a", "b"])[0][0] is None
    assert values(factory, "abc") == [None, 1, 1]


def test_a_replay_in_the_same_process_finds_what_was_removed() -> None:
    factory = MemoryMapState.opaque()
    count(factory, 1, "ab", 5)
    remove(factory, 2, "ab", attempt=1)
    assert count(factory, 2, "a", attempt=2) == [6]
    remove(factory, 2, "b", attempt=3)
    count(factory, 3, "c")
    assert values(factory, "abc") == [6, None, 1]
    assert factory.store().get_many(["b"])[0] == [None]


def test_a_late_batch_drops_nothing_that_a_newer_one_has_removed() -> None:
    factory = MemoryMapState.opaque()
    count(factory, 1, "a", 5)
    remove(factory, 2, "a")
    factory.make_state({}, 0, 1).begin_commit(1)
    factory.make_state({}, 0, 1).begin_commit(None)
    assert count(factory, 2, "a", attempt=2) == [6]


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_batch_does_not_read_what_is_remembered(kind: StateType) -> None:
    store = Watched()
    factory = InOneStore(kind, store, localCacheSize=2)
    for txid in range(1, 4):
        count(factory, txid, "ab")
    assert store.asked == ["a", "b"]
    assert count(factory, 4, "cb") == [1, 4]
    assert count(factory, 5, "a") == [4]
    assert store.asked == ["a", "b", "c", "a"]


@pytest.mark.parametrize("kind", [*KINDS, StateType.NON_TRANSACTIONAL])
def test_what_another_process_has_written_is_not_lost_to_what_is_remembered(kind: StateType) -> None:
    store = Watched()
    processes = [InOneStore(kind, store, localCacheSize=100) for _ in range(2)]
    batches = [(0, "ab"), (1, "a"), (0, "ab"), (1, "b"), (1, "a"), (0, "ab")]
    for txid, (process, words) in enumerate(batches, 1):
        count(processes[process], txid, words, 10**txid)
    truth = {
        word: sum(10**txid for txid, (_, words) in enumerate(batches, 1) if word in words) for word in "ab"
    }
    assert [values(factory, "ab") for factory in processes] == [[truth["a"], truth["b"]]] * 2


def test_a_replay_of_what_another_process_began_starts_from_before() -> None:
    """The first attempt had other records, and its process is not the one that comes back."""
    store = Watched()
    one, other = (InOneStore(StateType.OPAQUE, store, localCacheSize=100) for _ in range(2))
    count(one, 1, "ab", 1)
    count(other, 2, "ab", 10, attempt=1)
    assert count(one, 2, "a", 100, attempt=2) == [101]
    assert count(one, 2, "ab", 1000, attempt=3) == [1001, 1001]


def test_what_is_read_before_it_is_set_is_read_from_the_store() -> None:
    """An updater that sets what it has computed itself has nothing but its read to rely on."""
    store = Watched()
    one, other = (InOneStore(StateType.OPAQUE, store, localCacheSize=100) for _ in range(2))
    count(one, 1, "a", 1)
    count(other, 2, "a", 10)
    state = one.make_state({ATTEMPT: 1}, 0, 1)
    state.begin_commit(3)
    [value] = state.multi_get([("a",)])
    state.multi_put([("a",)], [value + 100])
    state.commit(3)
    assert values(other, "a") == [111]
