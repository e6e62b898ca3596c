"""Streams without a Spark: what a topology is built of is checked before anything runs."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import StructType

from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.reader.rows import ANCHORS, SCHEMA
from kinesis_trident.trident.build.graph import DeclaredNodes, Graph
from kinesis_trident.trident.build.hints import resolve_hints
from kinesis_trident.trident.build.nodes import SpoutNode
from kinesis_trident.trident.stream import Stream

OPTIONS: dict[str, Any] = {
    "streamName": "orders",
    "applicationName": "tests",
    "zookeeper.hosts": "localhost:2181",
    "region": "us-east-1",
}


def a_stream(name: str = "lines", rows: Any = None, *, tracking: bool = True) -> Stream:
    """A stream of Kinesis, with the columns of the source."""
    schema = StructType([field for field in SCHEMA.fields if field.name != ANCHORS])
    options = SourceOptions.parse(OPTIONS)
    return Stream(SpoutNode(f"new_stream({name})", schema, (), name, rows, options, tracking=tracking))  # type: ignore[arg-type]


def graph_of(*streams: Stream) -> Graph:
    """The nodes of a topology of these streams, as they run."""
    declared = DeclaredNodes()
    for stream in streams:
        for node in (stream.node, *stream._declared.nodes):
            declared.add(node)
    graph, _ = resolve_hints(declared.graph)
    return graph


def a_table(ddl: str) -> Stream:
    """A stream of a batch DataFrame with these columns."""
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return Stream(SpoutNode("new_stream(table)", schema, (), "table", None, None))  # type: ignore[arg-type]
