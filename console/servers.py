"""Runs an embedded server in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from checkpoint.embedded import EmbeddedKinesis, EmbeddedZooKeeper
from console.errors import ConsoleError

__all__ = ["serve"]

_LOOK_SECONDS = 1.0


def serve(server: EmbeddedZooKeeper | EmbeddedKinesis) -> None:
    """Start the server, say where it is, and stop it when this process is asked to end.

    Raises:
        ConsoleError: the server ended by itself.
        checkpoint.errors.CheckpointError: it could not be started.
    """
    ended = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        ended.set()

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    with server:
        where = server.hosts if isinstance(server, EmbeddedZooKeeper) else server.endpoint_url
        print(f"{server.name} at {where}; Ctrl-C stops it", flush=True)
        while not ended.wait(_LOOK_SECONDS):
            if not server.running:
                msg = f"the embedded {server.name} at {where} has ended by itself"
                raise ConsoleError(msg)
