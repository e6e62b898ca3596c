"""Each update of a topology has a place of its own.

A value in a store says which batch wrote it, not which update. Where two of one batch meet under a key, the second
takes what the first has written for the work of an earlier attempt, and counts go missing without an error.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from trident.errors import TopologyError
from trident.graph import Node, PersistentAggregateNode, SpoutNode, UpdateNode
from trident.stores.factory import MapStateFactory

__all__ = ["check_places"]


def check_places(parts: Mapping[SpoutNode, Sequence[Node]]) -> None:
    """Check the updates of all streams. Global aggregates of one stream may share a place under several `globalKey`s.

    Raises:
        TopologyError: two updates go to one place.
    """
    updates = {
        node: spout for spout, nodes in parts.items() for node in nodes if isinstance(node, UpdateNode)
    }
    taken: dict[Hashable, UpdateNode] = {}
    global_keys: dict[Hashable, tuple[SpoutNode, set[str]]] = {}
    for node, spout in updates.items():
        place = node.factory.place
        first = taken.setdefault(place, node)
        own = _global_key(node)
        if first is node:
            if own is not None:
                global_keys[place] = (spout, {own})
            continue
        known = global_keys.get(place)
        if own is None or known is None or known[0] is not spout or own in known[1]:
            msg = (
                f"start: {first.operation} and {node.operation} update one state, a {type(node.factory).__name__} in "
                "one place: in each batch the second would take what the first has written for its own. Give each a "
                "factory with its own keyPrefix, table or folder"
            )
            raise TopologyError(msg)
        known[1].add(own)


def _global_key(node: UpdateNode) -> str | None:
    """The one key that a node updates, where that is known."""
    if (
        isinstance(node, PersistentAggregateNode)
        and not node.keys
        and isinstance(node.factory, MapStateFactory)
    ):
        return node.factory.global_key
    return None
