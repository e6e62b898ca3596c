"""Sends many operations in one multi, for a fraction of the work that kazoo's `transaction()` is for the client.

A batch of thousands of shards is settled by thousands of operations: kazoo checks and joins each path anew, and makes
several objects for each operation and for each answer. The format is that of
`org.apache.zookeeper.MultiOperationRecord` and `MultiResponse`: a header before each operation and each result (type,
whether that was the last, error).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, KazooException
from kazoo.protocol.paths import _prefix_root
from kazoo.protocol.serialization import (
    CheckVersion,
    SetData,
    Transaction,
    int_struct,
    multiheader_struct,
    stat_struct,
    write_string,
)
from kazoo.protocol.serialization import Create as CreateRequest
from kazoo.protocol.serialization import Delete as DeleteRequest
from kazoo.security import OPEN_ACL_UNSAFE
from msgspec.structs import replace

from kinesis_trident.checkpoint.zookeeper.operations import Check, Create, Delete, Op, Write

__all__ = ["MultiWrite", "write_async"]

_KINDS = {
    Check: CheckVersion.type,
    Create: CreateRequest.type,
    Delete: DeleteRequest.type,
    Write: SetData.type,
}
_HEADERS = {op: multiheader_struct.pack(kind, False, -1) for op, kind in _KINDS.items()}
_END = multiheader_struct.pack(-1, True, -1)
_ANY_VERSION = int_struct.pack(-1)
_EPHEMERAL = 1


@dataclass(frozen=True, slots=True)
class MultiWrite:
    """The request for operations on absolute paths, as kazoo's connection sends and reads it.

    `acl`: of the nodes that it makes.
    """

    ops: tuple[Op, ...]
    acl: tuple[Any, ...]

    type = Transaction.type

    def serialize(self) -> bytes:
        """Return the bytes of the request."""
        sized, acl = int_struct.pack, b""
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
        kind, done, _ = multiheader_struct.unpack_from(answer, offset)
        while not done:
            offset += multiheader_struct.size
            result: bool | KazooException = True
            if kind == SetData.type:
                offset += stat_struct.size
            elif kind == CreateRequest.type:
                (length,) = int_struct.unpack_from(answer, offset)
                offset += int_struct.size + length
            elif kind == -1:
                result = EXCEPTIONS[int_struct.unpack_from(answer, offset)[0]]()
                offset += int_struct.size
            results.append(result)
            kind, done, _ = multiheader_struct.unpack_from(answer, offset)
        return results


def write_async(client: KazooClient, ops: Sequence[Op]) -> Any:
    """Send operations in one multi; return kazoo's asynchronous result: as `MultiWrite.deserialize`."""
    result = client.handler.async_result()
    client._call(
        MultiWrite(tuple(_rooted(client, ops)), tuple(client.default_acl or OPEN_ACL_UNSAFE)), result
    )
    return result


def _rooted(client: KazooClient, ops: Sequence[Op]) -> Sequence[Op]:
    if not client.chroot:
        return ops
    return [replace(op, path=_prefix_root(client.chroot, op.path)) for op in ops]


def _acl(acl: Sequence[Any]) -> bytes:
    entries = [
        int_struct.pack(one.perms) + write_string(one.id.scheme) + write_string(one.id.id) for one in acl
    ]
    return b"".join([int_struct.pack(len(acl)), *entries])
