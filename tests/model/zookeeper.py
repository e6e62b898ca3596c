"""A ZooKeeper in memory: nodes, multis, versions, ephemeral nodes, the limit of a request, and what was before.

Who connects to it is a `model.session.Session`. That it answers as a real one does is tested against a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import ZnodeStat
from msgspec.structs import replace

from kinesis_trident.checkpoint.zookeeper.operations import Check, Create, Delete, Op, Write

__all__ = ["MemoryZooKeeper", "Node", "Nodes", "State"]

_REQUEST_LIMIT = 1024 * 1024
"""`jute.maxbuffer`: the server cuts the connection where a request is larger."""

_OP_OVERHEAD = 60


class Node(msgspec.Struct, frozen=True):
    """A node as it stands; `owner` is the session that an ephemeral one ends with.

    `moves`: how many children were made, and how many were deleted.
    """

    data: bytes
    created: int = 0
    modified: int = 0
    created_at: int = 0
    modified_at: int = 0
    version: int = 0
    owner: int = 0
    children: frozenset[str] = frozenset()
    moves: int = 0

    @property
    def stat(self) -> ZnodeStat:
        """Return what kazoo calls it; the fields that nobody here reads are 0."""
        # In the order of its fields: names take twice as long, and there is one for each read.
        dated = (self.created, self.modified, self.created_at, self.modified_at)
        return ZnodeStat(
            *dated, self.version, self.moves, 0, self.owner, len(self.data), len(self.children), 0
        )


Nodes = dict[str, Node]


class State(msgspec.Struct, frozen=True):
    """The nodes after one write, and the paths that it changed: of nodes, and of those whose children it changed."""

    nodes: Nodes
    changed: frozenset[str] = frozenset()


def parent_of(path: str) -> str:
    """The path of a node's parent."""
    return path.rpartition("/")[0] or "/"


class MemoryZooKeeper:
    """The leader's state, and every state before: a server that lags shows one of those.

    Args:
        clock: epoch milliseconds; dates the nodes.

    Attributes:
        states: after each write since `forget`, oldest first.
        nodes: what the leader has now. Nobody changes what is in it: keeping it keeps a copy.
        zxid: the number of the last write.
        observers: called with the session and its operations after each multi that was done.
        requests: how many multis and reads were answered.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._first = 0
        self.zxid = 0
        self.nodes: Nodes = {"/": Node(b"")}
        self.states = [State(self.nodes)]
        self.observers: list[Callable[[int, Sequence[Op]], None]] = []
        self.requests = 0

    def state(self, zxid: int) -> State:
        """The state that a write has left."""
        return self.states[zxid - self._first]

    def forget(self) -> None:
        """Keep only the newest state; no session may be open."""
        self._first = self.zxid
        del self.states[:-1]

    def restore(self, nodes: Nodes) -> None:
        """The servers start over with an older copy of their data."""
        self._come_to(State(nodes, frozenset({*self.nodes, *nodes})))

    def multi(self, ops: Sequence[Op], session: int) -> list[object]:
        """Do all operations or none: kazoo's results, of which one is the reason where none was done.

        Raises:
            ConnectionLoss: the request is larger than a server takes.
        """
        self.requests += 1
        if sum(map(_size, ops)) > _REQUEST_LIMIT:
            raise ConnectionLoss
        attempt = _Attempt(dict(self.nodes), self.zxid + 1, self._clock(), session)
        results: list[object] = []
        for op in ops:
            try:
                results.append(attempt.apply(op))
            except KazooException as error:
                undone = [RolledBackError() for _ in results]
                return [*undone, error, *(RuntimeInconsistency() for _ in ops[len(results) + 1 :])]
        self._come_to(State(attempt.nodes, frozenset(attempt.changed)))
        for observe in self.observers:
            observe(session, ops)
        return results

    def _come_to(self, state: State) -> None:
        self.states.append(state)
        self.nodes = state.nodes
        self.zxid += 1

    def end_session(self, session: int) -> None:
        """Remove what ends with a session."""
        owned = [path for path, node in self.nodes.items() if node.owner == session]
        if owned:
            self.multi([Delete(path) for path in owned], session)


class _Attempt:
    """A multi at work on nodes of its own."""

    def __init__(self, nodes: Nodes, zxid: int, now: int, session: int) -> None:
        self.nodes = nodes
        self.changed: set[str] = set()
        self._zxid = zxid
        self._now = now
        self._session = session

    def apply(self, op: Op) -> object:
        match op:
            case Check():
                self._existing(op.path, op.version)
                return True
            case Create():
                return self._create(op)
            case Write():
                node = self._existing(op.path, op.version)
                node = replace(
                    node,
                    data=op.data,
                    version=node.version + 1,
                    modified=self._zxid,
                    modified_at=self._now,
                )
                self.nodes[op.path] = node
                self.changed.add(op.path)
                return node.stat
            case Delete():
                if self._existing(op.path).children:
                    raise NotEmptyError
                del self.nodes[op.path]
                self._tell_parent(op.path, exists=False)
                return True

    def _existing(self, path: str, version: int = -1) -> Node:
        node = self.nodes.get(path)
        if node is None:
            raise NoNodeError
        if version not in (-1, node.version):
            raise BadVersionError
        return node

    def _create(self, op: Create) -> str:
        above = self.nodes.get(parent_of(op.path))
        if above is None:
            raise NoNodeError
        if op.path in self.nodes:
            raise NodeExistsError
        if above.owner:
            raise NoChildrenForEphemeralsError
        self.nodes[op.path] = Node(
            op.data,
            self._zxid,
            self._zxid,
            self._now,
            self._now,
            owner=self._session if op.ephemeral else 0,
        )
        self._tell_parent(op.path, exists=True)
        return op.path

    def _tell_parent(self, path: str, *, exists: bool) -> None:
        above, name = parent_of(path), frozenset({path.rpartition("/")[2]})
        node = self.nodes[above]
        children = node.children | name if exists else node.children - name
        self.nodes[above] = replace(node, children=children, moves=node.moves + 1)
        self.changed.add(path)


def _size(op: Op) -> int:
    return len(op.path) + len(op.data if isinstance(op, Create | Write) else b"") + _OP_OVERHEAD
