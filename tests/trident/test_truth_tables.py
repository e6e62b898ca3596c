"""Every row of Trident's two truth tables, the document's worked examples, and what was wrong with the original."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import pytest

from kinesis_trident.trident.errors import BrokenBatchError, StaleTransactionError
from kinesis_trident.trident.maps import (
    BackingMap,
    CachedMap,
    NonTransactionalMap,
    OpaqueMap,
    TransactionalMap,
)
from kinesis_trident.trident.maps.values import OpaqueValue, TransactionalValue
from kinesis_trident.trident.state import Key, ReducerValueUpdater, ValueUpdater

K = ("key",)


class DictMap(BackingMap[Any]):
    """A user's store of two methods; the next `failures` puts write half of their keys and fail."""

    def __init__(self, values: dict[Key, Any] | None = None) -> None:
        self.values = dict(values or {})
        self.failures = 0
        self.puts: list[int] = []
        self.gets: list[int] = []

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        self.gets.append(len(keys))
        return [self.values.get(key) for key in keys]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        self.puts.append(len(keys))
        pairs = list(zip(keys, values, strict=True))
        if self.failures:
            self.failures -= 1
            self.values.update(pairs[: len(pairs) // 2])
            msg = "the store went away"
            raise ConnectionError(msg)
        self.values.update(pairs)


class Add(ValueUpdater[int]):
    def __init__(self, number: int) -> None:
        self.number = number

    def update(self, stored: int | None) -> int:
        return (stored or 0) + self.number


def put(value: Any) -> DictMap:
    return DictMap({K: value} if value is not None else {})


def update(state: Any, *numbers: int) -> Any:
    for number in numbers:
        [result] = state.multi_update([K], [Add(number)])
    return result


@pytest.mark.parametrize(
    ("stored", "txid", "result", "after"),
    [
        (None, 5, 1, TransactionalValue(5, 1)),
        (TransactionalValue(5, 10), 5, 10, TransactionalValue(5, 10)),
        (TransactionalValue(4, 10), 5, 11, TransactionalValue(5, 11)),
        (TransactionalValue(None, 10), 5, 11, TransactionalValue(5, 11)),
        (TransactionalValue(4, 10), None, 11, TransactionalValue(None, 11)),
        (None, None, 1, TransactionalValue(None, 1)),
    ],
)
def test_transactional_update(stored: Any, txid: int | None, result: int, after: Any) -> None:
    store = put(stored)
    state = TransactionalMap[int](store)
    state.begin_commit(txid)
    assert update(state, 1) == result
    state.commit(txid)
    assert store.values[K] == after
    assert bool(store.puts) == (stored != after), "a skipped update is not even put"


@pytest.mark.parametrize(
    ("stored", "txid", "result", "after"),
    [
        (None, 5, 1, OpaqueValue(5, 1, None)),
        (OpaqueValue(4, 10, 7), 5, 11, OpaqueValue(5, 11, 10)),
        (OpaqueValue(5, 10, 7), 5, 8, OpaqueValue(5, 8, 7)),
        (OpaqueValue(5, 10, None), 5, 1, OpaqueValue(5, 1, None)),
        (OpaqueValue(None, 10, 7), 5, 11, OpaqueValue(5, 11, 10)),
        (OpaqueValue(4, 10, 7), None, 11, OpaqueValue(None, 11, 10)),
        (None, None, 1, OpaqueValue(None, 1, None)),
    ],
)
def test_opaque_update(stored: Any, txid: int | None, result: int, after: Any) -> None:
    store = put(stored)
    state = OpaqueMap[int](store)
    state.begin_commit(txid)
    assert update(state, 1) == result
    state.commit(txid)
    assert store.values[K] == after


@pytest.mark.parametrize(
    ("kind", "stored"), [(TransactionalMap, TransactionalValue(6, 10)), (OpaqueMap, OpaqueValue(6, 10, 7))]
)
def test_a_regressing_txid_is_refused_and_nothing_changes(kind: Any, stored: Any) -> None:
    store = put(stored)
    state = kind(store)
    state.begin_commit(5)
    with pytest.raises(StaleTransactionError, match="batch 5 is older than batch 6 in the state"):
        state.multi_update([("other",), K], [Add(1), Add(1)])
    with pytest.raises(BrokenBatchError):
        state.multi_put([K], [1])
    state.begin_commit(5)
    with pytest.raises(StaleTransactionError):
        state.multi_put([K], [1])
    assert store.values == {K: stored}


@pytest.mark.parametrize(
    ("kind", "after"), [(TransactionalMap, TransactionalValue(5, 13)), (OpaqueMap, OpaqueValue(5, 13, 10))]
)
def test_a_batch_builds_on_what_it_wrote_itself(kind: Any, after: Any) -> None:
    store = put(TransactionalValue(4, 10) if kind is TransactionalMap else OpaqueValue(4, 10, 7))
    state = kind(store)
    state.begin_commit(5)
    assert update(state, 1, 2) == 13
    assert state.multi_get([K]) == [13]
    assert store.gets == [1], "what the batch wrote is not read again"
    state.commit(5)
    assert store.values[K] == after


@pytest.mark.parametrize(
    ("kind", "stored", "after"),
    [
        (TransactionalMap, None, TransactionalValue(5, 9)),
        (TransactionalMap, TransactionalValue(5, 1), TransactionalValue(5, 9)),
        (OpaqueMap, None, OpaqueValue(5, 9, None)),
        (OpaqueMap, OpaqueValue(4, 1, 0), OpaqueValue(5, 9, 1)),
        (OpaqueMap, OpaqueValue(5, 1, 0), OpaqueValue(5, 9, 0)),
        (NonTransactionalMap, 1, 9),
    ],
)
def test_put_overwrites(kind: Any, stored: Any, after: Any) -> None:
    store = put(stored)
    state = kind(store)
    state.begin_commit(5)
    state.multi_put([K], [9])
    state.commit(5)
    assert store.values[K] == after


def test_opaque_values_as_the_originals_tests_have_them() -> None:
    value = OpaqueValue(8, "v1", "v0")
    assert [value.get(None), value.get(100), value.get(9), value.get(8)] == ["v1", "v1", "v1", "v0"]
    with pytest.raises(StaleTransactionError):
        value.get(7)
    assert value.update(8, "v2") == OpaqueValue(8, "v2", "v0")
    assert value.update(9, "v2") == OpaqueValue(9, "v2", "v1")


def test_opaque_map_as_the_originals_tests_have_it() -> None:
    state = OpaqueMap[int](DictMap())
    state.begin_commit(1)
    assert state.multi_get([K]) == [None]
    assert (update(state, 1), state.multi_get([K]), update(state, 2)) == (1, [1], 3)
    state.begin_commit(1)
    assert (state.multi_get([K]), update(state, 2)) == ([None], 2)
    state.begin_commit(2)
    assert (state.multi_get([K]), update(state, 3), update(state, 1)) == ([2], 5, 6)


def test_transactional_map_as_the_originals_tests_have_it() -> None:
    state = TransactionalMap[int](DictMap())
    state.begin_commit(1)
    assert (state.multi_get([K]), update(state, 1), update(state, 2)) == ([None], 1, 3)
    state.begin_commit(1)
    assert (state.multi_get([K]), update(state, 1), update(state, 2)) == ([3], 3, 3)
    state.begin_commit(2)
    assert (state.multi_get([K]), update(state, 3), update(state, 1)) == ([3], 6, 7)


@pytest.mark.parametrize("kind", [TransactionalMap, OpaqueMap])
def test_each_key_has_one_value(kind: type[Any]) -> None:
    store = DictMap()
    state = kind(store)
    state.begin_commit(1)
    for call in (
        lambda: state.multi_update([K], []),
        lambda: state.multi_put([K], [1, 2]),
        lambda: state.multi_combine([K], operator.add, []),
    ):
        with pytest.raises(ValueError, match=r"multi_\w+ got 1 keys and [02] \w.*Give one for each key"):
            call()
    assert store.values == {}


def test_the_documents_transactional_example() -> None:
    store = DictMap(
        {
            ("man",): TransactionalValue(1, 3),
            ("dog",): TransactionalValue(3, 4),
            ("apple",): TransactionalValue(2, 10),
        }
    )
    state = TransactionalMap[int](store)
    state.begin_commit(3)
    assert state.multi_combine([("man",), ("dog",)], operator.add, [2, 1]) == [5, 4]
    state.commit(3)
    assert store.values == {
        ("man",): TransactionalValue(3, 5),
        ("dog",): TransactionalValue(3, 4),
        ("apple",): TransactionalValue(2, 10),
    }


@pytest.mark.parametrize(("txid", "after"), [(3, OpaqueValue(3, 6, 4)), (2, OpaqueValue(2, 3, 1))])
def test_the_documents_opaque_examples(txid: int, after: Any) -> None:
    store = put(OpaqueValue(2, 4, 1))
    state = OpaqueMap[int](store)
    state.begin_commit(txid)
    state.multi_combine([K], operator.add, [2])
    state.commit(txid)
    assert store.values[K] == after


@pytest.mark.parametrize("kind", [TransactionalMap, OpaqueMap])
@pytest.mark.parametrize("size", [None, 1, 100])
def test_a_failed_put_leaves_no_stale_cache(kind: Any, size: int | None) -> None:
    """The original's cache was written first: the replay was skipped as applied, and the store held 10, not 15."""
    store = DictMap()
    state = kind(store if size is None else CachedMap(store, size))
    keys: list[Key] = [("a",), ("b",)]
    state.begin_commit(1)
    state.multi_combine(keys, operator.add, [10, 10])
    state.commit(1)
    state.begin_commit(2)
    store.failures = 1
    with pytest.raises(ConnectionError):
        state.multi_combine(keys, operator.add, [5, 5])
    with pytest.raises(BrokenBatchError):
        state.commit(2)
    state.begin_commit(2)
    assert state.multi_combine(keys, operator.add, [5, 5]) == [15, 15]
    state.commit(2)
    assert [state.multi_get([key]) for key in keys] == [[15], [15]]


@pytest.mark.parametrize("kind", [TransactionalMap, OpaqueMap, NonTransactionalMap])
def test_a_key_that_comes_twice_is_updated_twice(kind: Any) -> None:
    store = DictMap()
    state = kind(store)
    state.begin_commit(1)
    keys: list[Key] = [("a",), ("b",), ("a",), ("a",)]
    assert state.multi_combine(keys, operator.add, [1, 10, 2, 3]) == [1, 10, 3, 6]
    assert store.puts == [2]
    state.commit(1)
    state.begin_commit(1)
    again = state.multi_combine(keys, operator.add, [1, 10, 2, 3])
    assert again[1] == (20 if kind is NonTransactionalMap else 10)
    assert again[3] == (12 if kind is NonTransactionalMap else 6)
    assert state.multi_get([("a",)]) == [again[3]]


class Collect:
    """A reducer that changes its value in place."""

    def init(self) -> list[Any]:
        return []

    def reduce(self, current: list[Any], tuple_: Any) -> list[Any]:
        current.append(tuple_)
        return current


def test_an_updater_that_changes_its_value_in_place_does_not_change_what_came_before() -> None:
    state = OpaqueMap[list[int]](DictMap())
    for txid, numbers in [(1, [1]), (2, [2]), (2, [3]), (2, [4])]:
        state.begin_commit(txid)
        state.multi_update([K], [ReducerValueUpdater(Collect(), numbers)])
        state.commit(txid)
    assert state.multi_get([K]) == [[1, 4]]


@pytest.mark.parametrize("kind", [TransactionalMap, OpaqueMap])
def test_removed_at_once_back_in_a_replay_and_gone_in_the_next_batch(kind: Any) -> None:
    store = DictMap()
    state = kind(store)
    state.begin_commit(1)
    update(state, 7)
    state.commit(1)
    state.begin_commit(2)
    state.multi_remove([K])
    assert state.multi_get([K]) == [None]
    state.begin_commit(2)
    if kind is OpaqueMap:
        assert state.multi_get([K]) == [7], "the replay has not removed it yet"
    state.multi_remove([K])
    state.commit(2)
    assert store.values[K] is not None
    state.begin_commit(3)
    assert store.values[K] is None
    assert update(state, 1) == 1


def test_a_key_removed_and_set_again_stays() -> None:
    store = DictMap()
    state = OpaqueMap[int](store)
    state.begin_commit(1)
    state.multi_remove([K])
    update(state, 4)
    state.commit(1)
    state.begin_commit(2)
    assert state.multi_get([K]) == [4]


def test_a_map_as_a_snapshottable_keeps_its_value_under_one_key() -> None:
    store = DictMap()
    state = OpaqueMap[int](store)
    state.begin_commit(1)
    assert state.get() is None
    assert state.update(Add(5)) == 5
    state.commit(1)
    state.begin_commit(2)
    state.set(9)
    assert state.get() == 9
    state.commit(2)
    assert store.values == {("$GLOBAL$",): OpaqueValue(2, 9, 5)}


def test_the_cache_keeps_what_was_used_last_and_misses_too() -> None:
    store = DictMap({("a",): 1, ("b",): 2})
    cache = CachedMap[int](store, 2)
    assert cache.multi_get([("a",), ("none",)]) == [1, None]
    assert cache.multi_get([("a",), ("none",)]) == [1, None]
    assert store.gets == [2]
    assert cache.multi_get([("b",)]) == [2]
    assert cache.multi_get([("none",), ("b",)]) == [None, 2]
    assert store.gets == [2, 1]
    assert cache.multi_get([("a",)]) == [1]
    assert store.gets == [2, 1, 1]
