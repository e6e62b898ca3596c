"""Tells of each change of a node, as kazoo's `DataWatch` does, which waits for ZooKeeper without a time limit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kazoo.protocol.states import EventType, KazooState

from kinesis_trident.checkpoint.errors import CheckpointError
from kinesis_trident.checkpoint.zookeeper.operations import Found
from kinesis_trident.checkpoint.zookeeper.session import Session

log = logging.getLogger(__name__)

_UNSEEN = -1


class NodeWatch:
    """A watch that survives lost connections and sessions; kazoo's threads tell of the changes.

    Args:
        session: with the deadline of each look.
        path: of the node, which need not be there.
        tell: is called now, and at each change, with the node, None where there is none; quick. False ends the watch.

    Raises:
        CheckpointError: the first look was not answered.
    """

    def __init__(self, session: Session, path: str, tell: Callable[[Found | None], object]) -> None:
        self._session = session
        self._path = path
        self._tell = tell
        self._lock = session.client.handler.lock_object()
        self._seen: int | None = _UNSEEN
        self._ended = False
        session.client.add_listener(self._on_state)
        try:
            self._look()
        except BaseException:
            self._end()
            raise

    def _look(self) -> None:
        # One at a time: an older node must not be told after a newer one.
        with self._lock:
            if self._ended:
                return
            found = self._session.read_watched(self._path, self._on_event)
            version = found.stat.mzxid if found is not None else None
            if version != self._seen:
                self._seen = version
                if self._tell(found) is False:
                    self._end()

    def _end(self) -> None:
        self._ended = True
        self._session.client.remove_listener(self._on_state)

    def _look_again(self) -> None:
        try:
            self._look()
        except CheckpointError as error:
            # Once there is a connection again, the next look comes by itself.
            log.info("%s is not watched for now: %s", self._path, error)

    def _on_event(self, event: Any) -> None:
        # A lost connection ends the watch of the server; the next one begins another.
        if event.type != EventType.NONE:
            self._look_again()

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            # In a separate thread, because this one is the connection's own.
            self._session.client.handler.spawn(self._look_again)
