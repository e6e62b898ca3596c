"""Tasks of older attempts ("zombies"): they still run when the next attempt has begun, and must not write."""

from __future__ import annotations

import multiprocessing
import operator
import uuid
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from overlapping import Overlapping
from servers import RedisServer

from kinesis_trident.trident.errors import StaleTransactionError, StateFencedError
from kinesis_trident.trident.maps import LOST
from kinesis_trident.trident.maps.backing import Version
from kinesis_trident.trident.state import ATTEMPT, Key, ValueUpdater
from kinesis_trident.trident.stores import ByteStore, MapStateFactory, StateType
from kinesis_trident.trident.stores.files import FileByteStore
from kinesis_trident.trident.stores.key_text import FENCE
from kinesis_trident.trident.stores.memory import MemoryByteStore
from kinesis_trident.trident.stores.redis import RedisState


@pytest.fixture
def factory(every_store: MapStateFactory) -> MapStateFactory:
    return every_store


class Meanwhile(ValueUpdater[int]):
    """Adds a number; before that, the first time, something else happens."""

    def __init__(self, number: int, event: Callable[[], None]) -> None:
        self.number = number
        self.events = [event]

    def update(self, stored: int | None) -> int:
        while self.events:
            self.events.pop()()
        return (stored or 0) + self.number


def apply(factory: MapStateFactory, txid: int, attempt: int, number: int) -> None:
    state = factory.make_state({ATTEMPT: attempt}, 0, 1)
    state.begin_commit(txid)
    state.multi_combine([("word",)], operator.add, [number])
    state.commit(txid)


def test_of_the_same_batch_that_had_read_before_the_newer_attempt(factory: MapStateFactory) -> None:
    apply(factory, 1, 1, 100)
    late = factory.make_state({ATTEMPT: 2}, 0, 1)
    late.begin_commit(2)
    with pytest.raises(StateFencedError, match="attempt 3 at batch 2 has begun"):
        late.multi_update([("word",)], [Meanwhile(7, lambda: apply(factory, 2, 3, 5))])
    assert factory.make_state({}, 0, 1).multi_get([("word",)]) == [105]


def test_of_the_same_batch_that_reads_after_the_newer_attempt(factory: MapStateFactory) -> None:
    apply(factory, 1, 1, 100)
    late = factory.make_state({ATTEMPT: 2}, 0, 1)
    late.begin_commit(2)
    apply(factory, 2, 3, 5)
    with pytest.raises(StateFencedError):
        late.multi_combine([("word",)], operator.add, [7])
    assert factory.make_state({}, 0, 1).multi_get([("word",)]) == [105]


def test_that_wrote_between_the_newer_attempts_read_and_its_write(factory: MapStateFactory) -> None:
    """It had looked at the fence before that rose: its write is undone, not added to."""
    apply(factory, 1, 1, 100)
    newer = factory.make_state({ATTEMPT: 3}, 0, 1)

    def late() -> None:
        unfenced = factory.make_state({}, 0, 1)
        unfenced.begin_commit(2)
        unfenced.multi_combine([("word",)], operator.add, [7])

    newer.begin_commit(2)
    newer.multi_update([("word",)], [Meanwhile(5, late)])
    newer.commit(2)
    assert factory.make_state({}, 0, 1).multi_get([("word",)]) == [105]


def test_in_redis_whose_keys_the_newer_attempt_does_not_have(redis_server: RedisServer) -> None:
    """The script that writes compares the fence, too: not even what nobody else writes is written late."""
    factory = RedisState.opaque(redis_server.url, keyPrefix=uuid.uuid4().hex)
    late = factory.make_state({ATTEMPT: 1}, 0, 1)
    late.begin_commit(1)
    with pytest.raises(StateFencedError, match="attempt 2 at batch 1 has begun"):
        late.multi_update([("word",)], [Meanwhile(7, lambda: apply_other(factory))])
    assert factory.make_state({}, 0, 1).multi_get([("word",), ("other",)]) == [None, 5]


class Overtaken(Overlapping, MemoryByteStore):
    """A store in which a newer attempt begins, and writes, right after somebody has read the fence."""

    guards = True

    def __init__(self) -> None:
        super().__init__("overtaken")
        self.newer: list[Callable[[], None]] = []

    def get_many(self, keys: Sequence[str]) -> tuple[list[bytes | None], list[Version]]:
        found = super().get_many(keys)
        if FENCE in keys and self.newer:
            self.newer.pop()()
        return found


class InOneStore(MapStateFactory):
    def __init__(self, store: ByteStore, **options: Any) -> None:
        super().__init__(StateType.OPAQUE, "one", **options)
        self._one = store

    def _connect(self) -> ByteStore:
        return self._one


@pytest.mark.parametrize("words", [["a", "b", "c"], ["a", "d"]])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"localCacheSize": 10},
        {"maxMultiPutBatchSize": 2},
        {"maxMultiGetBatchSize": 2},
        {"maxMultiGetBatchSize": 3, "maxMultiPutBatchSize": 2},
        {"maxMultiGetBatchSize": 2, "maxMultiPutBatchSize": 2, "localCacheSize": 10},
    ],
)
def test_that_is_overtaken_between_its_look_at_the_fence_and_its_write(
    words: list[str], options: dict[str, Any]
) -> None:
    """However the store is wrapped: the write itself compares the fence. Some keys are remembered, or none."""
    store = Overtaken()
    factory = InOneStore(store, **options)
    keys: list[Key] = [(word,) for word in words]
    state = factory.make_state({ATTEMPT: 1}, 0, 1)
    state.begin_commit(1)
    state.multi_combine([("d",)], operator.add, [5])
    state.commit(1)
    late = factory.make_state({ATTEMPT: 2}, 0, 1)
    late.begin_commit(2)
    store.newer.append(lambda: InOneStore(store).make_state({ATTEMPT: 3}, 0, 1).begin_commit(2))
    with pytest.raises(StateFencedError, match="attempt 3 at batch 2 has begun"):
        late.multi_combine(keys, operator.add, [7] * len(keys))
    assert factory.make_state({}, 0, 1).multi_get([*keys, ("d",)]) == [
        *(5 if word == "d" else None for word in words),
        5,
    ]


@pytest.mark.parametrize("options", [{"localCacheSize": 10}, {"maxMultiPutBatchSize": 3}])
def test_a_wrapped_store_still_overlaps(options: dict[str, Any]) -> None:
    store = Overtaken()
    asked: list[int] = []
    exchange = store.exchange

    def counted(guard: str | None) -> Any:
        asked.append(1)
        return exchange(guard)

    store.exchange = counted  # type: ignore[method-assign]
    state = InOneStore(store, **options).make_state({}, 0, 1)
    state.begin_commit(1)
    keys: list[Key] = [(i,) for i in range(7)]
    assert state.multi_combine(keys, operator.add, list(range(7))) == list(range(7))
    state.commit(1)
    assert len(asked) == (3 if "maxMultiPutBatchSize" in options else 1)


def apply_other(factory: MapStateFactory) -> None:
    state = factory.make_state({ATTEMPT: 2}, 0, 1)
    state.begin_commit(1)
    state.multi_combine([("other",)], operator.add, [5])
    state.commit(1)


@pytest.mark.parametrize("every_store", ["redis", "memcached"], indirect=True)
@pytest.mark.parametrize("lost", [0, 499, 1_100])
def test_that_lost_one_key_of_many(every_store: MapStateFactory, lost: int) -> None:
    """An older batch, replayed, gets in between: only that key is computed again, from what is there now."""
    keys: list[Key] = [(f"key-{i}",) for i in range(1_200)]

    def unnumbered(txid: int, some: list[Key], number: int) -> None:
        state = every_store.make_state({}, 0, 1)
        state.begin_commit(txid)
        state.multi_combine(some, operator.add, [number] * len(some))
        state.commit(txid)

    unnumbered(1, keys, 100)
    state = every_store.make_state({}, 0, 1)
    state.begin_commit(2)
    adders: list[ValueUpdater[int]] = [Meanwhile(5, lambda: None) for _ in keys]
    adders[lost] = Meanwhile(5, lambda: unnumbered(1, [keys[lost]], 7))
    state.multi_update(keys, adders)
    state.commit(2)
    expected = [105] * len(keys)
    expected[lost] = 12
    assert every_store.make_state({}, 0, 1).multi_get(keys) == expected


def test_that_begins_late(factory: MapStateFactory) -> None:
    apply(factory, 2, 3, 5)
    for txid, attempt in [(1, 9), (2, 2)]:
        with pytest.raises(StateFencedError):
            factory.make_state({ATTEMPT: attempt}, 0, 1).begin_commit(txid)


def test_of_an_older_batch_without_attempt_numbers(factory: MapStateFactory) -> None:
    late = factory.make_state({}, 0, 1)
    late.begin_commit(1)
    apply(factory, 2, 1, 5)
    with pytest.raises(StaleTransactionError):
        late.multi_combine([("word",)], operator.add, [7])
    assert factory.make_state({}, 0, 1).multi_get([("word",)]) == [5]


def wait_in_the_middle(factory: MapStateFactory, here: Connection) -> None:
    """A task in a process of its own, which stands still between its read and its write."""
    state = factory.make_state({ATTEMPT: 1}, 0, 1)
    state.begin_commit(1)

    def stand() -> None:
        here.send("has read")
        here.recv()

    try:
        state.multi_update([("word",)], [Meanwhile(7, stand)])
    except Exception as error:
        here.send(type(error).__name__)
    else:
        here.send("wrote")


def test_in_another_process(redis_server: RedisServer) -> None:
    factory: Any = RedisState.opaque(redis_server.url, keyPrefix=uuid.uuid4().hex)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=wait_in_the_middle, args=(factory, there))
    process.start()
    try:
        assert here.recv() == "has read"
        apply(factory, 1, 2, 5)
        here.send("go on")
        assert here.recv() == "StateFencedError"
    finally:
        process.join(30)
        process.kill()
    assert factory.make_state({}, 0, 1).multi_get([("word",)]) == [5]


def test_a_folder_that_another_process_has_opened(tmp_path: Path) -> None:
    old = FileByteStore(str(tmp_path))
    old.set_many(["a"], [b"1"])
    old.end_batch(1)
    new = FileByteStore(str(tmp_path))
    new.set_many(["b"], [b"1"])
    assert new.get_many(["a"])[0] == [b"1"]
    old.set_many(["a"], [b"2"])
    with pytest.raises(StateFencedError, match="another process has opened"):
        old.end_batch(2)
    assert FileByteStore(str(tmp_path)).get_many(["a"])[0] == [b"1"]


def test_who_only_reads_a_folder_does_not_stop_its_writer(tmp_path: Path) -> None:
    """And who writes in the end starts from what stands there then, not from what it had read."""
    writer = FileByteStore(str(tmp_path))
    writer.set_many(["a"], [b"1"])
    writer.end_batch(1)
    files = sorted(tmp_path.iterdir())
    reader = FileByteStore(str(tmp_path))
    values, versions = reader.get_many(["a", "b"])
    assert values == [b"1", None]
    assert sorted(tmp_path.iterdir()) == files
    writer.set_many(["a"], [b"2"])
    writer.end_batch(2)
    assert reader.compare_and_set_many(["a", "b"], [b"9", b"9"], versions) == [LOST, b"9"]
    assert reader.get_many(["a", "b"])[0] == [b"2", b"9"]
    writer.set_many(["a"], [b"3"])
    with pytest.raises(StateFencedError, match="another process has opened"):
        writer.end_batch(3)
