"""The request that a running query ends after the current batch, and the run's answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kazoo.recipe.watchers import DataWatch

from kinesis_trident.checkpoint.errors import CorruptNodeError
from kinesis_trident.checkpoint.model.codec import decode, encode
from kinesis_trident.checkpoint.model.nodes import StopNode
from kinesis_trident.checkpoint.store.fenced_nodes import FencedNodes
from kinesis_trident.checkpoint.zookeeper.operations import EXISTS, MISSING, Create, Delete, Refused, Write

__all__ = ["StopRequests"]

log = logging.getLogger(__name__)


class StopRequests:
    """The node `stop`: ephemeral, made by the requesting process, answered by the run that it names."""

    def __init__(self, nodes: FencedNodes) -> None:
        self._nodes = nodes
        self._session = nodes.session
        self._layout = nodes.layout

    def ask(self, epoch: int) -> None:
        """Ask the run of `epoch` to plan nothing more; the request ends with this process's session."""
        request = Create(self._layout.stop, encode(StopNode(epoch=epoch)), ephemeral=True)
        try:
            self._session.commit([request])
        except Refused as refused:
            if refused.kind is not EXISTS:
                raise
            self._session.commit([Delete(self._layout.stop), request])

    def answer(self, settled: int, epoch: int) -> None:
        """Answer that this run plans nothing more, and the settled txid. Does nothing if the request is gone."""
        try:
            self._nodes.commit(
                [Write(self._layout.stop, encode(StopNode(epoch=epoch, settled=settled)))], epoch
            )
        except Refused as refused:
            if refused.kind is not MISSING:
                raise

    def watch(self, callback: Callable[[StopNode | None], object]) -> None:
        """Call `callback` with the current request (None for none) and at each change; it must be quick."""

        def look(data: bytes | None, _stat: Any) -> None:
            try:
                request = decode(self._layout.stop, data, StopNode) if data else None
            except CorruptNodeError as error:
                # Any process may make a request.
                log.warning("an unreadable request to stop is ignored: %s", error)
                request = None
            callback(request)

        DataWatch(self._session.client, self._layout.stop, look)
