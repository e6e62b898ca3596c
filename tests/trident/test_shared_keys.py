"""Two tasks of one attempt that update one key: an error that names state, key and operator."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import pytest
from test_late_tasks import Meanwhile

from kinesis_trident.trident import SharedKeyError
from kinesis_trident.trident.errors import StoreUnavailableError
from kinesis_trident.trident.maps.backing import Version
from kinesis_trident.trident.state import Key
from kinesis_trident.trident.stores import ByteStore, MapStateFactory, StateType
from kinesis_trident.trident.stores.memory import MemoryByteStore, MemoryMapState
from kinesis_trident.trident.stores.ownership import Owner
from kinesis_trident.trident.stores.task import TASK, StateTask

OWNER = Owner("shop", "lines@1", "partition_persist(Count) in counts")
KEY: Key = ("word",)


def task(
    factory: MapStateFactory, txid: int, *, is_first: bool = True, partition: int = 0, attempt: int = 1
) -> Any:
    state = factory.make_state({TASK: StateTask(attempt, OWNER, is_first=is_first)}, partition, 2)
    state.begin_commit(txid)
    return state


def count(state: Any, txid: int, keys: Sequence[Key] = (KEY,)) -> Any:
    found = state.multi_combine(keys, operator.add, [1] * len(keys))
    state.commit(txid)
    return found


def test_one_after_the_other(every_store: MapStateFactory) -> None:
    assert count(task(every_store, 1), 1) == [1]
    assert count(task(every_store, 2), 2) == [2]
    with pytest.raises(
        SharedKeyError, match=r"partition_persist.*update the key \('word',\) in batch 2"
    ) as error:
        count(task(every_store, 2, partition=1), 2)
    assert every_store.store().where in str(error.value)
    assert every_store.make_state({}, 0, 1).multi_get([KEY]) == [2]


@pytest.mark.parametrize("holds", [False, True])
def test_side_by_side(every_store: MapStateFactory, holds: bool) -> None:
    """Both read the key before one of them writes it, and both write the same."""
    if "DynamoDB" in type(every_store).__name__:
        pytest.skip("its client sends requests again, so that a write can be lost to itself")
    late = task(every_store, 1, partition=1)
    if holds:
        late.hold_writes()

    def other() -> None:
        count(task(every_store, 1), 1)

    def update() -> None:
        late.multi_update([KEY], [Meanwhile(1, other)])
        late.commit(1)

    with pytest.raises(SharedKeyError, match="update the key"):
        update()


def test_a_later_attempt_cannot_tell(every_store: MapStateFactory) -> None:
    count(task(every_store, 1), 1)
    assert count(task(every_store, 1, is_first=False, attempt=2), 1) == [1]


def test_the_task_s_own_keys(every_store: MapStateFactory) -> None:
    """A key that is updated twice, many keys, a removal, and two tasks of different keys."""
    state, other = task(every_store, 1), task(every_store, 1, partition=1)
    keys: list[Key] = [(f"word-{i}",) for i in range(2_000)]
    assert state.multi_combine([KEY, KEY], operator.add, [1, 1]) == [1, 2]
    assert state.multi_combine([KEY], operator.add, [1]) == [3]
    state.multi_remove([KEY])
    assert count(state, 1, keys) == [1] * 2_000
    assert count(other, 1, [("other",)]) == [1]


@pytest.mark.parametrize("holds", [False, True])
def test_a_key_of_another_task_is_read(every_store: MapStateFactory, holds: bool) -> None:
    """It is the value from before the batch, whichever task is faster; to put something there is an update."""
    count(task(every_store, 1), 1)
    state = task(every_store, 1, partition=1)
    if holds:
        state.hold_writes()
    assert state.multi_get([KEY]) == [None]
    assert state.multi_combine([("other",)], operator.add, [1]) == [1]
    assert state.multi_get([KEY, ("other",)]) == [None, 1]
    with pytest.raises(SharedKeyError, match="update the key"):
        state.multi_put([KEY], [2])


class OfOneStore(MapStateFactory):
    """One in each process, over one store."""

    def __init__(self, store: ByteStore, remembered: int) -> None:
        super().__init__(StateType.OPAQUE, "here", localCacheSize=remembered)
        self._shared = store

    def _connect(self) -> ByteStore:
        return self._shared


@pytest.mark.parametrize("remembered", [0, 10])
def test_a_removed_key_that_another_process_has_written_anew(remembered: int) -> None:
    """The process that has removed it drops it from the store in the next batch, unless it is there again."""
    store = MemoryByteStore("a store")
    here, there = OfOneStore(store, remembered), OfOneStore(store, remembered)
    count(task(here, 1), 1)
    state = task(here, 2)
    state.multi_remove([KEY])
    state.commit(2)
    assert count(task(there, 3), 3) == [1]
    assert count(task(here, 3, partition=1), 3, [("other",)]) == [1]
    assert there.make_state({}, 0, 1).multi_get([KEY]) == [1]


def test_a_task_that_spark_runs_again(every_store: MapStateFactory) -> None:
    """Its stage has failed: it finds the digest of its keys."""
    for _ in range(2):
        state = task(every_store, 1)
        state.check_replay([KEY])
        assert count(state, 1) == [1]


def test_a_state_that_counts_twice_anyway() -> None:
    factory = MemoryMapState.non_transactional()
    assert [count(task(factory, 1, partition=i), 1) for i in range(2)] == [[1], [2]]


class LosesAnAnswer(MemoryByteStore):
    """Does what is asked, and the second time does not say so."""

    def __init__(self) -> None:
        super().__init__("a store")
        self.calls: list[str] = []

    def compare_and_set_many(
        self, keys: Sequence[str], values: Sequence[bytes | None], versions: Sequence[Version]
    ) -> list[Version]:
        written = super().compare_and_set_many(keys, values, versions)
        self.calls += keys
        if self.calls.count("word") == 1 and "word" in keys:
            raise StoreUnavailableError
        return written


class LosesAnswers(MapStateFactory):
    def __init__(self) -> None:
        super().__init__(StateType.OPAQUE, "here")

    def _connect(self) -> ByteStore:
        return LosesAnAnswer()


def test_a_write_whose_answer_was_lost() -> None:
    assert count(task(LosesAnswers(), 1), 1) == [1]
