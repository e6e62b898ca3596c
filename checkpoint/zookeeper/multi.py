"""Writes or reads many nodes in one request, for a fraction of the work that kazoo makes of it for the client.

A batch of thousands of shards is settled by thousands of operations: kazoo's `transaction()` checks and joins each path
anew, and makes several objects for each operation and for each answer. ZooKeeper's `multiRead` (since 3.6) kazoo does
not have, and a separate request for each of thousands of nodes takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.protocol.states import ZnodeStat
from kazoo.security import OPEN_ACL_UNSAFE
from msgspec.structs import replace

from kinesis_trident.checkpoint.zookeeper.operations import (
    HEADER,
    INT,
    STAT,
    Check,
    Create,
    Delete,
    Found,
    Op,
    Write,
    error_of,
    with_chroot,
)
from kinesis_trident.common.private_names import MissingNameError, send_request

_KINDS = {Create: 1, Delete: 2, Write: 5, Check: 13}
_HEADERS = {op: HEADER.pack(kind, False, -1) for op, kind in _KINDS.items()}
_END = HEADER.pack(-1, True, -1)
_ANY_VERSION = INT.pack(-1)
_EPHEMERAL = 1


@dataclass(frozen=True, slots=True)
class MultiWrite:
    """The request for operations on absolute paths, as kazoo's connection sends and reads it.

    `acl`: of the nodes that it makes.
    """

    ops: tuple[Op, ...]
    acl: tuple[Any, ...]

    type = 14

    def serialize(self) -> bytes:
        """Return the bytes of the request."""
        sized, acl = INT.pack, b""
        sent: list[bytes] = []
        for op in self.ops:
            path = op.path.encode()
            sent += (_HEADERS[type(op)], sized(len(path)), path)
            if isinstance(op, Write):
                sent += (sized(len(op.data)), op.data, sized(op.version))
            elif isinstance(op, Create):
                acl = acl or _acl(self.acl)
                sent += (sized(len(op.data)), op.data, acl, sized(_EPHEMERAL if op.ephemeral else 0))
            else:
                sent.append(sized(op.version) if isinstance(op, Check) else _ANY_VERSION)
        sent.append(_END)
        return b"".join(sent)

    @classmethod
    def deserialize(cls, answer: bytes, offset: int) -> list[bool | KazooException]:
        """Return True for each operation that was done; where the multi was refused, an error for each."""
        results: list[bool | KazooException] = []
        kind, done, _ = HEADER.unpack_from(answer, offset)
        while not done:
            offset += HEADER.size
            result: bool | KazooException = True
            if kind == _KINDS[Write]:
                offset += STAT.size
            elif kind == _KINDS[Create]:
                (length,) = INT.unpack_from(answer, offset)
                offset += INT.size + length
            elif kind == -1:
                result = error_of(INT.unpack_from(answer, offset)[0])
                offset += INT.size
            results.append(result)
            kind, done, _ = HEADER.unpack_from(answer, offset)
        return results


def write_async(client: KazooClient, ops: Sequence[Op]) -> Any:
    """Send operations in one multi; return kazoo's asynchronous result: one for each, an error for those refused."""
    rooted = ops
    if client.chroot:
        rooted = [replace(op, path=with_chroot(client.chroot, op.path)) for op in ops]
    try:
        return send_request(client, MultiWrite(tuple(rooted), tuple(client.default_acl or OPEN_ACL_UNSAFE)))
    except MissingNameError:
        return transaction_of(client, ops).commit_async()


def make_above_chroot(client: KazooClient, path: str) -> Any:
    """Make a node at a path that does not begin at the client's chroot; return kazoo's asynchronous result.

    Raises:
        MissingNameError: kazoo sends no requests but its own.
    """
    return send_request(client, MultiWrite((Create(path),), tuple(OPEN_ACL_UNSAFE)))


def transaction_of(client: KazooClient, ops: Sequence[Op]) -> Any:
    """Return kazoo's transaction of operations, which is committed by itself."""
    transaction = client.transaction()
    for op in ops:
        match op:
            case Check():
                transaction.check(op.path, op.version)
            case Create():
                transaction.create(op.path, op.data, ephemeral=op.ephemeral)
            case Write():
                transaction.set_data(op.path, op.data, op.version)
            case Delete():
                transaction.delete(op.path)
    return transaction


def _acl(acl: Sequence[Any]) -> bytes:
    entries = [INT.pack(one.perms) + _text(one.id.scheme) + _text(one.id.id) for one in acl]
    return b"".join([INT.pack(len(acl)), *entries])


def _text(text: str) -> bytes:
    return INT.pack(len(text.encode())) + text.encode()


NODES_A_READ = 128
"""Nodes in one request: nodes of a numerous kind have up to 32 KiB, and the server holds the whole answer."""

_GET = 4


@dataclass(frozen=True, slots=True)
class MultiRead:
    """The request for nodes at absolute paths, as kazoo's connection sends and reads it."""

    paths: tuple[str, ...]

    type = 22

    def serialize(self) -> bytearray:
        """Return the bytes of the request."""
        head, end = HEADER.pack(_GET, False, -1), HEADER.pack(-1, True, -1)
        sent: bytearray = bytearray()
        for name in self.paths:
            path = name.encode()
            sent += b"%b%b%b\0" % (head, INT.pack(len(path)), path)
        sent += end
        return sent

    @classmethod
    def deserialize(cls, answer: bytes, offset: int) -> list[Found | KazooException]:
        """Return the nodes; for one that cannot be read, the error."""
        found: list[Found | KazooException] = []
        kind, done, _ = HEADER.unpack_from(answer, offset)
        while not done:
            offset += HEADER.size
            (number,) = INT.unpack_from(answer, offset)
            offset += INT.size
            if kind == _GET:
                # Its data, of which there are -1 bytes where it has none.
                end = offset + max(0, number)
                found.append(Found(answer[offset:end], ZnodeStat._make(STAT.unpack_from(answer, end))))
                offset = end + STAT.size
            else:
                found.append(error_of(number))
            kind, done, _ = HEADER.unpack_from(answer, offset)
        return found


def read_async(client: KazooClient, paths: Sequence[str]) -> list[Any]:
    """Ask for nodes, several in a request; return kazoo's asynchronous results, each a list of nodes.

    Raises:
        MissingNameError: kazoo sends no requests but its own.
    """
    known = [with_chroot(client.chroot, path) for path in paths]
    return [
        send_request(client, MultiRead(tuple(known[start : start + NODES_A_READ])))
        for start in range(0, len(paths), NODES_A_READ)
    ]
