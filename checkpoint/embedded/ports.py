"""Free loopback ports for servers of tests and demonstrations."""

from __future__ import annotations

import random
import socket

from kinesis_trident.checkpoint.errors import EmbeddedServerError

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """Return an unused loopback port outside the range of outgoing connections' ports.

    So a stopped server finds its port free again when it restarts.

    Raises:
        EmbeddedServerError: a hundred random ports were all taken.
    """
    # Not the shared generator: two processes with the same seed would race for the same ports.
    for port in random.SystemRandom().sample(range(15_000, 32_000), 100):
        if is_free(port):
            return port
    msg = f"there is no free port on {LOOPBACK} between 15000 and 32000. Stop other servers, or name a port"
    raise EmbeddedServerError(msg)


def is_free(port: int) -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket() as probe:
        # As servers do: closing connections of a former server do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
