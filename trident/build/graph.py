"""The graph of a topology's nodes: what was declared, and what is below each node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql.types import StructType

from kinesis_trident.trident.build.nodes import (
    PassingNode,
    RowNode,
    SpoutNode,
    TopologyNode,
    WindowNode,
)
from kinesis_trident.trident.order import ORDER_FIELD, in_order
from kinesis_trident.trident.steps.tuple_steps import TridentStep


@dataclass(eq=False, slots=True)
class DeclaredNodes:
    """The nodes of a topology so far: a call adds its own once all of them are checked, so a refused one adds none."""

    nodes: dict[TopologyNode, None] = field(default_factory=dict)
    ends: dict[TopologyNode, None] = field(default_factory=dict)
    """The nodes that calls returned. The others are parts of the next one below."""

    def add(self, node: TopologyNode) -> None:
        """Add the node of a call, and those above it that are not there yet."""
        self.nodes |= dict.fromkeys(_above(node, self.nodes))
        self.ends[node] = None

    @property
    def graph(self) -> Graph:
        """The graph of all nodes so far."""
        return Graph(self.nodes, self.ends)


class Graph:
    """Nodes, each after those above it, and what is below each; `ends` are those that calls of the user returned."""

    def __init__(self, nodes: Iterable[TopologyNode] = (), ends: Iterable[TopologyNode] = ()) -> None:
        self.nodes = tuple(nodes)
        self.ends = frozenset(ends)
        children: dict[TopologyNode, list[TopologyNode]] = {}
        for node in self.nodes:
            for parent in node.parents:
                children.setdefault(parent, []).append(node)
        self._children = {node: tuple(found) for node, found in children.items()}
        self._ordered: set[TopologyNode] = set()
        for node in reversed(self.nodes):
            if isinstance(node, WindowNode) or any(self.reads_order(one) for one in self.children(node)):
                self._ordered.add(node)

    def children(self, node: TopologyNode) -> tuple[TopologyNode, ...]:
        """Return the nodes that take the tuples of a node; one that takes them twice is there twice."""
        return self._children.get(node, ())

    @property
    def spouts(self) -> list[SpoutNode]:
        """The spouts whose tuples come in batches."""
        return [node for node in self.nodes if isinstance(node, SpoutNode) and node.in_batches]

    def below(self, spout: SpoutNode) -> list[TopologyNode]:
        """Return a spout and all nodes below it."""
        return [node for node in self.nodes if spout in node.spouts]

    def is_ordered(self, node: TopologyNode) -> bool:
        """Return whether the output carries the column `ORDER`, for a window below."""
        return node in self._ordered

    def reads_order(self, node: TopologyNode) -> bool:
        """Return whether a node reads the order of its input, for itself or for a node below."""
        return node.reads_order or (isinstance(node, PassingNode) and self.is_ordered(node))

    def columns(self, node: TopologyNode) -> StructType:
        """Return the fields of a node's output, and the hidden column `ORDER` if it carries that."""
        return StructType([*node.schema, ORDER_FIELD]) if self.is_ordered(node) else node.schema

    def read_of(self, node: TopologyNode, parent: TopologyNode) -> list[str]:
        """Return the columns of a whole tuple of a parent: with its order, if the node reads that."""
        return list((self.columns(parent) if self.reads_order(node) else parent.schema).names)

    def step_of(self, node: RowNode | SpoutNode) -> TridentStep:
        """Return the step of a node, which keeps the order of its tuples if the output carries it."""
        if isinstance(node, SpoutNode):
            return node.ordering_step
        return in_order(node.step) if self.is_ordered(node) else node.step

    def changed(
        self, change: Callable[[TopologyNode, TopologyNode], TopologyNode]
    ) -> dict[TopologyNode, TopologyNode]:
        """Return what stands for each node: `change` gets it, and the same node below what stands for its parents."""
        made: dict[TopologyNode, TopologyNode] = {}
        for node in self.nodes:
            parents = tuple(made.get(parent, parent) for parent in node.parents)
            made[node] = change(node, node if parents == node.parents else replace(node, parents=parents))
        return made


def _above(node: TopologyNode, known: Mapping[TopologyNode, object]) -> list[TopologyNode]:
    """Return a node and those above it that are not known, each after its own parents."""
    found: dict[TopologyNode, None] = {}
    todo = [node]
    while todo:
        one = todo.pop()
        missing = [parent for parent in one.parents if parent not in known and parent not in found]
        if missing:
            todo += [one, *missing]
        elif one not in known:
            found.setdefault(one)
    return list(found)
