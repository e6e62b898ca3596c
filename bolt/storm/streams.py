"""The streams that a bolt declares: parsed and checked, and laid side by side in the columns of one DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import IntegerType, StructField, StructType

from kinesis_trident.bolt.errors import TopologyError
from kinesis_trident.bolt.names import check_fields, check_name
from kinesis_trident.bolt.steps.functions import reason_of
from kinesis_trident.bolt.steps.schemas import parse_schema
from kinesis_trident.bolt.storm.api import DEFAULT_STREAM, ArrowBolt, BasicBolt, Bolt
from kinesis_trident.bolt.storm.unsupported import StormNames
from kinesis_trident.bolt.tagged import Tagged
from kinesis_trident.common.arrow_columns import column_of
from kinesis_trident.common.arrow_schemas import arrow_schema

TARGET = "__target"
"""The column with the task to which a row was emitted directly."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A declared stream."""

    fields: StructType
    direct: bool = False


@dataclass(frozen=True, slots=True)
class StreamOutput:
    """A stream as a bolt's task emits to it.

    `taken` False: no component takes its tuples, which are only checked. `tasks`: those of the bolt that takes a
    direct stream, if one does.
    """

    schema: pa.Schema
    taken: bool = True
    direct: bool = False
    tasks: int | None = None

    @classmethod
    def of(cls, declared: Declared, *, taken: bool, tasks: int | None = None) -> StreamOutput:
        """Return the stream as a task emits to it."""
        schema = arrow_schema(declared.fields)
        return cls(schema, taken, declared.direct, tasks)


class _Declarer(StormNames):
    """Collects what `declare_output_fields` declares."""

    def __init__(self, bolt: str) -> None:
        self._bolt = bolt
        self.streams: dict[str, Declared] = {}

    def declare(self, fields: str) -> None:
        """Declare the default stream."""
        self.declare_stream(DEFAULT_STREAM, fields)

    def declare_stream(self, stream: str, fields: str, *, direct: bool = False) -> None:
        """Declare a named stream."""
        check_name(f"bolt {self._bolt!r} declares the stream", stream)
        if stream in self.streams:
            msg = f"bolt {self._bolt!r} declares the stream {stream!r} twice. Declare it once, with all its fields"
            raise TopologyError(msg)
        self.streams[stream] = Declared(_parse_fields(self._bolt, stream, fields), direct)


def declared_streams(name: str, bolt: Bolt | BasicBolt | ArrowBolt) -> Mapping[str, Declared]:
    """Return the streams of a bolt; the default stream is among them, without fields if the bolt declares none.

    Raises:
        TopologyError: a name or the fields of a stream cannot be used.
    """
    declarer = _Declarer(name)
    if isinstance(bolt, ArrowBolt):
        if hasattr(bolt, "declare_output_fields"):
            msg = f"bolt {name!r}: an ArrowBolt has one stream. Name its fields in `fields`, or derive it from Bolt"
            raise TopologyError(msg)
        if bolt.fields:
            declarer.declare(bolt.fields)
    else:
        try:
            bolt.declare_output_fields(declarer)
        except TopologyError:
            raise
        except Exception as error:
            msg = f"bolt {name!r}: declare_output_fields() raised {reason_of(error)}. Correct it"
            raise TopologyError(msg) from error
    if not declarer.streams:
        return {DEFAULT_STREAM: Declared(StructType())}
    return declarer.streams


def _parse_fields(bolt: str, stream: str, given: str) -> StructType:
    what = f"its fields {given!r}"
    if stream != DEFAULT_STREAM:
        what = f"the fields {given!r} of its stream {stream!r}"
    try:
        fields = parse_schema(given) if given else StructType()
    except Exception as error:
        msg = f"bolt {bolt!r}: {what} cannot be parsed. Write them as 'word string, count long'"
        raise TopologyError(msg) from error
    check_fields(f"bolt {bolt!r}: {what}", fields.fieldNames())
    return fields


def tagged_of(streams: Mapping[str, Declared]) -> Tagged | None:
    """Return the columns of several streams; None if there is one, whose tuples have its fields."""
    return Tagged.of(one.fields for one in streams.values()) if len(streams) > 1 else None


def operator_of(component: str, stream: str, taken: Sequence[str]) -> str:
    """Return the name under which a bolt reports a stream; the first that is taken has the bolt's own."""
    return component if stream in taken[:1] else f"{component} (stream {stream})"


def schema_of(streams: Mapping[str, Declared]) -> StructType:
    """Return the columns of a bolt's task that emits these streams, which other components take."""
    target = [StructField(TARGET, IntegerType())] if any(one.direct for one in streams.values()) else []
    tagged = tagged_of(streams)
    fields = next(iter(streams.values())).fields if tagged is None else tagged.schema
    return StructType([*fields, *target])


def columns_of(
    rows: pa.RecordBatch,
    outputs: Mapping[str, StreamOutput],
    stream: str,
    tasks: Sequence[int | None],
    tagged: Tagged | None,
) -> dict[str, pa.Array]:
    """Return the columns of tuples of one stream, as `schema_of` has them; `outputs` are taken."""
    count = rows.num_rows
    if tagged is not None:
        rows = tagged.tag([*outputs].index(stream), count, rows.columns)
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    if any(output.direct for output in outputs.values()):
        columns[TARGET] = column_of(tasks, pa.int32()) if tasks else pa.nulls(count, pa.int32())
    return columns


def places_of(tagged: Tagged, streams: Mapping[str, Declared], stream: str) -> tuple[int, dict[str, str]]:
    """Return the number of a stream in the column `STREAM`, and the name of each of its columns."""
    number, declared = [*streams].index(stream), streams[stream]
    columns = dict(zip(tagged.columns_of(number), declared.fields.fieldNames(), strict=True))
    return number, columns | ({TARGET: TARGET} if declared.direct else {})
