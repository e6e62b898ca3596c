"""An updater that updates a key twice in a batch, and a batch that fails between the two."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from kinesis_trident.bolt.errors import BatchFailedError
from kinesis_trident.trident import FailedException
from kinesis_trident.trident.errors import ConflictError
from kinesis_trident.trident.run.state_updates import Persisted, StateUpdate
from kinesis_trident.trident.state import MapState, StateUpdater
from kinesis_trident.trident.stores import MapStateFactory, MemoryMapState, StateType

KINDS = [StateType.TRANSACTIONAL, StateType.OPAQUE]
ROWS = pa.schema([("n", pa.int64())])


class AddOneByOne(StateUpdater[MapState[int]]):
    """Adds each number by a call of its own, and fails once after the first."""

    def __init__(self) -> None:
        self.fails = True

    def update_state(self, state: MapState[int], tuples: Sequence[Any], collector: Any) -> None:
        for tup in tuples:
            [value] = state.multi_combine([("key",)], operator.add, [tup["n"]])
            assert state.multi_get([("key",)]) == [value]
            collector.emit([value])
            if self.fails:
                self.fails = False
                msg = "between two updates"
                raise FailedException(msg)


def update(factory: MapStateFactory, updater: AddOneByOne, txid: int, numbers: list[int]) -> list[int]:
    work = Persisted("partition_persist(Add)", ("n",), updater, {}, pa.schema([("n", pa.int64())]))
    run = StateUpdate("partition_persist(Add)", factory, work, {}, txid, ROWS)
    given = pa.RecordBatch.from_pydict({"n": numbers}, schema=ROWS)
    return [n for batch in run.run([given], 0) for n in batch.column("n").to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_after_half_of_a_keys_updates_counts_all_of_them(kind: StateType) -> None:
    factory, updater = MemoryMapState(kind), AddOneByOne()
    updater.fails = False
    assert update(factory, updater, 1, [100, 10]) == [100, 110]
    updater.fails = True
    with pytest.raises(BatchFailedError, match="between two updates"):
        update(factory, updater, 2, [1, 2])
    assert factory.make_state({}, 0, 1).multi_get([("key",)]) == [110]
    assert update(factory, updater, 2, [1, 2]) == [111, 113]
    assert factory.make_state({}, 0, 1).multi_get([("key",)]) == [113]
    assert update(factory, updater, 2, [1, 2])[-1] == 113
    assert factory.make_state({}, 0, 1).multi_get([("key",)]) == [113]


def test_each_key_is_written_once_when_the_batch_is_committed(every_store: MapStateFactory) -> None:
    state = every_store.make_state({}, 0, 1)
    state.begin_commit(1)
    state.hold_writes()
    state.multi_put([("a",), ("b",)], [1, 2])
    assert state.multi_combine([("b",), ("c",)], operator.add, [10, 20]) == [12, 20]
    state.multi_remove([("a",)])
    assert state.multi_get([("a",), ("b",), ("c",)]) == [None, 12, 20]
    assert every_store.make_state({}, 0, 1).multi_get([("a",), ("b",), ("c",)]) == [None] * 3
    state.commit(1)
    assert every_store.make_state({}, 0, 1).multi_get([("a",), ("b",), ("c",)]) == [None, 12, 20]


@pytest.mark.parametrize("kind", KINDS)
def test_what_another_writer_changed_meanwhile_is_not_written_over(kind: StateType) -> None:
    factory = MemoryMapState(kind)
    state = factory.make_state({}, 0, 1)
    state.begin_commit(1)
    state.hold_writes()
    state.multi_put([("a",)], [1])
    other = factory.make_state({}, 0, 1)
    other.begin_commit(1)
    other.multi_put([("a",)], [5])
    other.commit(1)
    with pytest.raises(ConflictError, match="key \\('a',\\)"):
        state.commit(1)
    assert factory.make_state({}, 0, 1).multi_get([("a",)]) == [5]
