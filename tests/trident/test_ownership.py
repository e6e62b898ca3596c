"""A state owns its keys: who else would update them is refused by name, and can take over on purpose."""

from __future__ import annotations

import copy
import operator
import re
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import redis
from samples_topology import a_stream, graph_of
from servers import RedisServer

from kinesis_trident.bolt.tracking.state_facts import StateFacts
from kinesis_trident.trident import Count, StateOwnedError
from kinesis_trident.trident.errors import ForeignValueError
from kinesis_trident.trident.run.batches import name_updates, owners_of
from kinesis_trident.trident.state import Key
from kinesis_trident.trident.stores import MapStateFactory, StateType
from kinesis_trident.trident.stores.ownership import GLOBALS, Owner
from kinesis_trident.trident.stores.redis import RedisState
from kinesis_trident.trident.stores.sql import SqlState
from kinesis_trident.trident.stores.task import TASK, StateTask

KEYS: list[Key] = [("a",), ("b",)]
HOME = "lines@1"


def owner(update: str, *others: str, application: str = "shop", home: str = HOME, **more: Any) -> Owner:
    return Owner(application, home, update, frozenset((update, *others)), **more)


def count(
    factory: MapStateFactory, who: Owner | None, txid: int, number: int = 1, attempt: int = 1
) -> Sequence[Any]:
    conf = {TASK: StateTask(attempt, who)}
    state = factory.make_state(conf, 0, 1)
    state.begin_commit(txid)
    if who is not None and who.is_global:
        state.multi_combine([(factory.global_key,)], operator.add, [number])
        counts = [state.get()]
    else:
        counts = state.multi_combine(KEYS, operator.add, [number] * len(KEYS))
    state.commit(txid)
    return counts


def given(factory: MapStateFactory, **options: Any) -> MapStateFactory:
    """The same state, in the same process, with other options."""
    other = copy.copy(factory)
    other._options = msgspec.structs.replace(factory._options, **options)
    return other


def accepted(refused: pytest.ExceptionInfo[StateOwnedError]) -> str:
    """The value of the option that the error recommends."""
    found = re.search(r"acceptOwner='(.*?)'", str(refused.value))
    assert found, refused.value
    return found[1]


def test_another_application_is_refused_and_takes_over_on_purpose(every_store: MapStateFactory) -> None:
    """Its batches are numbered from 1 again, below those in the store; its replays count once all the same."""
    ours, theirs = owner("counts"), owner("counts", application="other")
    assert count(every_store, ours, 70, 5) == [5, 5]
    with pytest.raises(
        StateOwnedError, match=r"other/lines@1/counts belong to shop/lines@1/counts"
    ) as refused:
        count(every_store, theirs, 1)
    assert count(every_store, ours, 71, 5) == [10, 10]
    adopted = given(every_store, accept_owner=accepted(refused))
    for attempt, expected in [(1, 11), (2, 11)]:
        assert count(adopted, theirs, 1, attempt=attempt) == [expected] * 2
    assert count(every_store, theirs, 2) == [12, 12]
    assert adopted.make_state({}, 0, 1).multi_get(KEYS) == [12, 12]
    with pytest.raises(StateOwnedError, match="belong to other/lines@1/counts") as refused:
        count(every_store, ours, 72)
    # And back.
    ours = owner("counts", applied=71)
    assert count(given(every_store, accept_owner=accepted(refused)), ours, 72) == [13, 13]
    assert count(every_store, ours, 73) == [14, 14]


def test_a_state_of_an_earlier_release_is_adopted(every_store: MapStateFactory) -> None:
    count(every_store, None, 7)
    assert count(every_store, owner("counts"), 7, 5, attempt=2) == [5, 5]
    assert count(every_store, owner("counts"), 8) == [6, 6]
    with pytest.raises(StateOwnedError):
        count(every_store, owner("counts", application="other"), 9)


def test_two_updates_of_a_topology_that_write_the_server_in_two_ways(redis_server: RedisServer) -> None:
    prefix = uuid.uuid4().hex
    stream = a_stream()
    for host in ("127.0.0.1", "localhost"):
        factory = RedisState.opaque(f"redis://{host}:{redis_server.port}/0", keyPrefix=prefix)
        stream.group_by(["partitionKey"]).persistent_aggregate(factory, Count(), ["n"])
    names = name_updates(graph_of(stream).nodes)
    one, two = owners_of(names, StateFacts(1, "shop", HOME)).values()
    assert one.update == f"persistent_aggregate(Count) by partitionKey in {prefix}"
    assert two.update == f"{one.update} #2"
    first, second = (node.factory for node in names)
    count(first, one, 1)
    with pytest.raises(
        StateOwnedError, match=f"{re.escape(two.update)} belong to .*{re.escape(one.update)} "
    ):
        count(second, two, 1)


def test_no_table_is_called_as_the_number_of_another_update() -> None:
    stream = a_stream()
    for table in ("counts", "counts", "counts #2", "counts #2"):
        factory = SqlState.opaque("sqlite:////here", tableName=table)
        stream.group_by(["partitionKey"]).persistent_aggregate(factory, Count(), ["n"])
    names = [*name_updates(graph_of(stream).nodes).values()]
    base = "persistent_aggregate(Count) by partitionKey in counts"
    assert names == [base, f"{base} #2", f"{base} #2 #2", f"{base} #2 #3"]


def test_an_update_that_got_another_name_keeps_its_state(redis_server: RedisServer) -> None:
    """The code has changed between two runs: nobody of the topology has the old name."""
    factory = RedisState.opaque(redis_server.url, keyPrefix=uuid.uuid4().hex)
    count(factory, owner("old", "other"), 1)
    assert count(factory, owner("new", "other"), 1, 5, attempt=2) == [5, 5]
    with pytest.raises(StateOwnedError, match="old belong to shop/lines@1/new"):
        count(factory, owner("old", "new"), 2)


@pytest.mark.parametrize(("before", "first"), [(7, 8), (7, 3), (7, 20)])
def test_a_stream_that_is_read_together_with_others_from_now_on(
    redis_server: RedisServer, before: int, first: int
) -> None:
    """Their batches go on from those of the stream, or have numbers of their own."""
    factory = RedisState.opaque(redis_server.url, keyPrefix=uuid.uuid4().hex)
    count(factory, owner("counts"), before)
    with pytest.raises(StateOwnedError):
        count(factory, owner("counts", home="@streams"), first)
    together = owner("counts", home="@streams", merged=frozenset((HOME, "others@1")))
    assert count(factory, together, first, 5) == [6, 6]
    for attempt, expected in [(1, 7), (2, 7)]:
        assert count(factory, together, first + 1, attempt=attempt) == [expected] * 2
    with pytest.raises(StateOwnedError):
        count(factory, owner("counts"), before + 1)


@pytest.mark.parametrize("kind", StateType)
def test_a_prefix_that_begins_another_one(redis_server: RedisServer, kind: StateType) -> None:
    base = uuid.uuid4().hex
    short = RedisState(kind, redis_server.url, keyPrefix=f"{base}count")
    long = RedisState(kind, redis_server.url, keyPrefix=f"{base}count:er")
    here, there = owner("short", "long"), owner("long", "short")
    count(long, there, 1)
    # Who comes later is refused, and stops nobody, whichever prefix is the longer one.
    with pytest.raises(
        StateOwnedError, match=r"keys of shop/lines@1/long begin .*count:er.* those of shop/lines@1/short"
    ) as refused:
        count(short, here, 1)
    count(long, there, 1, attempt=2)
    count(given(short, accept_owner=accepted(refused)), here, 1)
    count(short, here, 2)
    # From now on the longer one sees the shorter one's mark.
    with pytest.raises(StateOwnedError, match=r"count:er.* those of shop/lines@1/short .*mix up") as refused:
        count(long, there, 2)
    count(given(long, accept_owner=accepted(refused)), there, 2)
    # One of another application, and one that earlier code of this application has left.
    with pytest.raises(StateOwnedError, match="those of shop/lines@1/short"):
        count(long, owner("long", application="other"), 3)
    count(long, owner("long"), 3)


def test_a_newcomer_without_a_prefix_stops_no_older_state(database: str) -> None:
    older, global_one, newcomer = (SqlState.opaque(database, keyPrefix=prefix) for prefix in ("a:", "b:", ""))
    whole = owner("whole", is_global=True)
    count(older, owner("old"), 1)
    count(global_one, whole, 1)
    for _ in range(2):
        with pytest.raises(
            StateOwnedError, match=r"old begin with 'a:', and so can those of other/lines@1/new"
        ):
            count(newcomer, owner("new", application="other"), 1)
    assert count(older, owner("old"), 2) == [2, 2]
    assert count(global_one, whole, 2) == [2]
    # A global aggregate has one key, which is none of theirs.
    assert count(newcomer, owner("all", application="other", is_global=True), 1) == [1]


def test_states_of_an_earlier_release_that_contain_each_other_go_on(redis_server: RedisServer) -> None:
    """Their users have accepted it, and there was no register of prefixes."""
    base = uuid.uuid4().hex
    client = redis.Redis.from_url(redis_server.url)
    for prefix, update in [(base, "short"), (f"{base}a:", "long")]:
        client.set(f'{prefix}["$OWNER$"]', f'["shop","lines@1","{update}",0]')
        client.set(f'{prefix}["$FENCE$"]', "[7,1]")
    long = RedisState.opaque(redis_server.url, keyPrefix=f"{base}a:", acceptOwner="shop/lines@1/short")
    short = RedisState.opaque(redis_server.url, keyPrefix=base)
    for txid in (8, 9):
        for factory, name in [(long, "long"), (short, "short")]:
            assert count(factory, owner(name, "long", "short"), txid) == [txid - 7] * 2


def test_a_user_of_redis_who_sees_only_the_keys_under_the_prefix(redis_server: RedisServer) -> None:
    prefix = uuid.uuid4().hex
    admin = redis.Redis.from_url(redis_server.url)
    admin.acl_setuser(prefix, enabled=True, nopass=True, keys=[f"{prefix}*"], categories=["+@all"])
    url = redis_server.url.replace("redis://", f"redis://{prefix}:x@")
    assert count(RedisState.opaque(url, keyPrefix=prefix), owner("counts"), 1) == [1, 1]
    admin.acl_deluser(prefix)


def test_global_aggregates_share_a_prefix_but_no_key(redis_server: RedisServer) -> None:
    prefix = uuid.uuid4().hex
    a, b, grouped = (
        RedisState.opaque(redis_server.url, keyPrefix=prefix, globalKey=key) for key in ("a", "b", "c")
    )
    names = ("one", "two", "three")
    one, two, three = (owner(name, *names, GLOBALS, is_global=name != "three") for name in names)
    assert count(a, one, 1) == count(b, two, 1) == [1]
    with pytest.raises(StateOwnedError, match="two belong to shop/lines@1/one"):
        count(a, two, 2)
    with pytest.raises(StateOwnedError, match="three belong to shop/lines@1/global aggregates"):
        count(grouped, three, 2)
    # A prefix that a global aggregate's own key does not begin with is another place.
    assert count(given(grouped, key_prefix=f"{prefix}x"), three, 2) == [1, 1]
    with pytest.raises(StateOwnedError, match="those of shop/lines@1/three"):
        count(given(a, global_key="xy"), one, 3)
    theirs = owner("one", application="other", is_global=True)
    with pytest.raises(StateOwnedError, match="belong to shop/lines@1/one") as refused:
        count(a, theirs, 1)
    assert count(given(a, accept_owner=accepted(refused)), theirs, 1) == [2]


def test_a_mark_that_is_none(redis_server: RedisServer) -> None:
    prefix = uuid.uuid4().hex
    redis.Redis.from_url(redis_server.url).set(f'{prefix}["$OWNER$"]', "mine!")
    with pytest.raises(ForeignValueError, match=r"OWNER.*holds b'mine!', which is not the mark of an owner"):
        count(RedisState.opaque(redis_server.url, keyPrefix=prefix), owner("counts"), 1)
