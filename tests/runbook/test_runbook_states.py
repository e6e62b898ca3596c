"""The runbook's errors of Trident's states, each on a real store."""

from __future__ import annotations

import operator
import re
import sqlite3
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from night import Night, entry
from server_fixtures import _program
from servers import MemcachedServer, RedisServer

from kinesis_trident.common.database import engine_of
from kinesis_trident.trident import (
    BrokenBatchError,
    ConflictError,
    FileState,
    ForeignValueError,
    MemcachedState,
    MemoryMapState,
    MissingExtraError,
    RedisState,
    ReplayDiffersError,
    SerializationError,
    SharedKeyError,
    SqlState,
    StaleTransactionError,
    StateBehindError,
    StateError,
    StateFencedError,
    StateOptionsError,
    StateOwnedError,
    StateShapeError,
    StoreError,
    StoreUnavailableError,
    TumblingDurationWindow,
    ValueTooLargeError,
)
from kinesis_trident.trident.maps.task_keys import TaskKeys
from kinesis_trident.trident.state import ATTEMPT
from kinesis_trident.trident.stores import MapStateFactory
from kinesis_trident.trident.stores.ownership import Owner
from kinesis_trident.trident.stores.task import TASK, StateTask


def count(
    factory: MapStateFactory, txid: int, *, attempt: int = 1, owner: Owner | None = None, value: Any = 1
) -> Any:
    """One batch that adds a value under one key: what is there then."""
    conf: dict[str, Any] = {TASK: StateTask(attempt, owner)}
    state = factory.make_state(conf, 0, 1)
    state.begin_commit(txid)
    [counted] = state.multi_combine([("ada",)], operator.add, [value])
    state.commit(txid)
    return counted


def put(factory: MapStateFactory, txid: int) -> None:
    """One batch of code that drives a state by hand, without attempts."""
    state = factory.make_state({}, 0, 1)
    state.begin_commit(txid)
    state.multi_put([("ada",)], [1])
    state.commit(txid)


def owner(application: str = "orders-job", applied: int = 0) -> Owner:
    return Owner(application, "orders@1", "counts", frozenset(("counts",)), applied=applied)


@pytest.fixture
def sqlite(tmp_path: Path) -> Callable[..., MapStateFactory]:
    """`sqlite(**options)`: an opaque state in one file."""
    return lambda **options: SqlState.opaque(f"sqlite:///{tmp_path}/counts.db", **options)


@entry("StateOptionsError")
def test_an_option_that_no_state_has(night: Night, tmp_path: Path) -> None:
    with night.raises(StateOptionsError):
        FileState.opaque(str(tmp_path), serialiser="json")
    night.tries("Correct the option")
    assert count(FileState.opaque(str(tmp_path), serializer="json"), 1) == 1


@entry("MissingExtraError")
def test_a_database_without_its_driver(night: Night) -> None:
    with night.raises(MissingExtraError):
        count(SqlState.opaque("oracle+oracledb://orders@db/orders"), 1)


@entry("StateOwnedError")
def test_keys_of_another_application(night: Night, sqlite: Callable[..., MapStateFactory]) -> None:
    count(sqlite(), 1, owner=owner())
    with night.raises(StateOwnedError) as refused:
        count(sqlite(), 1, owner=owner("orders-job-2"))
    night.tries("another table")
    assert count(sqlite(tableName="two"), 1, owner=owner("orders-job-2")) == 1
    night.tries("`acceptOwner`")
    said = re.search(r"acceptOwner='(.*?)'", str(refused.value))
    assert said is not None
    assert count(sqlite(acceptOwner=said[1]), 1, owner=owner("orders-job-2")) == 2
    night.tries("another `keyPrefix`, if the other state has one too")
    for name, prefix in (("orders-job", "one/"), ("orders-job-2", "two/")):
        assert count(sqlite(tableName="three", keyPrefix=prefix), 1, owner=owner(name)) == 1


@entry("StateBehindError")
def test_a_store_that_lost_its_data(
    night: Night, sqlite: Callable[..., MapStateFactory], tmp_path: Path
) -> None:
    count(sqlite(), 5, owner=owner())
    (tmp_path / "counts.db").rename(tmp_path / "kept.db")
    with night.raises(StateBehindError):
        count(sqlite(), 6, owner=owner(applied=5))
    night.tries("`acceptLossUpTo`")
    assert count(sqlite(acceptLossUpTo=5), 6, owner=owner(applied=5)) == 1
    night.tries("Restore the store's data")
    (tmp_path / "kept.db").rename(tmp_path / "counts.db")
    # The query starts again, in another process.
    engine_of(f"sqlite:///{tmp_path}/counts.db").dispose()
    assert count(sqlite(), 6, owner=owner(applied=5)) == 2


@entry("SharedKeyError")
def test_two_tasks_of_one_update_with_one_key(night: Night, sqlite: Callable[..., MapStateFactory]) -> None:
    def in_tasks(factory: MapStateFactory, keys: list[str]) -> list[Any]:
        counted = []
        for partition, key in enumerate(keys):
            task = StateTask(1, owner(), is_first=True)
            state = factory.make_state({TASK: task}, partition, len(keys))
            state.begin_commit(5)
            counted += state.multi_combine([(key,)], operator.add, [1])
            state.commit(5)
        return counted

    with night.raises(SharedKeyError):
        in_tasks(sqlite(), ["ada", "ada"])
    night.tries("count anew in another table")
    night.tries("`group_by` or `partition_by` the fields of the key right before the update")
    assert in_tasks(sqlite(tableName="two"), ["ada", "bob"]) == [1, 1]


@entry("StateShapeError")
def test_windows_that_were_changed_in_code(night: Night, sqlite: Callable[..., MapStateFactory]) -> None:
    def begin(factory: MapStateFactory, txid: int, seconds: int, keys: TaskKeys | None = None) -> None:
        shape = keys or TumblingDurationWindow(timedelta(seconds=seconds)).shape()
        state = factory.make_state({TASK: StateTask(txid, owner(), shape=shape)}, 0, 1)
        state.begin_commit(txid)
        state.commit(txid)

    begin(sqlite(), 5, 60)
    with night.raises(StateShapeError):
        begin(sqlite(), 6, 30)
    night.tries("run the code of before")
    begin(sqlite(), 6, 60)
    night.tries("another table")
    begin(sqlite(tableName="two"), 7, 30)
    night.tries("another `keyPrefix`, if the state has one")
    begin(sqlite(tableName="three", keyPrefix="old/"), 7, 60)
    begin(sqlite(tableName="three", keyPrefix="new/"), 7, 30)
    begin(sqlite(tableName="four"), 5, 0, TaskKeys(4))
    with pytest.raises(StateShapeError, match="Give the bolt 4 tasks or more"):
        begin(sqlite(tableName="four"), 6, 0, TaskKeys(2))
    night.tries("as many tasks as the message names")
    begin(sqlite(tableName="four"), 6, 0, TaskKeys(4))


@entry("ReplayDiffersError")
def test_a_lookup_that_changed_before_a_replay(night: Night, sqlite: Callable[..., MapStateFactory]) -> None:
    def joined(factory: MapStateFactory, room: str, attempt: int, txid: int = 5) -> Any:
        state = factory.make_state({TASK: StateTask(attempt, owner())}, 0, 1)
        state.begin_commit(txid)
        state.check_replay([(room,)])
        [counted] = state.multi_combine([(room,)], operator.add, [1])
        state.commit(txid)
        return counted

    joined(sqlite(), "art", 1)
    with night.raises(ReplayDiffersError):
        joined(sqlite(), "law", 2)
    night.tries("what it used then")
    assert joined(sqlite(), "art", 3) == 1
    night.tries("`acceptReplay`")
    assert joined(sqlite(acceptReplay=5), "law", 4) == 1
    assert joined(sqlite(acceptReplay=5), "art", 1, txid=6) == 2
    night.tries("then stop it with `stop()` and change them")
    assert joined(sqlite(), "law", 1, txid=7) == 2


@entry("StaleTransactionError")
def test_a_batch_that_is_older_than_the_state(night: Night, tmp_path: Path) -> None:
    factory = FileState.opaque(str(tmp_path / "state"))
    put(factory, 6)
    with night.raises(StaleTransactionError):
        put(factory, 5)
    night.tries("a new state")
    put(FileState.opaque(str(tmp_path / "new")), 5)


@entry("StateFencedError")
def test_an_attempt_that_another_one_has_replaced(
    night: Night, sqlite: Callable[..., MapStateFactory]
) -> None:
    late = sqlite().make_state({ATTEMPT: 1}, 0, 1)
    late.begin_commit(1)
    assert count(sqlite(), 1, attempt=2) == 1
    with night.raises(StateFencedError):
        late.multi_combine([("ada",)], operator.add, [1])
        late.commit(1)
    night.tries("Nothing")
    assert count(sqlite(), 2) == 2
    night.tries("Use another `keyPrefix`")
    assert count(sqlite(tableName="two", keyPrefix="two/"), 1) == 1


@entry("ConflictError")
def test_two_attempts_at_the_same_time(night: Night) -> None:
    factory = MemoryMapState.opaque()
    one, other = (factory.make_state({}, 0, 1) for _ in range(2))
    one.begin_commit(1)
    one.hold_writes()
    one.multi_put([("ada",)], [1])
    other.begin_commit(1)
    other.multi_put([("ada",)], [5])
    other.commit(1)
    with night.raises(ConflictError):
        one.commit(1)
    night.tries("The batch is tried again")
    assert count(factory, 2) == 6


@entry("BrokenBatchError")
def test_a_batch_that_goes_on_after_an_error(night: Night, tmp_path: Path) -> None:
    factory = FileState.opaque(str(tmp_path))
    put(factory, 6)
    state = factory.make_state({}, 0, 1)
    state.begin_commit(5)
    with pytest.raises(StaleTransactionError):
        state.multi_put([("ada",)], [1])
    with night.raises(BrokenBatchError):
        state.multi_put([("ada",)], [1])
    night.tries("`begin_commit`")
    state.begin_commit(7)
    state.multi_put([("ada",)], [9])
    state.commit(7)


@entry("ForeignValueError")
def test_a_value_that_another_program_has_written(
    night: Night, sqlite: Callable[..., MapStateFactory], tmp_path: Path
) -> None:
    count(sqlite(), 1)
    with sqlite3.connect(tmp_path / "counts.db") as database:
        [(table,)] = database.execute("select name from sqlite_master where type = 'table'").fetchall()
        columns = [row[1] for row in database.execute(f"pragma table_info({table})")]
        value = next(name for name in columns if "value" in name)
        database.execute(f"update {table} set {value} = ? where {columns[0]} like '%ada%'", (b"gold",))
    with night.raises(ForeignValueError):
        count(sqlite(), 2)
    night.tries("another `keyPrefix`")
    assert count(sqlite(keyPrefix="two/"), 2) == 1
    night.tries("remove the key if nobody needs it")
    with sqlite3.connect(tmp_path / "counts.db") as database:
        database.execute(f"delete from {table} where {columns[0]} = 'ada'")
    assert count(sqlite(), 2, attempt=2) == 1


@entry("SerializationError")
def test_a_value_that_json_does_not_know(night: Night, tmp_path: Path) -> None:
    factory = FileState.opaque(str(tmp_path))
    with night.raises(SerializationError):
        count(factory, 1, value=complex(1, 2))
    night.tries("numbers, texts, lists and dicts")
    assert count(factory, 1, attempt=2, value=[1, 2]) == [1, 2]


@entry("ValueTooLargeError")
def test_a_value_that_is_too_large(night: Night, memcached_server: MemcachedServer, tmp_path: Path) -> None:
    address = "{}:{}".format(*memcached_server.address)
    night.names[address] = "memcached1:11211"
    with night.raises(ValueTooLargeError):
        count(MemcachedState.opaque(address, keyPrefix=tmp_path.name), 1, value="x" * 2**21)
    night.tries("another store")
    assert count(FileState.opaque(str(tmp_path)), 1, value="x" * 2**21)


@entry("StoreError")
def test_a_table_of_another_form(
    night: Night, sqlite: Callable[..., MapStateFactory], tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "counts.db") as database:
        database.execute("create table orders (customer text)")
    with night.raises(StoreError):
        count(sqlite(tableName="orders"), 1)
    night.tries("`tableName`")
    assert count(sqlite(tableName="counts"), 1) == 1


@entry("StoreUnavailableError")
def test_a_store_that_is_down(night: Night) -> None:
    with RedisServer(_program("redis-server")) as server:
        night.names[f"127.0.0.1:{server.port}"] = "redis1:6379"
        night.names[f"localhost:{server.port}"] = "redis1:6379"
        factory = RedisState.opaque(server.url, requestRetries=0)
        assert count(factory, 1) == 1
        server.stop()
        with night.raises(StoreUnavailableError):
            count(factory, 2)
        night.tries("the batch is tried again")
        server.start()
        assert count(factory, 2, attempt=2) in (1, 2)


@entry("StateError")
def test_a_store_that_cannot_list_its_keys(
    night: Night, sqlite: Callable[..., MapStateFactory], tmp_path: Path
) -> None:
    def keys(factory: MapStateFactory) -> Sequence[Any]:
        state: Any = factory.make_state({}, 0, 1)
        return list(state.tuples())

    with night.raises(StateError):
        keys(sqlite())
    night.tries("in memory or in files")
    factory = FileState.opaque(str(tmp_path / "files"))
    count(factory, 1)
    assert keys(factory)
