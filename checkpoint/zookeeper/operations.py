"""The operations of a multi, their sizes, and the refusals of ZooKeeper. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any

import msgspec
from kazoo import exceptions
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError, NotEmptyError

from kinesis_trident.checkpoint.errors import CheckpointError

# Named here so that the rest of the package does not depend on the client library for refusals.
EXISTS = NodeExistsError
MISSING = NoNodeError
NOT_EMPTY = NotEmptyError

REQUEST_LIMIT = 900 * 1024
"""The limit of a multi in bytes; ZooKeeper cuts the connection at 1 MiB (`jute.maxbuffer`) instead of answering."""

PACK_SIZE = 256 * 1024
"""The size in bytes up to which several nodes' writes are packed into one multi."""

_OP_OVERHEAD = 80  # bytes of headers and ACL around an operation's path and data


# The format of `org.apache.zookeeper.MultiOperationRecord` and `MultiResponse` on the wire.
INT = Struct("!i")
HEADER = Struct("!i?i")
"""Before each operation and each result: its type, whether that was the last, the error."""
STAT = Struct("!qqqqiiiqiiq")


class Check(msgspec.Struct, frozen=True):
    """The node must exist and have this version (-1: any)."""

    path: str
    version: int = -1


class Create(msgspec.Struct, frozen=True):
    """Make a node that must not exist; its parent must."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


class Write(msgspec.Struct, frozen=True):
    """Replace the data of a node that exists and has this version (-1: any)."""

    path: str
    data: bytes
    version: int = -1


class Delete(msgspec.Struct, frozen=True):
    """Remove a node that exists and has no children."""

    path: str


Op = Check | Create | Write | Delete


class Found(msgspec.Struct, frozen=True):
    """A node as read."""

    data: bytes
    stat: Any


_RACES: dict[type[KazooException], str] = {
    NodeExistsError: "exists already",
    NoNodeError: "does not exist, or the node above it",
    BadVersionError: "was changed meanwhile",
    NotEmptyError: "has children",
}
"""The refusals that show what another process has done, which only the caller can judge."""


class Refused(CheckpointError):
    """A multi was refused as a whole because of one operation; `kind` is kazoo's class of the reason."""

    def __init__(self, index: int, op: Op, kind: type[KazooException]) -> None:
        super().__init__(
            f"{op.path} cannot be written: it {_RACES[kind]}. Another process has made or deleted nodes there: start "
            "the query, or give the command, again"
        )
        self.index = index
        self.op = op
        self.kind = kind


def is_race(kind: type[BaseException]) -> bool:
    """Return whether a refusal shows what another process has done; any other is not mended by trying again."""
    return kind in _RACES


_MEANINGS = {
    -4: "The connection was lost. Start the query again",
    -118: "The session goes on with another server by now. Start the query again",
    -119: "The server only reads, because it has lost the others. See that a majority of the servers runs",
    -125: "A quota of this node, or of one above it, is met: listquota and setquota of zkCli.sh show and raise it",
    -127: "It has more requests than it takes (zookeeper.request_throttle_max_requests): let it take more, or start "
    "the query again later",
}


def explain_refusal(path: str, error: KazooException) -> tuple[str, str]:
    """Return what is wrong where a refusal is no race, with its number and the path, and what to do."""
    code = getattr(error, "code", None)
    number = f"{code}, " if code is not None else ""
    remedy = _MEANINGS.get(
        code or 0, "ZooKeeper's own log says more, and its KeeperException.Code what it means"
    )
    return f"ZooKeeper refuses a request for {path} ({number}{type(error).__name__})", remedy


def error_of(code: int) -> KazooException:
    """Return the error of an operation by its number in an answer."""
    error: KazooException = exceptions.EXCEPTIONS.get(code, exceptions.ZookeeperError)()
    error.code = code
    return error


def levels_of(chroot: str) -> list[str]:
    """Return the nodes of a client's chroot, from the root on: a server has all of them, or they are made."""
    names = [name for name in chroot.split("/") if name]
    return [f"/{'/'.join(names[: at + 1])}" for at in range(len(names))]


def with_chroot(chroot: str, path: str) -> str:
    """Return the path at which a server has a node of a client."""
    return f"{chroot.rstrip('/')}{path}" if path != "/" else chroot or "/"


def size_of(op: Op) -> int:
    """Return the approximate number of bytes that an operation adds to a request."""
    data = op.data if isinstance(op, Create | Write) else b""
    return len(op.path) + len(data) + _OP_OVERHEAD


def pack_writes(groups: Iterable[Sequence[Op]], size: int) -> Iterable[list[Op]]:
    """Combine groups of operations, in order, into multis of at most `size` bytes; no group is split."""
    pack: list[Op] = []
    held = 0
    for group in groups:
        weight = sum(map(size_of, group))
        if pack and held + weight > size:
            yield pack
            pack, held = [], 0
        pack.extend(group)
        held += weight
    if pack:
        yield pack
