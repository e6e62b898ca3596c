"""Merges and joins streams, and checks their fields."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.trident.build.fields import Names, choose_fields, new_fields
from kinesis_trident.trident.build.graph import JoinNode, MergeNode, Node

__all__ = ["join_node", "merge_node"]

_HOW = ("inner", "left", "right", "full")
_WIDER: tuple[tuple[type[DataType], ...], ...] = (
    (ByteType, ShortType, IntegerType, LongType),
    (FloatType, DoubleType),
)
"""Number types that Spark compares as the wider one, without loss."""


def merge_node(nodes: Sequence[Node]) -> MergeNode:
    """Make the node of all tuples of several streams with the same fields and types.

    Raises:
        TopologyError: the fields differ, or the streams come from different spouts.
    """
    first = nodes[0].schema
    ours = [(field.name, field.dataType) for field in first]
    for other in nodes[1:]:
        if ours != [(field.name, field.dataType) for field in other.schema]:
            msg = f"merge: the fields differ: {_said(first)} and {_said(other.schema)}. Use project or map first"
            raise TopologyError(msg)
    if len({spout for node in nodes for spout in node.spouts}) > 1:
        raise TopologyError(_several_spouts("merge"))
    return MergeNode("merge", first, tuple(nodes))


def join_node(
    ours: Node, fields: Names, theirs: Node, other_fields: Names, new: Names | None, how: str
) -> JoinNode:
    """Make the node of the tuples of two streams that have the same values in some fields.

    Raises:
        TopologyError: the fields do not match, `how` is unknown, or the streams come from different spouts.
    """
    if how not in _HOW:
        msg = f"join: how={how!r} is unknown. Choose one of {', '.join(_HOW)}"
        raise TopologyError(msg)
    left, right = (
        choose_fields(fields, ours.schema, "join"),
        choose_fields(other_fields, theirs.schema, "join"),
    )
    if len(left) != len(right) or not left:
        msg = f"join: {len(left)} fields cannot be joined on {len(right)} fields. Name as many on both sides"
        raise TopologyError(msg)
    if len({spout for node in (ours, theirs) for spout in node.spouts if spout.in_batches}) > 1:
        raise TopologyError(_several_spouts("join"))
    kinds = [
        *(_key(ours.schema[a], theirs.schema[b]) for a, b in zip(left, right, strict=True)),
        *(field for field in ours.schema if field.name not in left),
        *(field for field in theirs.schema if field.name not in right),
    ]
    names = [field.name for field in kinds] if new is None else list(new_fields(new, "join").names)
    if len(names) != len(kinds) or len({name.casefold() for name in names}) != len(names):
        said = ", ".join(names)
        msg = (
            f"join: the {len(kinds)} resulting fields need as many different names in `new`; there are {said}"
        )
        raise TopologyError(msg)
    schema = StructType()
    for name, kind in zip(names, kinds, strict=True):
        schema = schema.add(name, kind.dataType)
    on = tuple(zip(left, right, strict=True))
    return JoinNode("join", schema, (ours, theirs), on, how)


def _key(ours: StructField, theirs: StructField) -> StructField:
    """Return the common field of two joined fields."""
    left, right = ours.dataType, theirs.dataType
    for kinds in _WIDER:
        if isinstance(left, kinds) and isinstance(right, kinds):
            return StructField(ours.name, max(left, right, key=lambda kind: kinds.index(type(kind))))
    if left.simpleString() != right.simpleString():
        msg = (
            f"join: {ours.name!r} is {left.simpleString()} and {theirs.name!r} {right.simpleString()}, so none "
            "would be equal, or not as you expect. Convert one with map or transform"
        )
        raise TopologyError(msg)
    return ours


def _said(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)


def _several_spouts(what: str) -> str:
    return (
        f"{what}: the streams come from different spouts, which have their own batches. Read several Kinesis "
        "streams as one spout (streamName with several names), or let one stream update a state that the other "
        "queries"
    )
