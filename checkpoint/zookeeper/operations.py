"""The operations of a multi, their sizes, and the refusals of ZooKeeper. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any

import msgspec
from kazoo import exceptions
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError, NotEmptyError

from kinesis_trident.common.errors import KinesisTridentError

# Named here so that the rest of the package does not depend on the client library for refusals.
EXISTS = NodeExistsError
MISSING = NoNodeError
NOT_EMPTY = NotEmptyError
OTHER_VERSION = BadVersionError

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

_ERRORS: dict[int, type[KazooException]] = {
    0: exceptions.RolledBackError,
    -2: exceptions.RuntimeInconsistency,
    -6: exceptions.UnimplementedError,
    -8: exceptions.BadArgumentsError,
    -101: NoNodeError,
    -102: exceptions.NoAuthError,
    -103: BadVersionError,
    -108: exceptions.NoChildrenForEphemeralsError,
    -110: NodeExistsError,
    -111: NotEmptyError,
    -112: exceptions.SessionExpiredError,
    -114: exceptions.InvalidACLError,
}
"""`org.apache.zookeeper.KeeperException.Code`, as far as an operation of a multi may have them."""


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


class Refused(KinesisTridentError):
    """A multi was refused as a whole because of one operation; `kind` is kazoo's class of the reason."""

    def __init__(self, index: int, op: Op, kind: type[KazooException]) -> None:
        super().__init__(f"{kind.__name__} at {op.path}")
        self.index = index
        self.op = op
        self.kind = kind


def error_of(code: int) -> KazooException:
    """Return the error of an operation by its number in an answer."""
    return _ERRORS[code]() if code in _ERRORS else exceptions.ZookeeperError(f"error {code} of ZooKeeper")


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
