"""A client that is there for as long as its owner serves, whatever ends one of them."""

from __future__ import annotations

import contextlib
import threading

from kazoo.client import KazooClient

from kinesis_trident.checkpoint.zookeeper.client import ZooKeeperConfig, connect, disconnect, is_usable


class KeptClient:
    """The client of a server: it connects when it is first asked for, and again once it has ended.

    kazoo's threads connect again by themselves after an outage; a refused login ends them, or a defect, and such a
    client answers nothing any more.
    """

    def __init__(self, config: ZooKeeperConfig) -> None:
        self.config = config
        self._client: KazooClient | None = None
        self._lock = threading.Lock()

    def get(self) -> KazooClient:
        """Return the client, connected.

        Raises:
            CheckpointError: as `connect`.
        """
        with self._lock:
            if self._client is None or not is_usable(self._client):
                self._end()
                self._client = connect(self.config)
            return self._client

    def close(self) -> None:
        """Close the connection; who asks for a client later gets another one."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            # One that has ended by itself may be closed already.
            with contextlib.suppress(Exception):
                disconnect(client)
