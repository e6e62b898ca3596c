"""Keeps small messages between Spark and its Python processes from waiting for each other.

Spark writes to a Python worker in several small parts. The kernel sends the second only when the first is acknowledged
(Nagle's algorithm, RFC 896), and the kernel of the worker puts an acknowledgement off for 40 ms, hoping for an answer
to send it with (RFC 1122, 4.2.3.2). A worker does not answer before it has its whole input, so each task waits that
long.

py4j's server in Spark writes a large answer in parts of 8 KB, and the last one waits in the same way
(`private_names.pickled_task`).
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from io import BufferedReader

_FOLDER = "/proc/self/fd"
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)


def acknowledge_at_once() -> None:
    """Acknowledge what the TCP connections of this process have received, and what they receive next, without delay.

    The kernel returns to delays when it sees fit: call this before each wait. It does nothing where the system is not
    Linux.
    """
    # Making a socket object would set the default timeout on the connection itself.
    if _QUICKACK is None or socket.getdefaulttimeout() is not None or not os.path.isdir(_FOLDER):
        return
    for name in os.listdir(_FOLDER):
        # Other threads open and close files meanwhile.
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                _set(os.dup(int(name)), _QUICKACK)


def _set(fd: int, option: int) -> None:
    with socket.socket(fileno=fd) as connection:
        if connection.type is socket.SOCK_STREAM and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, option, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class PromptLines:
    """Reads lines from a connection, and acknowledges each part of a line as it comes.

    Args:
        lines: what `socket.makefile("rb")` returned.
    """

    def __init__(self, connection: socket.socket, lines: BufferedReader) -> None:
        self._connection = connection
        self._lines = lines

    def readline(self) -> bytes:
        """Return the next line with its end, or what there is when the other end has closed the connection."""
        parts: list[bytes] = []
        while True:
            part = self._lines.peek()
            if _QUICKACK is not None:
                self._connection.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
            if not part or b"\n" in part:
                return b"".join([*parts, self._lines.readline()])
            parts.append(self._lines.read(len(part)))

    def close(self) -> None:
        """Close the stream that the lines come from."""
        self._lines.close()
