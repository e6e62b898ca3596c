"""A request whose answer is lost is applied once: a run may have taken it in before its maker looks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as replace_fields
from typing import Any

import pytest
from by_hand import Lives, Query
from expired_sessions import expire
from kazoo.client import KazooClient
from lives import eventually
from lossy_proxy import LossyProxy

from kinesis_trident.checkpoint.errors import StateMissingError, ZooKeeperUnavailableError
from kinesis_trident.checkpoint.model.nodes import ExternalNode
from kinesis_trident.checkpoint.store.source_store import SourceStore
from kinesis_trident.checkpoint.zookeeper.operations import Op
from kinesis_trident.checkpoint.zookeeper.session import Session
from kinesis_trident.spout.acks import Acks
from kinesis_trident.spout.testing import MemoryKinesis

A = "shardId-000000000000"
NOW = 1_700_000_000_000


@pytest.fixture
def query(make_lives: Callable[..., Lives]) -> Query:
    """A query that has read two records; they wait for their acks."""
    kinesis = MemoryKinesis()
    for number in range(2):
        kinesis.put(A, str(number).encode())
    return make_lives(ackMode="explicit", messageTimeout="10m", retryBackoff="0ms..0ms x1").begin(kinesis)


def make_folder(query: Query) -> None:
    """Have a request before: the first one to a shard takes two writes."""
    query.store.external.add(A, ExternalNode(op="replay", records=("1",)))
    query.run._state.take_in_requests(NOW)


def before_the_look(monkeypatch: pytest.MonkeyPatch, folder: str, do: Callable[[Session], Any]) -> list[Op]:
    """Do something after a request to this folder was written, and before its maker looks whether it was."""
    look, seen = Session._has_happened, list[Op]()

    def first(session: Session, ops: list[Op], left: Callable[[], float]) -> bool:
        if not seen and any(op.path.startswith(f"{folder}/") for op in ops):
            seen.extend(ops)
            do(session)
        return look(session, ops, left)

    monkeypatch.setattr(Session, "_has_happened", first)
    return seen


@pytest.mark.parametrize("op", ["fail", "replay"])
def test_a_request_that_was_taken_in_is_not_made_again(
    query: Query,
    proxy: LossyProxy,
    make_client: Callable[..., KazooClient],
    monkeypatch: pytest.MonkeyPatch,
    app: str,
    op: str,
) -> None:
    (first, _) = query.batch()
    assert query.plan() is None
    external, take_in = query.store.external, query.run._state.take_in_requests
    make_folder(query)
    seen = before_the_look(monkeypatch, external.folder, lambda _: take_in(NOW))
    if op == "fail":
        with Acks(app, {"zookeeper.hosts": proxy.hosts}) as acks:
            proxy.lose_answers()
            assert acks.fail([first[1]], "no") == 1
    else:
        asked = ExternalNode(op="replay", records=(first[1].rpartition(":")[2],), again=True)
        theirs = SourceStore(make_client(proxy.hosts), query.run.layout)
        proxy.lose_answers()
        theirs.external.add(A, asked)
    assert proxy.cuts == 1
    assert seen
    assert external.read().asked == {}
    # What shows that it was made goes, too.
    eventually(
        lambda: (
            not any(
                name.startswith("sent-") for name in query.store.client.get_children(query.run.layout.base)
            )
        ),
        "the note of the request is gone",
    )


def test_a_request_that_has_moved_to_another_home_meanwhile_is_not_refused(
    query: Query,
    proxy: LossyProxy,
    client: KazooClient,
    make_client: Callable[..., KazooClient],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its maker would repeat it there."""
    layout = query.run.layout
    query.end()
    home = SourceStore(client, replace_fields(layout, stream="", created=0))
    epoch = home.epochs.raise_epoch("h", 1, NOW)
    theirs = SourceStore(make_client(proxy.hosts), layout)
    old = theirs.external

    def move(_: Session) -> None:
        home.external.adopt(SourceStore(client, layout).external, lambda _: "orders@1/x", epoch)

    old.add(A, ExternalNode(op="replay", records=("1",)))
    # The answers come in order: that of the removed note has come, too, and is not the one that is lost.
    old.read()
    before_the_look(monkeypatch, old.folder, move)
    proxy.lose_answers()
    old.add(A, ExternalNode(op="replay", records=("2",)))
    assert [one.records for one in home.external.read().asked["orders@1/x"].values()] == [("1",), ("2",)]
    with pytest.raises(StateMissingError, match="read together with others by now"):
        old.add(A, ExternalNode(op="replay", records=("3",)))


@pytest.mark.parametrize("is_quicker", [False, True])
def test_a_run_that_takes_in_what_is_withdrawn_is_seen(
    query: Query,
    proxy: LossyProxy,
    make_client: Callable[..., KazooClient],
    monkeypatch: pytest.MonkeyPatch,
    is_quicker: bool,
) -> None:
    query.batch()
    assert query.plan() is None
    external, take_in = query.store.external, query.run._state.take_in_requests
    theirs = SourceStore(make_client(proxy.hosts), query.run.layout).external
    name = theirs.add(A, ExternalNode(op="replay", records=("1",))).rpartition("/")[2]
    # The answers come in order: that of the removed note has come, too, and is not the one that is lost.
    theirs.read()
    before_the_look(monkeypatch, external.folder, lambda _: take_in(NOW))
    if is_quicker:
        # The request to withdraw it is lost on its way.
        proxy.lose_requests()
    else:
        proxy.lose_answers()
    assert theirs.withdraw(A, name, None) is not is_quicker
    assert proxy.cuts == 1


def test_what_may_have_been_taken_in_is_not_repeated_in_another_session(
    query: Query,
    proxy: LossyProxy,
    client: KazooClient,
    make_client: Callable[..., KazooClient],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = make_client(proxy.hosts)
    external, take_in = query.store.external, query.run._state.take_in_requests
    assert len(query.batch()) == 2
    assert query.plan() is None
    make_folder(query)

    def lose_session(_: Session) -> None:
        take_in(NOW)
        eventually(lambda: theirs.client_id, "the client is connected again")
        expire(theirs)

    before_the_look(monkeypatch, external.folder, lose_session)
    store = SourceStore(theirs, query.run.layout)
    proxy.lose_answers()
    with pytest.raises(ZooKeeperUnavailableError):
        store.external.add(A, ExternalNode(op="replay", records=("1",)))
    assert external.read().asked == {}
