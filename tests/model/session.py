"""A session with the ZooKeeper in memory, behind the part of kazoo's client that the product uses.

Requests are answered in the order in which they were made, as late as possible: when an answer is waited for. That is
where another process may come first, the connection be lost, or the server that answers lag behind the leader.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol

from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent

from kinesis_trident.checkpoint.errors import CheckpointError
from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig
from kinesis_trident.checkpoint.zookeeper.multi import MultiRead, MultiWrite
from kinesis_trident.checkpoint.zookeeper.operations import Check, Create, Delete, Found, Op, Write
from model.zookeeper import MemoryZooKeeper, Nodes

__all__ = ["Dice", "Process", "Session"]

_LAG = 12
"""Writes by which a server lags at most."""

_FOREVER_SECONDS = 10**6

_ids = count(1)

Watch = Callable[[WatchedEvent], object]


class Process(Protocol):
    """Whose session it is: told before each request is answered, so that something may happen first."""

    sessions: list[Session]

    def point(self, what: object) -> None:
        """Others may run now, and this process may be killed."""

    def wrote(self) -> None:
        """A write was done; this process may be killed before it has the answer."""


class Dice:
    """The faults of a session.

    Args:
        rng: decides.
        lose: how likely the connection is lost at a request, before or after it was done.
        expire: how likely the session expires at a request.
        lag: the server that answers may lag.
    """

    __slots__ = ("_expire", "_lose", "_rng", "lag")

    def __init__(
        self, rng: random.Random, *, lose: float = 0.0, expire: float = 0.0, lag: bool = False
    ) -> None:
        self._rng = rng
        self._lose = lose
        self._expire = expire
        self.lag = lag

    def fate(self) -> str:
        """`lost before`, `lost after`, `expired` or nothing."""
        roll = self._rng.random()
        if roll >= self._lose + self._expire:
            return ""
        return self._rng.choice(["lost before", "lost after"]) if roll < self._lose else "expired"

    def shown(self, seen: int, newest: int) -> int:
        """Return which write a server shows that has shown `seen` already."""
        if not self.lag or self._rng.random() < 0.5:
            return newest
        return self._rng.randint(max(seen, newest - _LAG), newest)


class Session:
    """One connection, as `KazooClient`: what the product calls of it, and nothing else."""

    chroot = ""
    default_acl = None
    hosts = (("memory", 1),)
    config = ZooKeeperConfig("", _FOREVER_SECONDS)

    def __init__(
        self, zookeeper: MemoryZooKeeper, process: Process | None = None, dice: Dice | None = None
    ) -> None:
        self._zookeeper = zookeeper
        self._process = process
        self._dice = dice
        self._lags = dice is not None and dice.lag
        self._seen = zookeeper.zxid
        self._queue: deque[_Answer] = deque()
        self._events: deque[Callable[[], object]] = deque()
        self._watches: dict[str, list[Watch]] = {}
        self._listeners: list[Callable[[str], object]] = []
        self._delivering = False
        self.id = next(_ids)
        self.ids = [self.id]
        self.closed = False
        self.handler = _Handler(self)
        if process is not None:
            process.sessions.append(self)

    @property
    def connected(self) -> bool:
        return not self.closed

    @property
    def client_id(self) -> tuple[int, bytes]:
        return self.id, b""

    def transaction(self) -> _Transaction:
        return _Transaction(self)

    def get_async(self, path: str, watch: Watch | None = None) -> _Answer:
        return self._ask(("get", path), lambda: self._get(path, watch), _Undisturbed if watch else _Answer)

    def exists_async(self, path: str, watch: Watch | None = None) -> _Answer:
        return self._ask(
            ("exists", path), lambda: self._exists(path, watch), _Undisturbed if watch else _Answer
        )

    def get_children_async(self, path: str) -> _Answer:
        def children() -> list[str]:
            node = self._view().get(path)
            if node is None:
                raise NoNodeError
            return sorted(node.children)

        return self._ask(("children", path), children)

    def sync_async(self, path: str) -> _Answer:
        def sync() -> str:
            self._see(self._zookeeper.zxid)
            return path

        return self._ask(("sync", path), sync)

    def ensure_path_async(self, path: str, acl: object = None) -> _Answer:
        def ensure() -> bool:
            names = [name for name in path.split("/") if name]
            for depth in range(1, len(names) + 1):
                made = "/" + "/".join(names[:depth])
                if made not in self._zookeeper.nodes:
                    self._zookeeper.multi([Create(made)], self.id)
            self._see(self._zookeeper.zxid)
            return True

        return self._ask(("ensure", path), ensure)

    def _call(self, request: MultiRead | MultiWrite, answer: _Answer) -> None:
        if isinstance(request, MultiWrite):
            self._bind_write(answer, request.ops, _or_true)
            return

        def read() -> list[Found | KazooException]:
            nodes = self._view()
            found = [nodes.get(path) for path in request.paths]
            return [NoNodeError() if node is None else Found(node.data, node.stat) for node in found]

        answer.bind(("multiread", len(request.paths)), read)
        self._queue.append(answer)

    def add_listener(self, listener: Callable[[str], object]) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[str], object]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def stop(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._fail_waiting(ConnectionClosedError)
        self._events.clear()
        self._watches.clear()
        self._zookeeper.end_session(self.id)
        if self._process is not None:
            self._process.sessions.remove(self)

    def close(self) -> None:
        """Nothing more: `stop` has ended all."""

    def deliver(self) -> None:
        """Call what waits to be called: watches, listeners, what was spawned. None of them interrupts another."""
        if self._delivering or self.closed:
            return
        if not self._lags:
            self._see(self._zookeeper.zxid)
        if not self._events:
            return
        self._delivering = True
        try:
            while self._events and not self.closed:
                try:
                    self._events.popleft()()
                except (CheckpointError, KazooException):
                    # kazoo logs what its threads meet.
                    continue
        finally:
            self._delivering = False

    def answer_next(self) -> None:
        """Answer the oldest request, unless another thread of a task has just done so."""
        try:
            answer = self._queue.popleft()
        except IndexError:
            return
        try:
            if self._process is not None:
                self._process.point(answer.what)
            if self.closed:
                raise ConnectionClosedError
            fate = self._dice.fate() if self._dice is not None else ""
            if fate == "lost before":
                self._lose()
                raise ConnectionLoss
            if fate == "expired":
                self._expire()
                raise SessionExpiredError
            self._zookeeper.requests += 1
            value = answer.make()
            if fate == "lost after":
                self._lose()
                raise ConnectionLoss
        except BaseException as error:
            answer.done(None, error)
        else:
            answer.done(value, None)

    def spawn(self, call: Callable[[], object]) -> None:
        """Have something called soon."""
        self._events.append(call)

    def write(self, ops: Sequence[Op]) -> _Answer:
        """Ask for a multi."""
        answer = _Answer(self)
        self._bind_write(answer, ops, list)
        return answer

    def _bind_write(
        self, answer: _Answer, ops: Sequence[Op], told: Callable[[Sequence[object]], list[object]]
    ) -> None:
        """Ask for a multi; `told` makes the answer of its results."""

        def multi() -> list[object]:
            results = self._zookeeper.multi(ops, self.id)
            self._see(self._zookeeper.zxid)
            if self._process is not None:
                self._process.wrote()
            return told(results)

        answer.bind(("write", [(type(op).__name__, op.path) for op in ops]), multi)
        self._queue.append(answer)

    def _ask(self, what: object, make: Callable[[], Any], kind: type[_Answer] | None = None) -> _Answer:
        answer = (kind or _Answer)(self, what, make)
        self._queue.append(answer)
        return answer

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Deliver no event meanwhile."""
        before, self._delivering = self._delivering, True
        try:
            yield
        finally:
            self._delivering = before

    def _get(self, path: str, watch: Watch | None) -> tuple[bytes, Any]:
        node = self._view().get(path)
        if node is None:
            raise NoNodeError
        self._watch(path, watch)
        return node.data, node.stat

    def _exists(self, path: str, watch: Watch | None) -> Any:
        node = self._view().get(path)
        self._watch(path, watch)
        return None if node is None else node.stat

    def _watch(self, path: str, watch: Watch | None) -> None:
        if watch is not None:
            self._watches.setdefault(path, []).append(watch)

    def _view(self) -> Nodes:
        newest = self._zookeeper.zxid
        if self._lags and self._dice is not None:
            self._see(self._dice.shown(self._seen, newest))
            return self._zookeeper.state(self._seen).nodes
        self._see(newest)
        return self._zookeeper.nodes

    def _see(self, zxid: int) -> None:
        """Come to the state after a write, past all that is watched."""
        if zxid <= self._seen:
            return
        while self._watches and self._seen < zxid:
            self._seen += 1
            for path in sorted(self._zookeeper.state(self._seen).changed & self._watches.keys()):
                self._fire(path, EventType.CHANGED)
        self._seen = zxid

    def _fire(self, path: str, kind: str) -> None:
        for watch in self._watches.pop(path, []):
            event = WatchedEvent(kind, KeeperState.CONNECTED, path)
            self._events.append(lambda watch=watch, event=event: watch(event))

    def _lose(self) -> None:
        self._fail_waiting(ConnectionLoss)
        for path in sorted(self._watches):
            self._fire(path, EventType.NONE)
        self._tell(KazooState.SUSPENDED, KazooState.CONNECTED)

    def _expire(self) -> None:
        self._fail_waiting(SessionExpiredError)
        self._zookeeper.end_session(self.id)
        self.id = next(_ids)
        self.ids.append(self.id)
        self._watches.clear()
        self._tell(KazooState.LOST, KazooState.CONNECTED)

    def _tell(self, *states: str) -> None:
        for state in states:
            self._events.append(lambda state=state: [listener(state) for listener in list(self._listeners)])

    def _fail_waiting(self, kind: type[KazooException]) -> None:
        while self._queue:
            self._queue.popleft().done(None, kind())


def _or_true(results: Sequence[object]) -> list[object]:
    """Return the results of operations as `MultiWrite` has them."""
    return [result if isinstance(result, KazooException) else True for result in results]


class _Answer:
    """An answer to come: waiting for it has all that was asked before answered first."""

    __slots__ = ("_error", "_ready", "_session", "_value", "make", "what")

    def __init__(self, session: Session, what: object = None, make: Callable[[], Any] = lambda: None) -> None:
        self.what, self.make = what, make
        self._session = session
        self._ready = False
        self._value: Any = None
        self._error: BaseException | None = None

    def bind(self, what: object, make: Callable[[], Any]) -> None:
        self.what, self.make = what, make

    def done(self, value: Any, error: BaseException | None) -> None:
        self._ready, self._value, self._error = True, value, error

    def ready(self) -> bool:
        return self._ready

    def successful(self) -> bool:
        return self._ready and self._error is None

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while not self._ready:
            self._session.answer_next()
        if self._error is not None:
            raise self._error
        return self._value


class _Undisturbed(_Answer):
    """What a watch asks for while it holds its lock: kazoo's threads would wait for that."""

    __slots__ = ()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        with self._session.undisturbed():
            return super().get(block, timeout)


class _Handler:
    """`client.handler`: nothing of it runs beside the process."""

    lock_object = staticmethod(threading.Lock)

    def __init__(self, session: Session) -> None:
        self._session = session

    def spawn(self, call: Callable[..., object], *args: Any) -> None:
        self._session.spawn(lambda: call(*args))

    def async_result(self) -> _Answer:
        return _Answer(self._session)

    @staticmethod
    def sleep_func(seconds: float) -> None:
        """No time passes between two attempts."""


class _Transaction:
    """`client.transaction()`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ops: list[Op] = []

    def check(self, path: str, version: int) -> None:
        self._ops.append(Check(path, version))

    def create(self, path: str, value: bytes = b"", acl: object = None, ephemeral: bool = False) -> None:
        self._ops.append(Create(path, value, ephemeral))

    def set_data(self, path: str, value: bytes, version: int = -1) -> None:
        self._ops.append(Write(path, value, version))

    def delete(self, path: str, version: int = -1) -> None:
        self._ops.append(Delete(path))

    def commit_async(self) -> _Answer:
        return self._session.write(self._ops)
