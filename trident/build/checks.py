"""What the serializer of a state can keep, said when a topology is built or of the record that has it.

After the verdict of a batch it would be too late: the batch would fail, and each replay of it, too.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CharType,
    DataType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
    VarcharType,
)

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.trident.build.fields import arrow
from kinesis_trident.trident.build.graph import Node, PersistentAggregateNode, RowNode, SpoutNode, UpdateNode
from kinesis_trident.trident.build.lambdas import name_of
from kinesis_trident.trident.state import StateFactory, StateType
from kinesis_trident.trident.steps.tuple_steps import FiniteStep
from kinesis_trident.trident.stores.factory import MapStateFactory
from kinesis_trident.trident.stores.serializers import JsonSerializer, MsgpackSerializer, Serializer

__all__ = ["check_factory", "check_given", "check_kind", "check_places", "with_storable_values"]

_KEPT = (StringType, CharType, VarcharType, BooleanType, IntegralType, FloatType, DoubleType, NullType)


def check_kind(operation: str, factory: StateFactory, kind: DataType) -> None:
    """Check that a state can keep values of a type; of a serializer of the user's own nobody knows.

    Raises:
        TopologyError: it cannot.
    """
    serializer = _serializer(factory)
    if isinstance(serializer, JsonSerializer | MsgpackSerializer) and not _is_kept(kind, serializer):
        name = "json" if isinstance(serializer, JsonSerializer) else "msgpack"
        msg = (
            f"{operation}: its values are {kind.simpleString()}, which serializer={name!r} cannot store. Cast the "
            "field before (decimal to double or bigint, timestamp to bigint or string), or give the state a "
            "kinesis_trident.trident.Serializer that takes it"
        )
        raise TopologyError(msg)


def with_storable_values(
    operation: str, factory: StateFactory, kind: DataType, node: Node, read: tuple[str, ...]
) -> Node:
    """The tuples whose value a state can keep: with JSON, of fractions, NaN and infinity fail their records."""
    fractions = isinstance(kind, FloatType | DoubleType) and len(read) == 1
    if not (fractions and node.tracked and isinstance(_serializer(factory), JsonSerializer)):
        return node
    return RowNode(operation, node.schema, (node,), FiniteStep(operation, read, arrow(node.schema)))


def _serializer(factory: StateFactory) -> Serializer | None:
    return factory.serializer if isinstance(factory, MapStateFactory) else None


def _is_kept(kind: DataType, serializer: Serializer) -> bool:
    if isinstance(kind, ArrayType):
        return _is_kept(kind.elementType, serializer)
    if isinstance(kind, MapType):
        return _is_kept(kind.keyType, serializer) and _is_kept(kind.valueType, serializer)
    if isinstance(kind, StructType):
        return all(_is_kept(field.dataType, serializer) for field in kind)
    return isinstance(kind, _KEPT) or (
        isinstance(kind, BinaryType) and isinstance(serializer, MsgpackSerializer)
    )


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


def check_given(given: object, kind: type, operation: str, hint: str = "") -> None:
    """Check that what was given is an object of a class.

    Raises:
        TopologyError: it is something else, or the class of such an object; `hint` says what to do.
    """
    if isinstance(given, kind):
        return
    if isinstance(given, type):
        what = f"the class {given.__name__}"
        hint = f"give an object: {given.__name__}()" if issubclass(given, kind) else hint
    elif callable(given):
        what = f"the function {name_of(given)}"
    else:
        what = repr(given)
    msg = f"{operation}: takes a {kind.__name__}, not {what}{f'; {hint}' if hint else ''}"
    raise TopologyError(msg)


def check_factory(factory: object, operation: str) -> None:
    """Check that something makes states, and says of which kind in a way that can be understood.

    Raises:
        TopologyError: it does not.
    """
    check_given(
        factory,
        StateFactory,
        operation,
        "a state is given as what makes it: RedisState.opaque('redis://...')",
    )
    kind = getattr(factory, "kind", None)
    if kind is not None and not isinstance(kind, StateType):
        names = ", ".join(f"StateType.{one.name}" for one in StateType)
        msg = f"{operation}: {type(factory).__name__} has kind = {kind!r}; it is one of {names}, or None"
        raise TopologyError(msg)
