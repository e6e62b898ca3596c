"""Reads many nodes in one request: ZooKeeper's `multiRead` (since 3.6), which kazoo does not have.

A separate request for each node is so much work for the client that thousands of them take seconds. The format is
that of `org.apache.zookeeper.MultiOperationRecord` and `MultiResponse`: a header before each operation and each
result (type, whether that was the last, error).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, KazooException
from kazoo.protocol.paths import _prefix_root
from kazoo.protocol.serialization import GetData, int_struct, multiheader_struct, read_buffer, stat_struct
from kazoo.protocol.states import ZnodeStat

from kinesis_trident.checkpoint.zookeeper.operations import Found

__all__ = ["NODES_A_READ", "MultiRead", "read_async"]

NODES_A_READ = 128
"""Nodes in one request: nodes of a numerous kind have up to 32 KiB, and the server holds the whole answer."""


@dataclass(frozen=True, slots=True)
class MultiRead:
    """The request for nodes at absolute paths, as kazoo's connection sends and reads it."""

    paths: tuple[str, ...]

    type = 22

    def serialize(self) -> bytearray:
        """Return the bytes of the request."""
        head, end = multiheader_struct.pack(GetData.type, False, -1), multiheader_struct.pack(-1, True, -1)
        sent: bytearray = bytearray()
        for name in self.paths:
            path = name.encode()
            sent += b"%b%b%b\0" % (head, int_struct.pack(len(path)), path)
        sent += end
        return sent

    @classmethod
    def deserialize(cls, answer: bytes, offset: int) -> list[Found | KazooException]:
        """Return the nodes; for one that cannot be read, the error."""
        found: list[Found | KazooException] = []
        kind, done, _ = multiheader_struct.unpack_from(answer, offset)
        while not done:
            offset += multiheader_struct.size
            if kind == GetData.type:
                data, offset = read_buffer(answer, offset)
                found.append(Found(data, ZnodeStat._make(stat_struct.unpack_from(answer, offset))))
                offset += stat_struct.size
            else:
                found.append(EXCEPTIONS[int_struct.unpack_from(answer, offset)[0]]())
                offset += int_struct.size
            kind, done, _ = multiheader_struct.unpack_from(answer, offset)
        return found


def read_async(client: KazooClient, paths: Sequence[str]) -> list[Any]:
    """Ask for nodes, several in a request; return kazoo's asynchronous results, each a list of nodes."""
    results = []
    for start in range(0, len(paths), NODES_A_READ):
        some = tuple(paths[start : start + NODES_A_READ])
        if client.chroot:
            some = tuple(_prefix_root(client.chroot, path) for path in some)
        result = client.handler.async_result()
        client._call(MultiRead(some), result)
        results.append(result)
    return results
