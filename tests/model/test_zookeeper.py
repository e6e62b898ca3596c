"""The ZooKeeper in memory answers as a real one does: both are asked the same, at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException, SessionExpiredError

from kinesis_trident.checkpoint.embedded import EmbeddedZooKeeper
from kinesis_trident.checkpoint.zookeeper.multi import read_async, transaction_of, write_async
from kinesis_trident.checkpoint.zookeeper.node_watch import NodeWatch
from kinesis_trident.checkpoint.zookeeper.operations import Check, Create, Delete, Found, Op, Write
from kinesis_trident.checkpoint.zookeeper.session import Session as Watching
from model.session import Dice, Session
from model.zookeeper import MemoryZooKeeper

NAMES = ("a", "b", "a/c", "a/d", "a/c/e", "b/f")


class Both:
    """A session with each, below a root of its own; what one answers, the other must."""

    def __init__(self, real: KazooClient, memory: Session, root: str) -> None:
        self.root = root
        self.clients: list[Any] = [real, memory]
        for client in self.clients:
            client.ensure_path_async(root).get()

    def ask(self, call: Callable[[Any], Any]) -> Any:
        """Have both answer."""
        real, memory = (_answer(call, client) for client in self.clients)
        assert memory == real
        return real

    def commit(self, ops: list[Op]) -> Any:
        """Have both do a multi."""
        return self.ask(lambda client: [_told(result) for result in _transaction(client, ops).get()])

    def look(self) -> None:
        """Compare all there is, in each way of reading."""
        paths = [self.root, *(f"{self.root}/{name}" for name in NAMES)]
        for path in paths:
            self.ask(lambda client, path=path: _told(client.get_async(path).get()))
            self.ask(lambda client, path=path: _told(client.exists_async(path).get()))
            self.ask(lambda client, path=path: sorted(client.get_children_async(path).get()))
        self.ask(
            lambda client: [_told(found) for result in read_async(client, paths) for found in result.get()]
        )
        self.ask(lambda client: self.order(client, paths))

    def order(self, client: Any, paths: list[str]) -> list[list[str]]:
        """The nodes in the order of their creation and of their last change, which their numbers give."""
        stats = {path: stat for path in paths if (stat := client.exists_async(path).get()) is not None}
        return [
            sorted(stats, key=lambda path: (stats[path].czxid, path)),
            sorted(stats, key=lambda path: (stats[path].mzxid, path)),
        ]


@pytest.fixture
def real(zookeeper: EmbeddedZooKeeper, make_client: Callable[..., KazooClient]) -> Callable[[], KazooClient]:
    """`real()`: another session with a real server."""
    return partial(make_client, zookeeper.hosts)


@pytest.fixture
def memory() -> MemoryZooKeeper:
    return MemoryZooKeeper(lambda: 1_700_000_000_000)


@pytest.mark.parametrize("seed", range(6))
def test_the_same_operations_have_the_same_answers(
    seed: int, real: Callable[[], KazooClient], memory: MemoryZooKeeper, app: str
) -> None:
    rng = random.Random(seed)
    both = Both(real(), Session(memory), f"/{app}")
    for _ in range(60):
        both.commit([_any_op(rng, both.root) for _ in range(rng.choice([1, 1, 2, 3, 5]))])
    both.look()


def test_what_ends_with_a_session_is_gone_with_it(
    real: Callable[[], KazooClient], memory: MemoryZooKeeper, app: str
) -> None:
    watching = Both(real(), Session(memory), f"/{app}")
    ending = Both(real(), Session(memory), f"/{app}")
    path = f"/{app}/a"
    assert ending.commit([Create(path, b"1", ephemeral=True)]) == [path]
    assert watching.commit([Create(f"{path}/c")]) == ["NoChildrenForEphemeralsError"]
    watching.ask(lambda client: bool(client.exists_async(path).get().ephemeralOwner))
    for client in ending.clients:
        client.stop()
    watching.ask(lambda client: client.sync_async(path).get())
    assert watching.ask(lambda client: client.exists_async(path).get()) is None


@pytest.mark.parametrize("more", [False, True])
def test_a_request_may_have_so_many_bytes(
    more: bool, real: Callable[[], KazooClient], memory: MemoryZooKeeper, app: str
) -> None:
    both = Both(real(), Session(memory), f"/{app}")
    size = 1024 * 1024 + (1 if more else -1024)
    answer = both.commit([Create(f"/{app}/a", b"x" * size)])
    assert answer == ("ConnectionLoss" if more else [f"/{app}/a"])


def test_a_watch_is_told_of_each_change(memory: MemoryZooKeeper) -> None:
    session, other = Session(memory), Session(memory)
    seen: list[bytes | None] = []
    watching: Any = session
    NodeWatch(Watching(watching, 1.0), "/a", lambda found: seen.append(found and found.data))
    for ops in ([Create("/a", b"1")], [Write("/a", b"2")], [Delete("/a")], [Create("/a", b"3")]):
        _transaction(other, ops).get()
        session.deliver()
    assert seen == [None, b"1", b"2", None, b"3"]


def test_a_session_whose_server_lags_sees_its_own_writes_and_what_it_has_seen(
    memory: MemoryZooKeeper,
) -> None:
    leader, behind = Session(memory), Session(memory, dice=Dice(random.Random(1), lag=True))
    _transaction(leader, [Create("/a", b"0")]).get()
    behind.sync_async("/a").get()
    seen = [0]
    for number in range(1, 100):
        _transaction(leader, [Write("/a", str(number).encode())]).get()
        seen.append(int(behind.get_async("/a").get()[0]))
    assert seen == sorted(seen)
    assert seen != list(range(100))
    _transaction(leader, [Write("/a", b"100")]).get()
    # As a pipeline does: the answer of the first is not waited for.
    pending = [behind.sync_async("/a"), behind.get_async("/a")]
    assert pending[1].get()[0] == b"100"
    _transaction(leader, [Write("/a", b"101")]).get()
    _transaction(behind, [Create("/b")]).get()
    assert behind.get_async("/a").get()[0] == b"101"


@pytest.mark.parametrize(
    ("chances", "error"), [({"lose": 1.0}, ConnectionLoss), ({"expire": 1.0}, SessionExpiredError)]
)
def test_what_was_asked_fails_with_the_connection(
    chances: dict[str, float], error: type[KazooException], memory: MemoryZooKeeper
) -> None:
    states: list[str] = []
    session = Session(memory, dice=Dice(random.Random(1), **chances))
    session.add_listener(states.append)
    pending = [session.get_async("/"), session.get_async("/")]
    for answer in pending:
        with pytest.raises(error):
            answer.get()
    session.deliver()
    assert states == [("SUSPENDED" if error is ConnectionLoss else "LOST"), "CONNECTED"]


def _any_op(rng: random.Random, root: str) -> Op:
    path = f"{root}/{rng.choice(NAMES)}"
    version = rng.choice([-1, -1, 0, 1, 2])
    return rng.choice(
        [
            Create(path, rng.randbytes(3), ephemeral=rng.random() < 0.2),
            Create(path, rng.randbytes(3)),
            Write(path, rng.randbytes(3), version),
            Check(path, version),
            Delete(path),
        ]
    )


def _transaction(client: Any, ops: list[Op]) -> Any:
    if len(ops) > 1:
        # As the product asks for nearly all of them.
        return write_async(client, ops)
    return transaction_of(client, ops).commit_async()


def _answer(call: Callable[[Any], Any], client: Any) -> Any:
    try:
        return call(client)
    except KazooException as error:
        return type(error).__name__


def _told(result: Any) -> Any:
    """An answer without what differs from server to server: times, and the numbers of writes and sessions."""
    if isinstance(result, KazooException):
        return type(result).__name__
    if isinstance(result, Found):
        return result.data, _told(result.stat)
    if isinstance(result, tuple) and len(result) == 2:
        return result[0], _told(result[1])
    if hasattr(result, "czxid"):
        shown = (result.version, bool(result.ephemeralOwner), result.dataLength)
        return *shown, result.numChildren, result.cversion
    return result
