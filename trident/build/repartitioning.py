"""The calls that distribute a stream's tuples over partitions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.trident.build.fields import Names, choose_fields
from kinesis_trident.trident.build.graph import Grouping, RepartitionNode, TopologyNode


class Groupings(ABC):
    """The calls that move tuples: each returns a new stream."""

    __slots__ = ()

    node: TopologyNode

    @abstractmethod
    def _of(self, node: TopologyNode) -> Self:
        """Return the stream of a node."""

    @abstractmethod
    def _name_of(self, operation: str) -> str:
        """Return the name of an operation in messages."""

    def shuffle(self) -> Self:
        """Distribute the tuples evenly."""
        return self._repartition(Grouping.SHUFFLE)

    def local_or_shuffle(self) -> Self:
        """Distribute the tuples evenly, as `shuffle` does: Spark knows no tasks that are near."""
        return self._repartition(Grouping.SHUFFLE, operation="local_or_shuffle")

    def partition_by(self, fields: Names) -> Self:
        """Bring the tuples with the same values in these fields to one partition."""
        names = choose_fields(fields, self.node.schema, "partition_by")
        if not names:
            msg = "partition_by: there are no fields. Name some, or use global_() for one partition"
            raise TopologyError(msg)
        return self._repartition(Grouping.FIELDS, names)

    def global_(self) -> Self:
        """Bring all tuples to one partition."""
        return self._repartition(Grouping.GLOBAL)

    def batch_global(self) -> Self:
        """Bring all tuples of a batch to one partition: Trident may choose another in each batch, Spark does not."""
        return self._repartition(Grouping.GLOBAL, operation="batch_global")

    def identity_partition(self) -> Self:
        """Leave each tuple in its partition."""
        return self._of(self.node)

    def broadcast(self) -> Self:
        """Bring every tuple to every partition: `parallelism_hint` of them, or as many as Spark runs in parallel."""
        return self._repartition(Grouping.BROADCAST)

    def parallelism_hint(self, partitions: int) -> Self:
        """Set the number of partitions of the last grouping before this call.

        Raises:
            TopologyError: there is none: the spout's own tasks run the stream, and its options set their number.
        """
        node = self.node
        while len(node.parents) == 1 and not isinstance(node, RepartitionNode):
            node = node.parents[0]
        if not isinstance(node, RepartitionNode) or node.grouping is Grouping.GLOBAL or partitions < 1:
            msg = (
                f"parallelism_hint({partitions}) needs at least 1, after a grouping. This stream runs in the "
                "spout's own tasks (its options maxPartitions and shardsPerTask set their number). Call "
                "shuffle() first"
            )
            raise TopologyError(msg)
        node.partitions = partitions
        return self

    def _repartition(
        self, grouping: Grouping, fields: tuple[str, ...] = (), operation: str | None = None
    ) -> Self:
        name = self._name_of(operation or grouping.value)
        return self._of(RepartitionNode(name, self.node.schema, (self.node,), grouping, fields))
