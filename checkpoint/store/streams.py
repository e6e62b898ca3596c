"""The streams of an application: those that share a home, and the time from which each is read."""

from __future__ import annotations

from kinesis_trident.checkpoint.errors import CheckpointError
from kinesis_trident.checkpoint.model.nodes import StartNode, StreamsNode
from kinesis_trident.checkpoint.store.atomic_writes import Unit, UnitWriter
from kinesis_trident.checkpoint.store.fenced_nodes import FencedNodes
from kinesis_trident.checkpoint.store.fencing import RACES
from kinesis_trident.checkpoint.zookeeper.operations import EXISTS, Refused

__all__ = ["StreamStore"]


class StreamStore:
    """The node `streams`, and a node for each stream whose LATEST was resolved to a time."""

    def __init__(self, nodes: FencedNodes, writer: UnitWriter) -> None:
        self._nodes = nodes
        self._layout = nodes.layout
        self._writer = writer

    def get(self) -> StreamsNode | None:
        """Return the streams of a home of several; None before the first start."""
        found = self._nodes.fetch(self._layout.streams, StreamsNode)
        return found.node if found else None

    def put(self, node: StreamsNode, epoch: int) -> None:
        """Store the streams of this home: the last writer of the newest run wins.

        Raises:
            FencedError: a newer run has taken over.
        """
        self._writer.move([Unit({self._layout.streams: node})], epoch)

    def start(self, stream: str, created: int) -> StartNode | None:
        """Return the time to which a stream's LATEST was resolved; None before it was."""
        found = self._nodes.fetch(self._layout.start_of(stream, created), StartNode)
        return found.node if found else None

    def put_start(self, stream: str, created: int, node: StartNode, epoch: int) -> StartNode:
        """Store the time to which a stream's LATEST is resolved, once; later callers get the first answer.

        Raises:
            FencedError: a newer run has taken over.
        """
        path = self._layout.start_of(stream, created)
        for _ in range(RACES):
            try:
                self._nodes.create(path, node, epoch)
            except Refused as refused:
                if refused.kind is not EXISTS:
                    raise
            else:
                return node
            found = self.start(stream, created)
            if found is not None:
                return found
        msg = f"{path} is being deleted by another process. Stop that process, and start the query again"
        raise CheckpointError(msg)
