"""Ends a session on the server while its client still has it."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

from kazoo.client import KazooClient
from kazoo.protocol.serialization import Close, Connect, int_struct

__all__ = ["expire"]

_CLOSE_XID = 1
_ANSWER = struct.Struct(">iiiq")
"""The size, the version of the protocol, the timeout of the session (0: there is none), and the session."""


def expire(client: KazooClient) -> None:
    """Have the server end the session, from a second connection, as the ZooKeeper FAQ advises.

    The client loses its connection to the second one, and comes back within milliseconds to take the session again:
    so the request to close it is sent together with that for the session, until the server knows of none.
    """
    session, password = client.client_id
    connect = Connect(0, 0, 10_000, session, password, False).serialize()
    close = int_struct.pack(_CLOSE_XID) + int_struct.pack(Close.type)
    request = b"".join(int_struct.pack(len(one)) + one for one in (connect, close))
    while _answer(client.hosts[0], request):
        continue


def _answer(server: tuple[str, int], request: bytes) -> bool:
    """Return False if the server says that there is no such session."""
    said = b""
    with socket.create_connection(server) as twin, suppress(ConnectionError):
        twin.sendall(request)
        said = b"".join(iter(lambda: twin.recv(4096), b""))
    return len(said) < _ANSWER.size or _ANSWER.unpack_from(said)[2] > 0
