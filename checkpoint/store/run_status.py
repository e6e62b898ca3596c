"""The node in which a run says what it sees: written without waiting, so that it never holds a query up."""

from __future__ import annotations

from typing import Any

from kazoo.exceptions import NodeExistsError, NoNodeError

from kinesis_trident.checkpoint.model.codec import encode
from kinesis_trident.checkpoint.model.run_status import StatusNode
from kinesis_trident.checkpoint.store.fenced_nodes import FencedNodes

__all__ = ["RunStatus"]


class RunStatus:
    """The node `status`, of the newest run."""

    def __init__(self, nodes: FencedNodes) -> None:
        self._nodes = nodes
        self._client = nodes.session.client
        self._layout = nodes.layout
        self._exists = True
        self._pending: Any = None

    def tell(self, node: StatusNode) -> None:
        """Write the node if its epoch is the newest; waits for nothing and raises nothing.

        While ZooKeeper does not answer, nothing is sent: the node is information, and the next one replaces it.
        """
        if (self._pending is not None and not self._pending.ready()) or not self._client.connected:
            return
        self.learn()
        data = encode(node)
        transaction = self._client.transaction()
        transaction.check(self._layout.epoch, node.epoch)
        if self._exists:
            transaction.set_data(self._layout.status, data)
        else:
            transaction.create(self._layout.status, data)
        self._pending = transaction.commit_async()

    def get(self) -> StatusNode | None:
        """Return what the newest run that said anything has said; None if none has."""
        found = self._nodes.fetch(self._layout.status, StatusNode)
        return found.node if found else None

    def learn(self) -> bool:
        """Take in the answer to the last write; return True if it was refused, because the node exists or does not."""
        if self._pending is None or not self._pending.ready():
            return False
        pending, self._pending = self._pending, None
        refused = pending.successful() and any(
            isinstance(result, NoNodeError | NodeExistsError) for result in pending.get()
        )
        self._exists = self._exists is not refused
        return refused
