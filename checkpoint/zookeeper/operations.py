"""The operations of a multi, their sizes, and the refusals of ZooKeeper. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError, NotEmptyError

from kinesis_trident.tracker.errors import KinesisTridentError

__all__ = [
    "EXISTS",
    "MISSING",
    "NOT_EMPTY",
    "OTHER_VERSION",
    "PACK_SIZE",
    "REQUEST_LIMIT",
    "Check",
    "Create",
    "Delete",
    "Found",
    "Op",
    "Refused",
    "Write",
    "packed",
    "size_of",
]

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


def size_of(op: Op) -> int:
    """Return the approximate number of bytes that an operation adds to a request."""
    data = op.data if isinstance(op, Create | Write) else b""
    return len(op.path) + len(data) + _OP_OVERHEAD


def packed(groups: Iterable[Sequence[Op]], size: int) -> Iterable[list[Op]]:
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
