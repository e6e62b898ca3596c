"""Numbers of tasks: what each `parallelism_hint` of a topology is about, and the moves that it makes.

A hint is the number of tasks of the operations above it; the nearest grouping above still says which tuple goes to
which task. Where a stream has branched since that grouping, the tuples of the hint's branch are moved once more, by the
same grouping: the other branches keep their tasks, and what they share runs once.
"""

from __future__ import annotations

from dataclasses import replace

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.moves import Grouping, Move
from kinesis_trident.trident.build.graph import DeclaredNodes, Graph
from kinesis_trident.trident.build.nodes import (
    AggregateNode,
    HintNode,
    MergeNode,
    PersistentAggregateNode,
    PersistNode,
    RepartitionNode,
    RowNode,
    SpoutNode,
    TopologyNode,
    TransformNode,
    UpdateNode,
    WindowNode,
)

_Moving = RepartitionNode | AggregateNode | PersistentAggregateNode | MergeNode


def hint_node(node: TopologyNode, tasks: object) -> HintNode:
    """Make the node of a number of tasks for the tuples of a stream.

    Raises:
        TopologyError: it is not a number of tasks, or no grouping above can have it.
    """
    name, count = _check_number(tasks)
    above = _path(node)[0]
    if isinstance(above, SpoutNode):
        msg = (
            f"{name}: this stream runs in the spout's own tasks, whose number its options maxPartitions and "
            "shardsPerTask set. Call shuffle() first"
        )
        raise TopologyError(msg)
    _check_grouping(name, above, count)
    return HintNode(name, node.schema, (node,), count)


def state_hint_node(node: UpdateNode, tasks: object) -> HintNode:
    """Make the node of a number of tasks for the update of a state.

    Raises:
        TopologyError: it is not a number of tasks, or the grouping above cannot have it.
    """
    name, count = _check_number(tasks)
    if not isinstance(node, PersistentAggregateNode):
        _check_grouping(name, _path(node.parents[0])[0], count)
    return HintNode(name, node.schema, (node,), count, of_state=True)


def resolve_hints(graph: Graph) -> tuple[Graph, dict[TopologyNode, TopologyNode]]:
    """Return the graph with the numbers of its hints, and without these; and what stands there for each node.

    Raises:
        TopologyError: the tuples of a branch can no longer be moved by the grouping above it.
    """
    hints = _Hints(graph)
    made = graph.changed(hints.change)
    declared = DeclaredNodes()
    for node, new in made.items():
        if not hints.is_split(node):
            declared.add(new)
    numbered = Graph(declared.nodes)
    taken = _taken_by_task(numbered)
    merged = numbered.changed(lambda node, new: _by_task(new) if node in taken else new)
    final = {node: merged.get(new, new) for node, new in made.items()}
    return Graph(merged.values(), (final[end] for end in graph.ends)), final


class _Hints:
    """The numbers of tasks that the hints of a graph give to nodes, and to moves between two of them."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._without_effect: set[TopologyNode] = set()
        for node in reversed(graph.nodes):
            if isinstance(node, HintNode) and not self._consumers(node):
                self._without_effect.add(node)
        self._tasks: dict[TopologyNode, int] = {}
        self._moves: dict[tuple[TopologyNode, TopologyNode], HintNode] = {}
        for node in graph.nodes:
            if isinstance(node, HintNode):
                self._place(node)

    def change(self, node: TopologyNode, new: TopologyNode) -> TopologyNode:
        """Return what stands for a node, of which `new` has the parents that stand for its own."""
        parents = tuple(
            self._moved(self._moves[parent, node], parent, made) if (parent, node) in self._moves else made
            for parent, made in zip(node.parents, new.parents, strict=True)
        )
        if isinstance(node, HintNode):
            return parents[0]
        if parents != new.parents:
            new = replace(new, parents=parents)
        return _with_tasks(new, self._tasks[node]) if node in self._tasks else new

    def is_split(self, node: TopologyNode) -> bool:
        """Return whether every branch below a grouping has one of its own."""
        consumers = self._consumers(node)
        return bool(consumers) and all(
            isinstance(node, RepartitionNode) and (node, one) in self._moves for one in consumers
        )

    def _consumers(self, node: TopologyNode) -> list[TopologyNode]:
        """Return the nodes that take the tuples of a node, without the hints that nothing stands below."""
        return [one for one in self._graph.children(node) if one not in self._without_effect]

    def _place(self, hint: HintNode) -> None:
        above = hint.parents[0]
        if hint.of_state and isinstance(above, PersistentAggregateNode):
            self._tasks[above] = hint.tasks
            return
        path = _path(above.parents[0] if hint.of_state else above)
        if hint.of_state:
            path.append(above)
        elif hint not in self._without_effect:
            path.append(hint)
        branches = [at for at, node in enumerate(path[:-1]) if len(self._consumers(node)) > 1]
        if branches:
            at = branches[-1]
            self._moves[path[at], path[at + 1]] = hint
        elif _has_tasks(path[0]):
            self._tasks[path[0]] = hint.tasks
        else:
            for below in path[1:2] or self._consumers(path[0]):
                self._moves[path[0], below] = hint

    def _moved(self, hint: HintNode, parent: TopologyNode, made: TopologyNode) -> TopologyNode:
        """Return the tuples of a node moved to as many tasks as a hint says; a grouping itself is made twice."""
        if isinstance(parent, RepartitionNode):
            return _with_tasks(made, hint.tasks)
        move = parent.placed
        if move is not None and move.is_global:
            # All are in the one task that the hint can ask for.
            return made
        if move is None or move.copies:
            raise TopologyError(_lost(hint.operation, _path(parent)[0]))
        return RepartitionNode(hint.operation, made.schema, (made,), replace(move, tasks=hint.tasks))


def _check_number(tasks: object) -> tuple[str, int]:
    name = f"parallelism_hint({tasks!r})"
    if type(tasks) is not int or tasks < 1:
        msg = f"{name} needs at least 1, a whole number. Give the number of tasks"
        raise TopologyError(msg)
    return name, tasks


def _check_grouping(name: str, above: TopologyNode, tasks: int) -> None:
    """Check that the tuples below a grouping can be in that many tasks."""
    move = above.placed
    if move is not None and move.is_global:
        if tasks > 1:
            msg = (
                f"{name}: {above.operation} brings all tuples to one task. Omit the hint, or spread them with "
                "shuffle() or partition_by() first"
            )
            raise TopologyError(msg)
    elif not _has_tasks(above) and (move is None or move.copies):
        raise TopologyError(_lost(name, above))


def _lost(name: str, above: TopologyNode) -> str:
    return (
        f"{name}: the tuples cannot be distributed once more as {above.operation} did it. Call shuffle() or "
        "partition_by() first"
    )


def _path(node: TopologyNode) -> list[TopologyNode]:
    """Return the nodes from the one that distributed the tuples of a node to this."""
    path = [node]
    while isinstance(node, RowNode | HintNode | TransformNode | WindowNode) or (
        isinstance(node, AggregateNode) and node.move is None
    ):
        node = node.parents[0]
        path.append(node)
    return path[::-1]


def _taken_by_task(graph: Graph) -> set[TopologyNode]:
    """Return the nodes of which something below, before tuples are moved again, takes those of a task together."""
    found: set[TopologyNode] = set()
    for node in reversed(graph.nodes):
        if any(
            isinstance(child, PersistNode)
            or (isinstance(child, AggregateNode) and child.move is None)
            or (isinstance(child, RowNode | TransformNode | MergeNode) and child in found)
            for child in graph.children(node)
        ):
            found.add(node)
    return found


def _by_task(node: TopologyNode) -> TopologyNode:
    """Return a merge of streams whose tuples have tasks, so that what two of them have in one task is there together.

    Raises:
        TopologyError: copies are in other numbers of tasks.
    """
    if not isinstance(node, MergeNode):
        return node
    starts = [_path(parent)[0] for parent in node.parents]
    placed = [start.placed for start in starts]
    if not any(move is not None and (move.keeps_keys or move.copies) for move in placed) and not any(
        isinstance(start, MergeNode) and start.move is not None for start in starts
    ):
        return node
    copied = {
        _tasks_of(start)
        for start in starts
        if (start.placed is not None and start.placed.copies)
        or (isinstance(start, MergeNode) and start.move is not None)
    }
    if len(copied) > 1:
        msg = (
            f"{node.operation}: broadcast() copies tuples of its streams to other numbers of tasks, which what follows "
            "takes together. Give each broadcast() the same parallelism_hint"
        )
        raise TopologyError(msg)
    tasks = copied or {_tasks_of(start) for start in starts}
    return replace(node, move=Move(Grouping.DIRECT, tasks=tasks.pop() if len(tasks) == 1 else None))


def _tasks_of(node: TopologyNode) -> int | None:
    move = node.move if isinstance(node, _Moving) else None
    return None if move is None else move.tasks


def _has_tasks(node: TopologyNode) -> bool:
    """Return whether a node distributes tuples itself."""
    return isinstance(node, RepartitionNode | AggregateNode)


def _with_tasks(node: TopologyNode, tasks: int) -> TopologyNode:
    assert isinstance(node, _Moving)
    assert node.move is not None
    return replace(node, move=replace(node.move, tasks=tasks))
