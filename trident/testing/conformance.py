"""The tests that every backing map must pass. Run them on your own:

    class TestMyMap(BackingMapConformance):
        @pytest.fixture
        def connect(self, my_server):
            return lambda kind: MyMap(my_server, kind)

`connect(kind)` gives a new connection of a `StateType`, all of them to the same data, empty at first. A
`VersionedBackingMap` is tried with late tasks of older attempts, too. To see compared values when a test fails, call
`pytest.register_assert_rewrite("kinesis_trident.trident.testing.conformance")` before the import.
"""  # noqa: D415

from __future__ import annotations

import math
import operator
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from kinesis_trident.trident.errors import StaleTransactionError, StateFencedError, ValueTooLargeError
from kinesis_trident.trident.maps.backing import LOST, BackingMap, VersionedBackingMap
from kinesis_trident.trident.maps.transactions import OpaqueMap, TransactionalMap
from kinesis_trident.trident.maps.values import OpaqueValue, TransactionalValue
from kinesis_trident.trident.state import Key, State, StateType, ValueUpdater
from kinesis_trident.trident.stores.factory import map_state

Connect = Callable[[StateType], BackingMap[Any]]

KEYS: list[Key] = [
    ("word",),
    ("two words",),
    ("line\nend\r\n",),
    ("naïve 日本語 😀",),
    ("",),
    ("[1]",),
    ("nul\0byte",),
    ("x" * 1_000,),
    ("x" * 1_001,),
    (1,),
    (-1.5,),
    (None,),
    (math.nan,),
    (math.inf,),
    (-math.inf,),
    ("NaN",),
    (False,),
    ("a", "b"),
    ("a,b",),
    ("a", 1, None),
    ("$GLOBAL$",),
]

VALUES: list[Any] = [
    0,
    -1,
    2**53 + 1,
    1.5,
    1e300,
    "",
    "text",
    "日本語\r\n\0",
    True,
    [1, "a", None],
    {"a": [1]},
]


class BackingMapConformance:
    """Tests that pytest collects from a subclass; see the module for the fixture it needs."""

    MANY = 5_000
    """The number of keys in one update; use fewer if a store requests each separately."""

    def test_what_was_never_put_is_none(self, connect: Connect) -> None:
        """The results have the order of the keys, also between others."""
        backing = connect(StateType.OPAQUE)
        backing.multi_put([("there",)], [OpaqueValue(1, 5, None)])
        assert backing.multi_get([("a",), ("there",), ("b",)]) == [None, OpaqueValue(1, 5, None), None]

    def test_values_come_back_as_they_were(self, connect: Connect) -> None:
        """Values of all kinds come back on another connection."""
        keys: list[Key] = [(f"value-{i}",) for i in range(len(VALUES))]
        for kind, make in _MAKE.items():
            values = [make(value) for value in VALUES]
            connect(kind).multi_put(keys, values)
            got = connect(kind).multi_get(keys)
            assert got == values
            assert [type(value) for value in got] == [type(value) for value in values]

    def test_no_two_keys_are_the_same(self, connect: Connect) -> None:
        """Keys differ independent of their content."""
        values = [OpaqueValue(1, i, None) for i in range(len(KEYS))]
        connect(StateType.OPAQUE).multi_put(KEYS, values)
        assert connect(StateType.OPAQUE).multi_get(KEYS) == values

    def test_long_keys(self, connect: Connect) -> None:
        """Keys of 10 kB and more, which do not compress, and differ at their end only."""
        rng = random.Random(1)
        long = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789 ", k=10_000))
        wide = "".join(map(chr, rng.choices(range(0x4E00, 0x9FFF), k=10_000)))
        keys: list[Key] = [
            key
            for text in (long, wide)
            for key in ((text,), (text + "a",), (text, 1), (text, 2), (text[:-1],))
        ]
        with _batch(OpaqueMap[int](connect(StateType.OPAQUE)), 1) as state:
            state.multi_combine(keys, operator.add, list(range(len(keys))))
        with _batch(OpaqueMap[int](connect(StateType.OPAQUE)), 2) as state:
            state.multi_combine(keys, operator.add, [100] * len(keys))
        expected = [OpaqueValue(2, 100 + i, i) for i in range(len(keys))]
        assert connect(StateType.OPAQUE).multi_get(keys) == expected

    def test_values_at_the_limit(self, connect: Connect) -> None:
        """The largest value of a `StoreMap` is stored, under keys short and long; a larger one changes nothing."""
        backing = connect(StateType.NON_TRANSACTIONAL)
        limit = getattr(backing, "max_value_bytes", None)
        if limit is None or limit > _LARGEST_TRIED:
            return
        keys: list[Key] = [("k",), ("k" * 200,), ("k" * 10_000,)]
        # The serializers put at most five bytes around a text.
        largest = next(
            size
            for size in range(limit, 0, -1)
            if not _is_refused(connect(StateType.NON_TRANSACTIONAL), "x" * size)
        )
        assert largest >= limit - 5
        for key in keys:
            backing.multi_put([key], ["x" * largest])
            with _raises_too_large():
                backing.multi_put([key], ["y" * (largest + 1)])
            assert connect(StateType.NON_TRANSACTIONAL).multi_get([key]) == ["x" * largest]

    def test_a_key_that_is_asked_for_twice(self, connect: Connect) -> None:
        """A query can request a key twice, also a missing one."""
        backing = connect(StateType.OPAQUE)
        backing.multi_put([("there",)], [OpaqueValue(1, 5, None)])
        asked: list[Key] = [("there",), ("a",), ("there",), ("a",), ("there",)]
        found = [OpaqueValue(1, 5, None), None] * 2 + [OpaqueValue(1, 5, None)]
        assert backing.multi_get(asked) == found
        assert map_state(connect(StateType.OPAQUE), StateType.OPAQUE).multi_get(asked) == [
            5,
            None,
            5,
            None,
            5,
        ]

    def test_many_at_once(self, connect: Connect) -> None:
        """The update is larger than one request of most stores."""
        many = self.MANY
        keys: list[Key] = [(f"key-{i}",) for i in range(many)]
        with _batch(OpaqueMap[int](connect(StateType.OPAQUE)), 1) as state:
            assert state.multi_combine(keys, operator.add, list(range(many))) == list(range(many))
        with _batch(OpaqueMap[int](connect(StateType.OPAQUE)), 2) as state:
            assert state.multi_combine(keys, operator.add, [1] * many) == list(range(1, many + 1))
        stored = connect(StateType.OPAQUE).multi_get(keys)
        assert stored == [OpaqueValue(2, i + 1, i) for i in range(many)]

    def test_removed_is_none(self, connect: Connect) -> None:
        """A removed key can also be put again."""
        backing = connect(StateType.NON_TRANSACTIONAL)
        backing.multi_put([("a",), ("b",)], [1, 2])
        backing.multi_remove([("a",), ("never",)])
        assert connect(StateType.NON_TRANSACTIONAL).multi_get([("a",), ("b",)]) == [None, 2]
        backing.multi_put([("a",)], [3])
        assert backing.multi_get([("a",)]) == [3]

    def test_what_a_map_removed_is_dropped_in_the_next_batch(self, connect: Connect) -> None:
        """Until then a replay needs the old value."""
        keys: list[Key] = [("gone",), ("set again",), ("stays",)]
        state = OpaqueMap[int](connect(StateType.OPAQUE))
        with _batch(state, 1):
            state.multi_put(keys, [1, 2, 3])
        with _batch(state, 2):
            state.multi_remove(keys[:2])
            assert state.multi_get(keys) == [None, None, 3]
            state.multi_put(keys[1:2], [4])
        assert connect(StateType.OPAQUE).multi_get(keys[:1]) == [OpaqueValue(2, None, 1)]
        with _batch(state, 3):
            assert state.multi_get(keys) == [None, 4, 3]
        kept = connect(StateType.OPAQUE).multi_get(keys)
        assert kept == [None, OpaqueValue(2, 4, 2), OpaqueValue(1, 3, None)]

    def test_a_replay_with_other_records_counts_once_in_an_opaque_state(self, connect: Connect) -> None:
        """Each attempt has a new connection, as after a crash."""
        truth: dict[Key, int] = {}
        rng = random.Random(1)
        keys: list[Key] = [(f"opaque-{i}",) for i in range(20)]
        for txid in range(1, 6):
            for attempt in range(3):
                chosen = rng.sample(keys, 10) if attempt < 2 else keys
                partials = [rng.randrange(100) for _ in chosen]
                with _batch(OpaqueMap[int](connect(StateType.OPAQUE)), txid) as state:
                    state.multi_combine(chosen, operator.add, partials)
            truth.update(
                {key: truth.get(key, 0) + partial for key, partial in zip(chosen, partials, strict=True)}
            )
        final = map_state(connect(StateType.OPAQUE), StateType.OPAQUE)
        assert final.multi_get(keys) == [truth[key] for key in keys]

    def test_an_identical_replay_counts_once_in_a_transactional_state(self, connect: Connect) -> None:
        """It also counts once if the first attempt got only halfway."""
        keys: list[Key] = [(f"transactional-{i}",) for i in range(20)]
        for txid in (1, 2):
            for many in (10, 20, 20):
                with _batch(TransactionalMap[int](connect(StateType.TRANSACTIONAL)), txid) as state:
                    state.multi_combine(keys[:many], operator.add, [txid] * many)
        assert connect(StateType.TRANSACTIONAL).multi_get(keys) == [TransactionalValue(2, 3)] * 20

    def test_a_version_is_written_over_once(self, connect: Connect) -> None:
        """For set, create and remove: the second writer with the same version loses and changes nothing."""
        backing, late = connect(StateType.OPAQUE), connect(StateType.OPAQUE)
        if not isinstance(backing, VersionedBackingMap) or not isinstance(late, VersionedBackingMap):
            return
        keys: list[Key] = [("there",), ("new",), ("gone",), ("mine",)]
        backing.multi_put([keys[0], keys[2]], [OpaqueValue(1, 1, None)] * 2)
        _, versions = backing.multi_get_versioned(keys)
        _, old = late.multi_get_versioned(keys)
        values = [OpaqueValue(2, 2, 1), OpaqueValue(2, 1, None), None]
        assert LOST not in backing.multi_compare_and_set(keys[:3], values, versions[:3])
        mine = OpaqueValue(2, 9, None)
        written = late.multi_compare_and_set(keys, [mine] * 4, old)
        assert [version is LOST for version in written] == [True, True, True, False]
        assert connect(StateType.OPAQUE).multi_get(keys) == [*values, mine]

    def test_a_version_that_is_gone_is_not_written_over(self, connect: Connect) -> None:
        """It is written among existing keys."""
        backing = connect(StateType.OPAQUE)
        if not isinstance(backing, VersionedBackingMap):
            return
        keys: list[Key] = [("first",), ("removed",), ("last",)]
        backing.multi_put(keys, [OpaqueValue(1, 1, None)] * 3)
        _, versions = backing.multi_get_versioned(keys)
        connect(StateType.OPAQUE).multi_remove(keys[1:2])
        new = OpaqueValue(2, 2, 1)
        written = backing.multi_compare_and_set(keys, [new] * 3, versions)
        assert [version is LOST for version in written] == [False, True, False]
        assert connect(StateType.OPAQUE).multi_get(keys) == [new, None, new]

    def test_a_late_task_of_an_older_batch_writes_nothing(self, connect: Connect) -> None:
        """The task reads before a newer attempt and the next batch write, and writes after them."""
        makes: list[tuple[StateType, Callable[[BackingMap[Any]], OpaqueMap[int] | TransactionalMap[int]]]] = [
            (StateType.OPAQUE, OpaqueMap[int]),
            (StateType.TRANSACTIONAL, TransactionalMap[int]),
        ]
        for kind, make in makes:
            if not isinstance(connect(kind), VersionedBackingMap):
                return
            key: Key = (f"late-{kind.value}",)
            late = make(connect(kind))
            late.begin_commit(1)
            refused = False
            try:
                late.multi_update([key], [_Overtaken(kind, make, connect, key)])
            except (StaleTransactionError, StateFencedError):
                refused = True
            assert refused, "the batch is over, but no error was raised"
            assert map_state(connect(kind), kind).multi_get([key]) == [110]

    def test_writers_side_by_side_lose_nothing(self, connect: Connect) -> None:
        """Each writer adds to the same keys, and reads again after a loss."""
        keys: list[Key] = [(f"shared-{i}",) for i in range(20)]
        if not isinstance(connect(StateType.OPAQUE), VersionedBackingMap):
            return
        failures: list[BaseException] = []

        def add() -> None:
            backing = connect(StateType.OPAQUE)
            assert isinstance(backing, VersionedBackingMap)
            try:
                for _ in range(5):
                    todo = keys
                    while todo:
                        values, versions = backing.multi_get_versioned(todo)
                        new = [OpaqueValue(1, (value.current if value else 0) + 1, None) for value in values]
                        written = backing.multi_compare_and_set(todo, new, versions)
                        todo = [key for key, version in zip(todo, written, strict=True) if version is LOST]
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=add) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert connect(StateType.OPAQUE).multi_get(keys) == [OpaqueValue(1, 15, None)] * len(keys)


_LARGEST_TRIED = 16 << 20
"""The largest value that is tried, in bytes."""


def _is_refused(backing: BackingMap[Any], value: str) -> bool:
    try:
        backing.multi_put([("size",)], [value])
    except ValueTooLargeError:
        return True
    return False


@contextmanager
def _raises_too_large() -> Iterator[None]:
    try:
        yield
    except ValueTooLargeError:
        return
    msg = "a value above the store's limit was not refused"
    raise AssertionError(msg)


class _Overtaken(ValueUpdater[int]):
    """Adds 5; the first time, after a newer attempt at batch 1 has added 10 and batch 2 has added 100."""

    def __init__(
        self,
        kind: StateType,
        make: Callable[[BackingMap[Any]], OpaqueMap[int] | TransactionalMap[int]],
        connect: Connect,
        key: Key,
    ) -> None:
        self._newer = [
            lambda txid=txid, partial=partial: _add(make(connect(kind)), txid, key, partial)
            for txid, partial in ((1, 10), (2, 100))
        ]

    def update(self, stored: int | None) -> int:
        while self._newer:
            self._newer.pop(0)()
        return (stored or 0) + 5


def _add(state: OpaqueMap[int] | TransactionalMap[int], txid: int, key: Key, partial: int) -> None:
    with _batch(state, txid):
        state.multi_combine([key], operator.add, [partial])


StateT = TypeVar("StateT", bound=State)


@contextmanager
def _batch(state: StateT, txid: int) -> Iterator[StateT]:
    state.begin_commit(txid)
    yield state
    state.commit(txid)


_MAKE: dict[StateType, Callable[[Any], Any]] = {
    StateType.OPAQUE: lambda value: OpaqueValue(7, value, None),
    StateType.TRANSACTIONAL: lambda value: TransactionalValue(7, value),
    StateType.NON_TRANSACTIONAL: lambda value: value,
}
