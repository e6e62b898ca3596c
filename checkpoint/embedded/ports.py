"""Free loopback ports for servers of tests and demonstrations."""

from __future__ import annotations

import random
import socket

from kinesis_trident.checkpoint.errors import EmbeddedServerError

__all__ = ["LOOPBACK", "free_port", "is_free"]

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A loopback port that nothing listens on, outside the range outgoing connections take theirs from.

    So a server that is stopped finds its port free again when it is restarted.

    Raises:
        EmbeddedServerError: a hundred random ports were all taken.
    """
    # Not from the generator that everything shares: two processes that seed it alike would race for the same ports.
    for port in random.SystemRandom().sample(range(15_000, 32_000), 100):
        if is_free(port):
            return port
    msg = f"no free port on {LOOPBACK} between 15000 and 32000: stop other servers, or name a port"
    raise EmbeddedServerError(msg)


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        # As servers do: connections of a former server that still wind down are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
