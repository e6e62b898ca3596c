"""What the serializer of a state can keep, said when a topology is built or of the record that has it.

After the verdict of a batch it would be too late: the batch would fail, and each replay of it, too.
"""

from __future__ import annotations

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

from trident.errors import TopologyError
from trident.frames import arrow
from trident.graph import Node, RowNode
from trident.state import StateFactory
from trident.steps import FiniteStep
from trident.stores.factory import MapStateFactory
from trident.stores.serializers import JsonSerializer, MsgpackSerializer, Serializer

__all__ = ["check_kind", "with_storable_values"]

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
            "trident.stores.Serializer that takes it"
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
