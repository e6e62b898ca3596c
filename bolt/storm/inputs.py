"""The columns in which a bolt gets the fields of several components: values arrive as they were emitted."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
    ByteType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
)

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.storm.api import DEFAULT_STREAM, ArrowBolt
from kinesis_trident.bolt.storm.components import Input, StreamId
from kinesis_trident.bolt.storm.groupings import BoltDeclarer

__all__ = ["inputs_of"]


def inputs_of(declared: BoltDeclarer, given: Mapping[StreamId, StructType]) -> tuple[Input, ...]:
    """Return the inputs of a bolt: fields of several components share a column only if name and type are the same.

    Raises:
        TopologyError: an `ArrowBolt` would get a column for two fields that differ.
    """
    known: dict[str, tuple[str, StructField]] = {}
    differ: set[str] = set()
    for grouping in declared.groupings:
        for one in given[grouping.source]:
            other, first = known.setdefault(one.name.casefold(), (grouping.title, one))
            if (first.name, first.dataType) == (one.name, one.dataType):
                continue
            if isinstance(declared.bolt, ArrowBolt) and not _merge(first, one):
                msg = (
                    f"bolt {declared.name!r}: {other} emits {first.name!r}, {first.dataType.simpleString()}, and "
                    f"{grouping.title} emits {one.name!r}, {one.dataType.simpleString()}: an ArrowBolt gets both in "
                    "one column. Rename one, or give both the same type"
                )
                raise TopologyError(msg)
            differ.add(one.name.casefold())
    if isinstance(declared.bolt, ArrowBolt):
        differ.clear()
    inputs = []
    for number, grouping in enumerate(declared.groupings):
        fields = given[grouping.source].fieldNames()
        renamed = {name: f"__{number}_{name}" for name in fields if name.casefold() in differ}
        # Names of components do not begin with "__".
        name = grouping.component if grouping.stream == DEFAULT_STREAM else f"__{number}"
        inputs.append(Input(grouping, fields, renamed, name))
    return tuple(inputs)


def _merge(one: StructField, other: StructField) -> bool:
    """Return True if two fields can share a column without a change of any value."""
    if one.name != other.name:
        return False
    both = {type(one.dataType), type(other.dataType)}
    return both <= {ByteType, ShortType, IntegerType, LongType} or both <= {FloatType, DoubleType}
