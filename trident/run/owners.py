"""The owners of a stream's states: a name for each update, and the newest batch that its state certainly holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kinesis_trident.trident.build.graph import Node, PersistentAggregateNode, UpdateNode
from kinesis_trident.trident.stores.factory import MapStateFactory
from kinesis_trident.trident.stores.ownership import GLOBALS, Owner

__all__ = ["name_updates", "owners_of"]


def name_updates(nodes: Sequence[Node]) -> dict[UpdateNode, str]:
    """Return a name for each update that stays the same when the query starts again, and other updates change.

    Updates that differ in nothing but the address of their store are counted, in the order of their declaration.
    """
    names: dict[UpdateNode, str] = {}
    seen: Counter[str] = Counter()
    for node in nodes:
        if isinstance(node, UpdateNode):
            name = _described(node)
            seen[name] += 1
            names[node] = name if seen[name] == 1 else f"{name} #{seen[name]}"
    return names


def owners_of(
    names: Mapping[UpdateNode, str],
    application: str,
    stream: str,
    applied: Mapping[str, int],
    merged: Iterable[str] = (),
) -> dict[UpdateNode, Owner]:
    """Return the owner of each update's state; `applied` is by the names of the updates. The others: see `Owner`."""
    everyone = frozenset(names.values()) | ({GLOBALS} if any(map(is_global, names)) else set())
    return {
        node: Owner(
            application, stream, name, everyone, is_global(node), applied.get(name, 0), frozenset(merged)
        )
        for node, name in names.items()
    }


def is_global(node: UpdateNode) -> bool:
    """Return True if an update changes one key only, that of a global aggregate."""
    return isinstance(node, PersistentAggregateNode) and not node.keys


def _described(node: UpdateNode) -> str:
    words = [node.operation]
    factory = node.factory
    if isinstance(node, PersistentAggregateNode) and node.keys:
        words.append(f"by {','.join(node.keys)}")
    elif is_global(node) and isinstance(factory, MapStateFactory):
        words.append(f"as {factory.global_key}")
    if isinstance(factory, MapStateFactory) and factory.label:
        words.append(f"in {factory.label}")
    return " ".join(words)
